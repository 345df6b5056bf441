"""What `convert` refuses, in one line that says where and what to write."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from l2l_nas import convert, plain_module, skip
from l2l_nas.errors import SettingError, ShapeError, SpaceError
from tests.space.convert.test_convert import BLOCKS, IDS, Gate, Model, made


def refusal(match, *args, **kwargs):
    with pytest.raises(SpaceError, match=match) as caught:
        convert(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_wrong_path_of_blocks_is_told_the_nearest():
    refusal(
        r"blocks='frist': the model has no such module; did you mean 'first'\?", Model(), {"ids": IDS}, blocks="frist"
    )


def test_a_model_in_low_precision_is_refused():
    refusal(
        r"'table' is torch.bfloat16, .*; write convert\(model.float\(\)",
        Model().bfloat16(),
        {"ids": IDS},
        blocks="first",
    )


def test_blocks_that_are_parts_of_others_are_refused():
    refusal("'first.0.linear' is part of 'first.0'", Model(), {"ids": IDS}, blocks=["first", "first.*.linear"])


def test_blocks_that_do_not_run_are_refused():
    refusal("calls none of these blocks", Model(), {"ids": IDS}, blocks="unused")


@pytest.mark.parametrize(
    "example", [{}, 3, "text", {"ids": torch.tensor(1)}, {"ids": IDS, "weights": torch.ones(3)}, {"ids": [IDS]}]
)
def test_an_example_that_is_none_is_refused(example):
    refusal("the example must be a tensor, several, or a dict of arguments", Model(), example, blocks="first")


def test_what_the_model_raises_is_told_in_one_line():
    refusal("the model raised TypeError on the example: .*tokens", Model(), {"tokens": IDS}, blocks="first")


def test_an_input_that_the_output_does_not_depend_on_is_refused():
    weights = {"ids": IDS, "weights": torch.ones(2)}
    assert [*made()[1].sources, *convert(Model(), weights, blocks="first").sources] == ["ids", "ids", "weights"]

    class Other(Model):
        def forward(self, ids, labels):
            return super().forward(ids)

    refusal(
        "does not depend on 'labels'; leave it out of the example",
        Other(),
        {"ids": IDS, "labels": IDS[:, 0]},
        blocks="first",
    )


def test_the_output_is_chosen_by_name():
    model, pool = made(output="hidden")
    assert torch.equal(plain_module(pool, pool.original)(IDS), model.eval()(IDS)["hidden"])
    refusal(
        "output: the model gives no tensor 'lgits'; write output='logits' or output='hidden'",
        Model(),
        {"ids": IDS},
        blocks="first",
        output="lgits",
    )


def test_shapes_that_clash_name_position_candidate_and_what_is_expected():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2))
    with pytest.raises(ShapeError) as caught:
        convert(model, torch.randn(3, 4), blocks="1", candidates={"narrow": lambda: nn.Linear(8, 6)})
    assert str(caught.value) == (
        "position '1': candidate 'narrow': got output [batch, 6] float32, expected [batch, 8] float32; "
        "'original' gives that, and all candidates of a position must agree"
    )


def test_a_candidate_that_returns_something_else_than_the_block_is_told_what_that_is():
    error = refusal(
        "gives a tensor, a tensor, a tensor; return the same|given by",
        Model(),
        {"ids": IDS},
        blocks=BLOCKS,
        candidates={"own": Bare},
    )
    assert "[2, 5, 8] float32 where the model's block gives a tensor, a tensor, a tensor; return the same" in str(error)
    assert (error.position, error.candidate) == ("first.0", "own")


class Bare(nn.Module):
    def forward(self, x, *, table, flag):
        return x


def test_candidates_that_are_none_or_for_no_block_are_refused():
    refusal("'own' is int; write a module", Model(), {"ids": IDS}, blocks=BLOCKS, candidates={"own": 3})
    refusal(
        "no block is called 'frist.0'; did you mean 'first.0'",
        Model(),
        {"ids": IDS},
        blocks=BLOCKS,
        candidates={"frist.0": {"own": Gate}},
    )


def test_a_skip_that_fits_nowhere_or_not_where_it_was_asked_for_is_refused():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)), torch.randn(3, 4)
    refusal("no block gives what it takes", model, x, blocks="0", candidates={"skip": skip()})
    refusal("position '0': candidate 'skip': got output", model, x, blocks="0", candidates={"0": {"skip": skip()}})


def test_what_is_another_object_in_each_forward_is_refused():
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([Layer()])

        def forward(self, x):
            return self.layers[0](x, cache=object())

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x, cache):
            return super().forward(x)

    refusal(
        "the block 'layers.0' takes a object as 'cache', which is another one in each",
        Cached(),
        torch.randn(2, 4),
        blocks="layers",
    )


def test_random_numbers_that_two_parts_would_draw_are_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            x = nn.functional.dropout(x, 0.5, self.training)
            return self.block(x) + x

    refusal("draws random numbers or changes a buffer; make it a", Twice(), torch.randn(2, 4), blocks="block")


def test_a_buffer_that_two_parts_would_change_is_refused():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.block = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x):
            return self.norm(self.block(self.norm(x)))

    refusal("draws random numbers or changes a buffer; make it a", Twice(), torch.randn(2, 4), blocks="block")


def test_what_a_block_leaves_elsewhere_is_refused():
    left = {}

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x):
            left["x"] = x * 2
            return super().forward(x)

    class Aside(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = Layer(), nn.Linear(4, 4)

        def forward(self, x):
            return self.block(x) + self.last(left["x"])

    refusal(
        "'last' uses a tensor that is no argument, parameter or buffer, and that no block returns",
        Aside(),
        torch.randn(2, 4),
        blocks="block",
    )


def test_parts_that_give_something_else_than_the_model_are_refused():
    calls = []

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = nn.Linear(4, 4)

        def forward(self, x):
            calls.append(1)
            return self.block(x) * len(calls)

    refusal("the parts of the model give something else than the model", Counting(), torch.randn(2, 4), blocks="block")


def test_a_mask_that_is_dropped_where_it_hides_nothing_is_refused():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Layer()

        def forward(self, x, mask):
            return self.block(x, mask=None if bool(mask.all()) else mask.float())

    class Layer(nn.Linear):
        def __init__(self):
            super().__init__(4, 4)

        def forward(self, x, mask):
            return super().forward(x if mask is None else x * mask)

    example = {"x": torch.randn(2, 4), "mask": torch.tensor([[True, True, False, True]] * 2)}
    refusal("reads a number off a tensor", Masked(), example, blocks="block")


class Chain(nn.Module):
    """A stem, blocks and a head, with something between."""

    def __init__(self, block=nn.Linear):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 4), nn.Linear(4, 2)
        self.blocks = nn.ModuleList(block(4, 4) for _ in range(2))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls.add_(1)
        h = self.stem(x)
        for block in self.blocks:
            h = self.between(x, h, block)
        return self.head(h)

    def between(self, x, h, block):
        return block(h)


class ByInput(Chain):
    def between(self, x, h, block):
        return block(-h if x.sum() > 0 else h)


class ByBlock(Chain):
    def between(self, x, h, block):
        return block(h) * (1.0 if float(h.detach().max()) < 100 else 2.0)


class ByChance(Chain):
    def between(self, x, h, block):
        return h if self.training and torch.rand(()) < 1e-6 else block(h)


class Counting(nn.Linear):
    def forward(self, x):
        return super().forward(x), x.shape[0]


class ByCount(Chain):
    def __init__(self):
        super().__init__(Counting)

    def between(self, x, h, block):
        h, count = block(h)
        return h / count


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (ByInput, "reads a number off a tensor between the blocks"),
        (ByBlock, "reads a number off a tensor between the blocks"),
        (ByChance, "decides by a random number what it does"),
        (ByCount, "returns a int that is another one for other samples"),
    ],
)
def test_a_forward_that_depends_on_more_than_tensors_is_refused(model, says):
    refusal(says, model(), torch.randn(2, 4), blocks="blocks")


def test_buffers_of_the_model_stay_as_they_are_also_where_its_forward_changes_them():
    model = Chain()
    with contextlib.suppress(SpaceError):  # what changes a buffer in evaluation is refused elsewhere
        convert(model, torch.randn(2, 4), blocks="blocks")
    assert model.calls == 0


def test_a_block_that_does_not_run_and_a_model_that_cannot_be_copied_are_refused():
    class Spare(Chain):
        def __init__(self):
            super().__init__()
            self.spare = nn.Linear(4, 4)

    refusal("does not call the block 'spare'", Spare(), torch.randn(2, 4), blocks=["blocks", "spare"])

    class Uncopied(Chain):
        def __deepcopy__(self, memo):
            raise RuntimeError("no copies")

    refusal(r"cannot be copied \(RuntimeError: no copies\)", Uncopied(), torch.randn(2, 4), blocks="blocks")


class ChangesOnly(nn.Linear):
    def forward(self, x):
        x += super().forward(x)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        ([ChangesOnly(4, 4)], r"'blocks.0' changes 'x' in place and does not return it; let it return"),
        ([nn.Linear(4, 4), nn.Identity()], r"'blocks.1' gives back what it takes, and does nothing; leave it out"),
        ([], r"blocks='blocks' has no module in it"),
    ],
)
def test_blocks_that_give_nothing_of_their_own_are_named(blocks, says):
    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.blocks = nn.Linear(4, 4), nn.ModuleList(blocks)

        def forward(self, x):
            h = self.stem(x)
            for block in self.blocks:
                given = block(h)
                h = h if given is None else given
            return h

    refusal(says, Loop(), torch.randn(2, 4), blocks="blocks")


def test_no_blocks_and_lazy_weights_are_refused():
    model = nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 4))
    refusal(r"'0.weight' gets its shape in the first forward; run the model once", model, torch.ones(2, 4), blocks="1")
    model(torch.ones(2, 4))
    refusal(r"blocks=\[\] has no module in it", model, torch.ones(2, 4), blocks=[])
    assert convert(model, torch.ones(2, 4), blocks="1").original.choices


def test_outputs_of_several_names_are_checked():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    for odd in ([], 1.5, ["a", None, 2.0]):
        with pytest.raises((SettingError, SpaceError)) as caught:
            convert(model, torch.ones(2, 4), blocks="0", output=odd)
        assert "output" in str(caught.value)
