"""Sweeps (`-m`): a run that fails ends no other; a table and `summary.json` show them all.

Run N lies in the folder N below the sweep's. With `skip_done=true` the same command goes on with a sweep: what is done
with the same settings is not run again, and what was begun goes on.
"""

from __future__ import annotations

import traceback
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from l2l_nas.cli.compose import prepared, settle_folder, without_hydra
from l2l_nas.errors import L2LError, SettingError, Stopped, described, one_line, what_raised, without_passwords
from l2l_nas.files import make_folder, read_bytes, write_atomically, write_json
from l2l_nas.report.comparison import Comparison
from l2l_nas.report.table import sweep_table
from l2l_nas.runs.command_line import explicit_names, spell
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder import RUN_NAMES, SWEEP_NAMES, RunFolder, locked, refuse_taken
from l2l_nas.runs.resume import is_over, refuse_other_settings
from l2l_nas.runs.saved import SavedRun, compared
from l2l_nas.runs.settings import PLACES
from l2l_nas.runs.terminal import explain, open_terminal, report

_ERROR_FILE = "error.txt"  # in the folder of a run that failed: why, in its first line, and where that came from


def sweep(hydra: Hydra, command: str, args: Namespace) -> int:
    """Run every combination; returns the exit code. Raises L2LError: it was refused, or a launcher lost a process."""
    name, words = args.config_name or command, [*args.overrides, "hydra.mode=MULTIRUN"]
    config = hydra.compose_config(name, words, run_mode=RunMode.MULTIRUN)
    HydraConfig.instance().set_config(config)  # for what is written as ${hydra:...}
    settle_folder(config, "sweep")
    root, runs = Path(config.folder), _checked_runs(hydra, config)
    make_folder(root)
    with locked(root):
        before = [*SWEEP_NAMES, *(path.name for path in root.iterdir() if path.name.isdecimal())]
        refuse_taken(root, [*RUN_NAMES, *([] if config.skip_done else before)])
        print(f"{len(runs)} runs in {root}", flush=True)
        again = f"go on with the same command, folder={spell(str(root))} and skip_done=true"
        try:
            hydra.multirun(name, partial(run_of_sweep, command), [*words, f"hydra.sweep.dir={spell(str(root))}"])
        except KeyboardInterrupt:
            print(f"stopped; {again}")
            return 130
        except Exception as error:
            raise L2LError(f"hydra/launcher: {explain(error)}; {again}") from error
        return _end(root, runs)


def _checked_runs(hydra: Hydra, config: DictConfig) -> list[list[str]]:
    """The overrides of each run, in Hydra's order, after each of their values was composed and checked once."""
    params = [f"{name}={value}" for name, value in (config.hydra.sweeper.params or {}).items()]
    words = [*params, *config.hydra.overrides.task]
    overrides = OverridesParser.create(config_loader=hydra.config_loader).parse_overrides(words)
    for one in overrides:
        if one.key_or_group == "resume" or (one.key_or_group in PLACES and one.is_sweep_override()):
            raise SettingError(f"{one.key_or_group}: a sweep has one folder, and goes on by skip_done=true")
    (runs,) = BasicSweeper.split_arguments(overrides, None)
    if not runs:
        raise SettingError(f"{' '.join(words)}: there is nothing to choose from")
    with_each = {word: tuple(run) for run in runs for word in run}
    for some in dict.fromkeys(with_each.values()):
        check_bounds(OmegaConf.to_object(without_hydra(hydra.config_loader.load_sweep_config(config, [*some]))))
    return runs


def _end(root: Path, runs: Sequence[list[str]]) -> int:
    """Print a table and write `summary.json`; returns 2 where a run failed."""
    rows: list[dict[str, Any]] = []
    for number, words in enumerate(runs):
        folder, said = str(root / str(number)), [word for word in words if not explicit_names([word]) & PLACES]
        rows.append({"folder": folder, "overrides": said, **outcome(Path(folder))})
        if "error" in rows[-1]:
            report(f"{folder}: {rows[-1]['error']}")
    found, console = [*_comparisons(rows)], open_terminal()
    entries = [{"overrides": words, **one.to_json()} for words, one in found]
    write_json(root / "summary.json", {"runs": rows, "comparisons": entries})
    console.print(sweep_table(rows))
    for words, one in found:
        console.print(f"{' '.join(words)}{': ' * bool(words)}{one.sentence()}", soft_wrap=True)
    console.print(f"  summary {root / 'summary.json'}", soft_wrap=True)
    return 2 if any("error" in row for row in rows) else 0


def _comparisons(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[list[str], Comparison]]:
    """Of runs that differ in their seed alone, searches against random searches; with the words that tell them."""
    groups: dict[tuple[str, ...], list[Path]] = {}
    for row in rows:
        if "error" not in row:
            words = tuple(word for word in row["overrides"] if explicit_names([word]) != {"seed"})
            groups.setdefault(words, []).append(Path(row["folder"]))
    common = set.intersection(*map(set, groups)) if groups else set()
    for words, folders in groups.items():
        if found := compared(folders):
            yield [word for word in words if word not in common], found


def run_of_sweep(command: str, config: DictConfig) -> None:
    """A run in its folder below the sweep's; if it does not come to its end, that is nobody else's concern."""
    about = HydraConfig.get()
    folder = RunFolder(Path(about.sweep.dir) / str(about.sweep.subdir))
    path, goes_on = folder.root / _ERROR_FILE, config.skip_done and folder.config.exists()
    path.unlink(missing_ok=True)
    try:
        begun: Any = OmegaConf.to_object(config)
        conf = replace(begun, folder=str(folder.root), resume=str(folder.root) if goes_on else "", skip_done=False)
        if goes_on:
            refuse_other_settings(folder, conf)
        if not goes_on or not is_over(folder):
            # joblib's processes share one terminal
            prepared(command, conf, config, open_terminal(quiet="joblib" in str(about.launcher._target_))).go()
        said = "is done"
    except Stopped as stop:
        if not stop.args:  # by Ctrl-C, not by a callback
            raise KeyboardInterrupt from None
        said = f"stopped {stop}"
    except (Exception, SystemExit) as error:
        said = one_line(what_raised(error) if isinstance(error, SystemExit) else explain(error))
        make_folder(folder.root)  # a run that wrote nothing leaves none
        write_atomically(path, f"{said}\n{without_passwords(traceback.format_exc())}")
        said = f"failed: {said}"
    print(f"run {folder.root.name} {said}", flush=True)


def outcome(folder: Path) -> dict[str, Any]:
    """What a run found, and the seconds that it took; or "error": why it has no result, in one line."""
    try:
        if (folder / _ERROR_FILE).exists():
            return {"error": read_bytes(folder / _ERROR_FILE).decode("utf-8", "replace").partition("\n")[0]}
        result = SavedRun(RunFolder(folder)).result()
        found = {**result["best"]["values"], "seconds": result["seconds"]}
        names = [goal["name"] for goal in result["objectives"]]
        return {name: float(found[name]) for name in dict.fromkeys((*names, "seconds"))}
    except (KeyError, TypeError, ValueError) as error:
        return {"error": f"its result cannot be used ({described(error)})"}
