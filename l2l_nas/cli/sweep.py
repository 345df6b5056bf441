"""Sweeps (`-m`): a run that fails ends no other; a table and `summary.json` show them all.

Run N lies in the folder N below the sweep's. With `skip_done=true` the same command goes on with a sweep: what is done
with the same settings is not run again, and what was begun goes on.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import math
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.conf import HydraConf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from l2l_nas.cli.launch import report
from l2l_nas.cli.words import explain_value, is_of_hydra, no_effect
from l2l_nas.errors import L2LError, SettingError, StorageError, described, one_line, what_raised, without_passwords
from l2l_nas.files import make_folder, read_bytes, read_json, write_atomically, write_json
from l2l_nas.nas.callback import Stopped
from l2l_nas.report.comparison import Comparison
from l2l_nas.report.table import sweep_table
from l2l_nas.runs.command_line import fill_in, given_names, spell
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder import SWEEP_NAMES, RunFolder, locked, refuse_taken
from l2l_nas.runs.resume import is_over, refuse_other_settings
from l2l_nas.runs.saved import compared
from l2l_nas.runs.settings import PLACES
from l2l_nas.runs.terminal import explain, open_terminal

_ERROR_FILE = "error.txt"  # in the folder of a run that failed: why, in its first line, and where that came from


class _Refused(BaseException):
    """Carries an error out of a callback: Hydra would print a warning and go on."""

    def __init__(self, error: Exception) -> None:
        self.error = error


class SweepCallback(Callback):
    """Sees a sweep begin and end, as `hydra.callbacks` of the commands `search` and `train`."""

    root: Path | None = None  # the folder of the sweep of this process
    opened = contextlib.ExitStack()  # what is closed when that is over

    def __init__(self) -> None:
        self.runs: list[list[str]] = []  # overrides of each run, in order

    def on_multirun_start(self, config: DictConfig, **_: Any) -> None:
        """Choose the folder, and refuse one that holds something else, before anything is written."""
        HydraConfig.instance().set_config(copy.deepcopy(config))  # for what is written as ${hydra:...}
        try:
            self._begin(config)
        except Exception as error:
            raise _Refused(error) from None

    def _begin(self, config: DictConfig) -> None:
        if config.hydra.runtime.choices["hydra/sweeper"] != "basic":
            raise SettingError("hydra/sweeper: a sweep is a grid; for samplers call l2l_nas.search from Optuna")
        content: Any = OmegaConf.to_container(config, resolve=False)
        if content["hydra"]["sweep"]["subdir"] != "${hydra.job.num}":
            raise no_effect("hydra.sweep.subdir")
        root = Path(str(config.hydra.sweep.dir))
        words = [f"{name}={value}" for name, value in (config.hydra.sweeper.params or {}).items()]
        words += config.hydra.overrides.task
        loader = GlobalHydra.instance().config_loader()
        parsed = OverridesParser.create(config_loader=loader).parse_overrides(words)
        last = {one.key_or_group: one for one in parsed}
        if swept := [name for name in last if name in PLACES and last[name].is_sweep_override()]:
            raise SettingError(f"{swept[0]} cannot be swept: it is the same for all runs of a sweep")
        if "resume" in last:
            raise SettingError("resume is for one run; a sweep goes on by its command and skip_done=true")
        values = [
            [*map(str, one.sweep_string_iterator())] if one.is_discrete_sweep() else [one.get_value_element_as_str()]
            for one in last.values()
        ]
        names = [one.get_key_element() for one in last.values()]
        self.runs = [[f"{n}={v}" for n, v in zip(names, run, strict=True)] for run in itertools.product(*values)]
        if not self.runs:
            raise SettingError(f"{' '.join(words)}: there is nothing to choose from")
        for row in range(max(map(len, values), default=1)):  # each value once, before anything is written
            run = [f"{name}={some[row % len(some)]}" for name, some in zip(names, values, strict=True)]
            composed = loader.load_sweep_config(config, run)
            with read_write(composed), open_dict(composed):
                del composed["hydra"]
            check_bounds(OmegaConf.to_object(composed))
        make_folder(root)
        SweepCallback.opened.enter_context(locked(root))
        if RunFolder(root).holds_run:
            raise StorageError(f"{root} already holds a run, which is no sweep; choose another folder")
        if not config.skip_done:
            refuse_taken(root, [*SWEEP_NAMES, *(path.name for path in root.iterdir() if path.name.isdecimal())])
        if content["hydra"]["sweep"]["dir"] == "${folder}":  # each run is composed anew, of the words
            with read_write(config), open_dict(config):
                config.folder = str(root)
                config.hydra.overrides.task.append(f"folder={spell(str(root))}")
        SweepCallback.root = root
        print(f"{len(self.runs)} runs in {root}", flush=True)

    def on_job_start(self, config: DictConfig, **_: Any) -> None:
        """A line in front of each run."""
        if not self.runs:  # one run, or a process of a launcher's
            return
        words = [word for word in config.hydra.overrides.task if len({word in run for run in self.runs}) != 1]
        print(f"run {config.hydra.sweep.subdir}: {' '.join(words)}", flush=True)

    def on_multirun_end(self, config: DictConfig, **_: Any) -> None:
        """Print a table and write `summary.json`; exits with 2 where a run failed."""
        try:
            self._end(Path(str(config.hydra.sweep.dir)))
        except Exception as error:
            raise _Refused(error) from None

    def _end(self, root: Path) -> None:
        rows: list[dict[str, Any]] = []
        failed: dict[str, list[str]] = {}
        for number, words in enumerate(self.runs):
            folder = root / str(number)
            values, error = outcome(folder)
            if error:
                failed.setdefault(error, []).append(str(folder))
            said = [word for word in words if not given_names([word]) & PLACES]
            rows.append({"folder": str(folder), "overrides": said, **values, **({"error": error} if error else {})})
        for error, folders in failed.items():
            report(f"{', '.join(folders)}: {error}")
        found = [*_comparisons(rows)]
        entries = [{"overrides": words, **one.to_json()} for words, one in found]
        write_json(root / "summary.json", {"runs": rows, "comparisons": entries})
        console = open_terminal()
        console.print(sweep_table(rows))
        for words, one in found:
            console.print(f"{' '.join(words)}{': ' * bool(words)}{one.sentence()}", soft_wrap=True, markup=False)
        console.print(f"  summary {root / 'summary.json'}", soft_wrap=True)
        if failed:
            sys.exit(2)


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[str], Comparison]]:
    """Of runs that differ in their seed alone, searches against random searches; with the words that tell them."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for row in rows:
        if "error" not in row:
            words = tuple(word for word in row["overrides"] if given_names([word]) != {"seed"})
            groups.setdefault(words, []).append(Path(row["folder"]))
    common = set.intersection(*map(set, groups)) if groups else set()
    for words, folders in groups.items():
        found = compared(folders)
        if found is not None:
            yield [word for word in words if word not in common], found


