"""Documents of text files: a plain file is one, a line of loose JSON is one."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from l2l_nas.errors import DataError
from l2l_nas.files import open_file, read_bytes

JSON = (".json", ".jsonl")
PLAIN = (".txt", ".text", ".md", ".utf8", ".rst")
# a letter, digit or sign: no space, and no mark, which belongs to what is before it
_LETTER = r"[\w!-~\u2010-\u2027\u3001-\u3011\uff01-\uff5e]"
# backwards: where a tokenizer's word ends in any case, before a space between two letters or behind a line's end
_BETWEEN = re.compile(rf"(?<={_LETTER} )(?={_LETTER})|(?<={_LETTER})(?=\n{_LETTER})")
_PIECE = 1 << 20  # characters of a plain file that are read at a time
SUFFIXES = (*PLAIN, *JSON)


def text_files(source: str) -> list[Path]:
    """The files of a source: a file of text, or all of a folder, by name; empty where it is none of these."""
    path = Path(source).expanduser()
    if path.is_dir():
        found = [one for one in path.rglob("*") if one.suffix.lower() in SUFFIXES and one.is_file()]
        return sorted(one for one in found if not any(part.startswith(".") for part in one.relative_to(path).parts))
    return [path] if path.suffix.lower() in SUFFIXES else []


def read_documents(paths: Sequence[Path], *, text_key: str = "text") -> Iterator[Iterator[str]]:
    """The documents of some files, each in pieces, in the order of the files.

    Pieces begin at a line's first letter or with a space before a word, so that most tokenizers give them the numbers
    that they have in the whole.

    Args:
        paths: plain text, or JSON with an object a line.
        text_key: which of an object's entries is the text.

    Raises:
        StorageError: a file cannot be read.
        DataError: a line that is no JSON object or lacks the text, bytes that are no UTF-8.
    """
    for path in paths:
        if path.suffix.lower() in JSON:
            yield from (iter((text,)) for text in _texts(path, text_key))
        else:
            yield _pieces(path)


def _texts(path: Path, text_key: str) -> Iterator[str]:
    for number, entry in json_objects(path):
        text = entry.get(text_key)
        if not isinstance(text, str):
            has = f"it is {json.dumps(text)[:40]}" if text_key in entry else f"it has {', '.join(entry)}"
            advice = "mend or remove the line, or name the key" if text_key in entry else "name the key"
            raise DataError(f"{path}, line {number}: no text at '{text_key}' ({has}); {advice}: data.text_key=KEY")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(
                f"{path}, line {number}: half of a surrogate pair, which is no character; mend or remove the line"
            ) from None
        yield text


def json_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a file of JSON, one a line, with the numbers of their lines.

    Raises:
        StorageError: the file cannot be read.
        DataError: a line that is no JSON object, bytes that are no UTF-8.
    """
    with open_file(path) as file:
        place = 0
        for number, line in enumerate(file, start=1):
            text = _decoded(line, path, place)
            place += len(line)
            if not text.strip():
                continue
            if text.lstrip().startswith("["):
                raise DataError(f"{path}, line {number}: a JSON array, where an object is expected; write one a line")
            try:
                entry = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number}: no JSON ({error}); mend or remove the line") from None
            if not isinstance(entry, dict):
                raise DataError(f"{path}, line {number}: {type(entry).__name__}, where an object is expected")
            yield number, entry


def read_text(path: Path) -> str:
    """A whole file of text.

    Raises:
        StorageError: it cannot be read.
        DataError: bytes that are no UTF-8.
    """
    return _decoded(read_bytes(path), path, 0)


def _decoded(content: bytes, path: Path, place: int) -> str:
    """Bytes from a place of a file on; a mark of byte order at its begin is no text."""
    try:
        return content.decode("utf-8" if place else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(path, place + error.start) from None


def _not_text(path: Path, place: int) -> DataError:
    return DataError(f"{path}, byte {place}: no UTF-8; save it as UTF-8, or leave it out")


def _pieces(path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    with open_file(path) as file:
        place, rest = 0, ""
        while True:
            read = file.read(_PIECE)
            searched = max(0, len(rest) - 2)  # what was searched before is not again
            try:
                rest += decoder.decode(read, final=not read)
            except UnicodeDecodeError as error:
                raise _not_text(path, place - len(decoder.getstate()[0]) + error.start) from None
            place += len(read)
            cut = _boundary(rest[searched:]) if read else None
            if not read:
                yield rest
                return
            if cut is not None:
                yield rest[: searched + cut]
                rest = rest[searched + cut :]


def _boundary(text: str) -> int | None:
    """The last place between words where a tokenizer's word ends in any case."""
    found = _BETWEEN.search(text[::-1])
    return None if found is None else len(text) - found.start()
