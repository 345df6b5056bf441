"""Calls of the Python API with one odd argument: an error names it, and nothing hangs.

Each call is whole; one of its arguments becomes a value that nobody expects, and what was made is used once. What is
raised is one of our errors, or a TypeError or ValueError that names the argument.
"""

from __future__ import annotations

import random
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

_ODDS: tuple[tuple[str, Callable[[], Any]], ...] = (
    ("None", lambda: None),
    ("True", lambda: True),
    ("0", lambda: 0),
    ("-1", lambda: -1),
    ("10**9", lambda: 10**9),
    ("10**30", lambda: 10**30),
    ("0.5", lambda: 0.5),
    ("nan", lambda: float("nan")),
    ("inf", lambda: float("inf")),
    ("''", lambda: ""),
    ("'x'", lambda: "x"),
    ("a surrogate", lambda: "\ud800"),
    ("a zero byte", lambda: "a\0b"),
    ("[]", list),
    ("[5]", lambda: [5]),
    ("{}", dict),
    ("{'x': 5}", lambda: {"x": 5}),
    ("a set", lambda: {1}),
    ("object()", object),
    ("a class", lambda: nn.Linear),
    ("a function", lambda: lambda *given, **named: 5),
    ("a module", lambda: nn.Linear(2, 2)),
    ("a tensor", lambda: torch.ones(3)),
    ("a NaN tensor", lambda: torch.full((4, 2), float("nan"))),
    ("a meta tensor", lambda: torch.ones(3, device="meta")),
    ("an array", lambda: np.zeros((0, 2))),
    ("an array of objects", lambda: np.array([{}, None])),
    ("a path", lambda: Path("/dev/null")),
    ("bytes", lambda: b"\xff"),
    ("a device", lambda: torch.device("cpu")),
    ("a dtype", lambda: torch.float16),
    ("an iterator", lambda: iter(())),
)


def _pool_of(layer: Any) -> Any:
    import l2l_nas as l2l

    head = l2l.Candidate("head", lambda: nn.Linear(4, 2))
    positions = [l2l.Position("a", [layer, l2l.skip()]), l2l.Position("b", head)]
    return l2l.LayerPool(positions, inputs=l2l.TensorSpec((4,)))


