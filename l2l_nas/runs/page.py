"""Gathers what a run's page shows from its folder, and keeps the page fresh while a search runs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.errors import L2LError, StorageError, one_line, without_passwords, without_passwords_in
from l2l_nas.files import write_atomically, yaml_text
from l2l_nas.nas.study.reading import read_study
from l2l_nas.nas.study.study import Study
from l2l_nas.report.blocks import TakenApart, text_table
from l2l_nas.report.history import last_result, read_history
from l2l_nas.report.html.view import render_page
from l2l_nas.report.network import Network
from l2l_nas.report.results import only_finite
from l2l_nas.report.summary import Setting, Summary
from l2l_nas.runs.command_line import resume_command, spell
from l2l_nas.runs.evaluated import texts_of
from l2l_nas.runs.fields import settings
from l2l_nas.runs.folder import RunFolder, is_locked
from l2l_nas.runs.folder_settings import above, read_settings, typeable
from l2l_nas.runs.groups import deviating
from l2l_nas.runs.saved import SavedRun
from l2l_nas.runs.settings import PLACES, SearchConf
from l2l_nas.runs.terminal import warn

_FOREIGN = (KeyError, TypeError, ValueError, AttributeError, OverflowError)
_REFRESH_SECONDS = 30.0
_MAX_SHARE = 0.02  # of the run's time that goes into pages
# decided when a run begins, where they are not given
_DECIDED = ("relay.budget", "relay.keep", "relay.slots")


def gather(
    root: Path,
    *,
    is_running: bool,
    study: Study | None = None,
    done: str = "",
) -> Summary:
    """Read a run's folder; nothing in it is run or imported.

    Args:
        is_running: whether a search is at work in it.
        study: of the run, where it is open; otherwise it is read.
        done: how much of its phase the running search has done.

    Raises:
        StorageError: a file is missing, damaged or of another run.
    """
    folder = RunFolder(root)
    if not root.is_dir():
        raise StorageError(f"{root}: no such folder")
    now = time.time()
    if study is None:
        read = read_study(folder.study)
        goals, records, steps, events = read.goals, read.records, read.steps, read.events
    else:
        goals, records, steps, events = study.goals, study.records, study.ledger.steps, tuple(study.log.events)
    if not any(event["event"] == "space" for event in events):
        line = SavedRun(folder).resume_command()
        raise StorageError(f"{root}: the search was cut off before it began; go on with: {line}")
    try:
        history = read_history(events, running_at=now if is_running else None)
        result = last_result(events)
        found = None if result is None else _best_of(result)
        apart = None if result is None else TakenApart.from_json(result)
    except _FOREIGN as error:
        raise _damaged(folder.study, error) from None
    try:
        texts = None if result is None else text_table(texts_of(root))
    except _FOREIGN as error:
        raise _damaged(folder.evaluations, error) from None
    # a page is handed on. The file has all that a resume needs, also passwords in arguments of a space.
    saved = read_settings(folder.config)
    config = without_passwords_in(saved.whole)
    cards = (history.card, *history.earlier)
    told = [one.architecture for one in (*history.finalists, *([] if found is None else [found]))]
    if not all(any(card.offers(one) for card in cards) for one in (*(r.architecture for r in records), *told)):
        raise StorageError(f"{folder.study}: damaged (an architecture of another space); restore it")
    records = tuple(
        replace(r, in_space=r.in_space and history.card.offers(r.architecture)) for r in only_finite(records, goals)
    )
    if found is not None and not history.card.offers(found.architecture):
        found = apart = None  # of the space as it was: it is not one to show
    try:
        trials = int(config["search"]["trials"])
        more = {"search.trials": 2 * trials} if history.state == "finished" else {}
        resume = resume_command("search", root, {**typeable(saved.withheld), **more})
        pool, seed, changed = str(config["space"]["pool"]), str(config["seed"]), changed_settings(config)
    except _FOREIGN as error:
        raise _damaged(folder.config, error) from None
    return Summary(
        pool, str(root), now, done, history, tuple(goals), tuple(records), trials, found, changed, resume, seed,
        steps=steps, config=yaml_text(config), apart=apart, texts=texts,
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


def _best_of(result: Any) -> Network:
    network = Network.from_json(result["best"])
    if not network.values:
        raise ValueError("the best network has no values")
    return network


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


def write_again(root: Path) -> None:
    """Write the page of a run anew, if it has one.

    Raises:
        StorageError: as `page_of`, or it cannot be written.
    """
    folder = RunFolder(root).of_all_sizes
    if folder.report.exists():
        write_atomically(folder.report, page_of(folder.root, is_running=is_locked(folder.root)))


class LivePage:
    """Writes `report.html` of a search that is at work: every half minute, and at its end.

    A page that cannot be made never costs the search, and never passes unseen: the study gets what went wrong with its
    traceback, the terminal one line, and the search goes on without it.

    Args:
        root: the run's folder.
        study: of the search, which is open.

    Attributes:
        due_at: when to write it again, by `time.monotonic`.
        problem: what went wrong the last time, if anything did.
    """

    def __init__(self, root: Path, study: Study, console: Console) -> None:
        self._root, self._study, self._console = root, study, console
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
            page = page_of(self._root, is_running=is_running, study=self._study, done=done)
            write_atomically(RunFolder(self._root).report, page)
            self.problem = ""
        except Exception as error:  # whatever it is, hours of search are worth more than a page
            self.problem = one_line(str(error) if isinstance(error, L2LError) else f"{type(error).__name__}: {error}")
            fields = {"problem": self.problem, "traceback": without_passwords(traceback.format_exc())}
        seconds = time.monotonic() - began
        self.due_at = time.monotonic() + max(_REFRESH_SECONDS, seconds / _MAX_SHARE)
        try:
            self._study.log.write("page", seconds=round(seconds, 4), **fields)
        except StorageError as error:
            self.problem = self.problem or str(error)
        if self.problem and self.problem != before:
            warn(self._console, f"no report.html: {self.problem}")
