"""`plan`: what a run would take, before it. Nothing is trained, and no figure is measured but those of `measure`."""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from l2l_nas.cost.feasible import extremes
from l2l_nas.cost.hardware import ASSUMED, Hardware
from l2l_nas.cost.measure import measure
from l2l_nas.cost.plan import MemoryLimits, Planner, PlanRow, Proposal, describe_binding
from l2l_nas.cost.profiles import find_hardware
from l2l_nas.cost.ranks import RankLink
from l2l_nas.cost.step_time import Prediction, StepTime
from l2l_nas.eps.optimizers.groups import freeze
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.errors import SettingError
from l2l_nas.files import make_folder, write_atomically, write_json
from l2l_nas.report.charts.chart import short_count
from l2l_nas.report.charts.timeline import timeline_sheet
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import new_table
from l2l_nas.report.text import format_value
from l2l_nas.runs.build import build_relay, parse_bytes
from l2l_nas.runs.folder import refuse_taken
from l2l_nas.runs.groups import completed
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.mesh import check_possible_mesh, gathers_logits, idle_ranks
from l2l_nas.runs.settings import PlanConf
from l2l_nas.runs.terminal import open_terminal, say, warn

_MOST_PROPOSALS = 8
_STEPS = 2  # in the picture


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
    check_possible_mesh(conf.parallel)
    planner = Planner(
        problem.pool,
        partial(build_relay, seed=0),
        optimizer=optimizer,
        hardware=hardware,
        memory=memory,
        batch_size=conf.train.batch_size,
        mesh=conf.parallel,
        gather_logits=gathers_logits(problem),
    )
    step_time = planner.step_time(conf.relay, micro_batch)
    rows = planner.rows(step_time, extremes(problem.pool, constraints=problem.constraints, seed=conf.seed))
    console = open_terminal()
    pool_bytes = planner.pool_bytes(conf.relay)
    _show_mesh(console, planner, micro_batch)
    where = "of host memory, fits" if pool_bytes <= memory.host else "of host memory, does not fit: relay.storage=file"
    size = format_value("device_bytes", pool_bytes)
    _show(console, planner, rows, f"{size} {where if conf.relay.storage == 'ram' else 'in files'}")
    proposals = planner.proposals(conf.relay, micro_batch, rows[-1].architecture) if conf.propose else []
    if conf.propose:
        _show_proposals(console, proposals, batch_size=conf.train.batch_size)
    if folder is not None:
        make_folder(folder)
        write_json(folder / "hardware.json", hardware.to_json())
        _write(folder / "plan.json", planner, rows, conf, pool_bytes=pool_bytes, proposals=proposals)
        _draw(folder / "timeline.png", step_time, rows[-1])
        say(console, "written ", str(folder))


def _hardware(conf: PlanConf, folder: Path | None) -> Hardware:
    if conf.hardware != "measure":
        return find_hardware(conf.hardware)
    return measure(conf.relay.device, folder=folder or Path())


def _write(
    path: Path, planner: Planner, rows: list[PlanRow], conf: PlanConf, *, pool_bytes: int, proposals: list[Proposal]
) -> None:
    parallel = {"data": planner.data, "tensor": planner.mesh.tensor, "chunks": planner.mesh.chunks}
    write_json(
        path,
        {
            "kind": "predicted",
            "hardware": planner.hardware.to_json(),
            "batch_size": planner.batch_size,
            "pool_bytes": pool_bytes,
            "micro_batch": conf.train.micro_batch,
            "relay": asdict(conf.relay),
            "parallel": parallel,
            "rows": [row.to_json() for row in rows],
            "proposals": [one.to_json() for one in proposals],
        },
    )


