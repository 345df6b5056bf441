"""The device memory of a training step, and MemoryPlan: what of a path stays there, within a budget in bytes.

The *tail* (see [Note: the tail]) spares a second load and the recompute of its layers, and costs a slot and the
activations of one micro-batch for each. A value in the *stash* spares two copies over the link.

What layers keep and make while they run is found by dry runs (`measure.py`). One rule says what a step needs of it at
its largest moment: of a path (`cost/device_bytes.py`), and here of the costliest candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from l2l_nas.errors import SettingError
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.config import MemoryConfig
from l2l_nas.relay.measure import LayerNeeds, Work, layer_needs
from l2l_nas.relay.stash import Stash
from l2l_nas.space.pool import LayerPool

_SHARE = 0.5  # of the free memory, for "auto": other processes want some, and what a layer needs is an estimate


@dataclass(frozen=True)
class MemoryPlan:
    """What stays on the device.

    Args:
        keep: length of the tail.
        slots: how many there must be.
        spilled: values that wait on the host.
    """

    keep: int
    slots: int
    spilled: frozenset[str]


class ValueGradients(NamedTuple):
    """Bytes of the gradients of a micro-batch that a layer's backward meets."""

    learns: bool  # whether it has a backward
    read: int  # of what the layer reads
    written: int  # of what it writes
    begun: int  # of what it reads, that layers behind it have begun
    passing: int  # of other values, that layers behind it have begun and layers before it go on with


def streamed_moments(
    needs: Sequence[LayerNeeds], gradients: Sequence[ValueGradients], micro_batches: int
) -> Iterator[int]:
    """Bytes at the largest moments of each visit of the layers before the tail."""
    others = micro_batches - 1
    for need, gradient in zip(needs, gradients, strict=True):
        # a forward's graph of one micro-batch lives until the next one has its own
        yield need.forward_peak + (need.alive if others else 0)
        if not gradient.learns:
            continue
        # held: of micro-batches that are done the gradients of inputs, of the others those of outputs
        waiting = (others + 1) * gradient.passing
        due = gradient.written + gradient.begun
        for done in (0, others):
            yield waiting + done * gradient.read + (others + 1 - done) * due + need.peak


def tail_moments(needs: Sequence[LayerNeeds], gradients: Sequence[ValueGradients], alive: int) -> Iterator[int]:
    """Bytes at the largest moment of each layer of the tail: one micro-batch goes forward through it, and back.

    Args:
        alive: bytes of gradients that micro-batches before left to the layers before the tail.
    """
    for index, (need, gradient) in enumerate(zip(needs, gradients, strict=True), 1):
        yield alive + need.peak + (gradient.written + gradient.passing if index < len(needs) else 0)
        alive += need.alive


def decide(
    pool: LayerPool,
    bank: SlotBank,
    stash: Stash,
    sizes: tuple[int, ...],
    config: MemoryConfig,
    free_bytes: Callable[[], int],
) -> MemoryPlan:
    """What stays, for micro-batches of certain sizes: as much as the budget allows.

    Raises:
        SettingError: the budget is less than the least that is needed.
    """
    depth, budget = len(pool.positions), config.device_budget
    slots, keep = min(config.slots, depth + 1), min(config.keep, depth)
    spilled = frozenset(stash.spillable if config.stash == "host" else ())
    if budget == "all" or budget is None:
        keep = depth if budget == "all" else keep
        return MemoryPlan(keep, max(slots, keep), spilled)
    costliest = [_costliest(pool, stash, position, max(sizes)) for position in range(depth)]
    gradients = _gradients(pool, stash, sizes)

    def needs(length: int) -> int:
        count = max(slots, min(length + 1, depth))
        streamed, tail = costliest[: depth - length], costliest[depth - length :]
        # gradients of values are counted at once, as the most that wait at any time
        moments = (
            *streamed_moments(streamed, [_NONE] * len(streamed), len(sizes)),
            *tail_moments(tail, [_NONE] * length, 0),
        )
        return count * bank.slot_bytes + stash.needs_bytes(sizes, spilled) + max(moments) + gradients

    least = needs(1)
    if budget == "auto":
        budget = max(least, int(_SHARE * (free_bytes() // config.sharers)))
    if least > budget:
        raise SettingError(
            f"a device budget of {budget:,} bytes is too small for these layers and micro-batches; "
            f"the least is {least:,}" + ("" if config.stash == "host" else ", or less with relay.stash=host")
        )
    length = max(length for length in range(1, depth + 1) if needs(length) <= budget)
    return MemoryPlan(length, max(slots, min(length + 1, depth)), spilled)


_NONE = ValueGradients(True, 0, 0, 0, 0)


def _costliest(pool: LayerPool, stash: Stash, position: int, samples: int) -> LayerNeeds:
    """The most of each that a micro-batch of any candidate of a position needs."""
    layers = [layer for layer in pool.layers if layer.position == position and not layer.candidate.is_skip]
    every = [layer_needs(pool, layer, stash.inputs_of(layer), samples, dtype=stash.dtype) for layer in layers]

    def most(name: str) -> int:
        return max((getattr(one, name) for one in every), default=0)

    return LayerNeeds(most("kept"), most("alive"), most("forward_peak"), most("peak"), Work(), Work())


def _gradients(pool: LayerPool, stash: Stash, sizes: tuple[int, ...]) -> int:
    """Bytes of the gradients of values that wait at a time: in a chain those of what a layer takes and gives."""
    most = 2 * max(stash.size_bytes(name, sizes) for name in stash.places)
    if pool.wiring.is_chain:
        return most
    last = pool.wiring.flow(range(len(pool.positions))).last_reads()
    for place, writes in enumerate(pool.wiring.writes):
        before = [name for names in pool.wiring.writes[:place] for name in names if last.get(name, place) >= place]
        most = max(most, sum(stash.size_bytes(name, sizes) for name in (*before, *writes)))
    return most
