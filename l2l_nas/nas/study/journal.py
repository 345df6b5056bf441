"""Studies as files of JSON lines, one event a line, which Optuna's `JournalStorage` reads and appends to.

[Note: journal] A line is appended in one write and synced, so that a kill can cut off the last one alone: readers leave
it out, and the next writer cuts it off. Nothing in such a file is executed: a line is JSON, and what Optuna makes of it
are numbers, names and lists of choices. Whatever is wrong with one is told in one error that names the file.

[Note: chain] Each line that is written here ends with `"chain": "NUMBER-DIGEST"`, a key that Optuna ignores: how many
lines were chained, and a digest of the digest before and of this line. So a line that was lost, doubled, moved or
changed is named when the file is read. The first chained line covers all that lies before it, such as what a version
without chains wrote. Lines without it that come later, which Optuna's own backend and its dashboard write, are read
and not covered. Nor is the end: a file that lacks its last lines is what a kill leaves. A chain finds damage. It does
not keep out somebody who computes it anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import BaseJournalBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from l2l_nas.eps.identity import joined
from l2l_nas.errors import L2LError, StorageError, described
from l2l_nas.files import named_failures, open_file, parsing, sync_folder
from l2l_nas.nas.study.storage import AT_TRIAL, Opened, refuse_other

# of a run's study
STUDY_NAME = "search"
_EVENT = "event_"  # attributes that are events
_MOST_LINE_BYTES = 1 << 28  # what came of finalists is one line
_BLOCK_BYTES = 1 << 16
_RESTORE = "restore it from a copy, or start a new run"


_CHAIN = re.compile(rb',"chain":"([0-9]{1,18})-([0-9a-f]{16})"}\n')


@dataclass(frozen=True)
class _Position:
    """The end of a line; see [Note: chain].

    Args:
        num_bytes, num_lines: up to it.
        num_chained: those of the lines that have a chain.
        digest: of the last of them; of all lines as long as there is none.
    """

    num_bytes: int = 0
    num_lines: int = 0
    num_chained: int = 0
    digest: str = ""

    def after(self, line: bytes, *, is_chained: bool) -> _Position:
        """The end of the next line, which is given without its chain."""
        is_covered = is_chained or self.num_chained == 0
        digest = hashlib.blake2b(self.digest.encode() + line, digest_size=8).hexdigest() if is_covered else self.digest
        num_chained = self.num_chained + is_chained
        return _Position(self.num_bytes + len(line), self.num_lines + 1, num_chained, digest)


class JournalFile(BaseJournalBackend):
    """See [Note: journal].

    Args:
        path: there already; one process at a time writes it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = _Position()

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """Whole lines from this one on.

        Raises:
            StorageError: the file is missing or damaged.
        """
        if log_number_from < self._read.num_lines:
            self._read = _Position()
        for event, end in self._lines(self._read):
            self._read = end
            if end.num_lines > log_number_from:
                yield event

    def _lines(self, end: _Position) -> Iterator[tuple[dict[str, Any], _Position]]:
        """Whole lines behind a position, and where each ends. Raises StorageError: see `read_logs`."""
        with open_file(self._path) as file:
            file.seek(end.num_bytes)
            while (line := file.readline(_MOST_LINE_BYTES + 1)).endswith(b"\n"):
                with parsing(self._path, f"a study, in line {end.num_lines + 1}", advice=_RESTORE):
                    event = json.loads(line)
                    if not isinstance(event, dict) or type(event.get("op_code")) is not int:
                        raise ValueError("no event of Optuna's")
                end = self._checked(line, end, has_chain="chain" in event, rest=file)
                yield event, end
            if len(line) > _MOST_LINE_BYTES:
                raise StorageError(f"{self._path}: damaged, line {end.num_lines + 1} has no end; {_RESTORE}")

    def _checked(self, line: bytes, before: _Position, *, has_chain: bool, rest: BinaryIO) -> _Position:
        """Where a line ends. Raises StorageError: it is not the next of its chain.

        Args:
            rest: is at the end of the line.
        """
        found = _CHAIN.search(line)
        if found is None and not has_chain:
            return before.after(line, is_chained=False)
        wrong = "it was changed"
        if found is not None:
            end = before.after(line[: found.start()] + b"}\n", is_chained=True)
            number, expected = int(found[1]), end.num_chained
            if number == expected and found[2] == end.digest.encode():
                return replace(end, num_bytes=before.num_bytes + len(line))
            wrong = _what_is_wrong(number, expected, rest)
        raise StorageError(f"{self._path}: damaged in line {before.num_lines + 1}: {wrong}; {_RESTORE}")

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append events, a line each; when this returns they are on disk.

        Raises:
            StorageError: the file is gone or damaged, or cannot be written.
        """
        end = self._read
        with named_failures(self._path), open(self._path, "r+b", opener=_to_append) as file:
            _go_behind_last_line(file)
            if file.tell() < end.num_bytes:
                raise StorageError(f"{self._path}: cut by another program; go on with it by: resume=FOLDER")
            for _, place in self._lines(end):  # of another writer
                end = place
            for log in logs:
                line = json.dumps(log, separators=(",", ":")).encode()
                end = end.after(line + b"\n", is_chained=True)
                file.write(line[:-1] + f',"chain":"{end.num_chained}-{end.digest}"}}\n'.encode())
            file.flush()
            os.fsync(file.fileno())


def _what_is_wrong(number: int, expected: int, rest: BinaryIO) -> str:
    """What to say of a line with this number in the place of another."""
    if number < expected:
        return f"event {number} of the chain is there twice"
    if number == expected:
        return "it was changed" if number > 1 else "it, or a line before it, was changed, lost or moved"
    later = map(_CHAIN.search, iter(partial(rest.readline, _MOST_LINE_BYTES), b""))
    if any(one[1] == b"%d" % expected for one in later if one):
        return f"event {expected} of the chain stands behind event {number}"
    lost = f"event {expected}" if number == expected + 1 else f"events {expected} to {number - 1}"
    return f"{lost} of the chain: lost"


def _to_append(path: str, flags: int) -> int:
    """At the end, wherever that is by then, as others may write, too; a file that is gone is not made anew."""
    return os.open(path, flags | os.O_APPEND)


def _go_behind_last_line(file: BinaryIO) -> None:
    """To the end; a line that was cut off there is removed."""
    size = end = file.seek(0, os.SEEK_END)
    while end > 0:
        start = max(0, end - (1 if end == size else _BLOCK_BYTES))
        file.seek(start)
        newline = file.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    file.seek(end)
    if end != size:
        file.truncate()


def storage_of(path: Path) -> JournalStorage:
    """Optuna's storage in a file that is there."""
    return JournalStorage(JournalFile(path))


