"""What planning costs: processor time of a plan, the first time and again, and its share of training steps.

    python -m benchmarks planning [--before CHECKOUT] [--out FILE]

Plans of paths of 12 to 384 layers, with 2 slots and with everything kept; the least of several. "Again" is a plan for
what was planned before, as most steps of a search ask for. The share is that of 48 small layers of width 256, a
mini-batch of 64 in 4 micro-batches, once on one path and once on a new path each step.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import RESULTS, ROOT
from benchmarks.paired import Side

LENGTHS = (12, 24, 48, 96, 384)
DEPTH, WIDTH, BATCH, STEPS = 48, 256, 64, 6
ROUNDS = 9


def planner() -> Any:
    """The function that plans a training step."""
    try:
        from l2l_nas.relay import planner as home
    except ImportError:
        from l2l_nas.relay import plan as home  # type: ignore[no-redef]
    return home.plan_training


def least(path_of: Any, count: int, *, keeps_all: bool, update: str) -> float:
    """Milliseconds of a plan that follows another one, as in a run of steps; the least of several."""
    from l2l_nas.relay import plan as home

    plan, found, carry = planner(), [], None
    # the order of updates; checkouts of before it had a name know the policy alone
    orders = {"eager": home.UpdateOrder.EAGER, "exact": home.UpdateOrder.AHEAD} if hasattr(home, "UpdateOrder") else {}
    order = orders.get(update) or home.UpdatePolicy(update)
    for number in range(ROUNDS):
        path = path_of(count, number)
        kept = count if keeps_all else 1
        started = time.process_time_ns()
        made = plan(
            path, slots=max(2, kept), keep=kept, update=order, carry=carry, upcoming=path[0]
        )  # fmt: skip
        found.append((time.process_time_ns() - started) / 1e6)
        carry = made.leaves
    return min(found[2:])


def plan_milliseconds(count: int) -> dict[str, float]:
    """Of a path of so many layers."""
    from l2l_nas.relay.path import PathLayer

    def path_of(count: int, number: int) -> tuple[Any, ...]:
        names = [f"{number}_{index}/c" for index in range(count + 1)]
        return tuple(
            PathLayer(name, (name,), False, (f"v{name}",), (f"v{after}",)) for name, after in itertools.pairwise(names)
        )

    found = {}
    for policy in ("eager", "exact"):
        for kept, keeps_all in (("2 slots", False), ("all kept", True)):
            mark = f"{policy}, {kept}"
            found[f"{mark}, first"] = least(path_of, count, keeps_all=keeps_all, update=policy)
            found[f"{mark}, again"] = least(
                lambda count, _: path_of(count, -1), count, keeps_all=keeps_all, update=policy
            )
    return {name: round(value, 4) for name, value in found.items()}


class Counted:
    """Processor time within a function, wherever in the library it stands."""

    def __init__(self, function: Any) -> None:
        self.function, self.seconds, label = function, 0.0, function.__name__
        for name, module in list(sys.modules.items()):
            if name.startswith("l2l_nas.") and getattr(module, label, None) is function:
                setattr(module, label, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it."""
        started = time.process_time()
        try:
            return self.function(*args, **kwargs)
        finally:
            self.seconds += time.process_time() - started


def shares() -> dict[str, dict[str, float]]:
    """Of a training step, by what is kept and whether paths change."""
    import torch
    from torch import nn

    from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec

    class Error:
        def loss(self, outputs: Any, targets: Any) -> Any:
            return (outputs[0] - targets).square().sum()

        def count(self, targets: Any) -> float:
            return float(len(targets))

    found: dict[str, dict[str, float]] = {}
    counted = Counted(planner())
    both = [Candidate(name, lambda: nn.Linear(WIDTH, WIDTH)) for name in "ab"]
    for budget in (None, "all"):
        for changes in (False, True):
            pool = LayerPool([Position(f"p{index}", both) for index in range(DEPTH)], inputs=TensorSpec((WIDTH,)))
            relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", device_budget=budget)
            inputs, targets = (torch.randn(BATCH, WIDTH),), torch.randn(BATCH, WIDTH)
            for step in range(3 + STEPS):
                if step == 3:
                    counted.seconds, started = 0.0, time.process_time()
                choices = random.Random(step * changes).choices("ab", k=DEPTH)
                relay.train_step(
                    pool.architecture(choices), inputs, targets,
                    objective=Error(), micro_batch=BATCH // 4, lr=1e-3, step=step,
                )  # fmt: skip
            relay.drain()
            seconds = time.process_time() - started
            mark = f"{'all kept' if budget else '2 slots'}, {'new paths' if changes else 'one path'}"
            found[mark] = {
                "step_ms": round(1e3 * seconds / STEPS, 3),
                "planning_ms": round(1e3 * counted.seconds / STEPS, 4),
                "share": round(counted.seconds / seconds, 5),
            }
            relay.close()
    return found


def answer(what: str, count: int = 0) -> Any:
    """What a process is asked."""
    return shares() if what == "shares" else plan_milliseconds(count)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", type=Path, help="another checkout, measured beside this one")
    parser.add_argument("--out", type=Path, default=RESULTS / "planning.json")


def main(options: argparse.Namespace) -> None:
    """Measure and write."""
    from benchmarks.timing import machine
    from l2l_nas.files import write_json

    report: dict[str, Any] = {"benchmark": "planning", "machine": machine()}
    for name, checkout in {"now": ROOT, **({"before": options.before.resolve()} if options.before else {})}.items():
        with Side(answer, checkout) as side:
            plans = {count: side.ask(what="plans", count=count) for count in LENGTHS}
            report[name] = {"plan_ms": plans, "shares": side.ask(what="shares")}
        for count, found in plans.items():
            print(name, count, "layers:", ", ".join(f"{mark} {value:.3f} ms" for mark, value in found.items()))
        for mark, found in report[name]["shares"].items():
            print(
                f"{name} {DEPTH} layers, {mark}: {found['planning_ms']} of {found['step_ms']} ms, {found['share']:.2%}"
            )
    write_json(options.out, report)
