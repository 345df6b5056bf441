"""Packed and masked sequences, beside independent straightforward code; shuffling that resumes."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch

from l2l_nas.errors import L2LError
from l2l_nas.text.data import TextForm, text_data
from l2l_nas.text.samples import Masking
from l2l_nas.text.token_file import token_file
from l2l_nas.text.tokenizer import Bytes, load_tokenizer
from l2l_nas.training.data import Batches
from l2l_nas.training.samples import num_groups
from tests.text.test_token_file import write_json

TEXTS = ["".join(random.Random(n).choices("abc de", k=random.Random(-n).randint(1, 90))) for n in range(60)]

SIXTHS = {"validation_fraction": 1 / 6, "test_fraction": 1 / 6}  # 10 documents of 60 each


@pytest.fixture
def source(tmp_path):
    return str(write_json(tmp_path / "a.jsonl", TEXTS))


def data_of(source, tmp_path, tokenizer=None, **form):
    return text_data(source, tokenizer or Bytes(), TextForm(**form), cache=str(tmp_path / "cache"))


def test_packed_sequences_are_the_text_shifted_by_one(source, tmp_path):
    data = data_of(source, tmp_path, length=16, **SIXTHS)
    for part, texts in ((data.train, TEXTS[:40]), (data.validation, TEXTS[40:50]), (data.test, TEXTS[50:])):
        stream = [token for text in texts for token in [*text.encode(), 256]]
        rows = [stream[start : start + 17] for start in range(0, len(stream), 16)]
        rows = [row for row in rows if len(row) == 17]
        (inputs,), targets = part.batch(torch.arange(len(part)))
        assert inputs.tolist() == [row[:-1] for row in rows]
        assert targets.tolist() == [row[1:] for row in rows]
        assert inputs.dtype == targets.dtype == torch.int64


def test_sequences_of_a_document_are_a_group(tmp_path):
    """Documents of 40 tokens in sequences of 16: those that begin in one."""
    source = str(write_json(tmp_path / "a.jsonl", ["a" * 39] * 40))
    data = data_of(source, tmp_path, length=16, validation_fraction=0.25, test_fraction=0.25)
    first = int(data.validation.groups[0])
    assert (data.validation.groups - first).tolist() == [16 * row // 40 for row in range(len(data.validation))]
    assert num_groups(data.validation) == 10
    one = data_of(
        str(write_json(tmp_path / "one.jsonl", ["a" * 900])),
        tmp_path,
        length=16,
        validation_fraction=1 / 3,
        test_fraction=0,
    )
    assert num_groups(one.validation) == len(one.validation)  # a document alone: each sequence is one


def test_sequences_that_begin_with_a_token_have_all_others_as_targets(source, tmp_path):
    data = data_of(source, tmp_path, length=16, **SIXTHS, begin=7)
    for part, texts in ((data.train, TEXTS[:40]), (data.validation, TEXTS[40:50])):
        stream = [token for text in texts for token in [*text.encode(), 256]]
        rows = [stream[start : start + 16] for start in range(0, len(stream) - 15, 16)]
        (inputs,), targets = part.batch(torch.arange(len(part)))
        assert inputs.tolist() == [[7, *row[:-1]] for row in rows]
        assert targets.tolist() == rows


def test_a_token_that_begins_a_sequence_is_of_the_document_behind_it(source, tmp_path):
    data = data_of(source, tmp_path, length=16, **SIXTHS, begin=7, is_apart=True)
    (inputs, documents), targets = data.validation.batch(torch.arange(len(data.validation)))
    stream = [(token, 40 + number) for number, text in enumerate(TEXTS[40:50]) for token in [*text.encode(), 256]]
    for row in range(len(inputs)):
        window = stream[row * 16 : row * 16 + 16]
        window.insert(0, (7, window[0][1]))
        assert inputs[row].tolist() == [token for token, _ in window[:-1]]
        assert documents[row].tolist() == [number for _, number in window[:-1]]
        pairs = itertools.pairwise(window)
        assert targets[row].tolist() == [new if one == other else -1 for (_, one), (new, other) in pairs]


def test_documents_apart_are_told_and_their_first_tokens_are_no_targets(source, tmp_path):
    data = data_of(source, tmp_path, length=16, **SIXTHS, is_apart=True)
    (inputs, documents), targets = data.validation.batch(torch.arange(len(data.validation)))
    stream = [(token, 40 + number) for number, text in enumerate(TEXTS[40:50]) for token in [*text.encode(), 256]]
    for row in range(len(inputs)):
        window = stream[row * 16 : row * 16 + 17]
        assert inputs[row].tolist() == [token for token, _ in window[:-1]]
        assert documents[row].tolist() == [number for _, number in window[:-1]]
        pairs = itertools.pairwise(window)
        assert targets[row].tolist() == [new if one == other else -1 for (_, one), (new, other) in pairs]
    assert (targets == -1).sum() > 3


def words_of(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghij", *(f"##{letter}" for letter in "abcdefghij")]
    (tmp_path / "words").mkdir(exist_ok=True)
    (tmp_path / "words/vocab.txt").write_text("\n".join(words))
    return load_tokenizer(str(tmp_path / "words"))


@pytest.mark.parametrize("most", [None, 3])
def test_masked_words_are_whole_few_enough_and_replaced_as_bert_s(tmp_path, most):
    tokenizer = words_of(tmp_path)
    letters = [random.Random(n).choices("abcdefghij", k=random.Random(n).randint(1, 5)) for n in range(6000)]
    source = write_json(tmp_path / "a.jsonl", [" ".join("".join(word) for word in letters[n::60]) for n in range(60)])
    form = {
        "length": 32,
        "objective": "masked",
        "masking": Masking(0.2, most),
        "validation_fraction": 1 / 12,
        "test_fraction": 1 / 12,
    }
    data = data_of(str(source), tmp_path, tokenizer, **form)
    stream = np.array(token_file([source], tokenizer, cache=tmp_path / "cache").tokens[: len(data.train) * 30])
    became: Counter[str] = Counter()
    (tokens,), targets = data.train.batch(torch.arange(len(data.train)), key=(3, 7))
    assert (tokens[:, 0] == 2).all()
    assert (tokens[:, -1] == 3).all()
    assert (targets[:, [0, -1]] == -1).all()
    for row in range(len(tokens)):
        original = stream[row * 30 : row * 30 + 30]
        found, wanted = tokens[row, 1:-1].numpy(), targets[row, 1:-1].numpy()
        chosen = wanted >= 0
        assert (wanted[chosen] == original[chosen]).all()
        assert (found[~chosen] == original[~chosen]).all()
        assert 1 <= chosen.sum() <= (most or 6)
        assert not np.isin(original[chosen], [2, 3, 4]).any()
        for place in range(1, 30):  # a continuation goes with what it continues
            if original[place] >= 15:
                assert chosen[place] == chosen[place - 1]
        for new, old in zip(found[chosen], original[chosen], strict=True):
            became["mask" if new == 4 else "same" if new == old else "other"] += 1
    total = sum(became.values())
    assert abs(became["mask"] / total - 0.8) < 0.05
    assert abs(became["other"] / total - 0.1) < 0.04
    assert total / len(tokens) > (5 if most is None else 2.5)


def test_of_words_that_are_all_too_long_the_first_tokens_of_one_are_asked_for(tmp_path):
    source = write_json(tmp_path / "a.jsonl", ["abcdefghij abcdefghij"] * 60)
    form = {"length": 12, "objective": "masked", "masking": Masking(0.2, 1), **SIXTHS}
    part = data_of(str(source), tmp_path, words_of(tmp_path), **form).train
    (tokens,), targets = part.batch(torch.arange(len(part)))
    assert ((targets >= 0).sum(dim=1) == 1).all()
    # a word's first token, or that of what the sequence's begin has cut
    assert ((targets < 15) | (torch.arange(12) == 1))[targets >= 0].all()
    assert tokens.shape == targets.shape


def test_masks_follow_from_the_key_and_the_row_alone(tmp_path, source):
    part = data_of(source, tmp_path, length=16, objective="masked", **SIXTHS).train
    (one,), _ = part.batch(torch.tensor([3, 5]), key=(1, 2))
    (other,), _ = part.batch(torch.tensor([5, 3, 1]), key=(1, 2))
    (third,), _ = part.batch(torch.tensor([3, 5]), key=(1, 3))
    assert torch.equal(one[0], other[1])
    assert torch.equal(one[1], other[0])
    assert not torch.equal(one, third)
    assert torch.equal(part.batch(torch.tensor([4]))[0][0], part.batch(torch.tensor([4]))[0][0])


def test_every_epoch_has_every_sequence_once_in_an_order_that_resumes(tmp_path, source):
    part = data_of(source, tmp_path, length=16, **SIXTHS).train
    batches, again = (Batches(part, batch_size=7, seed=5) for _ in range(2))
    steps = len(part) // 7
    for epoch in (0, 1):
        rows = [row for step in range(steps) for row in batches.at(epoch * steps + step)[0][0].tolist()]
        everything = part.batch(torch.arange(len(part)))[0][0].tolist()
        assert not Counter(map(tuple, rows)) - Counter(map(tuple, everything))
        assert len(rows) == steps * 7
    assert torch.equal(again.at(steps + 3)[0][0], batches.at(steps + 3)[0][0])
    assert not torch.equal(batches.at(0)[0][0], batches.at(steps)[0][0])


@pytest.mark.parametrize(
    ("form", "words"),
    [
        ({"length": 0}, "data.length must be at least 1, got 0"),
        ({"objective": "maskd"}, "data.objective: no 'maskd'; did you mean 'masked'"),
        ({"validation_fraction": 0}, "validation_fraction must lie between 0 and 1, got 0"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, "together they must be below 1"),
        (
            {"test_fraction": 0.001},
            "60 documents, of which 0.001 are for the test part, leave it none; give it",
        ),
        (
            {"length": 900, **SIXTHS},
            "the validation part has .* tokens, less than a sequence of 900 and the target behind it; give",
        ),
        ({"objective": "masked", "is_apart": True}, "data.documents=apart is of data.objective=causal"),
    ],
)
def test_forms_that_cannot_be_are_refused(source, tmp_path, form, words):
    with pytest.raises(L2LError, match=words) as caught:
        data_of(source, tmp_path, **form)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_without_a_mask_is_refused(source, tmp_path):
    tokenizer = Bytes()
    tokenizer.mask = None
    with pytest.raises(L2LError, match="the tokenizer has no token that masks"):
        data_of(source, tmp_path, tokenizer, objective="masked", **SIXTHS)
