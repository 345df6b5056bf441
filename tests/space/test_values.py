"""What positions read and write, and what a pool refuses of it."""

from __future__ import annotations

import gc
import itertools
import weakref

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, UniformPaths, skip
from l2l_nas.eps.identity import difference, fingerprint, space_of
from l2l_nas.errors import SpaceError
from l2l_nas.space.growth import frozen, retired
from l2l_nas.space.shapes import check_shapes
from tests.toys import Joined, Sum, cell_pool, decoder_pool, dense_pool, unet_pool

SPEC = TensorSpec((4,))


def linear(name="linear"):
    return Candidate(name, lambda: nn.Linear(4, 4))


def pool(*positions, **options):
    return LayerPool(positions, **{"inputs": SPEC, **options})


def flow(found, *choices):
    return found.flow(found.path(found.architecture(choices)))


def test_by_default_a_position_reads_what_the_one_before_it_wrote():
    found = pool(Position("a", linear()), Position("b", [linear(), skip()]), Position("c", linear()))
    assert found.wiring.is_chain
    assert flow(found, "linear", "linear", "linear").reads == (("",), ("a",), ("b",))
    assert flow(found, "linear", "skip", "linear").reads == (("",), ("a",))


def test_a_skip_hands_on_what_it_reads_under_the_name_that_it_had():
    found = unet_pool()
    names = ["dense", "skip", "dense", "skip", "skip", "joined", "joined", "linear"]
    assert flow(found, *names).reads == (("",), ("down0",), ("down2", "down0"), ("up1", "down0"), ("up0",))


def test_layers_that_reach_no_output_are_left_out():
    # where the way up is skipped, nobody reads what the way down wrote
    found = pool(
        Position("a", linear()),
        Position("b", linear()),
        Position("c", [Candidate("both", Sum), skip()], reads=("a", "b")),
        Position("d", linear()),
    )
    assert found.wiring.may_drop
    assert not found.is_separable
    for name, keys in {"both": ["a", "b", "c", "d"], "skip": ["a", "d"]}.items():
        path = found.path(found.architecture(["linear", "linear", name, "linear"]))
        assert [layer.key.split("/")[0] for layer in path] == keys
    assert not cell_pool().wiring.may_drop


def test_a_skip_that_drops_what_others_read_leaves_no_layer_out():
    """As blocks of a converted model, which take masks beside the stream."""
    found = pool(
        Position("a", linear(), writes=("x", "mask")),
        *(Position(f"b{n}", [Candidate("both", Sum), skip()], reads=("x" if not n else "y0", "mask"), writes=(f"y{n}",))
          for n in range(2)),
        Position("c", linear(), reads=("y1",)),
    )  # fmt: skip
    assert not found.wiring.may_drop
    assert found.is_separable
    for names in itertools.product(("both", "skip"), repeat=2):
        path = found.path(found.architecture(["linear", *names, "linear"]))
        assert len(path) == 2 + names.count("both")
    alone = pool(Position("a", linear(), writes=("x",)), Position("m", linear(), reads=("x",), writes=("mask",)),
                 Position("b", [Candidate("both", Sum), skip()], reads=("x", "mask"), writes=("y",)))  # fmt: skip
    assert alone.wiring.may_drop


def test_several_values_are_one_tensor_each():
    shapes = check_shapes(decoder_pool())
    assert [len(shapes.values[name]) for name in ("stream", "memory", "mask")] == [1, 1, 1]
    assert [spec.dtype for spec in shapes.takes[2]] == [torch.float32, torch.float32, torch.bool]
    with pytest.raises(SpaceError, match="writes x, y, but its layers give 1 tensors"):
        check_shapes(
            pool(Position("a", linear(), writes=("x", "y")), Position("b", linear(), reads="x"), outputs=("b", "y"))
        )


