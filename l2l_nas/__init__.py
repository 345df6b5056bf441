"""Neural architecture search on networks far larger than the GPU.

Names are loaded when first used: `import l2l_nas` is instant, and never imports optuna, hydra, omegaconf or matplotlib.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from l2l_nas.version import __version__ as __version__

if TYPE_CHECKING:
    from l2l_nas.cost.closed_form import num_parameters
    from l2l_nas.eps.file_storage import FileStorage
    from l2l_nas.eps.optimizers.base import Optimizer, StateTensor
    from l2l_nas.eps.optimizers.groups import Group, Groups, layer_decay, no_decay
    from l2l_nas.eps.optimizers.precision import LowPrecision
    from l2l_nas.eps.optimizers.registry import muon_with_adamw
    from l2l_nas.eps.optimizers.rules import SGD, Adafactor, AdamW, Lion, Muon
    from l2l_nas.eps.scale import Clip
    from l2l_nas.eps.server import ParamServer
    from l2l_nas.errors import Stopped
    from l2l_nas.nas.callback import Callback
    from l2l_nas.nas.strategies.finalist_phase import Finalists
    from l2l_nas.nas.strategies.phase import Phase
    from l2l_nas.nas.strategies.random_search import RandomSearch
    from l2l_nas.nas.strategies.trials import Trials
    from l2l_nas.nas.strategies.warm_up import WarmUp
    from l2l_nas.nas.suggest import suggest
    from l2l_nas.relay.config import ExecutionConfig, MemoryConfig, PrecisionConfig, UpdateConfig
    from l2l_nas.relay.reference import ReferenceTrainer
    from l2l_nas.relay.relay import Relay
    from l2l_nas.runs.api import SearchResult, compare, search
    from l2l_nas.space.architecture import Architecture
    from l2l_nas.space.candidate import Candidate, FirstWeights, Position, TensorSpec, skip
    from l2l_nas.space.constraint import Require
    from l2l_nas.space.convert.convert import convert
    from l2l_nas.space.elastic import elastic
    from l2l_nas.space.losses import add_loss, collect_losses
    from l2l_nas.space.pool import LayerPool
    from l2l_nas.space.sampling import UniformPaths
    from l2l_nas.space.split import (
        Attended,
        Attribute,
        Channels,
        Column,
        Dropped,
        Experts,
        Grouped,
        KeyValue,
        Row,
        Vocabulary,
        Within,
    )
    from l2l_nas.training.data import Batches, Data
    from l2l_nas.training.export import plain_module
    from l2l_nas.training.fit import Trainer
    from l2l_nas.training.metrics import Metric
    from l2l_nas.training.problem import Problem
    from l2l_nas.training.samples import Samples, Split
    from l2l_nas.training.schedule import Cosine
    from l2l_nas.training.task import Classification, Regression, SampleMetrics, SummedMetrics, Task

_HOMES = {
    "Adafactor": "l2l_nas.eps.optimizers.rules",
    "Group": "l2l_nas.eps.optimizers.groups",
    "Groups": "l2l_nas.eps.optimizers.groups",
    "Lion": "l2l_nas.eps.optimizers.rules",
    "LowPrecision": "l2l_nas.eps.optimizers.precision",
    "Muon": "l2l_nas.eps.optimizers.rules",
    "Optimizer": "l2l_nas.eps.optimizers.base",
    "StateTensor": "l2l_nas.eps.optimizers.base",
    "layer_decay": "l2l_nas.eps.optimizers.groups",
    "muon_with_adamw": "l2l_nas.eps.optimizers.registry",
    "no_decay": "l2l_nas.eps.optimizers.groups",
    "AdamW": "l2l_nas.eps.optimizers.rules",
    "Architecture": "l2l_nas.space.architecture",
    "Candidate": "l2l_nas.space.candidate",
    "Classification": "l2l_nas.training.task",
    "Clip": "l2l_nas.eps.scale",
    "Data": "l2l_nas.training.data",
    "FileStorage": "l2l_nas.eps.file_storage",
    "Finalists": "l2l_nas.nas.strategies.finalist_phase",
    "FirstWeights": "l2l_nas.space.candidate",
    "LayerPool": "l2l_nas.space.pool",
    "Metric": "l2l_nas.training.metrics",
    "ParamServer": "l2l_nas.eps.server",
    "Phase": "l2l_nas.nas.strategies.phase",
    "Position": "l2l_nas.space.candidate",
    "Problem": "l2l_nas.training.problem",
    "RandomSearch": "l2l_nas.nas.strategies.random_search",
    "Regression": "l2l_nas.training.task",
    "ExecutionConfig": "l2l_nas.relay.config",
    "MemoryConfig": "l2l_nas.relay.config",
    "PrecisionConfig": "l2l_nas.relay.config",
    "Relay": "l2l_nas.relay.relay",
    "UpdateConfig": "l2l_nas.relay.config",
    "Require": "l2l_nas.space.constraint",
    "ReferenceTrainer": "l2l_nas.relay.reference",
    "SampleMetrics": "l2l_nas.training.task",
    "Samples": "l2l_nas.training.samples",
    "Split": "l2l_nas.training.samples",
    "SGD": "l2l_nas.eps.optimizers.rules",
    "SummedMetrics": "l2l_nas.training.task",
    "Task": "l2l_nas.training.task",
    "TensorSpec": "l2l_nas.space.candidate",
    "Tokens": "l2l_nas.training.task",
    "Trials": "l2l_nas.nas.strategies.trials",
    "UniformPaths": "l2l_nas.space.sampling",
    "Attended": "l2l_nas.space.split",
    "Attribute": "l2l_nas.space.split",
    "Channels": "l2l_nas.space.split",
    "Column": "l2l_nas.space.split",
    "Dropped": "l2l_nas.space.split",
    "Experts": "l2l_nas.space.split",
    "Grouped": "l2l_nas.space.split",
    "KeyValue": "l2l_nas.space.split",
    "Row": "l2l_nas.space.split",
    "Vocabulary": "l2l_nas.space.split",
    "Within": "l2l_nas.space.split",
    "WarmUp": "l2l_nas.nas.strategies.warm_up",
    "Callback": "l2l_nas.nas.callback",
    "Stopped": "l2l_nas.errors",
    "Batches": "l2l_nas.training.data",
    "Cosine": "l2l_nas.training.schedule",
    "SearchResult": "l2l_nas.runs.api",
    "Trainer": "l2l_nas.training.fit",
    "convert": "l2l_nas.space.convert.convert",
    "add_loss": "l2l_nas.space.losses",
    "collect_losses": "l2l_nas.space.losses",
    "num_parameters": "l2l_nas.cost.closed_form",
    "elastic": "l2l_nas.space.elastic",
    "plain_module": "l2l_nas.training.export",
    "compare": "l2l_nas.runs.api",
    "search": "l2l_nas.runs.api",
    "skip": "l2l_nas.space.candidate",
    "suggest": "l2l_nas.nas.suggest",
}

__all__ = [
    "SGD",
    "Adafactor",
    "AdamW",
    "Architecture",
    "Attended",
    "Attribute",
    "Batches",
    "Callback",
    "Candidate",
    "Channels",
    "Classification",
    "Clip",
    "Column",
    "Cosine",
    "Data",
    "Dropped",
    "ExecutionConfig",
    "Experts",
    "FileStorage",
    "Finalists",
    "FirstWeights",
    "Group",
    "Grouped",
    "Groups",
    "KeyValue",
    "LayerPool",
    "Lion",
    "LowPrecision",
    "MemoryConfig",
    "Metric",
    "Muon",
    "Optimizer",
    "ParamServer",
    "Phase",
    "Position",
    "PrecisionConfig",
    "Problem",
    "RandomSearch",
    "ReferenceTrainer",
    "Regression",
    "Relay",
    "Require",
    "Row",
    "SampleMetrics",
    "Samples",
    "SearchResult",
    "Split",
    "StateTensor",
    "Stopped",
    "SummedMetrics",
    "Task",
    "TensorSpec",
    "Tokens",
    "Trainer",
    "Trials",
    "UniformPaths",
    "UpdateConfig",
    "Vocabulary",
    "WarmUp",
    "Within",
    "add_loss",
    "collect_losses",
    "compare",
    "convert",
    "elastic",
    "layer_decay",
    "muon_with_adamw",
    "no_decay",
    "num_parameters",
    "plain_module",
    "search",
    "skip",
    "suggest",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'l2l_nas' has no attribute '{name}'")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