class Journal:
    """A study in a file, as Optuna has it, and its events; see [Note: events] in `events.py`.

    Args:
        name: of the study.

    Raises:
        KeyError: the file holds no study of this name.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._storage = storage_of(path)
        self.study = optuna.load_study(storage=self._storage, study_name=name)
        self._number = self._storage.get_study_id_from_name(name)
        self._num_events = len(self.events())

    def events(self) -> list[dict[str, Any]]:
        """All of them, in order. Raises ValueError: one is none."""
        found = self._storage.get_study_system_attrs(self._number)
        events = [found[name] for name in sorted(name for name in found if name.startswith(_EVENT))]
        for one in events:
            if not (isinstance(one, dict) and isinstance(one.get("event"), str) and type(one.get(AT_TRIAL)) is int):
                raise ValueError("an event without a name or a place")
        return events

    def append(self, event: Mapping[str, Any]) -> None:
        """Keep an event behind those before."""
        name = f"{_EVENT}{self._num_events:08d}"
        self._num_events += 1  # first: what is interrupted may be written already
        self._storage.set_study_system_attr(self._number, name, dict(event))


def create_journal(
    path: Path,
    *,
    name: str,
    directions: Sequence[StudyDirection],
    metrics: Sequence[str],
    attributes: Mapping[str, Any],
) -> Journal:
    """A new study, under its file's name only when it is whole.

    Raises:
        StorageError: it cannot be written.
    """
    draft = draft_of(path)
    with named_failures(path):
        draft.write_bytes(b"")
    study = optuna.create_study(storage=storage_of(draft), study_name=name, directions=directions)
    name_metrics(study, metrics)
    for key, value in attributes.items():
        study.set_user_attr(key, value)
    with named_failures(path):
        os.replace(draft, path)
    sync_folder(path.parent)
    return open_journal(path, name=name)


def open_journal(path: Path, *, name: str) -> Journal:
    """The study of a file.

    Raises:
        StorageError: there is no file, it is damaged, or it holds no study of this name.
    """
    if not path.exists():
        old = path.with_suffix(".db")
        if old.exists():
            raise StorageError(
                f"{old}: written by a version before 0.2.0, which this one does not read; start a new run"
            )
        raise StorageError(f"{path}: there is no study; check the folder, or start without resume")
    with readable(path):
        try:
            return Journal(path, name)
        except KeyError:
            raise StorageError(f"{path}: holds no study named '{name}'; check the folder") from None


def name_metrics(study: optuna.Study, names: Sequence[str]) -> None:
    """Give a study's objectives the names that a dashboard shows; those that it has stay."""
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(names))


