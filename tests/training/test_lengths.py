"""Texts are computed at their own lengths, and what is measured of them is what is measured with all their padding."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import SGD, Batches, Candidate, Clip, LayerPool, ParamServer, Position, TensorSpec, Trainer, skip
from l2l_nas.layers import ClassHead, Embedding, FeedForward, Heads, MixtureOfExperts, Routing, SelfAttention, Style
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.cloze import Cloze, continuations
from l2l_nas.text.network import OfOneDocument
from l2l_nas.text.perplexity import Perplexity, Windows
from l2l_nas.training.fit import evaluate, evaluate_population, sample_figures, score
from l2l_nas.training.lengths import Texts
from l2l_nas.training.samples import Samples, Split
from l2l_nas.training.schedule import Constant
from l2l_nas.training.task import Classification, Tokens
from search_spaces import bert, hybrid
from tests.relay.stress import Stress, relay_under
from tests.text.networks import CONFIGS, WHOLE, pool_of, server_of

L = 48
EXECUTORS = {
    "held": lambda server: Relay(server, device="cpu"),
    "threads": lambda server: Relay(server, device="cpu", lanes="threads", slots=2),
    "accelerator": lambda server: Relay(server, device=Cpu(copies=True), slots=2, stash="host"),
    "poisoned": lambda server: relay_under(server, device="cpu", slots=2, stress=Stress(seed=0)),
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


def test_nothing_is_tried_out_where_that_costs_more_than_padding(monkeypatch):
    """Windows are whole but for the last one."""
    executor = Relay(server_of(pool_of(length=L)), device="cpu")
    tokens = torch.randint(0, 250, (2 * L + 11,), generator=torch.Generator().manual_seed(0))
    task = Perplexity(tokens=len(tokens) - 1, words=3, num_bytes=10)
    expected = evaluate(executor, WHOLE, Padded(Windows(tokens, L)), task=task, micro_batch=4)
    seen = watched(executor, monkeypatch)
    assert evaluate(executor, WHOLE, Windows(tokens, L), task=task, micro_batch=4) == pytest.approx(expected, rel=1e-5)
    assert seen == [(3, L)]


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


class Fixed(nn.Module):
    """Mixes all places, by weights of each; says of itself what is not true."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(L, L)

    def forward(self, x):
        return x + self.mix(x.transpose(1, 2)).transpose(1, 2)


class Mean(nn.Module):
    is_placewise = True

    def forward(self, x):
        return x - x.mean(dim=1, keepdim=True)


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


class Sentences(Split):
    """Tokens, the kind of each, and 1 for padding, with a class."""

    is_padded = True


def sentences(count=20, *, seed=0):
    draw = torch.Generator().manual_seed(seed)
    tokens, kinds, padding = torch.zeros(3, count, L, dtype=torch.int64)
    padding += 1
    for row in range(count):
        first = [256, *b"x" * int(torch.randint(1, 30, (), generator=draw)), 256]
        both = [*first, *b"yz" * (row % 5), 256]
        tokens[row, : len(both)] = torch.tensor(both)
        kinds[row, len(first) : len(both)] = 1
        padding[row, : len(both)] = 0
    return Sentences((tokens, kinds, padding), torch.arange(count) % 3)


@pytest.mark.parametrize("kind", EXECUTORS)
def test_sentences_are_told_apart_at_their_own_lengths(kind, monkeypatch):
    pool = bert.build(vocabulary=257, length=L, hidden=16, depth=2, heads=2, classes=3)
    executor = EXECUTORS[kind](server_of(pool))
    chosen = Architecture(tuple(position.candidates[0].name for position in pool.positions))
    task = Classification()
    expected = score(executor, chosen, Padded(sentences()), task=task, micro_batch=4)
    seen = watched(executor, monkeypatch)
    found = score(executor, chosen, sentences(), task=task, micro_batch=4)
    assert found.values == pytest.approx(expected.values, rel=1e-4)
    assert found.errors == pytest.approx(expected.errors, rel=1e-3)
    assert sum(size for size, length in seen[2:] if length < L) == 20


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
    Trainer(executor, Classification(), batches, 4).fit(
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
    return relay_under(ParamServer(pool, optimizer=SGD(momentum=0.9), seed=4), device="cpu", **settings)


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


@pytest.mark.parametrize("layer", [_MIXTURE, _Normed, Fixed, Mean])
def test_what_padding_matters_to_in_training_gets_all_of_it(layer):
    seen = []
    trained(relay_of(classifier(layer)), sentences(), PATHS, seen=seen)
    assert [lengths is None for lengths in seen] == [True, False, False, True, False]
