"""The update rules beside their originals, in many steps on the same gradients."""

from __future__ import annotations

import pytest
import torch

from l2l_nas.eps.layout import layout_of_module
from l2l_nas.eps.optimizers.groups import Groups, Treatment, state_rules
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.rules import SGD, Adafactor, AdamW, Lion, Muon
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import SettingError

SHAPES = {"matrix": (24, 16), "wide": (8, 40), "bias": (24,), "conv": (6, 4, 3, 3), "scalar": (), "large": (96, 64)}


def parameters(names=SHAPES, *, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.nn.Parameter(torch.randn(SHAPES[name], generator=generator)) for name in names}


def state_of(rule, module):
    layout = layout_of_module(torch.nn.ParameterDict(module))
    rules = state_rules(layout, [Treatment(rule)] * len(layout.parameters))
    state = LayerState.zeros(rules.layout)
    for name, view in state.parameters().items():
        view.copy_(module[name].detach())
    return state, rules


def run(rule, plain, names=SHAPES, *, steps=50, lr=0.01):
    """Both after some steps: our state, and the parameters that `plain` (an optimizer, given those) updated."""
    module = parameters(names)
    state, rules = state_of(rule, module)
    optimizer = plain(list(module.values()))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        rate = lr / (1 + step / 10)
        for entry in state.layout.parameters:
            module[entry.name].grad = torch.randn(entry.shape, generator=generator) * 0.1
        state.update(rules.calls, [module[entry.name].grad for entry in state.layout.parameters], lr=rate)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        optimizer.step()
    assert state.steps.tolist() == [steps] * len(module)
    return state, module


MATRICES = ["matrix", "wide", "large"]


@pytest.mark.parametrize(
    ("rule", "plain", "names"),
    [
        (Adafactor(), lambda p: torch.optim.Adafactor(p), SHAPES),
        (
            Adafactor(beta2_decay=-0.5, eps=(1e-6, 1e-2), clip=1.5, weight_decay=0.1),
            lambda p: torch.optim.Adafactor(p, beta2_decay=-0.5, eps=(1e-6, 1e-2), d=1.5, weight_decay=0.1),
            SHAPES,
        ),
        (Muon(scale="original"), lambda p: torch.optim.Muon(p), MATRICES),
        (
            Muon(momentum=0.8, nesterov=False, weight_decay=0.0, iterations=3, eps=1e-6),
            lambda p: torch.optim.Muon(
                p, momentum=0.8, nesterov=False, weight_decay=0.0, ns_steps=3, eps=1e-6, adjust_lr_fn="match_rms_adamw"
            ),
            MATRICES,
        ),
    ],
    ids=["adafactor", "adafactor with arguments", "muon", "muon with arguments"],
)
def test_fifty_steps_equal_torch_bit_for_bit(rule, plain, names):
    state, module = run(rule, plain, names)
    first = parameters(names)
    for name, view in state.parameters().items():
        assert torch.equal(view, module[name]), name
        assert not torch.equal(view, first[name]), name


def test_muon_takes_a_convolution_as_a_matrix_of_outputs_and_the_rest():
    state, _ = run(Muon(), lambda p: torch.optim.SGD(p), ["conv"])
    weight = torch.nn.Parameter(parameters(["conv"])["conv"].detach().flatten(1).clone())
    plain = torch.optim.Muon([weight], adjust_lr_fn="match_rms_adamw")
    generator = torch.Generator().manual_seed(1)
    for step in range(50):
        weight.grad = (torch.randn(SHAPES["conv"], generator=generator) * 0.1).flatten(1)
        plain.param_groups[0]["lr"] = 0.01 / (1 + step / 10)
        plain.step()
    assert torch.equal(state.parameters()["conv"].flatten(1), weight)


def test_muon_updates_a_weight_that_lies_in_channels_last():
    weight = parameters(["conv"])["conv"].detach()
    gradient = torch.randn(SHAPES["conv"], generator=torch.Generator().manual_seed(1))
    found = []
    for layout in (torch.contiguous_format, torch.channels_last):
        mine, moment = weight.clone(memory_format=layout), torch.zeros_like(gradient)
        Muon().update([mine], [gradient.clone(memory_format=layout)], [[moment]], [torch.tensor(0.0)], lr=0.01)
        assert not torch.equal(mine, weight)
        found.append((mine, moment))
    assert all(map(torch.equal, *found))


