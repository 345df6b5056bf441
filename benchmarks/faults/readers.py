"""Damaged files read in one process, without a command around them: a hundred in the time of one of `mutations.py`.

    python -m benchmarks readers [--files 5000] [--seed 0] [--only TEXT] [--out FILE]

Every reader of files of others reads a whole file of its kind, tiny and drawn from a seed; then a file is damaged, and
read again. A case fails where something else than one of our errors is raised, where an error is more than one line,
where reading takes longer than 20 seconds, or where a model of a damaged file computes something else (see
`damage.judged`).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.faults import damage, forks
from benchmarks.options import at_least
from l2l_nas import Data, plain_module
from l2l_nas.compress.pool import FamilyPool, published_pool
from l2l_nas.cost.profiles import find_hardware
from l2l_nas.errors import L2LError
from l2l_nas.files import check_yaml, write_json
from l2l_nas.text.cloze import read_passages
from l2l_nas.text.documents import read_documents
from l2l_nas.text.token_file import token_file
from l2l_nas.text.tokenizer import Tokenizer, load_tokenizer

CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "bos_token_id": 99, "eos_token_id": [99, 98], "torch_dtype": "float32",
}  # fmt: skip
TEXT = "some words of a text that a model reads, abc ab ab cab\n" * 12


def _tensors() -> dict[str, torch.Tensor]:
    from l2l_nas.compress.families import family_of

    generator = torch.Generator().manual_seed(0)
    shapes = family_of(CONFIG).shapes
    return {
        name: torch.ones(shape) if len(shape) == 1 else 0.3 * torch.randn(shape, generator=generator)
        for name, shape in shapes.items()
    }


def _letters() -> list[str]:
    return [*(chr(code) for code in range(33, 127)), "Ġ", "Ċ", "ab", "Ġa"]


def write_models(place: Path) -> None:
    """`hf` and `sharded`: the same model."""
    from safetensors.torch import save_file

    from l2l_nas.text.tokenizer import load_tokenizer

    (place / "bpe").mkdir()
    tokens = [*_letters(), "<|pad|>", "<|endoftext|>"]
    (place / "bpe/vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (place / "bpe/merges.txt").write_text("#version: 0.2\na b\nĠ a\n")
    (place / "words").mkdir()
    (place / "words/vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "##c", "a"]))
    (place / "hf").mkdir()
    tensors = _tensors()
    save_file(tensors, place / "hf/model.safetensors", metadata={"format": "pt"})
    (place / "hf/config.json").write_text(json.dumps(CONFIG))
    (place / "hf/generation_config.json").write_text(json.dumps({"eos_token_id": [99, 98], "pad_token_id": 98}))
    for name, text in load_tokenizer(str(place / "bpe")).texts.items():
        (place / "hf" / name).write_text(text)
    shutil.copytree(place / "hf", place / "sharded")
    (place / "sharded/model.safetensors").unlink()
    names = sorted(tensors)
    shards = {f"model-{part + 1:05}-of-00002.safetensors": names[part::2] for part in range(2)}
    for file, some in shards.items():
        save_file({name: tensors[name] for name in some}, place / "sharded" / file)
    index = {name: file for file, some in shards.items() for name in some}
    (place / "sharded/model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_data(place: Path) -> None:
    from PIL import Image

    from l2l_nas.cost.profiles import PROFILES

    random = np.random.default_rng(0)
    (place / "text.txt").write_text(TEXT)
    (place / "lines.jsonl").write_text("".join(json.dumps({"text": TEXT}) + "\n" for _ in range(40)))
    (place / "passages.jsonl").write_text('{"text": "some words of a text"}\n{"context": "ab", "target": "ab"}\n')
    (place / "arrays").mkdir()
    x = random.random((160, 2), dtype=np.float32)
    np.save(place / "arrays/x.npy", x)
    np.save(place / "arrays/y.npy", (x[:, 0] > x[:, 1]).astype(np.int64))
    for name in ("cat", "dog"):
        (place / "images" / name).mkdir(parents=True)
        for index in range(6):
            picture = random.integers(0, 255, (4, 4, 3), dtype=np.uint8)
            Image.fromarray(picture).save(place / "images" / name / f"{index}.png")
    (place / "machine.json").write_text(json.dumps(PROFILES["h100"].to_json()))
    for name, text in (
        ("experiment/night", "# @package _global_\nseed: 5\nobjectives:\n  names: [accuracy, parameters]\n"),
        ("sampler/few", "name: tpe\nn_startup_trials: 3\n"),
    ):
        (place / "conf" / name).parent.mkdir(parents=True)
        (place / f"conf/{name}.yaml").write_text(text)


_SECONDS = 20
_TOKENS = torch.arange(8)[None]


def _model(name: str) -> torch.Tensor:
    pool = published_pool(name, length=8)
    assert isinstance(pool, FamilyPool)
    outputs: torch.Tensor = plain_module(pool, pool.original)(_TOKENS)
    _use(pool.published.tokenizer())
    assert pool.published.beside is not None
    return outputs


def _use(tokenizer: Tokenizer) -> None:
    tokenizer.encode("ab cab xyz é")
    tokenizer.decode([1, 2, 3])


def _data(folder: str) -> None:
    for part in Data.from_folder(folder).parts.values():
        part.preview()


def _documents(name: str) -> None:
    for pieces in read_documents([Path(name)]):
        for _ in pieces:
            pass


def _configs(folder: str) -> None:
    for path in Path(folder).glob("*/*"):
        check_yaml(path)


READERS: dict[str, Callable[[], Any]] = {
    "hf/*": lambda: _model("hf:hf"),
    "sharded/*": lambda: _model("hf:sharded"),
    "bpe/*": lambda: _use(load_tokenizer("bpe")),
    "words/*": lambda: _use(load_tokenizer("words")),
    "cache/*/*": lambda: token_file([Path("text.txt")], load_tokenizer("bpe"), cache=Path("cache")),
    "arrays/*": lambda: _data("arrays"),
    "images/*/*": lambda: _data("images"),
    "machine.json": lambda: find_hardware("machine.json"),
    "lines.jsonl": lambda: _documents("lines.jsonl"),
    "text.txt": lambda: _documents("text.txt"),
    "passages.jsonl": lambda: read_passages(Path("passages.jsonl")),
    "conf/*/*": lambda: _configs("conf"),
}


def _put_back(path: Path, content: bytes, times: tuple[int, int]) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    os.utime(path, ns=times)


def wrong(kind: str, path: Path, before: bytes, told: object) -> str:
    """What was wrong with reading a damaged file; empty where it was refused in one line, or gives what it gave."""

    def too_long(*_: object) -> None:
        raise TimeoutError(f"no end after {_SECONDS} s")

    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(_SECONDS)
    try:
        got = READERS[kind]()
    except L2LError as error:
        return f"an error of several lines: {error}" if "\n" in str(error) else ""
    except BaseException as error:
        return f"{type(error).__name__}: {error} ({''.join(traceback.format_tb(error.__traceback__)[-1:]).strip()})"
    finally:
        signal.alarm(0)
    if not isinstance(told, torch.Tensor) or path.suffix != ".safetensors":
        return ""
    if not torch.equal(told, got) and damage.judged(path, before):
        return "computes something else"
    return ""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--files", type=at_least(1), default=5000)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--only", default="", help="kinds of files with this in their names")
    parser.add_argument("--out", type=Path)


def main(asked: argparse.Namespace) -> int:
    """0 if every case went well."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    failures, codes = [], Counter[str]()
    with tempfile.TemporaryDirectory(dir=forks.FAST) as scratch:
        os.chdir(scratch)
        write_models(Path())
        write_data(Path())
        told = {kind: read() for kind, read in READERS.items()}
        kinds = [kind for kind in READERS if asked.only in kind]
        for number in range(asked.files):
            generator = random.Random(f"{asked.seed} {number}")
            kind = generator.choice(kinds)
            path = generator.choice(sorted(path for path in Path().glob(kind) if path.is_file()))
            before, found = path.read_bytes(), path.stat()
            how = damage.mutate(path, generator)
            said = wrong(kind, path, before, told[kind])
            codes[kind] += 1
            if said:
                failures.append({"case": number, "file": str(path), "what": how, "wrong": said})
                print(f"{number} {path} {how}\n    {said[:600]}", flush=True)
            _put_back(path, before, (found.st_atime_ns, found.st_mtime_ns))
        os.chdir("/")
    result = {"files": asked.files, "seed": asked.seed, "kinds": dict(codes), "failures": failures}
    print(json.dumps({**result, "failures": len(failures)}))
    if asked.out:
        write_json(asked.out, result)
    return bool(failures)
