"""What tests see: small wrong changes of the package, one at a time, each tried on the tests that are nearest to it.

    python -m benchmarks mutate [--count 200] [--seed 0] [--rooms nas,relay] [--jobs 1] [--contexts FILE] [--out FILE]

Changes (see `changes.py`) are spread over the rooms by their lines and over kinds of change; the same seed and sources
give the same. Each is made in a copy of the checkout, never in the checkout. The tests that run the changed line come
first, those of the mirrored test file before others of the room, until one fails: the change is caught. A test that
hangs or ends the process catches it, too. FILE of `--contexts` knows which tests run a line; without it, or where no
test does, the mirrored file and those that import the module are run, or the room's. This makes it:

    COVERAGE_FILE=FILE python -m coverage run --source=l2l_nas -m pytest -p benchmarks.faults.contexts -m "not slow"

FILE of `--out` holds each change with the first test that failed. It is gone on with where it exists; `--again` tries
those that survived once more. What is equivalent is said by hand there: {"equivalent": "why"}. A changed line may end
processes: `unshare --pid --fork --mount-proc python -m benchmarks mutate` keeps others out of its sight.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
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
import traceback
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults.changes import WEIGHTS, Change, changes, is_other
from benchmarks.options import at_least, positive

ROOT = Path(__file__).parents[2]
PACKAGE = "l2l_nas"
_FILES = 4  # of tests, where it is not known which tests run a line
_PRELOAD: tuple[str, ...] = (
    "torch",
    "torch._dynamo",
    "numpy",
    "pytest",
    "hypothesis",
    "optuna",
    "hydra",
    "sklearn.model_selection",
)
_PRELOAD += (
    "safetensors.torch",
    "rich.console",
    "jinja2",
    "matplotlib.figure",
    "PIL.Image",
    "transformers",
    "scipy.stats",
)


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
    """Changes of these files, as many of each room as its share of the lines, one a line, in an order of chance.

    Args:
        rooms: of these alone; empty for all.
    """
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
    """So many, over kinds by their weights."""
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


class Tests:
    """Which tests are near to a line."""

    def __init__(self, contexts: Path | None) -> None:
        self._texts = {
            path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))
        }
        self._data = None
        if contexts is not None:
            from coverage import CoverageData

            self._data = CoverageData(str(contexts))
            self._data.read()

    def near(self, case: Case, most: int) -> list[str]:
        """Arguments for pytest, the nearest first, and of tests that run the line no more than so many."""
        path = Path(case.file).relative_to(PACKAGE)
        mirrored = f"tests/{path.with_name(f'test_{path.name}')}"
        room = f"tests/{room_of(case.file)}/"
        known = self._known(case)
        if known:
            order = sorted(known, key=lambda name: (not name.startswith(mirrored), not name.startswith(room), name))
            return order[:most]
        first = [name for name in (mirrored,) if (ROOT / name).exists()]
        module = case.file.removesuffix(".py").replace("/", ".")
        users = [name for name, text in self._texts.items() if re.search(rf"{module}\b|{_as_import(module)}", text)]
        named = [*first, *sorted({*users} - {*first}, key=lambda name: (not name.startswith(room), name))]
        return named[:_FILES] or [room if room != "tests//" else "tests"]

    def _known(self, case: Case) -> set[str]:
        if self._data is None:
            return set()
        file = next((file for file in self._data.measured_files() if file.endswith(f"/{case.file}")), "")
        by_line = self._data.contexts_by_lineno(file) if file else {}
        names = set(by_line.get(case.change.line, ())) - {""}
        return names or {name for names in by_line.values() for name in names} - {""}


def _as_import(module: str) -> str:
    package, _, name = module.rpartition(".")
    return rf"from {package} import .*\b{name}\b"


class Copy:
    """A copy of the checkout with at most one change in it, and the tests that run there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.splitlines():
            if not name.startswith(("benchmarks/results/", "docs/pictures/")) and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        subprocess.run([sys.executable, "-m", "compileall", "-q", PACKAGE, "tests"], cwd=folder, check=True)
        self._case: Case | None = None

    def start(self, case: Case, arguments: list[str], seconds: float) -> None:
        """Change the file, and run tests in a process forked from this one, which has imported what is heavy."""
        path = self.folder / case.file
        path.write_text(case.change.apply(path.read_text()))
        self._case, self._end = case, time.monotonic() + 2 * seconds + 60
        self._answer = self.folder / "answer.json"
        self._answer.unlink(missing_ok=True)
        self.number = os.fork()
        if self.number == 0:
            try:
                _test(self.folder, arguments, seconds)
            except BaseException:
                self._answer.write_text(json.dumps({"broken": traceback.format_exc()}))
            os._exit(0)

    def finished(self) -> dict[str, Any] | None:
        """What came of it, and the file as it was; None while it runs."""
        assert self._case is not None
        done, _ = os.waitpid(self.number, os.WNOHANG)
        late = time.monotonic() > self._end
        if not done and not late:
            return None
        with contextlib.suppress(ProcessLookupError):  # whatever it started goes with it
            os.killpg(self.number, signal.SIGKILL)
        if not done:
            os.waitpid(self.number, 0)
        shutil.copy2(ROOT / self._case.file, self.folder / self._case.file)
        if self._answer.exists():
            found: dict[str, Any] = json.loads(self._answer.read_text())
            if "broken" in found:
                raise RuntimeError(found["broken"])
            return found
        return {"caught": "a test that hangs" if late else "a test that ends the process"}


