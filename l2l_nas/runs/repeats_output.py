"""What the repeats of a search leave: their results read back, what all tell together, and its page."""

from __future__ import annotations

import statistics
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from l2l_nas.errors import L2LError, one_line, without_passwords, without_passwords_in
from l2l_nas.files import parsing, read_json, write_atomically, write_json, yaml_text
from l2l_nas.nas.objectives import Goal
from l2l_nas.report.html.repeats import RepeatsSummary, render_repeats
from l2l_nas.report.network import NOT_COUNTED, Network, RandomBaseline
from l2l_nas.report.repeats import Comparison, Repeat, best_repeat, repeats_table
from l2l_nas.report.summary import Command
from l2l_nas.report.table import headline, terminal_table
from l2l_nas.runs.command_line import command_line, resume_command
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.folder_settings import FolderSettings, read_settings, typeable
from l2l_nas.runs.next_commands import changed_settings
from l2l_nas.runs.origin import versions
from l2l_nas.runs.resume import last_end
from l2l_nas.runs.terminal import say, warn

_PARTS = ("architecture", "validation", "test", "standard_error", "costs")


def read_repeat(place: RunFolder, *, number: int, seed: int) -> Repeat | None:
    """A repeat that is done; None of one that is not.

    Raises:
        StorageError: its result is damaged.
    """
    if not place.result.exists() or last_end(place).get("event") != "done":
        return None
    result = read_json(place.result)
    with parsing(place.result, "the result of a search", advice="restore it, or remove it and resume the run"):
        found = Network.from_json(result["best"])
        for goal in goals_of(result):
            if goal.name not in found.compared_values:
                raise ValueError(f"no {goal.name} of the best network")
        beside = RandomBaseline.from_json(result["baseline"]).best if result["baseline"] else None
        return Repeat(number, seed, found, beside, float(result["seconds"]))


@dataclass(frozen=True)
class Repeats:
    """Those of a folder.

    Args:
        total: how many were asked for.
        done: those that have ended, by their numbers.
        results: what the file of each holds.
    """

    total: int
    done: tuple[Repeat, ...]
    results: Mapping[int, Any]

    @classmethod
    def read(cls, folder: RunFolder, config: Any) -> Repeats:
        """Those of a folder, whose settings these are.

        Raises:
            StorageError: a result is damaged.
        """
        total, first = int(value_of(config, "search.repeats")), int(value_of(config, "seed"))
        found = (read_repeat(folder.repeat(number), number=number, seed=first + number) for number in range(total))
        done = tuple(one for one in found if one is not None)
        return cls(total, done, {one.number: read_json(folder.repeat(one.number).result) for one in done})

    @property
    def goals(self) -> list[Goal]:
        """What was searched for; empty while none is done."""
        for result in self.results.values():
            return goals_of(result)
        return []

    @property
    def best(self) -> Repeat | None:
        """The best by the validation part; None while none is done."""
        return best_repeat(self.done, self.goals[0]) if self.done else None

    @property
    def comparison(self) -> Comparison | None:
        """Of all that are done; None of fewer than two."""
        return Comparison.of(self.done, self.goals[0]) if self.done else None

    @property
    def mean_values(self) -> dict[str, float]:
        """Of the networks found, as they are ranked: metrics of the validation part, and costs."""
        values = [one.found.values for one in self.done]
        names = [name for name in values[0] if all(name in one for one in values)]
        return {name: statistics.fmean(one[name] for one in values) for name in names}


def goals_of(result: Mapping[str, Any]) -> list[Goal]:
    """What a search was for, the first goal first. Raises KeyError, TypeError, ValueError: it tells something else."""
    found = [Goal(str(one["name"]), maximize=bool(one["maximize"])) for one in result["objectives"]]
    if not found:
        raise ValueError("no objective")
    return found


