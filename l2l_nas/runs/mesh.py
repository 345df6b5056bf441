"""The mesh of a run: how its ranks share each step."""

from __future__ import annotations

from l2l_nas.errors import SettingError
from l2l_nas.runs.section_settings import ParallelConf
from l2l_nas.runs.settings import SearchConf


def check_mesh(conf: ParallelConf, ranks: int) -> None:
    """Refuse a mesh of another number of ranks than there are, or one that ranks do not train in.

    Raises:
        SettingError: it names the setting.
    """
    there = "is 1 process" if ranks == 1 else f"are {ranks} ranks"
    if ranks % conf.tensor:
        raise SettingError(f"parallel.tensor={conf.tensor}: there {there}, which it must divide")
    if conf.tensor > 1:
        raise SettingError(
            f"parallel.tensor={conf.tensor}: ranks that share each layer are predicted by plan, and do not train yet; "
            "leave it out"
        )
    if conf.data is not None and conf.data * conf.tensor != ranks:
        raise SettingError(
            f"parallel.data={conf.data}: there {there}; leave it out, or start {conf.data * conf.tensor} with torchrun"
        )


def ranks_of_worker(conf: SearchConf, executor: object = None) -> int:
    """How many ranks train a trial in a worker, see [Note: groups] in `runs/rank_group.py`; 1: there are no groups.

    Args:
        executor: that was given as an object.
    """
    has_workers = conf.search.workers > 1 or conf.executor["name"] != "inline" or executor is not None
    return conf.parallel.data or 1 if has_workers else 1
