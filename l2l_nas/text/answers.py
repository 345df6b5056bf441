"""Whether a language model goes on with a text as the network does that it was found in: the likeliest token each time.

Perplexity is a mean over tokens of a given text. What users see is what a model writes itself, where one other token
changes all behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Executor
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.cloze import Continuations, continuations
from l2l_nas.text.generate import Sampling, generate
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.task import Tokens

_ANSWERS, _PROMPT, _TOKENS = 64, 48, 16  # how many, and tokens of each


class Answers(Tokens):
    """How far answers agree with another network's, whose tokens are the targets.

    `same_answers` is the share that agrees to the last token, `same_tokens` the mean share of an answer before the
    first token that is another.
    """

    metrics = {"same_answers": True, "same_tokens": True}
    names = ("samples", "answers", "tokens")

    def figures(self, outputs: Batch, targets: Tensor) -> Tensor:
        """1; whether an answer is the same; the share of it that is."""
        counts, is_right, _ = self.places(outputs, targets)
        so_far = (is_right | ~counts).long().cumprod(dim=1).bool() & counts
        shares = so_far.sum(dim=1) / counts.sum(dim=1).clamp(min=1)
        return torch.stack((torch.ones_like(shares), (shares == 1).float(), shares), dim=1).double()

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        samples = int(totals["samples"])
        return {f"same_{name}": float(totals[name]) / samples for name in self.names[1:]}


def answers_of(
    asked: Executor, architecture: Architecture, tokenizer: Tokenizer, text: str, *, length: int, begin: int | None
) -> tuple[Answers, Continuations]:
    """What is measured of answers, and the samples: prompts from a text, and what a network goes on with.

    Args:
        asked, architecture: what runs the network whose answers they are, and which one it is.
        length: of its input in tokens.
        begin: token that stands before a prompt; None: none.

    Raises:
        DataError: a network of too few tokens, or a text of fewer than a prompt has.
    """
    before = [] if begin is None else [begin]
    size = min(_PROMPT, length - _TOKENS - len(before))
    if size < 1:
        raise DataError(f"task=answers: the network takes {length} tokens, and {_TOKENS} are of an answer")
    known = tokenizer.encode(text)
    if len(known) < size:
        raise DataError(f"task=answers: the text has {len(known)} tokens, and a prompt {size}; take a longer one")
    starts = [round(share) for share in torch.linspace(0, len(known) - size, _ANSWERS).tolist()]
    prompts = [[*before, *known[start : start + size]] for start in dict.fromkeys(starts)]
    written: list[list[int]] = [[] for _ in prompts]
    greedy = Sampling(temperature=0)
    options: dict[str, Any] = {"tokens": _TOKENS, "vocabulary": tokenizer.size, "sampling": greedy}
    for row, token in generate(asked, architecture, prompts, **options):
        written[row].append(token)
    pairs = [(prompt, answer, "an answer") for prompt, answer in zip(prompts, written, strict=True)]
    return Answers(), continuations(pairs, length)
