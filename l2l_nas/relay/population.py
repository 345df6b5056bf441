"""Population evaluation: a tree of paths, so that what architectures begin alike is computed once.

A pass goes from position to position; at each, every distinct layer is visited once, for all that goes on with it: for
each set of values that it reads. So each is loaded once, and the values that wait at a time are those that are
read. In a chain this is the prefix tree of the paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from l2l_nas.space.pool import Layer, LayerPool

Path = Sequence[Layer]
Place = tuple[int, str]  # position and key of a layer
Names = tuple[str, ...]


@dataclass(frozen=True)
class PopulationPass:
    """Paths to evaluate in one pass. Values that differ have names that differ."""

    layers: tuple[Layer, ...]  # each distinct layer, by position: what is loaded, in this order
    visits: tuple[tuple[tuple[Names, Names], ...], ...]  # for each of them, the values to start from and to arrive at
    over: tuple[Names, ...]  # for each of them, the values that nobody needs after it
    ends: tuple[Names, ...]  # for each path, the values that are its outputs


def prefixes(pool: LayerPool, paths: Sequence[Path]) -> PopulationPass:
    """The tree of these paths."""
    made: dict[tuple[Place, Names], Names] = {}  # what a layer makes of these values
    known: dict[Place, Layer] = {}
    steps: dict[Place, list[tuple[Names, Names]]] = {}
    ends = []
    for path in paths:
        flow = pool.flow(path)
        values = {name: name for name in pool.sources}
        for layer, reads, writes in zip(path, flow.reads, flow.writes, strict=True):
            where = (layer.position, layer.key)
            taken = tuple(values[name] for name in reads)
            if (where, taken) not in made:
                made[where, taken] = tuple(f"{len(made) + 1}:{name}" for name in writes)
                known[where] = layer
                steps.setdefault(where, []).append((taken, made[where, taken]))
            values.update(zip(writes, made[where, taken], strict=True))
        ends.append(tuple(values[name] for name in flow.outputs))
    order = sorted(known)
    last = {
        name: place for place, where in enumerate(order) for taken, given in steps[where] for name in (*taken, *given)
    }
    over: list[list[str]] = [[] for _ in order]
    for name, place in last.items():
        over[place].append(name)
    return PopulationPass(
        tuple(known[where] for where in order),
        tuple(tuple(steps[where]) for where in order),
        tuple(map(tuple, over)),
        tuple(ends),
    )


def group(pool: LayerPool, paths: Sequence[Path], *, most: int | None) -> list[list[int]]:
    """Cut a population into groups whose passes keep at most so many values waiting; None for no limit.

    Paths that begin alike come together, so that little is computed twice.
    """
    if most is None:
        return [list(range(len(paths)))] if paths else []
    order = sorted(range(len(paths)), key=lambda index: [(layer.position, layer.key) for layer in paths[index]])
    groups: list[list[int]] = []
    for index in order:
        if groups and alive(prefixes(pool, [paths[i] for i in (*groups[-1], index)])) <= most:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def alive(tree: PopulationPass) -> int:
    """The most values that wait at a time."""
    waiting = {name for visits in tree.visits for taken, _ in visits for name in taken if ":" not in name}
    most = len(waiting)
    for visits, over in zip(tree.visits, tree.over, strict=True):
        waiting.update(name for _, given in visits for name in given)
        most = max(most, len(waiting))
        waiting -= set(over)
    return most
