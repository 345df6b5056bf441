"""The sections of a run's page, each from the summary alone."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from l2l_nas.report.blocks import blocks, legend, strip
from l2l_nas.report.charts import (
    best_so_far_chart,
    format_seconds,
    pareto_chart,
    ranking_chart,
    share_bar,
    time_bar,
)
from l2l_nas.report.history import Scored
from l2l_nas.report.importance import MIN_TRIALS, Effect
from l2l_nas.report.summary import Command, Summary
from l2l_nas.report.svg import Markup, join, tag
from l2l_nas.report.text import format_choices, format_value
from l2l_nas.search.coverage import SHARE
from l2l_nas.search.records import TrialRecord, counts, distinct, pareto_front

_NUM_BEST = 5
_MAX_ROWS = 40  # of the table of the front
_MAX_CELLS = 6000  # of a heat map
_MAX_NUMBERS = 12  # trials named for a reason


def best_section(summary: Summary) -> Markup:
    """The best architectures side by side."""
    leaders = summary.leaders(_NUM_BEST)
    if not leaders:
        return _section("best", "Best architectures", _note("No trial has a score yet."))
    figures = []
    for rank, entry in enumerate(leaders, start=1):
        figures.append(
            tag(
                "figure",
                tag("figcaption", tag("b", f"{rank}. {_value(summary, entry)}"), *_about(summary, entry)),
                blocks(
                    summary.card,
                    entry.architecture,
                    first=leaders[0].architecture,
                    label=f"Trial {entry.trial}: {format_choices(entry.architecture)}",
                ),
                data_trial=entry.trial,
            )
        )
    finals = sum(entry.is_final for entry in leaders)
    kinds = (
        f"The first {finals} were trained further, as finalists; the others have the scores of their trials"
        if 0 < finals < len(leaders)
        else "All were trained further, as finalists"
        if finals
        else "With the scores of their trials"
    )
    return _section(
        "best",
        "Best architectures",
        _lead(f"{kinds}. In a box: the candidate, its parameters, the position, its output shape without the batch."),
        _lead("A thick frame marks what differs from the first; dashed boxes are left out of the network."),
        legend(summary.card),
        tag("div", *figures, class_="row", tabindex="0", role="group", aria_label="Best architectures"),
    )


def _value(summary: Summary, entry: Scored) -> str:
    goal = summary.goals[0].name
    return f"{goal} {format_value(goal, entry.values[goal])}"


def _about(summary: Summary, entry: Scored) -> list[Markup]:
    parameters = format_value("parameters", summary.card.num_parameters(entry.architecture))
    how = "trained further" if entry.is_final else "as a trial"
    lines = [f"trial {entry.trial}, {how}", f"{parameters} parameters"]
    second = summary.axes[1].name
    if second != "parameters" and second in entry.values:
        lines.append(f"{second} {format_value(second, entry.values[second])}")
    return [tag("span", line, tag("br")) for line in lines]


def pareto_section(summary: Summary) -> Markup:
    """The front as a chart and as a table."""
    goal, cost = summary.axes
    complete = [summary.with_parameters(record) for record in distinct(summary.records)]
    title = f"{goal.name.capitalize()} against {cost.name}"
    if not complete:
        return _section("pareto", title, _note("No trial has a score yet."))
    front = pareto_front(complete, summary.axes)
    better = {True: "more", False: "less"}
    chart = tag(
        "figure",
        tag("p", f"{goal.name} ({better[goal.maximize]} is better)", class_="axis"),
        pareto_chart(summary),
        tag("p", f"{cost.name} ({better[cost.maximize]} is better)", class_="axis below"),
        tag("figcaption", _swatch("best"), f"on the front, {len(front)} of {len(complete)}; ", _swatch(""), "others"),
        class_="chart",
    )  # fmt: skip
    rows = [_front_row(summary, record) for record in front]
    header = ["trial", goal.name, cost.name] + (["after"] if summary.history.finalists else [])
    head = tag("tr", *(tag("th", name, class_="n") for name in header), tag("th", "architecture"))
    shown = tag("table", tag("thead", head), tag("tbody", *rows[:_MAX_ROWS]))
    after = " After: what finalists came to." if summary.history.finalists else ""
    more = f" The table ends after {_MAX_ROWS} of them." if len(rows) > _MAX_ROWS else ""
    return _section(
        "pareto",
        title,
        _lead(
            "Every dot is a trial with a score of its own. On the front are those that no other trial beats "
            f"in both. Point at a dot to see its network.{after}{more}"
        ),
        tag("div", chart, tag("div", shown, class_="scroll", tabindex="0"), class_="split"),
    )


def _front_row(summary: Summary, record: TrialRecord) -> Markup:
    goal, cost = summary.axes
    cells = [tag("td", record.number, class_="n")]
    cells += [tag("td", format_value(g.name, record.values[g.name]), class_="n") for g in (goal, cost)]
    if summary.history.finalists:
        finals = {entry.trial: entry.values[goal.name] for entry in summary.history.finalists}
        text = format_value(goal.name, finals[record.number]) if record.number in finals else "\N{EN DASH}"
        cells.append(tag("td", text, class_="n"))
    words = tag("small", format_choices(record.architecture))
    cells.append(tag("td", strip(summary.card, record.architecture), tag("br"), words, class_="arch"))
    return tag("tr", *cells, data_trial=record.number)


def progress_section(summary: Summary) -> Markup:
    """The best value so far, over trials."""
    goal = summary.goals[0].name
    title = f"Best {goal} so far"
    if not distinct(summary.records):
        return _section("progress", title, _note("No trial has a score yet."))
    marks = {"failed": "failed", "pruned": "refused by a constraint"}
    found = [words for state, words in marks.items() if any(record.state == state for record in summary.records)]
    extra = f"; marks at the bottom: {', '.join(found)}" if found else ""
    return _section(
        "progress",
        title,
        _lead("Every trial with a score of its own, in the order they were made; the line is the best until then."),
        tag(
            "figure",
            tag("p", goal, class_="axis"),
            best_so_far_chart(summary),
            tag("p", "trial", class_="axis below"),
            tag("figcaption", _swatch("best"), "best; ", _swatch(""), "other trial", extra),
            class_="chart",
        ),
    )


def importance_section(summary: Summary) -> Markup:
    """How much each position's choice did, and the mean score of every candidate."""
    title = "Which positions matter"
    effects = summary.effects()
    goal = summary.goals[0].name
    if not effects:
        text = f"This takes at least {MIN_TRIALS} different scores."
        return _section("importance", title, _note(text))
    names = list(dict.fromkeys(name for position in summary.card.positions for name in position.candidates))
    names = [name for name in names if any(name in effect.means for effect in effects)]
    has_cells = len(names) * len(effects) <= _MAX_CELLS
    values = [record.values[goal] for record in distinct(summary.records)]
    middle = sum(values) / len(values)
    widest = max(abs(mean - middle) for effect in effects for mean in effect.means.values()) or 1.0
    rows = [
        _effect_row(summary, effect, names if has_cells else [], middle=middle, widest=widest) for effect in effects
    ]
    head = tag("tr", tag("th", "position"), tag("th", "share", class_="n"), tag("th", "explained"),
               *(tag("th", name) for name in names if has_cells))  # fmt: skip
    shared = (
        " In this space one set of layers serves all positions, and skips stand last: late positions tell of depth."
        if summary.card.shared
        else ""
    )
    return _section(
        "importance",
        title,
        _lead(
            f"How much of the variance of {goal} among trials the choice at a position explains by itself, chance "
            "taken out (epsilon squared of a one-way analysis of variance). The mark is what 19 of 20 shuffles of the "
            "scores stay below: a pale bar may be chance. Choices that a sampler makes together share their effects."
            f"{shared}"
        ),
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows), class_="heat"), class_="scroll", tabindex="0"),
        _note(
            f"Cells: mean {goal} of the trials with this candidate, and how many they are; blue is better than the "
            "mean of all, orange worse."
        )
        if has_cells
        else Markup(""),
    )


