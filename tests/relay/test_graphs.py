"""Layers from graphs: recorded once for a key, replayed from then on, and equal to layers that run as they are.

No graph of CUDA is made here: a device that records on a CPU stands for it, see `recording.py`.
"""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.errors import SettingError
from l2l_nas.relay import graphs
from l2l_nas.relay.device import Cpu
from l2l_nas.relay.graphs import Graphs
from l2l_nas.space.losses import add_loss
from l2l_nas.space.values import as_tuple
from tests.relay.recording import Recording
from tests.relay.steps import chain_pool, is_same, relay_of, tensors, train
from tests.toys import Frozen, Normed, Partial, Running, Twice, random_data, repeated_pool


class Attention(nn.Module):
    """Uses what it takes three times, and gives it in another layout."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(6, 18)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]


class Recurrent(nn.Module):
    """Keeps a list of its weights."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 6, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def plain_pool():
    """Layers that can be recorded, each at four positions; a head."""
    kinds = {"normed": Normed, "running": Running, "partial": Partial, "twice": Twice, "frozen": Frozen}
    middle = [Candidate(name, partial(kind, 6)) for name, kind in kinds.items()]
    middle += [Candidate("attention", Attention), Candidate("lstm", Recurrent)]
    return LayerPool(
        [
            *(Position(f"layer{index}", middle) for index in range(4)),
            Position("head", [Candidate("linear", partial(nn.Linear, 6, 2))]),
        ],
        inputs=TensorSpec((3, 6)),
    )


PATHS = [
    ["normed", "attention", "running", "partial", "linear"],
    ["twice", "lstm", "frozen", "attention", "linear"],
    ["attention", "attention", "normed", "normed", "linear"],
]


def both(pool, **options):
    """A relay with graphs, its device, and one without."""
    device = Recording()
    relay = relay_of(pool(), device=device, layers="graphs", **options)
    return relay, device, relay_of(pool(), device=Cpu(copies=True), **options)


def assert_equal_steps(relay, other, paths):
    """Losses, and at the end weights and moments, to the last bit."""
    for number, path in enumerate(paths):
        ours, plain = (train(one, path, step=number) for one in (relay, other))
        assert ours == plain
    relay.drain()
    other.drain()
    assert is_same(relay.server, tensors(other.server))


