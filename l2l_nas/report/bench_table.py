"""The results of a bench as tables of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from l2l_nas.report.table import new_table

Result = Mapping[str, Any]


def bench_table(result: Result) -> Table:
    """What a bench found.

    Args:
        result: what it writes as JSON.
    """
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


def _throughput(result: Result) -> Table:
    over = result["over"]
    table = new_table(f"Time of a training step over {over}: median (95 % interval)", "depth")
    for name in ("side", "seconds", f"over {over}", "equal"):
        table.add_column(name, justify="left" if name == "side" else "right", no_wrap=True)
    for row in result["rows"]:
        ratio = format_ratio(row["over"].get(over))
        table.add_row(str(row["depth"]), row["side"], f"{row['seconds_a_step']:.4f}", ratio, _agreement(row))
        for other, value in row["over"].items():
            if other != over:
                table.add_row("", f"  over {other}", "", format_ratio(value), "")
    return table


def _switching(result: Result) -> Table:
    table = new_table(f"{result['architectures']:,} architectures in {result['steps']:,} steps", "")
    table.add_column("measured", justify="right", no_wrap=True)
    before, after = result["device_side_before"], result["device_side_after"]
    table.add_row("step, switching over fixed", format_ratio(result["switching_over_fixed"]))
    table.add_row("step, fixed over itself (control)", format_ratio(result["control"]))
    for name, value in before.items():
        shown = format_bytes(value) if name.endswith("bytes") else f"{value:,}"
        same = "the same" if after[name] == value else f"{after[name]:,}"
        table.add_row(f"{name.replace('_', ' ')}, before and after", f"{shown}, {same}")
    return table


def _population(result: Result) -> Table:
    table = new_table("Evaluated together over one by one", "population")
    for name in ("nets", "speed-up", "ideal", "of ideal", "equal"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        equal = "yes" if row["results_equal"] else "NO"
        speedup = format_ratio(row["speedup"])
        of_ideal = f"{row['speedup_over_ideal']:.3f}"
        table.add_row(row["population"], str(row["architectures"]), speedup, f"{row['ideal']:.3f}", of_ideal, equal)
    return table


def _storage(result: Result) -> Table:
    table = new_table("States in files over states in memory", "states")
    for name in ("seconds", "over ram", "equal"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        ratio = format_ratio(row["over"].get("ram"))
        table.add_row(row["side"], f"{row['seconds_a_step']:.4f}", ratio, _agreement(row))
    table.caption = (
        f"written a step: {format_bytes(result['written_bytes_a_step'])}; "
        f"weights and moments: {format_bytes(result['weights_and_moments_bytes'])}"
    )
    return table


def _larger(result: Result) -> Table:
    table = new_table(
        f"{format_bytes(result['states_bytes'])} of states, {format_bytes(result['memory_bytes'])} of memory", "a step"
    )
    for name in ("seconds", "CPU seconds", "over memory", "equal"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        equal = _agreement(row) if "agreement" in row else ""
        ratio = format_ratio(row["over"].get("ram"))
        cpu = f"{row['cpu_seconds_a_step']:.4g}"
        table.add_row(STORAGE_SIDES[row["side"]], f"{row['seconds_a_step']:.4g}", cpu, ratio, equal)
    volume, disk = result["bytes_a_step"], result["disk_alone"]
    table.caption_justify = "left"
    table.caption = "\n".join(
        (
            f"anonymous memory at most {format_bytes(result['anonymous_bytes']['peak'])}, before "
            f"{format_bytes(result['anonymous_bytes']['before'])}; device side {format_bytes(result['device_bytes'])}",
            f"a step reads {format_bytes(volume['read'])}, {format_bytes(volume['read_from_disk'])} of it from the "
            f"disk, and writes {format_bytes(volume['written'])}",
            f"the disk alone writes {format_bytes(disk['write_bytes_a_second'])}/s, "
            f"reads {format_bytes(disk['read_bytes_a_second'])}/s",
            "seconds a step: " + ", ".join(f"{name} {s:.4g}" for name, s in result["seconds_a_step_of"].items()),
            f"bound by {result['binds']}",
        )
    )
    return table


STORAGE_SIDES = {"file": "from files", "ram": "from memory", "control": "memory again", "disk": "disk alone"}


def _nas201(result: Result) -> Table:
    runs, trials = result["runs"], result["trials"]
    table = new_table(f"NAS-Bench-201 after {trials} evaluations, mean of {runs} (standard error)", "sampler")
    table.add_column("read as", no_wrap=True)
    datasets = list(result["optimum"])
    for dataset in datasets:
        table.add_column(dataset, justify="right", no_wrap=True)
    found = {(row["sampler"], row["dataset"]): row for row in result["rows"]}
    for sampler in dict.fromkeys(row["sampler"] for row in result["rows"]):
        for reading in ("best", "handed_out"):
            cells = (found[sampler, dataset][reading] for dataset in datasets)
            name = sampler if reading == "best" else ""
            table.add_row(name, reading.replace("_", " "), *(f"{c['mean']:.2f} ({c['se']:.3f})" for c in cells))
    for name, values in result["reference"]["rows"].items():
        table.add_row(f"known {name}", "best", *(f"{values[dataset][0]:.2f}" for dataset in datasets))
    table.add_row("optimum", "", *(f"{value:.2f}" for value in result["optimum"].values()))
    return table


def _workers(result: Result) -> Table:
    table = new_table(f"Searches of {result['trials']} trials, {result['steps_per_trial']} steps each", "search")
    for name in ("trials/s", "times as fast", "best", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["rows"]:
        best, mean = row["best"], row["mean_of_trials"]["mean"]
        speed = format_ratio(row["over"].get(result["over"]))
        scores = (f"{best['mean']:.4f} ±{best['se']:.4f}", f"{mean:.4f}")
        table.add_row(row["side"], f"{row['trials_a_second']:.2f}", speed, *scores)
    load = result["load_average"]
    table.caption = f"{result['cores']} cores, load average {load['before'][0]} before, {load['after'][0]} after"
    return table


def _ranking(result: Result) -> Table:
    architectures, seeds, runs = len(result["alone"]), len(result["alone"][0]), result["settings"]["runs"]
    table = new_table(
        f"Rankings of {architectures} architectures, against the mean of {seeds} trainings alone", "ranked by"
    )
    for name in ("tau (95 %)", "sd", "rho", "tau over parameters"):
        table.add_column(name, justify="right", no_wrap=True)
    ranked = {row["sampler"]: row for row in result["rows"]}
    for name, about in (*ranked.items(), *((_CONTROLS[name], row) for name, row in result["controls"].items())):
        over = format_interval(about["over_parameters"]["tau"]) if "over_parameters" in about else ""
        table.add_row(
            name, format_interval(about["tau"]), f"{about['tau']['sd']:.3f}", f"{about['rho']['value']:.2f}", over
        )
    lost = {name: row["regret"] for name, row in (*ranked.items(), ("parameters", result["controls"]["parameters"]))}
    table.caption_justify = "left"
    table.caption = (
        f"{runs} supernets a sampler; intervals over architectures, sd over seeds.\n"
        "What the best of six picked lacks of the best of all:\n"
        + ", ".join(f"{name} {value:.4f}" for name, value in lost.items())
        + "\nSamples: "
        + ", ".join(f"{number:,} {part}" for part, number in result["samples"].items())
    )
    return table


def runs_of(result: Result) -> str:
    """What the stages of a `search_chain` were measured with, and of how many."""
    noun = "seeds" if result["trial_weights"] == "scratch" else "supernets"
    return f"{len(result['stages']['trial'])} {noun}"


def _chain(result: Result) -> Table:
    alone = result["alone"]["test"]
    table = new_table(f"{result['metric']}, test part: {len(alone)} networks, {runs_of(result)}", "stage")
    for name in ("value (95 % of searches)", "lost"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in result["chain"]:
        table.add_row(row["stage"], _in_full(row), f"{row['lost']['value']:+.4f}" if "lost" in row else "")
    steps, spread, ahead = result["steps"], result["spread"], result["ahead"]
    each = ", ".join(f"{one:+.4f}" for one in ahead["each"])
    taus = {row["sampler"]: row["tau"] for row in result["rows"]} | {
        "parameters": result["controls"]["parameters"]["tau"]
    }
    table.caption_justify = "left"
    table.caption = (
        f"{steps['search']:,} steps a search, {steps['random_search']:,} a random search; "
        f"search minus random {ahead['value']:+.4f} ({each})\n"
        f"Deviation between networks {spread['between_architectures']:.4f}, between trainings of one "
        f"{spread['between_seeds']:.4f}\n"
        "Tau with the mean of trainings alone:\n"
        + "\n".join(f"  {name} {format_interval(tau)}" for name, tau in taus.items())
    )
    return table


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