def _effect_row(summary: Summary, effect: Effect, names: list[str], *, middle: float, widest: float) -> Markup:
    """A row of the table: the share, and a cell for each name, as dark as its mean is far from `middle`."""
    goal = summary.goals[0]
    offered = next(p.candidates for p in summary.card.positions if p.name == effect.position)
    cells = [tag("th", effect.position), tag("td", f"{effect.share:.0%}", class_="n")]
    cells.append(tag("td", share_bar(effect.share, effect.chance), class_="bar"))
    for name in names:
        if name not in effect.means:
            cells.append(
                tag("td", "\N{EN DASH}" if name in offered else "", class_=None if name in offered else "none")
            )
            continue
        mean = effect.means[name]
        heat = 0.6 * abs(mean - middle) / widest
        is_better = mean == middle or goal.better(mean, middle)
        text = f"{mean:.3f}" if 1e-2 <= abs(mean) < 1e3 else format_value(goal.name, mean)
        cells.append(
            tag("td", text, " ", tag("small", effect.counts[name]), class_="up" if is_better else "down",
                style=f"--heat:{heat:.2f}")
        )  # fmt: skip
    return tag("tr", *cells)


def coverage_section(summary: Summary) -> Markup:
    """How often each candidate was trained."""
    title = "How often each candidate was trained"
    rows = {row: counts for row, counts in summary.coverage().items() if len(counts) > 1}
    names = list(dict.fromkeys(name for counts in rows.values() for name in counts))
    steps = sum(sum(step for step, _ in counts.values()) for counts in rows.values())
    if not rows or len(rows) * len(names) > _MAX_CELLS:
        text = "No position has a choice." if not rows else "This space is too large for such a table."
        return _section("coverage", title, _note(text))
    if not steps and not summary.records:
        return _section("coverage", title, _note("Nothing was counted yet: that comes with the end of the warm-up."))
    head = tag("tr", tag("th", "position"), *(tag("th", name) for name in names))
    body = [_coverage_row(row, counts, names, use_steps=steps > 0) for row, counts in rows.items()]
    lead = (
        "Steps of the warm-up that trained a candidate, and + the trials that chose it. Blue is more than the mean of "
        "its position, orange less; a red frame marks less than a third: such scores may be too low."
        if steps
        else "Trials that chose a candidate; no warm-up was counted. Blue is more than the mean of its position, "
        "orange less."
    )
    return _section(
        "coverage",
        title,
        _lead(lead),
        tag("div", tag("table", tag("thead", head), tag("tbody", *body), class_="heat"), class_="scroll", tabindex="0"),
    )