def _made() -> dict[str, Any]:
    import l2l_nas as l2l

    layer = l2l.Candidate("linear", lambda: nn.Linear(4, 4))
    pool = _pool_of(layer)
    x, y = torch.rand(40, 4), torch.arange(40) % 2
    data = l2l.Data.from_arrays(x, y)
    server = l2l.ParamServer(pool, optimizer=l2l.AdamW(), seed=0)
    relay = l2l.Relay(server, device="cpu")
    batches = l2l.Batches(data.train, batch_size=4, seed=0)
    problem, path = l2l.Problem(pool, data), pool.architecture(["linear", "head"])
    few = {"trials": 2, "steps_per_trial": 1, "warmup_steps": 2, "finalists": 0}
    return {
        "Candidate": (l2l.Candidate, {"name": "x", "factory": lambda: nn.Linear(4, 4), "tied": {}, "weights": None},
                      lambda made: l2l.LayerPool([l2l.Position("a", made)], inputs=l2l.TensorSpec((4,)))),
        "Position": (l2l.Position, {"name": "x", "candidates": [layer], "reads": None, "writes": None, "follows": None},
                     lambda made: l2l.LayerPool([made], inputs=l2l.TensorSpec((4,)))),
        "LayerPool": (l2l.LayerPool, {"positions": pool.positions, "inputs": l2l.TensorSpec((4,)), "outputs": None},
                      None),
        "TensorSpec": (l2l.TensorSpec, {"shape": (4,), "dtype": torch.float32},
                       lambda made: l2l.LayerPool(pool.positions, inputs=made)),
        "ParamServer": (l2l.ParamServer, {"pool": pool, "optimizer": l2l.AdamW(), "seed": 0, "storage": None}, None),
        "Relay": (l2l.Relay, {"server": server, "slots": 2, "update": "eager", "clip": None, "precision": "fp32",
                              "stash": "device", "keep": 1, "device_budget": None, "resident": "auto", "pinned": "all",
                              "lanes": "auto", "layers": "eager", "device": "cpu", "seed": 0, "sharers": 1}, None),
        "ReferenceTrainer": (l2l.ReferenceTrainer, {"server": server, "device": "cpu", "seed": 0,
                                                    "checkpointing": False}, None),
        "train_step": (relay.train_step, {"architecture": path, "inputs": (x[:4],), "targets": y[:4],
                                          "objective": l2l.Classification(), "micro_batch": 2, "lr": 0.1,
                                          "step": 0}, None),
        "predict": (relay.predict, {"architecture": path, "inputs": (x[:4],), "micro_batch": 2}, None),
        "architecture": (pool.architecture, {"choices": ["linear", "head"]}, None),
        "from_arrays": (l2l.Data.from_arrays, {"x": x, "y": y, "validation_fraction": 0.2, "test_fraction": 0.2,
                                               "stratify": None}, lambda made: made.train.preview()),
        "from_dataset": (l2l.Data.from_dataset, {"train": list(zip(x, y, strict=True)), "validation": None,
                                                 "columns": None, "transform": None, "length": None}, None),
        "from_folder": (l2l.Data.from_folder, {"folder": "images", "size": None, "transform": None, "workers": 0},
                        lambda made: made.train.preview()),
        "Split": (l2l.Split, {"inputs": (x,), "targets": y}, lambda made: made.preview()),
        "Data": (l2l.Data, {"train": data.train, "validation": data.validation, "test": None}, None),
        "Batches": (l2l.Batches, {"part": data.train, "batch_size": 4, "seed": 0}, lambda made: made.at(3)),
        "Problem": (l2l.Problem, {"pool": pool, "data": data, "task": l2l.Classification(), "constraints": (),
                                  "metrics": {}, "costs": {}}, None),
        "Trainer": (l2l.Trainer, {"executor": relay, "task": problem.task, "batches": batches, "micro_batch": 2}, None),
        "Cosine": (l2l.Cosine, {"peak": 0.1, "steps": 10, "rise": 0.05, "floor": 0.02}, None),
        "AdamW": (l2l.AdamW, {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}, None),
        "SGD": (l2l.SGD, {"momentum": 0.9, "weight_decay": 0.0, "nesterov": False}, None),
        "Group": (l2l.Group, {"match": "*", "weight_decay": None, "lr_scale": 1.0, "frozen": False, "rule": None},
                  lambda made: l2l.ParamServer(pool, optimizer=l2l.Groups(l2l.AdamW(), [made]), seed=0)),
        "Groups": (l2l.Groups, {"rule": l2l.AdamW(), "groups": ()}, None),
        "Clip": (l2l.Clip, {"norm": 1.0, "scope": "global"}, None),
        "UniformPaths": (l2l.UniformPaths, {"pool": pool, "seed": 0, "constraints": ()}, None),
        "plain_module": (l2l.plain_module, {"pool": pool, "architecture": path}, None),
        "num_parameters": (l2l.num_parameters, {"pool": pool, "architecture": path}, None),
        "convert": (l2l.convert, {"model": nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), "example": x[:2],
                                  "blocks": ["0"], "candidates": None, "output": None, "losses": None}, None),
        "FileStorage": (l2l.FileStorage, {"folder": Path("states"), "frames": 4, "cached_bytes": None}, None),
        "search": (l2l.search, {"problem": problem, "progress": False, "callbacks": (), "folder": "new", **few,
                                "seed": 0, "retire": [], "sampler": "random"}, None),
    }  # fmt: skip


# what would take long, not go wrong: large numbers of these are work
_WORK = {"trials", "steps_per_trial", "warmup_steps", "finalists"}
_LARGE = {"10**9", "10**30"}


def choose(generator: random.Random) -> list[str]:
    """A call, one of its arguments, and the place of an odd value."""
    made = _made()
    name = generator.choice(sorted(made))
    argument = generator.choice(sorted(made[name][1]))
    odds = [n for n, (shown, _) in enumerate(_ODDS) if argument not in _WORK or shown not in _LARGE]
    return ["python", name, argument, str(generator.choice(odds))]


def shown(words: list[str]) -> str:
    """What is called."""
    return f"call {words[1]}({words[2]}={_ODDS[int(words[3])][0]})"


def run(name: str, argument: str, odd: str) -> int:
    """Call; 0 where that was right, 2 with one line where an error names the argument, 1 with a traceback elsewhere."""
    from l2l_nas.errors import L2LError, one_line

    call, given, use = _made()[name]
    try:
        made = call(**{**given, argument: _ODDS[int(odd)][1]()})
        if use is not None:
            use(made)
    except L2LError as error:
        print("error: " + one_line(str(error)), file=sys.stderr)
        return 2
    except (TypeError, ValueError) as error:
        if argument in str(error):
            print("error: " + one_line(str(error)), file=sys.stderr)
            return 2
        traceback.print_exc()
        return 1
    except Exception:
        traceback.print_exc()
        return 1
    return 0
