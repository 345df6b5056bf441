"""Texts are computed at their own lengths, and what is measured of them is what is measured with all their padding."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from l2l_nas import SGD, Batches, Candidate, Clip, Column, LayerPool, ParamServer, Position, TensorSpec, Trainer, skip
from l2l_nas.errors import DataError
from l2l_nas.layers import ClassHead, Embedding, FeedForward, Heads, MixtureOfExperts, Routing, SelfAttention, Style
from l2l_nas.parallel.collectives import Ranks, Unjoined
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.extend import fixed_at
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.stress import Stress
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.cloze import Cloze, continuations
from l2l_nas.text.network import OfOneDocument
from l2l_nas.text.perplexity import Perplexity, Windows
from l2l_nas.text.sentences import SentenceForm, Sentences
from l2l_nas.training.fit import evaluate, evaluate_population, sample_figures, score
from l2l_nas.training.lengths import Texts, TrainingLengths, are_near
from l2l_nas.training.samples import Samples, Split
from l2l_nas.training.schedule import Constant
from l2l_nas.training.task import BalancedClassification, Tokens
from search_spaces import bert, hybrid
from tests.text.networks import CONFIGS, WHOLE, pool_of, server_of

L = 48
EXECUTORS = {
    "held": lambda server: Relay(server, device="cpu"),
    "threads": lambda server: Relay(server, device="cpu", lanes="threads", slots=2),
    "accelerator": lambda server: Relay(server, device=Cpu(copies=True), slots=2, stash="host"),
    "poisoned": lambda server: Relay(server, device="cpu", slots=2, stress=Stress(seed=0)),
    "resident": lambda server: ReferenceTrainer(server, device="cpu"),
}


class Padded(Samples):
    """Samples that do not say that they end before their tensors do."""

    def __init__(self, whole):
        self.whole = whole

    def __len__(self):
        return len(self.whole)

    def batch(self, rows, *, key=(0, 0)):
        return self.whole.batch(rows, key=key)


def passages(lengths=(20, 2, 47, 5, 9, 33, 12, 48, 3, 7), *, seed=0):
    draw = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 250, (n + 1,), generator=draw).tolist() for n in lengths]
    return continuations([(row[: -1 - n % 2], row[-1 - n % 2 :], "") for n, row in enumerate(rows)], L)


def watched(executor, monkeypatch):
    """The lengths of all micro-batches that an executor is given."""
    seen = []
    whole = executor.predict_population

    def watching(architectures, inputs, *, cuts=None, **others):
        seen.extend([(len(inputs[0]), L)] if cuts is None else cuts)
        return whole(architectures, inputs, cuts=cuts, **others)

    monkeypatch.setattr(executor, "predict_population", watching)
    return seen


@pytest.mark.parametrize("kind", EXECUTORS)
@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "bert"])
def test_figures_are_those_of_padded_texts(name, kind, monkeypatch):
    executor = EXECUTORS[kind](server_of(pool_of(name, length=L)))
    samples, task = passages(), Cloze()
    expected = sample_figures(executor, WHOLE, Padded(samples), task=task, micro_batch=3)
    seen = watched(executor, monkeypatch)
    found = sample_figures(executor, WHOLE, samples, task=task, micro_batch=3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    # first one text with more and with less padding; then each at its own length, rounded up, and no row twice
    assert seen == [(1, 8), (1, 48), (3, 48), (3, 24), (3, 8), (1, 8)]
    seen.clear()
    assert score(executor, WHOLE, samples, task=task, micro_batch=8).values == pytest.approx(
        evaluate(executor, WHOLE, Padded(samples), task=task, micro_batch=8), rel=1e-5
    )
    assert [one for one in seen if one[1] < L] == [(1, 8), (6, 16)]


def test_a_text_that_is_shorter_than_a_window_is_not_padded_to_it(monkeypatch):
    executor = Relay(server_of(pool_of(length=L)), device="cpu")
    tokens = torch.randint(0, 250, (11,), generator=torch.Generator().manual_seed(0))
    task = Perplexity(tokens=10, words=3, num_bytes=10)
    expected = evaluate(executor, WHOLE, Padded(Windows(tokens, L)), task=task, micro_batch=4)
    seen = watched(executor, monkeypatch)
    assert evaluate(executor, WHOLE, Windows(tokens, L), task=task, micro_batch=4) == pytest.approx(expected, rel=1e-5)
    assert seen[-1] == (1, 16)


def test_what_is_kept_of_texts_in_order_is_that_of_each_text(monkeypatch):
    """A budget that has room for few texts at a time: passes are many, and rows come back where they were."""
    executor = Relay(server_of(pool_of(length=L)), device="cpu")
    samples, task = passages(), Cloze()
    expected = sample_figures(executor, WHOLE, Padded(samples), task=task, micro_batch=3)
    monkeypatch.setattr("l2l_nas.training.fit._CHUNK_BYTES", 4 * 257 * 2 * 2 * 60)  # 60 places of logits
    seen = watched(executor, monkeypatch)
    found = sample_figures(executor, WHOLE, samples, task=task, micro_batch=3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert max(size * length for size, length in seen[2:]) <= 60


def test_a_population_is_scored_at_the_texts_own_lengths():
    executor = Relay(server_of(pool_of(length=L)), device="cpu", slots=2)
    architectures = [WHOLE, Architecture(("original", "skip", *WHOLE.choices[2:]))]
    found = evaluate_population(executor, architectures, passages(), task=Cloze(), micro_batch=4)
    for architecture, figures in zip(architectures, found, strict=True):
        padded = evaluate(executor, architecture, Padded(passages()), task=Cloze(), micro_batch=4)
        assert figures == pytest.approx(padded, rel=1e-5)
    assert found[0] != found[1]


def test_a_network_with_documents_is_cut_too(monkeypatch):
    executor = Relay(server_of(hybrid.build(257, L, depth=2, documents=True)), device="cpu")
    chosen = Architecture(("plain", "attention", "width_88", "window_6", "skip", "rms", "tied"))
    expected = evaluate(executor, chosen, OfOneDocument(Padded(passages())), task=Cloze(), micro_batch=4)
    seen = watched(executor, monkeypatch)
    found = evaluate(executor, chosen, OfOneDocument(passages()), task=Cloze(), micro_batch=4)
    assert found == pytest.approx(expected, rel=1e-5)
    assert (4, 16) in seen


def test_layers_that_are_compiled_get_all_of_it():
    server = server_of(pool_of(length=L))
    assert Texts.taken_by(Relay(server, device="cpu"), [WHOLE]) is not None
    assert Texts.taken_by(Relay(server, device="cpu", layers=lambda graph, inputs: graph), [WHOLE]) is None


class _Fixed(nn.Module):
    """Mixes all places, by weights of each; says of itself what is not true."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(L, L)

    def forward(self, x):
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)


