"""The task of a language model whose logits are divided among ranks: no rank ever has all of them."""

from __future__ import annotations

import torch
from torch import Tensor

from l2l_nas.arguments import check_count, check_kind
from l2l_nas.errors import DataError
from l2l_nas.parallel.collectives import Ranks
from l2l_nas.parallel.vocabulary import vocabulary_argmax, vocabulary_cross_entropy
from l2l_nas.relay.interface import Batch
from l2l_nas.space.candidate import Specs, TensorSpec, describe
from l2l_nas.space.split import Vocabulary
from l2l_nas.training.task import IGNORED, Tokens, counting


class SplitTokens(Tokens):
    """`Tokens`, of outputs that are the logits of this rank's tokens: [batch, length, tokens].

    The pool is a `SplitPool` with `gather_logits=False`. All ranks that share it run the same batches; losses and
    figures are alike on all of them.

    Args:
        ranks: that share the network.
        vocabulary: number of tokens on all of them.
    """

    def __init__(self, ranks: Ranks, vocabulary: int) -> None:
        self._ranks = check_kind("SplitTokens: ranks", ranks, Ranks, wanted="Ranks")
        self._vocabulary = check_count("SplitTokens: vocabulary", vocabulary, least=ranks.size)

    def loss(self, outputs: Batch, targets: Tensor) -> Tensor:
        return self._losses(outputs, targets).sum()

    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        counts = counting(targets)
        is_right = counts & (vocabulary_argmax(outputs[0], self._ranks, vocabulary=self._vocabulary) == targets)
        parts = (counts, is_right, self._losses(outputs, targets))
        return torch.stack([part.sum(dim=1, dtype=torch.float64) for part in parts], dim=1)

    def check(self, targets: Tensor, outputs: Specs) -> None:
        begin, end = Vocabulary().piece(self._vocabulary, self._ranks.rank, self._ranks.size)
        if len(outputs) != 1 or outputs[0].shape[-1:] != (end - begin,):
            raise DataError(
                f"rank {self._ranks.rank} of {self._ranks.size} scores {end - begin} of {self._vocabulary} tokens, the "
                f"pool gives {describe(outputs)}; divide it with gather_logits=False"
            )
        whole = TensorSpec((*outputs[0].shape[:-1], self._vocabulary), outputs[0].dtype)
        super().check(targets, (whole,))

    def _losses(self, outputs: Batch, targets: Tensor) -> Tensor:
        wanted = targets.masked_fill(~counting(targets), IGNORED)
        return vocabulary_cross_entropy(
            outputs[0], wanted, self._ranks, vocabulary=self._vocabulary, ignore_index=IGNORED
        )
