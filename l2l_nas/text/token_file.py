"""A token file: all tokens of some documents in one memory-mapped array, made once.

A folder holds `tokens.bin` (uint16 or uint32, little-endian), `documents.npy` (where each document begins; the last
number is where all end) and `manifest.json`, which tells what it was made of. The folder gets its name when all of it
is written, so that a killed process leaves no half of one.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from l2l_nas.contents.arrays import map_npy
from l2l_nas.contents.fields import Fields
from l2l_nas.errors import DataError, StorageError, one_line
from l2l_nas.files import (
    make_folder,
    named_failures,
    open_file,
    read_json,
    remove_leftovers,
    sync_folder,
    temporary_name,
)
from l2l_nas.text.documents import read_documents
from l2l_nas.text.tokenizer import Tokenizer

_LOGGER = logging.getLogger("l2l_nas")
_VERSION = 1
# bytes of tokens that are compared with their digest when a file is opened: a second or two for each GiB
_VERIFIED = 1 << 33
# bytes of a text file that are hashed to know it again: a second for each GiB
_HASHED = 1 << 30
_SEEN = 1000  # characters on either side of a cut that are compared
_TOKENS, _DOCUMENTS, _MANIFEST = "tokens.bin", "documents.npy", "manifest.json"


@dataclass(frozen=True)
class TokenFile:
    """Tokens of documents."""

    tokens: np.ndarray  # of all documents, one behind the other, each with the tokenizer's end
    documents: np.ndarray  # int64 [documents + 1], where each begins; the last is where all end
    tokenizer: str  # the fingerprint of what made them
    digest: str  # 16 hex digits of the tokens


def cache_folder(name: str = "") -> Path:
    """Where token files are, unless a folder is named: the user's cache, which XDG_CACHE_HOME names."""
    if name:
        return Path(name).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "l2l_nas" / "tokens"


def token_file(paths: Sequence[Path], tokenizer: Tokenizer, *, text_key: str = "text", cache: Path) -> TokenFile:
    """The tokens of text files (see `read_documents`): those of the cache, or made now.

    They are made anew where a file has another name or content than before, for another tokenizer or key. Content is
    compared by a digest; that of files above 1 GiB by size, inode and times, of which the one of the last change of any
    kind cannot be set back.

    Raises:
        StorageError: a file cannot be read or written, or a token file is damaged.
        DataError: see `read_documents`; no text at all.
    """
    about = {
        "version": _VERSION,
        "tokenizer": tokenizer.fingerprint,
        "text_key": text_key,
        "sources": [[str(path.absolute()), *_identity(path)] for path in paths],
    }
    return cached(cache, json.dumps(about), read_documents(paths, text_key=text_key), tokenizer, about)


def cached(
    cache: Path, made_of: str, documents: Iterable[Iterator[str]], tokenizer: Tokenizer, about: dict[str, Any]
) -> TokenFile:
    """The token file of the cache that was made of this, or one of these documents."""
    folder = cache / hashlib.sha256(made_of.encode()).hexdigest()[:16]
    if not folder.exists():
        _make_cache(cache)
        remove_leftovers(cache)
        build(folder, documents, tokenizer, about)
    return read_token_file(folder, tokenizer)


def _make_cache(folder: Path) -> None:
    try:
        make_folder(folder)
        probe = temporary_name(folder / "probe")
        make_folder(probe)
        probe.rmdir()
    except (StorageError, OSError) as error:
        raise StorageError(
            f"{one_line(str(error))}; name another folder for token files: XDG_CACHE_HOME=FOLDER"
        ) from None


