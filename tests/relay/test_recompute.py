"""Layers recomputed without their end: the same gradients to the bit, and run whole wherever that is not certain."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.checkpoint import checkpoint

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.layers.transformer import EncoderBlock
from l2l_nas.relay import recompute, visits
from l2l_nas.relay.recompute import EndsOtherwise, Recompute, left_out
from l2l_nas.space.losses import add_loss, collect_losses
from tests.equivalence.plain import Plain
from tests.equivalence.test_relay_equals_plain import assert_same
from tests.relay.steps import chain_pool
from tests.toys import SquaredError

W = 8
X = torch.randn(3, 4, W, generator=torch.manual_seed(0))


class Own(torch.autograd.Function):
    """Keeps a tensor where no hook sees it."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 + 0 * ctx.x


class Ends(nn.Module):
    """Two linear layers and an end."""

    def __init__(self, end):
        super().__init__()
        self.first, self.second, self.end = nn.Linear(W, W), nn.Linear(W, W), end
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        return self.end(self, x, functional.gelu(self.first(x)))


def residual(self, x, y):
    return x + self.second(y)


def adds_in_place(self, x, y):
    out = self.second(y)
    out += x
    return out


def drops(self, x, y):
    return functional.dropout(self.second(y), 0.5, training=True)


def normed(self, x, y):
    return functional.layer_norm(self.second(y), (W,))


def reads(self, x, y):
    out = self.second(y)
    return out + out.mean().item()


def shows(self, x, y):
    out = self.second(y)
    return out + float(out.detach().numpy().mean())


def has_function(self, x, y):
    return Own.apply(y) + self.second(y)


def counts(self, x, y):
    self.seen.add_(1)
    return self.second(y)


def differentiates(self, x, y):
    return self.second(y) + torch.func.grad(lambda z: z.sin().sum())(x)


def checkpoints(self, x, y, reentrant=False):
    return checkpoint(lambda z: self.second(z).tanh(), self.second(y), use_reentrant=reentrant)


def reenters(self, x, y):
    return checkpoints(self, x, y, reentrant=True)


def has_loss(self, x, y):
    add_loss(y.square().mean())
    return self.second(y)


def sorts(self, x, y):
    out = self.second(y)
    return out, out.argmax(-1)


def lists(self, x, y):
    out = self.second(y)
    return out * 0.5 if max(out.mean((0, 1)).tolist()) > 0 else out


def points(self, x, y):
    out = self.second(y)
    assert out.data_ptr()
    return out + x


def detaches(self, x, y):
    out = self.second(y)
    return out * 0.5 if max(out.detach().mean((0, 1)).tolist()) > 0 else out


def hooks(self, x, y):
    out = self.second(y)
    with torch.no_grad():
        scale = out.abs().mean()
    out.register_hook(lambda gradient: gradient / scale)
    return out


def hooks_with_gradient(self, x, y):
    out = self.second(y)
    scale = out.abs().mean()
    out.register_hook(lambda gradient: gradient / scale)
    return out * 2


def keeps(self, x, y):
    out = self.second(y)
    with torch.no_grad():
        self.last = out.abs().mean()
    return out + x


def keeps_a_product(self, x, y):
    out = self.second(y)
    self.last = out.detach() @ self.first.weight.detach()
    return out + x


def keeps_what_it_gives(self, x, y):
    self.last = self.second(y) + x
    return self.last


def keeps_one_of_two(self, x, y):
    self.last = self.second(y) + x
    return self.last, self.second(y)


def captures(self, x, y):
    ends = []
    y.register_hook(lambda gradient: gradient * ends[0].detach().mean())
    ends.append(self.second(y))
    return ends[0] + x


def has_threads(self, x, y):
    out = self.second(y)
    with ThreadPoolExecutor(1) as threads:
        return x + threads.submit(out.exp).result()


def saves_tensors_of_a_class(self, x, y):
    ragged = torch.nested.as_nested_tensor([y[0], y[1, :2]], layout=torch.jagged)
    return self.second(y + (ragged * ragged).values().sum()) + x


