"""Words that were read once are found again, or are not, by how far away they were read."""

from __future__ import annotations

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from l2l_nas import SGD, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.__main__ import main
from l2l_nas.errors import DataError, SettingError
from l2l_nas.text.language import LanguageModel, evaluate_text
from l2l_nas.text.recall import recall_passages, repeated_passages
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.samples import Split
from tests.compress.small_model import save_small_llama

LENGTH = 320
_SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "ri")
TEXT = " ".join(one + other + third for one in _SYLLABLES for other in _SYLLABLES for third in _SYLLABLES)


class Induction(nn.Module):
    """Says what followed the last place that was preceded by the same tokens, among so many before."""

    def __init__(self, sees: int) -> None:
        super().__init__()
        self.sees = sees
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        logits = torch.zeros(*tokens.shape, 257)
        for row, line in enumerate(tokens.tolist()):
            for place in range(8, len(line)):
                last = line[place - 7 : place + 1]
                for start in range(place - 8, max(-1, place - self.sees), -1):
                    if line[start : start + 8] == last:
                        logits[row, place, line[start + 8]] = 1.0
                        break
        return self.weight * logits


def model_of(sees):
    pool = LayerPool(
        [Position("all", Candidate("induction", partial(Induction, sees)))],
        inputs={"tokens": TensorSpec((LENGTH,), torch.int64)},
    )
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0)
    return LanguageModel(server, pool.original, Bytes(), partial(Relay, device="cpu"), "cpu")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def far_of(text=TEXT):
    return list(recall_passages(text, Bytes(), length=LENGTH))


@pytest.mark.parametrize("text", [TEXT, " ".join(one + "international" for one in TEXT.split()) + " " + TEXT[:400]])
def test_each_answer_is_read_once_so_far_away(text):
    found = recall_passages(text, Bytes(), length=LENGTH)
    assert found == recall_passages(text, Bytes(), length=LENGTH)
    first, *others, last = found
    assert others == [pytest.approx(2 * first, abs=1), pytest.approx(4 * first, abs=3)]
    assert 180 < last < LENGTH
    words = set(re.findall(r"\b\w+\b", text))
    for distance, passages in found.items():
        assert len(passages) == len({one.context for one in passages}) == 64
        for one in passages:
            key = re.search(r"\n(\w+) =$", one.context)[1]
            assert {key, one.target} <= words
            assert f"{key} = {one.target}\n" in one.context
            assert (one.context.count(one.target), one.context.count(key)) == (1, 2)
            assert len(Bytes().encode(one.context + " " + one.target)) < LENGTH
            between = one.context.rindex(f"\n{key} =") - one.context.index(f"{key} = ")
            assert between < distance + 80
    means = [sum(len(one.context) for one in passages) / 64 for passages in found.values()]
    assert means == sorted(means)


def test_a_network_that_sees_all_finds_all_and_one_of_a_window_what_is_in_it(text):
    whole, count = evaluate_text(model_of(LENGTH), "recall", text)
    assert count == 4 * 64
    names = [f"accuracy_{far}" for far in far_of()]
    assert list(whole.values) == ["accuracy", *names]
    assert min(whole.values.values()) > 0.9  # in a few passages two pairs are alike to it
    window, _ = evaluate_text(model_of(130), "recall", text)
    each = [window.values[name] for name in names]
    assert each[0] > 0.6 > 0.1 > each[2] >= each[3]
    assert window.values["accuracy"] == pytest.approx(sum(each) / 4)
    assert window.errors["accuracy"] == pytest.approx(math.hypot(*(window.errors[name] for name in names)) / 4)


def test_what_cannot_be_asked_is_refused(text):
    with pytest.raises(DataError, match="the text has 2 different ones; at least 32"):
        recall_passages("word words 12345 a b", Bytes(), length=LENGTH)
    with pytest.raises(DataError, match=r"pairs and question take \d+ tokens, and the network takes 96; at least"):
        recall_passages(TEXT, Bytes(), length=96)
    with pytest.raises(DataError, match=r"asks over \d+ tokens, and the text has 400; take a longer one"):
        recall_passages(TEXT[:400], Bytes(), length=1024)
    with pytest.raises(SettingError, match="stride is of a text's windows, which task=recall has none of"):
        evaluate_text(model_of(8), "recall", text, stride=4)


def test_tokens_stand_again_at_four_distances_and_the_second_half_of_them_is_asked_for():
    tokens = torch.randint(500, (12, 65), generator=torch.Generator().manual_seed(1))
    (again,), wanted = repeated_passages(Split((tokens[:, :-1],), tokens[:, 1:])).batch(torch.arange(12))
    distances = set()
    for row, targets in zip(again, wanted, strict=True):
        key = row[-8:].tolist()
        assert targets[-5:-1].tolist() == key[4:]
        assert [place for place, one in enumerate(targets.tolist()) if one >= 0] == [59, 60, 61, 62]
        begin = next(place for place in range(57) if row[place : place + 8].tolist() == key)
        distances.add(56 - begin - 8)
    assert distances == {6, 12, 24, 48}
    with pytest.raises(DataError, match="texts of 24 tokens; at least 32 are needed"):
        repeated_passages(Split((tokens[:, :24],), tokens[:, 1:25]))
    with pytest.raises(DataError, match="is of texts"):
        repeated_passages(Split((tokens[:, :-1],), tokens[:, 0]))


@pytest.mark.slow
def test_the_command_line_tells_of_each_distance(text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_small_llama("model", places=LENGTH)
    assert main(["evaluate", "space.pool=hf:model", "task=recall", f"file={Path(text).name}"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"  recall accuracy +\d\.\d{4} ± ", out), out
    assert len(re.findall(r"  recall accuracy_\d+ +\d\.\d{4} ± ", out)) == 4
    assert "256 passages of text.txt" in out
