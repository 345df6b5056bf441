"""Hostile input: settings of odd values, words that are none, folders that hold other things, code that raises.

The same values come in config files of the user's, and in calls of the Python API (see `calls.py`).
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults import calls, mutants
from l2l_nas.runs.fields import settings
from l2l_nas.runs.settings import COMMANDS
from tests.cli.runs import TINY

_VALUES = (
    "nan",
    "inf",
    "-inf",
    "-1",
    "0",
    "1.5",
    "1e20",
    "-1e400",
    "99999999999999999999",
    "true",
    "null",
    "",
    "''",
    "[]",
    "{}",
    "[1,2]",
    "{a:b}",
    "text",
    "'[/x]r'",
    "'a%20b'",
    "'x?timeout=5'",
    "'a b'",
    "${oc.env:NOT_THERE}",
    "${seed}",
    "???",
    "a" * 240,
    "a" * 5000,
    "'\x1b[31mred'",
    "../case/x",
    "/proc/self/mem",
    "/dev/zero",
    "\ud800",
    "a\0b",
    "choice(1,2)",
    "[" * 3000,
    "'",
    "\\",
    "a,b",
    "${",
    "{",
    "[",
    "range(3)",
    "0x10",
    "1_000",
    "+5",
    "\uff11",
)
# what would take long, not go wrong: large numbers of these are work
_LARGE = {"workers", "trials", "steps", "steps_per_trial", "warmup_steps", "finalist_steps", "finalists"}
_WORDS = (
    "=5",
    "+=",
    "~",
    "~seed",
    "++",
    "@",
    "a@b=c",
    "seed",
    "seed==5",
    "--",
    "-x",
    "--cfg",
    "--cfg=job",
    "-c job",
    "seed=1 2",
    "//",
    "space=nope",
    "space=../x",
    "space=[digits_conv]",
    "hydra.run.dir=/proc/x",
    "hydra/launcher=nope",
    "~space",
    "+space=x",
    "seed=0,1",
    "objectives=[accuracy,accuracy]",
    "objectives=[]",
    "search.limits.flops=nan",
    "search.limits={a:1}",
    "search.limits.x=1",
    "space.args=7",
    "space.args.width=-3",
    "space.args.width=x",
    "space.args.nope=1",
    "space.args.samples=1",
    "space.args.samples=0",
    "space.args.depth=0",
    "space.args.width=1e9",
    "space.pool=tiny.py:nope",
    "space.pool=nope.py:build",
    "space.pool=os:getcwd",
    "space.pool=sys:exit",
    "space.pool=:",
    "space.pool=tiny.py",
    "space.pool=tiny.py:data",
    "space.pool=json",
    "space.pool=a.b.c:d",
    "space.pool=/dev/null:x",
    "data.source=nope.npz",
    "data.source=keep",
    "data.source=tiny.py",
    "data.source=/dev/zero.npz",
    "relay.budget=-1",
    "relay.budget=1e9GiB",
    "relay.device=cuda:9",
    "relay.device=meta",
    "relay.precision=fp64",
    "search.retire=[x/y]",
    "search.retire=['*/*']",
    "search.freeze=[layer0/tanh]",
    "search.early_stop=halving",
    "train.batch_size=100000000",
    "train.micro_batch=1",
    "search.population=1e18",
    "search.workers=-5",
    "relay.threads=1e20",
)
_POOLS = {
    "factory": "Candidate('bad', lambda: {boom})",
    "forward": "Candidate('bad', Bad)",
    "training": "Candidate('bad', lambda: Bad(training=True))",
    "backward": "Candidate('bad', lambda: Bad(backward=True))",
    "constraint": "constraints=(Require('x', lambda a: {boom}),)",
    "constraint type": "constraints=({odd},)",
    "constraints type": "constraints={odd}",
    "constraint value": "constraints=(Odd(),)",
    "metric": "metrics={{'mine': Metric(lambda outputs, targets: {boom})}}",
    "metric type": "metrics={{'mine': {odd}}}",
    "metrics type": "metrics={odd}",
    "metric value": "metrics={{'mine': Metric(lambda outputs, targets: {odd})}}",
    "cost": "costs={{'mine': lambda a: {boom}}}",
    "cost value": "costs={{'mine': lambda a: {odd}}}",
    "costs type": "costs={odd}",
    "task": "task={odd}",
    "loss": "task=Task('loss')",
    "count": "task=Task('count')",
    "measure": "task=Task('measure')",
    "check": "task=Task('check')",
    "task metrics": "task=Task('metrics')",
    "build": "build",
    "import": "import",
    "data": "data",
    "only skips": "skips",
    "long names": "long",
}
_BOOMS = (
    "1 / 0",
    "sys.exit(0)",
    "sys.exit('bye')",
    "exec('raise KeyError()')",
    "[][1]",
    "(lambda f: f(f))(lambda f: f(f))",
    "exec('raise MemoryError()')",
    "exec('raise StopIteration()')",
    "exec('raise AssertionError(chr(10) * 9 + chr(97) * 9000)')",
    "torch.empty(10**15)",
    "exec('raise UserWarning(chr(27))')",
    "exec('raise GeneratorExit()')",
    "exec('raise BaseException(5)')",
    "torch.set_default_dtype(torch.float64)",
    "torch.set_grad_enabled(False)",
)
_ODDS = (
    "7",
    "None",
    "'x'",
    "object()",
    "[1]",
    "float('nan')",
    "torch.ones(3)",
    "lambda: 1",
    "{'a': 1}",
    "(1, 2)",
    "type",
    "True",
    "''",
)
_HEAD = """\
import sys
import torch
from torch import nn
from l2l_nas import *
from l2l_nas.training.task import Classification
from tiny import pool as tiny_pool, data as tiny_data