class PlainLion(torch.optim.Optimizer):
    """Algorithm 2 of arXiv 2302.06675, written as it stands there; lion-pytorch need not be installed."""

    def __init__(self, params, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": 0.0, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                b1, b2 = group["betas"]
                c = m * b1 + p.grad * (1 - b1)
                p.copy_(p * (1 - group["lr"] * group["weight_decay"]) - group["lr"] * c.sign())
                m.copy_(m * b2 + p.grad * (1 - b2))


def test_fifty_steps_of_lion_are_those_of_its_definition():
    state, module = run(Lion(weight_decay=0.1), lambda p: PlainLion(p, weight_decay=0.1), lr=1e-3)
    for name, view in state.parameters().items():
        torch.testing.assert_close(view, module[name].detach(), rtol=1e-6, atol=1e-6)


def test_fifty_steps_of_lion_equal_lion_pytorch_bit_for_bit():
    lion = pytest.importorskip("lion_pytorch").Lion
    state, module = run(
        Lion(betas=(0.95, 0.98), weight_decay=0.1),
        lambda p: lion(p, lr=1e-3, betas=(0.95, 0.98), weight_decay=0.1),
        lr=1e-3,
    )
    for name, view in state.parameters().items():
        assert torch.equal(view, module[name]), name


# -- moments in fewer bytes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [AdamW(), SGD(), Lion(), Muon()], ids=lambda rule: rule.name)
def test_moments_in_bf16_are_rounded_after_each_update_that_computes_in_fp32(rule):
    names = sorted(MATRICES)  # the order of a layout
    state, _ = run(LowPrecision(rule, "bf16"), lambda p: torch.optim.SGD(p), names, steps=5)
    assert all(tensor.dtype == torch.bfloat16 for name, tensor in state.tensors().items() if name.startswith("moment"))
    module = parameters(names)
    generator = torch.Generator().manual_seed(1)
    kept = {n: [torch.zeros(SHAPES[n]) for _ in rule.state(SHAPES[n])] for n in names}
    counts = {name: torch.tensor(0.0) for name in names}
    for step in range(5):
        for name in names:
            gradient = torch.randn(SHAPES[name], generator=generator) * 0.1
            with torch.no_grad():
                moments = [[one] for one in kept[name]]
                rule.update([module[name]], [gradient], moments, [counts[name]], lr=0.01 / (1 + step / 10))
            kept[name] = [one.bfloat16().float() for one in kept[name]]
    for name, view in state.parameters().items():
        assert torch.equal(view, module[name]), name
        for index, moment in enumerate(kept[name]):
            assert torch.equal(state.tensors()[f"moment{index}.{name}"].float(), moment)


def test_bytes_of_moments_are_what_is_counted():
    def moment_bytes(rule):
        state, _ = state_of(rule, {"w": torch.nn.Parameter(torch.zeros(512, 256))})
        return sum(block.numel() for block in state.moments) / (512 * 256)

    rules = [AdamW(), LowPrecision(AdamW(), "bf16"), Lion(), Adafactor()]
    expected = [8, 4, 4, (512 + 256) * 4 / (512 * 256)]
    assert [moment_bytes(rule) for rule in rules] == expected


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: Lion(betas=(1.0, 0.9)), "betas must lie in"),
        (lambda: Adafactor(clip=0.5), "clip must be at least 1"),
        (lambda: Adafactor(beta2_decay=0.5), "beta2_decay must be at most 0"),
        (lambda: Muon(scale="rms"), "scale: no 'rms'"),
        (lambda: Muon(iterations=0), "iterations must lie between"),
        (lambda: Muon().state((3,)), "matrices, not a parameter of shape"),
        (lambda: LowPrecision(AdamW(), "bf61"), "did you mean 'bf16'"),
        (lambda: LowPrecision(Groups(AdamW()), "bf16"), r"write Groups\(LowPrecision"),
        (lambda: LowPrecision(LowPrecision(AdamW(), "bf16"), "bf16"), "takes one rule"),
    ],
)
def test_what_makes_no_sense_is_refused(build, words):
    with pytest.raises(SettingError, match=words):
        build()
