"""Cross entropy and best tokens of logits that are divided by tokens, and are never put together.

Megatron-LM's (arXiv 1909.08053, section 3): ranks exchange a few numbers for each place, not one for each token.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from l2l_nas.parallel.collectives import Ranks
from l2l_nas.space.split import Vocabulary


def vocabulary_cross_entropy(
    logits: Tensor, targets: Tensor, ranks: Ranks, *, vocabulary: int, ignore_index: int = -100, smoothing: float = 0.0
) -> Tensor:
    """The cross entropy of each place, alike on all ranks; as torch's `cross_entropy` with `reduction="none"`.

    Two all-reduces: of the largest logits; and, in one message, of sums of exponentials and of the targets' logits. The
    backward has none. It is computed in float32, or in float64 where the logits are.

    Args:
        logits: this rank's tokens, [..., tokens].
        targets: int64 [...], numbers of tokens of the whole vocabulary, or `ignore_index`.
        vocabulary: number of tokens on all ranks.
        ignore_index: a target that does not count: its loss is 0.
        smoothing: share of the target's probability that is spread over all tokens, `label_smoothing` in torch.

    Returns:
        [...], as targets.
    """
    begin, end = Vocabulary().piece(vocabulary, ranks.rank, ranks.size)
    assert logits.shape[-1] == end - begin, (logits.shape, begin, end)
    flat = logits.reshape(-1, logits.shape[-1])
    losses = _CrossEntropy.apply(flat, targets.reshape(-1), ranks, (begin, vocabulary), ignore_index, smoothing)
    return losses.view(targets.shape)


def vocabulary_argmax(logits: Tensor, ranks: Ranks, *, vocabulary: int) -> Tensor:
    """The token of the largest logit at each place, the first of equal ones: int64 [...], alike on all ranks.

    Args:
        logits, vocabulary: see `vocabulary_cross_entropy`.
    """
    begin, _ = Vocabulary().piece(vocabulary, ranks.rank, ranks.size)
    most, index = logits.detach().max(dim=-1)
    if ranks.is_idle(logits):
        return index
    largest = most.clone(memory_format=torch.contiguous_format)
    ranks.reducer.maximum(largest)
    negated = torch.where(most == largest, -(index + begin), -vocabulary).contiguous()
    ranks.reducer.maximum(negated)
    return -negated


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        ranks: Ranks,
        place: tuple[int, int],
        ignore_index: int,
        smoothing: float,
    ) -> Tensor:
        begin, vocabulary = place
        wide = _wide(logits)
        most = wide.amax(dim=-1)
        if not ranks.is_idle(most):
            ranks.reducer.maximum(most)
        local = targets - begin
        is_here = (local >= 0) & (local < logits.shape[1])
        own = wide.gather(1, local.masked_fill(~is_here, 0)[:, None])[:, 0].masked_fill(~is_here, 0)
        sums = [(wide - most[:, None]).exp_().sum(dim=-1), own]
        total = torch.stack([*sums, wide.sum(dim=-1)] if smoothing else sums)
        if not ranks.is_idle(total):
            ranks.reducer.sum(total)
        logarithm = total[0].log() + most  # of the sum of exponentials
        losses = logarithm - total[1]
        if smoothing:
            losses = (1 - smoothing) * losses + smoothing * (logarithm - total[2] / vocabulary)
        is_ignored = targets == ignore_index
        ctx.save_for_backward(logits, logarithm, local, is_here, is_ignored)
        ctx.smoothing, ctx.vocabulary = smoothing, vocabulary
        return losses.masked_fill(is_ignored, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        logits, logarithm, local, is_here, is_ignored = ctx.saved_tensors
        result = (_wide(logits) - logarithm[:, None]).exp_()
        if ctx.smoothing:
            result.sub_(ctx.smoothing / ctx.vocabulary)
        own = is_here.to(result.dtype) * (ctx.smoothing - 1.0)
        result.scatter_add_(1, local.masked_fill(~is_here, 0)[:, None], own[:, None])
        result.mul_(gradient.masked_fill(is_ignored, 0)[:, None])
        return result.to(logits.dtype), None, None, None, None, None


def _wide(logits: Tensor) -> Tensor:
    return logits if logits.dtype == torch.float64 else logits.float()
