"""The ranks of a command: what they must have alike, and what they cannot do."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from l2l_nas.arguments import shown
from l2l_nas.eps.agreement import all_gather_bytes
from l2l_nas.eps.exchange import Alone, Exchange
from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded import ShardedServer, server_of
from l2l_nas.errors import SettingError
from l2l_nas.runs.fields import changed, content, entries, value_of
from l2l_nas.runs.mesh import idle_ranks
from l2l_nas.runs.origin import describe_data, versions
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.runs.terminal import warn
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.lead import Lead, Solo
from l2l_nas.training.problem import Problem

if TYPE_CHECKING:
    from l2l_nas.parallel.lead import Follower, Leader
    from l2l_nas.parallel.mesh import WorldMesh

COMMANDS = ("train", "search", "evaluate", "generate", "export")  # that ranks can do together


@dataclass(frozen=True)
class RunRanks:
    """The ranks of a command.

    Args:
        exchange: between them.
        lead: who does the work.
        mesh: the ranks as a grid, of which so many share each layer; all of them call it.
        be_patient: has ranks wait so many seconds for one that makes no progress.
    """

    exchange: Exchange = field(default_factory=Alone)
    lead: Lead = field(default_factory=Solo)
    mesh: Callable[[int], WorldMesh] | None = None
    be_patient: Callable[[float], None] = lambda seconds: None

    @property
    def size(self) -> int:
        """How many there are."""
        return self.exchange.size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which has the terminal; a single process is."""
        return self.exchange.rank == 0

    @contextmanager
    def agreed(self, conf: Any) -> Iterator[None]:
        """Compare the settings and versions of all ranks; meanwhile rank 0 leads.

        Raises:
            SettingError: two differ.
        """
        compare(self, {**entries(content(conf)), **versions()})
        if self.size > 1 and self.is_first:
            leader: Leader = self.lead  # type: ignore[assignment]
            with leader.leading():
                yield
        else:
            yield

    def follow(self, actions: Mapping[str, Callable[..., Any]], asks: Callable[[], bool] = lambda: False) -> None:
        """Do what rank 0 does, until its program is over.

        Args:
            actions: by the names that rank 0 gives them.
            asks: whether this rank was asked to stop.

        Raises:
            BaseException: what ended it, on rank 0 or here.
        """
        follower: Follower = self.lead  # type: ignore[assignment]
        follower.actions.update(actions)
        follower.asks = asks
        follower.follow()

    def server(
        self, pool: LayerPool, *, tensor: int = 1, gather_logits: bool | None = True, **options: Any
    ) -> ParamServer:
        """This rank's part of the weights of a pool.

        Args:
            tensor: how many ranks share each layer.
            gather_logits: see `SplitPool`.
            options: of the server.

        Raises:
            SpaceError: a layer whose candidate says how it is divided, but not among so many ranks.
            SettingError: as `ShardedServer`.
        """
        if tensor == 1:
            return server_of(pool, self.exchange, **options)
        from l2l_nas.parallel.split_pool import SplitPool  # which has torch.distributed imported

        assert self.mesh is not None
        grid = self.mesh(tensor)
        split = SplitPool(pool, grid.ranks, gather_logits=gather_logits, is_lenient=True)
        return ShardedServer(split, grid.mesh, **options)


# settings that several ranks cannot have, and why
_REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "relay.storage": (("ram", "file"), "each of several ranks keeps its part of the states in memory or in files"),
    "search.workers": ((1,), "several ranks do each trial together"),
    "executor.name": (("inline",), "several ranks do each trial together"),
}


def refuse_on_ranks(conf: SearchConf | RetrainConf, size: int) -> None:
    """Refuse settings that so many ranks cannot have. Raises SettingError."""
    if size == 1:
        return
    for name, (possible, why) in _REFUSED.items():
        value = value_of(conf, name, possible[0])
        if value not in possible:
            raise SettingError(
                f"{name.removesuffix('.name')}={value}: {why}; leave it out, or start it without torchrun"
            )


def compare(ranks: RunRanks, content: Mapping[str, Any]) -> None:
    """Refuse ranks that differ in something, by name. Raises SettingError: it names the first difference."""
    if ranks.size == 1:
        return
    all_ranks = [json.loads(data) for data in all_gather_bytes(ranks.exchange, json.dumps(dict(content)).encode())]
    for rank, other in enumerate(all_ranks):
        for name in dict.fromkeys([*all_ranks[0], *other]):
            ours, theirs = all_ranks[0].get(name), other.get(name)
            if ours != theirs:
                raise SettingError(
                    f"{name} is {shown(theirs)} on rank {rank}, and {shown(ours)} on rank 0; start all ranks alike"
                )


def compare_problems(ranks: RunRanks, problem: Problem) -> None:
    """Refuse ranks with other data, or another pool. Raises SettingError."""
    if ranks.size == 1:
        return
    data = entries(describe_data(problem.data), "data ")
    compare(ranks, {"the search space's fingerprint": fingerprint(problem.pool), **data})


def compare_files(ranks: RunRanks, *files: Path) -> None:
    """Refuse ranks of which one has another content in a file that all read, or none. Raises SettingError."""
    if ranks.size == 1:
        return
    digests = {}
    for path in files:
        with suppress(OSError):  # who reads it says what is wrong
            digests[f"the SHA-256 of {path}"] = hashlib.sha256(path.read_bytes()).hexdigest()
    compare(ranks, digests)


def with_chunks(conf: Any, ranks: int) -> Any:
    """Settings with the number of chunks decided: that of the ranks, unless it was said, or the run has one."""
    if ranks == 1 or conf.parallel.chunks is not None:
        return conf
    return changed(conf, {"parallel.chunks": ranks // conf.parallel.tensor})


def greet_ranks(console: Console, server: ParamServer, conf: SearchConf | RetrainConf, *, samples: int) -> None:
    """One line that says that ranks share each step.

    Args:
        samples: of the training part.
    """
    ranks = server.world.size
    if ranks == 1:
        return
    chunks, tensor, size = conf.parallel.chunks, conf.parallel.tensor, ranks // conf.parallel.tensor
    layers = f"tensor parallel, {tensor} to each layer" if tensor > 1 else ""
    samples_by = f"data parallel, parallel.chunks={chunks}" if size > 1 else ""
    how = "; ".join(filter(None, (layers, samples_by)))
    console.print(f"{ranks} ranks share each step and all weights ({how})", soft_wrap=True)
    batch_size, micro_batch = min(conf.train.batch_size, samples), conf.train.micro_batch
    if idle := idle_ranks(size, batch_size=batch_size, micro_batch=micro_batch):
        warn(console, idle)
