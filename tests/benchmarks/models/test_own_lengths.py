"""Seconds of measuring a language model, beside `transformers`, on a small one."""

from __future__ import annotations

import pytest
import torch

from benchmarks.models import own_lengths
from l2l_nas.errors import SettingError
from l2l_nas.text.cloze import Cloze, continuations
from l2l_nas.text.perplexity import Perplexity, Windows
from tests.text.networks import WHOLE, plain, pool_of, server_of


class Network(torch.nn.Module):
    """As `transformers` gives one."""

    def __init__(self, server):
        super().__init__()
        self.own = plain(server, WHOLE)

    def forward(self, tokens, use_cache):
        self.logits = self.own(tokens)
        return self


@pytest.fixture(scope="module")
def both():
    server = server_of(pool_of(length=48))
    relay = own_lengths.Relay(server, device="cpu", device_budget="all")
    return relay, Network(server)


@pytest.mark.parametrize("kind", ["words", "text"])
def test_the_plain_loop_gets_the_same_batches_and_finds_the_same(both, kind):
    relay, network = both
    rows = torch.randint(0, 250, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    task, samples = Cloze(), continuations([(rows[n : 3 * n], rows[:2], "") for n in (3, 9, 1, 15)], 48)
    if kind == "text":
        task, samples = Perplexity(tokens=99, words=9, num_bytes=99), Windows(torch.tensor(rows), 48)
    batches, values = own_lengths._batches_of(relay, task, samples, 2)
    expected = [(2, 32), (2, 8)] if kind == "words" else [(2, 48), (1, 48)]
    assert [tuple(tokens.shape) for tokens, _ in batches] == expected
    loss, count = own_lengths._plain(network, batches)
    own_lengths._check(kind, values, (loss, count), len(samples))
    with pytest.raises(SettingError, match="the plain loop's"):
        own_lengths._check(kind, values, (loss * 1.01, count), len(samples))
