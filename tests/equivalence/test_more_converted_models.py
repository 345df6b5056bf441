"""More models, each by its original path as the model itself in plain PyTorch; what a router's loss adds.

`convert` compares the gradients of each with those of its parts before that.
"""

from __future__ import annotations

import copy
import re

import pytest
import torch

import l2l_nas
from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.space.convert.masks import masks_always_made
from l2l_nas.training.export import build_network
from tests.cli.runs import ROOT
from tests.converted import CASES, ManyClasses, batch
from tests.many_converted import MANY_CASES
from tests.more_converted import MORE_CASES

STEPS = 3
LR = 0.01
ALL_CASES = {**MORE_CASES, **MANY_CASES}
# one of each kind; the others take their time
FAST = [
    *(
        "Gemma 3",
        "Llama 4",
        "OLMo 2",
        "Qwen3-MoE",
        "DeepSeek-V3",
        "GPT-OSS",
        "Falcon",
        "BLOOM",
        "Mamba 2",
        "Jamba",
        "CTRL",
    ),
    *("ALBERT", "DeBERTa", "MPNet", "BART", "M2M-100", "DINOv2", "Swin", "SigLIP", "HuBERT"),
    *("torchvision MobileNetV2", "torchvision Swin V2", "torchvision MViT", "timm CaiT", "timm Sequencer"),
]
# a weight is used in several parts, and more than once in one of them: its gradient is summed in another order
LAST_BITS = ("BART", "Marian")


def converted(name):
    torch.manual_seed(0)
    case = ALL_CASES[name]()
    return case, l2l_nas.convert(case.model, case.example, blocks=case.blocks, **case.settings)


def plain_output(model, case, pool, inputs):
    """The output, and the weighted sum of the losses."""
    output, losses = case.settings.get("output"), case.settings.get("losses", {})
    if not isinstance(case.example, dict):
        outputs = model(*inputs)
        return outputs if output is None else outputs[output], 0.0
    with masks_always_made():  # grouped queries take another kernel without a mask, whose last bits differ
        outputs = model(**{**case.example, **dict(zip(pool.sources, inputs, strict=True))})
    return outputs[output or "logits"], sum(outputs[name] * w for name, w in losses.items())


def trained_both(case, pool):
    """The relay's model and losses, and those of plain PyTorch."""
    server = ParamServer(pool, optimizer=AdamW(weight_decay=0.01), seed=0)
    relay, plain, objective = Relay(server, device="cpu"), copy.deepcopy(case.model).train(), ManyClasses()
    optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], fused=True, lr=LR)
    losses = []
    for step in range(STEPS):
        inputs, _ = batch(case, pool, step)
        output, extra = plain_output(plain, case, pool, inputs)
        targets = torch.randint(0, output.shape[-1], output.shape[:-1])
        loss = objective.loss((output,), targets) / objective.count(targets)
        (loss + extra).backward()
        optimizer.step()
        optimizer.zero_grad()
        done = relay.train_step(pool.original, inputs, targets, objective=objective, micro_batch=4, lr=LR, step=step)
        losses.append((done.loss, float(loss.detach())))
    relay.drain()
    return pool.restore(build_network(server, pool.original)), plain, losses


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in ALL_CASES]
)
def test_a_converted_model_trains_as_the_model_itself(name):
    case, pool = converted(name)
    restored, plain, losses = trained_both(case, pool)
    assert type(restored) is type(case.model)
    for key, tensor in plain.state_dict().items():
        rounding = 1e-4 if name in LAST_BITS else 0.0
        torch.testing.assert_close(restored.state_dict()[key], tensor, rtol=0.0, atol=rounding, msg=key)
    assert [one for one, _ in losses] == pytest.approx([other for _, other in losses], rel=rounding)
    assert any(not torch.equal(plain.state_dict()[key], tensor) for key, tensor in case.model.state_dict().items())


@pytest.mark.slow
def test_a_routers_loss_trains_the_router():
    case, pool = converted("mixtral_with_its_router_loss")
    with_loss, *_ = trained_both(case, pool)
    case.settings.clear()
    pool = l2l_nas.convert(case.model, case.example, blocks=case.blocks)
    without_loss, *_ = trained_both(case, pool)
    name = "model.layers.0.mlp.gate.weight"
    assert not torch.equal(with_loss.state_dict()[name], without_loss.state_dict()[name])


def test_the_page_names_each_model():
    page = (ROOT / "docs" / "tutorials" / "convert.md").read_text()
    names = {name.removeprefix("torchvision ").removeprefix("timm ") for name in (*MANY_CASES, *CASES)}
    plain = re.sub(r"\W", "", page[page.index("## Recipes") :]).lower()
    assert [name for name in sorted(names) if re.sub(r"\W", "", name).lower() not in plain] == []
