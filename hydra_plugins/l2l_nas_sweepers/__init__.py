"""The sweeper of l2l_nas, where Hydra searches for plugins: `hydra/sweeper=l2l`.

Hydra imports every plugin whenever any application of its starts, so what is here loads nothing. The sweeper itself is
in `l2l_nas.cli.sampled`, and is imported when it is chosen.
"""

# no annotations as text: Hydra runs this before it is in `sys.modules`, where dataclasses find such texts
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from l2l_nas.cli.schema import node_of
from l2l_nas.runs.settings import SweeperConf


class SamplerSweeper(Sweeper):
    """Values that a sampler chooses, for `python -m l2l_nas search`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._sweeper: Sweeper

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        from l2l_nas.cli.sampled import SamplerSweeper as Late

        self._sweeper = Late(**self._settings)
        self._sweeper.setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """See `Sweeper.sweep`."""
        return self._sweeper.sweep(arguments)


@dataclass(frozen=True)
class _SamplerNode(SweeperConf):
    _target_: str = f"{__name__}.{SamplerSweeper.__name__}"


ConfigStore.instance().store(group="hydra/sweeper", name="l2l", node=node_of(_SamplerNode), provider="l2l_nas")
