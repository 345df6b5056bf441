"""Slots: templates are views of them, for good."""

from __future__ import annotations

import weakref
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.layout import align, layout_of
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.device import Cpu
from tests.relay.counting import tensors_of
from tests.relay.steps import PATH, is_same, relay_of, tensors, train
from tests.toys import Partial, dense_pool, language_pool, random_data


def bank_of(pool, slots=2, **options):
    """With all templates, as they are in training."""
    bank = SlotBank(pool, slots=slots, device=Cpu(), **options)
    for layer in pool.layers:
        for slot in range(0 if layer.candidate.is_skip else slots):
            bank.build(layer, slot)
            bank.template(layer, slot).have_gradients()
    return bank


def template_of(pool, name):
    layer = next(layer for layer in pool.layers if layer.candidate.name == name)
    return bank_of(pool).template(layer, 0)


def gradients_of(template, number):
    """Of the parameters of one state."""
    return template.gradients[number].views(template._layouts[number]).gradients


def test_templates_are_built_when_first_needed_once_and_dressed():
    pool = dense_pool()
    made = []
    bank = SlotBank(pool, slots=2, device=Cpu(), calls=lambda *given: made.append(given))
    assert bank.num_templates == 0
    layer = next(layer for layer in pool.layers if layer.candidate.name == "partial")
    for _ in range(2):
        bank.build(layer, 1)
    assert bank.num_templates == 1
    assert made == [(bank.kind(layer), bank.template(layer, 1), 1)]
    assert bank.parameter_order(layer) == bank.template(layer, 1).parameter_order


def test_a_step_builds_only_what_its_path_needs():
    relay = Relay(ParamServer(dense_pool(), optimizer=AdamW(), seed=0), device="cpu", update="exact", lanes="threads")
    assert relay.bank.num_templates == 0
    train(relay, PATH)
    assert 0 < relay.bank.num_templates <= len(PATH)


def test_slots_take_memory_when_they_are_first_used():
    pool = dense_pool()
    bank = SlotBank(pool, slots=3, device=Cpu())
    assert bank.num_bytes == 3 * bank.slot_bytes
    assert tensors_of(bank) == []
    assert bank.unused_bytes == bank.num_bytes
    layer = next(layer for layer in pool.layers if not layer.candidate.is_skip)
    bank.build(layer, 1)
    assert [len(slot.blocks) for slot in bank.slots] == [0, 2, 0]  # weights and buffers
    bank.template(layer, 1).have_gradients()
    assert [len(slot.blocks) for slot in bank.slots] == [0, 3, 0]
    assert bank.unused_bytes == 2 * bank.slot_bytes


def test_evaluation_takes_no_memory_for_gradients_and_training_is_the_same_behind_it():
    pool = dense_pool()
    (relay, other), inputs = (relay_of(pool) for _ in range(2)), random_data(pool, 5, seed=0)[0]
    relay.predict(pool.architecture(PATH), inputs, micro_batch=2)
    assert all(slot.blocks and "gradients" not in vars(slot) for slot in relay.bank.slots)
    for step in range(2):
        assert train(relay, PATH, step=step) == train(other, PATH, step=step)
    assert all("gradients" in vars(slot) for slot in relay.bank.slots)
    relay.drain()
    other.drain()
    assert is_same(relay.server, tensors(other.server))


def test_every_parameter_gradient_and_buffer_lies_in_a_slot():
    for pool in (dense_pool(), language_pool()):
        bank = bank_of(pool)
        blocks = {t.data_ptr() for slot in bank.slots for t in slot.blocks}
        for tensor in tensors_of(bank):
            assert tensor.numel() == 0 or tensor.untyped_storage().data_ptr() in blocks
        assert bank.num_bytes == sum(t.numel() for slot in bank.slots for t in slot.blocks)


def test_a_slot_is_as_large_as_the_largest_layer():
    pool = language_pool()
    layers = [layer for layer in pool.layers if not layer.candidate.is_skip]
    weights = max(sum(layout_of(pool, key).parameter_bytes for key in layer.states) for layer in layers)
    norms = max(4 * sum(len(layout_of(pool, key).parameters) for key in layer.states) for layer in layers)
    for slot in bank_of(pool).slots:
        assert slot.weights.numel() == weights
        assert weights < slot.gradients.numel() <= weights + align(norms)


def test_equal_factories_share_templates_and_others_do_not():
    spec = TensorSpec((4,))
    one, two = partial(nn.Linear, 4, 4), partial(nn.Linear, 4, 4, bias=False)
    pool = LayerPool([Position(name, [Candidate("one", one), Candidate("two", two)]) for name in "pqr"], inputs=spec)
    assert bank_of(pool, slots=3).num_templates == 2 * 3
    bank = bank_of(pool)
    assert bank.template(pool.layers[0], 0) is bank.template(pool.layers[2], 0)
    assert bank.template(pool.layers[0], 0) is not bank.template(pool.layers[0], 1)


def test_backward_accumulates_in_the_block_and_tells_what_it_touched():
    template = template_of(dense_pool(), "partial")
    names = [name for name, _ in Partial(6).named_parameters()]
    for batch, expected in ((2, {"linear.weight", "linear.bias"}), (3, {"linear.weight", "linear.bias", "sometimes"})):
        template.zero_gradients()
        assert not any(template.has_grad(0))
        for _ in range(2):
            template.module(torch.randn(batch, 3, 6)).sum().backward()
        found = {name for name, has_grad in zip(names, template.has_grad(0), strict=True) if has_grad}
        assert found == expected
        bias = gradients_of(template, 0)[names.index("linear.bias")]
        assert bias is template.module.linear.bias.grad


def test_zeroing_wipes_what_another_template_left():
    pool = dense_pool()
    bank = bank_of(pool)
    bank.slots[0].gradients.fill_(255)
    template = bank.template(pool.layers[0], 0)
    template.zero_gradients()
    assert not any(gradient.any() for gradient in gradients_of(template, 0))


def test_a_parameter_of_two_names_stays_one():
    module = template_of(dense_pool(), "twice").module
    assert module.first.weight is module.second.weight


def test_tied_parameters_have_their_own_segment():
    template = template_of(language_pool(), "head")
    assert len(template.gradients) == 2
    assert gradients_of(template, 1)[0] is template.module.weight.grad


@pytest.mark.parametrize("options", [{"device": "cpu"}, {"resident": "all"}], ids=["in place", "states on the device"])
def test_blocks_of_gradients_that_are_no_longer_needed_are_freed(options, monkeypatch):
    widths = range(32, 288, 32)  # each needs more of the units that blocks are made of
    layers = [Candidate(f"w{width}", partial(_bottleneck, width)) for width in widths]
    pool = LayerPool([Position("first", layers), Position("last", [layers[0]])], inputs=TensorSpec((3, 2)))
    relay = relay_of(pool, optimizer=SGD(), **options)
    inbox, given = relay.server.gradients, []
    allocate = inbox.allocate

    def watched(*arguments):
        block = allocate(*arguments)
        given.append(weakref.ref(block))
        return block

    monkeypatch.setattr(inbox, "allocate", watched)
    for step, width in enumerate(widths):
        train(relay, [f"w{width}", "w32"], step=step)
    relay.drain()
    alive = {id(block) for block in (reference() for reference in given) if block is not None}
    assert alive == {id(block) for block in inbox._blocks}
    assert len({id(reference) for reference in given}) > len(alive)


def _bottleneck(width):
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 2))