def _coverage_row(row: str, counts: Mapping[str, tuple[int, int]], names: list[str], *, use_steps: bool) -> Markup:
    measured = {name: pair[0] if use_steps else pair[1] for name, pair in counts.items()}
    mean = sum(measured.values()) / len(measured)
    cells = [tag("th", row)]
    for name in names:
        if name not in counts:
            cells.append(tag("td", class_="none"))
            continue
        steps, trials = counts[name]
        heat = min(0.6, 0.6 * abs(measured[name] / mean - 1)) if mean else 0.0
        side = "up" if measured[name] >= mean else "down"
        scarce = " scarce" if use_steps and steps < SHARE * mean else ""
        words: list[object] = [f"{steps:,} ", tag("small", f"+{trials:,}")] if use_steps else [f"{trials:,}"]
        cells.append(tag("td", *words, class_=f"{side}{scarce}", style=f"--heat:{heat:.2f}"))
    return tag("tr", *cells)


def ranking_section(summary: Summary) -> Markup:
    """How well trial scores foretold the finalists' values."""
    title = "Did trial scores foretell the finalists?"
    ranking = summary.ranking()
    if ranking is None:
        text = "This takes at least two finalists."
        if summary.history.state == "running":
            text = "That is known once finalists are trained."
        return _section("ranking", title, _note(text))
    goal = summary.goals[0]
    verdict = (
        f"Kendall's tau is {_signed(ranking.tau)}: 1 is the same order, 0 no relation, \N{MINUS SIGN}1 the reverse."
        if ranking.tau is not None
        else "For Kendall's tau it takes three finalists that are not all equal."
    )
    return _section(
        "ranking",
        title,
        _lead(
            f"The finalists by their {goal.name} as trials (left) and after further training (right). {verdict} They "
            "are the best trials, close to each other: their order says less than that of all trials would."
        ),
        tag("figure", ranking_chart(ranking, goal), class_="narrow"),
    )


