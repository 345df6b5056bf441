"""`bench`: measure, write JSON and a picture, print a table."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import hydra
import torch
from l2l_nas.runs.bench_settings import BenchConf
from omegaconf import DictConfig
from rich.console import Console

from benchmarks.benches import all_agree, find_bench, run_bench
from benchmarks.charts import bench_sheet
from benchmarks.relay.peers import find_sides
from benchmarks.relay.training import trace_relay
from benchmarks.relay.work import StackSizes
from benchmarks.search.ranking import TABLE
from benchmarks.settings import Settings
from benchmarks.table import bench_table, left_out_lines
from l2l_nas.cli.launch import reporting_errors, settings_of
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import make_folder, read_json, remove_leftovers, write_atomically, write_json
from l2l_nas.relay.trace import regime
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.runs.fields import check_bounds
from l2l_nas.runs.folder import refuse_taken
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.progress import Meter
from l2l_nas.runs.terminal import open_terminal
from l2l_nas.training.problem import Problem


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="bench")
def main(config: DictConfig) -> None:
    """Exit code 0; 2 for bad input; 1 if the sides do not compute the same."""
    conf: BenchConf = settings_of(config)
    with reporting_errors():
        agree = _bench(conf)
    if not agree:
        print("error: the sides did not compute the same; see the table", file=sys.stderr)
        sys.exit(1)


def _bench(conf: BenchConf) -> bool:
    check_bounds(conf)
    settings = _settings(conf)
    folder = Path(conf.folder)
    _refuse_others_files(conf, folder)
    make_folder(folder)
    remove_leftovers(folder)
    if conf.threads:
        torch.set_num_threads(conf.threads)
    console = open_terminal()
    with Meter(console) as meter:
        try:
            result = run_bench(conf.bench, settings, meter)
        except KeyboardInterrupt:
            for path in (settings.table, folder / TABLE):
                if path is not None and path.exists():
                    console.print(f"what was trained stays: go on with table={path}", soft_wrap=True)
            raise
    path = folder / f"{conf.bench}.json"
    write_json(path, result)
    console.print(bench_table(result))
    for line in left_out_lines(result):
        console.print(line)
    machine = result["machine"]
    threads = f"{machine['threads']} thread" + "s" * (machine["threads"] != 1)
    gpu = "no GPU" if machine["gpu"] == "none" else machine["gpu"]
    console.print(f"{machine['cpu']}, {threads}, {gpu}, torch {machine['torch']}; {result['seconds']:.0f} s")
    console.print(f"  result   {path}", soft_wrap=True)
    if conf.trace:
        _write_trace(settings, folder, console)
    if is_matplotlib_installed():
        picture = folder / f"{conf.bench}.png"
        write_atomically(picture, png_of(bench_sheet(result)))
        console.print(f"  picture  {picture}", soft_wrap=True)
    else:
        console.print("  no picture: matplotlib is missing (pip install 'l2l-nas[plots]')", soft_wrap=True)
    return all_agree(result)


def _refuse_others_files(conf: BenchConf, folder: Path) -> None:
    """A result of the same bench is replaced, with its pictures; nothing else is."""
    result = folder / f"{conf.bench}.json"
    try:
        content = read_json(result)
        is_ours = isinstance(content, dict) and content.get("bench") == conf.bench
    except StorageError:
        is_ours = False
    if not is_ours:
        names = [result.name, f"{conf.bench}.png", *(["trace.json", "timeline.png"] if conf.trace else [])]
        refuse_taken(folder, names)


def _write_trace(settings: Settings, folder: Path, console: Console) -> None:
    """What each lane of the relay does in the first steps on this stack."""
    trace = trace_relay(settings.work)
    trace.write_chrome(folder / "trace.json")
    console.print(f"  trace    {folder / 'trace.json'}: {regime(trace.spans)}", soft_wrap=True)
    if is_matplotlib_installed():
        write_atomically(folder / "timeline.png", png_of(timeline_sheet(trace.spans, last_steps=2)))
        console.print(f"  picture  {folder / 'timeline.png'}", soft_wrap=True)


def _settings(conf: BenchConf) -> Settings:
    """What was asked for, over the bench's own defaults; all that can be refused is refused here."""
    bench = find_bench(conf.bench)
    if conf.seed < 0:
        raise SettingError(f"seed must be at least 0, got {conf.seed}")
    if conf.threads < 0:
        raise SettingError(f"threads must be at least 0, got {conf.threads}")
    asked = {name: value for name, value in dataclasses.asdict(conf.stack).items() if value}
    work = StackSizes(**{**bench.sizes, **asked}, device=conf.device, seed=conf.seed)
    values: dict[str, Any] = dict(bench.defaults)
    for entry in dataclasses.fields(Settings):
        value = getattr(conf, entry.name, None)
        if value:
            values[entry.name] = tuple(value) if isinstance(value, list) else value
    find_sides(list(values.get("sides", ())))
    if bench.space:
        values["problem"] = _problem(conf, conf.space.pool or bench.space, conf.data.source or bench.data)
        values["table"] = Path(conf.table) if conf.table else None
        values["stored"] = stored_tables()
    settings = Settings(work=work, scratch=Path(conf.folder), **values)
    bench.check(settings)
    return settings


def _problem(conf: BenchConf, pool: str, source: str) -> Problem:
    """The space to measure and its data."""
    return load_problem(
        pool,
        dict(conf.space.args),
        source=source,
        validation_fraction=conf.data.validation_fraction,
        test_fraction=conf.data.test_fraction,
    )


def stored_tables() -> tuple[Path, ...]:
    """Tables of networks trained alone that come with a checkout; a wheel has none."""
    return tuple(sorted(shipped("benchmarks").glob("results/alone_*.json")))
