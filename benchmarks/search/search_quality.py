"""Does the search find something? The default run against random search of equal training, on samples neither saw.

    python -m benchmarks search_quality [--data cluttered_digits] [--seeds 0 1 2] [--words search.trainings=3]
        [--beside search.learn_from=[]] [--runs FOLDER] [--out FILE]

For every seed, of about as many training steps each:

- the default `python -m l2l_nas search` on these data, with search.baseline=random: random networks trained as
  the finalist that was trained longest;
- with --beside, the same run with another setting, which shows what that does.

Each returns the network that is best on the validation part, and that one is measured on the test part: what a user
would get. Seeds can be measured one at a time: what the file holds of other seeds stays, and so do runs in FOLDER that
were finished. Differences are paired by seed, with their standard errors and intervals over seeds; the samples are the
same for all seeds, so these say nothing of other samples: for that, each network has the standard error of its own test
accuracy.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.timing import machine
from l2l_nas.files import read_json, write_json
from l2l_nas.report.interval import Estimate

PARTS = ("validation", "test")

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", default="cluttered_digits", help="as data.source")
    parser.add_argument("--seeds", nargs="+", type=at_least(0), default=[0, 1, 2])
    parser.add_argument("--words", nargs="+", default=[], help="settings of all runs")
    parser.add_argument("--beside", default="", help="a setting that the same run is done with once more")
    parser.add_argument("--out", type=Path, help="results/search_quality_DATA.json if nothing is said")
    parser.add_argument("--runs", type=Path, help="where the runs' folders stay; a temporary folder by default")


def main(arguments: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    data = Path(arguments.data).stem
    out = arguments.out or RESULTS / f"search_quality_{data}.json"
    for seed in arguments.seeds:
        with tempfile.TemporaryDirectory() as scratch:
            runs = (arguments.runs or Path(scratch)) / f"{data}_{seed}"
            row = measure(arguments.data, seed, runs, words=arguments.words, beside=arguments.beside)
        known = read_json(out)["rows"] if out.exists() else []
        rows = sorted([row, *(one for one in known if one["seed"] != seed)], key=lambda one: one["seed"])
        about = {"benchmark": "search_quality", "data": data, "machine": machine()}
        result = {**about, "summary": summary(rows), "rows": rows}
        write_json(out, result)
        print(json.dumps(result["summary"]), flush=True)


def measure(data: str, seed: int, runs: Path, *, words: Sequence[str] = (), beside: str = "") -> Row:
    """One seed; the runs' folders are made in `runs`."""
    words = [f"data.source={data}", f"seed={seed}", *words]
    result = searched(runs / "search", *words, "search.baseline=random")
    alone = result["baseline"]
    sides = {"search": entry_of(result["best"]), "random_search": entry_of(alone)}
    if beside:
        sides[beside] = entry_of(searched(runs / re.sub(r"\W+", "_", beside), *words, beside)["best"])
    return {
        "seed": seed,
        "steps": alone["total_steps"],
        "sides": sides,
        "finalists": [{**entry_of(entry), "trial": entry["trial_score"]} for entry in result["finalists"]],
        "networks": alone["networks"],
        "versions": result["versions"],
    }


def searched(folder: Path, *overrides: str) -> dict[str, Any]:
    """The result of a run, which may have been finished before."""
    if (folder / "result.json").exists():
        return dict(read_json(folder / "result.json"))
    command = [sys.executable, "-m", "l2l_nas", "search", f"folder={folder}", "export=false", *overrides]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return dict(read_json(folder / "result.json"))


def entry_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a result tells of a network: its layers, steps, accuracies, the error of that on the test part."""
    record = {"architecture": entry["architecture"], "steps": entry["steps"]}
    for part in PARTS:
        if entry.get(part):
            record[part] = entry[part]["accuracy"]
    if entry.get("test"):
        record["test_standard_error"] = entry["standard_error"]["test"]["accuracy"]
    return record


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """Means over seeds with their standard errors, and what the search is ahead by, seed by seed."""
    names = [name for name in rows[0]["sides"] if all(name in row["sides"] for row in rows)]
    of = {(name, part): [row["sides"][name][part] for row in rows] for name in names for part in PARTS}

    def ahead(name: str, part: str) -> dict[str, Any]:
        return estimate(a - b for a, b in zip(of["search", part], of[name, part], strict=True))

    return {
        "seeds": [row["seed"] for row in rows],
        "accuracy": {name: {part: estimate(of[name, part]) for part in PARTS} for name in names},
        "search_minus": {name: {part: ahead(name, part) for part in PARTS} for name in names if name != "search"},
    }


def estimate(values: Iterable[float]) -> dict[str, Any]:
    """Mean, standard error and 95 % interval over seeds; of one seed there is the mean alone."""
    values = list(values)
    if len(values) < 2:
        return {"mean": statistics.mean(values), "standard_error": None}
    return Estimate.of(values).to_json()
