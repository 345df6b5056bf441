"""The fine-tuning that all smaller networks get, as plain PyTorch: what a search gives its finalists."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from l2l_nas import AdamW
from l2l_nas.training.data import Batches
from l2l_nas.training.metrics import measured
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Tokens
from l2l_nas.training.teach import TaughtTask

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TEACHER = 0.5  # share of the original's probabilities in the loss


def fine_tune(
    network: nn.Module, original: nn.Module, batches: Batches, *, steps: int, rate: float, precision: str
) -> list[float]:
    """Train all weights, which stay in float32, in forward and backward passes of this precision.

    Args:
        network, original: take tokens [batch, length] and give logits [batch, length, vocabulary].
        batches: of tokens and targets; batch 0 is the first.
        steps: how many; the rate rises and falls once over them.
        rate: peak.
        precision: a key of `PRECISIONS`.

    Returns:
        The loss of each step.
    """
    rule, schedule, task, losses = (
        AdamW(),
        Cosine(rate, max(1, steps)),
        TaughtTask(measured(Tokens()), share=_TEACHER),
        [],
    )
    teacher = copy.deepcopy(original).to(PRECISIONS[precision])
    optimizer = torch.optim.AdamW(
        network.parameters(), betas=rule.betas, eps=rule.eps, weight_decay=rule.weight_decay, fused=True
    )
    for step in range(steps):
        (tokens, *_), targets = batches.at(step)
        assert isinstance(targets, Tensor)
        with torch.no_grad():
            taught = targets, teacher(tokens)
        loss = task.loss((_logits(network, tokens, PRECISIONS[precision]),), taught) / task.count(taught)
        optimizer.zero_grad()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = schedule.at(step)
        optimizer.step()
        losses.append(float(loss.detach()))
    optimizer.zero_grad()
    return losses


def in_precision(network: nn.Module, precision: str) -> Callable[[Tensor], Tensor]:
    """A copy that runs in this precision; its logits are float32.

    Args:
        network: takes tokens [batch, length] and gives logits [batch, length, vocabulary].
        precision: a key of `PRECISIONS`.
    """
    copied = copy.deepcopy(network).to(PRECISIONS[precision]).eval()
    return lambda tokens: copied(tokens).float()


def _logits(network: nn.Module, tokens: Tensor, kind: torch.dtype) -> Tensor:
    weights = {name: parameter.to(kind) for name, parameter in network.named_parameters()}
    logits: Tensor = torch.func.functional_call(network, weights, (tokens,))
    return logits
