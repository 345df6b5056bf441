"""Results as the benches write them."""

from __future__ import annotations

from typing import Any


def interval(median: float, width: float = 0.02) -> dict[str, float]:
    return {"median": median, "low": median - width, "high": median + width, "pairs": 8}


def agreement(difference: float = 0.0, *, agrees: bool = True) -> dict[str, Any]:
    return {"largest_difference": difference, "tolerance": 1e-4, "agrees": agrees}


def memory(bench: str = "depth") -> dict[str, Any]:
    rows = [
        {"side": side, bench: size, "device_bytes": int(base + size * step), "agreement": agreement()}
        for size in (12, 24, 384)
        for side, base, step in (("relay_host", 4e6, 0), ("relay", 4e6, 1e5), ("plain", 2e6, 8e6))
    ]
    rows += [
        {"side": "fsdp2", bench: size, "device_bytes": None, "left_out": "cannot be measured"} for size in (12, 24)
    ]
    growth = {"relay_host": 1.0, "relay": 8.15, "plain": 31.4}
    return {
        "bench": bench,
        "how": "live tensors counted",
        "settings": {"micro_batch": 4},
        "rows": rows,
        f"last_{bench}_over_first": growth,
    }


def throughput() -> dict[str, Any]:
    rows = []
    for depth in (4, 12, 24):
        ratios = {"relay": 0.995, "relay_exact": 1.01, "plain": 0.78, "deepspeed": 1.56, "control": 1.003}
        rows.append(
            {"depth": depth, "side": "checkpointed", "seconds_a_step": 2.5, "over": {}, "agreement": agreement()}
        )
        for side, ratio in ratios.items():
            over = {"checkpointed": interval(ratio + depth / 1000)}
            if side == "relay_exact":
                over["relay"] = interval(1.012)
            found = agreement(6e-8 if side == "deepspeed" else 0.0)
            rows.append({"depth": depth, "side": side, "seconds_a_step": 2.5, "over": over, "agreement": found})
    left_out = [{"side": "l2l_pytorch", "left_out": "not installed: pip install it"}]
    return {"bench": "throughput", "over": "checkpointed", "rows": rows, "left_out": left_out}


def switching() -> dict[str, Any]:
    return {
        "bench": "switching",
        "architectures": 1000,
        "steps": 1000,
        "block_steps": 25,
        "device_side_before": {"device_bytes": 4214784, "templates": 10},
        "device_side_after": {"device_bytes": 4214784, "templates": 12},
        "switching_over_fixed": interval(1.005),
        "control": interval(1.001),
        "seconds_by_block": {"switching": [1.01, 1.0, 1.02], "fixed": [1.0, 1.0, 1.01], "control": [1.0, 1.01, 1.0]},
    }


def population() -> dict[str, Any]:
    rows = [
        {
            "population": name,
            "architectures": 64,
            "ideal": ideal,
            "speedup": interval(ideal * 0.96),
            "speedup_over_ideal": 0.96,
            "results_equal": True,
        }
        for name, ideal in (("mutants", 1.7), ("uniform", 1.2))
    ]
    return {"bench": "population", "rows": rows}


def storage() -> dict[str, Any]:
    rows = [
        {"side": "ram", "seconds_a_step": 2.5, "over": {}, "agreement": agreement()},
        {"side": "file", "seconds_a_step": 2.9, "over": {"ram": interval(1.15)}, "agreement": agreement()},
        {"side": "control", "seconds_a_step": 2.5, "over": {"ram": interval(1.002)}, "agreement": agreement()},
    ]
    return {
        "bench": "storage",
        "rows": rows,
        "written_bytes_a_step": 130_000_000,
        "weights_and_moments_bytes": 120_000_000,
    }