def refuse_directions(study: optuna.Study, directions: Sequence[StudyDirection]) -> None:
    """Refuse a study whose objectives are not those that its attributes tell of.

    Raises:
        ValueError: what there is instead.
    """
    found = [direction.name.lower() for direction in study.directions]
    if found != [direction.name.lower() for direction in directions]:
        raise ValueError(f"objectives: {', '.join(found) or 'none'}")


@contextlib.contextmanager
def readable(place: object) -> Iterator[None]:
    """Report whatever comes of reading a study that is damaged, or somebody else's, in one line.

    Optuna trusts what a storage holds: a value of a wrong type raises whatever meets it first.

    Raises:
        StorageError: something was raised.
    """
    try:
        yield
    except (L2LError, MemoryError):
        raise
    except Exception as error:
        cause = described(getattr(error, "orig", None) or error).splitlines()[0]
        raise StorageError(f"{place}: does not read as a study of this program ({cause}); {_RESTORE}") from error


def draft_of(path: Path) -> Path:
    """Where a study is made; a kill may leave it behind."""
    return path.with_name(f".{path.name}.tmp")


class StudyFile:
    """`study.log` of a run's folder, a journal. Whoever writes it holds the lock of the folder.

    Args:
        path: created unless `resume`.
        resume: go on with the study that it holds.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        self.place = str(path)
        self._path = path
        self._resume = resume

    def open(self, identity: Mapping[str, Any], directions: Sequence[StudyDirection]) -> Opened:
        metrics = [name for name, _ in identity["goals"]]
        if not self._resume:
            self._journal = create_journal(
                self._path, name=STUDY_NAME, directions=directions, metrics=metrics, attributes=identity
            )
            return identity["space"], []
        self._journal = open_journal(self._path, name=STUDY_NAME)
        study = self._journal.study
        with readable(self._path):
            found = study.user_attrs
            refuse_other(self.place, found, identity)
            refuse_directions(study, directions)
            name_metrics(study, metrics)
            space = joined(found["space"], identity["space"])
            if space != found["space"]:
                study.set_user_attr("space", space)
            return space, [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]

    def save(self, ended: FrozenTrial) -> int:
        """See `Store`. Trials are numbered as they finish, which may be in another order than they were asked for."""
        with readable(self._path):
            self._journal.study.add_trial(ended)
            return self._journal.study.get_trials(deepcopy=False)[-1].number

    def note(self, name: str, content: Any) -> None:
        with readable(self._path):
            self._journal.study.set_user_attr(name, content)

    def noted(self, name: str) -> Any:
        with readable(self._path):
            return self._journal.study.user_attrs.get(name)

    def append(self, event: Mapping[str, Any]) -> None:
        with readable(self._path):
            self._journal.append(event)

    def events(self) -> Sequence[Mapping[str, Any]]:
        with readable(self._path):
            return self._journal.events()