class _SaysSo(_Fixed):
    takes_any_length = True


class _FromTheEnd(nn.Module):
    """Places are counted from the end."""

    takes_any_length = True

    def __init__(self):
        super().__init__()
        self.place = nn.Embedding(L, 16)

    def forward(self, x):
        return x + self.place(torch.arange(L - x.shape[1], L))


class _Mean(nn.Module):
    is_placewise = True

    def forward(self, x):
        return x - x.mean(dim=1, keepdim=True)


class _Blind(SelfAttention):
    def __init__(self):
        super().__init__(16, Heads(2, is_causal=False))


@pytest.mark.parametrize(("layer", "tries"), [(_Fixed, 0), (_SaysSo, 2), (_FromTheEnd, 2), (_Mean, 2), (_Blind, 0)])
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
    executor, chosen = middle(_Mean, head=_Ruling)
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


@pytest.mark.parametrize("layer", [_Blind, lambda: _SaysItDoesNot(16, Heads(2))])
def test_a_layer_that_goes_on_may_say_that_its_length_is_fixed(layer):
    executor, chosen = middle(layer)
    assert fixed_at(executor.pool, chosen) == "p1"
    assert fixed_at(classifier(), PATHS[0]) is None


class _AllPlaces(Tokens):
    """A task of the user's own, which measures all outputs."""

    def figures(self, outputs, targets):
        entropy = -(outputs[0].log_softmax(-1).exp() * outputs[0].log_softmax(-1)).sum((1, 2), dtype=torch.float64)
        return torch.stack((torch.ones_like(entropy), torch.zeros_like(entropy), entropy), dim=1)


class _SaysNo(Tokens):
    reads_what_counts = False


def test_a_task_of_one_s_own_sees_all_places():
    executor = Relay(server_of(pool_of(length=L)), device="cpu")
    found, expected = (
        evaluate(executor, WHOLE, samples, task=_AllPlaces(), micro_batch=4)
        for samples in (passages(), Padded(passages()))
    )
    assert found == expected
    assert Texts.of(executor, [WHOLE], Split(*passages().batch(torch.arange(3))), Tokens()) is None
    assert Texts.of(executor, [WHOLE], passages(), Tokens()) is not None
    assert Texts.of(executor, [WHOLE], passages(), _SaysNo()) is None


