"""The mesh of a run: how its ranks share each step."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from l2l_nas.cost.closed_form import path_states
from l2l_nas.cost.device_bytes import PaperDevice
from l2l_nas.eps.exchange import Alone, Mesh, PaperRanks
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.errors import SettingError
from l2l_nas.relay.relay import Relay
from l2l_nas.runs.build import build_relay
from l2l_nas.runs.section_settings import MeshConf, RanksConf
from l2l_nas.runs.settings import SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.problem import Problem
from l2l_nas.training.task import Tokens

if TYPE_CHECKING:
    from l2l_nas.parallel.split_pool import SplitPool


def check_mesh(conf: RanksConf, ranks: int) -> None:
    """Refuse a mesh of another number of ranks than there are.

    Raises:
        SettingError: it names the setting, and what would do.
    """
    there = "is 1 process" if ranks == 1 else f"are {ranks} ranks"
    if ranks % conf.tensor:
        *fitting, last = [str(number) for number in range(1, ranks + 1) if ranks % number == 0]
        what = f"{', '.join(fitting)} or {last}" if ranks > 1 else f"1, or start {conf.tensor} with torchrun"
        raise SettingError(f"parallel.tensor={conf.tensor}: there {there}, which it must divide; take {what}")
    if conf.data is not None and conf.data * conf.tensor != ranks:
        raise SettingError(
            f"parallel.data={conf.data}: there {there}; leave it out, or start {conf.data * conf.tensor} with torchrun"
        )


def sharers_of(conf: SearchConf) -> int:
    """How many processes have a relay, as if all were on this machine: those of all workers, and the search's own."""
    has_workers = conf.search.workers > 1 or conf.executor["name"] != "inline" or "executor" in conf.objects
    return conf.search.workers + 1 if has_workers else 1


def check_possible_mesh(conf: MeshConf) -> None:
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


def gathers_logits(problem: Problem) -> bool | None:
    """What `SplitPool` is to do with scores of tokens: its task, and no metric of the user's, can do without all."""
    return None if type(problem.task) is Tokens and not problem.metrics else True


def refuse_undivided(server: ParamServer, architecture: Architecture | None = None) -> None:
    """Refuse layers that say how they are divided, but not among so many ranks as share layers.

    Args:
        architecture: whose layers; None: all of the pool.

    Raises:
        SpaceError: the first one; it says which numbers of ranks would.
    """
    split = _split_of(server)
    if split is not None:
        for layer in split.whole.layers if architecture is None else split.whole.path(architecture):
            if layer.key in split.refused:
                raise split.refused[layer.key]


def problem_on(problem: Problem, server: ParamServer) -> Problem:
    """The problem as it is trained: where no rank has the scores of all tokens, by a task that takes a rank's own."""
    split = _split_of(server)
    if split is None or split.gathers_logits:
        return problem
    from l2l_nas.training.split_tokens import SplitTokens

    vocabulary = check_shapes(problem.pool).outputs[0].shape[-1]
    return replace(problem, task=SplitTokens(split.ranks, vocabulary))


def paper_relay(relay: Relay, conf: SearchConf) -> Relay:
    """A relay as the first of the ranks that share layers has it: what costs are of, alike on all ranks.

    Args:
        relay: of this rank, whose part may be smaller.

    Raises:
        SettingError: settings that ask for what is not predicted of such ranks.
    """
    if conf.search.hardware:
        raise SettingError(
            f"search.hardware={conf.search.hardware}: times of ranks that share layers are predicted by plan alone; "
            "leave it out, or take parallel.tensor=1"
        )
    from l2l_nas.parallel.collectives import Ranks, Unjoined
    from l2l_nas.parallel.split_pool import SplitPool

    split, tensor = _split_of(relay.server), conf.parallel.tensor
    assert split is not None
    first = SplitPool(split.whole, Ranks(Unjoined(0, tensor)), gather_logits=split.gathers_logits, is_lenient=True)
    data = relay.server.exchange.size
    ranks = Mesh(PaperRanks(data * tensor), PaperRanks(data) if data > 1 else Alone(), PaperRanks(tensor))
    server = ShardedServer(first, ranks, optimizer=relay.server.optimizer, seed=relay.server.seed)
    device = PaperDevice(relay.device.free_bytes() + relay.device_bytes)
    return build_relay(server, conf.relay, seed=relay.seed, device=device, chunks=conf.parallel.chunks)


def left_whole(server: ParamServer, architecture: Architecture | None = None) -> tuple[str, ...]:
    """Layers of an architecture, or of the pool, of which every rank has all, although ranks share layers."""
    split = _split_of(server)
    if split is None:
        return ()
    states = split.whole.states if architecture is None else path_states(split.whole, architecture)
    return tuple(key for key in split.left_whole if key in states)


def _split_of(server: ParamServer) -> SplitPool | None:
    if not isinstance(server, ShardedServer) or server.divided is None:
        return None
    from l2l_nas.parallel.split_pool import SplitPool

    assert isinstance(server.divided, SplitPool)
    return server.divided


def mesh_of(server: ParamServer, architecture: Architecture | None = None) -> dict[str, Any]:
    """What a result says of its mesh; nothing where no ranks share layers."""
    if not isinstance(server, ShardedServer) or server.divided is None:
        return {}
    sizes = {"data": server.mesh.data.size, "tensor": server.mesh.tensor.size}
    return {"mesh": {**sizes, "whole": list(left_whole(server, architecture))}}
