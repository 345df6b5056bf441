"""The benches of training steps: memory by depth and by batch size, throughput, storage."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.relay.memory import allocated, peak_bytes, process_figures, synchronize
from benchmarks.relay.peers import REFERENCE, ExecutorRunner, Runner, Side, find_sides, repeat, tolerance_of
from benchmarks.relay.work import StackSizes
from benchmarks.settings import BenchWatch, Settings, too_large
from benchmarks.timing import interleave, ratio
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace

Result = dict[str, Any]

# compared beyond the reference: the promise each of them is about
_PAIRS = {"relay_exact": ("relay",), "relay_bf16": ("relay",), "relay_half": ("plain",), "relay_kept": ("plain",)}
_WARMUP_REPEATS = 1
_UNKNOWN = "its device side cannot be distinguished from its host side on a CPU"


def depth(settings: Settings, watch: BenchWatch) -> Result:
    """Peak bytes on the device side, by the number of layers."""
    return _memory(settings, watch, "depth", settings.depths)


def batch(settings: Settings, watch: BenchWatch) -> Result:
    """Peak bytes on the device side, by samples of a step; micro-batches stay as they are."""
    return _memory(settings, watch, "batch", settings.batches)


def _memory(settings: Settings, watch: BenchWatch, size: str, values: Sequence[int]) -> Result:
    sides = find_sides(list(settings.sides))
    watch.start(sum(values) * len(sides))
    rows: list[Result] = []
    for value in values:
        work = settings.at(**{size: value})
        for side in sides:
            rows.append({"side": side.name, size: value, **_measured_memory(side, work)})
            watch.advance(value, f"{side.name}, {size} {value}")
    _compare_losses(rows, size, {side.name: tolerance_of(side, settings.work.torch_device) for side in sides})
    measured = [row for row in rows if row.get("device_bytes") is not None]
    growth = {}
    for side in sides:
        own = {row[size]: row["device_bytes"] for row in measured if row["side"] == side.name}
        if len(own) > 1:
            growth[side.name] = round(own[max(own)] / own[min(own)], 4)
    how = "live tensors counted" if settings.work.torch_device.type == "cpu" else "allocator's peak"
    return {"how": how, "rows": rows, f"last_{size}_over_first": growth, "notes": _notes(sides)}


def _measured_memory(side: Side, work: StackSizes) -> Result:
    """Two steps of one side, alone on the device; the second is examined."""
    device = work.torch_device
    if device.type == "cpu" and side.package:
        return {"device_bytes": None, "left_out": _UNKNOWN}
    reason = side.unavailable() or too_large(work)
    if reason:
        return {"device_bytes": None, "left_out": reason}
    try:
        return _peak_of(side, work, before=allocated(device))
    except torch.OutOfMemoryError:
        return {"device_bytes": None, "left_out": "out of device memory"}
    finally:
        synchronize(device)


def _peak_of(side: Side, work: StackSizes, *, before: int) -> Result:
    losses: list[float] = []
    with contextlib.ExitStack() as stack:
        runner = side.build(work)
        stack.callback(runner.close)
        losses.append(repeat(runner, 1, 0))
        peak = peak_bytes(
            lambda: losses.append(repeat(runner, 1, 1)), work.torch_device, owned=runner.device_bytes, before=before
        )
    return {"device_bytes": peak, "losses": losses}


def _compare_losses(rows: Sequence[Result], size: str, tolerances: Mapping[str, float]) -> None:
    """Replace each row's losses by their distance from those of the first side of that size."""
    first: dict[int, list[float]] = {}
    for row in rows:
        losses = row.pop("losses", None)
        if losses is not None:
            reference = first.setdefault(row[size], losses)
            row["agreement"] = agreement(losses, reference, tolerances[row["side"]])


def throughput(settings: Settings, watch: BenchWatch) -> Result:
    """Time of a training step of every side over the reference's, by depth, with a control."""
    names = list(dict.fromkeys([REFERENCE, *settings.sides]))
    sides = find_sides(names)
    present = {side.name: side for side in sides if not side.unavailable()}
    left_out: list[Result] = [
        {"side": side.name, "left_out": side.unavailable()} for side in sides if side.unavailable()
    ]
    repeats = (_WARMUP_REPEATS + settings.rounds) * (len(present) + 1)
    watch.start(sum(settings.depths) * repeats)
    rows: list[Result] = []
    for value in settings.depths:
        work = settings.at(depth=value)
        reason = too_large(work, bytes_per_parameter=16 * (len(present) + 1))
        if reason:
            left_out.append({"depth": value, "left_out": f"{reason}; compare fewer sides"})
            watch.advance(value * repeats, f"depth {value} left out")
            continue
        rows += _timed(present, work, settings, watch)
    return {
        "over": REFERENCE,
        "rows": rows,
        "medians_over_depths": _over_depths(rows),
        "left_out": left_out,
        "notes": _notes(sides),
    }


