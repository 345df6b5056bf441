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

from l2l_nas.errors import DataError
from l2l_nas.text.cloze import Passage
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.score import Score

_SHARES = (1 / 8, 1 / 4, 1 / 2, 3 / 4)  # of the network's input: tokens between the pairs and the question
_PASSAGES = 64  # of each distance
_PAIRS = 4
_WORD = re.compile(r"[^\W\d_]{4,8}")
_LEAST_WORDS, _LEAST_LENGTH = 32, 64


def recall_passages(text: str, tokenizer: Tokenizer, *, length: int) -> dict[int, list[Passage]]:
    """Passages by distance in tokens, the same for each model with this tokenizer.

    Args:
        length: of the network's input in tokens. Where pairs and question take too much of it, the stretch between them
            is shorter.

    Raises:
        DataError: a network of fewer than 64 tokens, or a text of too few words.
    """
    words = sorted(set(_WORD.findall(text)))
    if length < _LEAST_LENGTH:
        raise DataError(f"task=recall needs a network of at least {_LEAST_LENGTH} tokens; this one takes {length}")
    if len(words) < _LEAST_WORDS:
        raise DataError(
            f"task=recall asks for words of 4 to 8 letters, and the text has {len(words)} different ones; at least "
            f"{_LEAST_WORDS} are needed"
        )
    tokens = list(tokenizer.encode(text))
    draws = random.Random(0)
    found: dict[int, list[Passage]] = {}
    for distance in sorted({int(share * length) for share in _SHARES}):
        found[distance] = [_passage(draws, words, tokens, tokenizer, distance, length) for _ in range(_PASSAGES)]
    return found


def _passage(
    draws: random.Random, words: Sequence[str], tokens: Sequence[int], tokenizer: Tokenizer, distance: int, length: int
) -> Passage:
    start = draws.randrange(max(1, len(tokens) - distance))
    chosen = draws.sample(words, 2 * _PAIRS)
    pairs = dict(zip(chosen[:_PAIRS], chosen[_PAIRS:], strict=True))
    key = draws.choice(list(pairs))
    told = "".join(f"{one} = {other}\n" for one, other in pairs.items())
    between = distance
    while True:
        stretch = tokenizer.decode(list(tokens[start : start + between]))
        for word in chosen:  # the answer stands at one place alone
            stretch = re.sub(rf"\b{re.escape(word)}\b", "", stretch)
        passage = Passage(f"{told}{stretch}\n{key} =", pairs[key])
        # one token less, for that which texts may begin with
        more = len(tokenizer.encode(passage.context + passage.between + passage.target)) - (length - 1)
        if more <= 0 or not between:
            return passage
        between = max(0, between - more)


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