def larger() -> dict[str, Any]:
    sides = {"file": 1.15, "ram": None, "control": 1.002, "disk": 0.6}
    rows: list[dict[str, Any]] = []
    for side, over in sides.items():
        rows.append({"side": side, "seconds_a_step": 14.25, "cpu_seconds_a_step": 22.5, "over": {}})
        if over is not None:
            rows[-1]["over"] = {"ram": interval(over)}
    rows[0]["agreement"] = agreement()
    return {
        "bench": "larger_than_memory",
        "states_bytes": 29_000_000_000,
        "memory_bytes": 25_000_000_000,
        "anonymous_bytes": {"before": 300_000_000, "peak": 1_300_000_000},
        "device_bytes": 400_000_000,
        "rows": rows,
        "bytes_a_step": {
            "read": 4_800_000_000,
            "written": 3_600_000_000,
            "read_from_disk": 4_700_000_000,
            "written_to_disk": 3_600_000_000,
        },
        "disk_alone": {"write_bytes_a_second": 1_000_000_000, "read_bytes_a_second": 900_000_000},
        "seconds_a_step_of": {"compute": 11.5, "copies": 0.9, "host update": 0.8, "disk": 8.9},
        "binds": "compute",
    }


def nas201() -> dict[str, Any]:
    datasets = {"cifar10": 91.607, "cifar100": 73.493, "imagenet": 46.733}
    rows = []
    for sampler in ("random", "evolution"):
        for dataset, optimum in datasets.items():
            found = {"mean": optimum - 0.3, "sd": 0.2, "se": 0.026}
            rows.append({"sampler": sampler, "dataset": dataset, "best": found, "handed_out": found})
    curves = {
        f"{row['sampler']}/{row['dataset']}": [datasets[row["dataset"]] - 1 / n for n in range(1, 31)] for row in rows
    }
    reference = {"rows": {"tpe": {"cifar10": [91.55, 0.11], "cifar100": [73.26, 0.2], "imagenet": [46.37, 0.23]}}}
    about = {"bench": "nas201", "runs": 60, "trials": 30, "optimum": datasets}
    return {**about, "rows": rows, "curves": curves, "reference": reference}


def workers() -> dict[str, Any]:
    score = {"mean": 0.9612, "se": 0.0021, "values": [0.96, 0.97]}
    rows: list[dict[str, Any]] = [
        {
            "side": side,
            "trials_a_second": rate,
            "best": score,
            "mean_of_trials": score,
            "over": over,
            "once_started": rate,
            "once_started_over": over,
        }
        for side, rate, over in (
            ("one process", 1.02, {}),
            ("2 workers", 1.86, {"one process": interval(1.823)}),
            ("control", 1.01, {"one process": interval(0.998)}),
        )
    ]
    load = {"before": [0.2, 0.3, 0.4], "after": [2.1, 1.3, 0.9]}
    about = {
        "bench": "workers",
        "over": "one process",
        "trials": 32,
        "steps_per_trial": 24,
        "cores": 2,
        "trial_weights": "shared",
    }
    return {**about, "load_average": load, "rows": rows}


def agreement_with_truth(value: float, regret: float | None = None) -> dict[str, Any]:
    about = {"value": value, "low": value - 0.06, "high": value + 0.05, "each": [value, value], "sd": 0.012}
    return {"tau": about, "rho": {**about, "value": value + 0.1}, **({} if regret is None else {"regret": regret})}


def ranking() -> dict[str, Any]:
    over = {"value": 0.213, "low": -0.123, "high": 0.302}
    rows = [
        {"sampler": name, **agreement_with_truth(value, 0.0123), "over_parameters": {"tau": over, "rho": over}}
        for name, value in (("uniform", 0.801), ("fair", 0.602))
    ]
    return {
        "bench": "ranking",
        "settings": {"runs": 2},
        "metric": "accuracy",
        "table": {"data": "0123456789abcdef"},
        "samples": {"training": 6000, "validation": 1000},
        "rows": rows,
        "controls": {
            "parameters": agreement_with_truth(0.588, 0.03),
            "seed_against_seed": agreement_with_truth(0.85),
            "seed_against_the_others": agreement_with_truth(0.878),
        },
        "parameters": [900, 2000, 7000, 20000],
        "alone": [[0.50, 0.54], [0.60, 0.64], [0.70, 0.72], [0.71, 0.75]],
        "scores": {name: [[0.4, 0.45, 0.5, 0.6], [0.42, 0.47, 0.52, 0.62]] for name in ("uniform", "fair")},
    }


ALL = {
    "depth": memory(),
    "batch": memory("batch"),
    "throughput": throughput(),
    "switching": switching(),
    "population": population(),
    "storage": storage(),
    "larger_than_memory": larger(),
    "nas201": nas201(),
    "workers": workers(),
    "ranking": ranking(),
}