def write_repeats(folder: RunFolder, repeats: Repeats) -> None:
    """Write `result.json` of those that are done: one at least."""
    best, comparison = repeats.best, repeats.comparison
    assert best is not None
    any_result = repeats.results[best.number]
    write_json(
        folder.result,
        {
            "best": {**any_result["best"], "repeat": best.number, "seed": best.seed},
            "comparison": None if comparison is None else comparison.to_json(),
            "mean_values": repeats.mean_values,
            "asked": repeats.total,
            "repeats": [_entry(one, repeats) for one in repeats.done],
            "objectives": any_result["objectives"],
            "data": any_result.get("data"),
            "seconds": round(sum(one.seconds for one in repeats.done), 2),
            "versions": versions(),
        },
    )


def _entry(repeat: Repeat, repeats: Repeats) -> dict[str, Any]:
    result = repeats.results[repeat.number]
    sides = {"search": result["best"], "random_search": result["baseline"]}
    return {
        "repeat": repeat.number,
        "seed": repeat.seed,
        **{name: side and {key: side[key] for key in _PARTS if key in side} for name, side in sides.items()},
        "search_better_by": repeat.difference(repeats.goals[0]),
        "seconds": repeat.seconds,
    }


def show_repeats(console: Console, repeats: Repeats, folder: RunFolder, *, learns: bool) -> None:
    """The table, the sentence, the best network, and where things are.

    Args:
        learns: whether the searches knew earlier runs.
    """
    best, goal = repeats.best, repeats.goals[0]
    assert best is not None
    table = repeats_table(repeats.done, goal, best=best.number)
    console.print(terminal_table(f"{len(repeats.done)} of {repeats.total} repeats", table))
    comparison = repeats.comparison
    console.print("too few seeds to compare" if comparison is None else comparison.sentence(), soft_wrap=True)
    if learns:
        console.print(NOT_COUNTED, soft_wrap=True)
    say(console, "best", f" (repeat {best.number}, by the validation part): {headline(best.found)}")
    place = folder.repeat(best.number)
    rows = [("result", folder.result), ("weights", place.best), ("report", folder.report)]
    rows += [("network", place.export / "model.pt2")] if place.export.is_dir() else []
    for label, path in rows:
        console.print(f"  {label:8} {path}", soft_wrap=True)


def page_of_repeats(folder: RunFolder, *, is_running: bool) -> str:
    """The page of a folder of repeats, from what is in it; nothing in it is run or imported.

    Raises:
        StorageError: a file is missing or damaged.
    """
    saved = read_settings(folder.config)
    config = without_passwords_in(saved.whole)
    with parsing(folder.config, "the settings of repeats", advice="restore it"):
        repeats = Repeats.read(folder, config)
        summary = RepeatsSummary(
            pool=str(config["space"]["pool"]),
            folder=str(folder.root),
            made_at=time.time(),
            total=repeats.total,
            repeats=repeats.done,
            goal=repeats.goals[0] if repeats.done else None,
            is_running=is_running,
            learns=bool(value_of(config, "search.learn_from")),
            settings=changed_settings(config),
            commands=_commands(folder, saved, repeats),
            config=yaml_text(config),
            versions=versions(),
        )
    return render_repeats(summary)


def _commands(folder: RunFolder, saved: FolderSettings, repeats: Repeats) -> tuple[Command, ...]:
    own, run = typeable(saved.withheld), str(folder.root)
    is_over = len(repeats.done) == repeats.total
    more = {"search.repeats": 2 * repeats.total} if is_over else {}
    name = "Go on, to twice as many seeds" if is_over else "Go on, to the repeats asked for"
    found = [
        Command(name, resume_command("search", run, {**own, **more}), "What is done stays."),
        Command("Make this page again", command_line("report", {"run": run})),
    ]
    if repeats.best is not None:
        pool = {"space.pool": own["space.pool"]} if "space.pool" in own else {}
        found.append(Command("Score the best network again", command_line("evaluate", {"run": run, **pool})))
    return tuple(found)


def write_repeats_page(folder: RunFolder, console: Console, *, is_running: bool) -> None:
    """Write the page; one that cannot be made is told of, and costs no search."""
    try:
        write_atomically(folder.report, page_of_repeats(folder, is_running=is_running))
    except Exception as error:  # whatever it is, hours of search are worth more than a page
        text = str(error) if isinstance(error, L2LError) else without_passwords(traceback.format_exc())
        warn(console, f"no report.html: {one_line(text)}")
