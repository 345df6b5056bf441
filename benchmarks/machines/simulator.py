"""The simulator against the real executor on a CPU whose lanes have known rates: random pools, paths, policies.

    python -m benchmarks simulator [--triples 30] [--seed 0] [--out FILE]

Compared are the time of a step, the busiest lane, device, host and disk bytes, see `tests/cost/throttled.py`.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.options import at_least
from l2l_nas.files import write_json
from tests.cost.throttled import Triple, measured, predicted
from tests.relay.stress import AHEAD

TIE = 0.02  # busy times that differ by less have no order


def compare(triple: Triple) -> dict[str, Any]:
    ours, real = predicted(triple), measured(triple)
    return {
        "choices": triple.choices,
        "options": {**triple.options, "update": str(triple.options["update"])},
        "rates": triple.hardware.to_json(),
        "predicted": ours,
        "measured": real,
        "step_error": abs(ours["step_s"] - real["step_s"]) / real["step_s"],
        # how many states are copied before their update ahead of the check is a matter of time
        "host_error": 0.0
        if triple.options["update"] is AHEAD
        else abs(ours["host_bytes"] - real["host_bytes"]) / real["host_bytes"],
        "device_is_exact": ours["device_bytes"] == real["device_bytes"],
        # two lanes may have the same work
        "binds_is_right": real["busy_s"][ours["binds"]] >= (1 - TIE) * real["busy_s"][real["binds"]],
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "triples": len(rows),
        "median_step_error": statistics.median(row["step_error"] for row in rows),
        "largest_step_error": max(row["step_error"] for row in rows),
        "binds_right": sum(row["binds_is_right"] for row in rows),
        "device_exact": sum(row["device_is_exact"] for row in rows),
        "largest_host_error": max(row["host_error"] for row in rows),
    }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--triples", type=at_least(3), default=30)
    parser.add_argument("--seed", type=at_least(0), default=0)
    parser.add_argument("--out", type=Path, default=RESULTS / "simulator.json")


def main(given: argparse.Namespace) -> None:
    generator = random.Random(given.seed)
    rows = []
    for number in range(given.triples):
        rows.append(compare(Triple.draw(generator)))
        row = rows[-1]
        steps = [f"{row[side]['step_s']:.3f} s, {row[side]['binds']}" for side in ("measured", "predicted")]
        print(number, row["options"]["update"], *steps, f"off by {row['step_error']:.1%}, host {row['host_error']:.2%}")
    found = summary(rows)
    print(found)
    write_json(given.out, {"seed": given.seed, "summary": found, "rows": rows})