class Passing(TorchDispatchMode):
    """A mode of a layer's own."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


def is_within_a_mode(self, x, y):
    with Passing():
        return self.second(y)


def is_within_two_modes(self, x, y):
    with Passing():
        out = self.second(y)
        with Passing():
            return out + x


def ends_outside_of_calls(self, x, y):
    with torch._C.DisableTorchFunction():
        return self.second(y) + x


def ends_partly_outside_of_calls(self, x, y):
    out = self.second(y)
    with torch._C.DisableTorchFunction():
        return out + x


def begins_outside_of_calls(self, x, y):
    with torch._C.DisableTorchFunction():
        y = y.sin()
    return self.second(y) + x


def begins_within_a_mode(self, x, y):
    with Passing():
        y = y.sin()
    return self.second(y) + x


def scales(self, x, y):
    return self.second(y / 3 * 2) + x


def forces(self, x, y):
    (force,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return self.second(y) + force


ENDINGS = [
    (residual, True),
    (has_loss, True),
    (adds_in_place, False),
    (drops, False),
    (normed, False),
    (reads, False),
    (shows, False),
    (has_function, False),
    (counts, False),
    (differentiates, False),
    (checkpoints, False),
    (reenters, False),
    (sorts, False),
    (lists, False),
    (points, False),
    (detaches, False),
    (hooks, False),
    (hooks_with_gradient, False),
    (keeps, False),
    (keeps_a_product, False),
    (scales, True),
    (forces, True),
    (keeps_what_it_gives, False),
    (keeps_one_of_two, False),
    (captures, False),
    (has_threads, False),
    (saves_tensors_of_a_class, False),
    (is_within_a_mode, False),
    (is_within_two_modes, False),
    (ends_outside_of_calls, False),
    (ends_partly_outside_of_calls, True),
    (begins_outside_of_calls, True),
    (begins_within_a_mode, True),
]


def recompute_of(layer, endings=None, *, least_flops=1.0):
    return Recompute(layer, {} if endings is None else endings, least_flops=least_flops)


def called(call, x):
    """What a layer gives and the gradients of it, and of its losses."""
    torch.manual_seed(3)
    x = x.clone().requires_grad_()
    with collect_losses() as losses:
        outputs = call(x)
    first = outputs[0] if isinstance(outputs, tuple) else outputs
    module = getattr(call, "_module", call)
    module.zero_grad()
    torch.autograd.backward([first, *losses], [torch.cos(X), *map(torch.ones_like, losses)])
    return first.detach(), [x.grad, *(parameter.grad for parameter in module.parameters())]


def whole_where_it_must(call, x, mode=None):
    try:
        return called(call, x)
    except EndsOtherwise:
        assert is_clean(mode)
        return called(call._module, x)


@pytest.mark.parametrize(("end", "is_short"), ENDINGS, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_can_be_left_out_is_and_gradients_are_equal_bit_for_bit(end, is_short):
    layer = Ends(end)
    again = recompute_of(layer)
    for number in range(5):
        outputs, gradients = whole_where_it_must(again, X)
        expected = called(layer, X)
        for one, other in zip(gradients, expected[1], strict=True):
            assert one is other is None or torch.equal(one, other)
        if is_short and number >= 2:
            assert outputs.isnan().all()
        else:
            assert torch.equal(outputs, expected[0])


@pytest.mark.parametrize(
    ("layer", "is_short"),
    [
        (partial(EncoderBlock, W, heads=2, feedforward=16), True),
        (partial(EncoderBlock, W, heads=2, feedforward=16, causal=True), True),
        (partial(EncoderBlock, W, heads=2, feedforward=16, dropout=0.1), False),
        (partial(nn.TransformerEncoderLayer, W, 2, 16, 0.0, norm_first=True, batch_first=True), True),
        (partial(nn.TransformerEncoderLayer, W, 2, 16, 0.0, batch_first=True), False),
        (lambda: nn.Sequential(nn.Conv1d(4, 4, 3, padding=1), nn.GELU(), nn.Conv1d(4, 4, 1)), True),
        (lambda: nn.Linear(W, W), True),
    ],
)
def test_kinds_of_layers(layer, is_short):
    layer = layer()
    again = recompute_of(layer)
    for _ in range(3):
        outputs, gradients = called(again, X)
        assert all(map(torch.equal, gradients, called(layer, X)[1]))
    assert bool(outputs.isnan().any()) == is_short


def test_small_products_are_computed():
    product = 2 * 3 * 4 * W * W
    for least, is_short in ((product, True), (product + 1, False)):
        again = recompute_of(Ends(residual), least_flops=least)
        assert any(called(again, X)[0].isnan().any() for _ in range(4)) == is_short
    x = X.to("meta").requires_grad_()
    assert left_out(Ends(residual).to("meta"), (x,), least=1.0) == product
    assert left_out(Ends(normed).to("meta"), (x,), least=1.0) == 0


def test_each_shape_has_an_end_of_its_own_and_templates_of_one_kind_share_them():
    endings = {}
    one, other = recompute_of(Ends(residual), endings), recompute_of(Ends(residual), endings)
    for _ in range(2):
        one(X)
    assert other(X).isnan().all()
    assert not other(X[:1]).isnan().any()
    for count in range(100):
        other(torch.zeros(1, count, W))
        other(torch.zeros(1, count, W))
    assert len(endings) <= 16


def known(end):
    """A layer that does not do otherwise yet, and its recompute after that was seen."""
    layer = Ends(end)
    layer.is_other = False
    again = recompute_of(layer)
    for _ in range(3):
        again(X)
        called(again, X)
    return layer, again


def negated(y):
    return -y


def parted(self, x, y):
    """Rows that values decide go one way, the others another."""
    count, rows = int(x.sum() * 0 + self.count), y.flatten(0, 1)
    return torch.cat([self.first(rows[:count]), self.second(rows[count:])]).view_as(y)


def test_sizes_that_values_decide_are_compared():
    layer = Ends(parted)
    again = recompute_of(layer)
    for layer.count in (1, 1, 1, 2, 1):
        outputs, gradients = whole_where_it_must(again, X)
        expected = called(layer, X)
        assert all(map(torch.equal, gradients, expected[1]))
    assert torch.equal(outputs, expected[0])  # whole from then on


@pytest.mark.parametrize("change", [functional.relu, negated, lambda y: y[:1] * 2, lambda y: y.sum().item() + y])
def test_a_layer_that_ends_otherwise_is_run_whole_from_then_on(change):
    def end(self, x, y):
        out = self.second(y)
        return change(out) if self.is_other else out + x

    layer, again = known(end)
    assert again(X).isnan().all()
    layer.is_other = True
    with pytest.raises(EndsOtherwise):
        again(X)
    assert torch.equal(again(X), layer(X))
    layer.is_other = False
    assert torch.equal(again(X), layer(X))


def test_a_layer_that_begins_otherwise_is_run_whole():
    def end(self, x, y):
        return self.second(torch.sin(y) if self.is_other else y)

    layer, again = known(end)
    layer.is_other = True
    outputs, gradients = called(again, X)
    assert torch.equal(outputs, layer(X))
    assert all(map(torch.equal, gradients, called(layer, X)[1]))


@pytest.mark.parametrize("change", [torch.sin, torch.relu, lambda y: y * 2])
def test_a_beginning_of_as_many_calls_is_computed_whatever_it_does(change):
    def end(self, x, y):
        return self.second(change(y) if self.is_other else torch.cos(y)) + x

    layer, again = known(end)
    for layer.is_other in (True, False, True):
        outputs, gradients = called(again, X)
        assert outputs.isnan().all()
        assert all(map(torch.equal, gradients, called(layer, X)[1]))


class Saves(torch.autograd.Function):
    """Adds, and saves what it takes."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            return y + x

    @staticmethod
    def backward(ctx, gradient):
        return gradient + 0 * ctx.saved_tensors[0], gradient


