"""Population evaluation: a prefix tree of paths, so that what architectures begin alike is computed once.

A pass goes from position to position; at each, every distinct layer is visited once, for all prefixes that go on with
it. So each is loaded once, and the activations that wait at a time are those of the prefixes alive there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from l2l_nas.space.pool import Layer

Path = Sequence[Layer]
Place = tuple[int, str]  # position and key of a layer


@dataclass(frozen=True)
class Group:
    """Paths to evaluate in one pass. Nodes of their prefix tree are numbered; 0 is the input.

    Args:
        layers: each distinct layer, by position: what is loaded, in this order.
        visits: for each of them, the nodes to start from and to arrive at.
        over: for each of them, the nodes that nobody needs after it.
        ends: for each path, the node that is its output.
    """

    layers: tuple[Layer, ...]
    visits: tuple[tuple[tuple[int, int], ...], ...]
    over: tuple[tuple[int, ...], ...]
    ends: tuple[int, ...]

    @property
    def num_visits(self) -> int:
        """How many layers are computed: nodes of the tree."""
        return sum(len(visits) for visits in self.visits)


def prefixes(paths: Sequence[Path]) -> Group:
    """The prefix tree of these paths."""
    nodes: dict[tuple[int, Place], int] = {}
    known: dict[Place, Layer] = {}
    steps: dict[Place, list[tuple[int, int]]] = {}
    ends = []
    for path in paths:
        node = 0
        for layer in path:
            where = (layer.position, layer.key)
            if (node, where) not in nodes:
                nodes[node, where] = len(nodes) + 1
                known[where] = layer
                steps.setdefault(where, []).append((node, nodes[node, where]))
            node = nodes[node, where]
        ends.append(node)
    order = sorted(known)
    last = dict.fromkeys((0, *nodes.values()), 0)
    for place, where in enumerate(order):
        for pair in steps[where]:
            last.update(dict.fromkeys(pair, place))
    over: list[list[int]] = [[] for _ in order]
    for node, place in last.items():
        over[place].append(node)
    return Group(
        tuple(known[where] for where in order),
        tuple(tuple(steps[where]) for where in order),
        tuple(map(tuple, over)),
        tuple(ends),
    )


def group(paths: Sequence[Path], *, most: int | None) -> list[list[int]]:
    """Cut a population into groups whose passes keep at most so many activations waiting.

    Paths that begin alike come together, so that little is computed twice.

    Args:
        most: prefixes alive at a time (a single path needs two); None for no limit.
    """
    if most is None:
        return [list(range(len(paths)))] if paths else []
    order = sorted(range(len(paths)), key=lambda index: [(layer.position, layer.key) for layer in paths[index]])
    groups: list[list[int]] = []
    for index in order:
        if groups and alive(prefixes([paths[i] for i in (*groups[-1], index)])) <= most:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def alive(tree: Group) -> int:
    """The most nodes whose activations wait at a time."""
    waiting, most = {0}, 1
    for visits, over in zip(tree.visits, tree.over, strict=True):
        waiting |= {child for _, child in visits}
        most = max(most, len(waiting))
        waiting -= set(over)
    return most
