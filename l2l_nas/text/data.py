"""Text as data of a language model, in three parts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from l2l_nas.errors import DataError, SettingError, did_you_mean
from l2l_nas.text.documents import text_files
from l2l_nas.text.samples import Masked, Masking, Packed, TokenSpan
from l2l_nas.text.token_file import TokenFile, cache_folder, cached, token_file
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.cut import check_fractions
from l2l_nas.training.data import Data
from l2l_nas.training.samples import Samples

PYDOC = "pydoc"
OBJECTIVES = ("causal", "masked")
_SHARES = "data.validation_fraction, data.test_fraction"


@dataclass(frozen=True)
class TextForm:
    """How text becomes samples. Raises SettingError: a value that cannot be."""

    length: int = 128  # tokens of a sequence
    # "causal": each token is guessed from those before it; "masked": some words from all others
    objective: str = "causal"
    # shares of the documents, in the order of the files. Where there is one document, its text is cut in these shares.
    validation_fraction: float = 0.05
    test_fraction: float = 0.05
    is_apart: bool = False  # whether attention stays within documents; see `Packed`
    begin: int | None = None  # the token that each sequence of "causal" begins with; None: none
    masking: Masking = field(default_factory=Masking)  # of "masked"
    text_key: str = "text"  # of JSON; see `read_documents`

    def __post_init__(self) -> None:
        if self.length < 1:
            raise SettingError(f"data.length must be at least 1, got {self.length}")
        if self.objective not in OBJECTIVES:
            raise SettingError(f"data.objective: no '{self.objective}'{did_you_mean(self.objective, OBJECTIVES)}")
        check_fractions(self.validation_fraction, self.test_fraction)
        if self.is_apart and self.objective == "masked":
            raise SettingError("data.documents=apart is of data.objective=causal; leave it out")

    @property
    def shares(self) -> dict[str, float]:
        """Shares of the parts, in their order; a test part without a share is missing."""
        validation, test = self.validation_fraction, self.test_fraction
        shares = {"training": 1 - validation - test, "validation": validation, "test": test}
        return {name: share for name, share in shares.items() if share}


def text_data(source: str, tokenizer: Tokenizer, form: TextForm | None = None, *, cache: str = "") -> Data:
    """Text in three parts, as samples of a language model.

    Args:
        source: a file or a folder of text (see `read_documents`), or "pydoc": Python's own language reference.
        cache: folder of token files; by default the user's cache.

    Raises:
        SettingError: no such source.
        StorageError: a file that cannot be read or written.
        DataError: text that is none, too few documents or too little text for the parts.
    """
    form = form or TextForm()
    folder = cache_folder(cache)
    if source == PYDOC:
        file = _pydoc(tokenizer, folder)
    else:
        paths = text_files(source)
        if not paths:
            raise SettingError(
                f"data.source={source} is no text: name a .txt or .jsonl file, a folder of these, or pydoc"
            )
        file = token_file(paths, tokenizer, text_key=form.text_key, cache=folder)
    parts: dict[str, Samples] = {}
    for name, span in spans(file, form.shares).items():
        if form.objective == "causal":
            parts[name] = Packed(span, form.length, is_apart=form.is_apart, begin=form.begin)
        else:
            parts[name] = Masked(span, form.length, tokenizer, form.masking)
        if not len(parts[name]):
            target = " and the target behind it" if form.objective == "causal" else ""
            raise DataError(
                f"the {name} part has {len(span)} tokens, less than a sequence of {form.length}{target}; "
                f"give it a larger share ({_SHARES}), more text, or shorter sequences (data.length)"
            )
    return Data(parts["training"], parts["validation"], parts.get("test"))


def spans(file: TokenFile, shares: Mapping[str, float]) -> dict[str, TokenSpan]:
    """The parts of a token file, none of which shares a document with another; a DataError where there are too few."""
    count = len(file.documents) - 1
    ends = np.cumsum(list(shares.values())) / sum(shares.values())
    if count == 1:
        bounds = [0, *(round(float(end) * len(file.tokens)) for end in ends)]
    else:
        chosen = [0, *(round(float(end) * count) for end in ends)]
        for name, first, last in ((n, *pair) for n, pair in zip(shares, itertools.pairwise(chosen), strict=True)):
            if first == last:
                raise DataError(
                    f"{count} documents, of which {shares[name]:.3g} are for the {name} part, leave it none; give it a "
                    f"larger share: {_SHARES}"
                )
        bounds = [int(file.documents[one]) for one in chosen]
    return {name: TokenSpan(file, *pair) for name, pair in zip(shares, itertools.pairwise(bounds), strict=True)}


def _pydoc(tokenizer: Tokenizer, cache: Path) -> TokenFile:
    """The topics of Python's language reference, which every installation has; a document each."""
    from pydoc_data.topics import topics  # 700 kB of text

    texts = [topics[name] for name in sorted(topics)]
    documents: Iterator[Iterator[str]] = (iter((text,)) for text in texts)
    made_of = "\0".join([tokenizer.fingerprint, *texts])
    return cached(cache, made_of, documents, tokenizer, {"sources": [PYDOC]})
