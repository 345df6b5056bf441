"""The update rules equal `torch.optim`, fused, bit for bit."""

from __future__ import annotations

import pytest
import torch

from l2l_nas import SGD, AdamW
from l2l_nas.eps.layout import layout_of_module
from l2l_nas.eps.optimizers.groups import Treatment, state_rules
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import SettingError


@pytest.mark.parametrize(
    "rule",
    [
        AdamW(),
        AdamW(betas=(0.8, 0.9), eps=1e-6, weight_decay=0.1),
        SGD(),
        SGD(momentum=0.0, weight_decay=0.01),
        SGD(nesterov=True, weight_decay=0.01),
    ],
    ids=str,
)
def test_ten_steps_equal_torch_also_where_a_parameter_has_no_gradient(rule):
    generator = torch.Generator().manual_seed(0)
    shapes = {"a": (7, 5), "b": (3,), "late": (11,), "never": (4,)}
    module = torch.nn.ParameterDict({n: torch.randn(s, generator=generator) for n, s in shapes.items()})
    layout = layout_of_module(module)
    rules = state_rules(layout, [Treatment(rule)] * len(layout.parameters))
    state = LayerState.zeros(rules.layout)
    for name, view in state.parameters().items():
        view.copy_(module[name].detach())
    kind = torch.optim.AdamW if isinstance(rule, AdamW) else torch.optim.SGD
    # one for each: torch's fused SGD cannot begin with one parameter while it goes on with another
    plain = {name: kind([p], fused=True, **vars(rule)) for name, p in module.items()}
    for step in range(10):
        gradients = []
        for entry in state.layout.parameters:
            if entry.name in "ab" or (entry.name == "late" and step % 3 == 2):
                module[entry.name].grad = torch.randn(entry.shape, generator=generator)
            gradients.append(module[entry.name].grad)
        state.update(rules.calls, gradients, lr=0.1 / (step + 1))
        for optimizer in plain.values():
            optimizer.param_groups[0]["lr"] = 0.1 / (step + 1)
            optimizer.step()
            optimizer.zero_grad()
    for index, (name, view) in enumerate(state.parameters().items()):
        assert torch.equal(view, module[name])
        own = plain[name].state.get(module[name], {})
        expected = [own.get("exp_avg", own.get("momentum_buffer")), own.get("exp_avg_sq")]
        for moment, value in zip(state.moments, expected, strict=False):
            assert torch.equal(
                state.layout.parameters[index].view(moment), torch.zeros_like(view) if value is None else value
            )
    assert state.steps.tolist() == [10, 10, 3, 0]
    assert state.visits == 10


@pytest.mark.parametrize(
    "build", [lambda: AdamW(betas=(1.0, 0.9)), lambda: AdamW(weight_decay=-1), lambda: SGD(momentum=1.0),
              lambda: SGD(momentum=0.0, nesterov=True)]
)  # fmt: skip
def test_settings_that_make_no_sense_are_refused(build):
    with pytest.raises(SettingError):
        build()
