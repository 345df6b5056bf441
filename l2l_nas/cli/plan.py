"""`plan`: what a run would take, before it. Nothing is trained, and no figure is measured but those of `measure`."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.measure import measure
from l2l_nas.cost.profiles import find_hardware
from l2l_nas.eps.optimizers.groups import freeze
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.errors import SettingError
from l2l_nas.files import make_folder, write_json
from l2l_nas.report.charts.chart import short_count
from l2l_nas.report.table import new_table
from l2l_nas.report.text import format_value
from l2l_nas.runs.build import extremes, parse_bytes
from l2l_nas.runs.folder import refuse_taken
from l2l_nas.runs.groups import completed
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.plan import MemoryLimits, Planner, PlanRow, Proposal, Shared, describe_binding
from l2l_nas.runs.plan_files import draw_plan, plan_settings, write_plan
from l2l_nas.runs.settings import PlanConf
from l2l_nas.runs.terminal import open_terminal, say, warn

_MOST_PROPOSALS = 8
_MOST_SHARED = 12


def main(conf: PlanConf) -> None:
    """Print what is predicted, with exit code 2 for bad input; what does not fit is part of the answer."""
    conf = completed(conf)
    micro_batch = conf.train.micro_batch
    folder = Path(conf.folder) if conf.folder else None
    if folder is not None:
        refuse_taken(folder, ("plan.json", "hardware.json", "timeline.png"))
    hardware = _hardware(conf, folder)
    problem = load_problem(conf.space.pool, conf.space.args, **asdict(conf.data))
    optimizer = build_optimizer(conf.optimizer)
    problem = replace(problem, pool=freeze(problem.pool, optimizer))
    memory = MemoryLimits(
        _bytes("device_memory", conf.device_memory, hardware.device_bytes),
        _bytes("host_memory", conf.host_memory, hardware.host_bytes),
    )
    planner = Planner(problem, optimizer=optimizer, hardware=hardware, memory=memory, batch_size=conf.train.batch_size)
    step_time = planner.step_time(conf.relay, micro_batch)
    rows = planner.rows(step_time, extremes(problem, seed=conf.seed))
    console = open_terminal()
    pool_bytes = planner.pool_bytes(conf.relay)
    where = "of host memory, fits" if pool_bytes <= memory.host else "of host memory, does not fit: relay.storage=file"
    size = format_value("device_bytes", pool_bytes)
    _show(console, planner, rows, f"{size} {where if conf.relay.storage == 'ram' else 'in files'}")
    proposals = planner.proposals(conf.relay, micro_batch, rows[-1].architecture) if conf.propose else []
    if conf.propose:
        _show_proposals(console, proposals, batch_size=conf.train.batch_size)
    shared = planner.shared(conf.relay, micro_batch, rows[-1].architecture, conf.devices) if conf.devices > 1 else []
    if shared:
        _show_shared(console, planner, shared)
    if folder is not None:
        make_folder(folder)
        write_json(folder / "hardware.json", hardware.to_json())
        settings = plan_settings(planner, conf.relay, micro_batch)
        write_plan(folder / "plan.json", planner, rows, settings, proposals=proposals, shared=shared)
        draw_plan(folder / "timeline.png", step_time, rows[-1])
        say(console, "written ", str(folder))


def _hardware(conf: PlanConf, folder: Path | None) -> Hardware:
    if conf.hardware != "measure":
        return find_hardware(conf.hardware)
    return measure(conf.relay.device, folder=folder or Path())


def _bytes(name: str, text: str, default: int) -> int:
    if not text:
        return default
    size = parse_bytes(text)
    if not size:
        raise SettingError(f"{name} must be a size such as 16GiB, got '{text}'")
    return size


def _show(console: Console, planner: Planner, rows: list[PlanRow], pool: str) -> None:
    hardware, memory = planner.hardware, planner.memory
    if hardware.name == "measured":
        say(console, "predicted from rates", f" {hardware.origin}")
    else:
        say(console, f"predicted for {hardware.name}", f": {hardware.origin}")
    console.print(f"the whole pool: {pool}", soft_wrap=True)
    table = new_table(
        f"{planner.batch_size} samples a step", "", "weights", "step", "plain", "device", "host", "busiest"
    )
    for row in rows:
        found = row.prediction
        table.add_row(
            row.name + ("!" if row.missing else ""),
            short_count(float(f"{row.parameters:.3g}")),
            _time(found.simulation.step_s),
            _time(found.plain_s) + ("" if found.plain_bytes <= memory.device else "*"),
            format_value("device_bytes", found.device_bytes),
            format_value("device_bytes", found.host_bytes),
            f"{found.simulation.binds} {found.simulation.use(found.simulation.binds):.0%}",
        )
    console.print(table)
    if any(row.prediction.plain_bytes > memory.device for row in rows):
        console.print("* plain training would not fit on the device")
    console.print(describe_binding(rows[-1].prediction), soft_wrap=True)
    for row in rows:
        if row.missing:
            warn(console, f"the {row.name} architecture needs {row.missing}")


def _show_proposals(console: Console, proposals: list[Proposal], *, batch_size: int) -> None:
    if not proposals:
        warn(console, "nothing that was tried fits: fewer samples a step, relay.precision=bf16, or relay.storage=file")
        return
    console.print(f"settings that fit, for the largest architecture ({len(proposals)} in all, fastest first):")
    for proposal in proposals[:_MOST_PROPOSALS]:
        step_s = proposal.prediction.simulation.step_s
        words = " ".join(f"{name}={value}" for name, value in proposal.settings.items())
        console.print(f"  {batch_size / step_s:10,.0f} samples/s  {words}", soft_wrap=True)


def _show_shared(console: Console, planner: Planner, shared: list[Shared]) -> None:
    count = shared[0].ways.devices
    title = f"{count} devices share a step of the largest architecture"
    table = new_table(title, "ways", "samples/s", "plain", "exchanges", "rests", "relay", "busiest")
    for one in shared[:_MOST_SHARED]:
        plain, relay = one.plain, one.relay
        exchanged = plain.tensor_s + plain.sends_s + plain.data_s
        table.add_row(
            f"{one.ways.data} x {one.ways.tensor} x {one.ways.pipeline}",
            f"{one.samples_per_s:,.0f}" if one.samples_per_s else "-",
            _time(plain.step_s) + ("" if one.plain_bytes <= planner.memory.device else "*"),
            f"{exchanged / plain.step_s:.0%}",
            f"{plain.bubble_s / plain.step_s:.0%}",
            _time(relay.step_s) if relay else "-",
            relay.binds if relay else "",
        )
    console.print(table)
    console.print("ways: groups of data x devices that share each layer x stages of a pipeline", soft_wrap=True)
    console.print("exchanges and rests: of plain training's step; *: it would not fit on the device", soft_wrap=True)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
