"""The charts of a run's page: best so far, Pareto front, finalists' ranks, where the time went."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from l2l_nas.cost.table import COUNTS, UNITS, with_unit
from l2l_nas.nas.objectives import Goal, TrialRecord, distinct
from l2l_nas.report.history import Spent
from l2l_nas.report.network import Network
from l2l_nas.report.plots import padded, short_count
from l2l_nas.report.summary import TEST, VALIDATION, Ranking, Summary
from l2l_nas.report.svg import Axis, Markup, Plot, percent, tag
from l2l_nas.report.text import format_choices, format_value, with_error

GONE = "with candidates that are gone from the space"
_HEIGHT_PX = 320.0
# more dots than these make a page slow to load and tell no more
_MAX_DOTS = 1500


def best_so_far_chart(summary: Summary) -> Markup:
    """Every trial by its number, and the best value of the first goal up to then; see `plots.best_so_far_figure`."""
    goal, records = summary.goals[0], summary.records
    scored = sorted(distinct(records), key=lambda record: record.number)
    values = [record.values[goal.name] for record in scored]
    silent = [record for record in records if not record.state.has_score]
    plot = Plot(
        _axis([record.number for record in records], below=0.02, above=0.02, is_count=True),
        _axis(values, below=0.16 if silent else 0.06, above=0.08),
        height_px=_HEIGHT_PX,
        label=f"{goal.name} by trial, and the best so far",
    )
    plot.draw_axes()
    for record in thinned(silent, ()):
        plot.add(
            tag("text", tag("title", tip(summary, record)), record.state.glyph, data_trial=record.number,
                class_=f"mark {record.state.value} hue{record.state.hue} middle", x=plot.left(record.number),
                y=plot.floor - 4)
        )  # fmt: skip
    stairs: list[tuple[float, float]] = []
    peaks: list[TrialRecord] = []
    for record in scored:
        value = record.values[goal.name]
        if record.live and (not stairs or goal.better(value, stairs[-1][1])):
            stairs.append((record.number, value))
            peaks.append(record)
    if stairs:
        plot.draw_stairs(stairs, until=max(record.number for record in records))
    for record in thinned(scored, peaks):
        is_best = bool(peaks) and record is peaks[-1]
        plot.draw_dot(
            record.number,
            record.values[goal.name],
            class_="best" if is_best else "trial" if record.live else "gone",
            tip=tip(summary, record),
            trial=record.number,
            radius=6.0 if is_best else 4.0,
        )
    return plot.markup()


def trial_chart(summary: Summary, goal: Goal, cost: Goal) -> Markup:
    """Trial scores of the first goal over another one; see `plots.pareto_figure`.

    Where networks were trained by themselves, those are the front one can use: then no front of the trials is drawn,
    and what was trained stands out.
    """
    records = summary.scored
    members = summary.trial_front
    chosen = {network.trial for network in summary.finalists}
    values = [record.values[goal.name] for record in records]
    plot = _plot_over(summary, goal, cost, values, is_final=False)
    if not chosen:
        edge = [record.values[cost.name] for record in records]
        _draw_front(plot, [(r.values[cost.name], r.values[goal.name]) for r in records], goal, cost, edge=edge)
    marked = [record for record in records if record.number in chosen] if chosen else members
    numbers = {record.number for record in marked}
    for record in thinned(records, marked):
        class_ = "trial" if record.number not in numbers else "chosen" if chosen else "front"
        plot.draw_dot(
            record.values[cost.name],
            record.values[goal.name],
            class_=class_,
            tip=tip(summary, record),
            trial=record.number,
            radius=6.0 if class_ == "front" else 4.0,
        )
    return plot.markup()


def finalist_chart(summary: Summary, goal: Goal, cost: Goal) -> Markup:
    """What finalists came to on the validation data over another goal, with error bars, and their front."""
    networks = summary.finalists
    reach = [(network.values[goal.name], network.error(VALIDATION, goal.name) or 0.0) for network in networks]
    values = [end for value, error in reach for end in (value - error, value + error)]
    plot = _plot_over(summary, goal, cost, values, is_final=True)
    places = [(network.values[cost.name], network.values[goal.name]) for network in networks]
    _draw_front(plot, places, goal, cost, edge=[x for x, _ in places])
    members = {network.trial for network in summary.final_front}
    for network, (x, y), (_, error) in zip(networks, places, reach, strict=True):
        plot.draw_error(x, y, error, trial=network.trial)
        plot.draw_dot(
            x,
            y,
            class_="front" if network.trial in members else "final",
            tip=network_tip(summary, network),
            trial=network.trial,
            radius=6.0,
        )
    return plot.markup()


def _plot_over(summary: Summary, goal: Goal, cost: Goal, values: Sequence[float], *, is_final: bool) -> Plot:
    """Axes for values of a goal over another: both kinds share those of what they have in common, a cost."""
    trials = [record.values[cost.name] for record in summary.scored]
    finals = [network.values[cost.name] for network in summary.finalists]
    is_common = all(cost.name in network.costs for network in summary.finalists)
    costs = [*trials, *finals] if is_common else finals if is_final else trials
    what = "validation after training" if is_final else "trial score"
    x = _cost_axis(costs, is_count=cost.name in COUNTS)
    y = _axis(values, below=0.06 if goal.maximize else 0.1, above=0.1 if goal.maximize else 0.06)
    plot = Plot(x, y, height_px=_HEIGHT_PX, label=f"{goal.name} ({what}) against {cost.name}")
    plot.draw_axes(x_labels=[short_count(value) for value in x.ticks()] if cost.name in COUNTS else None)
    return plot


def _draw_front(
    plot: Plot, places: Sequence[tuple[float, float]], goal: Goal, cost: Goal, *, edge: Sequence[float]
) -> None:
    """The best of the first goal for at most (at least) so much of the other; it goes on to the dearest."""
    stairs: list[tuple[float, float]] = []
    for x, y in sorted(places, key=lambda place: (-place[0] if cost.maximize else place[0], place[1])):
        if not stairs or goal.better(y, stairs[-1][1]):
            stairs = [*(stairs[:-1] if stairs and stairs[-1][0] == x else stairs), (x, y)]
    if cost.maximize:
        stairs = [(min(edge), stairs[-1][1]), *reversed(stairs)]
    plot.draw_stairs(stairs, until=stairs[-1][0] if cost.maximize else max(edge), is_upfront=cost.maximize)


def ranking_chart(ranking: Ranking, goal: Goal) -> Markup:
    """A line for each finalist, from its rank as a trial to that after further training."""
    pitch, head = 28.0, 22.0
    parts = [
        tag("text", "trial score", class_="tick", x="0", y=12.0),
        tag("text", "trained further, validation", class_="tick end", x="100%", y=12.0),
    ]

    def height(rank: int) -> float:
        return head + (rank + 0.5) * pitch

    winner = ranking.after[0]
    for rank, number in enumerate(ranking.before):
        later = ranking.after.index(number)
        score, value = (format_value(goal.name, values[number]) for values in (ranking.scores, ranking.values))
        class_ = "path best" if number == winner else "path"
        ends = {"x1": "40%", "x2": "60%", "y1": height(rank), "y2": height(later)}
        words = f"Trial {number}\n{goal.name} {score} as a trial (rank {rank + 1})\n{value} after (rank {later + 1})"
        parts.append(
            tag(
                "g",
                tag("title", words),
                tag("line", **ends),
                tag("circle", cx="40%", cy=height(rank), r=4.0),
                tag("circle", cx="60%", cy=height(later), r=4.0),
                tag("text", f"trial {number}", class_="small", x="0", y=height(rank) + 4),
                tag("text", score, class_="value end", x="36%", y=height(rank) + 4),
                tag("text", value, class_="value", x="64%", y=height(later) + 4),
                tag("text", f"trial {number}", class_="small end", x="100%", y=height(later) + 4),
                class_=class_,
                data_trial=number,
            )
        )
    total = head + len(ranking.before) * pitch + 4
    return tag("svg", *parts, class_="ranks", role="img", aria_label="ranks before and after", height=total)


def time_bar(spent: Sequence[Spent]) -> Markup:
    """Shares of the time side by side, as wide as they are long."""
    total = sum(part.seconds for part in spent) or 1.0
    parts = []
    begin = 0.0
    for index, part in enumerate(spent):
        share = part.seconds / total
        words = f"{part.name}\n{format_seconds(part.seconds)}, {share:.0%}"
        parts.append(
            tag("rect", tag("title", words), class_=f"part hue{index % 7}", x=percent(begin), y=0.0,
                width=percent(share), height=34.0)
        )  # fmt: skip
        begin += share
    return tag("svg", *parts, class_="bar", role="img", aria_label="where the time went", height=34.0)


def share_bar(share: float, chance: float) -> Markup:
    """A bar for a share of the variance, with a mark at what chance gives."""
    parts = [
        tag("rect", class_="track", x="0", y=3.0, width="100%", height=10.0, rx=2.0),
        tag("rect", class_="fill" if share > chance else "fill weak", x="0", y=3.0, width=percent(share), height=10.0,
            rx=2.0),
        tag("line", class_="chance", x1=percent(chance), x2=percent(chance), y1=0.0, y2=16.0),
    ]  # fmt: skip
    return tag("svg", *parts, class_="share", role="img", aria_label=f"{share:.0%}", height=16.0)


def tip(summary: Summary, record: TrialRecord) -> str:
    """What a dot says when one points at it."""
    values = summary.with_parameters(record).values
    lines = [f"Trial {record.number}"]
    lines += [
        f"trial score: {told(name, value)}" if name not in UNITS else told(name, value)
        for name, value in values.items()
    ]
    if not record.state.has_score:
        lines.append(f"{record.state.label}: {record.reason or record.state.meaning}")
    if not record.live:
        lines.append(GONE)
    return "\n".join([*lines, format_choices(record.architecture)])


def network_tip(summary: Summary, network: Network) -> str:
    """The same of a finalist."""
    goals = [goal.name for goal in summary.goals if goal.name not in network.costs]
    lines = [f"Trial {network.trial}, trained further"]
    for part in (VALIDATION, TEST):
        found = network.part(part)
        lines += [
            f"{part}: {name} {with_error(name, found[name], network.error(part, name))}"
            for name in goals
            if name in found
        ]
    lines += [told(name, value) for name, value in network.costs.items()]
    return "\n".join([*lines, format_choices(network.architecture)])


def told(name: str, value: float) -> str:
    """A value with its unit or its name."""
    return with_unit(name, value) if name in UNITS else f"{name} {format_value(name, value)}"


def thinned(records: Sequence[TrialRecord], kept: Iterable[TrialRecord]) -> list[TrialRecord]:
    """All records, or of very many an even choice, with those that must be among them; those come last, on top."""
    must = list(kept)
    numbers = {record.number for record in must}
    every = math.ceil(len(records) / _MAX_DOTS) or 1
    return [record for record in records[::every] if record.number not in numbers] + must


def format_seconds(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60) if seconds >= 3600 else int(seconds // 60)
    if seconds < 3600:
        return f"{minutes} min {seconds % 60:.0f} s" if seconds % 60 < 59.5 else f"{minutes + 1} min"
    return f"{minutes // 60:,} h {minutes % 60} min"


def _cost_axis(costs: Sequence[float], *, is_count: bool) -> Axis:
    """Logarithmic for numbers of parameters that span more than a decade."""
    if is_count and min(costs) > 0 and max(costs) > 10 * min(costs):
        margin = (max(costs) / min(costs)) ** 0.04
        return Axis(min(costs) / margin, max(costs) * margin, is_log=True)
    return _axis(costs, below=0.04, above=0.04, is_count=is_count)


def _axis(values: Sequence[float], *, below: float, above: float, is_count: bool = False) -> Axis:
    """Around values; those that differ in their last digits alone get as much room as one value."""
    if max(values) - min(values) < 1e-9 * max(map(abs, values)):
        values = values[:1]
    return Axis(*padded(values, below=below, above=above), is_count=is_count)