@pytest.mark.parametrize(
    ("positions", "options", "says"),
    [
        ([Position("a", linear(), reads="b"), Position("b", linear())], {}, "'a': reads 'b', which nothing"),
        ([Position("a", linear()), Position("b", linear(), writes="a")], {}, "writes 'a', which is written before"),
        ([Position("a", linear()), Position("b", linear(), reads="x")], {"inputs": {"x": SPEC}}, "'a': nothing"),
        ([Position("a", linear(), reads="x")], {"inputs": {"x": SPEC, "mask": SPEC}}, "nothing reads the input 'mask'"),
        ([Position("a", linear())], {"outputs": "b"}, "outputs names 'b', which nothing writes"),
        ([Position("a", [linear(), skip()], writes=("x", "y"))], {"outputs": "x"}, "a skip passes on what it reads"),
        ([Position("a", linear(), writes="a value")], {}, "writes: the name 'a value' may hold only letters"),
        ([Position("a", linear("x")), Position("b", linear(), follows="a")], {}, "which has other candidates"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(positions, options, says):
    with pytest.raises(SpaceError) as caught:
        pool(*positions, **options)
    assert says in str(caught.value)


@pytest.mark.parametrize(("reads", "says"), [((), "reads nothing"), (("a", "a"), "'a' twice"), ((3,), "reads 3")])
def test_a_position_names_values(reads, says):
    with pytest.raises(SpaceError, match=says):
        Position("b", linear(), reads=reads)


def test_a_candidate_of_another_shape_is_refused_where_it_is_read():
    joined = Position("c", Candidate("joined", lambda: Joined(3)), reads=("a", "b"))
    with pytest.raises(SpaceError, match="position 'c': candidate 'joined'"):
        check_shapes(pool(Position("a", linear()), Position("b", linear()), joined))


def followers():
    kinds = [linear("x"), linear("y"), skip()]
    return pool(
        Position("a", kinds), Position("b", linear()), Position("c", kinds, follows="a"), Position("d", linear())
    )


def test_a_canonical_form_is_one():
    kinds = [linear(), skip()]
    found = pool(Position("a", kinds), Position("b", kinds, follows="a"), Position("c", kinds), shared=True)
    for architecture in found.every():
        assert found.canonical(architecture) == architecture


def test_the_order_of_inputs_is_part_of_a_pool():
    def of(names):
        both = Position("sum", Candidate("sum", Sum), reads=("u", "v"))
        return LayerPool([both], inputs=dict.fromkeys(names, SPEC))

    assert fingerprint(of("uv")) != fingerprint(of("vu"))
    assert difference(space_of(of("uv")), space_of(of("vu")))


def test_values_are_let_go_after_their_last_reader():
    flow = unet_pool().flow(unet_pool().path(unet_pool().architecture(["dense"] * 4 + ["joined"] * 3 + ["linear"])))
    alive = []

    def call(place, *taken):
        gc.collect()
        alive.append(sum(one() is not None for one in made))
        result = torch.zeros(2, 3, 6)
        made.append(weakref.ref(result))
        return result

    made = []
    flow.run([torch.zeros(2, 3, 6)], call)
    # three skip connections and the value on its way; on the way up one less at each layer
    assert alive == [0, 1, 2, 3, 4, 3, 2, 1]


def test_a_position_that_follows_has_the_choice_of_its_leader():
    found = followers()
    assert found.size == 3
    assert [position.name for position in found.free] == ["a", "b", "d"]
    assert found.architecture(["y", "linear", "x", "linear"]).choices == ("y", "linear", "y", "linear")
    assert {one.choices[0] for one in found.every()} == {"x", "y", "skip"}
    assert len(list(found.every())) == 3
    paths = UniformPaths(found, seed=0)
    assert all(path.choices[0] == path.choices[2] for path in map(paths.path_at, range(20)))
    assert not found.is_separable


@pytest.mark.parametrize("found", [decoder_pool(), cell_pool(), followers()], ids=["decoder", "cell", "followers"])
def test_a_pool_with_candidates_retired_or_frozen_reads_and_writes_the_same(found):
    name = found.positions[0].name
    first = found.positions[0].candidates[0].name
    many = [position.name for position in found.positions if len(position.candidates) > 2]
    gone = [f"{position}/skip" for position in many] or [f"{found.positions[2].name}/skip"]
    for other in (frozen(found, [f"{name}/{first}"])[0], retired(found, gone)):
        assert other is not found
        assert other.wiring.writes == found.wiring.writes
        assert other.sources == found.sources
        assert other.wiring.reads == found.wiring.reads
        assert other.wiring.outputs == found.wiring.outputs
        assert [position.follows for position in other.positions] == [position.follows for position in found.positions]


def test_pools_that_differ_in_what_they_read_are_others_and_chains_are_what_they_were():
    def of(reads):
        return pool(Position("a", linear()), Position("b", linear()), Position("c", Candidate("sum", Sum), reads=reads))

    one, other = of(("a", "b")), of(("b", "a"))
    assert fingerprint(one) != fingerprint(other)
    assert difference(space_of(one), space_of(other)) == "another space"
    assert not difference(space_of(one), space_of(of(("a", "b"))))
    assert "values" not in space_of(dense_pool())
