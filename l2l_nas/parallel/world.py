"""The ranks of one training: how a process joins them, begins anew after a failure, and leaves.

    world = join()
    server = ShardedServer(pool, world.exchange, optimizer=AdamW(), seed=0)
    relay = Relay(server)
    ...
    world.leave()

A program that torchrun starts uses `run_ranked` (`parallel/entry.py`), which does this and reports errors.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import distributed
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from l2l_nas.eps.agreement import wait_for_all
from l2l_nas.eps.exchange import Channel
from l2l_nas.parallel.meeting import Place, meet, open_store
from l2l_nas.parallel.mesh import GROUP_TIMEOUT, WorldMesh
from l2l_nas.parallel.ranks import GroupExchange, WatchedReducer
from l2l_nas.parallel.waiting import Result, in_thread
from l2l_nas.parallel.watch import RankWatch

_LINGER_S = 3.0
_LAST_S = 1.0


@dataclass(frozen=True)
class WorldConfig:
    """How ranks wait for each other.

    Args:
        device: where layers run; with "cuda", ranks exchange device tensors by NCCL (not measured).
        patience_s: how long a rank may make no progress while another one waits for it.
        join_s: how long ranks wait for all to start.
        has_checks: see `GroupExchange`.
    """

    device: str = "cpu"
    patience_s: float = 20.0
    join_s: float = 120.0
    has_checks: bool = False

    @property
    def backend(self) -> str:
        """What groups are made of."""
        return "cpu:gloo,cuda:nccl" if torch.device(self.device).type == "cuda" else "gloo"


def join(config: WorldConfig | None = None) -> World:
    """Join the ranks that the launcher started, which sets RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT.

    Args:
        config: how to wait; None for the defaults.

    Raises:
        SettingError: a variable is missing or makes no sense, the port is in use, or versions differ.
        RankError: other ranks did not come, or ended.
    """
    config = config or WorldConfig()
    place = Place.of(os.environ)
    if torch.device(config.device).type == "cuda":
        torch.cuda.set_device(place.local_rank)
    store = open_store(place, config.join_s)
    keys, names = in_thread(lambda: meet(place, store, config.join_s))
    watch = RankWatch(
        PrefixStore(keys, open_store(place, config.join_s, again=True)),
        names,
        place.rank,
        patience_s=config.patience_s,
        store_rank=None if place.has_launcher_store else 0,
    )
    return World(config, place, PrefixStore(keys, store), watch)


class World:
    """This process among the ranks; `join` makes it.

    While it lives, `torch.distributed` has a default group of all ranks, so `init_device_mesh` works.
    """

    def __init__(self, config: WorldConfig, place: Place, store: Store, watch: RankWatch) -> None:
        self._config, self._place, self._store = config, place, store
        self.watch = watch
        self._mesh: WorldMesh | None = None
        self.exchange = GroupExchange(watch, place.size, has_checks=config.has_checks)
        watch.start()
        self._connect(epoch=0)

    @property
    def rank(self) -> int:
        """The number of this process, from 0."""
        return self._place.rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._place.size

    @property
    def local_rank(self) -> int:
        """The number of this process on its machine, from 0."""
        return self._place.local_rank

    def reducer(self, group: distributed.ProcessGroup | None = None) -> WatchedReducer:
        """What sums over the ranks that share layers, where one that fails ends the waiting of the others.

        Args:
            group: of these ranks, such as one of a mesh; None: all.
        """
        return WatchedReducer(self.watch, group)

    def mesh(self, *, tensor: int) -> WorldMesh:
        """These ranks as a grid, of which `tensor` after one another share each layer; it lasts through `rejoin`.

        All ranks call it; once it was called, there is no other.

        Raises:
            SettingError: so many do not divide the number of ranks.
        """
        if self._mesh is not None:
            assert self._mesh.tensor == tensor, "the groups of another mesh would stay"
            return self._mesh
        mesh = WorldMesh(self.watch, self.exchange, tensor, has_checks=self._config.has_checks)
        self._meet("mesh", mesh.connect)
        self._mesh = mesh
        return mesh

    def rejoin(self) -> None:
        """Begin anew after a failure that all ranks survived: new groups, the same exchange, the same mesh.

        All ranks call it; no other thread of this one may be in an exchange. Groups made by others are gone.

        Raises:
            RankError: what failed was no trial alone, or a rank has ended, or did not come.
        """
        failure = self.watch.failure
        if failure is not None and not failure.goes_on:
            raise failure.as_error()
        self._disconnect()
        self._connect(epoch=self.watch.begin_epoch())

    def leave(self) -> None:
        """End together: wait for all ranks, then close all connections. No exchange may be under way.

        Raises:
            RankError: another rank failed meanwhile.
        """
        wait_for_all(self.exchange)
        if self._place.holds_store:
            self.watch.linger(_LINGER_S)
        self.watch.leave()
        self._disconnect()

    def abandon(self) -> None:
        """Leave after an error, which the other ranks know by now; this process must end then.

        The rank that found the failure is the first to end, as the launcher names that one.
        """
        if self._place.holds_store:
            self.watch.linger(_LINGER_S)
        self.watch.leave()
        failure = self.watch.failure
        if failure is not None and failure.by != self.rank:
            time.sleep(_LAST_S)

    def _connect(self, *, epoch: int) -> None:
        """Make the groups of an epoch."""
        store = PrefixStore(f"epoch/{epoch}", self._store)

        def make() -> dict[Channel, distributed.ProcessGroup]:
            distributed.init_process_group(
                self._config.backend, store=store, rank=self.rank, world_size=self.size, timeout=GROUP_TIMEOUT
            )
            groups = {channel: distributed.new_group(timeout=GROUP_TIMEOUT) for channel in Channel}
            if self._mesh is not None:
                self._mesh.connect()
            return groups

        self.exchange.use(self._meet("join", make))

    def _meet(self, what: str, call: Callable[[], Result]) -> Result:
        """What a call returns in which ranks wait for each other; a rank that does not answer ends it."""
        with self.watch.inside(what) as waiting:
            try:
                return in_thread(call, waiting.check)
            except RuntimeError as error:
                raise self.watch.explain(error) from None

    def _disconnect(self) -> None:
        self.exchange.use({})
        distributed.destroy_process_group()
