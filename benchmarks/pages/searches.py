"""Figures of searches: really trained, beside other packages on simulated landscapes, and on NAS-Bench-201."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from benchmarks import RESULTS
from benchmarks.pages.writing import bullets, markdown, points, raw
from benchmarks.search.simulated.comparison import Found
from benchmarks.search.simulated.comparison import summary as compared
from l2l_nas.report.interval import Estimate

TASKS = {
    "cluttered_digits": "cluttered digits",
    "cifar10_5k": "CIFAR-10, 5,000 images",
    "fashion_mnist_6k": "Fashion-MNIST, 6,000 images",
}


def ahead(task: str, over: str = "random_search", *, kind: str = "") -> Mapping[str, float]:
    """What a search is ahead of another side on the test part.

    Args:
        kind: "_alone", without the runs that come with the space; "_alone_again", once more; "_3_trainings".
    """
    about: Mapping[str, float] = raw(f"search_quality_{task}{kind}")["summary"]["search_minus"][over]["test"]
    return about


def num_seeds(kind: str = "") -> int:
    """Seeds of each task."""
    (count,) = {len(raw(f"search_quality_{task}{kind}")["summary"]["seeds"]) for task in TASKS}
    return count


def alone_at_3(task: str) -> Mapping[str, float]:
    """What a search of 3 trainings without the runs that come with the space is ahead of random search."""
    sides = [row["sides"] for row in raw(f"search_quality_{task}_3_trainings")["rows"]]
    differences = [side["search.learn_from=[]"]["test"] - side["random_search"]["test"] for side in sides]
    about: Mapping[str, float] = Estimate.of(differences).to_json()
    return about


def quality() -> str:
    """Searches with and without the runs that come with the space, random trials in the same race, random search."""
    alone, three = "`search.learn_from=[]`", "`search.trainings=3`"
    lines = [
        [f"default search, {num_seeds()} seeds", *(points(ahead(task)) for task in TASKS)],
        [f"{alone}, {num_seeds('_alone')} seeds", *(points(ahead(task, kind="_alone")) for task in TASKS)],
        [f"{alone}, measured again two days later", *(points(ahead(task, kind="_alone_again")) for task in TASKS)],
        [f"{three}, {num_seeds('_3_trainings')} seeds", *(points(ahead(task, kind="_3_trainings")) for task in TASKS)],
        [f"{three}, {alone}, the same seeds", *(points(alone_at_3(task)) for task in TASKS)],
    ]
    random = [points(ahead(task, "sampler=random", kind="_alone")) for task in TASKS]
    lines.append([f"{alone}, minus the same race with random trials", *random])
    accuracies = {task: raw(f"search_quality_{task}")["summary"]["accuracy"] for task in TASKS}
    for side, words in (("search", "test accuracy: default search"), ("random_search", "test accuracy: random search")):
        lines.append([words, *(f"{100 * accuracies[task][side]['test']['mean']:.1f} %" for task in TASKS)])
    return markdown(["minus random search, points of test accuracy (95 %)", *TASKS.values()], lines)


_PACKAGES = {
    "neps_priorband": "NePS PriorBand",
    "neps_hyperband": "NePS Hyperband",
    "syne_tune_asha": "Syne Tune ASHA",
    "syne_tune_bohb": "Syne Tune BOHB",
    "dehb": "DEHB",
    "optuna_hyperband": "Optuna TPE with Hyperband",
}
_METHODS = {
    **_PACKAGES,
    "asha2": "promoting ASHA, eta 2 (own)",
    "asha3": "promoting ASHA, eta 3 (own)",
    "random": "random search",
}
_LANDSCAPES = ("gaussian", "trees", "trained")
_BUDGET = 6.0


@cache
def _peers() -> dict[tuple[str, float, str], Any]:
    """The mean difference to the race, by landscape, budget, method."""
    rows = compared(Found.read(RESULTS / "search_peers.json"), "race")
    return {(row["landscape"], row["budget"], row["method"]): row["mean"] for row in rows if row["mean"]}


def peers() -> str:
    """Methods minus the race, simulated; in brackets what is not resolved."""
    lines = []
    for method, words in _METHODS.items():
        found = [_peers()[landscape, _BUDGET, method] for landscape in _LANDSCAPES]
        told = [f"{one.value:+.2f} ± {one.error:.2f}" for one in found]
        lines.append([words, *(t if one.is_resolved else f"({t})" for t, one in zip(told, found, strict=True))])
    return markdown([f"minus the race at {_BUDGET:g} trainings, points", *(f"`{one}`" for one in _LANDSCAPES)], lines)


def peers_counted() -> str:
    """Of nine others, how many are resolved below the race, at each budget of each landscape."""
    lines = []
    for landscape in _LANDSCAPES:
        counted = []
        for budget in sorted({budget for place, budget, _ in _peers() if place == landscape}):
            known = [_peers()[landscape, budget, method] for method in _METHODS]
            below = sum(one.value < 0 and one.is_resolved for one in known)
            counted.append(f"{below} of {len(known)} at {budget:g}")
        lines.append(f"`{landscape}`: ahead of {', '.join(counted)} trainings; the others are not resolved.")
    return bullets(lines)


def peers_beside_real() -> str:
    """What landscapes promise over random search, beside what real searches gave."""
    promised = [f"{-_peers()[landscape, _BUDGET, 'random'].value:.1f}" for landscape in ("gaussian", "trees")]
    real = [f"{100 * ahead(task, kind='_alone')['mean']:.1f}" for task in TASKS]
    return (
        f"At {_BUDGET:g} trainings the two landscapes put the race {' and '.join(promised)} points above random "
        f"search; ten real searches of each task were {', '.join(real)} above it. **So read gains at half, or less.**"
    )


def peers_range(landscapes: Sequence[str] = ("gaussian", "trees")) -> str:
    """The least and the most that the race is ahead of packages at a budget."""
    values = [-_peers()[landscape, _BUDGET, method].value for landscape in landscapes for method in _PACKAGES]
    return f"{min(values):.1f} to {max(values):.1f}"


def nas201() -> str:
    """Samplers on NAS-Bench-201."""
    result = raw("nas201")
    datasets = list(result["optimum"])
    found = {(row["sampler"], row["dataset"]): row for row in result["rows"]}
    readings = [("handed_out", "returned", ("random", "nsga2", "evolution")), ("best", "best", ())]
    lines = []
    for reading, words, others in readings:
        for sampler in (*others, "tpe", "gp_hamming"):
            cells = (found[sampler, dataset][reading] for dataset in datasets)
            lines.append([f"`{sampler}`", words, *(f"{one['mean']:.2f} ± {one['se']:.2f}" for one in cells)])
    known = result["reference"]["rows"]["tpe"]
    lines.append(["Optuna's TPE, repeats evaluated again", "best", *(f"{known[name][0]:.2f}" for name in datasets)])
    lines.append(["optimum", "", *(f"{value:.2f}" for value in result["optimum"].values())])
    return markdown(["sampler", "cell", *datasets], lines)


BLOCKS = {
    "search_quality": quality, "search_peers": peers, "search_peers_counted": peers_counted,
    "search_peers_real": peers_beside_real, "nas201": nas201,
}  # fmt: skip
