"""`search.repeats=N`: N searches, each beside random search of as many steps, by the seeds that follow each other.

[Note: repeats] Each repeat is a run like any other, in the folder `repeats/0`, `repeats/1` and so on: it can be looked
at, resumed and exported by itself. The folder above has the settings, and what all repeats tell together: that is made
anew of their results whenever one ends, so a kill loses nothing but what it loses of one run. Numbers that a search
decides are decided by the first repeat, and all others have the same.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import make_folder, remove_leftovers, write_yaml
from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.report.repeats import Repeat
from l2l_nas.runs.components import Components, Objects
from l2l_nas.runs.fields import changed, check_bounds, value_of
from l2l_nas.runs.folder import RunFolder, locked
from l2l_nas.runs.output import greet
from l2l_nas.runs.progress import OneOfSeveral
from l2l_nas.runs.repeats_output import Repeats, read_repeat, show_repeats, write_repeats, write_repeats_page
from l2l_nas.runs.resume import is_done, must_stay, search_start
from l2l_nas.runs.saved import SavedRun, is_repeated
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import SearchConf

# objects that keep what they saw: a second search with the same one would not be another
_OF_ONE_SEARCH = ("sampler", "strategy", "early_stop", "storage")
# settings that each repeat has of its own
_OWN = {"seed", "folder", "resume", "search.repeats", "search.baseline"}


def search_of(conf: SearchConf, console: Console, **about: Any) -> SearchRun | RepeatedSearch:
    """One search, or repeats of it: what the settings ask for, or what a folder holds that goes on.

    Args:
        about: see `SearchRun`.
    """
    folder = RunFolder(Path(conf.resume or conf.folder))
    goes_on = bool(conf.resume) and folder.config.exists()
    wanted = is_repeated(folder) if goes_on else conf.search.repeats is not None
    if not wanted:
        return SearchRun(conf, console, **about)
    ranks = about.pop("ranks", None)
    if ranks is not None and ranks.consensus.size > 1:
        raise SettingError("search.repeats: several ranks do one search at a time; start repeats without torchrun")
    return RepeatedSearch(conf, console, **about)


class RepeatedSearch:
    """Searches by seed, each beside random search. See [Note: repeats].

    Args: see `SearchRun`.
    """

    def __init__(
        self,
        conf: SearchConf,
        console: Console,
        *,
        given: Collection[str],
        again: str,
        objects: Objects | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        self.again, self.console, self.given = again, console, frozenset(given)
        self.objects = objects or Objects()
        self.start = search_start(conf, given=given, files=files)
        self.conf, self.folder = self.start.conf, self.start.folder
        conf = self.conf
        self._refuse()
        self.conf = changed(conf, {"search.baseline": "random"})
        check_bounds(self._conf_of(self.total - 1))  # of the last seed
        # one is built in any case: so all that can be refused is, before anything is written
        left = self._left()
        self._run = self._build(left[0] if left else self.total - 1)
        self._refuse_components()
        here = {"seed": conf.seed, "folder": conf.folder, "resume": conf.resume}
        divided = {"search.time": conf.search.time, "search.trainings": conf.search.trainings}
        self.conf = changed(self.components.conf, {**here, **divided, "search.repeats": conf.search.repeats})

    @property
    def total(self) -> int:
        """How many repeats there are to be."""
        return self.conf.search.repeats or 0

    @property
    def components(self) -> Components:
        """Those of the repeat that runs, or ran last."""
        return self._run.components

    @property
    def stopped_by(self) -> Callback | None:
        """The user's callback that asked a search to stop; None if none did."""
        return self._run.stopped_by

    def _refuse(self) -> None:
        """Refuse settings that repeats cannot have. Raises SettingError."""
        section = self.conf.search
        if section.repeats is None:
            saved = value_of(SavedRun(self.folder).config, "search.repeats")
            raise must_stay(self.folder, "search.repeats", saved, None, "its folder holds repeats of a search")
        if section.baseline == "none" and "search.baseline" in self.given:
            raise SettingError("search.repeats compares with random search; leave search.baseline=none out")
        if not section.finalists or section.finalist_steps == 0:
            raise SettingError(
                "search.repeats compares networks that are trained as finalists, and there are none; set "
                "search.finalists and search.finalist_steps above 0, or leave search.repeats out"
            )
        for name in _OF_ONE_SEARCH:
            if getattr(self.objects, name) is not None:
                raise SettingError(
                    f"search.repeats makes everything anew for each seed, and {name} was given as an object; name it, "
                    f'such as {name}="FILE.py:NAME"'
                )
        begun = [path for path in self.folder.repeats.glob("*") if path.name.isdecimal()]
        if section.repeats < len(begun):
            raise SettingError(
                f"search.repeats={section.repeats}: {len(begun)} are begun in {self.folder.root}; ask for at least "
                f"{len(begun)}"
            )

    def _refuse_components(self) -> None:
        if self.components.problem.data.test is None:
            raise SettingError(
                "search.repeats compares on the test part, and these data have none; keep one apart: "
                "data.test_fraction=0.2, or in the pool's own Data"
            )
        if not any(isinstance(phase, RandomSearch) for phase in self.components.phases):
            raise SettingError(
                f"search.repeats compares with random search, and strategy={self.conf.strategy['name']} has no "
                "RandomSearch(); add it to the phases"
            )

    def _conf_of(self, number: int) -> SearchConf:
        """The settings of a repeat."""
        place = self.folder.repeat(number)
        own = {
            "seed": self.conf.seed + number,
            "folder": str(place.root),
            "resume": str(place.root) if place.holds_run else "",
            "search.repeats": None,
        }
        found: SearchConf = changed(self.conf, own)
        # the first divides a time or trainings, and the others have its numbers
        return changed(found, {"search.time": "", "search.trainings": 0.0}) if number else found  # type: ignore[no-any-return]

    def _left(self) -> list[int]:
        """The repeats that are still to be done, or to go on."""
        return [number for number in range(self.total) if not self._is_done(number)]

    def _is_done(self, number: int) -> bool:
        return is_done(self.folder.repeat(number), self._conf_of(number)) and self._read(number) is not None

    def _read(self, number: int) -> Repeat | None:
        """A repeat that has ended; None of another, and where its result is damaged: that is made again."""
        with contextlib.suppress(StorageError):
            return read_repeat(self.folder.repeat(number), number=number, seed=self.conf.seed + number)
        return None

    def _build(self, number: int) -> SearchRun:
        done = [one.seconds for one in map(self._read, range(number)) if one is not None]
        seconds = sum(done) / len(done) if done else None
        return SearchRun(
            self._conf_of(number),
            self.console,
            given=self.given - _OWN,
            again=self.again,
            objects=self.objects,
            part=OneOfSeveral(number, self.total, seconds),
        )

    def go(self) -> float:
        """Do what is left, and write what all tell; returns the mean of the first goal over the repeats."""
        self.start.refuse_begun(self.again)
        make_folder(self.folder.root)
        try:
            with locked(self.folder.root):
                self.start.refuse_begun(self.again)
                remove_leftovers(self.folder.root)
                return self._go()
        except KeyboardInterrupt:  # between two repeats: within one it is told there
            self.console.print(f"stopped. Go on with: {self.again}", soft_wrap=True, markup=False)
            raise Stopped from None

    def _go(self) -> float:
        left = self._left()
        if self.start.files:
            self.folder.write_hydra(self.start.files)
        write_yaml(self.folder.config, asdict(self.conf))
        if self.start.left_out:
            self.console.print(self.start.left_out, soft_wrap=True)
        if left:
            self._greet(left)
        for number in left:
            if self._read(number) is None:  # nothing, or what cannot be read
                self.folder.repeat(number).result.unlink(missing_ok=True)
        for place, number in enumerate(left):
            if place:
                self._run = self._build(number)
            self._tell(is_running=True)
            try:
                self._run.go()
            except BaseException:
                self._tell(is_running=False)
                raise
            done = self._read(number)
            assert done is not None
            self.console.print(f"repeat {number}, {done.line(self._goal)}", soft_wrap=True)
        repeats = self._tell(is_running=False)
        if not left:
            more = SavedRun(self.folder).again({"search.repeats": 2 * self.total})
            self.console.print(
                f"finished: {self.total} of {self.total} repeats are done, nothing to do; for more: {more}",
                soft_wrap=True,
            )
        show_repeats(self.console, repeats, self.folder, learns=bool(self.conf.search.learn_from))
        return repeats.mean_values[self._goal.name]

    @property
    def _goal(self) -> Any:
        return self.components.search.goals[0]

    def _greet(self, left: Collection[int]) -> None:
        run = self._run
        greet(self.console, run.components, sampler=run.sampler, folder=self.folder.root, given=self.given)
        seeds = f"seeds {self.conf.seed} to {self.conf.seed + self.total - 1}"
        num_done = self.total - len(left)
        done = f"; {num_done} {'is' if num_done == 1 else 'are'} done" if num_done else ""
        self.console.print(
            f"{self.total} searches, each beside random search of as many steps, {seeds}{done}", soft_wrap=True
        )

    def _tell(self, *, is_running: bool) -> Repeats:
        """Write what the repeats tell so far: `result.json`, and the page."""
        repeats = Repeats.read(self.folder, self.conf)
        if repeats.done:
            write_repeats(self.folder, repeats)
        write_repeats_page(self.folder, self.console, is_running=is_running)
        return repeats