def saves(self, x, y):
    return Saves.apply(self.second(y), x)


def is_within_another_mode(self, x, y):
    with Passing():
        return self.second(y) + x


def is_within_hooks(self, x, y):
    return checkpoint(self.second, y, use_reentrant=False) + x


def lists_at_the_end(self, x, y):
    out = self.second(y)
    self.kept = out.tolist()
    return out + x


def points_at_the_end(self, x, y):
    out = self.second(y)
    self.kept = out.data_ptr()
    return out + x


def keeps_at_the_end(self, x, y):
    out = self.second(y)
    with torch.no_grad():
        self.kept = out + x
    return out


def keeps_without_gradient(self, x, y):
    out = self.second(y)
    self.kept = X + X
    return out


def is_read_outside_of_calls(self, x, y):
    out = self.second(y)
    with torch._C.DisableTorchFunction():
        return out + x if out.sum().item() < 1e6 else out


def keeps_a_result(self, x, y):
    self.kept = self.second(y)
    return self.kept + x


def counts_before(self, x, y):
    return self.second(y) + x[:1]


def switches_gradients_within_a_mode(self, x, y):
    with Passing():
        with torch.no_grad():
            pass
        return self.second(y) + x


def switches_gradients_and_is_broken_off(self, x, y):
    out = self.second(y)
    torch.set_grad_enabled(False)
    self.kept = out.sin()
    torch.set_grad_enabled(True)
    return out + x


