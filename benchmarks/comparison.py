"""Runs a bench of `benchmarks.benches`: measures, writes JSON and a picture, prints a table."""

from __future__ import annotations

import argparse
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
import yaml
from rich.console import Console

from benchmarks import RESULTS
from benchmarks.benches import BENCHES, all_agree, run_bench
from benchmarks.charts import bench_sheet
from benchmarks.meter import Meter
from benchmarks.options import at_least
from benchmarks.relay.peers import find_sides
from benchmarks.relay.training import trace_relay
from benchmarks.relay.work import StackSizes
from benchmarks.search.ranking import TABLE
from benchmarks.settings import Bench, Settings
from benchmarks.table import bench_table, left_out_lines
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import make_folder, read_json, remove_leftovers, write_atomically, write_json
from l2l_nas.relay.trace import regime
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.runs.folder import refuse_taken
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.terminal import open_terminal
from l2l_nas.training.problem import Problem

_SIZES = {
    "depth": "blocks",
    "hidden": "width of a block",
    "heads": "attention heads of a block",
    "feedforward": "width of a block's feed-forward part",
    "sequence": "tokens of a sample",
    "vocabulary": "different tokens",
    "batch": "samples of a step",
    "micro_batch": "samples at a time on the device",
    "candidates": "equally costly blocks at a position",
}
_ABOUT = {
    "sides": "what is compared: relay, plain, ...",
    "depths": "numbers of blocks",
    "batches": "numbers of samples of a step",
    "rounds": "rounds of each side",
    "steps": "training steps: of a round, of the whole bench (switching), of a trial (workers, search_chain)",
    "architectures": "of a population, or of the sample; ranking: 0 for all",
    "population_bytes": "bound of what a population keeps; 0 for none",
    "samplers": "what is compared: samplers, or path samplers (ranking)",
    "runs": "runs of each sampler",
    "trials": "evaluations of a run, trials of a search",
    "workers": "processes of a search",
    "seeds": "trainings alone of a network",
    "training_steps": "steps of a training alone; 0: as many as fit",
    "warmup_steps": "steps of a supernet; search_chain: 0 for as many as fit",
    "trial_weights": "scratch, or shared",
}


class Comparison:
    """One bench as a `Script`."""

    def __init__(self, name: str, about: str) -> None:
        self.__doc__ = f"{about[0].upper()}{about[1:]}. Writes {name}.json and {name}.png, and prints a table."
        self._name = name
        self._about = about
        self._bench = BENCHES[name]

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """See `Script`: what this bench reads, with its own defaults."""
        folder = Path(f"bench/{datetime.now():%Y-%m-%d_%H-%M-%S}")
        parser.add_argument("--folder", type=Path, default=folder, help="where all files are written (bench/TIME)")
        parser.add_argument("--seed", type=at_least(0), default=0, help="of weights, tokens and paths (0)")
        parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (auto)")
        parser.add_argument("--threads", type=at_least(0), default=0, help="CPU threads; 0: torch's own choice")
        for name, default in self._bench.defaults.items():
            _add(parser, name, default, _ABOUT[name])
        if self._bench.trains:
            group = parser.add_argument_group("the stack of encoder blocks")
            for name, about in _SIZES.items():
                if f"{name}s" not in self._bench.defaults and f"{name}es" not in self._bench.defaults:
                    _add(group, name, self._bench.sizes.get(name, getattr(StackSizes, name)), about)
            parser.add_argument("--trace", action="store_true", help="write trace.json and timeline.png of the relay")
        if self._bench.space:
            group = parser.add_argument_group("what is trained")
            group.add_argument(
                "--space", default=self._bench.space, help=f"a name, or FILE.py:NAME ({self._bench.space})"
            )
            group.add_argument("--space-args", nargs="+", default=[], metavar="NAME=VALUE", help="its arguments")
            group.add_argument("--data", default=self._bench.data, help=f"as data.source ({self._bench.data})")
            group.add_argument("--validation-fraction", type=float, default=0.25, help="what searches choose by (0.25)")
            group.add_argument("--test-fraction", type=float, default=0.25, help="what is the truth (0.25)")
            group.add_argument("--table", type=Path, help="accuracies of networks trained alone, to read or go on with")

    def main(self, options: argparse.Namespace) -> int:
        """See `Script`: 1 if the sides do not compute the same."""
        settings, folder = _settings(self._bench, options), options.folder
        self._refuse_others_files(folder, is_traced=options.trace if self._bench.trains else False)
        make_folder(folder)
        remove_leftovers(folder)
        if options.threads:
            torch.set_num_threads(options.threads)
        console = open_terminal()
        with Meter(console) as meter:
            try:
                result = run_bench(self._name, settings, meter)
            except KeyboardInterrupt:
                for path in (settings.table, folder / TABLE):
                    if path is not None and path.exists():
                        console.print(f"what was trained stays: go on with --table {path}", soft_wrap=True)
                raise
        path = folder / f"{self._name}.json"
        write_json(path, result)
        _tell(result, path, console)
        if self._bench.trains and options.trace:
            _write_trace(settings, folder, console)
        _draw(result, folder / f"{self._name}.png", console)
        if all_agree(result):
            return 0
        print("error: the sides did not compute the same; see the table", file=sys.stderr)
        return 1

    def _refuse_others_files(self, folder: Path, *, is_traced: bool) -> None:
        """A result of the same bench is replaced, with its pictures; nothing else is."""
        result = folder / f"{self._name}.json"
        try:
            content = read_json(result)
            is_ours = isinstance(content, dict) and content.get("bench") == self._name
        except StorageError:
            is_ours = False
        if not is_ours:
            names = [result.name, f"{self._name}.png", *(["trace.json", "timeline.png"] if is_traced else [])]
            refuse_taken(folder, names)


