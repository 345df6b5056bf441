"""A tokenizer with more tokens than its network has, as long as none of them occurs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from l2l_nas.errors import DataError
from l2l_nas.text.tokenizer import Tokenizer


class Within(Tokenizer):
    """A tokenizer of which a network has only the first tokens; tokens were added to it that no weight belongs to.

    Args:
        tokenizer: of more tokens.
        size: of the network's embedding.
    """

    def __init__(self, tokenizer: Tokenizer, size: int) -> None:
        self._tokenizer = tokenizer
        self.size = size
        self.fingerprint = hashlib.sha256(f"{tokenizer.fingerprint} below {size}".encode()).hexdigest()[:16]
        for name in ("end", "mask", "padding", "begin", "first", "last"):
            token = getattr(tokenizer, name)
            setattr(self, name, token if token is not None and token < size else None)
        self.ends = frozenset(token for token in tokenizer.ends if token < size)

    def encode(self, text: str) -> list[int]:
        """See `Tokenizer`. Raises DataError: a token of the text is none of the network's."""
        numbers = self._tokenizer.encode(text)
        for number in numbers:
            if number >= self.size:
                raise DataError(
                    f"the token {self._tokenizer.decode([number])!r} has the number {number}, but the model's "
                    f"embedding has {self.size} rows; leave it out of the text, or name the tokenizer that the model "
                    "was trained with"
                )
        return numbers

    def decode(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens)

    def begins_word(self, token: int) -> bool:
        return self._tokenizer.begins_word(token)

    def divides(self, before: str, behind: str) -> bool:
        return self._tokenizer.divides(before, behind)

    @property
    def texts(self) -> Mapping[str, str]:
        return self._tokenizer.texts
