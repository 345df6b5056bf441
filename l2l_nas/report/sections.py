"""The sections of a run's page, each from the summary alone; those that tell of networks are in `networks.py`."""

from __future__ import annotations

import base64
from collections.abc import Mapping

from l2l_nas.nas.objectives import State, counts, distinct
from l2l_nas.nas.strategies.coverage import SHARE
from l2l_nas.report.charts import GONE, best_so_far_chart, format_seconds, ranking_chart, share_bar, time_bar
from l2l_nas.report.importance import MIN_TRIALS, Effect
from l2l_nas.report.parts import lead, note, section, swatch
from l2l_nas.report.summary import Command, Summary
from l2l_nas.report.svg import Markup, join, tag
from l2l_nas.report.text import format_value

_MAX_CELLS = 6000  # of a heat map
_MAX_NUMBERS = 12  # trials named for a reason


def progress_section(summary: Summary) -> Markup:
    """The best value so far, over trials."""
    goal = summary.goals[0].name
    title = f"Best {goal} so far"
    shown = distinct(summary.records)
    if not shown:
        return section("progress", title, note("No trial has a score yet."))
    key: list[object] = [swatch("best"), "best; ", swatch(""), "other trial"]
    if not all(record.live for record in shown):
        key += ["; ", swatch("gone"), f"a trial {GONE}"]
    for state in State:
        if not state.has_score and any(record.state is state for record in summary.records):
            key += ["; ", tag("b", state.glyph, class_=f"glyph hue{state.hue}"), f" {state.label}"]
    return section(
        "progress",
        title,
        lead("Every trial with a score of its own, in the order they were made; the line is the best until then."),
        tag(
            "figure",
            tag("p", f"{goal}, trial score", class_="axis"),
            best_so_far_chart(summary),
            tag("p", "trial", class_="axis below"),
            tag("figcaption", *key),
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
        return section("importance", title, note(text))
    names = list(dict.fromkeys(name for position in summary.card.positions for name in position.candidates))
    names = [name for name in names if any(name in effect.means for effect in effects)]
    has_cells = len(names) * len(effects) <= _MAX_CELLS
    values = [record.values[goal] for record in summary.scored]
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
    return section(
        "importance",
        title,
        lead(
            f"How much of the variance of {goal} among trials the choice at a position explains by itself, chance "
            "taken out (epsilon squared of a one-way analysis of variance). The mark is what 19 of 20 shuffles of the "
            "scores stay below: a pale bar may be chance. Choices that a sampler makes together share their effects."
            f"{shared}"
        ),
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows), class_="heat"), class_="scroll", tabindex="0"),
        note(
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
        return section("coverage", title, note(text))
    if not steps and not summary.records:
        return section("coverage", title, note("Nothing was counted yet: that comes with the end of the warm-up."))
    head = tag("tr", tag("th", "position"), *(tag("th", name) for name in names))
    body = [_coverage_row(row, counts, names, use_steps=steps > 0) for row, counts in rows.items()]
    words = (
        "Steps of the warm-up that trained a candidate, and + the trials that chose it. Blue is more than the mean of "
        "its position, orange less; a red frame marks less than a third: such scores may be too low."
        if steps
        else "Trials that chose a candidate; no warm-up was counted. Blue is more than the mean of its position, "
        "orange less."
    )
    return section(
        "coverage",
        title,
        lead(words),
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
        return section("ranking", title, note(text))
    goal = summary.goals[0]
    verdict = (
        f"Kendall's tau is {_signed(ranking.tau)}: 1 is the same order, 0 no relation, \N{MINUS SIGN}1 the reverse."
        if ranking.tau is not None
        else "For Kendall's tau it takes three finalists that are not all equal."
    )
    return section(
        "ranking",
        title,
        lead(
            f"The finalists by their {goal.name} as trials (left, trial scores) and after further training (right, "
            f"validation). {verdict} They "
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
        lead(f"{format_seconds(total)} since the search began its work{often}. Saving counts where it happened."),
        tag("figure", time_bar(spent)),
        tag("table", tag("tbody", *rows)),
    ]
    if summary.timeline:
        source = "data:image/png;base64," + base64.b64encode(summary.timeline).decode()
        parts += [
            tag("h3", "The relay's lanes in the last steps"),
            tag("div", tag("img", src=source, alt="What each lane of the relay did"), class_="scroll"),
            note(join(["All steps: ", tag("code", "trace.json"), " in the run's folder, for chrome://tracing."])),
        ]
    return section("time", "Where the time went", *parts)


def reasons_section(summary: Summary) -> Markup:
    """Why trials have no score; empty where all have one."""
    reasons = summary.reasons()
    if not reasons:
        return Markup("")
    rows = []
    for reason in reasons:
        numbers = ", ".join(map(str, reason.trials[:_MAX_NUMBERS]))
        hidden = len(reason.trials) - _MAX_NUMBERS
        rows.append(
            tag(
                "tr",
                tag("td", len(reason.trials), class_="n"),
                tag("td", reason.state.meaning),
                tag("td", reason.text, class_="words"),
                tag("td", numbers + (f" and {hidden} more" if hidden > 0 else ""), class_="words"),
            )
        )
    head = tag("tr", *(tag("th", name) for name in ("trials", "outcome", "reason (of the first)", "numbers")))
    return section(
        "reasons",
        "Trials without a score",
        lead("Grouped by their reason; numbers in it may differ."),
        tag("div", tag("table", tag("thead", head), tag("tbody", *rows)), class_="scroll"),
    )


def commands_section(summary: Summary) -> Markup:
    """What to do next, to be pasted."""
    return section(
        "next",
        "What next",
        lead("Paths are as they were given: run these in the same folder."),
        *(_command(command) for command in summary.commands),
    )


def _command(command: Command) -> Markup:
    button = tag("button", "Copy", class_="copy", type="button", hidden=True)
    return join(
        [
            tag("h3", command.purpose),
            tag("div", tag("pre", tag("code", command.line)), button, class_="command"),
            note(command.note) if command.note else "",
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
        else note("All settings have their defaults.")
    )
    versions = ", ".join(f"{name} {text}" for name, text in summary.history.versions.items())
    return section(
        "settings",
        "Settings and versions",
        lead(f"Seed {summary.seed}. All settings stand in config.yaml; these differ from the defaults."),
        table,
        tag("p", versions, class_="note words"),
    )


def outcome_words(summary: Summary) -> str:
    """How the trials ended, such as "2 failed, 7 repeats"."""
    found = counts(summary.records)
    words = {**{state.value: state.label for state in State if not state.has_score}, "cached": "repeated"}
    return ", ".join(f"{found[state]:,} {word}" for state, word in words.items() if found[state]) or "none failed"


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")
