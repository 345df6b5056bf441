from __future__ import annotations

import json
from functools import partial

from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.eps.identity import difference, joined, space_of
from l2l_nas.space.growth import frozen


def pool(*names, depth=2, width=4, inputs=4, shared=False):
    def layer(name):
        return skip(name) if name.startswith("skip") else Candidate(name, partial(nn.Linear, width, width))

    positions = [Position(f"p{i}", [layer(name) for name in names]) for i in range(depth)]
    return LayerPool(positions, inputs=TensorSpec((inputs,)), shared=shared)


def between(before, now):
    return difference(json.loads(json.dumps(space_of(before))), space_of(now))


def test_candidates_may_come_go_and_change_their_order():
    for now in (pool("a", "b"), pool("b", "a"), pool("a", "b", "c"), pool("a"), pool("c")):
        assert between(pool("a", "b"), now) == ""


def test_positions_inputs_and_sharing_may_not_change():
    for now in (pool("a", depth=3), pool("a", depth=1), pool("a", inputs=5), pool("a", shared=True)):
        assert between(pool("a"), now) == "another space"
    assert difference(None, space_of(pool("a"))) == "another space"


def test_a_name_stands_for_one_layout_for_ever():
    assert between(pool("a", depth=1), pool("a", depth=1, width=5)) == "another layer by the name p0/a"
    assert between(pool("a"), pool("a", width=5)) == "another layer by the name p0/a and 1 more"
    gone = joined(space_of(pool("a", "b")), space_of(pool("a")))
    assert difference(gone, space_of(pool("a", "b", width=5))) != ""
    later = joined(space_of(pool("a")), space_of(pool("a", "b")))
    assert difference(later, space_of(pool("b", width=5))) == "another layer by the name p0/b and 1 more"
    assert later["candidates"] == {"p0": ["a", "b"], "p1": ["a", "b"]}
    a_skip = LayerPool([Position("p0", [skip("a")])], inputs=TensorSpec((4,)))
    assert between(pool("a", depth=1), a_skip) == "another layer by the name p0/a"


def test_a_frozen_layer_is_the_same_layer():
    assert between(pool("a", "b"), frozen(pool("a", "b"), ["*/a"])[0]) == ""