class Bad(nn.Module):
    def __init__(self, training=False, backward=False):
        super().__init__()
        self.linear, self.only_training, self.only_backward = nn.Linear(8, 8), training, backward
    def forward(self, x):
        if self.only_backward:
            if x.device.type != 'meta' and x.requires_grad:
                x.register_hook(lambda g: {boom})
        elif not self.only_training or (self.training and x.device.type != 'meta'):
            {boom}
        return self.linear(x)

class Odd:
    def violation(self, architecture):
        return {odd}

class Task(Classification):
    def __init__(self, where):
        self.where = where
    def __getattribute__(self, name):
        if name != 'where' and name == self.where:
            return (lambda *given: {boom}) if name != 'metrics' else {odd}
        return super().__getattribute__(name)
"""


def prepare(place: Path, generator: random.Random) -> tuple[list[str], str]:
    """Make an input in a folder with a finished run; the command to run, and what it is."""
    kind = generator.choice((_setting, _setting, _setting, _word, _word, _code, _code, _folder, _config, _call, _call))
    return kind(place, generator)


def _base(command: str) -> list[str]:
    """A command that works, in a second."""
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


def _config(place: Path, generator: random.Random) -> tuple[list[str], str]:
    """Settings of odd values in a config file."""
    content: dict[str, Any] = {}
    said = []
    for _ in range(generator.choice((1, 1, 2))):
        known = [name for name, _, _ in settings(COMMANDS["search"])]
        name = generator.choice([name for name in known if name.rpartition(".")[2] not in _LARGE])
        value = generator.choice((mutants.odd(generator), generator.choice(_VALUES)))
        *parents, leaf = name.split(".")
        where = content
        for parent in parents[generator.randrange(2) if generator.random() < 0.1 else 0 :]:
            where = where.setdefault(parent, {})
        where[leaf] = value
        said.append(f"{name} of {value!r}"[:60])
    path = place / "conf/experiment/odd.yaml"
    path.parent.mkdir(parents=True)
    text = yaml.safe_dump(content).encode(errors="surrogatepass")
    path.write_bytes(b"# @package _global_\n" * (generator.random() < 0.95) + text)
    command, *words = _base("search")
    return [command, "--config-dir", "conf", *words, "experiment=odd"], f"config: {', '.join(said)}"


def _call(place: Path, generator: random.Random) -> tuple[list[str], str]:
    words = calls.choose(generator)
    return words, calls.shown(words)


def _word(place: Path, generator: random.Random) -> tuple[list[str], str]:
    command = generator.choice(("search", "search", "search", "train", "evaluate", "export", "report"))
    word = generator.choice(_WORDS)
    return [*_base(command), *word.split(" ")], f"word {word[:40]!r}"


def _code(place: Path, generator: random.Random) -> tuple[list[str], str]:
    name, text = generator.choice(sorted(_POOLS.items()))
    boom, odd = generator.choice(_BOOMS), generator.choice(_ODDS)
    head = _HEAD.replace("{boom}", boom).replace("{odd}", odd)
    text = text.replace("{boom}", boom).replace("{odd}", odd).replace("{{", "{").replace("}}", "}")
    layers, parts, before = "", "", ""
    if text.startswith("Candidate"):
        layers = text
    elif text == "build":
        before = boom
    elif text == "import":
        head += boom + "\n"
    elif text == "data":
        parts = f"data={odd}"
    elif text == "skips":
        before = "return LayerPool([Position('a', [skip()])], inputs=TensorSpec((2,)))"
    elif text == "long":
        layers = "Candidate('n' * 240, lambda: nn.Linear(8, 8))"
    else:
        parts = text
    data = "" if parts.startswith("data=") else "Data.from_arrays(*tiny_data(160)), "
    body = f"""
def build():
    {before or "pass"}
    whole = tiny_pool()
    positions = [*whole.positions[:2], Position('odd', [{layers or "skip()"}]), *whole.positions[2:]]
    return Problem(LayerPool(positions, inputs=whole.inputs), {data}{parts})
"""
    (place / "odd.py").write_text(head + body)
    words = [*_base("search"), "space.pool=odd.py:build", "search.warmup_steps=4"]
    return words, f"{name}: {boom} / {odd}"


def _folder(place: Path, generator: random.Random) -> tuple[list[str], str]:
    names = (
        "config.yaml",
        "study.log",
        "best",
        "export",
        "weights",
        "pool",
        "report.html",
        "trace.json",
        "pareto.png",
        "result.json",
        "architecture.json",
        "worker",
        "log.jsonl",
        "storage.json",
        "model.pt2",
        "state_dict.safetensors",
        "export.json",
        "multirun.yaml",
        "summary.json",
        "0",
        "pending.jsonl",
    )
    name = generator.choice(names)
    folder = place / generator.choice(
        ("new", "mine.db?v=1", "x?timeout=5", "a%20b", "[/x]r", "{x}", "ü", "a#b", "a b", "'q'")
    )
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
        words += ["relay.storage=file"] * (generator.random() < 0.4) + ["search.finalists=0"] * (
            generator.random() < 0.3
        )
    if command == "search -m":
        words += ["-m", "seed=0,1"]
    return words, f"{kind} {name} in {folder.name}, {command}"
