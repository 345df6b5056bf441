"""The page of repeats of a search: what all tell together, and the way to the page of each."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from markupsafe import Markup

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.chart import Axis, Chart, Point, Series, axis_label
from l2l_nas.report.html.frame import asset, environment, policy
from l2l_nas.report.interval import LEVEL
from l2l_nas.report.network import NOT_COUNTED, TEST, Network
from l2l_nas.report.repeats import Comparison, Repeat, best_repeat, repeats_table
from l2l_nas.report.summary import Command, Setting


@dataclass(frozen=True)
class RepeatsSummary:
    """All that the page shows."""

    pool: str  # as the settings name it
    folder: str  # that of all
    made_at: float  # when, in seconds since 1970
    total: int  # how many repeats were asked for
    repeats: Sequence[Repeat]  # those that are done
    goal: Goal | None  # the first; None while none is done
    is_running: bool
    learns: bool  # whether the searches knew earlier runs
    settings: tuple[Setting, ...]  # those that differ from their defaults
    commands: tuple[Command, ...]  # what to do next
    config: str  # all settings, as `config.yaml` has them
    versions: Mapping[str, str]

    @property
    def state(self) -> str:
        """As the page says it."""
        if self.is_running:
            return "running"
        return "finished" if len(self.repeats) == self.total else "stopped"

    @cached_property
    def comparison(self) -> Comparison | None:
        """None of fewer than two seeds."""
        return Comparison.of(self.repeats, self.goal) if self.goal is not None else None


def render_repeats(summary: RepeatsSummary) -> str:
    """The page: a whole HTML document."""
    goal, script = summary.goal, asset("page.js")
    best = best_repeat(summary.repeats, goal) if goal is not None else None
    return (
        environment()
        .get_template("repeats.html.j2")
        .render(
            s=summary,
            goal=goal.name if goal is not None else "",
            not_counted=NOT_COUNTED,
            level=f"{100 * LEVEL:.0f} %",
            best=best,
            table=repeats_table(summary.repeats, goal, best=best.number) if goal is not None and best else None,
            chart=pairs_chart(summary.repeats, goal) if goal is not None else None,
            style=Markup(asset("page.css")),
            script=Markup(script),
            policy=policy(script),
            made=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.made_at)),
        )
    )


def pairs_chart(repeats: Sequence[Repeat], goal: Goal) -> Chart:
    """The search's network and that of random search, by seed, with the errors of the samples."""
    title = f"{goal.name} on the test part, by seed"
    sides: dict[tuple[str, str], list[tuple[Repeat, Network | None]]] = {
        ("trial", "random search"): [(one, one.beside) for one in repeats],
        ("best", "search"): [(one, one.found) for one in repeats],
    }
    series = [
        Series(
            style,
            tuple(
                _point(one, network, words, goal)
                for one, network in networks
                if network is not None and goal.name in network.part(TEST)
            ),
            words,
        )
        for (style, words), networks in sides.items()
    ]
    points = [point for one in series for point in one.points]
    if not points:
        return Chart(title, message="No repeat has a figure of the test part yet.")
    ends = [end for point in points for end in (point.y, *(point.reach or ()))]
    seeds = sorted({one.seed for one in repeats})
    marks = tuple((float(seed), str(seed)) for seed in seeds) if len(seeds) <= 12 else ()
    x = Axis("seed", seeds[0] - 0.5, seeds[-1] + 0.5, is_count=True, marks=marks)
    return Chart(title, x, Axis.around(axis_label(goal, TEST), ends, (0.05, 0.05)), tuple(series))


def _point(repeat: Repeat, network: Network, words: str, goal: Goal) -> Point:
    value, error = network.part(TEST)[goal.name], network.error(TEST, goal.name)
    reach = None if error is None else (value - error, value + error)
    tip = f"seed {repeat.seed}, {words}\n{goal.name} {network.scored(TEST, goal.name)}"
    beside = 0.08 if network is repeat.found else -0.08  # so that none hides the other
    return Point(repeat.seed + beside, value, reach, tip=tip, trial=repeat.number)
