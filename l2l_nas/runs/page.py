"""Gathers what a run's page shows from its folder, and keeps the page fresh while a search runs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from l2l_nas.errors import L2LError, StorageError, one_line, without_passwords, without_passwords_in
from l2l_nas.files import read_bytes, read_json, write_atomically, yaml_text
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.nas.study.reading import read_steps, read_study
from l2l_nas.nas.study.study import Study
from l2l_nas.report.blocks import TakenApart
from l2l_nas.report.card import SpaceSummary
from l2l_nas.report.history import RunHistory, read_events, read_history
from l2l_nas.report.html.view import render_page
from l2l_nas.report.network import Network
from l2l_nas.report.results import only_finite
from l2l_nas.report.summary import Setting, Summary
from l2l_nas.runs.command_line import resume_command, spell
from l2l_nas.runs.fields import settings
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.folder_settings import above, read_settings, typeable
from l2l_nas.runs.groups import deviating
from l2l_nas.runs.log import Log
from l2l_nas.runs.settings import PLACES, SearchConf
from l2l_nas.runs.terminal import warn

Found = TypeVar("Found")

_FOREIGN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_REFRESH_SECONDS = 30.0
_MAX_SHARE = 0.02  # of the run's time that goes into pages
_MAX_PICTURE_BYTES = 2_000_000
# decided when a run begins, where they are not given
_DECIDED = ("relay.budget", "relay.keep", "relay.slots")


def gather(
    root: Path,
    *,
    is_running: bool,
    records: Sequence[TrialRecord] | None = None,
    goals: Sequence[Goal] = (),
    steps: Mapping[str, float] | None = None,
    done: str = "",
) -> Summary:
    """Read a run's folder; nothing in it is run or imported.

    Args:
        is_running: whether a search is at work in it.
        records, goals, steps: of the study, if they are available; otherwise they are read from it.
        done: how much of its phase the running search has done.

    Raises:
        StorageError: a file is missing, damaged or of another run.
    """
    folder = RunFolder(root)
    if not root.is_dir():
        raise StorageError(f"{root}: no such folder")
    is_read = records is None
    if records is None:
        goals, records = read_study(folder.study)
        steps = read_steps(folder.study)
    log = read_bytes(folder.log).decode(errors="replace")
    now = time.time()
    try:
        history = read_history(read_events(log), running_at=now if is_running else None)
    except _FOREIGN as error:
        raise _damaged(folder.log, error) from None
    # a page is handed on. The file has all that a resume needs, also passwords in arguments of a space.
    saved = read_settings(folder.config)
    config = without_passwords_in(saved.whole)
    found = _read(folder.result, _best_of)
    records = only_finite(records, goals)
    cards = (history.card, *history.earlier)
    if is_read and not all(any(card.offers(record.architecture) for card in cards) for record in records):
        raise StorageError(
            f"{folder.study}: holds an architecture of another space than {folder.log.name}; restore both"
        )
    records = [replace(r, in_space=r.in_space and history.card.offers(r.architecture)) for r in records]
    found = _of_this_run(folder, history, found, goals)
    try:
        trials = int(config["search"]["trials"])
        more = {"search.trials": 2 * trials} if history.state == "finished" else {}
        resume = resume_command("search", root, {**typeable(saved.withheld), **more})
        pool, seed, changed = str(config["space"]["pool"]), str(config["seed"]), changed_settings(config)
    except _FOREIGN as error:
        raise _damaged(folder.config, error) from None
    return Summary(
        pool, str(root), now, done, history, tuple(goals), tuple(records), trials, found, changed, resume, seed,
        steps=steps or {}, config=yaml_text(config),
        apart=None if found is None else _read(folder.result, TakenApart.from_json),
    )  # fmt: skip


def changed_settings(config: Mapping[str, Any]) -> tuple[Setting, ...]:
    """The settings of a search that differ from their defaults, but for its folder.

    Raises:
        KeyError, TypeError: a section is missing or something else.
    """
    meanings = {name: meaning for name, _, meaning in settings(SearchConf)}
    found = []
    for name, (value, default) in deviating(SearchConf, config).items():
        meaning = meanings[next(one for one in above(name) if one in meanings)]
        if name.startswith("space.args."):
            meaning = f"argument of {config['space']['pool']}"
        elif name in meanings and default is None:
            meaning = f"{meaning.partition(';')[0]} (decided by space and data, or given)"
        elif name in _DECIDED and config["relay"]["budget"] == "none":
            meaning += " (decided by budget=auto, or given)"
        if name not in PLACES:
            shown = "" if default is None else spell(default)
            found.append(Setting(name.removesuffix(".names"), spell(value), shown, meaning))  # objectives, as written
    return tuple(found)


def _read(path: Path, build: Callable[[Any], Found]) -> Found | None:
    """What a file of JSON holds; None where there is none."""
    if not path.exists():
        return None
    content = read_json(path)
    try:
        return build(content)
    except _FOREIGN as error:
        raise _damaged(path, error) from None


def _best_of(result: Any) -> Network:
    network = Network.from_json(result["best"])
    if not network.values:
        raise ValueError("the best network has no values")
    return network


def _read_picture(path: Path) -> bytes:
    """A picture to put into the page; nothing where there is none, or one too large."""
    try:
        content = read_bytes(path)
    except StorageError:
        return b""
    return content if len(content) <= _MAX_PICTURE_BYTES else b""


def _of_this_run(
    folder: RunFolder, history: RunHistory, found: Network | None, goals: Sequence[Goal]
) -> Network | None:
    """The network in the result, if it is of the space as it is now; of the space as it was, it is not one to show.

    Raises:
        StorageError: files of different runs in one folder: an architecture is not of the space, or a value is missing.
    """
    named: list[tuple[Path, Network, tuple[SpaceSummary, ...]]]
    named = [(folder.log, network, (history.card,)) for network in history.finalists]
    if found is not None:
        named.append((folder.result, found, (history.card, *history.earlier)))
    for path, network, cards in named:
        if not any(card.offers(network.architecture) for card in cards):
            raise StorageError(f"{path}: holds an architecture of another space than {folder.log.name}; restore both")
        for goal in goals:
            if goal.name not in network.values:
                raise StorageError(f"{path}: has no {goal.name}, which {folder.study.name} searched for; restore both")
    return found if found is not None and history.card.offers(found.architecture) else None


def page_of(root: Path, **about: Any) -> str:
    """The page of a run, from its folder; see `gather` for the arguments.

    Raises:
        StorageError: a file is missing, damaged or of another run; or, a mistake of this program, in one line.
    """
    try:
        return render_page(gather(root, **about))
    except (L2LError, MemoryError):
        raise
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        raise StorageError(
            f"{root}: no page can be made of this folder ({type(error).__name__}: {str(error)[:200]}, at "
            f"{Path(place.filename).name}:{place.lineno}); restore its files, or report a mistake of this program"
        ) from error


def _damaged(path: Path, error: Exception) -> StorageError:
    cause = f"no {error}" if isinstance(error, KeyError) else str(error) or type(error).__name__
    return StorageError(f"{path}: damaged ({' '.join(cause.split())[:200]}); restore it")


class LivePage:
    """Writes `report.html` of a run that is at work: every half minute, and at its end.

    A page that cannot be made never costs the search, and never passes unseen: the log gets what went wrong with its
    traceback, the terminal one line, and the search goes on without it.

    Args:
        study: gives the study, once it is open.

    Attributes:
        due_at: when to write it again, by `time.monotonic`.
        problem: what went wrong the last time, if anything did.
    """

    def __init__(
        self,
        root: Path,
        log: Log,
        console: Console,
        *,
        goals: Sequence[Goal],
        study: Callable[[], Study | None],
    ) -> None:
        self._root = root
        self._log = log
        self._console = console
        self._goals = goals
        self._study = study
        self.due_at = 0.0
        self.problem = ""

    def write(self, *, is_running: bool, done: str = "") -> None:
        """Write the page now.

        Args:
            done: how much of its phase a running search has done.
        """
        began = time.monotonic()
        before, fields = self.problem, {}
        try:
            study = self._study()
            records, steps = ((), {}) if study is None else (study.records, study.ledger.steps)
            page = page_of(
                self._root, is_running=is_running, records=records, goals=self._goals, steps=steps, done=done
            )
            write_atomically(RunFolder(self._root).report, page)
            self.problem = ""
        except Exception as error:  # whatever it is, hours of search are worth more than a page
            self.problem = one_line(str(error) if isinstance(error, L2LError) else f"{type(error).__name__}: {error}")
            fields = {"problem": self.problem, "traceback": without_passwords(traceback.format_exc())}
        seconds = time.monotonic() - began
        self.due_at = time.monotonic() + max(_REFRESH_SECONDS, seconds / _MAX_SHARE)
        try:
            self._log.write("page", seconds=round(seconds, 4), **fields)
        except StorageError as error:
            self.problem = self.problem or str(error)
        if self.problem and self.problem != before:
            warn(self._console, f"no report.html: {self.problem}")
