"""Damaged files of runs, hostile input: each command answers with exit code 0, or 2 and one line, and loses nothing.

    python -m benchmarks mutations [--files 5000] [--inputs 1000] [--seed 0] [--seconds 60] [--out FILE]

A case takes a finished run, a training or a sweep, damages one file (or makes a hostile input), and runs a command in a
forked process. A case fails where the exit code is neither 0 nor 2, where there is a traceback, more than one line of
an error or a line of more than 1,500 characters, where it takes longer than `--seconds`, where a file of the user's
changed, or where damaged weights were accepted: `evaluate` then tells other numbers than before. Each case follows from
its number and the seed.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from benchmarks.faults import damage as damages
from benchmarks.faults import forks
from benchmarks.faults.forks import contents
from benchmarks.options import at_least
from l2l_nas.files import write_json
from l2l_nas.runs.fields import settings
from l2l_nas.runs.settings import COMMANDS
from tests.cli.runs import TINY, write_pool

_VALUES = (
    "nan", "inf", "-inf", "-1", "0", "1.5", "1e20", "-1e400", "99999999999999999999", "true", "null", "", "''", "[]",
    "{}", "[1,2]", "{a:b}", "text", "'[/x]r'", "'a%20b'", "'x?timeout=5'", "'a b'", "${oc.env:NOT_THERE}", "${seed}",
    "???", "a" * 240, "a" * 5000, "'\x1b[31mred'", "../case/x", "/proc/self/mem", "/dev/zero", "\ud800", "a\0b",
    "choice(1,2)", "[" * 3000, "'", "\\", "a,b", "${", "{", "[", "range(3)", "0x10", "1_000", "+5", "\uff11",
)  # fmt: skip
# what would take long, not go wrong: large numbers of these are work
_LARGE = {"workers", "trials", "steps", "steps_per_trial", "warmup_steps", "finalist_steps", "finalists"}
_WORDS = (
    "=5", "+=", "~", "~seed", "++", "@", "a@b=c", "seed", "seed==5", "--", "-x", "--cfg", "--cfg=job", "-c job",
    "seed=1 2", "//", "space=nope", "space=../x", "space=[digits_conv]", "hydra.run.dir=/proc/x",
    "hydra/launcher=nope", "~space", "+space=x", "seed=0,1", "objectives=[accuracy,accuracy]", "objectives=[]",
    "search.limits.flops=nan", "search.limits={a:1}", "search.limits.x=1", "space.args=7", "space.args.width=-3",
    "space.args.width=x", "space.args.nope=1", "space.args.samples=1", "space.args.samples=0", "space.args.depth=0",
    "space.args.width=1e9", "space.pool=tiny.py:nope", "space.pool=nope.py:build", "space.pool=os:getcwd",
    "space.pool=sys:exit", "space.pool=:", "space.pool=tiny.py", "space.pool=tiny.py:data", "space.pool=json",
    "space.pool=a.b.c:d", "space.pool=/dev/null:x", "data.source=nope.npz", "data.source=keep", "data.source=tiny.py",
    "data.source=/dev/zero.npz", "relay.budget=-1", "relay.budget=1e9GiB", "relay.device=cuda:9", "relay.device=meta",
    "relay.precision=fp64", "search.retire=[x/y]", "search.retire=['*/*']", "search.freeze=[layer0/tanh]",
    "search.early_stop=halving", "train.batch_size=100000000", "train.micro_batch=1", "search.failures=1e18",
    "search.workers=-5", "relay.threads=1e20",
)  # fmt: skip
_NAMES = (
    "config.yaml", "study.log", "best", "export", "weights", "pool", "report.html", "trace.json", "pareto.png",
    "result.json", "architecture.json", "worker", "log.jsonl", "storage.json", "model.pt2",
    "state_dict.safetensors", "export.json", "multirun.yaml", "summary.json", "0", "pending.jsonl",
)  # fmt: skip
_FOLDERS = ("new", "mine.db?v=1", "x?timeout=5", "a%20b", "[/x]r", "{x}", "ü", "a#b", "a b", "'q'")


def hostile_input(place: Path, generator: random.Random) -> tuple[list[str], str]:
    """Make an input in a folder with a finished run; the command to run, and what it is."""
    kind = generator.choice((_setting, _setting, _setting, _word, _word, _folder))
    return kind(place, generator)


def _base(command: str) -> list[str]:
    pool = "space.pool=tiny.py:build"
    return {
        "search": ["search", pool, *TINY, "search.trials=2", "folder=new"],
        "train": ["train", "run=run", pool, "train.steps=2", "export=false", "folder=new"],
        "evaluate": ["evaluate", "run=run", "space.pool=tiny.py:build"],
        "export": ["export", "run=run", "space.pool=tiny.py:build", "out=network", "formats=[state_dict]"],
        "report": ["report", "run=run", "out=page.html"],
    }[command]


def _setting(place: Path, generator: random.Random) -> tuple[list[str], str]:
    command = generator.choice(("search", "search", "search", "train", "train", "evaluate", "export", "report"))
    name = generator.choice([name for name, _, _ in settings(COMMANDS[command])])
    values: tuple[str, ...] = _VALUES
    if name.rpartition(".")[2] in _LARGE:
        values = tuple(value for value in values if value.strip("0123456789_x\uff11+"))
    value = generator.choice(values)
    return [*_base(command), f"{name}={value}"], f"{name} of {value[:30]!r}"


def _word(place: Path, generator: random.Random) -> tuple[list[str], str]:
    command = generator.choice(("search", "search", "search", "train", "evaluate", "export", "report"))
    word = generator.choice(_WORDS)
    return [*_base(command), *word.split(" ")], f"word {word[:40]!r}"


def _folder(place: Path, generator: random.Random) -> tuple[list[str], str]:
    name = generator.choice(_NAMES)
    folder = place / generator.choice(_FOLDERS)
    folder.mkdir(parents=True)
    kind = generator.choice(("file", "folder", "link", "dangling", "nothing"))
    target = folder / name
    if kind == "file":
        target.write_text("mine\n")
    elif kind == "folder":
        target.mkdir()
        (target / "manifest.json").write_text("{}")
        (target / "model.safetensors").write_text("mine\n")
    elif kind == "link":
        target.symlink_to(place / "keep", target_is_directory=True)
    elif kind == "dangling":
        target.symlink_to(place / "nowhere")
    command = generator.choice(("search", "search", "search", "train", "export", "search -m", "report"))
    key = {"export": "out", "report": "out"}.get(command, "folder")
    path = str(target if command == "report" else folder.relative_to(place))
    words = [*_base(command.split()[0]), f'{key}="{path}"']
    if generator.random() < 0.2 and key == "folder":
        words.append(f'resume="{path}"')
    if command == "search":
        words += ["relay.storage=file"] * (generator.random() < 0.4)
        words += ["search.finalists=0"] * (generator.random() < 0.3)
    if command == "search -m":
        words += ["-m", "seed=0,1"]
    return words, f"{kind} {name} in {folder.name}, {command}"


# (file, weight, commands that read it); {} stands for a random trial's number
EVALUATE = "evaluate run=run space.pool=tiny.py:build"
REPORT = "report run=run out=page.html"
RESUME = f"search space.pool=tiny.py:build {' '.join(TINY)} resume=run"
TRIAL = "train run=run trial={} folder=new space.pool=tiny.py:build train.steps=2 train.validation_steps=1 export=false"
RETRAIN = "train resume=trained space.pool=tiny.py:build export=false"
SWEEP = f"search -m space.pool=tiny.py:build {' '.join(TINY)} train.learning_rate=0.001,0.01 folder=sweep"
TARGETS: tuple[tuple[str, int, tuple[str, ...]], ...] = (
    ("run/study.log", 44, (REPORT, REPORT, EVALUATE, RESUME, TRIAL)),
    ("run/config.yaml", 16, (REPORT, EVALUATE, RESUME)),
    ("run/best/manifest.json", 10, (EVALUATE,)),
    ("run/best/*.safetensors", 12, (EVALUATE,)),
    ("run/weights/manifest.json", 6, (RESUME,)),
    ("run/weights/*.safetensors", 4, (RESUME,)),
    ("run/architecture.json", 6, ("train architecture=run/architecture.json folder=new train.steps=0 export=false",)),
    ("trained/config.yaml", 4, (RETRAIN,)),
    ("trained/log.jsonl", 4, (RETRAIN,)),
    ("trained/architecture.json", 3, (RETRAIN,)),
    ("trained/weights/*", 5, (RETRAIN,)),
    ("out/export.json", 3, ("export run=run space.pool=tiny.py:build out=out formats=[state_dict]",)),
    ("sweep/0/study.log", 1, (f"{SWEEP} skip_done=true",)),
    ("data.npz", 10, (f"search space.pool=tiny.py:pool data.source=data.npz {' '.join(TINY)} folder=new",)),
    ("tiny.py", 4, (EVALUATE,)),
)
# what of the user's stays as it was, whatever is damaged
MINE = ("notes.txt", "keep/model.safetensors", "run/mine.txt")
ALWAYS = ("notes.txt", "keep", "tiny.py")


def build(place: Path) -> None:
    write_pool(place)
    x = np.random.default_rng(0).random((160, 2), dtype=np.float32)
    np.savez(place / "data.npz", x=x, y=(x[:, 0] > x[:, 1]).astype(np.int64))
    (place / "keep").mkdir()
    pool = "space.pool=tiny.py:build"
    for words in (
        ["search", pool, *TINY, "folder=run"],
        ["train", "run=run", pool, "train.steps=5", "train.validation_steps=2", "export=false", "folder=trained"],
        ["export", "run=run", "space.pool=tiny.py:build", "out=out", "formats=[state_dict]"],
        SWEEP.split(),
    ):
        made = forks.command(place, *words)
        assert made.wait(300) == 0, (words, made.output, made.errors)
    for name in MINE:
        (place / name).write_text(f"mine: {name}\n")


class Harness:
    """Runs cases on copies of what was built, and says what was wrong with each."""

    def __init__(self, base: Path, place: Path, *, seconds: float) -> None:
        self.base = base
        self.place = place
        self.seconds = seconds
        process = forks.command(self.fresh(EVALUATE), *EVALUATE.split())
        assert process.wait(60) == 0, process.errors
        self.told = process.output.splitlines()
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

    def run(self, words: list[str], *, damaged: str) -> str:
        before = contents(self.place)
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
        if code == 0 and damaged.startswith("run/best/") and process.output.splitlines() != self.told:
            return "damaged weights were accepted"
        return ""


def damage(harness: Harness, number: int, seed: int) -> tuple[list[str], str]:
    """Damage a file; the command to run, and what was done."""
    generator = random.Random(f"{seed} file {number}")
    pattern, _, commands = generator.choices(TARGETS, weights=[target[1] for target in TARGETS])[0]
    words = generator.choice(commands).replace("{}", str(generator.randrange(14)))
    place = harness.fresh(f"{words} {pattern}")
    path = generator.choice(sorted(place.glob(pattern)))
    return words.split(" "), f"{path.relative_to(place)} {damages.mutate(path, generator)}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=at_least(0), default=5000)
    parser.add_argument("--inputs", type=at_least(0), default=1000)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if every case went well."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    forks.preload()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=forks.FAST) as scratch:
        base, place = Path(scratch, "base"), Path(scratch, "case")
        place.mkdir()
        build(place)
        place.rename(base)
        harness = Harness(base, place, seconds=asked.seconds)
        cases = [("file", n) for n in range(asked.files)] + [("input", n) for n in range(asked.inputs)]
        failures = []
        for kind, number in cases:
            if kind == "file":
                words, what = damage(harness, number, asked.seed)
            else:
                words, what = hostile_input(harness.fresh(), random.Random(f"{asked.seed} input {number}"))
            wrong = harness.run(words, damaged=what)
            if wrong:
                failures.append({"case": f"{kind}:{number}", "what": what, "words": words, "wrong": wrong})
                print(f"{kind}:{number} {what}\n    {' '.join(words)[:300]}\n    {wrong[:400]}", flush=True)
                print((harness.place / "err.txt").read_text()[-2000:])
    counts = {kind + "s": sum(one == kind for one, _ in cases) for kind in ("file", "input")}
    about = {"seed": asked.seed, "exit_codes": dict(sorted(harness.codes.items())), "slowest": harness.slowest}
    print(json.dumps({**counts, **about, "failures": len(failures)}))
    if asked.out:
        write_json(asked.out, {**counts, **about, "failures": failures, "seconds": round(time.monotonic() - began)})
    return bool(failures)
