"""What sweeps (`-m`) have beside Hydra's sweepers and launchers: a run that fails ends no other, and all are summed up.

A run writes what went wrong into its own folder and returns, so that whoever launched it goes on; `failure_of` reads
it. Of every combination, which Hydra's basic sweeper runs, `SweepCallback` prints a table and writes `summary.json`.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from hydra.types import TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from l2l_nas.cli.launch import report, reporting_errors
from l2l_nas.cli.ranges import empty_sweep, refuse_places
from l2l_nas.cli.sweep_runs import begun_runs, folders_of, place
from l2l_nas.cli.words import explain_value, is_of_hydra, no_effect
from l2l_nas.errors import (
    L2LError,
    SettingError,
    StorageError,
    described,
    what_raised,
    without_passwords,
    without_passwords_in,
)
from l2l_nas.files import read_bytes, read_json, remove_leftovers, write_atomically, write_json
from l2l_nas.nas.callback import Stopped
from l2l_nas.report.table import sweep_table
from l2l_nas.runs.command_line import fill_in, given_names, spell
from l2l_nas.runs.folder import SWEEP_NAMES, RunFolder, locked, refuse_taken
from l2l_nas.runs.settings import PASSWORD_VARIABLE, PLACES, SearchConf
from l2l_nas.runs.sweep_words import SWEEP_CONFIG, resume_sweep
from l2l_nas.runs.terminal import explain, open_terminal

# the study of a sweep that a sampler leads, in the sweep's folder
SWEEP_FILE = "sweep.log"
# in the folder of a run that failed: why, in its first line, and where that came from
_ERROR_FILE = "error.txt"
_WAIT_SECONDS = 0.2


class SweepCallback(Callback):
    """Sees a sweep begin and end, as `hydra.callbacks` of the commands `search` and `train`."""

    # the sweep of this process, for `sweeping`: Hydra tells nobody of one that ends with an error
    current: SweepCallback | None = None

    def __init__(self) -> None:
        self.root = Path()  # the sweep's folder
        self.runs: list[list[str]] = []  # overrides of each combination; none of a sweep that sums itself up
        self._numbers: list[int] = []  # of their folders
        self._before: bytes | None = None  # what stood in the folder as the settings of a sweep

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Refuse what makes no sense before anything is written, and a folder that is taken."""
        # what is written as ${hydra:...} is looked up there, and is not to be changed from then on
        HydraConfig.instance().set_config(copy.deepcopy(config))
        with reporting_errors():
            try:
                self._begin(config)
            except OmegaConfBaseException as error:  # Hydra would warn of it and go on, with nothing checked
                raise SettingError(explain_value(error)) from error

    def _begin(self, config: DictConfig) -> None:
        # Hydra's sweeper writes the settings into the sweep's folder; runs are composed anew
        content: Any = OmegaConf.to_container(config, resolve=False)
        if content["hydra"]["sweep"]["subdir"] not in ("${hydra.job.num}", "${hydra:job.num}"):
            raise no_effect("hydra.sweep.subdir")
        task = config.hydra.overrides.task
        if any(without_passwords(word) != word for word in task):
            raise SettingError(
                "a password would be written with the sweep's settings: write search.storage=ADDRESS by itself, "
                f"or leave the password out and put it into {PASSWORD_VARIABLE}"
            )
        self.root = Path(config.hydra.sweep.dir)
        # one that is swept is refused below
        is_named = "folder" in given_names(task) or content["folder"] != SearchConf.folder
        hidden = without_passwords_in(content)
        with read_write(config), open_dict(config):
            if hidden != content:
                config.merge_with(hidden)
            if not is_named and content["hydra"]["sweep"]["dir"] == "${folder}":
                config.folder = str(self.root)  # each run is composed of these words
                task.append(f"folder={spell(str(self.root))}")
        if (self.root / SWEEP_CONFIG).exists():
            self._before = read_bytes(self.root / SWEEP_CONFIG)
        if config.hydra.runtime.choices["hydra/sweeper"] == "basic":
            self._take_combinations(config)
        SweepCallback.current = self

    def _take_combinations(self, config: DictConfig) -> None:
        words = [f"{name}={value}" for name, value in (config.hydra.sweeper.params or {}).items()]
        task: Any = OmegaConf.to_container(config.hydra.overrides.task, resolve=False)  # ${...} differs by run
        parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
        with contextlib.suppress(HydraException):  # the sweeper reads the same words, and says what is wrong
            by_name = {override.key_or_group: override for override in parser.parse_overrides([*words, *task])}
            refuse_places(list(by_name.values()))
            self.runs = [list(run) for run in itertools.product(*map(_values, by_name.values()))]
            if (self.root / SWEEP_FILE).exists():
                raise StorageError(f"{self.root} holds a sweep of hydra/sweeper=l2l; name it, or choose another folder")
            self._numbers = list(range(len(self.runs)))
            if "resume" not in by_name:
                refuse_taken(self.root, (*SWEEP_NAMES, *map(str, self._numbers)))
            else:
                swept = [name for name, override in by_name.items() if override.is_sweep_override()]
                self._numbers = folders_of(self.root, self.runs, swept)
                place(config, self._numbers)
        if self.root.is_dir():
            remove_leftovers(self.root)

    def on_job_start(self, config: DictConfig, *, task_function: TaskFunction, **_: Any) -> None:
        """A line in front of each run."""
        if self.runs:
            index = config.hydra.job.num
            words = " ".join(varied(self.runs)[index])
            print(f"run {self._numbers[index]}, {index + 1} of {len(self.runs)}: {words}", flush=True)

    def on_job_end(self, config: DictConfig, job_return: JobReturn, **_: Any) -> None:
        """A line behind each run."""
        if self.runs:
            number = self._numbers[config.hydra.job.num]
            error = failure_of(self.root / str(number))
            print(f"run {number} failed: {error}" if error else f"run {number} is done", flush=True)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print a table and write `summary.json`, unless all runs were refused; exits with 2 where one failed."""
        if self.runs:
            with reporting_errors():
                self._sum_up()

    def _sum_up(self) -> None:
        folders = [self.root / str(number) for number in self._numbers]
        errors = {folder: error for folder in folders if (error := failure_of(folder))}
        if len(errors) == len(folders) > 1 and len(set(errors.values())) == 1:
            report(f"all {len(folders)} runs in {self.root}: {errors[folders[0]]}")
        else:
            for folder, error in errors.items():
                report(f"{folder}: {error}")
        if self.remove_empty():
            sys.exit(2)
        # runs of before that were not asked for this time have their results still
        begun = begun_runs(self.root)
        runs = {number: words for number, words in begun.items() if not failure_of(self.root / str(number))}
        runs |= dict(zip(self._numbers, self.runs, strict=True))
        rows = [_row(self.root / str(number), runs[number]) for number in sorted(runs)]
        write_json(self.root / "summary.json", rows)
        console = open_terminal()
        shown = varied([row["overrides"] for row in rows])
        console.print(sweep_table([{**row, "overrides": words} for row, words in zip(rows, shown, strict=True)]))
        console.print(f"  summary {self.root / 'summary.json'}", soft_wrap=True)
        if errors:
            sys.exit(2)

    def remove_empty(self) -> bool:
        """Whether there is no folder: where every run was refused, nothing is left of what Hydra and the runs wrote."""
        folders = [folder for number in self._numbers if (folder := self.root / str(number)).is_dir()]
        if any({path.name for path in folder.iterdir()} - {_ERROR_FILE} for folder in folders):
            return False
        for folder in folders:
            (folder / _ERROR_FILE).unlink(missing_ok=True)
            folder.rmdir()
        is_ours = self._before is None and self.root.is_dir()
        if is_ours and [path.name for path in self.root.iterdir()] == [SWEEP_CONFIG]:
            (self.root / SWEEP_CONFIG).unlink()
            self.root.rmdir()
        return not self.root.is_dir()

    def undo(self) -> None:
        """No run could begin: leave the folder as it was before Hydra wrote the settings there."""
        if self._before is not None:
            write_atomically(self.root / SWEEP_CONFIG, self._before)
        else:
            self.remove_empty()


@contextlib.contextmanager
def sweeping(command: str) -> Iterator[None]:
    """Around a sweep: where it is stopped or its launcher falls, a line says how to go on.

    Raises:
        L2LError: a launcher does not work, or lost a process.
    """
    SweepCallback.current = None
    try:
        yield
    except KeyboardInterrupt:
        sweep = SweepCallback.current
        if sweep is None or sweep.remove_empty():
            raise
        print(f"stopped. Go on with: {resume_sweep(command, sweep.root)}")
        sys.exit(130)
    except Exception as error:
        sweep = SweepCallback.current
        if sweep is not None and is_of_hydra(error):  # no run could be composed
            sweep.undo()
        if is_of_hydra(error) or sweep is None or not sweep.runs or isinstance(error, L2LError):
            raise
        raise launcher_failed(command, sweep.root, error, is_begun=not sweep.remove_empty()) from error


def launcher_failed(command: str, root: Path, error: Exception, *, is_begun: bool) -> L2LError:
    """What to tell of a launcher that does not work, or lost a process."""
    again = f"; go on with: {resume_sweep(command, root)}" if is_begun else ""
    return L2LError(f"hydra/launcher: {type(error).__name__}: {described(error, most=200)}{again}")


def run_of_sweep(command: str, about: HydraConf, go: Callable[[Console, str], float]) -> float:
    """A run in its folder below the sweep's; NaN if it failed: what goes wrong is nobody else's concern.

    Args:
        command: "search" or "train".
        about: what Hydra knows of the sweep.
        go: does it; gets the terminal and the command that goes on with the sweep.
    """
    sweep = Path(about.sweep.dir)
    folder = sweep / str(about.sweep.subdir)
    again, trace = resume_sweep(command, sweep), ""
    _wait_for(folder)
    (folder / _ERROR_FILE).unlink(missing_ok=True)
    try:
        # joblib's processes share one terminal
        return go(open_terminal(quiet="joblib" in str(about.launcher._target_)), again)
    except Stopped:
        raise
    except SystemExit as error:
        text = f"your code {what_raised(error)}"
    except OmegaConfBaseException as error:
        text = explain_value(error)
    except L2LError as error:
        # of a sweep that a sampler leads, a run that failed is over, and no setting may change
        again = "" if (sweep / SWEEP_FILE).exists() else again
        text = fill_in(str(error), again, instead="give the same command again in another folder")
        trace = traceback.format_exc() if error.__cause__ is not None else ""
    except Exception as error:
        text, trace = explain(error), traceback.format_exc()
    path = folder / _ERROR_FILE
    line = " ".join(text.split()) + (f" (traceback in {path})" if trace else "")
    write_atomically(path, without_passwords(f"{line}\n{trace}"))
    return math.nan


def failure_of(folder: Path) -> str:
    """Why a run has no result, in one line; empty if it has one."""
    if (folder / _ERROR_FILE).exists():
        return read_bytes(folder / _ERROR_FILE).decode("utf-8", "replace").partition("\n")[0]
    return "" if RunFolder(folder).result.exists() else "its process ended without a result"


def _wait_for(folder: Path) -> None:
    """Until no process is at work in a run's folder: one of its own outlives a sweep that is killed."""
    is_announced = False
    while True:
        try:
            with locked(folder):
                return
        except StorageError as error:
            if error.__cause__ is not None:
                return  # it cannot be read, as the run will say
            if not is_announced:
                print(f"{folder}: running in a process of its own; waiting for it", flush=True)
            is_announced = True
            time.sleep(_WAIT_SECONDS)


def varied(runs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of each run, the overrides that not all have, places left out."""
    common = set.intersection(*map(set, runs)) if len(runs) > 1 else set()
    return [[word for word in run if word not in common and not given_names([word]) & PLACES] for run in runs]


def _values(override: Override) -> list[str]:
    """One override for each value."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise SettingError(
            f"{override.key_or_group}: an interval is for a sampler to choose from: add hydra/sweeper=l2l, or write "
            "choice(...) or range(...)"
        )
    values = [f"{key}={value}" for value in override.sweep_string_iterator()]
    if not values:
        raise empty_sweep(override)
    return values


def _row(folder: Path, words: list[str]) -> dict[str, Any]:
    row: dict[str, Any] = {"folder": str(folder), "overrides": words}
    with contextlib.suppress(StorageError, KeyError, TypeError):  # that run failed and said so
        result = read_json(RunFolder(folder).result)
        row |= {goal["name"]: result["best"]["values"][goal["name"]] for goal in result["objectives"]}
        row["seconds"] = result["seconds"]
    return row
