"""MemoryPlan: what of a path stays on the device, within a budget in bytes.

The *tail* (see [Note: the tail]) spares a second load and the recompute of its layers, and costs a slot and the
activations of one micro-batch for each. A value in the *stash* spares two copies over the link.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from l2l_nas.errors import SettingError
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.config import MemoryConfig
from l2l_nas.relay.measure import layer_needs
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
    costs = [_costs(pool, stash, position, max(sizes)) for position in range(depth)]
    gradients = _gradients(pool, stash, sizes)

    def needs(length: int) -> int:
        count = max(slots, min(length + 1, depth))
        # the tail's activations, or those of the one layer before it that is run again
        held = max(sum(costs[-length:]), *costs) + gradients
        return count * bank.slot_bytes + stash.needs_bytes(sizes, spilled) + held

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


def _costs(pool: LayerPool, stash: Stash, position: int, samples: int) -> int:
    """Bytes that the costliest candidate of a position keeps for its backward, for one micro-batch."""
    layers = [layer for layer in pool.layers if layer.position == position and not layer.candidate.is_skip]
    needs = [layer_needs(pool, layer, stash.inputs_of(layer), samples, dtype=stash.dtype) for layer in layers]
    return max((one.kept for one in needs), default=0)


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
