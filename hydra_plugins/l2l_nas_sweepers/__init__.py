"""The sweepers of l2l_nas, where Hydra looks for plugins: `hydra/sweeper=combinations` and `hydra/sweeper=l2l`.

Hydra imports every plugin whenever any application of its starts, so what is here loads nothing. The sweepers
themselves are in `l2l_nas.cli`, and are imported when one is chosen.
"""

# no annotations as text: Hydra runs this before it is in `sys.modules`, where dataclasses look such texts up
import importlib
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from l2l_nas.cli.schema import node_of
from l2l_nas.runs.settings import CombinationsConf, SweeperConf


class _LateSweeper(Sweeper):
    """A sweeper that is imported when it is set up."""

    where: str

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._sweeper: Sweeper

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        module, _, name = self.where.partition(":")
        self._sweeper = getattr(importlib.import_module(module), name)(**self._settings)
        self._sweeper.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """See `Sweeper.sweep`."""
        return self._sweeper.sweep(arguments)


class CombinationsSweeper(_LateSweeper):
    """Every combination of the values given; a run that fails does not end it."""

    where = "l2l_nas.cli.combinations:CombinationsSweeper"


class SamplerSweeper(_LateSweeper):
    """Values that a sampler chooses, for `python -m l2l_nas search`."""

    where = "l2l_nas.cli.sampled:SamplerSweeper"


@dataclass(frozen=True)
class _CombinationsNode(CombinationsConf):
    _target_: str = f"{__name__}.{CombinationsSweeper.__name__}"


@dataclass(frozen=True)
class _SamplerNode(SweeperConf):
    _target_: str = f"{__name__}.{SamplerSweeper.__name__}"


_STORE = ConfigStore.instance()
_STORE.store(group="hydra/sweeper", name="combinations", node=node_of(_CombinationsNode), provider="l2l_nas")
_STORE.store(group="hydra/sweeper", name="l2l", node=node_of(_SamplerNode), provider="l2l_nas")
