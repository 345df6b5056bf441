"""Damaged files and hostile input: every command answers with exit code 0, or 2 and one line, soon, and loses nothing.

    python -m benchmarks mutations [--files 5000] [--inputs 1000] [--seed 0] [--seconds 60] [--out FILE]

A case takes a finished run, a training, a sweep, a shared study, or any other file that the product opens (see
`whole.py`), damages one file (or makes a hostile input), and runs a command in a forked process. A case fails where the
exit code is neither 0 nor 2, where there is a traceback, more than one line of an error or a line of more than 1,500
characters, where it takes longer than `--seconds`, where a file of the user's changed, or where damaged weights were
accepted: `evaluate` then tells other numbers than before. Of a published model that is judged where it was said
otherwise where tensors lie, of what type and shape they are, and how many; other numbers in a tensor, or another figure
in a config, are another model. Each case is known by its number and seed; `--only NUMBER` runs one again and shows what
it said.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults import calls, forks, headers, hostile, mutants, whole
from benchmarks.options import at_least
from tests.cli.runs import TINY, write_pool

# (file, weight, commands that read it); {} stands for a random trial's number
EVALUATE = "evaluate run=run space.pool=tiny.py:build"
REPORT = "report run=run out=page.html"
RESUME = f"search space.pool=tiny.py:build {' '.join(TINY)} resume=run"
TRIAL = "train run=run trial={} folder=new space.pool=tiny.py:build train.steps=2 train.validation_steps=1 export=false"
RETRAIN = "train resume=trained space.pool=tiny.py:build export=false"
SWEEP = f"search -m space.pool=tiny.py:build {' '.join(TINY)} train.learning_rate=0.001,0.01 folder=sweep"
TARGETS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    (
        "run/study.log",
        20,
        (REPORT, REPORT, RESUME, TRIAL),
    ),
    ("run/config.yaml", 16, (REPORT, EVALUATE, RESUME)),
    ("run/result.json", 12, (REPORT, EVALUATE)),
    ("run/log.jsonl", 12, (REPORT, REPORT, RESUME)),
    ("run/best/manifest.json", 10, (EVALUATE,)),
    ("run/best/*.safetensors", 12, (EVALUATE,)),
    ("run/weights/manifest.json", 6, (RESUME,)),
    ("run/weights/*.safetensors", 4, (RESUME,)),
    ("run/architecture.json", 6, ("train architecture=run/architecture.json folder=new train.steps=0 export=false",)),
    ("trained/config.yaml", 4, (RETRAIN,)),
    ("trained/architecture.json", 3, (RETRAIN,)),
    ("trained/weights/manifest.json", 3, (RETRAIN,)),
    ("trained/weights/*.safetensors", 2, (RETRAIN,)),
    ("out/export.json", 3, ("export run=run space.pool=tiny.py:build out=out formats=[state_dict]",)),
    ("sweep/0/result.json", 1, (f"{SWEEP} skip_done=true",)),
    ("data.npz", 10, (f"search space.pool=tiny.py:pool data.source=data.npz {' '.join(TINY)} folder=new",)),
    ("tiny.py", 4, (EVALUATE,)),
    *whole.TARGETS,
)
# what of the user's stays as it was, whatever is damaged
MINE = ("notes.txt", "keep/model.safetensors", "run/mine.txt")
ALWAYS = ("notes.txt", "keep", "tiny.py")


def build(place: Path, *, small: bool) -> None:
    """What is damaged; a small one leaves out what takes long to make.

    It must lie where cases run: token files know the place of their text.
    """
    import numpy as np

    write_pool(place)
    x = np.random.default_rng(0).random((160, 2), dtype=np.float32)
    np.savez(place / "data.npz", x=x, y=(x[:, 0] > x[:, 1]).astype(np.int64))
    (place / "keep").mkdir()
    whole.write_models(place)
    whole.write_data(place)
    pool = "space.pool=tiny.py:build"
    for words in (
        whole.ON_CACHE.replace("folder=new", "folder=once").split(),
        ["search", pool, *TINY, "folder=run"],
        ["train", "run=run", pool, "train.steps=5", "train.validation_steps=2", "export=false", "folder=trained"],
        ["export", "run=run", "space.pool=tiny.py:build", "out=out", "formats=[state_dict]"],
        SWEEP.split(),
    ):
        if small and words[0] != "export" and not {"folder=run", "folder=once"} & set(words):
            continue
        made = forks.command(place, *words)
        assert made.wait(300) == 0, (words, made.output, made.errors)
    shutil.rmtree(place / "once")
    for name in MINE:
        (place / name).write_text(f"mine: {name}\n")


def contents(folder: Path) -> dict[str, str]:
    """Every file, and what is in it."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name not in ("out.txt", "err.txt")
    }


