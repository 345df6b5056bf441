"""Run folders of others that mean harm: nothing in them is executed, connected to, or written outside of them.

    python -m benchmarks foreign [--lines 300] [--seed 0] [--seconds 120] [--out FILE.json]

A case takes a finished run or training, plants one line in its `config.yaml` (code, modules, addresses, shell lines,
paths; for each setting and each argument of each choice in turn), and runs a command that reads the folder. It fails
where planted code or a shell line ran, where a socket of this machine was connected to, where anything changed outside
of the folders that the command names, or where it ends otherwise than with exit code 0, or 2 and one line.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shlex
import shutil
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import yaml

from benchmarks.faults import forks
from benchmarks.options import at_least
from l2l_nas.__main__ import main as run_command
from l2l_nas.files import write_json
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import declared
from l2l_nas.runs.settings import COMMANDS
from tests.cli.runs import TINY, write_pool

_POOL = "space.pool=tiny.py:build"
_NEW = [word for word in TINY if not word.startswith("search.trials")] + ["search.trials=2"]
# by folder: commands that read it
_READERS: dict[str, tuple[list[str], ...]] = {
    "run": (
        ["search", "resume=run", "search.trials=3"],
        ["search", "resume=run", "search.trials=3"],
        ["search", "search.learn_from=[run]", *_NEW, "folder=new"],
        ["train", "run=run", "train.steps=2", "export=false", "folder=new"],
        ["evaluate", "run=run"],
        ["export", "run=run", "formats=[state_dict]", "out=new"],
        ["report", "run=run"],
    ),
    "trained": (
        ["train", "resume=trained", "train.steps=7"],
        ["train", "resume=trained", "train.steps=7"],
        ["train", "run=trained", "train.steps=2", "export=false", "folder=new"],
        ["evaluate", "run=trained"],
        ["export", "run=trained", "formats=[state_dict]", "out=new"],
    ),
}
_OF = {"run": "search", "trained": "train"}
_EVIL = "from pathlib import Path\nPath({mark!r}).write_text('executed')\ndef build(*given, **named): return None\n"
# of sections that no setting knows
_UNKNOWN = (
    "hydra.launcher",
    "hydra.sweeper",
    "defaults",
    "_target_",
    "search._target_",
    "callbacks.mine",
    "run",
    "out",
)


def build(place: Path) -> None:
    """A run and a training, each of them beside its pool."""
    write_pool(place)
    pace = ["train.validation_steps=5", "export=false"]
    for words in (
        ["search", _POOL, *_NEW, "folder=run"],
        ["train", "run=run", _POOL, "train.steps=5", *pace, "folder=trained"],
    ):
        made = forks.command(place, *words)
        assert made.wait(300) == 0, (words, made.errors)


def places() -> list[tuple[str, str, Any]]:
    """All that can be said: the folder, the setting or the argument of a choice, and the type of its value."""
    found: list[tuple[str, str, Any]] = []
    for folder, command in _OF.items():
        found += [(folder, one.name, one.default) for one in declared(COMMANDS[command])]
        for group, kinds in CHOICES.items():
            known = [(f"{group}:{kind}.{one.name}", one.default) for kind in kinds for one in declared(kinds[kind])]
            found += [(folder, name, default) for name, default in known if command == "search" or group in _TRAINED]
        found += [(folder, name, "") for name in _UNKNOWN]
    return found


_TRAINED = ("optimizer", "schedule")


def values(outside: Path, port: int) -> list[Any]:
    """What somebody may plant: each would run, connect or write where a setting is not data alone."""
    touch = f"touch {outside}/shell"
    return [
        f"{outside}/evil.py:build", "evil_module:build", "evil_module", f"{outside}/evil.py", "os:system",
        f"tcp://127.0.0.1:{port}", f"postgresql://me:x@127.0.0.1:{port}/x", f"http://127.0.0.1:{port}/x.npz",
        f"127.0.0.1:{port}", f"ray://127.0.0.1:{port}", f"hf:http://127.0.0.1:{port}/model",
        touch, f"$({touch})", f"'; {touch}; '", f"`{touch}`", f"${{oc.env:HOME}}{touch}",
        f"{outside}/written", f"{outside}", f"../{outside.name}/written", "/dev/stdin", f"file://{outside}/written",
        f"journal:///{outside}/written", f"sqlite:///{outside}/written.db",
        {"name": "submitit", "cluster": "local", "folder": "submitit", "parameters": {"setup": [touch]}},
        {"name": "dask", "address": f"tcp://127.0.0.1:{port}"}, {"name": f"{outside}/evil.py:build"},
        {"name": "evil_module:build"}, {"_target_": "os.system", "_args_": [touch], "name": "_target_"},
        {"mine": {"name": f"{outside}/evil.py:build"}},
    ]  # fmt: skip


def planted(config: dict[str, Any], name: str, value: Any) -> None:
    """Have settings say it; of an argument, its choice as well."""
    name, argument = name.partition(":")[::2] if ":" in name else (name, "")
    if argument:
        kind, _, leaf = argument.partition(".")
        config[name] = {"name": kind, leaf: value}
        return
    *sections, leaf = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
        if not isinstance(config, dict):
            return
    config[leaf] = value


def fitted(value: Any, default: Any) -> Any:
    """A value in a list or a dict where a setting is one."""
    if isinstance(default, list):
        return [value]
    return {"mine": value} if isinstance(default, dict) and not isinstance(value, dict) else value


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """A socket of this machine that waits for whoever connects."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        server.setblocking(False)
        yield server


