"""Which rank failed, from what one rank knows of all of them.

[Note: who failed] gloo names an address, at best, and of a rank that ended only because of another one as well. So:

- A rank that raises says so itself. The store keeps the first failure of an epoch; all ranks raise that one.
- A process that is gone is seen by the ranks on its machine, as the kernel knows its number and when it began. Of one
  on another machine, gloo's connection breaks and its beats end, while those of the others go on.
- A process that is stopped, or whose machine is gone, has no beats for as long as patience lasts.
- A process that lives but does not come makes no progress, and began fewer exchanges than another one that waits. Of
  these, one that waits in another exchange is a victim itself.

Time counts only while this process runs, so that one that was stopped and goes on does not blame the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from l2l_nas.parallel.beats import Beat, Failure
from l2l_nas.parallel.processes import Life, Process

_TRANSFER = 10  # times patience, for an exchange that all ranks began


@dataclass
class Seen:
    """What is known of another rank; seconds while this process ran.

    Args:
        beat: the last one.
        silent_s: since then.
        still_s: since a beat that showed progress.
    """

    beat: Beat
    silent_s: float = 0.0
    still_s: float = 0.0


@dataclass(frozen=True)
class Known:
    """What one rank knows of all.

    Args:
        rank: this one.
        own: its beat.
        seen: of the others.
        processes: of all.
        patience_s: how long a rank may make no progress.
    """

    rank: int
    own: Beat
    seen: Mapping[int, Seen]
    processes: Sequence[Process]
    patience_s: float

    def beat(self, rank: int) -> Beat:
        """The last one of a rank."""
        return self.own if rank == self.rank else self.seen[rank].beat

    def _named(self, rank: int) -> str:
        return f"rank {rank} ({self.processes[rank].described()})"

    def failed(self, text: str, *, is_of_all: bool, goes_on: bool) -> Failure:
        """This rank failed, and perhaps all with the same; see `RankWatch.failed_here`."""
        who = "all ranks" if is_of_all else self._named(self.rank)
        line = f"{who} failed {self.own.doing}: {text}"
        return Failure(line, by=self.rank, rank=None if is_of_all else self.rank, goes_on=goes_on)

    def gone(self, rank: int, *, by: int | None = None) -> Failure:
        """The process of a rank is gone."""
        line = f"{self._named(rank)} ended {self.beat(rank).doing}: it was killed, or crashed; see its own output"
        return Failure(line, by=self.rank if by is None else by, rank=rank)

    def silent(self, rank: int) -> Failure:
        """A rank does not answer."""
        life = self.processes[rank].life()
        if life is Life.ENDED:
            return self.gone(rank)
        why = " (its process is stopped)" if life is Life.STOPPED else ""
        line = f"{self._named(rank)} did not answer for {self.patience_s:g} s; it was {self.beat(rank).doing}{why}"
        return Failure(line, by=self.rank, rank=rank)

    def most_silent(self, least_s: float) -> int | None:
        """The rank that is silent for the longest time, if it is for this time."""
        ranks = [rank for rank, seen in self.seen.items() if seen.silent_s >= least_s]
        return max(ranks, key=lambda rank: self.seen[rank].silent_s, default=None)

    def overdue(self, waited_s: float) -> Failure | None:
        """Who keeps this rank waiting; None while those that it waits for make progress.

        Args:
            waited_s: how long it has waited.
        """
        still = [rank for rank, seen in self.seen.items() if seen.still_s >= self.patience_s]
        silent = [rank for rank in still if self.seen[rank].silent_s >= self.patience_s / 2]
        behind = [rank for rank in still if self._is_behind(rank)]
        late = [rank for rank in behind if not self.beat(rank).waits]
        if silent:
            return self.silent(silent[0])
        if late:
            doing = self.beat(late[0]).doing
            line = f"{self._named(late[0])} made no progress for {self.patience_s:g} s {doing}; other ranks wait for it"
            return Failure(line, by=self.rank, rank=late[0])
        if behind:
            places = "; ".join(f"rank {rank} {self.beat(rank).doing}" for rank in range(len(self.processes)))
            return Failure(f"ranks wait for each other for {self.patience_s:g} s: {places}", by=self.rank)
        if waited_s >= _TRANSFER * self.patience_s:
            line = f"all ranks wait for {waited_s:.0f} s {self.own.doing}, and nothing comes: check the network"
            return Failure(line, by=self.rank)
        return None

    def _is_behind(self, rank: int) -> bool:
        """Whether another rank waits in an exchange that this one has not begun."""
        own = self.beat(rank)
        others = [self.beat(other) for other in range(len(self.processes)) if other != rank]
        if any(beat.epoch > own.epoch for beat in others):
            return True
        waiting = [beat for beat in others if beat.waits and beat.epoch == own.epoch]
        return any(
            count > own.begun.get(channel, 0) and _is_member(rank, channel)
            for beat in waiting
            for channel, count in beat.begun.items()
        )


def _is_member(rank: int, channel: str) -> bool:
    """Whether the channel is of all ranks, or names this one, as "divided@0,2" does."""
    members = channel.partition("@")[2]
    return not members or str(rank) in members.split(",")