class Harness:
    """Runs cases on copies of what was built, and says what was wrong with each.

    Args:
        base: what was built.
        place: where cases run.
        seconds: that a case may take.
    """

    def __init__(self, base: Path, place: Path, *, seconds: float) -> None:
        self.base = base
        self.place = place
        self.seconds = seconds
        self.whole = {words: self._values(words) for words in (EVALUATE, *whole.JUDGED.values())}
        self.codes: Counter[str] = Counter()
        self.slowest = (0.0, "")

    def fresh(self, words: str = "") -> Path:
        """A copy, of what a command names or, without one, of a run and what belongs to it."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        named = set(re.split(r"[ =:/,]", words)) if words else {"data.npz", "run", "out", "images"}
        for path in self.base.iterdir():
            if path.name in {*named, *ALWAYS}:
                copy = shutil.copytree if path.is_dir() else shutil.copy2
                copy(path, self.place / path.name)
        return self.place

    def _values(self, words: str) -> list[str]:
        process = forks.command(self.fresh(words), *words.split())
        assert process.wait(60) == 0, process.errors
        return process.output.splitlines()

    def values(self, name: str) -> list[str] | None:
        """What a command tells of a model in a file; None where the file is of none."""
        if name.startswith("run/best/"):
            return self.whole[EVALUATE]
        return next((self.whole[words] for begin, words in whole.JUDGED.items() if name.startswith(begin)), None)

    def run(self, words: list[str], *, damaged: str, judged: bool = True) -> str:
        """What was wrong, or nothing."""
        before = contents(self.place)
        if words[0] == "python":
            process = forks.start(self.place, lambda: calls.run(*words[1:]), tuple(words))
        else:
            process = forks.command(self.place, *words)
        code = process.wait(self.seconds)
        seconds = time.monotonic() - process.started
        self.slowest = max(self.slowest, (seconds, f"{damaged}: {' '.join(words)[:100]}"))
        if code is None:
            process.kill_group()
            process.wait(10)
            return f"hangs: no end after {self.seconds:.0f} s"
        if left := forks.left_of([process.number], seconds=2.0):
            return left
        self.codes[str(code)] += 1
        errors = process.errors.strip()
        if code not in (0, 2):
            return f"exit code {code}: {errors.splitlines()[-1] if errors else 'no word'}"
        if "Traceback" in errors + process.output:
            return f"traceback: {errors.splitlines()[-1]}"
        # a warning of what was read is a line of its own
        lines = [line for line in errors.splitlines() if not line.startswith("warning: ")]
        if code == 2 and "-m" not in words and (len(lines) != 1 or not lines[0].startswith("error: ")):
            return f"exit code 2 with {len(lines)} lines of errors: {errors[:300]}"
        if max(map(len, errors.splitlines()), default=0) > 1500:
            return f"an error of {len(errors)} characters"
        after = contents(self.place)
        untouched = [
            name for name in before if name in MINE or name in ("tiny.py", "data.npz") or name.startswith("keep/")
        ]
        if damaged.split(" ")[0] in ("file", "folder", "link"):  # all that was there when a new run began
            untouched += [
                name for name in before if name.split("/")[0] not in ("run", "trained", "shared", "sweep", "out")
            ]
        if words[0] in ("evaluate", "report") or (
            code == 2 and words[0] in ("export", "train") and "resume" not in words[1]
        ):
            untouched = [name for name in before if name.split("/")[0] != "out" or words[0] != "export"]
        if words[0] == "report" and "out=''" in words:  # the default: the run's own page is written
            untouched = [name for name in untouched if not name.endswith("/report.html")]
        for name in untouched:
            if after.get(name) != before[name]:
                return f"{name} was {'changed' if name in after else 'deleted'}"
        told = self.values(damaged)
        if code == 0 and judged and told is not None and process.output.splitlines() != told:
            return "damaged weights were accepted"
        return ""


def damage(harness: Harness, number: int, seed: int) -> tuple[list[str], str, bool]:
    """Damage a file; the command to run, what was done, and whether the command must tell what it told before."""
    generator = random.Random(f"{seed} file {number}")
    targets = [target for target in TARGETS if any(harness.base.glob(target[0]))]
    pattern, _, commands = generator.choices(targets, weights=[target[1] for target in targets])[0]
    words = generator.choice(commands).replace("{}", str(generator.randrange(14)))
    place = harness.fresh(f"{words} {pattern}")
    path = generator.choice(sorted(place.glob(pattern)))
    before = path.read_bytes()
    how = mutants.mutate(path, generator)
    is_model = path.suffix == ".safetensors" and path.parts[-2] not in ("best", "weights")
    name = str(path.relative_to(place))
    return words.split(" "), f"{name} {how}", not is_model or headers.judged(path, before)


def _case(text: str) -> tuple[str, int]:
    kind, _, number = text.partition(":")
    if kind not in ("file", "input") or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"write file:NUMBER or input:NUMBER, got '{text}'")
    return kind, int(number)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=at_least(0), default=5000)
    parser.add_argument("--inputs", type=at_least(0), default=1000)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--small", action="store_true", help="fewer kinds of files, as the test suite does")
    parser.add_argument("--first", type=at_least(0), default=0, help="how many cases to leave out")
    parser.add_argument("--only", type=_case, help="file:NUMBER or input:NUMBER")
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if every case went well."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    forks.preload()
    began = time.monotonic()
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as scratch:
        base, place = Path(scratch, "base"), Path(scratch, "case")
        place.mkdir()
        build(place, small=asked.small)
        place.rename(base)
        harness = Harness(base, place, seconds=asked.seconds)
        cases = [("file", n) for n in range(asked.files)] + [("input", n) for n in range(asked.inputs)]
        cases = cases[asked.first :]
        if asked.only:
            cases = [asked.only]
        failures = []
        for done, (kind, number) in enumerate(cases):
            judged = True
            if kind == "file":
                words, what, judged = damage(harness, number, asked.seed)
            else:
                words, what = hostile.prepare(harness.fresh(), random.Random(f"{asked.seed} input {number}"))
            wrong = harness.run(words, damaged=what, judged=judged)
            if wrong:
                failures.append({"case": f"{kind}:{number}", "what": what, "words": words, "wrong": wrong})
                print(f"{kind}:{number} {what}\n    {' '.join(words)[:300]}\n    {wrong[:400]}", flush=True)
            if asked.only:
                print(words, what)
                print((harness.place / "out.txt").read_text()[-2000:], (harness.place / "err.txt").read_text()[-6000:])
            if done % 100 == 99:
                print(f"{done + 1} cases, {len(failures)} failures, {time.monotonic() - began:.0f} s", flush=True)
    found = {
        "files": sum(kind == "file" for kind, _ in cases),
        "inputs": sum(kind == "input" for kind, _ in cases),
        "seed": asked.seed,
        "exit_codes": dict(sorted(harness.codes.items())),
        "failures": failures,
        "slowest_s": round(harness.slowest[0], 1),
        "slowest": harness.slowest[1],
        "seconds": round(time.monotonic() - began),
        "processor_s": round(sum(os.times()[:4])),
    }
    print(json.dumps({**found, "failures": len(failures)}))
    if asked.out:
        asked.out.write_text(json.dumps(found, indent=2) + "\n")
    return bool(failures)
