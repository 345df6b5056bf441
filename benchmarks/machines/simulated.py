"""What the present plans allow on machines that nobody here has: a table of simulated ratios.

    python -m benchmarks simulated

24 layers of 12.6 M parameters. For each profile and number of tokens a step: the simulated step over plain resident
training on the same device, and over the work of its busiest lane. Nothing in it was run on a GPU.
"""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks import RESULTS
from benchmarks.machines.transformers import Transformer, relay_step, resident_step_s
from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.files import read_json, write_json
from l2l_nas.relay.plan import UpdateOrder

MODEL = Transformer(hidden=1024, layers=24)
MACHINES = {"h100": "bf16", "rtx4090": "bf16", "v100": "fp16"}
TOKENS = (4096, 16384, 65536)
HALF = MODEL.layers // 2
SHAPES = {
    "everything resident": RelayShape(slots=MODEL.layers, keep=MODEL.layers),
    "everything kept, updated on the host": RelayShape(slots=MODEL.layers, keep=MODEL.layers),
    "half kept, updated on the host": RelayShape(slots=HALF + 2, keep=HALF),
    "streamed, 2 slots": RelayShape(slots=2),
    "streamed, 3 slots": RelayShape(slots=3),
    "`exact`, 3 slots, nothing clipped": RelayShape(slots=3, update=UpdateOrder.AHEAD),
    "`exact`, 3 slots, after a clipped step": RelayShape(slots=3, update=UpdateOrder.CHECKED),
}
RESIDENT = "everything resident"


def rows() -> list[dict[str, Any]]:
    """All of it."""
    found = []
    for machine, precision in MACHINES.items():
        hardware = PROFILES[machine]
        for tokens in TOKENS:
            plain_s = resident_step_s(MODEL, hardware, tokens=tokens, precision=precision)
            for name, shape in SHAPES.items():
                step = relay_step(
                    MODEL, hardware, shape, tokens=tokens, precision=precision, is_resident=name == RESIDENT
                )
                found.append(
                    {
                        "machine": machine,
                        "precision": precision,
                        "tokens": tokens,
                        "what": name,
                        "step_ms": 1000 * step.step_s,
                        "plain_ms": 1000 * plain_s,
                        "over_plain": step.step_s / plain_s,
                        "over_bound": step.over_bound,
                        "binds": step.binds,
                    }
                )
    return found


def table(found: list[dict[str, Any]]) -> str:
    """As the docs have it."""
    places = [(machine, tokens) for machine in MACHINES for tokens in TOKENS]
    lines = [
        "| simulated: over plain (over the busiest lane's work, and which) | "
        + " | ".join(f"{machine} {tokens:,}" for machine, tokens in places)
        + " |",
        "|---|" + "---|" * len(places),
    ]
    for name in SHAPES:
        cells = []
        for machine, tokens in places:
            one = next(r for r in found if (r["machine"], r["tokens"], r["what"]) == (machine, tokens, name))
            cells.append(f"{one['over_plain']:.2f} ({one['over_bound']:.2f}, {one['binds']})")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def main(options: argparse.Namespace) -> None:
    """Simulate, print, keep."""
    found = rows()
    print(table(found))
    write_json(RESULTS / "simulated.json", {"model": MODEL.__dict__, "rows": found})


def simulator() -> str:
    """The simulator against the real executor on a throttled CPU."""
    about = read_json(RESULTS / "simulator.json")["summary"]
    return (
        f"{about['triples']} random pools, paths and orders of updates: median error of a step "
        f"{about['median_step_error']:.1%}, largest {about['largest_step_error']:.1%}, rank correlation "
        f"{about['rank_correlation']:.3f}; the busiest lane right in {about['binds_right']}, device bytes exact in "
        f"{about['device_exact']}, host bytes within {about['largest_host_error']:.1%}."
    )


BLOCKS = {"simulated": lambda: table(read_json(RESULTS / "simulated.json")["rows"]), "simulator": simulator}
