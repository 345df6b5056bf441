"""Proves of a run on several ranks that it exchanged what its plans say, in their order, and nothing else.

A checker of plans sees steps alone. What a step does with the other ranks shows only when it is done: so this one looks
on, and compares each exchange with the plan's; see [Note: order of exchanges].
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from l2l_nas.eps.exchange import Channel, Exchanged, ObservedExchange
from l2l_nas.relay.exchanges import Exchanges, Message
from l2l_nas.relay.executor import TrainJob
from l2l_nas.relay.lanes import Label, work_of_thread
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.schedule import COLLECTIVES
from tests.relay.plans import PlanError


class _Seen(NamedTuple):
    work: Label
    done: Exchanged


class ExchangeChecker:
    """Looks on while a relay trains; `check` says what was wrong.

        with ExchangeChecker(relay) as checker:
            relay.train_step(...)
        checker.check()

    Args:
        relay: of a rank. Within the block it only trains.
        counts: of steps that are given this rank's samples alone, the micro-batches of the rank that has most.

    Attributes:
        num_bytes: by channel, bytes that this rank took from the others.
    """

    def __init__(self, relay: Relay, *, counts: int = 0) -> None:
        self._relay, self._counts = relay, counts
        self._size = relay.server.exchange.size
        every = (relay.server.exchange, relay.server.world)
        self._exchanges = {id(one): one for one in every if isinstance(one, ObservedExchange)}
        assert self._exchanges, "a relay of one process exchanges nothing"
        self._seen: list[_Seen] = []
        self._expected: list[tuple[int, Message]] = []  # with the number of the training step
        self.num_bytes: Counter[Channel] = Counter()

    def __enter__(self) -> ExchangeChecker:
        for one in self._exchanges.values():
            one.observers.append(self._note)
        training = self._relay._training
        run = training.run

        def noted(job: TrainJob) -> None:
            chunks = (self._relay.chunks or 1) // self._size
            exchanges = Exchanges(self._relay.server, self._relay.config.precision.dtype, chunks=chunks)
            agreement, *messages = exchanges.of_step(job.plan, job.layers)
            counts = [exchanges.counts(self._counts)] if self._counts else []
            compared = [exchanges.comparison] * self._relay._passes.compares_at(job.number)
            messages = [agreement, *compared, *counts, *messages]
            # those between ranks that share layers go another way
            self._expected += [(job.number, message) for message in messages if not message.is_of_tensor]
            run(job)

        training.run = noted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del self._relay._training.run
        self._relay.drain()
        for one in self._exchanges.values():
            one.observers.remove(self._note)

    def _note(self, done: Exchanged) -> None:
        self._seen.append(_Seen(work_of_thread(), done))
        self.num_bytes[done.channel] += done.num_bytes

    def check(self) -> None:
        """Compare what was exchanged with the plans.

        Raises:
            PlanError: a step exchanged something that exchanges nothing, or something else than its plan says, or in
                another order.
        """
        for work, done in self._seen:
            channels = {channel for op, channel in COLLECTIVES.items() if op.value == work.op}
            if done.channel is not Channel.STEP and done.channel not in channels:
                where = f"'{work.op} {work.layer}' of step {work.step}" if work.op else "no step of a plan"
                what = f"'{done.of}' is exchanged on channel {done.channel}"
                raise PlanError(f"{what} in {where}, which exchanges nothing")
        for channel in Channel:
            planned = [_planned(number, one) for number, one in self._expected if one.channel is channel]
            seen = [_done(one) for one in self._seen if one.done.channel is channel]
            for index, (want, got) in enumerate(zip(planned, seen, strict=False)):
                if want != got:
                    raise PlanError(f"exchange {index} on channel {channel} is {got}, and by the plan {want}")
            if len(planned) != len(seen):
                raise PlanError(f"{len(seen)} exchanges on channel {channel}, and by the plans {len(planned)}")


_What = tuple[int, str, str, int]  # step, operation, key, bytes


def _planned(number: int, message: Message) -> _What:
    if message.op is None:  # at the begin or in the first send: what ranks agree on is of no step
        return -1, "", "", message.num_bytes
    return number, message.op.value, message.of, message.num_bytes


def _done(seen: _Seen) -> _What:
    if seen.done.channel is Channel.STEP:
        return -1, "", seen.done.of, seen.done.num_bytes
    return seen.work.step, seen.work.op, seen.done.of, seen.done.num_bytes
