"""A tokenizer of more tokens than its network is taken where none of them occurs."""

from __future__ import annotations

import pytest

from l2l_nas.errors import DataError
from l2l_nas.text.tokenizer import Bytes, Library


def test_a_text_without_the_tokens_that_a_network_lacks_has_the_numbers_that_it_had():
    within = Bytes().within(128)
    assert within.encode("as ever") == Bytes().encode("as ever")
    assert within.decode(within.encode("as ever")) == "as ever"
    assert within.size == 128


def test_a_token_that_a_network_lacks_is_refused_by_its_text_and_number():
    with pytest.raises(DataError, match=r"the token 'z' has the number 122, but the model's embedding has 122 rows"):
        Bytes().within(122).encode("a z")


def test_special_tokens_that_a_network_lacks_are_not_there():
    within = Bytes().within(256)
    assert (within.end, within.mask, within.ends) == (None, 255, frozenset())
    assert Bytes().within(257).ends == {256}


def test_files_of_tokens_are_of_the_tokenizer_and_of_what_it_is_held_within():
    assert len({Bytes().fingerprint, Bytes().within(128).fingerprint, Bytes().within(129).fingerprint}) == 3


def test_files_are_those_of_the_whole_tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<pad>": 1}))
    whole = Library(made)
    assert whole.within(1).padding is None
    assert whole.within(1).texts == whole.texts
    assert '"pad_token": "<pad>"' in whole.texts["tokenizer_config.json"]
