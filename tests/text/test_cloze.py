"""Last words are scored as a plain loop over passages scores them."""

from __future__ import annotations

import json
import math
import re

import pytest
import torch
from torch import nn

from l2l_nas.errors import DataError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.text.cloze import Passage, lambada, read_passages
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.fit import evaluate, score
from tests.text.networks import WHOLE, log_likelihoods, pool_of, server_of

WORDS = ["a", "an", "the", "fox", "dogs", "it's", "I", "x", "sleeping"]
PASSAGES = [
    Passage(context, word)
    for context in ("b", "Over the lazy dogs", "It is a rather long context, longer than the input")
    for word in WORDS
]
FIRST, INNER = slice(225, 251), slice(97, 123)  # tokens of small letters, with a space before them and without


class Letters(Bytes):
    """A space and a letter are one token, as in published vocabularies."""

    def encode(self, text):
        return [ord(found[-1]) + 128 * (len(found) - 1) for found in re.findall(" ?.", text, re.DOTALL)]


def continued(network):
    """Passages whose last word is what the network would say, wholly or but for its first letter."""
    found = []
    for passage in PASSAGES:
        for wrong in (0, 1):
            context = tokens = Letters().encode(passage.context)
            for place in range(len(passage.target)):
                allowed = INNER if place else FIRST
                best = int(log_likelihoods(network, tokens[-12:])[allowed].argmax()) + allowed.start
                tokens = [*tokens, best if place or not wrong else 225]
            found.append(Passage(passage.context, bytes(token % 128 for token in tokens[len(context) :]).decode()))
    return found


@pytest.mark.slow
def test_figures_are_those_of_a_plain_loop():
    server = server_of(pool_of("llama"))
    resident = ReferenceTrainer(server, device="cpu")
    network = nn.Sequential(*(resident.module(layer) for layer in server.pool.path(WHOLE))).eval()
    for others in (slice(97), slice(123, 225), slice(251, None)):  # letters come first, so that some of them are right
        network[-1].weight.data[others] = 0
    network[-1].weight.data[FIRST] *= 1.5
    resident.write_back()
    passages = [*PASSAGES, *continued(network)]
    right, last, loss = 0, 0, 0.0
    for passage in passages:
        context, word = (Letters().encode(text) for text in (passage.context, f" {passage.target}"))
        tokens = (context + word)[-13:]
        hits = []
        for place in range(len(tokens) - len(word), len(tokens)):
            likelihoods = log_likelihoods(network, tokens[:place])
            hits.append(int(likelihoods.argmax()) == tokens[place])
            loss -= float(likelihoods[tokens[place]])
        right, last = right + all(hits), last + hits[-1]
    task, samples = lambada(passages, Letters(), length=12)
    found = evaluate(Relay(server, device="cpu"), WHOLE, samples, task=task, micro_batch=4)
    assert found["accuracy"] == right / len(passages)
    assert found["last_token_accuracy"] == last / len(passages)
    assert found["target_perplexity"] == pytest.approx(math.exp(loss / len(passages)), rel=1e-4)
    assert 0 < right < last < len(passages)


def read(folder, lines):
    (folder / "cloze.jsonl").write_text("\n".join(lines))
    return read_passages(folder / "cloze.jsonl")


def test_both_forms_of_a_line_are_read(tmp_path):
    lines = [json.dumps({"context": "He met a", "target": "fox"}), "", json.dumps({"text": "He met a fox"})]
    assert read(tmp_path, lines) == [Passage("He met a", "fox")] * 2


@pytest.mark.parametrize("between", [" ", "\n", "\t", " \n", "\n "])
def test_the_last_word_is_what_stands_behind_white_space_which_stays(tmp_path, between):
    text = f"He went{between}to the{between}house"
    lines = [json.dumps({"text": f" {text}\n"}), json.dumps({"context": text.removesuffix("house"), "target": "house"})]
    passages = read(tmp_path, lines)
    for passage in passages:
        assert passage.target == "house"
        assert passage.context + passage.between + passage.target == text
    _, samples = lambada(passages, Letters(), length=40)
    asked = Letters().encode(" house" if between.endswith(" ") else "house")
    for targets in samples.batch(torch.arange(2))[1].tolist():
        assert [token for token in targets if token >= 0] == asked


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"text": "fox"}', "expected .*, got "),
        ("He met a fox", "no JSON"),
        ("[]", "a JSON array, where an object is expected"),
        ('{"context": 3, "target": "fox"}', "expected .*, got "),
        ("[" * 9999, "a JSON array"),
    ],
)
def test_a_line_that_is_no_passage_is_refused(tmp_path, line, says):
    with pytest.raises(DataError, match=rf"cloze\.jsonl, line 2: {says}") as caught:
        read(tmp_path, ['{"text": "a fox"}', line])
    assert len(str(caught.value).removeprefix(str(tmp_path))) < 200
    with pytest.raises(DataError, match="holds no passage"):
        read(tmp_path, ["", "  "])


def test_a_last_word_longer_than_the_input_is_refused():
    with pytest.raises(DataError, match="the last word 'abcdefghijkl' has 13 tokens, the network takes 12"):
        lambada([Passage("an", "abcdefghijkl")], Bytes(), length=12)
    lambada([Passage("an", "abcdefghijk")], Bytes(), length=12)


def test_error_bars_come_with_the_figures():
    task, samples = lambada(PASSAGES, Bytes(), length=12)
    found = score(Relay(server_of(pool_of()), device="cpu"), WHOLE, samples, task=task, micro_batch=4)
    assert found.errors["target_perplexity"] > 0
