from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from benchmarks.models.passages import last_words, paired, window_losses
from l2l_nas.text.cloze import Cloze
from l2l_nas.training.samples import Split

VOCABULARY = 20


class Running(nn.Module):
    """A causal model: the logits of a place follow from the sum of the embeddings so far. It notes what it is given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(VOCABULARY, 8)
        self.out = nn.Linear(8, VOCABULARY)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.seen.append(tuple(tokens.shape))
        return self.out(self.table(tokens).cumsum(dim=1).sin())


@pytest.fixture
def model() -> Running:
    return Running()


def words(lengths: list[int]) -> Split:
    """Passages of these lengths, whose last two tokens are the word."""
    inputs = torch.zeros(len(lengths), 12, dtype=torch.int64)
    targets = torch.full_like(inputs, -1)
    for row, length in enumerate(lengths):
        tokens = torch.randint(1, VOCABULARY, (length + 1,), generator=torch.Generator().manual_seed(row))
        inputs[row, :length], targets[row, length - 2 : length] = tokens[:-1], tokens[-2:]
    return Split((inputs,), targets)


def test_last_words_are_those_of_the_library_in_the_order_of_the_passages(model):
    samples = words([9, 3, 12, 5, 7])
    (inputs,), targets = samples.batch(torch.arange(5))
    with torch.no_grad():
        found = model(inputs)
        targets[[0, 3]] = torch.where(targets[[0, 3]] >= 0, found[[0, 3]].argmax(dim=-1), -1)  # two are right
    figures = Cloze().figures((found,), targets)
    got = last_words(model, Split((inputs,), targets), batch=2)
    assert [hit for hit, _ in got] == [True, False, False, True, False] == figures[:, 1].bool().tolist()
    assert [loss for _, loss in got] == pytest.approx(figures[:, 3].tolist(), rel=1e-5)


def test_a_batch_is_as_long_as_its_longest_passage(model):
    last_words(model, words([9, 3, 12, 5, 7]), batch=2)
    assert model.seen == [(2, 5), (2, 9), (1, 12)]


def test_windows_give_the_mean_loss_of_all_tokens_but_the_first(model):
    windows = torch.randint(VOCABULARY, (5, 6), generator=torch.Generator().manual_seed(9))
    found = window_losses(model, windows, batch=2)
    expected = [functional.cross_entropy(model(row[None])[0, :-1], row[1:]).item() for row in windows]
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_error_of_a_difference_is_that_of_pairs():
    mean, error = paired([3.0, 5.0, 10.0], [1.0, 4.0, 7.0])
    assert mean == 2.0
    assert error == pytest.approx(1.0 / math.sqrt(3))
