"""Samples of a token file: packed sequences, and sequences with masked words.

Whatever is drawn for a sample follows from a key and its row; see [Note: keys] in `training.samples`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.device import stream_seed
from l2l_nas.text.token_file import TokenFile
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, check_rows

# apart from the streams of layers and of transforms
_MASKING = 1 << 41
IGNORED = -1  # as a target


@dataclass(frozen=True)
class TokenSpan:
    """A part of a token file: whole documents, or a piece of the one that there is."""

    file: TokenFile
    start: int  # place of the first token
    stop: int  # place behind the last one

    def __len__(self) -> int:
        return self.stop - self.start

    def read(self, places: np.ndarray) -> np.ndarray:
        return np.asarray(self.file.tokens[self.start + places]).astype(np.int64)

    def documents(self, places: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.file.documents, self.start + places, side="right") - 1

    def groups(self, count: int, length: int) -> Tensor:
        """Of so many sequences of a length, one behind the other, the documents in which they begin."""
        return torch.from_numpy(self.documents(np.arange(count) * length))


class Packed(Samples):
    """Sequences of so many tokens, cut from the documents one behind the other; the target of each is the next one.

    A sequence may hold the end of one document and the begin of the next. If `is_apart`, there is a second input, the
    number of each token's document, so that attention stays within it. The first token of a document is then no target,
    unless a sequence begins with it.

    Args:
        begin: a token that each sequence begins with, so that all tokens of the text are targets; None: none.
    """

    is_by_row = True

    def __init__(self, span: TokenSpan, length: int, *, is_apart: bool = False, begin: int | None = None) -> None:
        self._span, self._length, self._is_apart, self._begin = span, length, is_apart, begin
        self._more = int(begin is None)  # a token of the text that is no target

    def __len__(self) -> int:
        return max(0, (len(self._span) - self._more) // self._length)

    @property
    def groups(self) -> Tensor:  # type: ignore[override]
        return self._span.groups(len(self), self._length)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`: tokens, int64 [batch, length], and targets of this shape."""
        check_rows(self, rows, key)
        places = rows.numpy()[:, None] * self._length + np.arange(self._length + self._more)
        tokens = torch.from_numpy(self._span.read(places))
        if self._begin is not None:
            tokens = functional.pad(tokens, (1, 0), value=self._begin)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        if not self._is_apart:
            return (inputs,), targets
        documents = torch.from_numpy(self._span.documents(places))
        if self._begin is not None:
            documents = torch.cat([documents[:, :1], documents], dim=1)
        targets[documents[:, 1:] != documents[:, :-1]] = IGNORED
        return (inputs, documents[:, :-1].contiguous()), targets


@dataclass(frozen=True)
class Masking:
    """How words are masked (BERT, arXiv 1810.04805; whole words: google-research/bert, README)."""

    share: float = 0.15  # of the tokens of a sequence, that are to be guessed
    most: int | None = None  # predictions a sequence; None: no bound but the share

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise SettingError(f"data.masked must lie between 0 and 1, got {self.share}")
        if self.most is not None and self.most < 1:
            raise SettingError(f"data.predictions must be at least 1, got {self.most}")


class Masked(Samples):
    """Sequences of which some words are to be guessed: of their tokens 8 in 10 are masked, 1 in 10 is another token.

    Targets are the tokens at the places that were chosen, -1 elsewhere. Each sequence is framed by the tokenizer's
    first and last token, where it has them; special tokens are never chosen.

    Raises:
        DataError: the tokenizer has no mask.
    """

    is_by_row = True

    def __init__(self, span: TokenSpan, length: int, tokenizer: Tokenizer, masking: Masking) -> None:
        if tokenizer.mask is None:
            raise DataError("data.objective=masked: the tokenizer has no token that masks; use another, or causal")
        frame = [token for token in (tokenizer.first, tokenizer.last) if token is not None]
        self._inner = length - len(frame)
        if self._inner < 1:
            raise SettingError(f"data.length must be at least {len(frame) + 1}, got {length}")
        self._span, self._tokenizer, self._masking = span, tokenizer, masking
        self._mask: int = tokenizer.mask
        self._special = np.array([*frame, tokenizer.mask, *([] if tokenizer.end is None else [tokenizer.end])])
        self._begins = np.array([tokenizer.begins_word(token) for token in range(tokenizer.size)])

    def __len__(self) -> int:
        return len(self._span) // self._inner

    @property
    def groups(self) -> Tensor:  # type: ignore[override]
        return self._span.groups(len(self), self._inner)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        """See `Samples.batch`: tokens, int64 [batch, length], and targets of this shape."""
        check_rows(self, rows, key)
        made = [self._one(int(row), key) for row in rows]
        tokens, targets = (np.stack(parts) for parts in zip(*made, strict=True)) if made else (np.zeros((0, 0)),) * 2
        return (torch.from_numpy(tokens),), torch.from_numpy(targets)

    def _one(self, row: int, key: Key) -> tuple[np.ndarray, np.ndarray]:
        generator = np.random.Generator(np.random.PCG64(stream_seed(*key, row, _MASKING)))
        tokens = self._span.read(row * self._inner + np.arange(self._inner))
        targets = np.full_like(tokens, IGNORED)
        chosen = self._chosen(tokens, generator)
        targets[chosen] = tokens[chosen]
        draws = generator.random(len(chosen))
        others = generator.integers(self._tokenizer.size, size=len(chosen))
        tokens[chosen] = np.where(draws < 0.8, self._mask, np.where(draws < 0.9, others, tokens[chosen]))
        first, last = self._tokenizer.first, self._tokenizer.last
        frame = int(first is not None), int(last is not None)
        framed = np.pad(tokens, frame, constant_values=(first or 0, last or 0))
        return framed, np.pad(targets, frame, constant_values=IGNORED)

    def _chosen(self, tokens: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Places of whole words: drawn one after the other, without those that would be too many.

        Where each word alone would be, they are the first tokens of one.
        """
        starts = np.flatnonzero(self._begins[tokens])
        starts = starts if len(starts) and starts[0] == 0 else np.concatenate([[0], starts])
        words = np.split(np.arange(len(tokens)), starts[1:])
        wanted = max(1, round(len(tokens) * self._masking.share))
        wanted = wanted if self._masking.most is None else min(wanted, self._masking.most)
        drawn = [words[index] for index in generator.permutation(len(words))]
        drawn = [word for word in drawn if not np.isin(tokens[word], self._special).any()]
        chosen: list[int] = []
        for word in drawn:
            if len(chosen) + len(word) <= wanted:
                chosen += word.tolist()
        if drawn and not chosen:
            chosen += drawn[0][:wanted].tolist()
        return np.array(sorted(chosen), dtype=np.int64)
