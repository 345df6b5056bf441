"""What a page must know of a pool, as plain data: an event of a run holds it, so that a page needs no user's code.

A pool holds factories, which only the user's own files can give back; those are never imported from a run's folder.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from l2l_nas.eps.layout import layout_of
from l2l_nas.report.styles import GREY_HUE
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Candidate, Position, Specs, skip
from l2l_nas.space.pool import LayerPool, tied_key
from l2l_nas.space.shapes import Shapes
from l2l_nas.space.values import Wiring

_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class PositionCard:
    """A position."""

    name: str  # of the position
    candidates: tuple[str, ...]  # names of all it offers
    skips: tuple[str, ...]  # those of them that are the identity
    output: str  # its shape without the batch, such as 16x8x8
    # values, where the space is no chain: see l2l_nas.space.values
    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Weights:
    """The weights of an architecture at one position."""

    count: int  # first used there; those used before are not counted again
    note: str  # such as "2,320", "as layer_01", "80 + tied"; empty for a skip


@dataclass(frozen=True)
class SpaceSummary:
    """A pool without its factories."""

    positions: tuple[PositionCard, ...]  # in order
    source: str  # the shape of the input
    shared: bool  # whether layers are known by candidate name alone
    ties: Mapping[str, tuple[str, ...]]  # groups of tied parameters, by layer key
    sizes: Mapping[str, int]  # number of weights, by state key
    # where the space is no chain: by input, how many tensors it is, and the values that it gives out
    inputs: Mapping[str, int] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()

    @cached_property
    def wiring(self) -> Wiring | None:
        """Which values positions read and write; None in a chain, where each reads what the one before it wrote."""
        if not self.outputs:
            return None
        positions = [
            Position(
                card.name,
                [skip(name) if name in card.skips else Candidate(name, nn.Identity) for name in card.candidates],
                reads=card.reads,
                writes=card.writes,
            )
            for card in self.positions
        ]
        return Wiring(positions, self.inputs, self.outputs)

    def reads(self, architecture: Architecture) -> dict[int, tuple[str, ...]]:
        """By position whose layer is part of the network, the values that it takes; none are named in a chain."""
        chosen = [
            index
            for index, (position, name) in enumerate(zip(self.positions, architecture.choices, strict=True))
            if name not in position.skips
        ]
        if self.wiring is None:
            return dict.fromkeys(chosen, ())
        live = self.wiring.live(chosen)
        return dict(zip(live, self.wiring.flow(live).reads, strict=True))

    @property
    def size(self) -> int:
        """How many architectures there are, before canonical form."""
        return math.prod(len(position.candidates) for position in self.positions)

    @cached_property
    def hue_numbers(self) -> dict[str, int]:
        """The number of each candidate's colour, see `styles.hue_class`; names that are nowhere a choice are grey.

        After seven names the colours come again, as numbers above that of grey; after fourteen, these too.
        """
        named = {name for p in self.positions for name in p.candidates if len(p.candidates) > 1 and name not in p.skips}
        names = dict.fromkeys(name for p in self.positions for name in p.candidates)
        chosen, grey = [name for name in names if name in named], GREY_HUE
        numbers = {name: index if index < grey else grey + 1 + index % grey for index, name in enumerate(chosen)}
        return {name: numbers.get(name, grey) for name in names}

    def states(self, position: str, candidate: str) -> tuple[str, ...]:
        """Keys of the states of a layer: its own, then the tied ones."""
        key = f"{'shared' if self.shared else position}/{candidate}"
        return (key, *map(tied_key, self.ties.get(key, ())))

    def weights(self, architecture: Architecture) -> tuple[Weights, ...]:
        """What each position adds; a layer or tied parameter that came before is named, not counted."""
        home: dict[str, str] = {}
        found, live = [], self.reads(architecture)
        for index, (position, name) in enumerate(zip(self.positions, architecture.choices, strict=True)):
            if index not in live:
                found.append(Weights(0, ""))
                continue
            states = self.states(position.name, name)
            key = states[0]
            count = sum(self.sizes[state] for state in states if state not in home)
            tied = any(state in home for state in states)
            note = f"as {home[key]}" if key in home else f"{count:,} + tied" if tied else f"{count:,}"
            found.append(Weights(count, note))
            for state in states:
                home.setdefault(state, position.name)
        return tuple(found)

    def num_parameters(self, architecture: Architecture) -> int:
        """Weights of an architecture, as `l2l_nas.cost.closed_form.num_parameters` counts them."""
        return sum(weights.count for weights in self.weights(architecture))

    def offers(self, architecture: Architecture) -> bool:
        """Whether it is one of this space's."""
        choices = architecture.choices
        return len(choices) == len(self.positions) and all(
            name in position.candidates for position, name in zip(self.positions, choices, strict=True)
        )

    def to_json(self) -> dict[str, Any]:
        """As an event has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SpaceSummary:
        """Read what `to_json` gave.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        positions = tuple(
            PositionCard(
                str(item["name"]),
                _names(item["candidates"]),
                _names(item["skips"]),
                str(item["output"]),
                None if item.get("reads") is None else _names(item["reads"]),
                _names(item.get("writes", ())),
            )
            for item in content["positions"]
        )
        if not positions or not all(position.candidates for position in positions):
            raise ValueError("a space without positions or candidates")
        ties = {str(key): _names(groups) for key, groups in content["ties"].items()}
        sizes = {str(key): int(count) for key, count in content["sizes"].items()}
        inputs = {str(name): int(count) for name, count in content.get("inputs", {}).items()}
        graph = (inputs, _names(content.get("outputs", ())))
        card = cls(positions, str(content["source"]), bool(content["shared"]), ties, sizes, *graph)
        _ = card.wiring  # raises where it is none
        layers = [(p.name, name) for p in positions for name in p.candidates if name not in p.skips]
        for state in {state for layer in layers for state in card.states(*layer)}:
            card.sizes[state]  # raises where one is missing
        return card


def space_summary(pool: LayerPool, shapes: Shapes) -> SpaceSummary:
    """The card of a pool.

    Args:
        pool: what is searched.
        shapes: of it, as `l2l_nas.space.shapes.check_shapes` gives them.
    """
    wiring = None if pool.wiring.is_chain else pool.wiring
    positions = tuple(
        PositionCard(
            position.name,
            tuple(candidate.name for candidate in position.candidates),
            tuple(candidate.name for candidate in position.candidates if candidate.is_skip),
            shape_text(shapes.gives[index]),
            None if wiring is None else wiring.reads[index],
            () if wiring is None else position.writes,
        )
        for index, position in enumerate(pool.positions)
    )
    ties = {
        layer.key: tuple(dict.fromkeys(layer.candidate.tied.values())) for layer in pool.layers if layer.candidate.tied
    }
    sizes = {state: layout_of(pool, state).num_parameters for state in pool.states}
    graph = () if wiring is None else (wiring.inputs, wiring.outputs)
    return SpaceSummary(positions, shape_text(pool.inputs), pool.shared, ties, sizes, *graph)


def shape_text(specs: Specs) -> str:
    """BoxSizes without the batch; other dtypes than float32 are named."""
    texts = []
    for spec in specs:
        dtype = str(spec.dtype).removeprefix("torch.")
        shape = _TIMES.join(map(str, spec.shape)) or "scalar"
        texts.append(shape if dtype == "float32" else f"{shape} {dtype}")
    return ", ".join(texts)


def _names(items: object) -> tuple[str, ...]:
    if not isinstance(items, list | tuple):
        raise TypeError(f"expected a list of names, got {type(items).__name__}")
    return tuple(str(item) for item in items)
