"""Stress: delays in the lanes and poison in free slots, so that a missing wait shows as a wrong number.

Or a pace: each piece of work takes as long as on a machine of known rates, as the benchmark `simulator` asks.
And orders of updates, each for itself, where a relay would choose.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from l2l_nas import Relay
from l2l_nas.relay import relay as relay_module
from l2l_nas.relay.config import UpdateConfig
from l2l_nas.relay.device import Device
from l2l_nas.relay.executor import PlanExecutor
from l2l_nas.relay.lanes import Lanes, LaneWork
from l2l_nas.relay.plan import Op, UpdateOrder


@dataclass
class Stress:
    """How lanes are disturbed.

    Args:
        seed: of the delays.
        longest_delay_s: the most that a piece of work is delayed; most are delayed less.
        slow: by operation ("load", "send", ...), the delay in seconds of each piece of work, in place of a random one.
        pace: gives the least time in seconds that a piece of work takes, by its operation and its layer or state.
        is_poisoning: whether slots are poisoned before they are loaded; a lane does that, so it takes time too.
    """

    seed: int = 0
    longest_delay_s: float = 0.001
    slow: Mapping[str, float] = field(default_factory=dict)
    pace: Callable[[str, str], float] | None = None
    is_poisoning: bool = True

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def delay_s(self, op: str) -> float:
        return self.slow.get(op, self.longest_delay_s * self._random.random() ** 3)


def poison(*blocks: Tensor) -> None:
    """Fill blocks of bytes with NaNs, in every floating dtype."""
    for block in blocks:
        block.fill_(0xFF)


class StressedLanes(Lanes):
    """Lanes that are late, as `stress` says; None: no longer."""

    def __init__(self, stress: Stress | None, device: Device, **options) -> None:
        super().__init__(device, **options)
        self.stress = stress

    def _perform(self, work: LaneWork) -> None:
        stress, started = self.stress, time.perf_counter()
        if stress is not None:  # behind the waits: on the device too, what is late is the work itself
            self._delay(work.lane, stress.delay_s(work.label.op))
        super()._perform(work)
        if stress is not None and stress.pace is not None:
            least_s = stress.pace(work.label.op, work.label.layer)
            time.sleep(max(0.0, least_s - (time.perf_counter() - started)))

    def _delay(self, lane: str, seconds: float) -> None:
        if lane == "host":  # what it does is done in this thread, on no stream
            time.sleep(seconds)
        elif self._device.torch_device.type == "cuda":
            torch.cuda._sleep(int(seconds * 1e9))  # clock cycles
        else:  # torch has no common way to have a stream sleep: what is issued late runs late
            getattr(self._device, "delay", time.sleep)(seconds)


class PoisoningExecutor(PlanExecutor):
    """Poisons each slot before it is loaded, and all of them once nothing in them is of use."""

    def _load_poisoned(self, step, job):
        poison(*self.bank.slots[step.slot].blocks)
        self._load(step, job)

    _WORK = {**PlanExecutor._WORK, Op.LOAD: _load_poisoned}

    def drain(self) -> None:
        super().drain()
        with self.device.stream("compute"):
            for slot in self.bank.slots:
                poison(*slot.blocks)
            self.device.wait(self.device.mark())


class StressedRelay(Relay):
    """A relay with disturbed lanes. On a CPU it copies states to slots: poison would not reach master weights."""

    def __init__(self, server, *, stress: Stress, device="cpu", **settings) -> None:
        self._stress = stress
        opened = relay_module.open_device(device)
        if opened.shares_memory:
            opened.shares_memory = False
            settings = {"resident": None, **settings}
        super().__init__(server, device=opened, **settings)

    def _executor(self, *, is_beside: bool) -> PlanExecutor:
        lanes = StressedLanes(self._stress, self.device, threads=is_beside, trace=self.trace)
        kind = PoisoningExecutor if self._stress.is_poisoning else PlanExecutor
        return kind(self.device, self.bank, lanes, dtype=self.config.precision.dtype)


def relay_under(server, *, stress: Stress | None = None, **settings) -> Relay:
    """A relay, disturbed where there is stress."""
    return Relay(server, **settings) if stress is None else StressedRelay(server, stress=stress, **settings)


@dataclass(frozen=True)
class OrderedUpdates(UpdateConfig):
    """Updates in one order, wherever a relay would choose one."""

    wanted: UpdateOrder = UpdateOrder.EAGER

    def __repr__(self) -> str:
        return self.wanted.value

    def order(self, *, overlaps: bool) -> UpdateOrder:
        del overlaps
        return self.wanted


CHECKED = OrderedUpdates("exact", wanted=UpdateOrder.CHECKED)
AHEAD = OrderedUpdates("exact", wanted=UpdateOrder.AHEAD)
ORDERS = ("eager", CHECKED, AHEAD)
