"""Clipping and the dynamic loss scale, beside torch's own."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from l2l_nas import SGD, ParamServer
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.scale import Clip, LossScale, norms_of, total_norm
from l2l_nas.errors import NonFiniteError, SettingError
from tests.eps.sent import with_norms
from tests.toys import dense_pool

KEYS = ("layer0/dense", "head/linear")


@pytest.mark.parametrize("norm", [0.0, -1.0, math.inf, math.nan])
def test_a_norm_that_makes_no_sense_is_refused(norm):
    with pytest.raises(SettingError, match="the largest gradient norm must be"):
        Clip(norm)


def test_a_scope_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="scope: no 'all'; choose from global, layer"):
        Clip(1.0, "all")


@settings(derandomize=True, deadline=None, database=None, max_examples=50)
@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.floats(1e-4, 1e3), st.integers(0, 99))
def test_clipping_equals_torch_s_bit_for_bit(count, largest, size, seed):
    torch.manual_seed(seed)
    parameters = [nn.Parameter(torch.zeros(3, 4)) for _ in range(count)]
    gradients = [torch.randn(3, 4) * size for _ in parameters]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(parameters, largest)
    norms = list(norms_of(gradients))
    assert torch.equal(total_norm(norms), expected)
    coefficient = Clip(largest).coefficient(total_norm(norms))
    assert all(torch.equal(g * coefficient, p.grad) for g, p in zip(gradients, parameters, strict=True))


@settings(derandomize=True, deadline=None, database=None, max_examples=100)
@given(st.lists(st.lists(st.integers(0, 40), max_size=3), min_size=1, max_size=8), st.floats(1e-30, 1e30), st.data())
def test_norms_of_all_have_the_bits_of_each_alone(shapes, size, data):
    torch.manual_seed(0)
    tensors = [torch.randn(shape) * size for shape in shapes]
    if data.draw(st.booleans()):
        tensors = [tensor.T if tensor.dim() == 2 else tensor[::2] if tensor.dim() else tensor for tensor in tensors]
    out = torch.empty(len(tensors))
    norms_of(tensors, out=out)
    assert torch.equal(out, torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]))


def test_norms_of_large_tensors_have_the_bits_of_each_alone():
    large = torch.randn(2049, 2503)
    tensors = [large, large.T, large[1:, ::3], large.flatten()[1:]]
    assert torch.equal(norms_of(tensors), torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors]))


def test_the_norm_of_nothing_is_zero_and_clips_nothing():
    assert total_norm([]) == 0
    assert Clip(1.0).coefficient(total_norm([])) == 1.0


@settings(derandomize=True, deadline=None, database=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 5))
def test_the_scale_moves_as_torch_s_grad_scaler_moves_it(overflows, interval):
    """As long as it stays above 1, below which ours does not go."""
    ours = LossScale(2.0**40, interval)
    theirs = torch.amp.GradScaler(
        "cpu", init_scale=2.0**40, growth_factor=2.0, backoff_factor=0.5, growth_interval=interval
    )
    parameter = nn.Parameter(torch.ones(()))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for is_bad in overflows:
        optimizer.zero_grad()
        theirs.scale(parameter * 1.0).backward()
        if is_bad:
            parameter.grad.fill_(math.inf)
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflowed=is_bad)
        assert ours.scale == theirs.get_scale()


def test_the_scale_never_goes_below_one():
    scale = LossScale(1.5)
    for _ in range(3):
        scale.update(overflowed=True)
    assert scale.scale == 1.0
    assert scale.is_lowest


def test_what_a_checkpoint_keeps_goes_on_as_before():
    scale, other = LossScale(8.0, interval=3), LossScale(interval=3)
    scale.update(overflowed=False)
    other.load(scale.state())
    for one in (scale, other):
        one.update(overflowed=False)
        one.update(overflowed=False)
    assert scale == other == LossScale(16.0, 3, 0)


def test_a_scale_that_was_kept_with_more_good_steps_than_a_shorter_interval_still_grows():
    scale = LossScale(8.0, interval=2)
    scale.load({"scale": 8.0, "good_steps": 5.0})
    scale.update(overflowed=False)
    assert scale == LossScale(16.0, 2, 0)


def contributed(*, factor=1.0, bad=None):
    """A server with gradients of 1, scaled, of which one may be bad."""
    server = ParamServer(dense_pool(), optimizer=SGD(momentum=0.0), seed=0)
    for key in KEYS:
        server.state(key)
        layout = server.layout(key)
        block = torch.zeros(gradient_bytes(layout), dtype=torch.uint8)
        for entry in layout.parameters:
            entry.view(block).fill_(factor)
        if bad == key:
            layout.parameters[0].view(block)[0, 0] = math.inf
        has_grad = [True] * len(layout.parameters)
        server.gradients.add(key, with_norms(block, layout), has_grad, lr=1.0, step=4)
    order = [(key, index) for key in KEYS for index in range(len(server.layout(key).parameters))]
    return server, order


def test_a_check_of_gradients_takes_the_scale_out_of_norm_and_update():
    plain, order = contributed()
    scaled, _ = contributed(factor=64.0)
    clip = Clip(0.5)
    expected = plain.gradients.check(order, plain.storage, clip=clip)
    scaled.gradients.loss_scale = LossScale(64.0)
    assert scaled.gradients.check(order, scaled.storage, clip=clip, is_scaled=True) == expected
    assert expected.norm == pytest.approx(math.sqrt(sum(plain.layout(key).num_parameters for key in KEYS)))
    for server in (plain, scaled):
        for key in KEYS:
            server.gradients.update(key, server.storage, checked=True)
    for key in KEYS:
        assert torch.equal(plain.state(key).weights, scaled.state(key).weights)


def test_a_check_that_overflows_refuses_all_and_lowers_the_scale():
    server, order = contributed(bad=KEYS[1])
    server.gradients.loss_scale = LossScale(64.0)
    assert server.gradients.check(order, server.storage, clip=None, is_scaled=True).is_refused
    assert server.gradients.waiting == {}
    assert server.gradients.loss_scale == LossScale(32.0)


def test_a_check_in_the_lowest_scale_or_without_one_names_the_layer():
    for scale in (LossScale(1.0), None):
        server, order = contributed(bad=KEYS[1])
        server.gradients.loss_scale = scale
        with pytest.raises(NonFiniteError, match=f"gradient of layer '{KEYS[1]}' is not finite at step 4"):
            server.gradients.check(order, server.storage, clip=None, is_scaled=scale is not None)
        server.gradients.discard(server.storage)
        assert server.gradients.waiting == {}


def test_clipping_by_layer_looks_at_each_state_by_itself():
    server, order = contributed()
    before = {key: server.state(key).weights.clone() for key in KEYS}
    server.gradients.check(order, server.storage, clip=Clip(1.0, "layer"))
    for key in KEYS:
        server.gradients.update(key, server.storage, checked=True)
        change = before[key].view(torch.float32) - server.state(key).weights.view(torch.float32)
        assert float(change.norm()) == pytest.approx(1.0, abs=1e-3)
