"""What failed trials have in common: the candidates that a search should leave out.

A reason that names a candidate is the best evidence. Where none does, such as a NaN or a lack of memory, the suspects
are those candidates that failed trials chose and no trial that was scored did: the fewest that explain all failures,
as far as a greedy choice finds them. While no trial was scored, every candidate is one that none was scored with: then
the suspects are those alone that failed trials have more often than random architectures do, as a setting may be what
fails.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from l2l_nas.errors import SpaceError
from l2l_nas.nas.objectives import State, TrialRecord

_LEAST = 2  # failed trials that a suspect must explain, unless a reason names it
_MOST = 4  # suspects
_CHANCE = 0.01  # at which a candidate that so many failed trials have is one that they have by chance


@dataclass(frozen=True)
class Suspect:
    """A candidate that may be what fails.

    Args:
        pattern: as `search.retire` takes it: "layer_1/bad", or "*/bad" for one of this name at any position.
        failed: how many failed trials chose it.
    """

    pattern: str
    failed: int


def suspects(records: Iterable[TrialRecord], positions: Sequence[tuple[str, Sequence[str]]]) -> tuple[Suspect, ...]:
    """Candidates that may be what fails, the one with most failed trials first.

    Args:
        records: of a study; those whose candidates are gone tell nothing.
        positions: of the pool: name, and the names of its candidates.
    """
    known = [record for record in records if record.in_space and not record.cached]
    choices = {name for name, candidates in positions if len(candidates) > 1}
    names = [name for name, _ in positions]
    blamed: dict[int, str] = {}
    chosen: dict[int, set[str]] = {}
    scored: set[str] = set()
    for record in known:
        pairs = [pair for pair in zip(names, record.architecture.choices, strict=True) if pair[0] in choices]
        patterns = {pattern for position, name in pairs for pattern in (f"{position}/{name}", f"*/{name}")}
        if record.state is State.FAILED:
            chosen[record.number] = patterns
            named = [f"{p}/{c}" for p, c in pairs if record.reason.startswith(SpaceError.place(p, c))]
            blamed.update(dict.fromkeys([record.number] * len(named), "".join(named)))
        elif record.state in (State.COMPLETE, State.STOPPED):
            scored |= patterns
    offered = Counter(name for _, candidates in positions for name in candidates)
    found = _named(blamed, everywhere={name for name in offered if offered[name] > 1 and f"*/{name}" not in scored})
    covered = {number for number, patterns in chosen.items() if patterns & found.keys()}
    left = {number: patterns - scored for number, patterns in chosen.items() if number not in covered}
    if not scored:
        telling = _beyond_chance(left.values(), positions)
        left = {number: patterns & telling for number, patterns in left.items()}
    found = {**found, **_greedy(left)}
    counted = [Suspect(one, sum(one in patterns for patterns in chosen.values())) for one in found]
    return tuple(sorted(counted, key=lambda suspect: -suspect.failed)[:_MOST])


def _named(blamed: Mapping[int, str], *, everywhere: Collection[str]) -> dict[str, None]:
    """What reasons name; one name at several positions is one candidate.

    Args:
        everywhere: names that were scored at no position of several that offer them.
    """
    cells: dict[str, dict[str, None]] = {}
    for cell in blamed.values():
        cells.setdefault(cell.rpartition("/")[2], {})[cell] = None
    return {
        f"*/{name}" if len(found) > 1 or name in everywhere else next(iter(found)): None
        for name, found in cells.items()
    }


def _beyond_chance(failed: Collection[set[str]], positions: Sequence[tuple[str, Sequence[str]]]) -> set[str]:
    """Patterns that more of these trials have than random architectures would, but for a chance of one in a hundred."""
    from scipy.special import bdtrc  # scipy takes half a second, and few searches need it

    missing: dict[str, float] = {}  # the chance that a random architecture lacks it
    for position, candidates in positions:
        for name in candidates if len(candidates) > 1 else ():
            for pattern in (f"{position}/{name}", f"*/{name}"):
                missing[pattern] = missing.get(pattern, 1.0) * (1 - 1 / len(candidates))
    counts = Counter(pattern for patterns in failed for pattern in patterns)
    return {
        pattern for pattern, count in counts.items() if bdtrc(count - 1, len(failed), 1 - missing[pattern]) <= _CHANCE
    }


def _greedy(left: dict[int, set[str]]) -> dict[str, None]:
    """The fewest patterns, about, of which each of these sets has one."""
    found: dict[str, None] = {}
    while left:
        counts: dict[str, int] = {}
        for patterns in left.values():
            for pattern in patterns:
                counts[pattern] = counts.get(pattern, 0) + 1
        best = max(sorted(counts), key=lambda one: (counts[one], not one.startswith("*/")), default="")
        if counts.get(best, 0) < _LEAST:
            break
        found[best] = None
        left = {number: patterns for number, patterns in left.items() if best not in patterns}
    return found


def in_words(found: Sequence[Suspect]) -> str:
    """In words, with the failed trials that chose each: "layer_1/bad: 9, */huge: 2"."""
    return ", ".join(f"{one.pattern}: {one.failed}" for one in found)


def to_retire(patterns: Iterable[str]) -> str:
    """The setting that leaves these candidates out, as a shell takes it."""
    return shlex.quote(f"search.retire=[{','.join(patterns)}]")
