from __future__ import annotations

import time
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.cost.latency import Latency, _fastest, _is_stable, token_seconds, typical_seconds
from l2l_nas.errors import SettingError, TrialError
from l2l_nas.layers import Embedding, Heads, SelfAttention
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.export import plain_module


class Slow(nn.Module):
    """Takes so long; every tenth call a hundred times as long."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.calls: list[tuple[bool, bool, int]] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.append((torch.is_inference_mode_enabled(), self.training, torch.get_num_threads()))
        time.sleep(self.seconds * (100 if len(self.calls) % 10 == 9 else 1))
        return x


def test_the_time_of_a_call_is_told_in_milliseconds_and_outliers_do_not_matter():
    network = Slow(0.002).eval()
    found = Latency(lambda architecture: network, [torch.zeros(1)], torch.device("cpu"))(Architecture(("a",)))
    assert 2.0 <= found < 6.0
    assert len(network.calls) >= 8


def test_it_runs_in_inference_and_evaluation_mode_on_one_thread_and_leaves_the_setting():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        network = Slow(0.0).eval()
        typical_seconds(network, [torch.zeros(1)])
        assert set(network.calls) == {(True, False, 1)}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_slow_network_is_not_called_more_often_than_it_must_be():
    network = Slow(0.05)
    typical_seconds(network, [torch.zeros(1)], limit_s=0.1)
    assert len(network.calls) == 3 + 5


def test_a_network_that_takes_very_long_is_called_three_times():
    network = Slow(0.05)
    assert 0.05 <= typical_seconds(network, [torch.zeros(1)], limit_s=0.004) < 0.5
    assert len(network.calls) == 3


def test_a_slower_network_takes_longer():
    fast, slow = (
        typical_seconds(nn.Sequential(*(nn.Linear(128, 128) for _ in range(depth))), [torch.zeros(64, 128)])
        for depth in (1, 16)
    )
    assert slow > 3 * fast


def test_a_network_that_does_not_fit_is_one_line():
    def build(architecture):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(SettingError, match=r"does not fit on the device; .*: big > big"):
        Latency(build, [torch.zeros(1)], torch.device("cpu"))(Architecture(("big", "big")))


def test_a_layer_that_raises_is_one_line_that_names_the_architecture():
    class Odd(nn.Module):
        def forward(self, x):
            raise ZeroDivisionError("odd")

    latency = Latency(lambda architecture: Odd(), [torch.zeros(1)], torch.device("cpu"))
    with pytest.raises(TrialError, match=r"latency_ms: a > b raised ZeroDivisionError: odd"):
        latency(Architecture(("a", "b")))


def test_of_every_ten_calls_the_fastest_counts_and_of_these_the_median():
    assert _fastest([9, 8, 7, 6, 5, 4, 3, 2, 8, 9] + [30] * 9 + [20] + [1] * 4) == [2, 20]
    assert _fastest([5, 4, 6]) == [4]


def test_it_ends_early_where_rows_agree():
    assert _is_stable([1.0] * 50)
    assert not _is_stable([1.0] * 49)
    assert not _is_stable([1.0] * 10 + [1.2] * 10 + [1.4] * 10 + [1.0] * 10 + [1.4] * 10)


class Elsewhere:
    """A batch on a CUDA device, as far as a measurement asks: here there is none."""

    is_cuda = True

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device

    def to(self, device: torch.device) -> Elsewhere:
        return Elsewhere(device)


class Idle(nn.Module):
    def forward(self, x: Elsewhere) -> Elsewhere:
        return x

    def to(self, device: torch.device) -> Idle:
        return self


def test_it_waits_for_its_own_device_and_not_for_the_current_one(monkeypatch):
    waits: list[torch.device | None] = []
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device=None: waits.append(device))
    Latency(lambda architecture: Idle(), [Elsewhere()], torch.device("cuda:1"))(Architecture(("a",)))
    assert len(waits) > 5  # before the first call that counts, and after each
    assert set(waits) == {torch.device("cuda:1")}


def test_a_token_is_read_behind_the_others_of_its_text():
    seen = []

    class Mixer(nn.Module):
        def extend(self, x, cache):
            seen.append((x.shape[1], None if cache is None else cache[0].shape[1]))
            return x, (x if cache is None else torch.cat([cache[0], x], 1),)

        def forward(self, x):
            seen.append((x.shape[1], "forward"))
            return x

    class Whole(Mixer):
        extend = None

    pool = LayerPool(
        [
            Position("mixer", [Candidate("mixer", Mixer), Candidate("whole", Whole)]),
            Position("head", Candidate("l", partial(nn.Linear, 4, 4))),
        ],
        inputs=TensorSpec((7, 4)),
    )
    for choice, expected in (("mixer", {(6, None), (1, 6)}), ("whole", {(7, "forward")})):
        seen.clear()
        architecture = pool.architecture([choice, "l"])
        network, flow = plain_module(pool, architecture), pool.flow(pool.path(architecture))
        seen.clear()
        assert token_seconds(network, flow, [torch.zeros(1, 7, 4)]) > 0
        assert set(seen) == expected


def test_where_tokens_see_later_ones_all_of_the_text_is_read_again():
    seen = []

    class Seen(SelfAttention):
        def forward(self, x, documents=None):
            seen.append(x.shape[1])
            return super().forward(x, documents)

    attention = partial(Seen, 8, Heads(2, is_causal=False))
    pool = LayerPool(
        [Position("table", Candidate("table", partial(Embedding, 5, 8))), Position("a", Candidate("a", attention))],
        inputs=TensorSpec((7,), torch.int64),
    )
    network, flow = plain_module(pool, pool.original), pool.flow(pool.path(pool.original))
    assert token_seconds(network, flow, [torch.zeros(1, 7, dtype=torch.int64)]) > 0
    assert set(seen) == {7}


def test_an_input_that_is_no_text_is_given_whole_behind_a_text():
    seen = []

    class Beside(nn.Module):
        is_placewise = True

        def forward(self, x, beside):
            seen.append((x.shape[1], beside.shape[1]))
            return x

    inputs = {"x": TensorSpec((7, 4)), "beside": TensorSpec((3,))}
    pool = LayerPool([Position("both", Candidate("both", Beside), reads=("x", "beside"))], inputs=inputs)
    network, flow = plain_module(pool, pool.original), pool.flow(pool.path(pool.original))
    seen.clear()
    assert token_seconds(network, flow, [torch.zeros(1, 7, 4), torch.zeros(1, 3)]) > 0
    assert set(seen) == {(6, 3), (1, 3)}
