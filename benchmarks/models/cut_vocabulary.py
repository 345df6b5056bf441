"""A published model with the tokens of some texts alone, so that its layers are most of what it computes.

    python -m benchmarks cut_vocabulary --model FOLDER --text FILE ... [--lambada FILE] --out FOLDER

The folder has a tokenizer.json of byte-pair merges, and weights in safetensors whose head is the table of tokens. Rows
of tokens that none of the texts has, and that none is merged from, go. The texts keep their tokens, by other numbers,
which is checked; layers stay as they are. Probabilities are then of the tokens that are left.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from l2l_nas.errors import SettingError
from l2l_nas.files import read_json, write_json
from l2l_nas.text.cloze import read_passages
from l2l_nas.text.documents import read_documents

_SPECIAL = ("bos", "eos", "pad", "unk", "mask")
_BYTES = {f"<0x{number:02X}>" for number in range(256)}
_CONFIGS = ("config.json", "generation_config.json")


def cut_tokenizer(content: Mapping[str, Any], special: Iterable[str], texts: Sequence[str]) -> dict[str, Any]:
    """A tokenizer.json of byte-pair merges with the tokens of these texts, numbered anew in their order."""
    model = content["model"]
    if model["type"] != "BPE":
        raise SettingError(f"tokenizer.json: its model is {model['type']}, not BPE; name another folder")
    whole = Tokenizer.from_str(json.dumps(content))
    old: dict[str, int] = model["vocab"]
    used = {token for text in texts for token in whole.encode(text, add_special_tokens=False).tokens}
    merges = [tuple(one) if isinstance(one, list) else tuple(one.split(" ", 1)) for one in model["merges"]]
    ranks = {pair: rank for rank, pair in enumerate(merges)}
    kept = {*special, *(_BYTES & old.keys())} | {part for token in used for part in _parts(token, ranks)}
    numbers = {token: number for number, token in enumerate(sorted(kept & old.keys(), key=old.__getitem__))}
    made = {
        **content,
        "model": {
            **model,
            "vocab": numbers,
            "merges": [[*pair] for pair in merges if {*pair, "".join(pair)} <= numbers.keys()],
        },
        "added_tokens": [
            {**one, "id": numbers[one["content"]]} for one in content["added_tokens"] if one["content"] in numbers
        ],
    }
    if framing := (content.get("post_processor") or {}).get("special_tokens"):
        ids = {name: {**one, "ids": [numbers[token] for token in one["tokens"]]} for name, one in framing.items()}
        made["post_processor"] = {**content["post_processor"], "special_tokens": ids}
    cut = Tokenizer.from_str(json.dumps(made))
    for text in texts:
        if cut.encode(text, add_special_tokens=False).tokens != whole.encode(text, add_special_tokens=False).tokens:
            raise SettingError(f"tokenizer.json: once cut, it gives other tokens to a text that begins {text[:40]!r}")
    return made


def _parts(token: str, ranks: Mapping[tuple[str, ...], int]) -> Iterator[str]:
    """A token, and all that it is merged from."""
    symbols = list(token)
    yield from (token, *symbols)
    while len(symbols) > 1:
        pairs = list(itertools.pairwise(symbols))
        best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
        if best not in ranks:
            return
        at = pairs.index(best)
        symbols[at : at + 2] = ["".join(best)]
        yield symbols[at]


def cut_model(folder: Path, texts: Sequence[str], out: Path) -> int:
    """Write the folder of the model with the tokens of these texts, and tell how many these are."""
    content, about = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    special = [about[f"{name}_token"] for name in _SPECIAL if about.get(f"{name}_token")]
    made = cut_tokenizer(content, special, texts)
    old, new = content["model"]["vocab"], made["model"]["vocab"]
    rows = torch.tensor([old[token] for token in new])
    weights = load_file(folder / "model.safetensors")
    tables = [name for name, weight in weights.items() if weight.shape[0] == len(old)]
    if len(tables) != 1:
        raise SettingError(f"{folder}: tables of {len(old)} tokens: {tables or 'none'}, one is wanted")
    weights[tables[0]] = weights[tables[0]][rows].clone()
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    write_json(out / "tokenizer.json", made)
    write_json(out / "tokenizer_config.json", about)
    for name in _CONFIGS:
        if (folder / name).exists():
            write_json(out / name, _renumbered(read_json(folder / name), old, new))
    return len(new)


def _renumbered(config: dict[str, Any], old: Mapping[str, int], new: Mapping[str, int]) -> dict[str, Any]:
    """A configuration with the new numbers of special tokens."""
    numbers = {number: new[token] for token, number in old.items() if token in new}
    changed: dict[str, Any] = {}
    for key in (f"{name}_token_id" for name in _SPECIAL):
        match config.get(key):
            case int(number):
                changed[key] = numbers.get(number)
            case list(several):  # ends of a text; those that went are none
                changed[key] = [numbers[number] for number in several if number in numbers]
    size = {"vocab_size": len(new)} if "vocab_size" in config else {}
    return {**config, **changed, **size}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="a folder")
    parser.add_argument("--text", type=Path, nargs="+", required=True, help="plain text, or loose JSON")
    parser.add_argument("--lambada", type=Path, help="passages, as JSON")
    parser.add_argument("--out", type=Path, required=True)


def main(options: argparse.Namespace) -> None:
    texts = ["".join(pieces) for pieces in read_documents(options.text)]
    if options.lambada is not None:
        passages = read_passages(options.lambada)
        texts += [one.context for one in passages]
        texts += [one.context + one.between + one.target for one in passages]
    print(f"{options.out}: {cut_model(options.model, texts, options.out):,} tokens")
