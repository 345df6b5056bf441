"""Generation equals a plain loop that computes the whole text again for each token."""

from __future__ import annotations

import pytest
import torch
import transformers as hf
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.compress.families import family_of
from l2l_nas.errors import DataError, SettingError
from l2l_nas.layers import Embedding, Heads, SelfAttention
from l2l_nas.relay.access import StateAccess
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.extend import is_placewise
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.generate import Sampling, generate, recomputed
from l2l_nas.text.network import OfOneDocument, has_documents, refuse_foresight
from l2l_nas.text.perplexity import perplexity_of
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.fit import evaluate
from search_spaces import hybrid
from tests.relay.stress import Stress, relay_under
from tests.text.networks import WHOLE, log_likelihoods, plain, pool_of, server_of

PROMPTS = [[72, 105], [72, 101, 108, 108, 111, 44, 32], [33]]
GREEDY = Sampling(temperature=0)


def collected(found, count):
    texts = [[] for _ in range(count)]
    for index, token in found:
        texts[index].append(token)
    return texts


def generated(executor, prompts=PROMPTS, *, architecture=WHOLE, tokens=10, **more):
    found = generate(executor, architecture, prompts, tokens=tokens, vocabulary=257, **more)
    return collected(found, len(prompts))


def looped(network, prompt, *, tokens, length):
    """The most likely tokens, by forwards of all that is seen."""
    row, start = list(prompt), 0
    for _ in range(tokens):
        while len(row) - start > length:
            start += length + 1 - (length + 1) // 2
        row.append(int(log_likelihoods(network, row[start:]).argmax()))
    return row[len(prompt) :]


EXECUTORS = {
    "relay": lambda server: Relay(server, device="cpu"),
    "relay, caches on the host": lambda server: Relay(server, device="cpu", stash="host", lanes="threads"),
    "relay, one slot": lambda server: Relay(server, device="cpu", slots=1),
    "relay, disturbed": lambda server: relay_under(server, device="cpu", lanes="threads", stress=Stress(seed=1)),
    "resident": lambda server: ReferenceTrainer(server, device="cpu"),
}


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3"])
@pytest.mark.parametrize("kind", EXECUTORS)
def test_greedy_tokens_are_those_of_a_plain_loop(kind, name):
    server = server_of(pool_of(name, length=48))
    network = plain(server, WHOLE)
    expected = [looped(network, prompt, tokens=12, length=48) for prompt in PROMPTS]
    assert len({token for text in expected for token in text}) > 6
    assert generated(EXECUTORS[kind](server), tokens=12, sampling=GREEDY) == expected


@pytest.mark.parametrize("name", ["gpt2", "mistral"])
def test_a_text_longer_than_the_input_goes_on_with_its_later_half(name):
    server = server_of(pool_of(name, length=9))
    expected = [looped(plain(server, WHOLE), prompt, tokens=30, length=9) for prompt in PROMPTS[:1]]
    assert generated(ReferenceTrainer(server, device="cpu"), PROMPTS[:1], tokens=30, sampling=GREEDY) == expected
    long = list(range(60, 85))
    expected = [looped(plain(server, WHOLE), long, tokens=3, length=9)]
    assert generated(Relay(server, device="cpu"), [long], tokens=3, sampling=GREEDY) == expected


def test_an_architecture_without_some_layers_writes_too():
    server = server_of(pool_of())
    architecture = Architecture(("original", "skip", "original", "original", "skip", *("original",) * 4))
    expected = [looped(plain(server, architecture), prompt, tokens=5, length=12) for prompt in PROMPTS]
    assert generated(Relay(server, device="cpu"), architecture=architecture, tokens=5, sampling=GREEDY) == expected


