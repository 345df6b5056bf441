from __future__ import annotations

import torch
from torch import nn

from benchmarks.relay.memory import distinct_bytes, peak_bytes
from l2l_nas.space.operations import LiveBytes

CPU = torch.device("cpu")


def test_what_is_made_counts_until_it_is_freed_and_views_count_nothing():
    with LiveBytes() as live:
        first = torch.zeros(100)
        view = first.view(10, 10)
        second = first + 1
        assert live.now == 800
        del second
        assert live.now == 400
        del first
        assert live.now == 400
        del view
    assert (live.now, live.peak) == (0, 800)


def test_what_was_there_before_is_not_counted_however_it_is_seen():
    before = torch.zeros(100)
    with LiveBytes() as live:
        before.add_(1)
        parts = [
            before.view(10, 10),
            before.detach(),
            before[2:],
            *before.split(50),
            before.to("cpu"),
            before.expand(3, 100),
        ]
    assert live.peak == 0
    assert len(parts) == 7


def test_the_backward_is_counted_too():
    layer = nn.Linear(100, 100)
    x = torch.randn(10, 100)
    loss = layer(x).sum()
    with LiveBytes() as live:
        loss.backward()
    assert layer.weight.grad is not None
    assert live.now >= 100 * 100 * 4 + 100 * 4
    assert live.peak >= live.now


def test_each_storage_counts_once():
    tensor = torch.zeros(100)
    assert distinct_bytes([tensor, tensor.view(10, 10), torch.zeros(3)]) == 412


def test_the_peak_of_a_step_is_what_was_owned_and_what_was_made():
    def step() -> None:
        torch.zeros(250)

    assert peak_bytes(step, CPU, owned=lambda: 24, before=0) == 1024


def test_where_the_sides_cannot_be_resolved_nothing_is_said():
    assert peak_bytes(lambda: None, CPU, owned=lambda: None, before=0) is None