def _timed(sides: Mapping[str, Side], work: StackSizes, settings: Settings, watch: BenchWatch) -> list[Result]:
    """All sides at one depth, alternately; `control` is the reference once more."""
    steps = settings.steps
    with contextlib.ExitStack() as stack:
        runners: dict[str, Runner] = {}
        for name, side in {**sides, "control": sides[REFERENCE]}.items():
            runners[name] = side.build(work)
            stack.callback(runners[name].close)
        losses: dict[str, list[float]] = {name: [] for name in runners}

        def go(name: str, number: int) -> None:
            losses[name].append(repeat(runners[name], steps, number * steps))

        seconds = interleave(
            {name: partial(go, name) for name in runners},
            rounds=settings.rounds,
            warmup=_WARMUP_REPEATS,
            tick=lambda name: watch.advance(work.depth, f"depth {work.depth}, {name}"),
        )
    rows = []
    for name in runners:
        own = statistics.median(seconds[name]) / steps
        others = [other for other in (REFERENCE, *_PAIRS.get(name, ())) if other in runners and other != name]
        tolerance = tolerance_of(sides.get(name, sides[REFERENCE]), work.torch_device)
        rows.append(
            {
                "depth": work.depth,
                "side": name,
                "seconds_a_step": round(own, 5),
                "tokens_a_second": round(work.tokens.numel() / own),
                "over": {other: ratio(seconds[name], seconds[other]) for other in others},
                "agreement": agreement(losses[name], losses[REFERENCE], tolerance),
            }
        )
    return rows


def agreement(losses: Sequence[float], reference: Sequence[float], tolerance: float) -> Result:
    """How far losses are from the reference's, relative, and whether that is within the tolerance (0: bit for bit)."""
    differences = [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)]
    agrees = all(difference <= tolerance for difference in differences)  # not by the largest: of a NaN there is none
    return {"largest_difference": max(differences, default=0.0), "tolerance": tolerance, "agrees": agrees}


def _over_depths(rows: Sequence[Result]) -> dict[str, float]:
    """For each pair of sides, the median over the depths of the medians."""
    found: dict[str, list[float]] = {}
    for row in rows:
        for other, value in row["over"].items():
            found.setdefault(f"{row['side']} / {other}", []).append(value["median"])
    return {pair: round(statistics.median(values), 4) for pair, values in found.items()}


def storage(settings: Settings, watch: BenchWatch) -> Result:
    """The param-server's states in files over states in memory: time of a step, bytes written a step."""
    from l2l_nas.eps.file_storage import FileStorage

    work, steps = settings.work, settings.steps
    watch.start((_WARMUP_REPEATS + settings.rounds) * 3)
    written: list[int] = []
    with contextlib.ExitStack() as stack:
        runners: dict[str, ExecutorRunner] = {}
        for name in ("ram", "file", "control"):
            server = work.server(storage=FileStorage(settings.scratch)) if name == "file" else work.server()
            runners[name] = ExecutorRunner(Relay(server, device=work.device, seed=work.seed), work)
            stack.callback(runners[name].close)
        losses: dict[str, list[float]] = {name: [] for name in runners}

        def go(name: str, number: int) -> None:
            before = process_figures("io", "wchar")
            losses[name].append(repeat(runners[name], steps, number * steps))
            after = process_figures("io", "wchar")
            if name == "file" and number >= _WARMUP_REPEATS:
                written.extend(b - a for a, b in zip(before, after, strict=True))

        seconds = interleave(
            {name: partial(go, name) for name in runners},
            rounds=settings.rounds,
            warmup=_WARMUP_REPEATS,
            tick=lambda name: watch.advance(1, name),
        )
    rows = [
        {
            "side": name,
            "seconds_a_step": round(statistics.median(seconds[name]) / steps, 5),
            "over": {} if name == "ram" else {"ram": ratio(seconds[name], seconds["ram"])},
            "agreement": agreement(losses[name], losses["ram"], 0.0),
        }
        for name in runners
    ]
    return {
        "rows": rows,
        "written_bytes_a_step": round(statistics.median(written) / steps) if written else None,
        "weights_and_moments_bytes": 12 * work.num_parameters,
        "parameters": work.num_parameters,
    }


def _notes(sides: Sequence[Side]) -> dict[str, str]:
    return {side.name: side.note for side in sides if side.note}


def trace_relay(work: StackSizes, *, steps: int = 4) -> Trace:
    """What each lane of the relay does on a stack: `exact` updates, lanes in threads, the next step known ahead."""
    trace = Trace()
    relay = Relay(work.server(), device=work.device, seed=work.seed, update="exact", lanes="threads", trace=trace)
    runner = ExecutorRunner(relay, work)
    for number in range(steps):
        runner.step(number)
    runner.close()
    return trace
