"""Calls of the Python API with one odd argument: an error names it, and nothing hangs.

The calls are those of `l2l_nas.__all__` and the methods that users call, their arguments those of the signatures, so
that what is new is covered at once; `examples.py` has what stands beside the odd one. What is raised is one of our
errors, or a TypeError or ValueError, and its line names the argument. What is of another kind than the signature says
is not taken without a word.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import l2l_nas
from l2l_nas.errors import L2LError
from l2l_nas.relay.config import ExecutionConfig, MemoryConfig, ParallelConfig, PrecisionConfig, UpdateConfig
from tests.call_examples import examples


class _Anything:
    def __init__(self, *given: object, **named: object) -> None:
        pass


ODDS: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "0": lambda: 0,
    "-1": lambda: -1,
    "5": lambda: 5,
    "10**9": lambda: 10**9,
    "10**59": lambda: 10**59,
    "10**400": lambda: 10**400,
    "0.5": lambda: 0.5,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "''": lambda: "",
    "'x'": lambda: "x",
    "a long text": lambda: "a" * 300,
    "a surrogate": lambda: "\ud800",
    "a zero byte": lambda: "a\0b",
    "[]": list,
    "[5]": lambda: [5],
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "[object()]": lambda: [object()],
    "{}": dict,
    "{'x': 5}": lambda: {"x": 5},
    "{5: 5}": lambda: {5: 5},
    "a set": lambda: {1},
    "object()": object,
    "a class": lambda: nn.Linear,
    "another class": lambda: _Anything,
    "a function": lambda: lambda *given, **named: 5,
    "a module": lambda: nn.Linear(2, 2),
    "a tensor": lambda: torch.ones(3),
    "a 0-d tensor": lambda: torch.tensor(1.0),
    "a NaN tensor": lambda: torch.full((4, 2), float("nan")),
    "a meta tensor": lambda: torch.ones(3, device="meta"),
    "an array": lambda: np.zeros((0, 2)),
    "an array of objects": lambda: np.array([{}, None]),
    "a path": lambda: Path("/dev/null"),
    "bytes": lambda: b"\xff",
    "a device": lambda: torch.device("cpu"),
    "a dtype": lambda: torch.float16,
    "an iterator": lambda: iter(()),
}

# what library code calls, never the user: these are told by whoever wrote the object
_PROTOCOLS = {"Callback", "Optimizer", "Phase", "Task", "SampleMetrics", "SummedMetrics"}
# objects whose methods users call, and what of these only the library itself calls
_USED = {
    "Data", "LayerPool", "Position", "Relay", "ReferenceTrainer", "Trainer", "UniformPaths", "Batches", "Cosine",
    "Samples", "Split", "ParamServer", "Architecture", "Require", "Classification", "Regression", "Tokens", "AdamW",
    "SGD", "Lion", "Adafactor", "Muon", "LowPrecision", "Groups",
}  # fmt: skip
_OWN = {
    "Samples", "Samples.batch",  # abstract
    "Trainer.counted",
    "Relay.memory_plan", "Relay.numbered", "Relay.settle_memory", "ReferenceTrainer.module",
    "LayerPool.flow", "LayerPool.naming", "LayerPool.build_module", "LayerPool.borrowed", "LayerPool.owner",
    "LayerPool.has_state",
    *(f"ParamServer.{name}" for name in (
        "all_gather", "all_gather_weights", "begin_updates", "build_module", "clear", "drain", "end_updates",
        "held_layout", "is_sharded", "layout", "leave", "move_to", "pin_masters", "put", "serve", "whole_layout",
        "writing")),
    *(f"{name}.{method}" for name in ("Classification", "Regression", "Tokens")
      for method in ("finish", "places", "figures", "summed")),
    *(f"{name}.{method}" for name in ("AdamW", "SGD", "Lion", "Adafactor", "Muon", "LowPrecision", "Groups")
      for method in ("update", "for_parameter", "treatment")),
}  # fmt: skip
_ARGUMENTS_OF: dict[str, tuple[type, ...]] = {
    "Relay": (MemoryConfig, PrecisionConfig, UpdateConfig, ExecutionConfig, ParallelConfig),
    "Relay.reconfigure": (MemoryConfig, PrecisionConfig, UpdateConfig, ExecutionConfig, ParallelConfig),
}
# what is searched is small, and settings come by name
_SEARCH: dict[str, Any] = {
    "trials": 2, "steps_per_trial": 1, "warmup_steps": 2, "finalists": 0, "seed": 0, "folder": "new", "retire": [],
    "sampler": "random",
}  # fmt: skip
# what is made is used once
_USES: dict[str, Callable[[Any], object]] = {
    "Candidate": lambda made: l2l_nas.LayerPool([l2l_nas.Position("a", made)], inputs=l2l_nas.TensorSpec((4,))),
    "Position": lambda made: l2l_nas.LayerPool([made], inputs=l2l_nas.TensorSpec((4,))),
    "TensorSpec": lambda made: l2l_nas.LayerPool(examples()["pool"].positions, inputs=made),
    "Data.from_arrays": lambda made: made.train.preview(),
    "Data.from_folder": lambda made: made.train.preview(),
    "Split": lambda made: made.preview(),
    "Batches": lambda made: made.at(3),
    "Group": lambda made: l2l_nas.ParamServer(
        examples()["pool"], optimizer=l2l_nas.Groups(l2l_nas.AdamW(), [made]), seed=0
    ),
}
# what would take long, not go wrong: large numbers of these are work
_WORK = {"Trainer.fit.steps", "search.trials", "search.steps_per_trial", "search.warmup_steps", "search.finalists"}
_LARGE = {"10**9", "10**59", "10**400"}
# what would begin as many processes
_PROCESSES, _SMALL = {"Data.from_folder.workers"}, {"5"}
# functions of the user's own, which raise what they raise
_FUNCTIONS = {"path_at", "after_step", "reduce"}
_CALLED = {"a class", "a module"}
# numbers that may lie below 0, and texts that are one of a few words
_SIGNED = {"UniformPaths.path_at.step", "seed", "along", "beta2_decay", "x", "y"}
_WORDS = {
    "layers", "stash", "lanes", "precision", "update", "scale", "moments", "scope", "device", "device_budget",
    "resident", "pinned", "key", "choices", "architecture",
}  # fmt: skip


def methods(name: str) -> Iterator[str]:
    """`CLASS.method` of those that belong to a class, or that users call on an object."""
    kind = getattr(l2l_nas, name)
    for method in sorted(dir(kind)):
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
    found += [method for name in found if isinstance(getattr(l2l_nas, name), type) for method in methods(name)]
    return [name for name in found if name not in _OWN]


def called(name: str) -> Callable[..., Any]:
    """What a name means."""
    owner, _, method = name.partition(".")
    if not method:
        return getattr(l2l_nas, name)  # type: ignore[no-any-return]
    kind = getattr(l2l_nas, owner)
    bound = isinstance(inspect.getattr_static(kind, method), classmethod | staticmethod)
    return getattr(kind if bound else examples()[owner], method)  # type: ignore[no-any-return]


def arguments(name: str) -> dict[str, str]:
    """Of each argument, what the signature says that it takes."""
    every = inspect.signature(called(name)).parameters.values()
    named = {p.name: str(p.annotation) for p in every if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    fields = (field for kind in _ARGUMENTS_OF.get(name, ()) for field in dataclasses.fields(kind))
    settings = dict.fromkeys(_SEARCH if name == "search" else (), "Any")
    return {**{field.name: str(field.type) for field in fields}, **settings, **named}


def right(name: str) -> dict[str, Any]:
    """Right values of the required arguments, and of those that have an example of this call.

    Raises:
        LookupError: there is no example.
    """
    owner, found = name.partition(".")[0], {**_SEARCH, "progress": False} if name == "search" else {}
    for p in inspect.signature(called(name)).parameters.values():
        known = [key for key in (f"{name}.{p.name}", f"{owner}.{p.name}", p.name) if key in examples()]
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if not known:
                raise LookupError(f"{name} has a new required argument '{p.name}': add an example of it")
            found[p.name] = examples()[known[0]]
    return found


def odds(name: str, argument: str) -> list[str]:
    """Which odd values an argument is given."""
    call = f"{name}.{argument}"
    left = _LARGE if call in _WORK else _SMALL if call in _PROCESSES else _CALLED if argument in _FUNCTIONS else ()
    return [odd for odd in ODDS if odd not in left]


def fits(call: str, annotation: str, value: object) -> bool:
    """Whether a value is, as far as can be told, of the kind that the signature names; else it must be refused."""
    argument, words = call.rpartition(".")[2], set(re.findall(r"\w+", annotation))
    if words & {"Any", "object"}:
        return True
    if value is None or isinstance(value, bool):
        return bool(words & {"None", "Budget"}) if value is None else "bool" in words
    if isinstance(value, int | float):
        is_sound = math.isfinite(value) if isinstance(value, float) else True
        kinds = {"float"} if isinstance(value, float) else {"int", "float", "Budget", "Output"}
        return bool(words & kinds) and is_sound and (value >= 0 or call in _SIGNED or argument in _SIGNED)
    if isinstance(value, str):
        return bool(words & {"str", "Path"}) and argument not in _WORDS
    if isinstance(value, dict):
        return bool(words & {"Mapping", "dict", "Iterable", "TensorSpec", "Candidates", "Splits"})
    if isinstance(value, type) or inspect.isfunction(value):
        return bool(words & {"Callable", "Factory", "Rule", "Reduce", "Layers", "Columns"})
    return type(value) is not object


def fault(call: Callable[[], object], *names: str) -> BaseException | None:
    """What a call ends with that no user should see: an error of another kind, or without any of these names."""
    try:
        call()
    except (L2LError, TypeError, ValueError) as error:
        return None if set(names) & set(re.findall(r"\w+", str(error))) else error
    except Exception as error:
        return error
    return None


def use(name: str, given: Mapping[str, Any]) -> None:
    """Call, and use what is made once."""
    made = called(name)(**given)
    if inspect.isgenerator(made):
        next(made, None)
    if name in _USES:
        _USES[name](made)


def judged(name: str, argument: str, odd: str) -> BaseException | str | None:
    """What is wrong with how a call with an odd value ends; None where nothing is."""
    value, taken = ODDS[odd](), False

    def call() -> None:
        nonlocal taken
        use(name, {**right(name), argument: value})
        taken = True

    wrong = fault(call, argument)
    is_silent = wrong is None and taken and not fits(f"{name}.{argument}", arguments(name)[argument], value)
    return f"{name} takes {argument}={odd} without a word" if is_silent else wrong
