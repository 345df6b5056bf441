"""Sweeps (`-m`), whoever leads them: a run that fails ends no other; a table and `summary.json` show them all.

[Note: a sweep's folder] `multirun.yaml` in it has the words and settings of the sweep, as Hydra writes them; run N lies
in the folder N below. A sweep goes on with what decides its results as it was, so that N is the same run, and all runs
can be compared. One process at a time is at work in a sweep's folder.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from l2l_nas.cli.launch import report
from l2l_nas.cli.words import explain_value, is_of_hydra, no_effect
from l2l_nas.errors import (
    L2LError,
    SettingError,
    StorageError,
    described,
    one_line,
    what_raised,
    without_passwords,
)
from l2l_nas.files import (
    make_folder,
    read_bytes,
    read_json,
    read_yaml_list,
    remove_leftovers,
    write_atomically,
    write_json,
)
from l2l_nas.nas.callback import Stopped
from l2l_nas.report.table import sweep_table
from l2l_nas.runs.command_line import fill_in, given_names, spell
from l2l_nas.runs.fields import check_bounds, declared, value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, SWEEP_NAMES, RunFolder, is_locked, locked, refuse_taken
from l2l_nas.runs.resume import last_end
from l2l_nas.runs.settings import COMMANDS, PLACES
from l2l_nas.runs.sweep_words import read_sweep, reading_sweep, refuse_sweep, resume_sweep
from l2l_nas.runs.terminal import explain, open_terminal

# in the folder of a run that failed: why, in its first line, and where that came from
_ERROR_FILE = "error.txt"
_WAIT_SECONDS = 0.2
# of a setting that a file does not have
_UNKNOWN = object()


class _Refused(BaseException):
    """Carries an error out of a callback: Hydra would print a warning and go on."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class SweepCallback(Callback):
    """Sees a sweep begin and end, as `hydra.callbacks` of the commands `search` and `train`."""

    # the command of this process, search or train, its sweep, and what is closed when that is over
    command = ""
    current: SweepCallback | None = None
    opened = contextlib.ExitStack()

    def __init__(self) -> None:
        self.root = Path()  # the sweep's folder
        self.words: dict[str, Override] = {}  # of the command line, by setting
        self.runs: dict[int, list[str]] = {}  # overrides of each run, by its number

    @property
    def swept(self) -> dict[str, Override]:
        """What the runs differ in, by setting."""
        return {name: one for name, one in self.words.items() if one.is_sweep_override()}

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Read the words, choose the folder, and refuse what makes no sense before anything is written."""
        # what is written as ${hydra:...} is looked up there, and is not to be changed from then on
        HydraConfig.instance().set_config(copy.deepcopy(config))
        try:
            self._begin(config)
        except Exception as error:
            raise _Refused(error) from None

    def _begin(self, config: DictConfig) -> None:
        content: Any = OmegaConf.to_container(config, resolve=False)
        if content["hydra"]["sweep"]["subdir"] != "${hydra.job.num}":
            raise no_effect("hydra.sweep.subdir")
        for override in _read_words(content):
            if override.key_or_group in PLACES and override.is_sweep_override():
                raise SettingError(f"{override.key_or_group} cannot be swept: it is the same for all runs of a sweep")
            self._refuse_twice(override)
            self.words[override.key_or_group] = override
        self.root = Path(config.hydra.sweep.dir)
        with read_write(config), open_dict(config):
            # sweepers write the settings into the sweep's folder; each run is composed anew, of the words
            config.merge_with(content)
            if content["hydra"]["sweep"]["dir"] == "${folder}":
                word = f"folder={spell(str(self.root))}"
                config.folder, self.words["folder"] = str(self.root), OverridesParser.create().parse_override(word)
                config.hydra.overrides.task.append(word)
        if "resume" in self.words:
            self._refuse_other(content)
        if config.hydra.runtime.choices["hydra/sweeper"] == "basic":
            size = config.hydra.sweeper.max_batch_size
            if size is not None and size < 1:
                raise SettingError(f"hydra.sweeper.max_batch_size must be at least 1, or null, got {size}")
            values = {name: values_of(override) for name, override in self.swept.items()}
            compose_all(config, self.words, values)
            combinations = [dict(zip(values, run, strict=True)) for run in itertools.product(*values.values())]
            self.take_folder()
            self.take_runs({number: words_of(self.words, run) for number, run in enumerate(combinations)})
            print(f"{len(self.runs)} runs in {self.root}", flush=True)
        SweepCallback.current = self

    def _refuse_twice(self, override: Override) -> None:
        """Refuse two words of one setting, as seed=0,1 and ++seed=2,3: runs would have one, and a table the other.

        Of two that are written alike the last one counts, for Hydra and here.
        """
        before = self.words.get(override.key_or_group)
        if before is None or not (before.is_sweep_override() or override.is_sweep_override()):
            return
        if before.get_key_element() != override.get_key_element():
            raise SettingError(
                f"{override.key_or_group} is given twice, by {before.input_line} and by {override.input_line}; "
                "leave one of them out"
            )

    def _refuse_other(self, content: Mapping[str, Any]) -> None:
        """Refuse to go on with a sweep as another one: see [Note: a sweep's folder]."""
        with reading_sweep(self.root):
            before = self._decisive(read_sweep(self.command, self.root))
        now = self._decisive(content)
        for name, value in before.items():
            if value is not _UNKNOWN and value != now[name]:  # what only one version knows says nothing
                raise SettingError(
                    f"{self.root}: this sweep has {name} {spell(value)}, not {spell(now[name])}; leave it out, or "
                    "choose another folder"
                )

    def _decisive(self, content: Mapping[str, Any]) -> dict[str, Any]:
        """What decides the results of a sweep: its settings but for those that say where, or how fast."""
        known = [one.name for one in declared(COMMANDS[self.command]) if one.resume is None or not one.resume.is_free]
        of_hydra = ["hydra.sweeper._target_"]
        found = {name: value_of(content, name, _UNKNOWN) for name in (*of_hydra, *known) if name not in PLACES}
        swept = [str(one.input_line) for one in _read_words(content) if one.is_sweep_override()]
        return {"swept settings": swept, **found}  # in order, as it numbers the runs

    def take_folder(self) -> None:
        """Have the folder to this process alone, until the command ends.

        Raises:
            StorageError: another process is at work there, or a new sweep would meet what is there.
        """
        make_folder(self.root)
        SweepCallback.opened.enter_context(locked(self.root))
        if "resume" not in self.words:
            refuse_sweep(self.command, self.root)
            numbered = [path.name for path in self.root.iterdir() if path.name.isdecimal()]
            refuse_taken(self.root, (*SWEEP_NAMES, *numbered))
        if RunFolder(self.root).holds_run:
            raise StorageError(f"{self.root} already holds a run, which is no sweep; choose another folder")
        remove_leftovers(self.root)

    def take_runs(self, runs: Mapping[int, list[str]]) -> None:
        """Know what the runs are; what lies in the folder of one must be of the same settings.

        What a word of the sweep stands for may change, as a group that `glob(*)` finds files of.

        Raises:
            StorageError: it is not.
        """
        for number in sorted(runs.keys() - self.runs.keys()):
            path = RunFolder(self.root / str(number)).hydra / "overrides.yaml"
            if not path.exists():
                continue  # nothing was begun there
            before, now = (self._swept_of(words) for words in (map(str, read_yaml_list(path)), runs[number]))
            if before != now:
                raise StorageError(
                    f"{path.parents[1]}: the run there is {' '.join(before)}, and run {number} of this sweep is now "
                    f"{' '.join(now)}: restore what the sweep chooses from, or start a new one in another folder"
                )
        self.runs = dict(runs)

    def _swept_of(self, words: Iterable[str]) -> list[str]:
        """Those of a run's overrides that tell it from other runs."""
        return [word for word in words if given_names([word]) & self.swept.keys()]

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """A line in front of each run."""
        if words := self._swept_of(config.hydra.overrides.task):
            print(f"run {config.hydra.sweep.subdir}: {' '.join(words)}", flush=True)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print a table and write `summary.json`; exits with 2 where a run failed."""
        try:
            self._end()
        except Exception as error:
            raise _Refused(error) from None

    def _end(self) -> None:
        rows: list[dict[str, Any]] = []
        failed: dict[str, list[str]] = {}
        for number, words in sorted(self.runs.items()):
            folder = self.root / str(number)
            values, error = outcome(folder)
            if error:
                failed.setdefault(error, []).append(str(folder))
            said = [word for word in words if not given_names([word]) & PLACES]
            rows.append({"folder": str(folder), "overrides": said, **values, **({"error": error} if error else {})})
        for error, folders in failed.items():
            report(f"{', '.join(folders)}: {error}")
        write_json(self.root / "summary.json", rows)
        console = open_terminal()
        console.print(sweep_table(rows))
        console.print(f"  summary {self.root / 'summary.json'}", soft_wrap=True)
        if failed:
            sys.exit(2)


@contextlib.contextmanager
def sweeping(command: str) -> Iterator[None]:
    """Around a sweep: where it is stopped or its launcher falls, a line says how to go on.

    Raises:
        L2LError: a launcher does not work, or lost a process.
    """
    SweepCallback.command, SweepCallback.current = command, None
    try:
        with SweepCallback.opened:
            yield
    except _Refused as refused:
        raise refused.error from refused.error.__cause__
    except (KeyboardInterrupt, Exception) as error:
        sweep = SweepCallback.current
        again = resume_sweep(command, sweep.root) if sweep and (sweep.root / SWEEP_CONFIG).exists() else ""
        if isinstance(error, KeyboardInterrupt) and again:
            print(f"stopped. Go on with: {again}")
            sys.exit(130)
        if isinstance(error, KeyboardInterrupt | L2LError) or sweep is None or is_of_hydra(error):
            raise
        how = f"; go on with: {again}" if again else ""
        raise L2LError(f"hydra/launcher: {type(error).__name__}: {described(error, most=200)}{how}") from error


def run_of_sweep(command: str, about: HydraConf, go: Callable[[Console, str], float]) -> float:
    """A run in its folder below the sweep's; NaN if it did not come to its end, which is nobody else's concern.

    A run that its callback stopped is over, also for a sweep that goes on.

    Args:
        command: "search" or "train".
        about: what Hydra knows of the sweep.
        go: does it; gets the terminal and the command that goes on with the sweep.
    """
    sweep = Path(about.sweep.dir)
    folder = sweep / str(about.sweep.subdir)
    trace = ""
    if os.access(folder, os.R_OK) and is_locked(folder):  # one in a process of its own outlives a sweep that is killed
        print(f"{folder}: running in a process of its own; waiting for it", flush=True)
        while is_locked(folder):
            time.sleep(_WAIT_SECONDS)
    (folder / _ERROR_FILE).unlink(missing_ok=True)
    try:
        by = last_end(RunFolder(folder)).get("by")
        if by and RunFolder(folder).result.exists():
            print(f"run {folder.name} is done: callback {by} stopped it", flush=True)
            return math.nan
        # joblib's processes share one terminal
        value = go(open_terminal(quiet="joblib" in str(about.launcher._target_)), resume_sweep(command, sweep))
        print(f"run {folder.name} is done", flush=True)
        return value
    except Stopped as stop:
        if not stop.args:
            raise
        if RunFolder(folder).result.exists():
            return math.nan
        text = f"stopped {stop}, before it had a result"
    except SystemExit as error:
        text = f"your code {what_raised(error)}"
    except OmegaConfBaseException as error:
        text = explain_value(error)
    except L2LError as error:
        # what it advises changes a setting, and those of a sweep stay
        text = fill_in(str(error), instead="give the same command again in another folder")
        trace = traceback.format_exc() if error.__cause__ is not None else ""
    except Exception as error:
        text, trace = explain(error), traceback.format_exc()
    path = folder / _ERROR_FILE
    line = one_line(text) + (f" (traceback in {path})" if trace else "")
    make_folder(folder)  # a run that wrote nothing leaves none
    write_atomically(path, f"{line}\n{without_passwords(trace)}")
    print(f"run {folder.name} failed: {line}", flush=True)
    return math.nan


def outcome(folder: Path) -> tuple[dict[str, float], str]:
    """What a run found, and the seconds that it took; or why it has no result, in one line."""
    if (folder / _ERROR_FILE).exists():
        return {}, read_bytes(folder / _ERROR_FILE).decode("utf-8", "replace").partition("\n")[0]
    path = RunFolder(folder).result
    if not path.exists():
        return {}, "its process ended without a result"
    try:
        result = read_json(path)
        # of repeats their mean: the best of more runs would look better
        values = result["mean_values"] if "mean_values" in result else result["best"]["values"]
        found = {**values, "seconds": result["seconds"]}
        names = [goal["name"] for goal in result["objectives"]]
        return {name: float(found[name]) for name in dict.fromkeys((*names, "seconds"))}, ""
    except (StorageError, KeyError, TypeError, ValueError) as error:
        return {}, f"its result cannot be used ({described(error)})"


def _read_words(content: Mapping[str, Any]) -> list[Override]:
    """The words of a sweep, with those of a config file first."""
    params = [f"{name}={value}" for name, value in (value_of(content, "hydra.sweeper.params") or {}).items()]
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    overrides: list[Override] = parser.parse_overrides([*params, *value_of(content, "hydra.overrides.task")])
    return overrides


def values_of(override: Override) -> list[str]:
    """All values of a setting that is swept, as Hydra writes them.

    Raises:
        SettingError: they are no list, or there are none.
    """
    name = override.key_or_group
    if not override.is_discrete_sweep():
        raise SettingError(f"{name}: an interval has no combinations; write choice(A,B)")
    if values := list(map(str, override.sweep_string_iterator())):
        return values
    raise SettingError(
        f"{override.input_line}: there is nothing to choose from; glob(...) is for groups such as space=glob(*), "
        f"of a setting name the values: {name}=choice(A,B)"
    )


def words_of(words: Mapping[str, Override], values: Mapping[str, object]) -> list[str]:
    """The overrides of a run: those that all runs share, and its own values of what is swept."""
    own = {name: values[name] if name in values else one.get_value_element_as_str() for name, one in words.items()}
    return [f"{words[name].get_key_element()}={value}" for name, value in own.items()]


def compose_all(config: DictConfig, words: Mapping[str, Override], values: Mapping[str, Sequence[object]]) -> list[Any]:
    """Settings of a few runs, in which each value of each swept setting occurs.

    Raises:
        SettingError: a number is out of its bounds.
        HydraException: a word leads nowhere.
    """
    found = []
    for row in range(max(map(len, values.values()), default=1)):
        run = words_of(words, {name: one[row % len(one)] for name, one in values.items()})
        composed = GlobalHydra.instance().config_loader().load_sweep_config(config, run)
        with read_write(composed), open_dict(composed):
            del composed["hydra"]
        found.append(OmegaConf.to_object(composed))
        check_bounds(found[-1])
    return found
