"""Something right for each argument of the public calls: what stands beside an odd one."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import torch
from torch import Tensor, nn

import l2l_nas as l2l
from l2l_nas.relay.extend import Caches
from l2l_nas.space.shapes import check_shapes
from l2l_nas.testing.problems import small_data, small_pool
from l2l_nas.training.schedule import Constant


class _Images(l2l.Samples):
    """A part of the user's own, made of the fewest methods."""

    def __len__(self) -> int:
        return 40

    def batch(self, rows: Tensor, *, key: Any = (0, 0)) -> Any:
        return (torch.rand(len(rows), 2),), torch.zeros(len(rows), dtype=torch.int64)


def _linear() -> nn.Module:
    return nn.Linear(2, 2)


@functools.cache
def _images() -> tempfile.TemporaryDirectory[str]:
    """A folder of images of two classes; it goes when the program ends."""
    folder = tempfile.TemporaryDirectory(prefix="images-")
    for name in ("a", "b"):
        (Path(folder.name) / name).mkdir()
        for number in range(10):
            (Path(folder.name) / name / f"{number}.pgm").write_bytes(b"P5 2 2 255\n" + bytes([number] * 4))
    return folder


@functools.cache
def examples() -> Mapping[str, Any]:
    """By `CALLABLE.argument`, or by `argument` for all of them, something right. Methods are called on `CALLABLE`."""
    pool, data = small_pool(depth=2), small_data(samples=40)
    server = l2l.ParamServer(pool, optimizer=l2l.AdamW(), seed=0)
    batches = l2l.Batches(data.train, batch_size=8, seed=0)
    relay = l2l.Relay(server, device="cpu")
    return {
        **_of_objects(pool, data, server, batches, relay),
        **_of_calls(batches),
        **_by_name(pool, data),
        "batches": batches,
        "executor": relay,
        "optimizer": l2l.AdamW(),
        "problem": l2l.Problem(pool, data),
        "server": server,
        "wanted": [batches.wanted(0)],
        **_of_samples(batches),
    }


def _of_samples(batches: Any) -> dict[str, Any]:
    """What a step is given."""
    (inputs,), targets = batches.at(0)
    return {
        "inputs": (inputs,),
        "outputs": (torch.zeros(len(targets), 2),),
        "targets": targets,
        "tensor": inputs,
    }


def _of_calls(batches: Any) -> dict[str, Any]:
    """By call and argument."""
    (inputs,), _ = batches.at(0)
    return {
        "Data.from_arrays.x": torch.rand(40, 2),
        "Data.from_arrays.y": torch.arange(40) % 2,
        "Data.from_folder.folder": _images().name,
        "Data.from_dataset.train": [(torch.rand(2), index % 2) for index in range(40)],
        "Architecture.choices": ("a", "b"),
        "Architecture.from_choices.choices": ("a", "b"),
        "Architecture.from_json.text": '{"choices": ["a"]}',
        "Candidate.factory": nn.Identity,
        "Classification.check.outputs": (l2l.TensorSpec((2,)),),
        "Experts.count": 4,
        "KeyValue.heads": 4,
        "KeyValue.unit": 8,
        "LayerPool.repeated.candidates": [l2l.Candidate("a", _linear)],
        "LayerPool.inputs": l2l.TensorSpec((2,)),
        "LayerPool.repeated.inputs": l2l.TensorSpec((2,)),
        "Metric.measure": lambda outputs, targets: 0.0,
        "Position.candidates": [l2l.Candidate("a", nn.Identity)],
        "Position.with_candidates.candidates": [l2l.Candidate("a", nn.Identity)],
        "Muon.state.shape": (2, 2),
        "Regression.check.outputs": (l2l.TensorSpec(()),),
        "Regression.check.targets": torch.zeros(len(inputs)),
        "Regression.targets": torch.zeros(len(inputs), 2),
        "Relay.recalibrate.batches": [(inputs,)],
        "ReferenceTrainer.recalibrate.batches": [(inputs,)],
        "SearchResult.folder": "runs/x",
        "Split.batches.wanted": [(torch.arange(4), (0, 0))],
        "compare.results": ["runs/x", "runs/y"],
        "Tokens.outputs": (torch.zeros(3, 4, 5),),
        "Tokens.targets": torch.zeros(3, 4, dtype=torch.int64),
        "Tokens.check.outputs": (l2l.TensorSpec((4, 5)),),
        "Trainer.recalibrate.batches": 8,
    }


def _by_name(pool: Any, data: Any) -> dict[str, Any]:
    """By argument."""
    study = optuna.create_study()
    network = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    return {
        "caches": Caches(),
        "done": 0.5,
        "key": "p0/tanh",
        "keys": ["p0/tanh"],
        "rows": torch.arange(4),
        "study": study,
        "adamw": None,
        "architecture": pool.original,
        "architectures": [pool.original],
        "blocks": "0",
        "choices": pool.original.choices,
        "costs": {},
        "data": data,
        "depth": 2,
        "example": torch.rand(3, 2),
        "family": {"a": _linear},
        "fingerprint": "x",
        "folder": "x",
        "groups": [],
        "lr": 0.1,
        "match": "*",
        "metrics": {"own": l2l.Metric(lambda outputs, targets: 0.0)},
        "model": network,
        "name": "x",
        "norm": 1.0,
        "objective": l2l.Classification(),
        "batch_size": 8,
        "micro_batch": 4,
        "moments": "bf16",
        "part": data.train,
        "path_at": lambda step: pool.original,
        "peak": 0.1,
        "pool": pool,
        "positions": pool.positions,
        "rate": 0.9,
        "read": lambda name: torch.zeros(2),
        "reason": "x",
        "rule": l2l.AdamW(),
        "samples": 8,
        "schedule": Constant(0.1, 10),
        "seed": 0,
        "shape": (2,),
        "shapes": check_shapes(pool),
        "split": data.validation,
        "start": 0,
        "state": "p0/tanh",
        "step": 0,
        "steps": 1,
        "task": l2l.Classification(),
        "test": lambda architecture: True,
        "train": data.train,
        "trial": study.ask(),
        "validation": data.validation,
        "value": torch.tensor(0.5),
    }


def _of_objects(pool: Any, data: Any, server: Any, batches: Any, relay: Any) -> dict[str, Any]:
    """What methods are called on, by its class."""
    candidate = l2l.Candidate("a", nn.Identity)
    kinds = (l2l.AdamW, l2l.SGD, l2l.Lion, l2l.Adafactor, l2l.Muon, l2l.Classification, l2l.Regression, l2l.Tokens)
    return {
        **{kind.__name__: kind() for kind in kinds},
        "Architecture": pool.original,
        "Batches": batches,
        "Clip": l2l.Clip(1.0),
        "Cosine": l2l.Cosine(0.1, 10),
        "Data": data,
        "Groups": l2l.Groups(l2l.AdamW(), [l2l.Group("*", weight_decay=0.0)]),
        "LayerPool": pool,
        "LowPrecision": l2l.LowPrecision(l2l.AdamW(), "bf16"),
        "ParamServer": server,
        "Position": l2l.Position("p", candidate),
        "ReferenceTrainer": l2l.ReferenceTrainer(server, device="cpu"),
        "Relay": relay,
        "Require": l2l.Require("x", lambda architecture: True),
        "Samples": _Images(),
        "Split": data.validation,
        "Trainer": l2l.Trainer(relay, l2l.Classification(), batches, 4),
        "UniformPaths": l2l.UniformPaths(pool, seed=0),
    }
