"""Residency: what of a path stays on the device, within a budget in bytes.

Three things can stay. The *tail* (see [Note: the tail]) spares a second load and the recompute of its layers, and costs
a slot and the activations of one micro-batch for each. A value in the *stash* spares two copies over the link.
The tail comes first: it saves a quarter of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_count, shown
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SettingError, SpaceError, what_raised
from l2l_nas.relay.slots import SlotBank, mixed_dtypes
from l2l_nas.relay.stash import Stash
from l2l_nas.space.build import named_tensors
from l2l_nas.space.candidate import Specs
from l2l_nas.space.contents import storage_of
from l2l_nas.space.pool import Layer, LayerPool, PerPool
from l2l_nas.space.probe import example
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.shapes import runs_on
from l2l_nas.space.values import as_tuple, learns

Budget = int | Literal["all", "auto"] | None
_SHARE = 0.5  # of the free memory, for "auto": other processes want some, and what a layer needs is an estimate
STASHES = ("device", "host", "auto")
# what layers of a kind keep for their backward, by what they take and how many samples
_SAVED: PerPool[dict[object, int]] = PerPool()


def check_budget(name: str, value: object) -> None:
    """Refuse what is no `Budget`.

    Raises:
        SettingError: it is not.
    """
    if isinstance(value, str) and value not in ("all", "auto"):
        raise SettingError(f"{name} takes bytes, all, auto or None, got {shown(value)}")
    if value is not None and not isinstance(value, str):
        check_count(name, value)


@dataclass(frozen=True)
class Residency:
    """What stays on the device.

    Args:
        keep: length of the tail.
        slots: how many there must be.
        spilled: values that wait on the host.
    """

    keep: int
    slots: int
    spilled: frozenset[str]


@dataclass
class Wanted:
    """What is asked for.

    Args:
        slots: the least number of slots.
        keep: the length of the tail where there is no budget.
        where: "device", "host", or "auto": on the device as far as the budget goes.
        budget: bytes of slots, stash, and the tail's activations; "all" for everything; "auto" for what half of the
            free memory holds, with no complaint; None for just what is asked.
        free_bytes: of the device.

    Raises:
        SettingError: a stash that fills no budget.
    """

    slots: int
    keep: int
    where: str
    budget: Budget
    free_bytes: Callable[[], int]

    def __post_init__(self) -> None:
        if self.where == "auto" and self.budget is None:
            raise SettingError("stash=auto fills a device budget; set device_budget, or stash=device or host")


def decide(pool: LayerPool, bank: SlotBank, stash: Stash, sizes: tuple[int, ...], wanted: Wanted) -> Residency:
    """What stays, for micro-batches of certain sizes: as much as the budget allows.

    Raises:
        SettingError: the budget is less than the least that is needed.
    """
    slots, keep, where, budget = wanted.slots, wanted.keep, wanted.where, wanted.budget
    depth = len(pool.positions)
    later = frozenset(stash.spillable)
    if budget == "all":
        return Residency(depth, max(slots, depth), frozenset() if where != "host" else later)
    spilled = later if where != "device" else frozenset()
    if budget is None:
        return Residency(keep, max(slots, keep), spilled)
    costs = [_costs(pool, stash, position, max(sizes)) for position in range(depth)]
    gradients = _gradients(pool, stash, sizes)

    def needs(length: int, away: frozenset[str]) -> int:
        count = max(slots, min(length + 1, depth))
        # the tail's activations, or those of the one layer before it that is run again
        held = max(sum(costs[-length:]), *costs) + gradients
        return count * bank.slot_bytes + stash.needs_bytes(sizes, away) + held

    least = needs(1, spilled)
    if budget == "auto":
        budget = max(least, int(_SHARE * wanted.free_bytes()))
    if least > budget:
        raise SettingError(
            f"a device budget of {budget:,} bytes is too small for these layers and micro-batches; "
            f"the least is {least:,}" + ("" if where == "host" else ", or less with relay.stash=host")
        )
    length = max(length for length in range(1, depth + 1) if needs(length, spilled) <= budget)
    if where == "auto":
        # with n positions, no path has a layer beyond n - length in front of its tail: nothing may be left to spill
        behind = later.intersection(name for names in pool.wiring.writes[depth - length :] for name in names)
        for name in reversed(stash.spillable):
            if name not in behind and needs(length, spilled - {name}) <= budget:
                spilled -= {name}
        if spilled <= behind and needs(length, frozenset()) <= needs(length, spilled):
            spilled = frozenset()
    return Residency(length, max(slots, min(length + 1, depth)), spilled)


def _costs(pool: LayerPool, stash: Stash, position: int, samples: int) -> int:
    """Bytes that the costliest candidate of a position keeps for its backward, for one micro-batch.

    Each kind of layer runs once for each size; what it keeps is remembered for as long as the pool lives.
    """
    known = _SAVED.setdefault(pool, {})
    layers = [layer for layer in pool.layers if layer.position == position and not layer.candidate.is_skip]
    takes = tuple(spec for name in pool.wiring.reads[position] for spec in stash.specs[name])
    for layer in layers:
        key = layer.candidate.kind, takes, samples, stash.dtype
        if key not in known:
            known[key] = saved_bytes(pool, layer, takes, samples, stash.dtype)
    return max((known[layer.candidate.kind, takes, samples, stash.dtype] for layer in layers), default=0)


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


def module_in(pool: LayerPool, layer: Layer, device: str, dtype: torch.dtype) -> nn.Module:
    """A new module of a layer whose tensors have the types that they have in a slot of this precision."""
    module = pool.build_module(layer, device=device)
    layout = layout_of(pool, layer.key)
    fixed = {entry.name for entry in (*layout.parameters, *layout.buffers) if entry.is_fixed}
    for name, tensor in named_tensors(module):
        if tensor.dtype == torch.float32 and name not in fixed:
            tensor.data = tensor.data.to(dtype)
    return module


@torch.enable_grad()
def saved_bytes(pool: LayerPool, layer: Layer, inputs: Specs, samples: int, dtype: torch.dtype = torch.float32) -> int:
    """Bytes that autograd keeps of one forward of a layer, weights not counted; found on meta tensors if they tell."""
    device = runs_on(pool, layer)
    leaves = [t.requires_grad_() if learns(t) else t for t in example(inputs, device, samples)]
    module = module_in(pool, layer, device, dtype).train()
    weights = {storage_of(p) for p in module.parameters()}
    held: dict[int, torch.UntypedStorage] = {}

    def note(tensor: Tensor) -> Tensor:
        if storage_of(tensor) not in weights:
            held[storage_of(tensor)] = tensor.untyped_storage()
        return tensor

    with preserved_generators(device), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        try:
            outputs = as_tuple(module(*leaves))
        except RuntimeError as error:
            if advice := mixed_dtypes(layout_of(pool, layer.key), dtype, error):
                raise SpaceError(
                    f"its layer {what_raised(error)}{advice}",
                    position=pool.positions[layer.position].name,
                    candidate=layer.candidate.name,
                ) from None
            raise
    for tensor in outputs:
        note(tensor)
    return sum(storage.nbytes() for storage in held.values())
