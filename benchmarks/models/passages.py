"""Figures of a language model by a plain loop, item by item: losses of windows of a text, and last words.

Items run at their own length: they are sorted, and a batch is as long as its longest.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from l2l_nas.training.samples import Split
from l2l_nas.training.task import counting

Logits = Callable[[Tensor], Tensor]  # of tokens [batch, length]: [batch, length, vocabulary]


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
    """Of each sample of `lambada`, whether its last word is right, and the negative log likelihood of the word.

    Args:
        samples: as `l2l_nas.text.cloze.lambada` makes them.
    """
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


def paired(mine: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """The mean difference of two measurements of the same items, and its standard error."""
    differences = [a - b for a, b in zip(mine, others, strict=True)]
    spread = statistics.stdev(differences) if len(differences) > 1 else math.nan
    return statistics.fmean(differences), spread / math.sqrt(len(differences))
