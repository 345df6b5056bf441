"""What tests see: small wrong changes of the package, one at a time, each tried on the tests that are nearest to it.

    python -m benchmarks mutate [--count 200] [--seed 0] [--rooms nas relay] [--out FILE]

Changes (see `changes.py`) are spread over the rooms by their lines and over kinds of change; the same seed and sources
give the same. Each is made in a copy of the checkout, never in the checkout. The mirrored test file and those that
import the module are run, or the room's, until a test fails: the change is caught. A test that hangs or ends the
process catches it, too.

FILE of `--out` holds each change with the first test that failed. It is gone on with where it exists. What is
equivalent is said by hand there: {"equivalent": "why"}. A changed line may end processes: `unshare --pid --fork
--mount-proc python -m benchmarks mutate` keeps others out of its sight.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.faults.changes import WEIGHTS, Change, changes, is_other
from benchmarks.options import at_least
from l2l_nas.files import read_json, write_json

PACKAGE = "l2l_nas"
_FILES = 4  # of tests, where it is not known which tests run a line


@dataclass(frozen=True)
class Case:
    """A change of one file."""

    file: str
    change: Change

    @property
    def said(self) -> dict[str, Any]:
        """How the raw file names it: the line before and after tells it, wherever the line is later."""
        source = (ROOT / self.file).read_text()
        change = self.change
        begin, end = source.rfind("\n", 0, change.start) + 1, source.find("\n", change.end)
        after = source[begin : change.start] + change.text + source[change.end : end]
        return {
            "file": self.file,
            "line": change.line,
            "kind": change.kind,
            "before": " ".join(source[begin:end].split()),
            "after": " ".join(after.split()),
        }


def room_of(file: str) -> str:
    """The package below `l2l_nas` that a file is in; "" for files of none."""
    parts = Path(file).parts
    return parts[1] if len(parts) > 2 else ""


def choose(files: list[str], count: int, seed: int, rooms: Collection[str] = ()) -> list[Case]:
    """Changes of these files, as many of each room as its share of the lines, one a line, in an order of chance."""
    sources = {file: (ROOT / file).read_text() for file in files}
    lines = Counter[str]()
    for file, source in sources.items():
        lines[room_of(file)] += source.count("\n")
    shares = {room: count * lines[room] / lines.total() for room in sorted(lines)}
    numbers = {room: int(share) for room, share in shares.items()}
    for room in sorted(shares, key=lambda room: numbers[room] - shares[room])[: count - sum(numbers.values())]:
        numbers[room] += 1
    cases: list[Case] = []
    for room, number in numbers.items():
        if rooms and room not in rooms:
            continue
        found = [Case(file, one) for file in files if room_of(file) == room for one in changes(sources[file])]
        cases += _spread(found, number, random.Random(f"{seed} {room}"))
    random.Random(seed).shuffle(cases)
    return cases


def _spread(found: list[Case], number: int, generator: random.Random) -> list[Case]:
    kinds: dict[str, list[Case]] = {kind: [] for kind in WEIGHTS}
    for case in found:
        kinds[case.change.kind].append(case)
    chosen: dict[tuple[str, int], Case] = {}
    while len(chosen) < number and any(kinds.values()):
        left = [kind for kind in kinds if kinds[kind]]
        kind = generator.choices(left, [WEIGHTS[one] for one in left])[0]
        case = kinds[kind].pop(generator.randrange(len(kinds[kind])))
        if (case.file, case.change.line) not in chosen and is_other((ROOT / case.file).read_text(), case.change):
            chosen[case.file, case.change.line] = case
    return list(chosen.values())


def near(case: Case) -> list[str]:
    """Arguments for pytest: the mirrored test file, those that import the module, or the room's."""
    path = Path(case.file).relative_to(PACKAGE)
    mirrored = f"tests/{path.with_name(f'test_{path.name}')}"
    room = f"tests/{room_of(case.file)}/"
    module = case.file.removesuffix(".py").replace("/", ".")
    package, _, name = module.rpartition(".")
    used = re.compile(rf"{module}\b|from {package} import .*\b{name}\b")
    files = [one for one in (ROOT / "tests").rglob("test_*.py") if used.search(one.read_text())]
    users = {one.relative_to(ROOT).as_posix() for one in files} - {mirrored}
    first = [mirrored] if (ROOT / mirrored).exists() else []
    named = [*first, *sorted(users, key=lambda name: (not name.startswith(room), name))]
    return named[:_FILES] or [room if room != "tests//" else "tests"]


def copied(folder: Path) -> None:
    """A copy of the checkout, in which changes are made."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in listed.splitlines():
        if not name.startswith(("benchmarks/results/", "docs/pictures/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    subprocess.run([sys.executable, "-m", "compileall", "-q", PACKAGE, "tests"], cwd=folder, check=True)


def tried(case: Case, folder: Path, seconds: float) -> dict[str, Any]:
    """Change the copy, run the nearest tests there, and change it back; the first test that failed, or the end."""
    path, begun = folder / case.file, time.monotonic()
    source, timed_out = path.read_text(), ""
    path.write_text(case.change.apply(source))
    words = ["-x", "-q", "-rfE", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=120", *near(case)]
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", *words], cwd=folder, start_new_session=True, text=True,
        env={**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        output, timed_out = "", f"no end after {seconds:.0f} s"
    with contextlib.suppress(ProcessLookupError):  # whatever it started goes with it
        os.killpg(process.pid, signal.SIGKILL)
    path.write_text(source)
    answer: dict[str, Any] = {"seconds": round(time.monotonic() - begun, 1)}
    if timed_out:
        return {**answer, "left": timed_out}
    if process.returncode not in (0, 5):
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        answer["caught"] = failed[1] if failed else "a test that ends the process"
    return answer


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=at_least(1), default=200)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--rooms", nargs="+", default=[], help="of these alone")
    parser.add_argument("--seconds", type=float, default=600.0, help="of the tests of a change")
    parser.add_argument("--first", type=at_least(1), help="try no more than so many now")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/mutants.json")


def main(asked: argparse.Namespace) -> int:
    """0 if every change was caught, or is equivalent."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / PACKAGE).rglob("*.py"))
    cases = choose(files, asked.count, asked.seed, asked.rooms)
    known = {_key(one): one for one in read_json(asked.out)["changes"]} if asked.out.exists() else {}
    left = [case for case in cases if _key(case.said) not in known]
    with tempfile.TemporaryDirectory(prefix="l2l_nas-mutate-") as folder:
        copied(Path(folder))
        for case in left[: asked.first]:
            known[_key(case.said)] = {**case.said, **tried(case, Path(folder), asked.seconds)}
            print(json.dumps(known[_key(case.said)]), flush=True)
            in_order = sorted(known.values(), key=lambda one: (one["file"], one["line"]))
            write_json(asked.out, {"seed": asked.seed, "count": asked.count, "changes": in_order})
    survived = [one for one in known.values() if "caught" not in one and "equivalent" not in one]
    print(f"{len(known)} changes, {sum('caught' in one for one in known.values())} caught, {len(survived)} survived")
    return bool(survived)


def _key(said: dict[str, Any]) -> tuple[str, str, str]:
    return said["file"], said["before"], said["after"]