def _add(parser: argparse._ActionsContainer, name: str, default: Any, about: str) -> None:
    """An option of the type of its default; a count may be 0 where that is its default."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(default, tuple):
        about += f" ({' '.join(map(str, default))})"
        parser.add_argument(flag, nargs="+", type=type(default[0]), default=list(default), help=about)
        return
    about += f" ({default})"
    if isinstance(default, int):
        parser.add_argument(flag, type=at_least(min(default, 1)), default=default, metavar="N", help=about)
    else:
        parser.add_argument(flag, default=default, help=about)


def _settings(bench: Bench, options: argparse.Namespace) -> Settings:
    """What is measured; all that can be refused is refused here."""
    given = vars(options)
    sizes = {name: given[name] for name in _SIZES if bench.trains and name in given}
    work = StackSizes(**{**bench.sizes, **sizes}, device=options.device, seed=options.seed)
    values: dict[str, Any] = {
        name: tuple(given[name]) if isinstance(given[name], list) else given[name] for name in bench.defaults
    }
    find_sides(list(values.get("sides", ())))
    if bench.space:
        values["problem"] = _problem(options)
        values["table"] = options.table
        values["stored"] = stored_tables()
    settings = Settings(work=work, scratch=options.folder, **values)
    bench.check(settings)
    return settings


def _problem(options: argparse.Namespace) -> Problem:
    """The space to measure and its data."""
    arguments = {}
    for word in options.space_args:
        name, sign, text = word.partition("=")
        if not sign:
            raise SettingError(f"--space-args: write NAME=VALUE, got '{word}'")
        try:
            arguments[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            arguments[name] = text
    return load_problem(
        options.space,
        arguments,
        source=options.data,
        validation_fraction=options.validation_fraction,
        test_fraction=options.test_fraction,
    )


def stored_tables() -> tuple[Path, ...]:
    """Tables of networks trained alone that come with this checkout."""
    return tuple(sorted(RESULTS.glob("alone_*.json")))


def _tell(result: dict[str, Any], path: Path, console: Console) -> None:
    """The table, what it was measured on, and where it is."""
    console.print(bench_table(result))
    for line in left_out_lines(result):
        console.print(line)
    machine = result["machine"]
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)
    gpu = "no GPU" if machine["gpu"] == "none" else machine["gpu"]
    console.print(f"{machine['cpu']}, {threads}, {gpu}, torch {machine['torch']}; {result['seconds']:.0f} s")
    console.print(f"  result   {path}", soft_wrap=True)


def _write_trace(settings: Settings, folder: Path, console: Console) -> None:
    """What each lane of the relay does in the first steps on this stack."""
    trace = trace_relay(settings.work)
    trace.write_chrome(folder / "trace.json")
    console.print(f"  trace    {folder / 'trace.json'}: {regime(trace.spans)}", soft_wrap=True)
    if is_matplotlib_installed():
        write_atomically(folder / "timeline.png", png_of(timeline_sheet(trace.spans, last_steps=2)))
        console.print(f"  picture  {folder / 'timeline.png'}", soft_wrap=True)


def _draw(result: dict[str, Any], picture: Path, console: Console) -> None:
    if is_matplotlib_installed():
        write_atomically(picture, png_of(bench_sheet(result)))
        console.print(f"  picture  {picture}", soft_wrap=True)
    else:
        console.print("  no picture: matplotlib is missing (pip install 'l2l-nas[plots]')", soft_wrap=True)
