"""Early stopping beside none: which finds better networks for as many training steps.

    python -m benchmarks early_stop [--seeds 5] [--trials 14] [--steps 80] [--out FILE]

The space `digits_conv`, every trial from its first weights. Without early stopping: so many trials of so many steps.
With it: twice as many trials are asked for, and those count that were begun before as many steps were spent. The side
without scores its trials at the rungs as well, so that the two do the same work a step, but stops none.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

from benchmarks import RESULTS
from benchmarks.options import at_least
from l2l_nas.__main__ import main as l2l_nas
from l2l_nas.nas.evaluation.early_stopping import Halving
from l2l_nas.nas.objectives import Goal
from l2l_nas.nas.study.reading import load_study
from l2l_nas.space.architecture import Architecture

SIDES = {"all steps": 0.999, "halving": 0.5}
OBJECTIVES = ("[accuracy]", "[accuracy,parameters]")
GOALS = (Goal("accuracy", True), Goal("parameters", False))
# corner of the area that a front covers: accuracy, and parameters on a logarithmic scale
WORST = (0.5, math.log10(10_000))


def search(
    folder: Path, *, seed: int, objectives: str, trials: int, steps: int, keep_fraction: float
) -> list[dict[str, Any]]:
    """Evaluated trials, in order: their values, the steps that they took, their scores at the rungs."""
    words = [
        "search", f"folder={folder}", f"seed={seed}", "export=false", f"objectives={objectives}",
        "search.trial_weights=scratch", f"search.trials={trials}", f"search.steps_per_trial={steps}",
        "search.early_stop=halving", f"search.keep_fraction={keep_fraction}",
        "search.finalists=0", "space=digits_conv", "data.source=digits", "train.learning_rate=0.004",
        "train.batch_size=128", "train.micro_batch=128",
    ]  # fmt: skip
    if l2l_nas(words):
        sys.exit(1)
    study = load_study(folder / "study.log")
    found = []
    for trial in study.trials:
        attributes = trial.user_attrs
        if attributes["cached"] or "rungs" not in attributes:
            continue
        is_stopped = attributes.get("stopped", False)
        last = int(list(attributes["rungs"])[-1].split("/")[0])
        found.append(
            {
                "values": None if is_stopped else {k: attributes[f"metric_{k}"] for k in ("accuracy", "parameters")},
                "steps": last if is_stopped else steps,
                "rungs": {rung: metrics["accuracy"] for rung, metrics in attributes["rungs"].items()},
            }
        )
    return found


def within(trials: list[dict[str, Any]], steps: int) -> list[dict[str, Any]]:
    """Those that fit into so many steps."""
    history, spent = [], 0
    for trial in trials:
        if spent + trial["steps"] > steps:
            break
        spent += trial["steps"]
        history.append(trial)
    return history


def area(trials: list[dict[str, Any]]) -> float:
    """What the Pareto front covers of accuracy over the logarithm of parameters (its hypervolume)."""
    points = sorted((math.log10(t["values"]["parameters"]), t["values"]["accuracy"]) for t in trials if t["values"])
    total, best = 0.0, WORST[0]
    for size, accuracy in points:
        if accuracy > best:
            total += (accuracy - best) * (WORST[1] - size)
            best = accuracy
    return total


def rank_correlation(trials: list[dict[str, Any]], rung: str) -> float:
    """Spearman's, between the accuracy at a rung and at the end."""
    pairs = [(t["rungs"][rung], t["values"]["accuracy"]) for t in trials if t["values"]]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def resampled(
    trials: list[dict[str, Any]], goals: tuple[Goal, ...], *, spend: int, orders: int = 2000
) -> dict[str, object]:
    """Trials that took all their steps, in many random orders: what each side would have found of them within a budget.

    Without the noise of few runs, and without a sampler that learns.
    """
    found: dict[str, list[float]] = {side: [] for side in SIDES}
    generator = random.Random(0)
    for _ in range(orders):
        order = generator.sample(range(len(trials)), len(trials))
        for side, keep_fraction in SIDES.items():
            rule, spent, complete = Halving(goals, keep_fraction=keep_fraction), 0, []
            for number in order:
                trial = trials[number]
                taken, is_stopped = _steps_until_stopped(rule, number, trial)
                if spent + taken > spend:
                    break
                spent += taken
                complete += [] if is_stopped else [trial]
            found[side].append(max(t["values"]["accuracy"] for t in complete) if len(goals) == 1 else area(complete))
    gains = [b - a for a, b in zip(*found.values(), strict=True)]
    return {
        **{side: round(statistics.mean(values), 5) for side, values in found.items()},
        "gain": round(statistics.mean(gains), 5),
        "better": round(sum(gain > 0 for gain in gains) / orders, 3),
        "worse": round(sum(gain < 0 for gain in gains) / orders, 3),
    }


def _steps_until_stopped(rule: Halving, number: int, trial: dict[str, Any]) -> tuple[int, bool]:
    for rung, accuracy in trial["rungs"].items():
        if rule.stop_reason(Architecture((str(number),)), rung, {**trial["values"], "accuracy": accuracy}):
            return int(rung.split("/")[0]), True
    return trial["steps"], False


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=at_least(1), default=5)
    parser.add_argument("--trials", type=at_least(1), default=14)
    parser.add_argument("--steps", type=at_least(1), default=80)
    parser.add_argument("--out", type=Path, default=RESULTS / "early_stop.json")


def main(options: argparse.Namespace) -> None:
    """Run all sides and seeds; write the file after each."""
    spend = options.trials * options.steps
    result: dict[str, object] = {"trials": options.trials, "steps": options.steps}
    for objectives in OBJECTIVES:
        goals = GOALS[: 1 + objectives.count(",")]
        rows: list[dict[str, Any]] = []
        whole: list[dict[str, Any]] = []  # trials that took all their steps
        for seed in range(options.seeds):
            for side, keep_fraction in SIDES.items():
                asked = options.trials if side == "all steps" else 2 * options.trials
                with tempfile.TemporaryDirectory() as folder:
                    found = search(
                        Path(folder) / "run", seed=seed, objectives=objectives, trials=asked, steps=options.steps,
                        keep_fraction=keep_fraction,
                    )  # fmt: skip
                if side == "all steps":
                    whole += found
                rows.append({"seed": seed, "side": side, **summary(within(found, spend))})
                print(objectives, rows[-1], flush=True)
        result[objectives] = {
            "runs": rows,
            "rank_correlation": {r: round(rank_correlation(whole, r), 3) for r in whole[0]["rungs"]},
            "in_random_orders": resampled(whole, goals, spend=spend),
            "whole": whole,
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result) + "\n")


def summary(trials: list[dict[str, Any]]) -> dict[str, object]:
    """What a side found within its budget."""
    complete = [trial for trial in trials if trial["values"]]
    return {
        "begun": len(trials),
        "complete": len(complete),
        "steps": sum(trial["steps"] for trial in trials),
        "best": round(max(trial["values"]["accuracy"] for trial in complete), 4),
        "area": round(area(complete), 4),
    }
