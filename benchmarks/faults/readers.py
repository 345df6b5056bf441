"""Damaged files read in one process, without a command around them: a hundred in the time of one of `mutations.py`.

    python -m benchmarks readers [--files 5000] [--seed 0] [--only TEXT] [--out FILE]

Every reader of files of others reads a whole file of its kind (see `whole.py`); then a file is damaged, and read again.
A case fails where something else than one of our errors is raised, where an error is more than one line, where reading
takes longer than 20 seconds, or where a model of a damaged file computes something else (see `headers.judged`).
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
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.faults import headers, mutants, whole
from benchmarks.options import at_least
from l2l_nas import Data, plain_module
from l2l_nas.cost.profiles import find_hardware
from l2l_nas.errors import L2LError
from l2l_nas.files import check_yaml
from l2l_nas.pretrained.pool import PublishedPool, published_pool
from l2l_nas.text.cloze import read_passages
from l2l_nas.text.documents import read_documents
from l2l_nas.text.token_file import token_file
from l2l_nas.text.tokenizer import Tokenizer, load_tokenizer

_SECONDS = 20
_TOKENS = torch.arange(8)[None]


def _model(name: str) -> torch.Tensor:
    pool = published_pool(name, length=8)
    assert isinstance(pool, PublishedPool)
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
    if not torch.equal(told, got) and headers.judged(path, before):
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
    failures, codes, began = [], Counter[str](), time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        os.chdir(scratch)
        whole.write_models(Path())
        whole.write_data(Path())
        told = {kind: read() for kind, read in READERS.items()}
        kinds = [kind for kind in READERS if asked.only in kind]
        for number in range(asked.files):
            generator = random.Random(f"{asked.seed} {number}")
            kind = generator.choice(kinds)
            path = generator.choice(sorted(path for path in Path().glob(kind) if path.is_file()))
            before, found = path.read_bytes(), path.stat()
            how = mutants.mutate(path, generator)
            said = wrong(kind, path, before, told[kind])
            codes[kind] += 1
            if said:
                failures.append({"case": number, "file": str(path), "what": how, "wrong": said})
                print(f"{number} {path} {how}\n    {said[:600]}", flush=True)
            _put_back(path, before, (found.st_atime_ns, found.st_mtime_ns))
        os.chdir("/")
    result = {"files": asked.files, "seed": asked.seed, "kinds": dict(codes), "failures": failures}
    result["seconds"] = round(time.monotonic() - began)
    result["processor_s"] = round(sum(os.times()[:2]))
    print(json.dumps({**result, "failures": len(failures)}))
    if asked.out:
        asked.out.write_text(json.dumps(result, indent=2) + "\n")
    return bool(failures)
