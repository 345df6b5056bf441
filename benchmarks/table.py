"""The results of a bench as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from l2l_nas.report.table import new_table

Result = Mapping[str, Any]  # what a bench writes as JSON


def bench_table(result: Result) -> Table:
    """What a bench found."""
    return _TABLES[result["bench"]](result)


def format_bytes(num_bytes: float | None) -> str:
    """As KiB, MiB or GiB, three digits; a dash for none."""
    if num_bytes is None:
        return "-"
    for unit, size in (("GiB", 2**30), ("MiB", 2**20)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}" if num_bytes < 1000 * size else f"{num_bytes / size:,.0f} {unit}"
    return f"{num_bytes / 1024:.3g} KiB"


def format_ratio(value: Mapping[str, float] | None) -> str:
    """A ratio with its interval: `1.005 (0.985 to 1.035)`."""
    return f"{value['median']:.3f} ({value['low']:.3f} to {value['high']:.3f})" if value else "-"


def left_out_lines(result: Result) -> list[str]:
    """What was not measured and why, each reason once."""
    rows = [row for row in (*result.get("rows", []), *result.get("left_out", [])) if row.get("left_out")]
    whom: dict[str, list[str]] = {}
    for row in rows:
        names = whom.setdefault(row["left_out"], [])
        name = str(row.get("side", f"depth {row.get('depth')}"))
        if name not in names:
            names.append(name)
    return [f"left out: {', '.join(names)}: {reason}" for reason, names in whom.items()]


def _memory(result: Result) -> Table:
    size = result["bench"]
    rows = [row for row in result["rows"] if row["device_bytes"] is not None]
    values = sorted({row[size] for row in result["rows"]})
    table = new_table(f"Device-side memory by {size} ({result['how']})", size)
    growth = result[f"last_{size}_over_first"]
    sides = list(dict.fromkeys(row["side"] for row in rows))
    for side in sides:
        table.add_column(side, justify="right")
    found = {(row["side"], row[size]): row["device_bytes"] for row in rows}
    for value in values:
        table.add_row(str(value), *(format_bytes(found.get((side, value))) for side in sides))
    table.add_row("growth", *(f"x {growth[side]:.2f}" if side in growth else "-" for side in sides))
    return table


def _filled(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1, caption: Sequence[str] = ()
) -> Table:
    """A table whose first columns are words, and the others figures, that are never broken."""
    table = new_table(title, *columns[:left])
    for name in columns[left:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    table.caption, table.caption_justify = "\n".join(caption) or None, "left"
    return table


def _throughput(result: Result) -> Table:
    over, rows = result["over"], []
    for row in result["rows"]:
        ratio = format_ratio(row["over"].get(over))
        rows.append((str(row["depth"]), row["side"], f"{row['seconds_a_step']:.4f}", ratio, _agreement(row)))
        others = ((other, value) for other, value in row["over"].items() if other != over)
        rows += [("", f"  over {other}", "", format_ratio(value), "") for other, value in others]
    title = f"Time of a training step over {over}: median (95 % interval)"
    return _filled(title, ("depth", "side", "seconds", f"over {over}", "equal"), rows, left=2)


def _switching(result: Result) -> Table:
    rows = [
        ("step, switching over fixed", format_ratio(result["switching_over_fixed"])),
        ("step, fixed over itself (control)", format_ratio(result["control"])),
    ]
    after = result["device_side_after"]
    for name, value in result["device_side_before"].items():
        shown = format_bytes(value) if name.endswith("bytes") else f"{value:,}"
        same = "the same" if after[name] == value else f"{after[name]:,}"
        rows.append((f"{name.replace('_', ' ')}, before and after", f"{shown}, {same}"))
    return _filled(f"{result['architectures']:,} architectures in {result['steps']:,} steps", ("", "measured"), rows)


def _population(result: Result) -> Table:
    rows = [
        (
            *(row["population"], str(row["architectures"]), format_ratio(row["speedup"]), f"{row['ideal']:.3f}"),
            *(f"{row['speedup_over_ideal']:.3f}", "yes" if row["results_equal"] else "NO"),
        )
        for row in result["rows"]
    ]
    columns = ("population", "nets", "speed-up", "ideal", "of ideal", "equal")
    return _filled("Evaluated together over one by one", columns, rows)


def _storage(result: Result) -> Table:
    rows = [
        (row["side"], f"{row['seconds_a_step']:.4f}", format_ratio(row["over"].get("ram")), _agreement(row))
        for row in result["rows"]
    ]
    caption = (
        f"written a step: {format_bytes(result['written_bytes_a_step'])}; "
        f"weights and moments: {format_bytes(result['weights_and_moments_bytes'])}"
    )
    columns = ("states", "seconds", "over ram", "equal")
    return _filled("States in files over states in memory", columns, rows, caption=[caption])


def _larger(result: Result) -> Table:
    rows = [
        (
            *(STORAGE_SIDES[row["side"]], f"{row['seconds_a_step']:.4g}", f"{row['cpu_seconds_a_step']:.4g}"),
            *(format_ratio(row["over"].get("ram")), _agreement(row) if "agreement" in row else ""),
        )
        for row in result["rows"]
    ]
    volume, disk, anonymous = result["bytes_a_step"], result["disk_alone"], result["anonymous_bytes"]
    caption = (
        f"anonymous memory at most {format_bytes(anonymous['peak'])}, before {format_bytes(anonymous['before'])}; "
        f"device side {format_bytes(result['device_bytes'])}",
        f"a step reads {format_bytes(volume['read'])}, {format_bytes(volume['read_from_disk'])} of it from the "
        f"disk, and writes {format_bytes(volume['written'])}",
        f"the disk alone writes {format_bytes(disk['write_bytes_a_second'])}/s, "
        f"reads {format_bytes(disk['read_bytes_a_second'])}/s",
        "seconds a step: " + ", ".join(f"{name} {s:.4g}" for name, s in result["seconds_a_step_of"].items()),
        f"bound by {result['binds']}",
    )
    title = f"{format_bytes(result['states_bytes'])} of states, {format_bytes(result['memory_bytes'])} of memory"
    return _filled(title, ("a step", "seconds", "CPU seconds", "over memory", "equal"), rows, caption=caption)


STORAGE_SIDES = {"file": "from files", "ram": "from memory", "control": "memory again", "disk": "disk alone"}


def _nas201(result: Result) -> Table:
    datasets, rows = list(result["optimum"]), []
    found = {(row["sampler"], row["dataset"]): row for row in result["rows"]}
    for sampler in dict.fromkeys(row["sampler"] for row in result["rows"]):
        for reading in ("best", "handed_out"):
            cells = (found[sampler, dataset][reading] for dataset in datasets)
            name = sampler if reading == "best" else ""
            rows.append((name, reading.replace("_", " "), *(f"{c['mean']:.2f} ({c['se']:.3f})" for c in cells)))
    for name, values in result["reference"]["rows"].items():
        rows.append((f"known {name}", "best", *(f"{values[dataset][0]:.2f}" for dataset in datasets)))
    rows.append(("optimum", "", *(f"{value:.2f}" for value in result["optimum"].values())))
    title = f"NAS-Bench-201 after {result['trials']} evaluations, mean of {result['runs']} (standard error)"
    return _filled(title, ("sampler", "read as", *datasets), rows, left=2)


def _workers(result: Result) -> Table:
    rows = []
    for row in result["rows"]:
        best, mean = f"{row['best']['mean']:.4f} ±{row['best']['se']:.4f}", f"{row['mean_of_trials']['mean']:.4f}"
        speeds = {row["side"]: ("trials_a_second", "over"), "  once started": ("once_started", "once_started_over")}
        for name, (rate, over) in speeds.items():
            found = (best, mean) if name == row["side"] else ("", "")
            rows.append((name, f"{row[rate]:.2f}", format_ratio(row.get(over, {}).get(result["over"])), *found))
    load = result["load_average"]
    caption = f"{result['cores']} cores, load average {load['before'][0]} before, {load['after'][0]} after"
    title = f"Searches of {result['trials']} trials, {result['steps_per_trial']} steps each"
    return _filled(title, ("search", "trials/s", "times as fast", "best", "mean"), rows, caption=[caption])


def _ranking(result: Result) -> Table:
    ranked = {row["sampler"]: row for row in result["rows"]}
    rows = [
        (
            *(name, format_interval(about["tau"]), f"{about['tau']['sd']:.3f}", f"{about['rho']['value']:.2f}"),
            format_interval(about["over_parameters"]["tau"]) if "over_parameters" in about else "",
        )
        for name, about in (*ranked.items(), *((_CONTROLS[name], row) for name, row in result["controls"].items()))
    ]
    lost = {name: row["regret"] for name, row in (*ranked.items(), ("parameters", result["controls"]["parameters"]))}
    caption = (
        f"{result['settings']['runs']} supernets a sampler; intervals over architectures, sd over seeds.",
        "What the best of six picked lacks of the best of all:",
        ", ".join(f"{name} {value:.4f}" for name, value in lost.items()),
        "Samples: " + ", ".join(f"{number:,} {part}" for part, number in result["samples"].items()),
    )
    architectures, seeds = len(result["alone"]), len(result["alone"][0])
    title = f"Rankings of {architectures} architectures, against the mean of {seeds} trainings alone"
    return _filled(title, ("ranked by", "tau (95 %)", "sd", "rho", "tau over parameters"), rows, caption=caption)


def runs_of(result: Result) -> str:
    """What the stages of a `search_chain` were measured with, and of how many."""
    noun = "seeds" if result["trial_weights"] == "scratch" else "supernets"
    return f"{len(result['stages']['trial'])} {noun}"


def _chain(result: Result) -> Table:
    rows = [
        (row["stage"], _in_full(row), f"{row['lost']['value']:+.4f}" if "lost" in row else "")
        for row in result["chain"]
    ]
    steps, spread, ahead = result["steps"], result["spread"], result["ahead"]
    each = ", ".join(f"{one:+.4f}" for one in ahead["each"])
    taus = {row["sampler"]: row["tau"] for row in result["rows"]}
    caption = (
        f"{steps['search']:,} steps a search, {steps['random_search']:,} a random search; "
        f"search minus random {ahead['value']:+.4f} ({each})",
        f"Deviation between networks {spread['between_architectures']:.4f}, between trainings of one "
        f"{spread['between_seeds']:.4f}",
        "Tau with the mean of trainings alone:",
        *(f"  {n} {format_interval(tau)}" for n, tau in taus.items()),
        f"  parameters {format_interval(result['controls']['parameters']['tau'])}",
    )
    title = f"{result['metric']}, test part: {len(result['alone']['test'])} networks, {runs_of(result)}"
    return _filled(title, ("stage", "value (95 % of searches)", "lost"), rows, caption=caption)


_CONTROLS = {
    "parameters": "parameters",
    "seed_against_seed": "seed, by seed",
    "seed_against_the_others": "seed, by others",
}


_TABLES = {
    "depth": _memory,
    "batch": _memory,
    "throughput": _throughput,
    "switching": _switching,
    "population": _population,
    "storage": _storage,
    "larger_than_memory": _larger,
    "nas201": _nas201,
    "workers": _workers,
    "ranking": _ranking,
    "search_chain": _chain,
}


def format_interval(about: Mapping[str, float]) -> str:
    """A value with its interval, two decimals: `0.80 (0.74 to 0.85)`."""
    return f"{about['value']:.2f} ({about['low']:.2f} to {about['high']:.2f})"


def _in_full(about: Mapping[str, float]) -> str:
    return f"{about['value']:.4f} ({about['low']:.4f} to {about['high']:.4f})"


def _agreement(row: Result) -> str:
    about = row["agreement"]
    if not about["agrees"]:
        return f"NO: {about['largest_difference']:.1e}"
    return "bitwise" if about["largest_difference"] == 0 else f"to {about['largest_difference']:.0e}"
