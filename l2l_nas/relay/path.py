"""What a plan needs to know of a path: its layers, what learns, where the tail begins, what waits on the host."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

RING = 3  # frames for the spilled values of a chain: one is read, one is written, one is on its way

Name = int | str  # of a layer, state or value; see `numbered`


class PathLayer(NamedTuple):
    """What a plan needs to know of a layer."""

    key: Name  # a repeated layer has one key at all its places
    trainable: tuple[Name, ...] = ()  # states that have trainable parameters; tied ones appear in several layers
    has_buffers: bool = False  # whether a forward in training may change buffers
    reads: tuple[Name, ...] = ()  # values; the last layer reads what the loss takes from layers before it, too
    writes: tuple[Name, ...] = ()


@dataclass(frozen=True)
class Spill:
    """Values that wait on the host, and how many frames there are on the device for them."""

    values: frozenset[Name] = frozenset()
    frames: int = RING


NOTHING_SPILLED = Spill()


@dataclass(frozen=True)
class NumberedPath:
    """A path with numbers for names: a plan depends on what is the same, not on what it is called.

    So paths of different layers have one plan, which is made once.
    """

    layers: tuple[PathLayer, ...]
    upcoming: PathLayer | None  # the first layer of the next path, if it is known
    states: tuple[str, ...]  # by number; layers' keys are among them
    values: tuple[str, ...]
    trainable: tuple[Name, ...]  # states that have trainable parameters, those of the next layer included
    learning: frozenset[str]  # names of the values whose gradients are of use

    def state(self, number: Name) -> str:
        return self.states[int(number)]

    def value(self, number: Name) -> str:
        return self.values[int(number)]

    def numbers_of(self, values: frozenset[str]) -> frozenset[Name]:
        return frozenset(number for number, name in enumerate(self.values) if name in values) if values else frozenset()

    def slot_keys(self, held: Sequence[str | None]) -> tuple[Name | None, ...]:
        """What slots hold, by number; -1 for what is not of this path."""
        return tuple(None if k is None else self.states.index(k) if k in self.states else -1 for k in held)


def numbered(path: Sequence[PathLayer], upcoming: PathLayer | None = None) -> NumberedPath:
    """The same path with numbers, in the order in which names first occur."""
    states: dict[Name, Name] = {}
    values: dict[Name, Name] = {}

    def numbers(names: Iterable[Name], known: dict[Name, Name]) -> tuple[Name, ...]:
        return tuple(known.setdefault(name, len(known)) for name in names)

    layers = [
        PathLayer(
            numbers([layer.key], states)[0],
            numbers(layer.trainable, states),
            layer.has_buffers,
            numbers(layer.reads, values),
            numbers(layer.writes, values),
        )
        for layer in (*path, *([upcoming] if upcoming else []))
    ]
    return NumberedPath(
        tuple(layers[: len(path)]),
        layers[-1] if upcoming else None,
        tuple(map(str, states)),
        tuple(map(str, values)),
        tuple(dict.fromkeys(state for layer in layers for state in layer.trainable)),
        frozenset(
            str(name) for layer, learns in zip(path, learns_from(path), strict=True) if learns for name in layer.writes
        ),
    )


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