class Slow(nn.Module):
    """Attention that cannot go on token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = SelfAttention(16, Heads(2))

    def forward(self, x):
        return self.attention(x)


def one_layer(layer):
    inputs = {"tokens": TensorSpec((12,), torch.int64)}
    candidates = [Candidate("embed", lambda: Embedding(257, 16)), Candidate("layer", layer)]
    candidates.append(Candidate("head", lambda: nn.Linear(16, 257)))
    return LayerPool([Position(f"p{i}", one) for i, one in enumerate(candidates)], inputs=inputs)


def test_a_layer_that_cannot_go_on_has_the_whole_text_computed_again():
    server = server_of(one_layer(Slow))
    architecture = Architecture(("embed", "layer", "head"))
    relay = Relay(server, device="cpu")
    assert recomputed(relay.server.whole_pool, architecture) == "p1"
    expected = [looped(plain(server, architecture), prompt, tokens=8, length=12) for prompt in PROMPTS]
    assert generated(relay, architecture=architecture, tokens=8, sampling=GREEDY) == expected
    assert recomputed(pool_of(), WHOLE) is None


class _SlowAtAnyLength(Slow):
    takes_any_length = True


def test_what_is_computed_again_is_as_long_as_the_text(monkeypatch):
    server = server_of(one_layer(_SlowAtAnyLength))
    architecture = Architecture(("embed", "layer", "head"))
    relay = Relay(server, device="cpu")
    expected = [looped(plain(server, architecture), prompt, tokens=8, length=12) for prompt in PROMPTS]
    lengths = []
    whole = relay.predict_population
    monkeypatch.setattr(
        relay, "predict_population", lambda *a, cuts, **k: lengths.extend(cuts) or whole(*a, cuts=cuts, **k)
    )
    assert generated(relay, architecture=architecture, tokens=8, sampling=GREEDY) == expected
    assert {length for _, length in lengths} == {8, 12}
    assert len([1 for _, length in lengths if length == 8]) > 4


class _Overflowing(nn.Linear):
    """What is beyond all numbers."""

    def forward(self, x):
        return super().forward(x) * 1e38 * 1e38

    is_placewise = True


@pytest.mark.parametrize(
    "layer", [lambda: _Overflowing(16, 16), lambda: nn.Sequential(nn.Tanh(), _Overflowing(16, 16))]
)
def test_a_network_whose_outputs_are_no_numbers_writes_nothing(layer):
    relay = Relay(server_of(one_layer(layer)), device="cpu")
    chosen = Architecture(("embed", "layer", "head"))
    with pytest.raises(DataError, match="the network's outputs are NaN or infinity"):
        generated(relay, architecture=chosen)
    with pytest.raises(DataError, match="the network's outputs are NaN or infinity"):
        refuse_foresight(relay, chosen, 12)


def test_a_network_that_sees_later_tokens_is_refused():
    server = server_of(one_layer(lambda: nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)))
    with pytest.raises(DataError, match="sees later tokens"):
        generated(Relay(server, device="cpu"), architecture=Architecture(("embed", "layer", "head")))
    bert = Architecture(("original",) * 8)
    with pytest.raises(DataError, match="only causal attention can go on token by token"):
        generated(Relay(server_of(pool_of("bert")), device="cpu"), architecture=bert)


def test_greedy_tokens_are_those_of_transformers():
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=257, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    )
    model = hf.LlamaForCausalLM(config).eval()
    family = family_of(config.to_dict())
    pool = family.pool(length=64)
    server = server_of(pool)
    architecture = Architecture(("original",) * len(pool.positions))
    resident = ReferenceTrainer(server, device="cpu")
    tensors = model.state_dict()
    for layer in pool.path(architecture):
        position = pool.positions[layer.position].name
        for name, parameter in resident.module(layer).named_parameters():
            source = family.sources[position, name]
            parameter.data.copy_(source.take(tensors[source.name]))
    resident.write_back()
    prompt = torch.tensor([PROMPTS[1]])
    expected = model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=None, pad_token_id=0)
    for executor in (resident, Relay(server, device="cpu")):
        found = generated(executor, [PROMPTS[1]], architecture=architecture, tokens=20, sampling=GREEDY)
        assert found == [expected[0, prompt.shape[1] :].tolist()]


def test_what_a_prompt_gets_does_not_depend_on_those_beside_it():
    relay = Relay(server_of(pool_of()), device="cpu")
    sampling = Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=4)
    together = generated(relay, sampling=sampling)
    assert generated(relay, PROMPTS[:1], sampling=sampling) == together[:1]
    assert generated(relay, sampling=sampling) == together
    assert generated(relay, sampling=Sampling(temperature=0.9, top_k=50, top_p=0.95, seed=5)) != together


@pytest.mark.parametrize("length", [1, 2, 9, 12])
def test_a_prompt_longer_than_the_input_gets_the_same_beside_a_short_one(length):
    resident = ReferenceTrainer(server_of(pool_of(length=length)), device="cpu")
    prompts = [list(range(60, 85)), [72, 105]]
    together = generated(resident, prompts, tokens=30, sampling=GREEDY)
    assert [generated(resident, [prompt], tokens=30, sampling=GREEDY)[0] for prompt in prompts] == together


def test_probabilities_are_those_of_transformers():
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1))
    for temperature, top_k, top_p in [(1.0, 0, 1.0), (0.7, 5, 1.0), (1.3, 0, 0.6), (0.8, 10, 0.7), (1.0, 99, 0.01)]:
        scores = logits[None] / temperature
        if top_k:
            scores = hf.TopKLogitsWarper(top_k)(None, scores)
        scores = hf.TopPLogitsWarper(top_p)(None, scores) if top_p < 1 else scores
        found = Sampling(temperature, top_k, top_p).probabilities(logits)
        torch.testing.assert_close(found, scores[0].softmax(-1).double(), atol=1e-6, rtol=1e-5)


def test_the_smallest_temperature_draws_the_most_likely_token():
    logits, sampling = torch.tensor([-3.0, 700.0, 2.0]), Sampling(temperature=5e-324, top_k=2, top_p=0.9)
    assert sampling.probabilities(logits).tolist() == [0, 1, 0]
    assert sampling.pick(logits, sampling.generator(0)) == 1


def test_tokens_are_drawn_with_their_probabilities():
    logits, sampling = torch.tensor([2.0, 1.0, 0.0, -1.0]), Sampling(temperature=0.8, top_k=3)
    generator = sampling.generator(0)
    drawn = torch.tensor([sampling.pick(logits, generator) for _ in range(4000)]).bincount(minlength=4) / 4000
    torch.testing.assert_close(drawn.double(), sampling.probabilities(logits), atol=0.03, rtol=0)


def test_a_text_ends_with_any_token_that_ends_it():
    relay = Relay(server_of(pool_of()), device="cpu")
    texts = generated(relay, sampling=GREEDY)
    ends = {texts[0][4], texts[2][3]}
    cut = generated(relay, sampling=GREEDY, ends=ends)
    first = [next((place + 1 for place, token in enumerate(text) if token in ends), None) for text in texts]
    assert cut == [text[:place] for text, place in zip(texts, first, strict=True)]
    assert len(cut[0]) <= 5


def test_each_layer_is_loaded_once_a_token_for_all_prompts(monkeypatch):
    server = server_of(pool_of())
    loads = []
    load = StateAccess.open
    monkeypatch.setattr(StateAccess, "open", lambda self, key, *a, **k: loads.append(key) or load(self, key, *a, **k))
    generated(Relay(server, device=Cpu(copies=True)), [[1, 2], [3, 4], [5, 6]], tokens=4)
    assert len(loads) == 4 * len(set(loads)) >= 4 * len(WHOLE.choices)


@pytest.mark.parametrize("wrong", [{"temperature": -1}, {"temperature": float("nan")}, {"top_k": -1}, {"top_p": 0}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(SettingError, match=f"{next(iter(wrong))} must be"):
        Sampling(**wrong)


def test_prompts_that_make_no_sense_are_refused_before_anything_runs():
    relay = Relay(server_of(pool_of()), device="cpu")
    with pytest.raises(DataError, match=r"a prompt needs at least 1 token, and tokens below 257; got \[\]"):
        generate(relay, WHOLE, [[]], tokens=1, vocabulary=257)
    with pytest.raises(DataError, match=r"tokens below 257; got \[257\]"):
        generate(relay, WHOLE, [[257]], tokens=1, vocabulary=257)
    with pytest.raises(SettingError, match="tokens must be at least 1, got 0"):
        generate(relay, WHOLE, [[1]], tokens=0, vocabulary=257)


def test_layers_that_treat_every_place_alike_are_known():
    assert is_placewise(nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(), nn.LayerNorm(4)))
    assert not is_placewise(nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3)))
    assert not is_placewise(nn.LayerNorm([3, 4]))
    assert not is_placewise(nn.MultiheadAttention(4, 2))


@pytest.mark.slow
def test_a_network_that_is_given_documents_writes_and_is_measured_as_one_without():
    two, one = (hybrid.build(257, 24, depth=2, documents=documents) for documents in (True, False))
    architecture = Architecture(("plain", "attention", "width_88", "window_3", "skip", "rms", "tied"))
    assert [p.name for p in two.positions] == [p.name for p in one.positions]
    texts, figures = [], []
    for pool in (two, one):
        relay = Relay(server_of(pool), device="cpu")
        assert recomputed(relay.server.whole_pool, architecture) is None
        texts.append(generated(relay, architecture=architecture, tokens=30, sampling=GREEDY))
        task, windows = perplexity_of("A text of some words.", Bytes(), words=5, length=24)
        samples = OfOneDocument(windows) if has_documents(pool) else windows
        figures.append(evaluate(relay, architecture, samples, task=task, micro_batch=2))
        refuse_foresight(relay, architecture, 24)
    assert texts[0] == texts[1]
    assert figures[0] == pytest.approx(figures[1], rel=1e-5)