class _Watch:
    """A plugin that keeps the first failure, and runs no further test when the time is up."""

    def __init__(self, seconds: float) -> None:
        self.failed, self.run, self.passed_over = "", 0, 0
        self._end = time.monotonic() + seconds

    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        if time.monotonic() > self._end:
            self.passed_over += 1
            return True
        self.run += 1
        return None

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        self.pytest_runtest_logreport(report)


def _test(folder: Path, arguments: list[str], seconds: float) -> None:
    """Run tests in this process, and leave what came of them in a file."""
    import pytest

    os.setsid()
    os.chdir(folder)
    output = os.open(folder / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in [name for name in sys.modules if name.split(".")[0] in (PACKAGE, "benchmarks", "tests")]:
        del sys.modules[name]
    sys.path[:] = [str(folder), *(path for path in sys.path if Path(path or ".").resolve() != ROOT)]
    os.environ["PYTHONPATH"] = str(folder)
    watch = _Watch(seconds)
    words = ["-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--timeout=120", f"--rootdir={folder}"]
    words += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of plugins that were imported before
    code = pytest.main([*words, *arguments], plugins=[watch])
    answer: dict[str, Any] = {"tests": watch.run}
    if watch.passed_over:
        answer["passed_over"] = watch.passed_over
    if code not in (0, 5):
        answer["caught"] = watch.failed or f"exit code {int(code)}"
    (folder / "answer.json").write_text(json.dumps(answer))


def run(
    cases: list[Case], tests: Tests, *, jobs: int, most: int, seconds: float
) -> Iterator[tuple[Case, dict[str, Any]]]:
    """Try changes, so many at a time; each with what came of it."""
    waiting = list(reversed(cases))
    with tempfile.TemporaryDirectory(prefix="l2l_nas-mutate-", ignore_cleanup_errors=True) as scratch:
        idle = [Copy(Path(scratch) / str(number)) for number in range(min(jobs, len(cases)))]
        busy: dict[Copy, tuple[Case, float]] = {}
        try:
            while waiting or busy:
                while idle and waiting:
                    copy, case = idle.pop(), waiting.pop()
                    copy.start(case, tests.near(case, most), seconds)
                    busy[copy] = case, time.monotonic()
                for copy, (case, began) in list(busy.items()):
                    found = copy.finished()
                    if found is not None:
                        del busy[copy]
                        idle.append(copy)
                        yield case, {**found, "seconds": round(time.monotonic() - began, 1)}
                time.sleep(0.05)
        finally:
            for copy in busy:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(copy.number, signal.SIGKILL)


def _preload() -> None:
    """Import what tests import, once. No thread of torch's may run when processes are forked."""
    import importlib
    import warnings

    os.environ.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _PRELOAD:
            with contextlib.suppress(ImportError):  # an extra that is not installed
                importlib.import_module(name)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--count", type=at_least(1), default=200)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--rooms", default="", help="of these alone, with commas between them")
    parser.add_argument(
        "--skip", action="append", default=[], help="files that are left out, as l2l_nas/nas/study/*.py"
    )
    parser.add_argument("--jobs", type=at_least(1), default=1)
    parser.add_argument(
        "--seconds", type=positive, default=120.0, help="after which no further test of a change begins"
    )
    parser.add_argument("--most", type=at_least(1), default=400, help="tests of a change that run its line")
    parser.add_argument("--first", type=at_least(1), help="try no more than so many now")
    parser.add_argument("--contexts", type=Path, help="which tests run a line")
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/mutants.json")


def main(asked: argparse.Namespace) -> int:
    """0 if every change was caught, or is equivalent."""
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / PACKAGE).rglob("*.py"))
    rooms = asked.rooms.split(",") if asked.rooms else []
    files = [file for file in files if not any(fnmatch.fnmatch(file, glob) for glob in asked.skip)]
    cases = choose(files, asked.count, asked.seed, rooms)
    known = {_key(one): one for one in json.loads(asked.out.read_text())["changes"]} if asked.out.exists() else {}
    open_cases = [case for case in cases if _is_open(known.get(_key(case.said)), again=asked.again)]
    tests = Tests(asked.contexts)
    _preload()
    for case, found in run(open_cases[: asked.first], tests, jobs=asked.jobs, most=asked.most, seconds=asked.seconds):
        known[_key(case.said)] = {**case.said, **found}
        print(json.dumps(known[_key(case.said)]), flush=True)
        _write(asked, known)
    survived = [one for one in known.values() if "caught" not in one and "equivalent" not in one]
    print(f"{len(known)} changes, {sum('caught' in one for one in known.values())} caught, {len(survived)} survived")
    return bool(survived)


def _key(said: dict[str, Any]) -> tuple[str, str, str]:
    return said["file"], said["before"], said["after"]


def _is_open(known: dict[str, Any] | None, *, again: bool) -> bool:
    return known is None or (again and "caught" not in known and "equivalent" not in known)


def _write(asked: argparse.Namespace, known: dict[tuple[str, str, str], dict[str, Any]]) -> None:
    content = {"seed": asked.seed, "count": asked.count, "skip": asked.skip}
    content["changes"] = sorted(known.values(), key=lambda one: (one["file"], one["line"]))
    part = asked.out.with_suffix(".part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    part.replace(asked.out)