def sentences(count=20, *, seed=0):
    draw = torch.Generator().manual_seed(seed)
    rows = [("x" * int(torch.randint(1, 30, (), generator=draw)), "yz" * (n % 5)) for n in range(count)]
    return Sentences(rows, [str(n % 3) for n in range(count)], SentenceForm(length=L, classes=("0", "1", "2")))


@pytest.mark.parametrize("kind", EXECUTORS)
def test_sentences_are_told_apart_at_their_own_lengths(kind, monkeypatch):
    pool = bert.build(vocabulary=257, length=L, hidden=16, depth=2, heads=2, classes=3)
    executor = EXECUTORS[kind](server_of(pool))
    chosen = Architecture(tuple(position.candidates[0].name for position in pool.positions))
    task = BalancedClassification()
    expected = score(executor, chosen, Padded(sentences()), task=task, micro_batch=4)
    seen = watched(executor, monkeypatch)
    found = score(executor, chosen, sentences(), task=task, micro_batch=4)
    assert found.values == pytest.approx(expected.values, rel=1e-4)
    assert found.errors == pytest.approx(expected.errors, rel=1e-3)
    assert sum(size for size, length in seen[2:] if length < L) == 20


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
    evaluate(executor, Architecture(("a",) * 4), sentences(), task=BalancedClassification(), micro_batch=4)
    assert seen == [(20, L)]


def test_experts_are_placewise():
    candidates = [Candidate("a", lambda: Embedding(257, 16)), Candidate("a", lambda: nn.Linear(16, 257))]
    candidates.insert(1, Candidate("a", lambda: MixtureOfExperts(16, 24, routing=Routing(experts=4))))
    positions = [Position(f"p{n}", one) for n, one in enumerate(candidates)]
    executor = Relay(server_of(LayerPool(positions, inputs={"x": TensorSpec((L,), torch.int64)})), device="cpu")
    chosen = Architecture(("a",) * 3)
    found, expected = (
        sample_figures(executor, chosen, samples, task=Cloze(), micro_batch=4)
        for samples in (passages(), Padded(passages()))
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cuts", [[(2, 8)], [(3, 0)], [(3, L + 1)], [(3, 8), (0, 8)], []])
@pytest.mark.parametrize("kind", ["held", "resident"])
def test_cuts_that_do_not_fit_are_refused(cuts, kind):
    executor = EXECUTORS[kind](server_of(pool_of(length=L)))
    with pytest.raises(DataError, match="do not cut 3 samples of at most 48 places"):
        executor.predict_population([WHOLE], (torch.zeros(3, L, dtype=torch.int64),), micro_batch=3, cuts=cuts)


def test_rows_that_are_chosen_stay_texts():
    assert passages().some(torch.arange(2)).is_padded
    assert sentences().some(torch.arange(2)).is_padded


def classifier(middle=None, *, dropout=0.0):
    style = Style(eps=1e-12, is_post=True, dropout=dropout)
    attention = partial(SelfAttention, 16, Heads(2, is_causal=False, dropout=dropout), style)
    middle = middle or partial(FeedForward, 16, 24, style=style)
    positions = [
        Position("embed", Candidate("a", partial(Embedding, 257, 16, places=L, kinds=2)), reads=("tokens", "kinds")),
        Position("one", Candidate("a", attention), reads=("embed", "documents")),
        Position("two", [middle if isinstance(middle, Candidate) else Candidate("a", middle), skip()]),
        Position("three", [Candidate("a", attention), skip()], reads=("two", "documents")),
        Position("head", Candidate("a", partial(ClassHead, 16, 3, style=style))),
    ]
    return LayerPool(
        positions, inputs={name: TensorSpec((L,), torch.int64) for name in ("tokens", "kinds", "documents")}
    )


TRAINED = {
    "held": {},
    "threads": {"lanes": "threads", "slots": 2},
    "stash": {"slots": 2, "stash": "host"},
    "kept": {"device_budget": "all", "lanes": "threads"},
    "poisoned": {"slots": 2, "stress": Stress(seed=0), "update": "exact", "clip": Clip(0.1)},
    "chunks": {"chunks": 2},
}


def trained(executor, samples, paths, *, seen=None):
    """Weights after a few steps, by state, and losses."""
    batches, losses = Batches(samples, batch_size=10, seed=0), []
    if seen is not None:
        step = executor.train_step
        executor.train_step = lambda *a, lengths=None, **k: seen.append(lengths) or step(*a, lengths=lengths, **k)
    Trainer(executor, BalancedClassification(), batches, 4).fit(
        lambda step: paths[step % len(paths)], start=0, steps=5, schedule=Constant(0.05, 5),
        after_step=lambda step, loss: losses.append(loss),
    )  # fmt: skip
    if isinstance(executor, ReferenceTrainer):
        executor.write_back()
    else:
        executor.drain()
    states = {key: executor.server.state(key).tensors() for key in sorted(executor.server.visited)}
    named = {(key, name): one.clone() for key, own in states.items() for name, one in own.items()}
    return {name: tensor for name, tensor in named.items() if name[1].startswith("weights")}, losses


CHOICES = ("aaaaa", "aassa", "aasaa")
PATHS = [Architecture(tuple({"a": "a", "s": "skip"}[one] for one in word)) for word in CHOICES]


def relay_of(pool, **settings):
    return Relay(ParamServer(pool, optimizer=SGD(momentum=0.9), seed=4), device="cpu", **settings)


@pytest.mark.parametrize("kind", TRAINED)
def test_training_at_own_lengths_is_training_on_padded_sentences(kind):
    seen = []
    found, losses = trained(relay_of(classifier(), **TRAINED[kind]), sentences(), PATHS, seen=seen)
    expected, padded = trained(relay_of(classifier(), **TRAINED[kind]), Padded(sentences()), PATHS)
    assert all(len(lengths) == 3 and max(lengths) <= 40 for lengths in seen)
    assert len({length for lengths in seen for length in lengths}) > 2
    assert losses == pytest.approx(padded, rel=1e-5)
    for key, weights in found.items():
        torch.testing.assert_close(weights, expected[key], rtol=1e-4, atol=1e-5)


def test_all_ways_to_train_have_the_same_bits_at_own_lengths():
    """With dropout: what is drawn is of each micro-batch's length."""
    expected, losses = trained(relay_of(classifier(dropout=0.1)), sentences(), PATHS)
    for kind in ("threads", "stash", "kept"):
        found, others = trained(relay_of(classifier(dropout=0.1), **TRAINED[kind]), sentences(), PATHS)
        assert others == losses, kind
        assert all(torch.equal(found[key], expected[key]) for key in expected), kind
    resident = ReferenceTrainer(relay_of(classifier(dropout=0.1)).server, device="cpu", seed=0)
    found, others = trained(resident, sentences(), PATHS)
    assert others == pytest.approx(losses, rel=1e-6)
    for key in expected:
        torch.testing.assert_close(found[key], expected[key], rtol=1e-4, atol=1e-5)


class _Normed(nn.Module):
    is_placewise = True

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x):
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


