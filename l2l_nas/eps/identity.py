"""What a study and its weights know of their pool, so that another one is refused and one that has grown is not.

A pool is the same as long as its positions are. Candidates may come and go between two runs; one that keeps its name
must keep its layout, or its weights and the trials that it was part of would be another layer's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from l2l_nas.eps.layout import layout_of
from l2l_nas.space.pool import Layer, LayerPool

Space = Mapping[str, Any]


def space_of(pool: LayerPool) -> dict[str, Any]:
    """A pool as JSON: what may not change, the candidates by position, and a hash of the layout of each."""
    return {
        "shared": pool.shared,
        "inputs": [str(spec) for spec in pool.inputs],
        "candidates": {position.name: sorted(c.name for c in position.candidates) for position in pool.positions},
        "order": [position.name for position in pool.positions],
        "layouts": {layer.key: _layer_hash(pool, layer) for layer in pool.layers},
        **_values_of(pool),
    }


def fingerprint(pool: LayerPool) -> str:
    """A hash of names, order and shapes: pools of one fingerprint train alike."""
    content = {
        "shared": pool.shared,
        "inputs": [str(spec) for spec in pool.inputs],
        "positions": [
            [position.name, [[c.name, sorted(c.tied.items()), c.is_skip] for c in position.candidates]]
            for position in pool.positions
        ],
        "states": {key: layout_of(pool, key).describe() for key in sorted(pool.states)},
        **_values_of(pool),
    }
    weights = {layer.key: layer.candidate.weights.fingerprint for layer in pool.layers if layer.candidate.weights}
    return _hash({**content, "weights": weights} if weights else content)


def _values_of(pool: LayerPool) -> dict[str, object]:
    """What positions read, write and follow, as JSON; of a chain, the order of positions says what they read."""
    wiring = pool.wiring
    follows = {position.name: position.follows for position in pool.positions if position.follows is not None}
    content: dict[str, object] = {"follows": follows} if follows else {}
    if not wiring.is_chain:
        content["values"] = {
            "inputs": [[name, count] for name, count in wiring.inputs.items()],
            "reads": [list(names) for names in wiring.reads],
            "writes": [list(names) for names in wiring.writes],
            "outputs": list(wiring.outputs),
        }
    return content


def _layer_hash(pool: LayerPool, layer: Layer) -> str:
    """Of names, shapes, dtypes and first weights that exist; freezing a layer leaves it the same."""
    states = [] if layer.candidate.is_skip else list(layer.states)
    described = {key: [entry[:3] for entry in layout_of(pool, key).describe()] for key in states}
    content: list[object] = [sorted(layer.candidate.tied.items()), layer.candidate.is_skip, described]
    if layer.candidate.weights is not None:
        content.append(layer.candidate.weights.fingerprint)
    return _hash(content)


def _hash(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def difference(before: object, now: Space) -> str:
    """Why the pool that was saved as JSON and this one cannot share a study or weights; empty where they can."""
    if not _is_space(before):
        return "another space"
    assert isinstance(before, Mapping)
    if any(before.get(name) != now.get(name) for name in ("shared", "inputs", "order", "values", "follows")):
        return "another space"
    layouts = before.get("layouts", {})
    changed = [key for key, layout in now["layouts"].items() if layouts.get(key, layout) != layout]
    if changed:
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        return f"another layer by the name {changed[0]}{more}"
    return ""


def _is_space(content: object) -> bool:
    """Whether it is made as `space_of` makes one; versions before had no layouts."""
    if not isinstance(content, Mapping) or not isinstance(content.get("layouts", {}), Mapping):
        return False
    candidates = content.get("candidates", {})
    return isinstance(candidates, Mapping) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names) for names in candidates.values()
    )


def joined(before: Space, now: Space) -> dict[str, Any]:
    """The first pool, with the candidates of both and the layouts of all that ever were candidates."""
    names = before.get("candidates", {})
    candidates = {position: sorted({*names.get(position, ()), *new}) for position, new in now["candidates"].items()}
    return {**before, "candidates": candidates, "layouts": {**before.get("layouts", {}), **now["layouts"]}}
