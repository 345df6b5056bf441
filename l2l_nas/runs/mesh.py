"""The mesh of a run: how its ranks share each step."""

from __future__ import annotations

from l2l_nas.errors import SettingError
from l2l_nas.runs.section_settings import MeshConf, ParallelConf
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


def check_planned(conf: MeshConf) -> None:
    """Refuse a mesh that no ranks could be.

    Raises:
        SettingError: it names the setting, and the nearest that is possible.
    """
    data = conf.data or 1
    if data & (data - 1):
        less = 1 << (data.bit_length() - 1)
        raise SettingError(
            f"parallel.data={data}: ranks add their sums in pairs, so take a power of two, such as {less} or {2 * less}"
        )
    if conf.chunks is not None and conf.chunks % data:
        raise SettingError(f"parallel.chunks={conf.chunks}: {data} ranks cannot divide it; take {data} or a multiple")


def idle_ranks(ranks: int, *, batch_size: int, micro_batch: int) -> str:
    """What to say of ranks that have no micro-batch; empty where all have one."""
    micro_batches = -(-batch_size // micro_batch)
    if micro_batches >= ranks:
        return ""
    word = "micro-batch" if micro_batches == 1 else "micro-batches"
    return (
        f"a step has {micro_batches} {word}, so that {ranks - micro_batches} of {ranks} ranks have none: "
        f"train.micro_batch={max(1, batch_size // ranks)} gives each one"
    )