_MIXTURE = partial(MixtureOfExperts, 16, 24, routing=Routing(experts=4))


@pytest.mark.parametrize("layer", [_MIXTURE, _Normed, _Fixed, _Mean])
def test_what_padding_matters_to_in_training_gets_all_of_it(layer):
    seen = []
    trained(relay_of(classifier(layer)), sentences(), PATHS, seen=seen)
    assert [lengths is None for lengths in seen] == [True, False, False, True, False]


def test_layers_whose_parts_say_nothing_train_on_all_of_a_text():
    pool = classifier(Candidate("a", partial(nn.Linear, 16, 16), split={"": Column()}))
    relay = relay_of(pool)
    inputs, _ = sentences().batch(torch.arange(6))
    assert TrainingLengths(relay, sentences()).of(PATHS[0], inputs, 3) is not None
    parts = SplitPool(pool, Ranks(Unjoined(0, 2))).parts
    server = SimpleNamespace(whole_pool=pool, pool=parts, everyone=relay.server.everyone)
    one = SimpleNamespace(server=server, takes_cuts=True, predict_population=relay.predict_population)
    assert TrainingLengths(one, sentences()).of(PATHS[0], inputs, 3) is None


@pytest.mark.parametrize("lengths", [(8,), (8, 8, 8), (8, 0), (8, L + 1)])
@pytest.mark.parametrize("kind", ["held", "resident"])
def test_lengths_that_do_not_fit_are_refused(lengths, kind):
    executor = EXECUTORS[kind](relay_of(classifier()).server)
    inputs, targets = sentences().batch(torch.arange(6))
    about = {"objective": BalancedClassification(), "micro_batch": 4, "lr": 0.1, "step": 0}
    with pytest.raises(DataError, match=f"lengths of 2 micro-batches are 1 to {L}"):
        executor.train_step(PATHS[0], inputs, targets, **about, lengths=lengths)
