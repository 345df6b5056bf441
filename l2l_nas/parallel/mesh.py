"""Ranks of a world as a grid: rows of ranks that share layers, columns of ranks that share mini-batches and states."""

from __future__ import annotations

from datetime import timedelta

from torch import distributed

from l2l_nas.eps.exchange import Alone, Channel, Exchange, Mesh
from l2l_nas.errors import SettingError
from l2l_nas.parallel.collectives import Ranks
from l2l_nas.parallel.ranks import GroupExchange, WatchedReducer
from l2l_nas.parallel.watch import RankWatch
from l2l_nas.space.split import advised

# for an exchange; the watch ends one that takes too long, and knows why
GROUP_TIMEOUT = timedelta(days=1)


class WorldMesh:
    """The grid of a world; rank `data * tensor + place` is the one of this place among those that share its layers.

    Args:
        watch: of this rank.
        world: all ranks.
        tensor: how many ranks share each layer.
        has_checks: see `GroupExchange`.

    Attributes:
        tensor: how many ranks share each layer.
        mesh: what the param-server and the relay know of it.
        ranks: those that share layers with this one, as modules keep them; once it is connected.
    """

    ranks: Ranks

    def __init__(self, watch: RankWatch, world: GroupExchange, tensor: int, *, has_checks: bool = False) -> None:
        size = world.size
        if size % tensor:
            raise SettingError(f"tensor={tensor}: there are {size} ranks, which it must divide; {advised([size])}")
        self._watch, self.tensor = watch, tensor
        self._rows = [list(range(first, first + tensor)) for first in range(0, size, tensor)]
        self._columns = [list(range(first, size, tensor)) for first in range(tensor)]
        self._reducer: WatchedReducer | None = None

        def exchange(groups: list[list[int]]) -> Exchange:
            own = next(members for members in groups if watch.rank in members)
            if len(groups) == 1:
                return world
            return Alone() if len(own) == 1 else GroupExchange(watch, size, members=own, has_checks=has_checks)

        self.mesh = Mesh(world, exchange(self._columns), exchange(self._rows))

    def connect(self) -> None:
        """Make the groups of an epoch; all ranks call it."""
        for exchange, members in ((self.mesh.data, self._columns), (self.mesh.tensor, self._rows)):
            if exchange is self.mesh.world or isinstance(exchange, Alone):
                continue
            assert isinstance(exchange, GroupExchange)
            exchange.use({channel: self._own_group(members) for channel in Channel})
        group = self._own_group(self._rows)
        if self._reducer is None:
            self._reducer = WatchedReducer(self._watch, group)
            self.ranks = Ranks(self._reducer)
        self._reducer.use(group)

    def _own_group(self, groups: list[list[int]]) -> distributed.ProcessGroup:
        """One group of each list of ranks, as all of them make all; this rank's own."""
        made = [distributed.new_group(members, timeout=GROUP_TIMEOUT) for members in groups]
        return next(group for group, members in zip(made, groups, strict=True) if self._watch.rank in members)
