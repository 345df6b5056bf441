"""Makes the sweepers known to Hydra.

Hydra 1.3 finds plugins by walking an installed package `hydra_plugins`, and takes sweepers from nowhere else. Ours are
put there while the program starts, under the name of a module that exists in memory alone, so that a checkout, an
editable install and a wheel are alike. Jobs in other processes need their configuration, not the classes.
"""

from __future__ import annotations

import importlib
import sys
import types
from dataclasses import dataclass

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins

from l2l_nas.cli.combinations import CombinationsSweeper
from l2l_nas.cli.sampled import SamplerSweeper
from l2l_nas.cli.schema import CombinationsConf, SweeperConf

_PACKAGE = "hydra_plugins"
_HOME = f"{_PACKAGE}.l2l_nas"


@dataclass
class _SamplerNode(SweeperConf):
    _target_: str = f"{_HOME}.{SamplerSweeper.__name__}"


@dataclass
class _CombinationsNode(CombinationsConf):
    _target_: str = f"{_HOME}.{CombinationsSweeper.__name__}"


def register_sweepers() -> None:
    """Offer `hydra/sweeper=l2l` and `hydra/sweeper=combinations`."""
    store = ConfigStore.instance()
    store.store(group="hydra/sweeper", name="l2l", node=_SamplerNode)
    store.store(group="hydra/sweeper", name="combinations", node=_CombinationsNode)
    plugins = Plugins.instance()  # looks for installed ones first
    try:
        importlib.import_module(_PACKAGE)
    except ImportError:
        package = sys.modules[_PACKAGE] = types.ModuleType(_PACKAGE)
        package.__path__ = []
    home = sys.modules[_HOME] = types.ModuleType(_HOME)
    for sweeper in (SamplerSweeper, CombinationsSweeper):
        sweeper.__module__ = _HOME
        setattr(home, sweeper.__name__, sweeper)
        plugins.register(sweeper)
