"""Whether layers give the same at any length is what they say, and what is tried out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, Column, LayerPool, Position, TensorSpec, skip
from l2l_nas.layers import ClassHead, Embedding, Heads, SelfAttention
from l2l_nas.parallel.collectives import Ranks, Unjoined
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.relay.extend import fixed_at
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.cloze import Cloze
from l2l_nas.training.fit import evaluate
from l2l_nas.training.lengths import Texts, TrainingLengths, are_near
from l2l_nas.training.task import Classification
from tests.text.networks import WHOLE, pool_of, server_of
from tests.training.test_lengths import (
    EXECUTORS,
    PATHS,
    Fixed,
    L,
    Mean,
    Padded,
    classifier,
    passages,
    relay_of,
    sentences,
    watched,
)


class _SaysSo(Fixed):
    takes_any_length = True


class _FromTheEnd(nn.Module):
    """Places are counted from the end."""

    takes_any_length = True

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(L, 16)

    def forward(self, x):
        return x + self.place(torch.arange(L - x.shape[1], L))


class _Blind(SelfAttention):
    def __init__(self):
        super().__init__(16, Heads(2, is_causal=False))


@pytest.mark.parametrize(("layer", "tries"), [(Fixed, 0), (_SaysSo, 2), (_FromTheEnd, 2), (Mean, 2), (_Blind, 0)])
def test_a_layer_for_which_the_length_matters_gets_all_of_it(layer, tries, monkeypatch):
    executor, chosen = middle(layer)
    expected = evaluate(executor, chosen, Padded(passages()), task=Cloze(), micro_batch=4)
    seen = watched(executor, monkeypatch)
    for _ in range(2):  # that it matters is remembered
        found = evaluate(executor, chosen, passages(), task=Cloze(), micro_batch=4)
        assert found == pytest.approx(expected, rel=1e-5)
    assert {length for _, length in seen[tries:]} == {L}
    assert [size for size, _ in seen[:tries]] == [1] * tries


class _Gated(nn.Module):
    """Sees padding, as soon as it has learned anything."""

    is_placewise = True

    def __init__(self):
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.gate * x.mean(dim=1, keepdim=True)


class _Ruling(nn.Linear):
    """One token is ruled out."""

    is_placewise = True

    def forward(self, x):
        return super().forward(x).index_fill(-1, torch.tensor(5), -1e9)


class _Stretched(nn.Module):
    """Changes with texts of more than 100 tokens, as rates of rotary positions may."""

    takes_any_length = True

    def forward(self, x):
        return x * (1 if x.shape[1] <= 100 else 1.5)


class _SaysItDoesNot(SelfAttention):
    takes_any_length = False


def middle(layer, *, head=nn.Linear, length=L):
    candidates = [Candidate("a", lambda: Embedding(257, 16)), Candidate("a", layer)]
    candidates.append(Candidate("a", partial(head, 16, 257)))
    positions = [Position(f"p{n}", one) for n, one in enumerate(candidates)]
    server = server_of(LayerPool(positions, inputs={"x": TensorSpec((length,), torch.int64)}))
    return Relay(server, device="cpu"), Architecture(("a",) * 3)


def test_what_passed_before_a_layer_learned_is_tried_again():
    executor, chosen = middle(_Gated)
    for gate in (0.0, 1.0):
        with executor.server.writing("p1/a") as state:
            state.parameters()["gate"].fill_(gate)
        expected = evaluate(executor, chosen, Padded(passages()), task=Cloze(), micro_batch=4)
        found = evaluate(executor, chosen, passages(), task=Cloze(), micro_batch=4)
        assert found == pytest.approx(expected, rel=1e-5)


def test_one_score_that_rules_a_token_out_hides_no_difference():
    executor, chosen = middle(Mean, head=_Ruling)
    expected = evaluate(executor, chosen, Padded(passages()), task=Cloze(), micro_batch=4)
    assert evaluate(executor, chosen, passages(), task=Cloze(), micro_batch=4) == pytest.approx(expected, rel=1e-5)
    executor, chosen = middle(nn.Identity, head=_Ruling)
    assert Texts.taken_by(executor, [chosen]).length_for((torch.zeros(1, L, dtype=torch.int64),), 3) == 8


def test_outputs_are_near_place_by_place():
    one = torch.tensor([[1.0, -2.0, 0.5, -1e9], [1e4, 2e4, -torch.inf, 0.0]])
    for change, is_near in ((1e-5, True), (1e-2, False)):
        other = one.clone()
        other[0, 2] += change
        assert are_near(other, one, 1e-4) == is_near
    for number in (torch.inf, torch.nan, 0.0):
        assert not are_near(one.where(one.isfinite(), number), one, 1e-4)
    assert are_near(one, one, 0.0)
    assert not are_near(torch.full((2, 3), torch.nan), torch.full((2, 3), torch.nan), 1e-4)


def test_a_text_as_long_as_any_is_tried():
    executor, chosen = middle(_Stretched, length=128)
    row = (torch.zeros(1, 128, dtype=torch.int64),)
    assert Texts.taken_by(executor, [chosen]).length_for(row, 8) == 128
    executor, chosen = middle(nn.Identity, length=128)
    assert Texts.taken_by(executor, [chosen]).length_for(row, 8) == 8


def test_networks_with_a_layer_that_failed_are_not_tried_again(monkeypatch):
    positions = [
        Position("embed", Candidate("a", lambda: Embedding(257, 16))),
        Position("one", [Candidate("mean", Mean), Candidate("same", nn.Identity)]),
        Position("two", [Candidate("a", nn.GELU), Candidate("b", nn.Tanh), skip()]),
        Position("head", Candidate("a", lambda: nn.Linear(16, 257))),
    ]
    server = server_of(LayerPool(positions, inputs={"x": TensorSpec((L,), torch.int64)}))
    executor, row = Relay(server, device="cpu"), (torch.zeros(1, L, dtype=torch.int64),)
    texts = Texts.taken_by(executor, [])
    seen, tries = watched(executor, monkeypatch), []
    for one, two in (("same", "skip"), ("mean", "skip"), ("mean", "a"), ("mean", "b"), ("same", "a"), ("same", "skip")):
        seen.clear()
        is_same = replace(texts, architectures=[Architecture(("a", one, two, "a"))]).are_same(row, 8)
        tries.append((is_same, bool(seen)))
    assert tries == [(True, True), (False, True), (False, False), (False, False), (True, True), (True, False)]


@pytest.mark.parametrize(
    ("kind", "error"), [("held", RuntimeError("no kernel")), ("resident", torch.OutOfMemoryError("64 GiB"))]
)
def test_what_is_not_a_layer_s_fault_is_raised(kind, error, monkeypatch):
    executor = EXECUTORS[kind](server_of(pool_of(length=L)))

    def raises(*args, **named):
        raise error

    monkeypatch.setattr(executor, "predict_population", raises)
    with pytest.raises(type(error), match=str(error)):
        Texts.taken_by(executor, [WHOLE]).length_for((torch.zeros(1, L, dtype=torch.int64),), 3)


def test_a_layer_that_raises_gets_all_of_a_text_where_all_layers_are_held():
    relay, chosen = middle(_SaysSo)
    texts = Texts.taken_by(ReferenceTrainer(relay.server, device="cpu"), [chosen])
    assert texts.length_for((torch.zeros(1, L, dtype=torch.int64),), 3) == L


@pytest.mark.parametrize("layer", [_Blind, lambda: _SaysItDoesNot(16, Heads(2))])
def test_a_layer_that_goes_on_may_say_that_its_length_is_fixed(layer):
    executor, chosen = middle(layer)
    assert fixed_at(executor.pool, chosen) == "p1"
    assert fixed_at(classifier(), PATHS[0]) is None


def test_a_network_that_sees_padding_gets_all_of_it(monkeypatch):
    """Attention is not told where a sentence ends."""
    inputs = {name: TensorSpec((L,), torch.int64) for name in ("tokens", "kinds", "documents")}
    positions = [
        Position("embed", Candidate("a", lambda: Embedding(257, 16, kinds=2)), reads=("tokens", "kinds"), writes="x"),
        Position("layer", Candidate("a", _Blind), reads="x", writes="y"),
        Position(
            "other", Candidate("a", lambda: SelfAttention(16, Heads(2, is_causal=False))), reads=("y", "documents")
        ),
        Position("head", Candidate("a", lambda: ClassHead(16, 3))),
    ]
    executor = Relay(server_of(LayerPool(positions, inputs=inputs)), device="cpu")
    seen = watched(executor, monkeypatch)
    evaluate(executor, Architecture(("a",) * 4), sentences(), task=Classification(), micro_batch=4)
    assert seen == [(20, L)]


def test_layers_whose_parts_say_nothing_train_on_all_of_a_text():
    pool = classifier(Candidate("a", partial(nn.Linear, 16, 16), split={"": Column()}))
    relay = relay_of(pool)
    inputs, _ = sentences().batch(torch.arange(6))
    assert TrainingLengths(relay, sentences()).of(PATHS[0], inputs, 3) is not None
    parts = SplitPool(pool, Ranks(Unjoined(0, 2))).parts
    server = SimpleNamespace(whole_pool=pool, pool=parts, world=relay.server.world)
    one = SimpleNamespace(server=server, takes_cuts=True, predict_population=relay.predict_population)
    assert TrainingLengths(one, sentences()).of(PATHS[0], inputs, 3) is None
