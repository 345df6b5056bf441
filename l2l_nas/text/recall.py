"""Whether a language model finds again what it read once: a key and its word, asked for many tokens later.

Perplexity hardly sees this, as few tokens of a text ask for it; attention that is left out, or that sees a window, is
where it is lost (associative recall: arXiv 2312.04927). Passages are made of a text of the user's own: pairs of its
words, a stretch of it, and one of the keys again.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from l2l_nas.errors import DataError
from l2l_nas.space.values import as_tuple
from l2l_nas.text.cloze import Passage
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.samples import Samples, Split
from l2l_nas.training.score import Score

_SHARES = (1 / 8, 1 / 4, 1 / 2, 1)  # of what pairs and question leave of the network's input: tokens between them
_PASSAGES = 64  # of each distance
_PAIRS = 4
_WORD = re.compile(r"\b[^\W\d_]{4,8}\b")
_LEAST_WORDS, _LEAST_ROOM = 32, 32
_DRAWS = 100
_REPEATED, _LEAST_REPEATED = 16, 4  # tokens that stand again
_MARGIN = 4  # tokens: one that texts may begin with, and what a cut text takes more


def recall_passages(text: str, tokenizer: Tokenizer, *, length: int) -> dict[int, list[Passage]]:
    """Passages by distance in tokens, about; the same for each model with this tokenizer.

    Args:
        length: of the network's input in tokens.

    Raises:
        DataError: a network of too few tokens, or a text of too few words or tokens.
    """
    words = sorted(set(_WORD.findall(text)))
    if len(words) < _LEAST_WORDS:
        raise DataError(
            f"task=recall asks for words of 4 to 8 letters, and the text has {len(words)} different ones; at least "
            f"{_LEAST_WORDS} are needed"
        )
    draws = random.Random(0)
    asked = [_Question(_drawn(draws, words), draws.randrange(_PAIRS)) for _ in range(_PASSAGES)]
    most = max(one.size(tokenizer) for one in asked)
    if (room := length - most - _MARGIN) < _LEAST_ROOM:
        raise DataError(
            f"task=recall: pairs and question take {most} tokens, and the network takes {length}; at least "
            f"{most + _MARGIN + _LEAST_ROOM} are needed"
        )
    tokens = list(tokenizer.encode(text))
    if len(tokens) < room:
        raise DataError(f"task=recall asks over {room} tokens, and the text has {len(tokens)}; take a longer one")
    found: dict[int, list[Passage]] = {}
    for distance in [int(share * room) for share in _SHARES]:
        found[distance] = []
        for one in asked:
            start = draws.randrange(len(tokens) - distance + 1)
            stretch = tokenizer.decode(tokens[start : start + distance])
            found[distance].append(one.passage(stretch))
    return found


def _drawn(draws: random.Random, words: Sequence[str]) -> list[str]:
    """Words of which none is a part of another, where the text has such ones."""
    for _ in range(_DRAWS):
        found = draws.sample(words, 2 * _PAIRS)
        if not any(one in other for one in found for other in found if one is not other):
            break
    return found


@dataclass(frozen=True)
class _Question:
    words: Sequence[str]  # keys, then what stands behind each
    number: int  # of the pair that is asked for

    def passage(self, stretch: str) -> Passage:
        """With a stretch of text in between, from which these words are taken out, also within others."""
        keys, others = self.words[:_PAIRS], self.words[_PAIRS:]
        told = "".join(f"{key} = {other}\n" for key, other in zip(keys, others, strict=True))
        for word in self.words:
            stretch = stretch.replace(word, "")
        return Passage(f"{told}{stretch}\n{keys[self.number]} =", others[self.number])

    def size(self, tokenizer: Tokenizer) -> int:
        """Tokens of all but the stretch."""
        whole = self.passage("")
        return len(tokenizer.encode(whole.context + whole.between + whole.target))


def num_repeated(samples: Samples) -> int:
    """How many passages there are of so many samples."""
    return min(len(samples), _PASSAGES)


def repeated_passages(samples: Samples) -> Split:
    """Texts in which tokens stand a second time, some distance behind the first, which are to be predicted there.

    That is what attention's heads of induction do (arXiv 2209.11895). Unlike words that are asked for, it needs no
    tokenizer. The tokens are drawn from those of the texts, in any order, so that the text itself does not tell them.

    Args:
        samples: of tokens, int64 [length], whose targets are the next ones.

    Raises:
        DataError: samples of another kind, or of too few tokens.
    """
    count = num_repeated(samples)
    inputs, targets = samples.batch(torch.arange(count))
    (tokens, *others), wanted = inputs, as_tuple(targets)
    if others or tokens.dim() != 2 or tokens.dtype != torch.int64 or wanted[0].shape != tokens.shape:
        raise DataError("strategy.scores=recall is of texts: samples of tokens, whose targets are the next ones")
    length = tokens.shape[1]
    size = min(_REPEATED, length // 8)
    if size < _LEAST_REPEATED:
        raise DataError(f"strategy.scores=recall: texts of {length} tokens; at least {8 * _LEAST_REPEATED} are needed")
    generator = torch.Generator().manual_seed(0)
    drawn = tokens.flatten()[torch.randint(tokens.numel(), (count, size), generator=generator)]
    again, expected = tokens.clone(), torch.full_like(tokens, -1)
    again[:, -size:] = drawn
    for row in range(count):
        distance = int(_SHARES[row % len(_SHARES)] * (length - 2 * size))
        begin = length - 2 * size - distance
        again[row, begin : begin + size] = drawn[row]
        # the first half of them tells which these are
        expected[row, length - size + size // 2 - 1 : -1] = drawn[row, size // 2 :]
    return Split((again,), expected)


def joined(scores: Mapping[int, Score]) -> Score:
    """One score of those by distance: the share of words that are found again at each, and their mean."""
    values = {f"accuracy_{distance}": one.values["accuracy"] for distance, one in scores.items()}
    errors = {
        f"accuracy_{distance}": one.errors["accuracy"] for distance, one in scores.items() if "accuracy" in one.errors
    }
    mean = {"accuracy": sum(values.values()) / len(values)}
    known = len(errors) == len(values)
    of_mean = {"accuracy": math.hypot(*errors.values()) / len(errors)} if known else {}
    problem = "; ".join(dict.fromkeys(one.problem for one in scores.values() if one.problem))
    return Score({**mean, **values}, {**of_mean, **errors}, problem)
