"""Documents of text files: a plain file is one, a line of loose JSON is one."""

from __future__ import annotations

import codecs
import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from l2l_nas.errors import DataError
from l2l_nas.files import open_file

JSON = (".json", ".jsonl")
PLAIN = (".txt", ".text", ".md", ".utf8", ".rst")
# backwards: a letter, ASCII's or one of several bytes, what divides, and a letter
_LETTER = rb"([!-~]|[\x80-\xbf]{1,3}[\xc2-\xf4])"
_BETWEEN = re.compile(_LETTER + rb"([ \n])" + _LETTER)
_CUT = 9  # bytes of two letters of UTF-8 and what divides them
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
            yield from (iter((text,)) for text in _json_lines(path, text_key))
        else:
            yield _pieces(path)


def _json_lines(path: Path, text_key: str) -> Iterator[str]:
    with open_file(path) as file:
        place = 0
        for number, line in enumerate(file, start=1):
            text = _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line, path, place)
            place += len(line)
            if not text.strip():
                continue
            entry = parsed_line(text, path, number)
            if not isinstance(entry, dict) or not isinstance(entry.get(text_key), str):
                keys = ", ".join(map(str, entry)) if isinstance(entry, dict) else type(entry).__name__
                raise DataError(
                    f"{path}, line {number}: no text at '{text_key}' (it has {keys}); name the key: data.text_key=KEY"
                )
            try:
                entry[text_key].encode()
            except UnicodeEncodeError:
                raise DataError(
                    f"{path}, line {number}: half of a surrogate pair, which is no character; mend or remove the line"
                ) from None
            yield entry[text_key]


def parsed_line(line: str, path: Path, number: int) -> Any:
    """A line of JSON; a DataError names one that is none."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: no JSON ({error}); mend or remove the line") from None


def _pieces(path: Path) -> Iterator[str]:
    with open_file(path) as file:
        place, rest, searched = 0, bytearray(), 0
        while True:
            read = file.read(_PIECE)
            rest += read if place or rest else read.removeprefix(codecs.BOM_UTF8)
            # what was searched before is not again, but for letters that its end may have cut
            cut = _boundary(bytes(rest[searched:])) if read else len(rest)
            if cut:
                cut = searched + cut if read else cut
                yield _decoded(bytes(rest[:cut]), path, place)
                place += cut
                del rest[:cut]
            searched = max(0, len(rest) - _CUT)
            if not read:
                return


def _boundary(text: bytes) -> int:
    """The last place between words where a tokenizer's word ends in any case; 0 where there is none.

    That is before a space between two letters or signs of any script, and behind a line's end between such.
    """
    for found in _BETWEEN.finditer(text[::-1]):
        if _is_word(found[1][::-1]) and _is_word(found[3][::-1]):
            return len(text) - (found.start(2) if found[2] == b"\n" else found.end(2))
    return 0


def _is_word(letter: bytes) -> bool:
    """Whether it is a letter, digit or sign: no space, and no mark, which belongs to what is before it."""
    text = letter.decode(errors="ignore")  # its end may be cut
    return len(letter) == 1 or (len(text) == 1 and unicodedata.category(text)[0] in "LNP")


def _decoded(content: bytes, path: Path, place: int) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}, byte {place + error.start}: no UTF-8; save the text as UTF-8, or leave the file out"
        ) from None
