"""A tokenizer of the `tokenizers` library in the metadata of a GGUF file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from l2l_nas.text.tokenizer import Library, require_library
from l2l_nas.training.formats import ExportError

_NORMAL, _CONTROL, _USER_DEFINED, _UNUSED = 1, 3, 4, 5
# how Llama 3 and Qwen 2 cut text before merges; digits in groups of three, or one by one
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {"llama-bpe": _WORDS % r"\p{N}{1,3}", "qwen2": _WORDS % r"\p{N}"}
_CUTS = ("gpt-2", "smollm", *_SPLITS)  # what files call the ways to cut text


def _cutter(cut: str) -> Any:
    """What cuts text before merges, as the `tokenizers` library has it."""
    from tokenizers import Regex, pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut not in _SPLITS)
    if cut == "gpt-2":
        return byte_level
    first: pre_tokenizers.PreTokenizer = pre_tokenizers.Digits(individual_digits=True)
    if cut in _SPLITS:
        first = pre_tokenizers.Split(Regex(_SPLITS[cut]), "isolated")
    return pre_tokenizers.Sequence([first, byte_level])


def add_tokenizer(writer: Any, files: Mapping[str, bytes], config: Mapping[str, Any], *, size: int) -> None:
    """Write a tokenizer.json into the metadata of a GGUF file; without one, tokens have numbers alone.

    Args:
        writer: a `gguf.GGUFWriter`.
        files: of the model, by name.
        config: with numbers of special tokens.
        size: rows of the embedding; those without a token get one that is not used.

    Raises:
        SettingError: the `tokenizers` library is missing.
        ExportError: a tokenizer that GGUF files have no name for.
    """
    for name, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        number = config.get(f"{name}_token_id")
        number = number[0] if isinstance(number, list) and number else number
        if isinstance(number, int):
            add(number)
    if "tokenizer.json" not in files:
        writer.add_tokenizer_model("none")
        return
    require_library("to be written")
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(files["tokenizer.json"].decode())
    content = json.loads(library.to_str())
    model, decoder = content["model"], content.get("decoder") or {}
    is_known = model["type"] == "BPE" and model["merges"] and decoder.get("type") == "ByteLevel"
    is_known = is_known and content.get("normalizer") is None
    cut = next((cut for cut in _CUTS if is_known and _is_cut_by(content, cut)), None)
    if cut is None:
        raise ExportError(f"GGUF: its tokenizer is no byte-level BPE that cuts text as {', '.join(_CUTS)} do")
    numbers = {number: token for token, number in library.get_vocab(with_added_tokens=True).items()}
    if max(numbers) >= size:
        raise ExportError(f"GGUF: its tokenizer has a token {max(numbers)}, but its embedding has {size} rows")
    kinds = {one["id"]: _CONTROL if one["special"] else _USER_DEFINED for one in content["added_tokens"]}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(cut)
    writer.add_token_list([numbers.get(number, f"[PAD{number}]") for number in range(size)])
    writer.add_token_types([kinds.get(n, _NORMAL if n in numbers else _UNUSED) for n in range(size)])
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]])
    writer.add_add_bos_token(Library(library).begin is not None)
    about = json.loads(files.get("tokenizer_config.json", b"{}"))
    template = files.get("chat_template.jinja", b"").decode() or about.get("chat_template")
    if isinstance(template, str):
        writer.add_chat_template(template)


def _is_cut_by(content: Mapping[str, Any], cut: str) -> bool:
    """Whether a tokenizer cuts text before merges in this way, and merges as llama.cpp does then."""
    from tokenizers import Tokenizer, models

    other = Tokenizer(models.BPE())
    other.pre_tokenizer = _cutter(cut)
    wanted = json.loads(other.to_str())["pre_tokenizer"]
    is_whole = bool(content["model"].get("ignore_merges")) == (cut == "llama-bpe")  # a word that is a token is one
    return is_whole and content["pre_tokenizer"] == wanted
