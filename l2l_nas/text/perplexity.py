"""Perplexity of a text, in windows that overlap.

A window is as long as the network's input, and moves on by `stride` tokens. Each token counts once, in the first window
that predicts it: there it has at least `length - stride` tokens before it, unless the text begins later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from l2l_nas.errors import DataError, SettingError
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.text.wikitext import count_words, detokenized
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, check_rows
from l2l_nas.training.task import Tokens


class Windows(Samples):
    """A text, int64 [tokens], in windows. What stands behind its end are zeros, and does not count.

    Raises:
        DataError: fewer than 2 tokens.
        SettingError: a stride below 0 or beyond the length.
    """

    is_by_row = is_padded = True

    def __init__(self, tokens: Tensor, length: int, stride: int = 0) -> None:
        if len(tokens) < 2:
            raise DataError(f"a text of {len(tokens)} tokens: there is nothing to predict, as the first one is given")
        if not 0 <= stride <= length:
            raise SettingError(f"stride must be 1 to {length}, the network's length, or 0 for that; got {stride}")
        self.tokens, self.length, self.stride = tokens, length, stride or length

    def __len__(self) -> int:
        return 1 + max(0, math.ceil((len(self.tokens) - 1 - self.length) / self.stride))

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`: tokens, and the next one at each place, or -1 where an earlier window counts it."""
        check_rows(self, rows, key)
        places = (rows * self.stride)[:, None] + torch.arange(self.length + 1)
        is_there = places < len(self.tokens)
        found = self.tokens[places.clamp(max=len(self.tokens) - 1)].where(is_there, 0)
        first = torch.where(rows == 0, 0, self.length - self.stride)[:, None]
        counts = is_there[:, 1:] & (torch.arange(self.length) >= first)
        return (found[:, :-1],), found[:, 1:].where(counts, -1)


@dataclass(frozen=True)
class Perplexity(Tokens):
    """How well a text is predicted.

    `word_perplexity` is exp(loss / words), whatever the tokens are (arXiv 1909.08053, appendix E). `token_perplexity`
    is exp(loss / tokens). `bits_per_byte` is loss / log 2 / bytes (arXiv 2101.00027, section 3.1). The loss is the
    negative log likelihood of all tokens but the first, which nothing predicts; that is the begin, if there is one.
    """

    tokens: int  # of the text, without the first
    words: int  # of the text, however they are counted
    num_bytes: int  # of the text in UTF-8, without the first token's
    reads_what_counts = True
    metrics = dict.fromkeys(("word_perplexity", "token_perplexity", "bits_per_byte"), False)

    def finish(self, totals: Mapping[str, Tensor]) -> dict[str, float]:
        mean = float(totals["loss"]) / int(totals["samples"])
        return {
            "word_perplexity": exponential(mean * self.tokens / self.words),
            "token_perplexity": exponential(mean),
            "bits_per_byte": mean * self.tokens / math.log(2) / self.num_bytes,
        }


def exponential(value: float) -> float:
    """E to a power; inf where that is no float."""
    return math.exp(value) if value < 709 else math.inf


def perplexity_of(
    text: str, tokenizer: Tokenizer, *, words: int, length: int, stride: int = 0, begin: int | None = None
) -> tuple[Perplexity, Windows]:
    """What is measured of a text, and the samples to measure it on.

    Args:
        words: of the text, however they are counted.
        stride: new tokens of each window but the first; 0: a whole window. Megatron-LM has 32 for a length of 1024.
        begin: the token that stands before a text; the text's first token is then predicted, too.

    Raises:
        DataError: fewer than 2 tokens.
        SettingError: a stride below 0 or beyond the length.
    """
    tokens = tokenizer.encode(text)
    given = 0 if begin is not None else len(tokenizer.decode(tokens[:1]).encode())
    tokens = tokens if begin is None else [begin, *tokens]
    windows = Windows(torch.tensor(tokens, dtype=torch.int64), length, stride)
    num_bytes = len(text.encode()) - given
    return Perplexity(len(tokens) - 1, max(1, words), max(1, num_bytes)), windows


def wikitext(
    text: str, tokenizer: Tokenizer, *, length: int, stride: int = 0, begin: int | None = None
) -> tuple[Perplexity, Windows]:
    """`perplexity_of` a file of WikiText: of what it says, by the words that it has as it is.

    The first word does not count where nothing predicts it. The words are counted as Megatron-LM's evaluation does:
    ends of lines among them, 245,566 in WikiText-103's test part.
    """
    words = count_words(text) - (begin is None)
    return perplexity_of(detokenized(text).strip(), tokenizer, words=words, length=length, stride=stride, begin=begin)