OPTIONS = [
    {},
    {"slots": 3, "update": "exact", "lanes": "threads", "stash": "host"},
    {"device_budget": "all", "resident": None},
    {"slots": 4, "keep": 3, "update": "exact"},
    {"resident": "all", "slots": 2},
    {"precision": "bf16"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_results_equal_those_without_graphs_bit_for_bit(options):
    relay, device, other = both(plain_pool, **options)
    inputs = random_data(relay.pool, 5, seed=9)[0]
    for number in range(12):
        path = PATHS[number % 3]
        ours, plain = (train(one, path, step=number, batch=7, micro_batch=2) for one in (relay, other))
        assert ours == plain
        if number % 4 == 3:
            architecture = relay.pool.architecture(path)
            outputs = [one.predict(architecture, inputs, micro_batch=2)[0] for one in (relay, other)]
            assert torch.equal(*outputs)
    relay.drain()
    other.drain()
    assert is_same(relay.server, tensors(other.server))
    assert device.replays > 100


def test_a_layer_is_recorded_once_for_each_slot_mode_and_size_and_replayed_from_then_on():
    pool = lambda: chain_pool(*[partial(Normed, 6)] * 3, partial(nn.Linear, 6, 2))  # noqa: E731 - made twice
    relay, device, _ = both(pool)
    for number in range(3):
        train(relay, ["c"] * 4, step=number, batch=4, micro_batch=2)
    recorded, replays = device.num_recorded, device.replays
    # forward and backward: of one kind in two slots, again for the first one, whose input has no gradient; the head
    assert recorded == 2 * (3 + 1)
    train(relay, ["c"] * 4, step=3, batch=4, micro_batch=2)
    # of two micro-batches: four forwards, three of them again, and four backwards
    assert (device.num_recorded, device.replays - replays) == (recorded, 2 * (4 + 3 + 4))
    for number in range(4, 7):
        train(relay, ["c"] * 4, step=number, batch=6, micro_batch=3)
    assert device.num_recorded == 2 * recorded
    inputs = random_data(relay.pool, 4, seed=0)[0]
    for _ in range(3):
        relay.predict(relay.pool.architecture(["c"] * 4), inputs, micro_batch=2)
    assert device.num_recorded == 2 * recorded + 3


def test_what_comes_once_is_not_recorded():
    relay, device, _ = both(lambda: chain_pool(partial(nn.Linear, 6, 2)))
    train(relay, ["c"], batch=2, micro_batch=2)
    assert device.num_recorded == 0
    train(relay, ["c"], batch=2, micro_batch=2, step=1)
    assert device.num_recorded == 2


def test_other_places_of_weights_or_gradients_are_recorded_anew():
    relay, device, other = both(lambda: chain_pool(partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2)), resident="all")
    for number in range(3):
        assert train(relay, ["c"] * 2, step=number) == train(other, ["c"] * 2, step=number)
    template = relay.bank.templates[0]
    before, recorded = template.addresses, device.num_recorded
    elsewhere = [torch.randn_like(tensor) for tensor in template._slot_weights[0]]
    template.bind([elsewhere])
    assert template.addresses != before
    inputs = torch.randn(2, 3, 6)
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(as_tuple(template.call(inputs))[0], template.module(inputs))
        elsewhere[0].mul_(2)
        assert torch.equal(as_tuple(template.call(inputs))[0], template.module(inputs))
    assert device.num_recorded == recorded + 1


def test_memory_grows_with_slots_and_sizes_and_not_with_kinds_or_steps():
    relay, _, _ = both(plain_pool)
    for number in range(6):
        train(relay, PATHS[number % 3], step=number, batch=4)
    before = relay.device_bytes
    slots = sum(block.numel() for slot in relay.bank.slots for block in slot.blocks)
    # for each slot: what layers take and give, and both gradients, of three sizes of outputs at most
    assert 0 < relay.bank.num_bytes - slots <= 2 * 2 * 4 * 3 * (2 * 3 * 6 * 4 + 64)
    for number in range(6, 30):
        train(relay, [("normed", "running", "partial", "twice", "frozen", "attention", "lstm")[(number * n) % 7]
                      for n in range(1, 5)] + ["linear"], step=number, batch=4)  # fmt: skip
    assert relay.device_bytes == before


def test_beyond_the_most_recordings_layers_run_without_and_one_warning_says_so():
    device = Recording()
    relay = relay_of(plain_pool(), device=device, layers="graphs")
    relay.bank._calls._most = 2
    other = relay_of(plain_pool(), device=Cpu(copies=True))
    with pytest.warns(UserWarning, match="relay.layers=graphs: 2 recordings are kept") as seen:
        assert_equal_steps(relay, other, (PATHS * 2))
    assert len(seen) == 1
    assert relay.bank._calls.num_recordings == 2


class Draws(nn.Sequential):
    """Dropout."""

    def __init__(self):
        super().__init__(nn.Linear(6, 6), nn.Dropout(0.5))


class Reads(nn.Linear):
    """What it computes depends on a value."""

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        y = super().forward(x)
        return y * 2 if y.sum().item() > 0 else y


class Masks(nn.Linear):
    """A size depends on values."""

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        y = super().forward(x)
        return y + y[y > 0].sum()


class Adds(nn.Linear):
    """A loss of its own."""

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        y = super().forward(x)
        add_loss(y.square().mean())
        return y


UNFIT = {
    Draws: "draws random numbers",
    Reads: "reads values on the host",
    Masks: "reads values on the host",
    Adds: "adds a loss",
}


@pytest.mark.parametrize("kind", UNFIT, ids=lambda kind: kind.__name__)
def test_a_layer_that_needs_its_python_runs_as_it_is_with_one_warning(kind):
    relay, device, other = both(lambda: chain_pool(kind, kind, partial(nn.Linear, 6, 2)))
    with pytest.warns(
        UserWarning, match=f"relay.layers=graphs: the layer 'c' runs without a graph: .*{UNFIT[kind]}"
    ) as seen:
        assert_equal_steps(relay, other, [["c"] * 3] * 4)
    assert len(seen) == 1
    assert device.num_recorded  # the others


def test_what_draws_from_one_of_two_generators_is_not_recorded(monkeypatch):
    monkeypatch.setattr(graphs, "generators_of", lambda device: (torch.Generator(), torch.default_generator))
    relay, _, other = both(lambda: chain_pool(Draws, partial(nn.Linear, 6, 2)))
    with pytest.warns(UserWarning, match=UNFIT[Draws]):
        assert_equal_steps(relay, other, [["c"] * 2] * 3)


def test_dropout_runs_from_a_graph_in_evaluation():
    relay, device, other = both(lambda: chain_pool(Draws, partial(nn.Linear, 6, 2)))
    inputs = random_data(relay.pool, 6, seed=0)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            outputs = [
                one.predict(one.pool.architecture(["c"] * 2), inputs, micro_batch=2)[0] for one in (relay, other)
            ]
            assert torch.equal(*outputs)
    assert device.num_recorded == 2


def test_a_recording_that_fails_leaves_the_layer_as_it_is():
    device = Recording()

    def fail(work, place):
        work()
        raise RuntimeError("operation not permitted when stream is capturing")

    device.capture = fail
    relay = relay_of(chain_pool(partial(Running, 6), partial(nn.Linear, 6, 2)), device=device, layers="graphs")
    other = relay_of(chain_pool(partial(Running, 6), partial(nn.Linear, 6, 2)), device=Cpu(copies=True))
    with pytest.warns(UserWarning, match="cannot be recorded: raised RuntimeError: operation not permitted"):
        assert_equal_steps(relay, other, [["c"] * 2] * 3)


@pytest.mark.parametrize("options", [{}, {"device_budget": "all", "resident": None}], ids=str)
def test_repeated_layers_of_the_tail_run_as_they_are(options):
    relay, _, other = both(repeated_pool, **options)
    for path in (["twice", "twice", "partial", "twice", "head"], ["normed", "partial", "partial", "running", "head"]):
        assert_equal_steps(relay, other, [path] * 5)


def test_a_value_with_several_readers_is_recorded_where_each_takes_it_once():
    """Sums of gradients are those of plain PyTorch to the last bit; see [Note: sums of gradients]."""

    class Both(nn.Linear):
        """Of two values."""

        def __init__(self):
            super().__init__(6, 6)

        def forward(self, x, y):
            return super().forward(x) + y

    def pool():
        return LayerPool(
            [
                Position("a", [Candidate("c", partial(nn.Linear, 6, 6))]),
                Position("b", [Candidate("c", Attention)]),
                Position("d", [Candidate("c", Both)], reads=("b", "a")),
                Position("e", [Candidate("c", partial(nn.Linear, 6, 2))]),
            ],
            inputs=TensorSpec((3, 6)),
        )

    relay, device, other = both(pool)
    with pytest.warns(UserWarning, match="takes a value twice that may have other readers"):
        assert_equal_steps(relay, other, [["c"] * 4] * 5)
    assert device.num_recorded


def test_a_device_without_graphs_refuses_them_in_one_line():
    with pytest.raises(
        SettingError, match=r"^layers=graphs needs a CUDA device, device=cpu has no graphs; use layers=eager$"
    ):
        relay_of(plain_pool(), device="cpu", layers="graphs")
    with pytest.raises(SettingError, match="layers: no 'graph'; did you mean 'graphs'"):
        relay_of(plain_pool(), device="cpu", layers="graph")


def test_a_recording_that_gives_other_values_than_the_layer_is_not_used():
    class Wrong(Recording):
        def _capture(self, work, place):
            super()._capture(work, place)
            return lambda: None

    pool = lambda: chain_pool(*[partial(Normed, 6)] * 2, partial(nn.Linear, 6, 2))  # noqa: E731 - made twice
    relay, other = relay_of(pool(), device=Wrong(), layers="graphs"), relay_of(pool(), device=Cpu(copies=True))
    with pytest.warns(UserWarning, match="runs without a graph: it gives other values when its graph is replayed"):
        assert_equal_steps(relay, other, [["c"] * 3] * 4)
    assert not relay.bank._calls.num_recordings


def test_a_recording_that_raises_when_it_is_replayed_costs_no_gradient():
    class Broken(Recording):
        def _capture(self, work, place):
            replay = super()._capture(work, place)

            def broken():
                replay()
                if torch.is_grad_enabled() and "backward" in work.__code__.co_names:
                    raise RuntimeError("the launch failed")

            return broken

    pool = lambda: chain_pool(*[partial(Normed, 6)] * 2, partial(nn.Linear, 6, 2))  # noqa: E731 - made twice
    relay, other = relay_of(pool(), device=Broken(), layers="graphs"), relay_of(pool(), device=Cpu(copies=True))
    with pytest.warns(UserWarning, match="runs without a graph: it cannot be recorded: raised RuntimeError"):
        assert_equal_steps(relay, other, [["c"] * 3] * 4)


def test_a_gradient_that_is_zero_but_for_rounding_may_round_otherwise_when_it_is_replayed():
    class Rounding(Recording):
        def _capture(self, work, place):
            replay = super()._capture(work, place)

            def run():
                replay()
                for template in relay.bank.templates:
                    for name, parameter in template.module.named_parameters():
                        if name == "linear.bias" and parameter.grad is not None:  # the norm behind takes it away
                            parameter.grad.add_(1e-7)

            return run

    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear, self.norm = nn.Linear(6, 6), nn.BatchNorm1d(6, affine=False)

        def forward(self, x):
            return self.norm(self.linear(x).transpose(1, 2)).transpose(1, 2)

    relay = relay_of(chain_pool(*[Normalised] * 2, partial(nn.Linear, 6, 2)), device=Rounding(), layers="graphs")
    for step in range(3):
        train(relay, ["c"] * 3, step=step)
    assert relay.bank._calls.num_recordings


def test_a_layer_that_gathers_its_weights_elsewhere_runs_without_a_graph():
    """As cuDNN's recurrent layers do with weights that are not their own parameters."""

    class Gathering(nn.Linear):
        def forward(self, x):
            if not isinstance(self.weight, nn.Parameter):
                self.weight.data = self.weight.data.clone()
            return super().forward(x)

    pool = lambda: chain_pool(partial(Gathering, 6, 6), partial(nn.Linear, 6, 2))  # noqa: E731 - made twice
    relay, device, other = both(pool)
    with pytest.warns(UserWarning, match="runs without a graph: it moves its weights to memory of its own"):
        assert_equal_steps(relay, other, [["c"] * 2] * 4)
    assert device.num_recorded


def test_another_run_in_between_is_noticed():
    """What its forward left for its backward may be gone then."""
    device = Recording()
    relay = relay_of(chain_pool(partial(nn.Linear, 6, 2)), device=device, layers="graphs")
    for number in range(3):
        train(relay, ["c"], step=number)
    template = relay.bank.templates[0]
    template.module.train()
    outputs = [template.call(torch.randn(2, 3, 6))[0] for _ in range(2)]
    assert isinstance(relay.bank._calls, Graphs)
    with pytest.raises(AssertionError, match="another layer ran in the slot"):
        outputs[0].sum().backward()
