"""Sentences, or pairs of them, with a class each: tables such as GLUE's (arXiv 1804.07461)."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from l2l_nas.errors import DataError, SettingError
from l2l_nas.text.documents import JSON, json_objects, read_text
from l2l_nas.text.tokenizer import Bytes, Tokenizer
from l2l_nas.training.cut import cut, shares_of
from l2l_nas.training.data import Data
from l2l_nas.training.samples import SCORING, Key, Loaded, Samples, check_rows

TABLES = (".csv", ".tsv", *JSON)
# files of a folder, by the first part of their names
_PARTS = {"training": ("train",), "validation": ("dev", "validation", "valid"), "test": ("test",)}
# columns that are meant where none are named
_TEXTS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence",),
    ("text",),
)
_CLASSES = ("label", "category", "class", "gold_label")
_NAME_THEM = "name them: data.columns=[SENTENCE,CLASS] or [FIRST,SECOND,CLASS]"
_PAD = 0


@dataclass(frozen=True)
class SentenceForm:
    """How rows of a table become samples.

    Raises:
        SettingError: a length that has no space for a sentence, or not two or three columns.
    """

    tokenizer: Tokenizer = field(default_factory=Bytes)  # what makes tokens
    # tokens of a sample. A longer one loses tokens at the end of its sentence, or of the longer one of a pair; a
    # shorter one is padded.
    length: int = 128
    # names of the one or two columns of text and of the one of the class; empty: known names
    columns: Sequence[str] = ()
    classes: Sequence[str] = ()  # their names, in the order of their numbers; empty: those that there are, sorted

    def __post_init__(self) -> None:
        if self.columns and not 2 <= len(self.columns) <= 3:
            raise SettingError(f"data.columns: {list(self.columns)} are {len(self.columns)} columns; {_NAME_THEM}")
        if self.length < 5:
            raise SettingError(f"data.length must be at least 5 for sentences, got {self.length}")

    def tokens(self, texts: Sequence[str]) -> tuple[list[int], int]:
        """The tokens of a row, framed as BERT's are (arXiv 1810.04805), and how many are of the first sentence.

        Where a tokenizer has no tokens for the frame, the one that ends a document stands there.
        """
        own = self.tokenizer
        frame = [own.end if one is None else one for one in (own.first, own.last)]
        first, last = ([] if one is None else [one] for one in frame)
        parts = [own.encode(text) for text in texts]
        _truncate(parts, self.length - len(first) - len(parts) * len(last))
        begin = [*first, *parts[0], *last]
        return [*begin, *(token for part in parts[1:] for token in (*part, *last))], len(begin)


def _truncate(parts: list[list[int]], most: int) -> None:
    """Shorten the longer one until both fit; then both, of which the longer one keeps one more."""
    if sum(map(len, parts)) <= most:
        return
    short, long = (parts[0], parts[-1]) if len(parts[0]) <= len(parts[-1]) else (parts[-1], parts[0])
    if len(parts) == 1:
        del long[most:]
    elif len(short) <= most // 2:
        del long[most - len(short) :]
    else:
        del short[most // 2 :], long[most - most // 2 :]


class Sentences(Samples):
    """Rows of a table.

    Inputs are tokens, the kind of each (0 in the first sentence, 1 in the second one), and 0 for a token and 1 for
    padding, all int64 [batch, length]. The target is the number of the class.

    `rows` are the texts of each row; the classes of the form are named.
    """

    is_by_row = is_padded = True

    def __init__(self, rows: Sequence[Sequence[str]], classes: Sequence[str], form: SentenceForm) -> None:
        self.form = form
        made = [form.tokens(texts) for texts in rows]
        self._ends = np.cumsum([0, *(len(tokens) for tokens, _ in made)])
        self._tokens = np.array([token for tokens, _ in made for token in tokens], dtype=np.int32)
        self._firsts = np.array([first for _, first in made], dtype=np.int32)
        numbers = {name: number for number, name in enumerate(form.classes)}
        self._targets = torch.tensor([numbers[name] for name in classes], dtype=torch.int64)

    def __len__(self) -> int:
        return len(self._targets)

    def batch(self, rows: Tensor, *, key: Key = SCORING) -> Loaded:
        check_rows(self, rows, key)
        tokens = np.full((len(rows), self.form.length), _PAD, dtype=np.int64)
        kinds, padding = np.zeros_like(tokens), np.ones_like(tokens)
        for place, row in enumerate(rows.tolist()):
            mine = self._tokens[self._ends[row] : self._ends[row + 1]]
            tokens[place, : len(mine)] = mine
            kinds[place, self._firsts[row] : len(mine)] = 1
            padding[place, : len(mine)] = 0
        return tuple(map(torch.from_numpy, (tokens, kinds, padding))), self._targets[rows]


def is_table(source: str) -> bool:
    """Whether a source is a table, or a folder of one for each part."""
    path = Path(source).expanduser()
    return path.suffix.lower() in TABLES if path.is_file() else "training" in _parts(path)


def sentence_data(source: str, form: SentenceForm, splits: Sequence[float]) -> Data:
    """Sentences with classes, in three parts.

    Args:
        source: a table (`.csv`, `.tsv`, or JSON with an object a line), cut so that each class keeps its share; or a
            folder of tables `train`, `dev` or `validation`, and maybe `test`.
        form: how rows become samples.
        splits: shares of training, validation and test, of one table.

    Raises:
        SettingError: no such source.
        StorageError: a file that cannot be read.
        DataError: a table that is none, without rows, or with a class that training has not.
    """
    path = Path(source).expanduser()
    if path.is_file() and path.suffix.lower() in TABLES:
        rows, classes = read_table(path, form.columns)
        named = replace(form, classes=_in_order(classes))
        shares = [share / sum(shares_of(splits)) for share in (*shares_of(splits), 0.0)]
        numbers = np.array([named.classes.index(name) for name in classes])
        cuts = cut(len(rows), validation_fraction=shares[1], test_fraction=shares[2], classes=numbers)
        made = [Sentences([rows[one] for one in part], [classes[one] for one in part], named) for part in cuts]
        return Data(made[0], made[1], made[2] if len(cuts[2]) else None)
    found = _parts(path)
    if not {"training", "validation"} <= set(found):
        raise SettingError(
            f"data.source={source} is no table of sentences: name a file ({', '.join(TABLES)}), or a folder with a "
            "train and a dev file"
        )
    tables = {name: read_table(file, form.columns) for name, file in found.items()}
    named = replace(form, classes=_in_order(tables["training"][1]))
    for name, (_, classes) in tables.items():
        _refuse_unknown(classes, named.classes, found[name])
    parts = {name: Sentences(rows, classes, named) for name, (rows, classes) in tables.items()}
    return Data(parts["training"], parts["validation"], parts.get("test"))


def sentences_of(file: Path, form: SentenceForm) -> Sentences:
    """A further table for a network that is trained already, whose form it is; raises as `sentence_data`."""
    rows, classes = read_table(file, form.columns)
    _refuse_unknown(classes, form.classes, file)
    return Sentences(rows, classes, form)


def _refuse_unknown(classes: Sequence[str], known: Sequence[str], file: Path) -> None:
    """Refuse a class that training has not, with a DataError."""
    unknown = next((number for number, name in enumerate(classes, start=1) if name not in set(known)), None)
    if unknown is not None:
        raise DataError(
            f"{file}, row {unknown}: class '{classes[unknown - 1]}' is not in the training part, which has "
            f"{', '.join(known[:10])}{', ...' * (len(known) > 10)}"
        )


def _in_order(classes: Sequence[str]) -> tuple[str, ...]:
    """The different ones: numbers by their size, all else by its letters."""
    names = set(classes)
    if all(name.isdecimal() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def _parts(folder: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for file in sorted(folder.iterdir()) if folder.is_dir() else ():
        for part, names in _PARTS.items():
            if file.suffix.lower() in TABLES and file.stem.lower() in names:
                if part in found:
                    raise DataError(f"{folder}: {found[part].name} and {file.name} are both of {part}; leave one")
                found[part] = file
    return found


def read_table(path: Path, columns: Sequence[str] = ()) -> tuple[list[tuple[str, ...]], list[str]]:
    """Texts and class of each row.

    A `.csv` has quotes as the module `csv` reads them, a `.tsv` none, as GLUE's.

    Args:
        columns: see `SentenceForm`.

    Raises:
        StorageError: it cannot be read.
        DataError: no UTF-8, no such columns, a row that lacks one, or no row at all.
    """
    rows: list[tuple[str, ...]] = []
    classes: list[str] = []
    lines = _objects(path) if path.suffix.lower() in JSON else _lines(path)
    header = next(lines, (0, []))[1]
    names = _chosen(list(header), columns, path)
    for number, row in lines:
        if len(row) != len(header):
            raise DataError(f"{path}, line {number}: {len(row)} values, and the first line names {len(header)} columns")
        values = dict(zip(header, row, strict=True))
        rows.append(tuple(values[name] for name in names[:-1]))
        classes.append(values[names[-1]].strip())
        if not classes[-1]:
            raise DataError(f"{path}, line {number}: no class in column '{names[-1]}'; leave the row out")
    if not rows:
        raise DataError(f"{path}: a table without rows")
    return rows, classes


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Rows of a table, the first being the columns, with the lines that they end in."""
    kind = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix.lower() == ".tsv" else {"strict": True}
    reader = csv.reader(read_text(path).splitlines(keepends=True), **kind)  # type: ignore[arg-type]
    try:
        yield from ((reader.line_num, row) for row in reader if row)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; mend or remove the line") from None


def _objects(path: Path) -> Iterator[tuple[int, list[str]]]:
    header: list[str] = []
    for number, entry in json_objects(path):
        if not header:
            header = list(entry)
            yield 0, header
        if set(entry) != set(header):
            raise DataError(f"{path}, line {number}: has {', '.join(entry)}, and the first line {', '.join(header)}")
        yield number, [value if isinstance(value := entry[name], str) else json.dumps(value) for name in header]


def _chosen(header: list[str], columns: Sequence[str], path: Path) -> tuple[str, ...]:
    has = ", ".join(header) if header else "none"
    if columns:
        missing = next((name for name in columns if name not in header), None)
        if missing is not None:
            raise DataError(f"{path}: no column '{missing}'; it has {has}")
        return tuple(columns)
    texts = next((names for names in _TEXTS if set(names) <= set(header)), None)
    label = next((name for name in _CLASSES if name in header), None)
    if texts is None or label is None:
        raise DataError(
            f"{path}: which columns are {'sentences' if texts is None else 'classes'}? It has {has}; {_NAME_THEM}"
        )
    return (*texts, label)