@contextlib.contextmanager
def sweeping(command: str, words: Sequence[str]) -> Iterator[None]:
    """Around a sweep: where it is stopped or its launcher falls, a line says how to go on.

    Args:
        words: as they were typed.

    Raises:
        L2LError: a launcher does not work, or lost a process.
    """
    SweepCallback.root = None
    try:
        with SweepCallback.opened:
            yield
    except _Refused as refused:
        raise refused.error from refused.error.__cause__
    except (KeyboardInterrupt, Exception) as error:
        root = SweepCallback.root
        if isinstance(error, L2LError) or root is None or is_of_hydra(error):
            raise
        mine = [word for word in words if not given_names([word]) & {"folder", "skip_done", "hydra.sweep.dir"}]
        typed = shlex.join(["python", "-m", "l2l_nas", command, *mine, f"folder={spell(str(root))}", "skip_done=true"])
        if isinstance(error, KeyboardInterrupt):
            print(f"stopped. Go on with: {typed}")
            sys.exit(130)
        about = f"hydra/launcher: {type(error).__name__}: {described(error, most=200)}; go on with: {typed}"
        raise L2LError(about) from error


def run_of_sweep(conf: Any, about: HydraConf, go: Callable[[Console], float]) -> float:
    """A run in its folder below the sweep's; NaN if it did not come to its end, which is nobody else's concern.

    Args:
        conf: its settings.
        about: what Hydra knows of the sweep.
        go: does it on a terminal.
    """
    folder = RunFolder(Path(conf.folder))
    trace = ""
    (folder.root / _ERROR_FILE).unlink(missing_ok=True)
    try:
        if conf.resume:
            refuse_other_settings(folder, conf)
            if is_over(folder):
                print(f"run {folder.root.name} was done", flush=True)
                return math.nan
        # joblib's processes share one terminal
        value = go(open_terminal(quiet="joblib" in str(about.launcher._target_)))
        print(f"run {folder.root.name} is done", flush=True)
        return value
    except Stopped as stop:
        if not stop.args:
            raise
        if folder.result.exists():
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
    path = folder.root / _ERROR_FILE
    line = one_line(text) + (f" (traceback in {path})" if trace else "")
    make_folder(folder.root)  # a run that wrote nothing leaves none
    write_atomically(path, f"{line}\n{without_passwords(trace)}")
    print(f"run {folder.root.name} failed: {line}", flush=True)
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
        found = {**result["best"]["values"], "seconds": result["seconds"]}
        names = [goal["name"] for goal in result["objectives"]]
        return {name: float(found[name]) for name in dict.fromkeys((*names, "seconds"))}, ""
    except (StorageError, KeyError, TypeError, ValueError) as error:
        return {}, f"its result cannot be used ({described(error)})"