def _identity(path: Path) -> tuple[str] | tuple[int, ...]:
    if not path.is_file():
        raise StorageError(f"there is no file {path}; name text files, or a folder of them")
    with open_file(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > _HASHED:
            return found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns
        with named_failures(path):
            return (hashlib.file_digest(file, "sha256").hexdigest(),)  # type: ignore[arg-type]


def build(
    folder: Path, documents: Iterable[Iterator[str]], tokenizer: Tokenizer, about: dict[str, Any] | None = None
) -> None:
    """Write a token file; it gets its name when it is whole.

    Raises:
        StorageError, DataError: a file cannot be written, or the documents hold no text.
    """
    draft = temporary_name(folder)
    shutil.rmtree(draft, ignore_errors=True)
    make_folder(draft)
    kind = np.dtype("<u2" if tokenizer.size <= 1 << 16 else "<u4")
    digest, places, count, lost = hashlib.sha256(), [0], 0, 0
    try:
        with named_failures(draft), (draft / _TOKENS).open("wb") as file:
            for pieces in documents:
                for piece in joined(pieces, tokenizer):
                    count += _write(tokenizer.encode(piece), kind, file.write, digest.update)
                    lost += tokenizer.num_lost(piece)
                if count == places[-1]:
                    continue  # an empty document is none
                if tokenizer.end is not None:
                    count += _write([tokenizer.end], kind, file.write, digest.update)
                places.append(count)
            file.flush()
            os.fsync(file.fileno())
        if lost:
            _LOGGER.warning(
                "the tokenizer has no token for %s characters of the text, and leaves them out", f"{lost:,}"
            )
        if len(places) == 1:
            raise DataError("the text is empty; name files that hold some")
        with named_failures(draft):
            written = np.array(places, dtype=np.int64)
            np.save(draft / _DOCUMENTS, written)
            manifest = {**(about or {}), "tokenizer": tokenizer.fingerprint, "dtype": kind.str, "tokens": count}
            manifest |= {"documents": len(places) - 1, "sha256": digest.hexdigest(), "places_sha256": _digest(written)}
            (draft / _MANIFEST).write_text(json.dumps(manifest, indent=1))
            for name in (_DOCUMENTS, _MANIFEST):
                with (draft / name).open("rb") as file:
                    os.fsync(file.fileno())
            sync_folder(draft)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.is_dir():  # another process may have been faster
                    raise
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def joined(pieces: Iterator[str], tokenizer: Tokenizer) -> Iterator[str]:
    """The pieces of a text, as one where the tokenizer has other numbers for two."""
    held: list[str] = []
    for piece in pieces:
        if held and tokenizer.divides(held[-1][-_SEEN:], piece[:_SEEN]):
            yield "".join(held)
            held.clear()
        held.append(piece)
    yield "".join(held)


def _write(numbers: list[int], kind: np.dtype[Any], *sinks: Callable[[bytes], object]) -> int:
    content = np.array(numbers, dtype=kind).tobytes()
    for sink in sinks:
        sink(content)
    return len(numbers)


def read_token_file(folder: Path, tokenizer: Tokenizer) -> TokenFile:
    """A token file, mapped; raises StorageError where it is damaged, or of another tokenizer."""
    advice = "remove the folder, it is made again"
    manifest = Fields(read_json(folder / _MANIFEST), folder / _MANIFEST, advice=advice)
    if manifest.text("dtype") not in ("<u2", "<u4"):
        manifest.refuse("dtype", "'<u2' or '<u4'")
    kind, count = np.dtype(manifest.text("dtype")), manifest.whole("tokens", least=1)
    made_by, digest, documents = manifest.text("tokenizer"), manifest.text("sha256"), manifest.whole("documents")
    if made_by != tokenizer.fingerprint:
        raise StorageError(f"{folder} was made by another tokenizer; name that one, or remove the folder")
    with open_file(folder / _TOKENS) as file:
        num_bytes = os.fstat(file.fileno()).st_size
        if num_bytes != count * kind.itemsize:
            raise _damaged(folder, f"{num_bytes} bytes of {count} tokens")
        tokens = np.memmap(file, dtype=kind, mode="r", shape=(count,))
    if tokens.nbytes <= _VERIFIED and hashlib.sha256(tokens.data).hexdigest() != digest:
        raise _damaged(folder, "other tokens than were written")
    try:
        places = np.array(map_npy(folder / _DOCUMENTS))
    except StorageError as error:
        raise _damaged(folder, str(error)) from None
    is_whole = places.dtype == np.int64 and places.shape == (documents + 1,)
    if not is_whole or places[0] != 0 or places[-1] != count or (np.diff(places) <= 0).any():
        raise _damaged(folder, "places of documents")
    if manifest.text("places_sha256", default=None) not in (None, _digest(places)):  # files of before have none
        raise _damaged(folder, "other places of documents than were written")
    return TokenFile(tokens, places, made_by, digest[:16])


def _digest(places: np.ndarray) -> str:
    return hashlib.sha256(places.tobytes()).hexdigest()


def _damaged(folder: Path, why: str) -> StorageError:
    return StorageError(f"{folder} is damaged ({why}); remove the folder, it is made again")
