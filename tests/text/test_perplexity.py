"""Perplexity equals what a plain loop over tokens gives."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.network import length_of, refuse_foresight
from l2l_nas.text.perplexity import Windows, perplexity_of, wikitext
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.fit import evaluate, evaluate_population, score
from tests.text.networks import WHOLE, log_likelihoods, plain, pool_of, server_of

TEXT = "The quick brown fox — it jumps over the lazy dog, and over 2 sleeping cats."
WIKI = " \n = Fox = \n \n It @-@ self jumped over 1 @,@ 000 dogs . \n"


def loss_of(network, tokens, *, length, stride):
    """Nats of all tokens but the first, each in the first window of these that predicts it."""
    total = 0.0
    for place in range(1, len(tokens)):
        start = 0 if place <= length else math.ceil((place - length) / stride) * stride
        total -= float(log_likelihoods(network, tokens[start:place])[tokens[place]])
    return total


@pytest.mark.parametrize("stride", [1, 5, 12])
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_figures_are_those_of_a_plain_loop(name, stride):
    server = server_of(pool_of(name))
    tokens = list(TEXT.encode())
    loss = loss_of(plain(server, WHOLE), tokens, length=12, stride=stride)
    task, windows = perplexity_of(TEXT, Bytes(), words=16, length=12, stride=stride)
    found = evaluate(Relay(server, device="cpu"), WHOLE, windows, task=task, micro_batch=3)
    assert found["word_perplexity"] == pytest.approx(math.exp(loss / 16), rel=1e-4)
    assert found["token_perplexity"] == pytest.approx(math.exp(loss / (len(tokens) - 1)), rel=1e-5)
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2) / (len(tokens) - 1), rel=1e-5)


def test_every_executor_and_a_population_give_the_same():
    server = server_of(pool_of())
    task, windows = perplexity_of(TEXT, Bytes(), words=16, length=12, stride=4)
    others = [WHOLE, Architecture(("original", "skip", *("original",) * 7))]
    relay = Relay(server, device="cpu", device_budget=400_000)
    population = evaluate_population(relay, others, windows, task=task, micro_batch=4)
    assert population[0] != population[1]
    for architecture, found in zip(others, population, strict=True):
        assert (
            evaluate(ReferenceTrainer(server, device="cpu"), architecture, windows, task=task, micro_batch=4) == found
        )
    scored = score(relay, WHOLE, windows, task=task, micro_batch=4)
    assert scored.values == population[0]
    assert 0 < scored.errors["bits_per_byte"] < scored.values["bits_per_byte"]


@pytest.mark.parametrize("stride", [0, 1, 5, 12])
@pytest.mark.parametrize("count", [2, 12, 13, 14, 40])
def test_each_token_but_the_first_counts_once(count, stride):
    windows = Windows(torch.arange(100, 100 + count), 12, stride)
    (inputs,), targets = windows.batch(torch.arange(len(windows)))
    assert sorted(targets[targets >= 0].tolist()) == list(range(101, 100 + count))
    assert inputs.shape == targets.shape == (len(windows), 12)
    later = targets[1:][targets[1:] >= 0]
    before = inputs[1:][targets[1:] >= 0]
    assert torch.equal(later, before + 1)


def test_wikitext_is_normalised_by_its_own_words():
    task, windows = wikitext(WIKI, Bytes(), length=12)
    written = "= Fox =\n\nIt-self jumped over 1,000 dogs."
    assert bytes(windows.tokens.tolist()).decode() == written
    assert (task.tokens, task.words, task.num_bytes) == (len(written) - 1, 14, len(written) - 1)


def test_a_text_without_anything_to_predict_is_refused():
    with pytest.raises(DataError, match="a text of 1 tokens: there is nothing to predict"):
        perplexity_of("a", Bytes(), words=1, length=12)
    for stride in (-1, 13):
        with pytest.raises(SettingError, match=f"stride must be 1 to 12, .* or 0 for that; got {stride}"):
            perplexity_of(TEXT, Bytes(), words=1, length=12, stride=stride)


def test_a_network_that_cannot_be_measured_is_refused():
    assert length_of(pool_of(), 257) == 12
    with pytest.raises(DataError, match="the tokenizer has 300 tokens, the network 257"):
        length_of(pool_of(), 300)
    server = server_of(pool_of("bert"))
    bert = Architecture(("original",) * 8)
    with pytest.raises(DataError, match="sees later tokens than it predicts"):
        refuse_foresight(ReferenceTrainer(server, device="cpu"), bert, 12)
    refuse_foresight(ReferenceTrainer(server_of(pool_of()), device="cpu"), WHOLE, 12)


def test_a_perplexity_beyond_all_numbers_is_infinite():
    task, _ = perplexity_of(TEXT, Bytes(), words=16, length=12)
    huge = dataclasses.replace(task, words=1).finish({"samples": torch.tensor(1), "loss": torch.tensor(20.0)})
    assert huge["word_perplexity"] == math.inf
