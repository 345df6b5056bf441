"""The tokenizer that a GGUF file brings in its metadata, as one of the `tokenizers` library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import parsing
from l2l_nas.text.tokenizer import require_library

_CONTROL, _USER_DEFINED = 3, 4
# how Llama 3 and Qwen 2 cut text before merges; digits in groups of three, or one by one
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"llama-bpe": _WORDS % r"\p{N}{1,3}", "qwen2": _WORDS % r"\p{N}"}


def tokenizer_of(metadata: Mapping[str, Any], path: Path) -> Any:
    """A `tokenizers.Tokenizer`: byte-level BPE with the file's vocabulary and merges; control tokens are not cut.

    Raises:
        SettingError: the `tokenizers` library is missing.
        StorageError: no tokenizer in the file, one of another kind, or damaged.
    """
    require_library(f"of {path}")
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    model, cut = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2":
        raise StorageError(f"{path} has a tokenizer of kind {model!r}, expected 'gpt2'; name a tokenizer.json instead")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut not in _SPLITS)
    before: pre_tokenizers.PreTokenizer
    if cut in _SPLITS:
        before = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_SPLITS[cut]), "isolated"), byte_level])
    elif cut == "smollm":
        before = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    elif cut == "gpt-2":
        before = byte_level
    else:
        supported = ", ".join(["gpt-2", "smollm", *_SPLITS])
        raise StorageError(f"{path} cuts text as {cut!r}; known are {supported}. Name a tokenizer.json instead")
    tokens = _texts(metadata, "tokens", path)
    merges = [(left, right) for left, _, right in (text.partition(" ") for text in _texts(metadata, "merges", path))]
    kinds = metadata.get("tokenizer.ggml.token_type", [1] * len(tokens))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens) or not isinstance(kinds, list) or len(kinds) != len(tokens):
        raise StorageError(f"{path} is damaged: its tokens repeat, or do not have a type each; get it again")
    with parsing(path, "a file whose vocabulary and merges fit"):
        tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = before
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(tokens, kinds, strict=True):  # each has its number already
        if kind in (_CONTROL, _USER_DEFINED):
            add = tokenizer.add_special_tokens if kind == _CONTROL else tokenizer.add_tokens
            add([AddedToken(token, special=kind == _CONTROL, normalized=False)])
    return tokenizer


def _texts(metadata: Mapping[str, Any], name: str, path: Path) -> list[str]:
    texts = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise StorageError(f"{path} lacks tokenizer.ggml.{name}; name a tokenizer.json instead")
    return texts