def merges_weights(self, x, y):
    self.second.weight.data.mul_(2)
    try:
        return self.second(y).tanh()
    finally:
        self.second.weight.data.mul_(0.5)


OTHERS = [
    keeps_a_result,
    counts_before,
    switches_gradients_within_a_mode,
    switches_gradients_and_is_broken_off,
    merges_weights,
    saves,
    is_within_another_mode,
    lists_at_the_end,
    points_at_the_end,
    keeps_at_the_end,
    keeps_without_gradient,
    is_read_outside_of_calls,
]


@pytest.mark.parametrize("other", OTHERS)
def test_a_run_that_goes_astray_leaves_nothing_behind(other):
    def end(self, x, y):
        is_counted = self.is_other and other is counts_before
        self.seen.add_(1) if is_counted else self.seen.neg()
        return other(self, x, y) if self.is_other else residual(self, x, y)

    layer, again = known(end)
    layer.is_other = True
    weights, seen = layer.second.weight.clone(), layer.seen.clone()
    for _ in range(2):
        outputs, gradients = whole_where_it_must(again, X)
        assert layer.seen - seen == (other is counts_before)
        assert not torch.as_tensor(getattr(layer, "kept", 0.0)).isnan().any()
        assert torch.equal(outputs, layer(X))
        seen = layer.seen.clone()
    assert torch.equal(layer.second.weight, weights)
    for one, expected in zip(gradients, called(layer, X)[1], strict=True):
        assert one is expected is None or torch.equal(one, expected)
    assert is_clean()


def is_clean(mode=None):
    """Whether no mode but this one, and no hook, was left."""
    seen = torch.ones(2, requires_grad=True)
    return (
        torch.is_grad_enabled()
        and _get_current_dispatch_mode() is mode
        and seen.exp().grad_fn._saved_result is not None
    )


def saves_less(self, x, y):
    with saved_tensors_hooks(lambda tensor: tensor.bfloat16(), lambda tensor: tensor.float()):
        return self.second(y) + x