def _draw(path: Path, step_time: StepTime, row: PlanRow) -> None:
    """What each lane does in the steps of an architecture, where matplotlib is installed."""
    if is_matplotlib_installed():
        spans = step_time.predict(row.architecture, with_spans=True).simulation.spans
        title = f"Predicted for {step_time.hardware.name}: the {row.name} architecture"
        write_atomically(path, png_of(timeline_sheet(spans, title=title, last_steps=_STEPS)))


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
    is_shared = planner.is_ranked
    console.print(f"the whole pool{', of each rank' if is_shared else ''}: {pool}", soft_wrap=True)
    ranks = f" of {planner.data} x {planner.mesh.tensor} ranks, and of each" if is_shared else ""
    middle = ("step", "net", "exposed") if is_shared else ("weights", "step", "plain")
    title = f"{planner.batch_size} samples a step{ranks}"
    table = new_table(title, "", *middle, "device", "host", "busiest")
    for row in rows:
        found = row.prediction
        table.add_row(
            row.name + ("!" if row.missing else ""),
            *(_shared_cells(found) if is_shared else _own_cells(row, memory.device)),
            format_value("device_bytes", found.device_bytes),
            format_value("device_bytes", found.host_bytes),
            f"{found.simulation.binds} {found.simulation.use(found.simulation.binds):.0%}",
        )
    console.print(table)
    if not is_shared and any(row.prediction.plain_bytes > memory.device for row in rows):
        console.print("* plain training would not fit on the device")
    console.print(describe_binding(rows[-1].prediction), soft_wrap=True)
    if is_shared:
        console.print("net: what a rank takes from the others in a step; exposed: of the step, what nothing hides")
    for row in rows:
        if row.missing:
            warn(console, f"the {row.name} architecture needs {row.missing}")


def _own_cells(row: PlanRow, device_bytes: int) -> tuple[str, str, str]:
    found = row.prediction
    star = "" if found.plain_bytes <= device_bytes else "*"
    weights = short_count(float(f"{row.parameters:.3g}"))
    return weights, _time(found.simulation.step_s), _time(found.plain_s) + star


def _shared_cells(found: Prediction) -> tuple[str, str, str]:
    step_s, exposed_s = found.simulation.step_s, found.simulation.exposed_s
    return _time(step_s), format_value("device_bytes", found.exchanged_bytes), f"{exposed_s / max(step_s, 1e-12):.0%}"


def _show_mesh(console: Console, planner: Planner, micro_batch: int) -> None:
    """What a mesh of ranks exchanges through, and what of it is not divided."""
    tensor = planner.mesh.tensor
    if not planner.is_ranked:
        return
    link = RankLink.of(planner.hardware, planner.data * tensor)
    source = planner.hardware.sources.get("rank_bandwidth", ASSUMED)
    rate = f"{link.bandwidth / 1e9:.3g} GB/s each way, {1e6 * link.latency_s:.3g} us an exchange"
    console.print(f"between ranks: {rate} ({source})", soft_wrap=True)
    if planner.left_whole:
        first = ", ".join(planner.left_whole[:3])
        more = f" and {len(planner.left_whole) - 3} more" if len(planner.left_whole) > 3 else ""
        console.print(f"not divided, so that each of {tensor} ranks has all of it: {first}{more}", soft_wrap=True)
    if idle := idle_ranks(planner.data, batch_size=planner.batch_size, micro_batch=micro_batch):
        warn(console, idle)


def _show_proposals(console: Console, proposals: list[Proposal], *, batch_size: int) -> None:
    if not proposals:
        warn(console, "nothing that was tried fits: fewer samples a step, relay.precision=bf16, or relay.storage=file")
        return
    console.print(f"settings that fit, for the largest architecture ({len(proposals)} in all, fastest first):")
    for proposal in proposals[:_MOST_PROPOSALS]:
        step_s = proposal.prediction.simulation.step_s
        words = " ".join(f"{name}={value}" for name, value in proposal.settings.items())
        console.print(f"  {batch_size / step_s:10,.0f} samples/s  {words}", soft_wrap=True)


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
