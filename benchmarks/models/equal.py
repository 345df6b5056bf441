"""What all smaller networks get: the fine-tuning that a search gives its finalists, and the same plain measurement."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas import AdamW
from l2l_nas.training.data import Batches
from l2l_nas.training.metrics import measured
from l2l_nas.training.samples import Split
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Tokens, counting
from l2l_nas.training.teach import TaughtTask

Logits = Callable[[Tensor], Tensor]  # of tokens [batch, length]: [batch, length, vocabulary]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
_TEACHER = 0.5  # share of the original's probabilities in the loss


def fine_tune(
    network: nn.Module, original: nn.Module, batches: Batches, *, steps: int, rate: float, precision: str
) -> list[float]:
    """Train all weights, which stay in float32, in forward and backward passes of this precision.

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
    """A copy that runs in this precision; its logits are float32."""
    copied = copy.deepcopy(network).to(PRECISIONS[precision]).eval()
    return lambda tokens: copied(tokens).float()


def _logits(network: nn.Module, tokens: Tensor, kind: torch.dtype) -> Tensor:
    weights = {name: parameter.to(kind) for name, parameter in network.named_parameters()}
    logits: Tensor = torch.func.functional_call(network, weights, (tokens,))
    return logits


@torch.no_grad()
def window_losses(logits_of: Logits, windows: Tensor, *, batch: int = 2) -> list[float]:
    """The mean cross entropy of all tokens but the first of each window, int64 [windows, length]."""
    found: list[float] = []
    for rows in windows.split(batch):
        logits = logits_of(rows)[:, :-1]
        losses = functional.cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none")
        found += losses.double().mean(dim=1).tolist()
    return found


@torch.no_grad()
def last_words(logits_of: Logits, samples: Split, *, batch: int = 8) -> list[tuple[bool, float]]:
    """Of each sample of `lambada`, whether its last word is right, and the negative log likelihood of the word."""
    (inputs,), targets = samples.batch(torch.arange(len(samples)))
    assert isinstance(targets, Tensor)
    places = torch.arange(1, targets.shape[1] + 1)
    lengths = (counting(targets) * places).amax(dim=1)
    found: list[tuple[bool, float]] = [(False, 0.0)] * len(inputs)
    for rows in lengths.argsort(stable=True).split(batch):
        longest = int(lengths[rows].max())
        wanted = targets[rows, :longest]
        counts = counting(wanted)
        # the logits of last words alone: of others none is read
        logits = logits_of(inputs[rows, :longest])[counts]
        losses = torch.zeros(counts.shape, dtype=torch.float64)
        losses[counts] = functional.cross_entropy(logits, wanted[counts], reduction="none").double()
        hits = torch.ones(counts.shape, dtype=torch.bool)
        hits[counts] = logits.argmax(dim=-1) == wanted[counts]
        for row, hit, loss in zip(rows.tolist(), hits.all(dim=1).tolist(), losses.sum(dim=1).tolist(), strict=True):
            found[row] = hit, loss
    return found