@pytest.mark.parametrize("other", [is_within_hooks, saves_less])
def test_contexts_of_a_layer_that_the_end_begins_in_are_left_as_they_were(other):
    def end(self, x, y):
        return other(self, x, y) if self.is_other else residual(self, x, y)

    layer, again = known(end)
    layer.is_other = True
    _, gradients = whole_where_it_must(again, X)
    assert all(map(torch.equal, gradients, called(layer, X)[1]))
    assert is_clean()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's compiler asks for it
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("backend", "since"), [("eager", 0), ("eager", 3), ("aot_eager", 0), ("aot_eager", 3), ("inductor", 0)]
)
def test_compiled_parts_compute_what_they_are(backend, since):
    compiled = torch.compile(lambda y: y.sin().cos() * 2, backend=backend)

    def end(self, x, y):
        return self.second(compiled(y) if self.is_compiled else y.sin().cos() * 2) + x

    layer, plain = Ends(end), Ends(lambda self, x, y: self.second(y.sin().cos() * 2) + x)
    plain.load_state_dict(layer.state_dict())
    again = recompute_of(layer)
    for number in range(6):
        layer.is_compiled = number >= since
        _, gradients = whole_where_it_must(again, X)
        assert all(map(torch.equal, gradients, called(layer if backend == "inductor" else plain, X)[1]))


def test_what_no_backward_goes_through_is_freed():
    kept = []

    def gates(self, x, y):
        gate = torch.sigmoid(y)
        kept.append(weakref.ref(gate))
        return self.second(y) * (gate > 0.5)

    again = recompute_of(Ends(gates))
    for _ in range(6):
        called(again, X)
    assert not any(one() is not None for one in kept)


def test_a_buffer_that_changes_later_changes_once():
    def end(self, x, y):
        out = self.second(y)
        if self.is_other:
            self.seen.mul_(0.5).add_(out.detach().mean())
        return out + x

    layer, again = known(end)
    layer.is_other = True
    whole_where_it_must(again, X)
    found = layer.seen.clone()
    layer.seen.zero_()
    layer(X)
    assert torch.equal(found, layer.seen)


def test_modes_of_others_are_left_alone():
    layers = [Ends(end) for end, _ in ENDINGS]
    with Passing() as mode:
        for layer in layers:
            again = recompute_of(layer)
            for _ in range(4):
                whole_where_it_must(again, X, mode)
        assert _get_current_dispatch_mode() is mode
    assert _get_current_dispatch_mode() is None


def test_a_change_in_place_of_a_saved_tensor_is_refused_as_autograd_does():
    def end(self, x, y):
        out = self.second(y)
        y.add_(1)
        return out

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        called(recompute_of(Ends(end)), X)


class Moody(nn.Module):
    """Its end depends on what it is given."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, W), nn.Linear(W, 6)

    def forward(self, x):
        assert sys.exc_info()[0] is None  # it would hold what the run that was thrown away had saved
        negative = x.mean().item() < 0
        y = self.second(self.first(x).relu())
        return y.tanh() if negative else y + x


def test_the_relay_runs_such_layers_again_and_equals_plain_pytorch(monkeypatch):
    monkeypatch.setattr(visits, "_COMPARISONS", 0)
    monkeypatch.setattr(recompute, "LEAST_FLOPS", {"": 1.0})
    raised = []

    def raising(self, *args, real=Recompute.__call__):
        try:
            return real(self, *args)
        except EndsOtherwise:
            raised.append(self)
            raise

    monkeypatch.setattr(Recompute, "__call__", raising)
    pool = chain_pool(Moody, partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2))
    servers = [ParamServer(pool, optimizer=AdamW(), seed=5) for _ in range(2)]
    relay, plain = Relay(servers[0], device="cpu", seed=5, slots=2), Plain(servers[1], seed=5)
    for step in range(6):
        inputs = torch.rand(8, 3, 6, generator=torch.manual_seed(step)) - step % 2
        options = {"objective": SquaredError(), "micro_batch": 1, "lr": 0.05, "step": step}
        architecture = pool.architecture(["c"] * 3)
        found = relay.train_step(architecture, (inputs,), torch.zeros(8, 3, 2), **options)
        assert found.loss == plain.step(architecture, (inputs,), torch.zeros(8, 3, 2), **options)
    relay.drain()
    assert_same(servers[0], plain)
    assert raised