def num_connected(server: socket.socket) -> int:
    """How many have connected since it was asked last."""
    found = 0
    while True:
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


class Attack:
    """Runs cases on copies of what was built."""

    def __init__(self, base: Path, place: Path, server: socket.socket, *, seconds: float) -> None:
        self.base, self.place, self.server, self.seconds = base, place, server, seconds
        self.outside = place.parent / "outside"
        self.outcomes: Counter[str] = Counter()

    def prepare(self, number: int, seed: int) -> tuple[list[str], str, Any]:
        """Plant a line; the command that is to read it, the setting, and the value."""
        generator = random.Random(f"{seed} {number}")
        every = places()
        random.Random(seed).shuffle(every)
        folder, name, default = every[number % len(every)]
        value = fitted(generator.choice(values(self.outside, self.server.getsockname()[1])), default)
        for path in (self.place, self.outside):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(self.base, self.place)
        self.outside.mkdir()
        for path in (self.outside / "evil.py", self.place / "evil_module.py"):
            path.write_text(_EVIL.format(mark=str(self.outside / f"executed by {path.name}")))
        config = self.place / folder / "config.yaml"
        content = yaml.safe_load(config.read_text())
        planted(content, name, value)
        config.write_text(yaml.safe_dump(content))
        words = list(generator.choice(_READERS[folder]))
        if name != "space.pool" and words[0] != "report":
            words.insert(1, _POOL)
        return words, name, value

    def run(self, words: list[str], value: Any) -> str:
        before = forks.contents(self.place.parent)
        num_connected(self.server)
        process = forks.start(self.place, lambda: self._command(words))
        code = process.wait(self.seconds)
        if code is None:
            process.kill_group()
            process.wait(10)
            return f"hangs: no end after {self.seconds:.0f} s"
        if left := forks.left_of([process.number], seconds=5.0):
            return left
        connected = num_connected(self.server)
        named = {word.partition("=")[2] for word in words}
        after = forks.contents(self.place.parent)
        differing = {path for path in {*before, *after} if before.get(path) != after.get(path)}
        beyond = sorted(path for path in differing if path.split("/")[1] not in named and path.split("/")[0] != "base")
        errors = process.errors
        lines = [line for line in errors.splitlines() if not line.startswith("warning: ")]
        self.outcomes["done" if code == 0 else "refused"] += 1
        if connected:
            return f"connected {connected} times"
        if beyond:
            return f"written or executed outside: {', '.join(beyond)}"
        if code not in (0, 2) or "Traceback" in errors + process.output or (code == 2 and len(lines) != 1):
            return f"exit code {code}: {errors[-300:]}"
        return self._typed(errors, value)

    def _command(self, words: list[str]) -> int:
        sys.path.insert(0, str(self.place))
        return run_command(words)

    @staticmethod
    def _typed(errors: str, value: Any) -> str:
        """Whether a line to be copied has a shell line or an address of the folder's in it."""
        typed = errors.rpartition("again: ")[2] if "again: " in errors else ""
        try:
            words = shlex.split(typed)
        except ValueError:
            return f"cannot be copied: {typed[:300]}"
        texts = json.dumps(value)
        bad = [mark for mark in ("touch ", "127.0.0.1") if mark in texts and any(mark in word for word in words)]
        return f"a command to copy has {bad[0]!r} of the folder's: {typed[:300]}" if bad else ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=at_least(1), default=300)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if nothing was executed, connected to or written outside."""
    torch.set_num_threads(1)  # none of torch's threads may run when processes are forked
    for command in ("search", "train", "evaluate", "export", "report"):
        import_module(f"l2l_nas.cli.{command}")
    failures: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=forks.FAST) as scratch, listening() as server:
        base, place = Path(scratch, "base"), Path(scratch, "case")
        place.mkdir()
        build(place)
        place.rename(base)
        attack = Attack(base, place, server, seconds=asked.seconds)
        for number in range(asked.lines):
            words, name, value = attack.prepare(number, asked.seed)
            wrong = attack.run(words, value)
            if wrong:
                print(f"{number} {name}={value!r}\n    {' '.join(words)}\n    {wrong[:500]}", flush=True)
                failures.append({"case": number, "setting": name, "value": value, "wrong": wrong})
        outcomes = dict(sorted(attack.outcomes.items()))
    print(f"{len(failures)} of {asked.lines} planted lines executed, connected or written outside; {outcomes}")
    if asked.out is not None:
        write_json(asked.out, {"lines": asked.lines, "seed": asked.seed, "outcomes": outcomes, "failures": failures})
    return int(bool(failures))
