"""What a plan needs to know of a path: its layers, what learns, where the tail begins, what waits on the host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

RING = 3  # frames for the spilled values of a chain: one is read, one is written, one is on its way

Name = str  # of a layer, state or value


class PathLayer(NamedTuple):
    """What a plan needs to know of a layer.

    Args:
        key: the layer's name; a repeated layer has one key at all its places.
        trainable: keys of its states that have trainable parameters; tied states appear in several layers.
        has_buffers: whether a forward in training may change buffers.
        reads: values that it takes; the last layer of a path reads what the loss takes from layers before it, too.
        writes: values that it gives.
    """

    key: Name
    trainable: tuple[Name, ...] = ()
    has_buffers: bool = False
    reads: tuple[Name, ...] = ()
    writes: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Spill:
    """What waits on the host.

    Args:
        values: their names.
        frames: how many there are on the device for them.
    """

    values: frozenset[Name] = frozenset()
    frames: int = RING


NOTHING_SPILLED = Spill()


def learns_from(path: Sequence[PathLayer]) -> list[bool]:
    """By layer, whether a gradient of what it writes is of use: it learns, or one that it reads from does."""
    values: set[Name] = set()
    found = []
    for layer in path:
        found.append(bool(layer.trainable) or not values.isdisjoint(layer.reads))
        if found[-1]:
            values.update(layer.writes)
    return found


def taken_by(path: Sequence[PathLayer], first: int) -> tuple[Name, ...]:
    """Values that the layers from `first` on take from those before them."""
    own = {name for layer in path[first:] for name in layer.writes}
    return tuple(dict.fromkeys(name for layer in path[first:] for name in layer.reads if name not in own))


def last_to_learn(path: Sequence[PathLayer]) -> tuple[Name, ...]:
    """States of the layer whose gradient comes last: no update of them can run ahead of a check of all gradients."""
    return next((layer.trainable for layer in path if layer.trainable), ())


def tail_start(path: Sequence[PathLayer], *, slots: int, keep: int, spill: Spill = NOTHING_SPILLED) -> int:
    """Index of the first layer of the tail.

    Each of its layers needs a slot (a repeated one is in one slot), and each spilled value that it takes a frame.
    """
    first = len(path)
    keys: set[Name] = set()
    written: set[Name] = set()
    taken: set[Name] = set()  # spilled values that the tail reads and does not write
    for layer in reversed(path):
        keys.add(layer.key)
        written.update(layer.writes)
        taken.difference_update(layer.writes)
        taken.update(name for name in layer.reads if name in spill.values and name not in written)
        is_enough = len(path) - first >= keep or len(keys) > slots or len(taken) >= spill.frames
        if is_enough and first < len(path):
            break
        first -= 1
    return first
