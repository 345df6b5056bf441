"""Figures of searches: really trained, with a memory, beside other packages on simulated landscapes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import RESULTS
from benchmarks.pages.writing import bullets, markdown, points, raw
from benchmarks.search.search_memory import over_tasks, summary
from benchmarks.search.simulated.comparison import Found
from benchmarks.search.simulated.comparison import summary as compared
from l2l_nas.report.interval import reach

TASKS = {
    "cluttered_digits": "cluttered digits",
    "cifar10_5k": "CIFAR-10, 5,000 images",
    "fashion_mnist_6k": "Fashion-MNIST, 6,000 images",
}
_HEAD = ["points of test accuracy, ten seeds (95 %)", *TASKS.values()]


def ahead(task: str, over: str = "random_search") -> Mapping[str, float]:
    """What the default search is ahead of another side on the test part, as first measured."""
    about: Mapping[str, float] = raw(f"search_quality_{task}")["summary"]["search_minus"][over]["test"]
    return about


def memory_of(task: str, side: str, over: str) -> Mapping[str, float]:
    """What a side of `search_memory` is ahead of another, measured on one machine."""
    rows = raw(f"search_memory_{task}")["rows"]
    about: Mapping[str, float] = summary(rows)[side][f"minus {over}"]
    return about


def quality() -> str:
    """The default search, random trials in the same race, random search."""
    lines = [
        ["search minus random search", *(points(ahead(task)) for task in TASKS)],
        ["the same, measured again two days later", *(points(memory_of(t, "none_6", "random_search")) for t in TASKS)],
        ["search minus the same race with random trials", *(points(ahead(task, "sampler=random")) for task in TASKS)],
    ]
    accuracies = {task: raw(f"search_quality_{task}")["summary"]["accuracy"] for task in TASKS}
    for side, words in (("search", "test accuracy: search"), ("random_search", "test accuracy: random search")):
        lines.append([words, *(f"{100 * accuracies[task][side]['test']['mean']:.1f} %" for task in TASKS)])
    return markdown(_HEAD, lines)


def front() -> str:
    """Two objectives beside random search."""
    lines = []
    for task, words in TASKS.items():
        about = raw(f"search_front_{task}")["summary"]
        seeds = len(about["seeds"])
        lines.append(
            [
                f"{words}, {seeds} seeds",
                points(about["all_sizes"]["search_minus"]),
                points(about["sizes_of_both"]["search_minus"]),
            ]
        )
    return markdown(
        ["area under the front, points more than random search (95 %)", "all sizes", "sizes of both"], lines
    )


_SIDES = (
    *(("shipped_6", "none_6", ""), ("shipped_6", "random_search", ""), ("shipped_3", "none_3", "_2")),
    *(("shipped_3", "none_6", "_2"), ("searches_6", "none_6", "_2"), ("searches_3", "none_3", "_2")),
    *(("shuffled_6", "none_6", "_2"), ("none_3", "none_6", "_2")),
)


def memory() -> str:
    """What a memory is worth, on one machine each."""
    found = {end: {task: summary(raw(f"search_memory_{task}{end}")["rows"]) for task in TASKS} for end in ("", "_2")}
    lines = []
    for side, other, end in _SIDES:
        name = f"minus {other}"
        about = _mean(list(found[end].values()), f"{side} {name}")
        cells = [points(found[end][task][side][name]) for task in TASKS]
        lines.append([f"`{side}` minus `{other}`", *cells, f"**{points(about)}**"])
    return markdown([*_HEAD, "mean of tasks"], lines)


_METHODS = {
    "race_memory": "the race with memory of the other tasks",
    "neps_priorband": "NePS PriorBand",
    "neps_hyperband": "NePS Hyperband",
    "syne_tune_asha": "Syne Tune ASHA",
    "syne_tune_bohb": "Syne Tune BOHB",
    "dehb": "DEHB",
    "optuna_hyperband": "Optuna TPE with Hyperband",
    "asha2": "promoting ASHA, eta 2 (own)",
    "asha3": "promoting ASHA, eta 3 (own)",
    "random": "random search",
}
_LANDSCAPES = ("gaussian", "trees", "trained")


def _peers() -> dict[tuple[str, float, str], Any]:
    """The mean difference to the race, by landscape, budget, method."""
    rows = compared(Found.read(RESULTS / "search_peers.json"), "race")
    return {(row["landscape"], row["budget"], row["method"]): row["mean"] for row in rows}


def peers() -> str:
    """Methods minus the race, simulated; in brackets what is not resolved."""
    found = _peers()
    budgets = sorted({budget for _, budget, _ in found})
    lines = []
    for landscape in _LANDSCAPES:
        for method, words in _METHODS.items():
            cells = [_cell(found.get((landscape, budget, method))) for budget in budgets]
            if any(cells):
                lines.append([f"`{landscape}`", words, *cells])
    return markdown(["landscape", "minus the race, points", *(f"{budget:g} trainings" for budget in budgets)], lines)


def _cell(difference: Any) -> str:
    if difference is None:
        return ""
    told = f"{difference.value:+.2f} ± {difference.error:.2f}"
    return told if difference.is_resolved else f"({told})"


def peers_counted() -> str:
    """Of nine others, how many are resolved below the race, at each budget of each landscape."""
    found = _peers()
    others = [method for method in _METHODS if method != "race_memory"]
    lines = []
    for landscape in _LANDSCAPES:
        counted = []
        for budget in sorted({budget for place, budget, _ in found if place == landscape}):
            known = [found[landscape, budget, m] for m in others if found.get((landscape, budget, m)) is not None]
            below = sum(one.value < 0 and one.is_resolved for one in known)
            counted.append(f"{below} of {len(known)} at {budget:g}")
        lines.append(
            f"`{landscape}`: the race is ahead of {', '.join(counted)} trainings; the others are not resolved."
        )
    return bullets(lines)


def peers_beside_real() -> str:
    """What landscapes promise over random search, beside what real searches gave."""
    found, budget = _peers(), 6.0
    promised = [f"{-found[landscape, budget, 'random'].value:.1f}" for landscape in ("gaussian", "trees")]
    real = [f"{100 * ahead(task)['mean']:.1f}" for task in TASKS]
    return (
        f"At {budget:g} trainings the two landscapes put the race {' and '.join(promised)} points above random search; "
        f"ten real searches of each task were {', '.join(real)} above it. **So read gains at half, or less.**"
    )


def peers_range(budget: float = 6.0, landscapes: Sequence[str] = ("gaussian", "trees")) -> str:
    """The least and the most that the race is ahead of packages at a budget."""
    found = _peers()
    packages = ("neps_priorband", "neps_hyperband", "syne_tune_asha", "syne_tune_bohb", "dehb", "optuna_hyperband")
    values = [-found[landscape, budget, method].value for landscape in landscapes for method in packages]
    return f"{min(values):.1f} to {max(values):.1f}"


_SAMPLERS = ("random", "nsga2", "tpe", "evolution", "gp_hamming")


def nas201() -> str:
    """Samplers on NAS-Bench-201."""
    result = raw("nas201")
    datasets = list(result["optimum"])
    found = {(row["sampler"], row["dataset"]): row for row in result["rows"]}
    lines = []
    for sampler in _SAMPLERS:
        for reading, words in (("best", "best"), ("handed_out", "returned")):
            cells = (found[sampler, dataset][reading] for dataset in datasets)
            lines.append([f"`{sampler}`", words, *(f"{one['mean']:.2f} ± {one['se']:.2f}" for one in cells)])
    known = result["reference"]["rows"]["tpe"]
    lines.append(["Optuna's TPE, repeats evaluated again", "best", *(f"{known[name][0]:.2f}" for name in datasets)])
    lines.append(["optimum", "", *(f"{value:.2f}" for value in result["optimum"].values())])
    return markdown(["sampler", "cell", *datasets], lines)


def nas201_ahead() -> str:
    """The cell that `gp_hamming` returns, minus that of `tpe`."""
    found = {(row["sampler"], row["dataset"]): row["handed_out"] for row in raw("nas201")["rows"]}
    cells = []
    for dataset in raw("nas201")["optimum"]:
        mine, other = found["gp_hamming", dataset], found["tpe", dataset]
        error = math.hypot(mine["se"], other["se"])
        cells.append(f"{mine['mean'] - other['mean']:+.2f} ± {error:.2f} on {dataset}")
    return f"The cell that `gp_hamming` returns is {', '.join(cells)} beside that of `tpe` (accuracy, standard error)."


def mean_ahead(side: str, over: str, end: str = "") -> dict[str, float]:
    """The mean over tasks of what a side is ahead by, with a 95 % interval; shares."""
    tasks = [summary(raw(f"search_memory_{task}{end}")["rows"]) for task in TASKS]
    return _mean(tasks, f"{side} minus {over}")


def _mean(tasks: Sequence[Mapping[str, Any]], name: str) -> dict[str, float]:
    """A mean over tasks with its interval; degrees of freedom are those of the task with the fewest seeds."""
    about = over_tasks(tasks)[name]
    half = reach(about["standard_error"], min(one[name.partition(" ")[0]]["seeds"] for one in tasks))
    return {"mean": about["mean"], "low": about["mean"] - half, "high": about["mean"] + half}


BLOCKS = {
    "search_quality": quality,
    "search_front": front,
    "search_memory": memory,
    "search_peers": peers,
    "search_peers_counted": peers_counted,
    "search_peers_real": peers_beside_real,
    "nas201": nas201,
    "nas201_ahead": nas201_ahead,
}
