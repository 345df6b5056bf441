"""An architecture as boxes, one for each position, in order; where it is no chain, each says what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from l2l_nas.report.card import SpaceSummary
from l2l_nas.space.architecture import Architecture

_FOLDED = 48  # positions of which equal neighbours are one box


@dataclass(frozen=True)
class Box:
    """A position, or several equal ones."""

    names: str  # of its positions
    choice: str  # the candidate
    note: str  # its number of weights, or where weights used before come from; empty for a skip
    output: str  # its shape without the batch
    others: tuple[str, ...]  # the candidates that were not chosen
    is_skip: bool  # whether the position is left out of the network
    differs: bool  # whether another network, to which it is compared, chose otherwise
    times: int  # how many positions it stands for
    reads: tuple[str, ...] = ()  # the values that it takes, where the space is no chain
    follows: bool = True  # whether it takes something that the position before it writes, or the input if it is first
    writes: tuple[str, ...] = ()  # the values that it gives out, where the space is no chain
    hue: int = 0  # number of its candidate's colour

    @property
    def title(self) -> str:
        """Its positions, and what it reads where that has to be said."""
        return f"{self.names} \N{LEFTWARDS ARROW} {', '.join(self.reads)}" if self.reads else self.names

    @property
    def tip(self) -> str:
        """What it says when one points at it."""
        lines = [f"{self.names}: {self.choice}"]
        if self.is_skip:
            lines.append("left out")
        else:
            unit = "" if self.note.startswith("as ") else " parameters"
            lines.append(f"{self.note}{unit}, output {self.output}")
        if self.reads:
            lines.append(f"reads {', '.join(self.reads)}")
        if self.others:
            lines.append(f"not chosen: {', '.join(self.others)}")
        if self.differs:
            lines.append("differs from the first")
        return "\n".join(lines)


def boxes_of(card: SpaceSummary, architecture: Architecture, *, first: Architecture | None = None) -> tuple[Box, ...]:
    """The boxes of an architecture, in order; equal neighbours of one of more than 48 positions are one box.

    Args:
        card: the space.
        architecture: one of its.
        first: what to compare with; None for nothing.
    """
    weights, reads, hues = card.weights(architecture), card.reads(architecture), card.hue_numbers
    singles = tuple(
        Box(
            position.name,
            name,
            weight.note,
            position.output,
            tuple(other for other in position.candidates if other != name),
            index not in reads,
            first is not None and name != first.choices[index],
            1,
            tuple(name or "input" for name in reads.get(index, ())),
            _follows(card, index),
            position.writes,
            hues[name],
        )
        for index, (position, name, weight) in enumerate(
            zip(card.positions, architecture.choices, weights, strict=True)
        )
    )
    if len(singles) <= _FOLDED:
        return singles
    counts = {position.name: weight.count for position, weight in zip(card.positions, weights, strict=True)}
    return tuple(_fold(list(group), counts) for _, group in groupby(singles, key=_alike))


def _alike(box: Box) -> tuple[object, ...]:
    return box.choice, box.output, box.reads, box.is_skip


def _follows(card: SpaceSummary, index: int) -> bool:
    if card.wiring is None:
        return True
    before = card.positions[index - 1].writes if index else tuple(card.inputs)
    return any(name in before for name in card.wiring.reads[index])


def _fold(group: list[Box], counts: Mapping[str, int]) -> Box:
    if len(group) == 1:
        return group[0]
    head, tail = group[0], group[-1]
    return replace(
        head,
        names=f"{head.names} to {tail.names}",
        note="" if head.is_skip else f"{sum(counts[box.names] for box in group):,}",
        differs=any(box.differs for box in group),
        times=len(group),
        writes=tail.writes,
    )
