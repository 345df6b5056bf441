"""Every public callable, with wrong things for each argument: an error that names what is wrong, or a success.

The calls come from `l2l_nas.__all__` and from signatures, so that a new one is covered at once. What it needs besides
the wrong thing is an example below; the test says which example is missing.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import optuna
import pytest
import torch
from torch import nn

import l2l_nas
from l2l_nas.errors import L2LError
from l2l_nas.runs.fields import settings
from l2l_nas.runs.repeats import RepeatedSearch
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf
from l2l_nas.space.shapes import check_shapes
from l2l_nas.testing.problems import small_data, small_pool
from l2l_nas.training.schedule import Constant


class Anything:
    def __init__(self, *given: object, **named: object) -> None:
        pass


WRONG: dict[str, Any] = {
    "None": None, "5": 5, "'x'": "x", "object()": object(), "nan": float("nan"), "-1": -1, "10**9": 10**9, "[]": [],
    "{}": {}, "[object()]": [object()], "a class": Anything, "True": True, "inf": float("inf"),
}  # fmt: skip
SECONDS = 3.0  # of one call; all of them take milliseconds

# what library code calls, never the user: these are told by whoever wrote the object
_PROTOCOLS = {"Callback", "Optimizer", "Phase", "Samples", "Task", "SampleMetrics", "SummedMetrics"}


@functools.cache
def examples() -> Mapping[str, Any]:
    """By `CALLABLE.argument`, or by `argument` for all of them, something right. Methods are called on `CALLABLE`."""
    pool, data = small_pool(depth=2), small_data(samples=40)
    server = l2l_nas.ParamServer(pool, optimizer=l2l_nas.AdamW(), seed=0)
    problem = l2l_nas.Problem(pool, data)
    batches = l2l_nas.Batches(data.train, batch_size=8, seed=0)
    relay = l2l_nas.Relay(server, device="cpu")
    study = optuna.create_study()
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    (inputs,), targets = batches.at(0)
    return {
        "Architecture.choices": ("a", "b"),
        "Experts.count": 4,
        "KeyValue.heads": 4,
        "KeyValue.unit": 8,
        "Architecture.from_json.text": '{"choices": ["a"]}',
        "Candidate.factory": nn.Identity,
        "Data.from_arrays.x": torch.rand(40, 2),
        "Data.from_arrays.y": torch.arange(40) % 2,
        "Data.from_dataset.train": [(torch.rand(2), index % 2) for index in range(40)],
        "Data": data,
        "LayerPool": pool,
        "LayerPool.repeated.candidates": [l2l_nas.Candidate("a", functools.partial(nn.Linear, 2, 2))],
        "LayerPool.inputs": l2l_nas.TensorSpec((2,)),
        "LayerPool.repeated.inputs": l2l_nas.TensorSpec((2,)),
        "Metric.measure": lambda outputs, targets: 0.0,
        "Position.candidates": [l2l_nas.Candidate("a", nn.Identity)],
        "Position": l2l_nas.Position("p", l2l_nas.Candidate("a", nn.Identity)),
        "Relay": relay,
        "ReferenceTrainer": l2l_nas.ReferenceTrainer(server, device="cpu"),
        "SearchResult.folder": "runs/x",
        "study": study,
        "Trainer": l2l_nas.Trainer(relay, problem.task, batches, 4),
        "UniformPaths": l2l_nas.UniformPaths(pool, seed=0),
        "Batches": batches,
        "adamw": None,
        "architecture": pool.original,
        "architectures": [pool.original],
        "batches": batches,
        "blocks": "0",
        "choices": pool.original.choices,
        "data": data,
        "depth": 2,
        "example": torch.rand(3, 2),
        "executor": relay,
        "family": {"a": functools.partial(nn.Linear, 2, 2)},
        "fingerprint": "x",
        "folder": "x",
        "groups": [],
        "inputs": (inputs,),
        "lr": 0.1,
        "match": "*",
        "model": network,
        "name": "x",
        "norm": 1.0,
        "objective": problem.task,
        "batch_size": 8,
        "micro_batch": 4,
        "optimizer": l2l_nas.AdamW(),
        "part": data.train,
        "path_at": lambda step: pool.original,
        "peak": 0.1,
        "pool": pool,
        "positions": pool.positions,
        "problem": problem,
        "rate": 0.9,
        "read": lambda name: torch.zeros(2),
        "reason": "x",
        "rule": l2l_nas.AdamW(),
        "samples": 8,
        "schedule": Constant(0.1, 10),
        "seed": 0,
        "server": server,
        "shape": (2,),
        "shapes": check_shapes(pool),
        "split": data.validation,
        "start": 0,
        "state": "p0/tanh",
        "step": 0,
        "steps": 1,
        "targets": targets,
        "task": problem.task,
        "tensor": inputs,
        "test": lambda architecture: True,
        "train": data.train,
        "trial": study.ask(),
        "validation": data.validation,
        "value": torch.tensor(0.5),
        "moments": "bf16",
    }


def example(call: str, argument: str) -> Any:
    """Something right for an argument."""
    for name in (f"{call}.{argument}", argument):
        if name in examples():
            return examples()[name]
    pytest.fail(f"{call} has a new required argument '{argument}': add an example of it")


# objects whose methods users call, and what of these only the library itself calls
_USED = {"Data", "LayerPool", "Position", "Relay", "ReferenceTrainer", "Trainer", "UniformPaths", "Batches"}
_OWN = {
    "Relay.extend", "ReferenceTrainer.extend", "Relay.use", "ReferenceTrainer.use", "Relay.memory_plan",
    "Relay.numbered",
    "LayerPool.flow", "LayerPool.naming",
    "LayerPool.build_module", "LayerPool.borrowed", "LayerPool.owner", "LayerPool.has_state", "LayerPool.like",
    "ReferenceTrainer.module", "Position.with_candidates", "Tokens.places",
}  # fmt: skip
# what a user may ask for, and waits for; a function that the evaluation alone gives, which gives something else
_LEFT = {"Trainer.fit(steps=10**9)"}


def methods(name: str) -> Iterator[str]:
    """`CLASS.method` of those that belong to a class, or that users call on an object."""
    kind = getattr(l2l_nas, name)
    for method in sorted(vars(kind)):
        static = inspect.getattr_static(kind, method)
        if method.startswith("_") or isinstance(static, property) or not callable(getattr(kind, method)):
            continue
        if isinstance(static, classmethod | staticmethod) or name in _USED:
            yield f"{name}.{method}"


def _is_error(public: object) -> bool:
    return isinstance(public, type) and issubclass(public, BaseException)


def calls() -> list[str]:
    """All of them, as they are written after `l2l_nas.`."""
    found = [name for name in l2l_nas.__all__ if name not in _PROTOCOLS and not _is_error(getattr(l2l_nas, name))]
    found += [
        method for name in l2l_nas.__all__ if isinstance(getattr(l2l_nas, name), type) for method in methods(name)
    ]
    return [name for name in found if name not in _OWN]


def called(name: str) -> Callable[..., Any]:
    """What a name means."""
    owner, _, method = name.partition(".")
    if not method:
        return getattr(l2l_nas, name)
    kind = getattr(l2l_nas, owner)
    bound = isinstance(inspect.getattr_static(kind, method), classmethod | staticmethod)
    return getattr(kind if bound else examples()[owner], method)


def arguments(name: str) -> tuple[dict[str, Any], list[str]]:
    """Right values of the required arguments, and the names of all."""
    named = [
        p
        for p in inspect.signature(called(name)).parameters.values()
        if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    return {p.name: example(name, p.name) for p in named if p.default is p.empty}, [p.name for p in named]


class Hangs(BaseException):
    """Not caught by what is called."""


@contextmanager
def limited() -> Iterator[None]:
    def raised(*_: object) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, raised)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fault(call: Callable[[], object], *names: str) -> str:
    """What is wrong with how a call ends; empty where nothing is."""
    try:
        with limited():
            found = call()
            if inspect.isgenerator(found):
                next(found, None)
    except L2LError:
        return ""  # a line of our own
    except (TypeError, ValueError) as error:
        words = re.findall(r"\w+", str(error))
        return "" if any(name in words for name in names) else f"{type(error).__name__} without a name: {error}"
    except Hangs:
        return "does not end"
    except Exception as error:
        return f"{type(error).__name__} from inside: {error}"
    return ""


@pytest.mark.parametrize("name", calls())
def test_a_wrong_argument_is_refused_by_its_name_or_taken(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SearchRun, "go", lambda self: 0.0)
    right, every = arguments(name)
    faults = {}
    for argument, (shown, value) in itertools.product(every, WRONG.items()):
        if f"{name}({argument}={shown})" not in _LEFT:
            found = fault(lambda: called(name)(**{**right, argument: value}), argument, *name.split("."))  # noqa: B023
            if found:
                faults[f"{name}({argument}={shown})"] = found
    assert not faults, "\n".join(f"{call}: {what}" for call, what in faults.items())


_SETTINGS = sorted({name for name, *_ in settings(SearchConf)})


@pytest.mark.parametrize("name", _SETTINGS)
def test_a_wrong_setting_of_a_search_is_refused_by_its_name_or_taken(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SearchRun, "go", lambda self: 0.0)
    monkeypatch.setattr(RepeatedSearch, "go", lambda self: 0.0)
    section, _, leaf = name.rpartition(".")
    faults = {}
    for shown, value in WRONG.items():
        said = {section: {leaf: value}} if section and section != "search" else {leaf: value}
        found = fault(lambda: l2l_nas.search(examples()["problem"], progress=False, **said), leaf, section)  # noqa: B023
        if found:
            faults[f"search({name}={shown})"] = found
    assert not faults, "\n".join(f"{call}: {what}" for call, what in faults.items())