def time_section(summary: Summary) -> Markup:
    """Where the time went."""
    spent = summary.history.spent
    total = summary.history.seconds
    rows = [
        tag(
            "tr",
            tag("td", tag("span", class_=f"swatch square hue{index % 7}"), part.name),
            tag("td", format_seconds(part.seconds), class_="n"),
            tag("td", f"{part.seconds / total:.1%}", class_="n"),
        )
        for index, part in enumerate(spent)
    ]
    sessions = summary.history.sessions
    often = f", in {sessions} sessions" if sessions > 1 else ""
    parts = [
        _lead(f"{format_seconds(total)} since the search began its work{often}. Saving counts where it happened."),
        tag("figure", time_bar(spent)),
        tag("table", tag("tbody", *rows)),
    ]
    if summary.timeline:
        source = "data:image/png;base64," + base64.b64encode(summary.timeline).decode()
        parts += [
            tag("h3", "The relay's lanes in the last steps"),
            tag("div", tag("img", src=source, alt="What each lane of the relay did"), class_="scroll"),
            _note(join(["All steps: ", tag("code", "trace.json"), " in the run's folder, for chrome://tracing."])),
        ]
    return _section("time", "Where the time went", *parts)


def reasons_section(summary: Summary) -> Markup:
    """Why trials have no score; empty where all have one."""
    reasons = summary.reasons()
    if not reasons:
        return Markup("")
    words = {"pruned": "refused before training", "failed": "failed"}
    rows = []
    for reason in reasons:
        numbers = ", ".join(map(str, reason.trials[:_MAX_NUMBERS]))
        hidden = len(reason.trials) - _MAX_NUMBERS
        rows.append(
            tag(
                "tr",
                tag("td", len(reason.trials), class_="n"),
                tag("td", words[reason.state]),
                tag("td", reason.text, class_="words"),
                tag("td", numbers + (f" and {hidden} more" if hidden > 0 else ""), class_="words"),
            )
        )
    head = tag("tr", *(tag("th", name) for name in ("trials", "outcome", "reason (of the first)", "numbers")))
    return _section(
        "reasons",
        "Trials without a score",
        _lead("Grouped by their reason; numbers in it may differ."),
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
    )


def commands_section(summary: Summary) -> Markup:
    """What to do next, to be pasted."""
    return _section(
        "next",
        "What next",
        _lead("Paths are as they were given: run these in the same folder."),
        *(_command(command) for command in summary.commands),
    )


def _command(command: Command) -> Markup:
    button = tag("button", "Copy", class_="copy", type="button", hidden=True)
    return join(
        [
            tag("h3", command.purpose),
            tag("div", tag("pre", tag("code", command.line)), button, class_="command"),
            _note(command.note) if command.note else "",
        ]
    )


def settings_section(summary: Summary) -> Markup:
    """Settings that differ from the defaults, the seed, the versions."""
    rows = [
        tag("tr", tag("td", tag("code", s.name)), tag("td", tag("code", s.value), class_="words"),
            tag("td", tag("code", s.default)), tag("td", s.meaning))
        for s in summary.settings
    ]  # fmt: skip
    head = tag("tr", *(tag("th", name) for name in ("setting", "here", "default", "meaning")))
    table = (
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll")
        if rows
        else _note("All settings have their defaults.")
    )
    versions = ", ".join(f"{name} {text}" for name, text in summary.history.versions.items())
    return _section(
        "settings",
        "Settings and versions",
        _lead(f"Seed {summary.seed}. All settings stand in config.yaml; these differ from the defaults."),
        table,
        tag("p", versions, class_="note words"),
    )


def outcome_words(summary: Summary) -> str:
    """How the trials ended, such as "2 failed, 7 repeats"."""
    found = counts(summary.records)
    words = {"pruned": "refused", "failed": "failed", "cached": "repeated"}
    return ", ".join(f"{found[state]:,} {word}" for state, word in words.items() if found[state]) or "none failed"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def _section(name: str, title: str, *parts: Markup) -> Markup:
    return tag("section", tag("h2", title), *parts, id=name)


def _lead(text: str) -> Markup:
    return tag("p", text, class_="lead")


def _note(text: str) -> Markup:
    return tag("p", text, class_="note")


def _swatch(kind: str) -> Markup:
    return tag("span", class_=f"swatch {kind}".strip())
