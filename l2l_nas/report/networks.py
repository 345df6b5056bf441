"""The sections of a run's page that tell of networks: the best ones, the finalists, what the goals cost each other.

A trial's score and what a network came to by a training of its own never share a column or an axis.
"""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.report.blocks import blocks, legend, strip
from l2l_nas.report.charts import finalist_chart, told, trial_chart
from l2l_nas.report.network import Network, margin
from l2l_nas.report.parts import DASH, SCORES, lead, note, number, section, swatch, table
from l2l_nas.report.summary import TEST, VALIDATION, Summary
from l2l_nas.report.svg import Markup, tag
from l2l_nas.report.text import format_choices, format_value, heading, short_heading, with_error

_NUM_BEST = 5
_MAX_ROWS = 40  # of the table of a front
_MAX_TRIALS = 500  # of the table of all trials


def best_section(summary: Summary) -> Markup:
    """The best architectures side by side."""
    leaders = summary.leaders(_NUM_BEST)
    if not leaders:
        return section("best", "Best architectures", note("No trial has a score yet."))
    figures = []
    for rank, network in enumerate(leaders, start=1):
        first, *others = _about(summary, network)
        caption = tag("figcaption", tag("b", f"{rank}. {first}"), *(tag("span", line, tag("br")) for line in others))
        drawing = blocks(
            summary.card,
            network.architecture,
            first=leaders[0].architecture,
            label=f"Trial {network.trial}: {format_choices(network.architecture)}",
        )
        figures.append(tag("figure", caption, drawing, data_trial=network.trial))
    kinds = "Trained further, as finalists" if leaders[0].is_trained else "By the scores of their trials"
    return section(
        "best",
        "Best architectures",
        lead(f"{kinds}. In a box: the candidate, its parameters, the position, its output shape without the batch."),
        lead("A thick frame marks what differs from the first; dashed boxes are left out of the network."),
        legend(summary.card),
        tag("div", *figures, class_="row", tabindex="0", role="group", aria_label="Best architectures"),
    )


def _about(summary: Summary, network: Network) -> list[str]:
    """The value of the first goal, where it is from, and the other goals."""
    goal = summary.goals[0].name
    if network.is_trained:
        lines = [f"{goal} {format_value(goal, network.values[goal])}", f"trial {network.trial}, validation"]
        if goal in network.part(TEST):
            lines.append(f"test {with_error(goal, network.part(TEST)[goal], network.error(TEST, goal))}")
    else:
        lines = [f"{goal} {format_value(goal, network.values[goal])}", f"trial {network.trial}, trial score"]
    others = dict.fromkeys(["parameters", *(goal.name for goal in summary.goals[1:])])
    return lines + [told(name, network.values[name]) for name in others if name in network.values]


def finalists_section(summary: Summary) -> Markup:
    """What was trained further: every score beside its error, each kind in a column of its own."""
    finalists = summary.finalists
    if not finalists:
        text = "Nothing was trained further: search.finalists=0, or the search did not come to it."
        if summary.history.state == "running":
            text = "They are trained when the trials are done."
        return section("finalists", "Finalists", note(text))
    metrics = [
        goal.name for goal in summary.goals if any(goal.name in network.part(VALIDATION) for network in finalists)
    ]
    costs = list(dict.fromkeys(name for network in finalists for name in network.costs))
    has_test = any(network.test for network in finalists)
    has_errors = any(values for network in finalists for values in network.errors.values())
    parts = [VALIDATION, *([TEST] if has_test else [])]
    head = [tag("th", "trial", class_="n")]
    head += [tag("th", f"{name}, trial score", class_="n wrap") for name in metrics]
    head += [tag("th", f"{name}, {part}", class_="n wrap") for part in parts for name in metrics]
    in_rounds = len({network.steps for network in finalists}) > 1
    head.append(tag("th", "steps", class_="n") if in_rounds else tag("th", "on the front", class_="wrap"))
    head += [tag("th", short_heading(name), class_="n wrap") for name in costs]
    head.append(tag("th", "architecture"))
    members = {network.trial for network in summary.final_front}
    winner = finalists[0].trial if summary.is_finished else None
    rows = []
    for network in finalists:
        mark = [tag("b", "\N{BLACK STAR} ", title="the winner")] if network.trial == winner else []
        cells = [tag("td", *mark, network.trial, class_="n")]
        cells += [number(_value(name, network.trial_score.get(name)), class_="n pale") for name in metrics]
        for part in parts:
            found = network.part(part)
            errors = {name: network.error(part, name) for name in metrics}
            cells += [
                number(with_error(name, found[name], errors[name]) if name in found else DASH) for name in metrics
            ]
        is_member = tag("td", "yes" if network.trial in members else "")
        cells.append(number(f"{network.steps:,}") if in_rounds else is_member)
        cells += [number(_value(name, network.costs.get(name))) for name in costs]
        cells.append(_architecture(summary, network))
        rows.append(tag("tr", *cells, data_trial=network.trial, class_="won" if network.trial == winner else None))
    star = "\N{BLACK STAR} marks the winner, which the search wrote to its folder. " if winner is not None else ""
    return section(
        "finalists",
        "Finalists",
        lead(
            "Networks that were trained further, each on weights of its own. The search chose by the validation part: "
            "those numbers are too good by what choosing gains."
            + (" They were trained in rounds: after each, the better half went on." if in_rounds else "")
            + (" The test part was looked at once, at the end, and chose nothing." if has_test else "")
            + (" A \N{PLUS-MINUS SIGN} is one standard error of the samples." if has_errors else "")
        ),
        table(head, rows, is_whole=True),
        note(f"{star}{SCORES}"),
        *([] if has_test else [note(_no_test(summary))]),
    )


def baseline_section(summary: Summary) -> Markup:
    """The winner beside the best of random search of as many steps."""
    beside = summary.history.baseline
    if beside is None or not summary.finalists:
        return Markup("")
    winner, goal = summary.finalists[0], summary.goals[0].name
    parts = [part for part in (VALIDATION, TEST) if goal in winner.part(part) and goal in beside.best.part(part)]
    rows = []
    for name, network in (("this search", winner), ("random search", beside.best)):
        cells = [tag("td", name)]
        cells += [number(with_error(goal, network.part(part)[goal], network.error(part, goal))) for part in parts]
        cells += [number(_value("parameters", network.costs.get("parameters"))), _architecture(summary, network)]
        rows.append(tag("tr", *cells))
    head = [tag("th", ""), *(tag("th", f"{goal}, {part}", class_="n wrap") for part in parts)]
    head += [tag("th", short_heading("parameters"), class_="n wrap"), tag("th", "architecture")]
    return section(
        "baseline",
        "Beside random search",
        lead(
            f"Random search of as many training steps: {beside.networks:,} random networks of {beside.steps:,} steps "
            "each, from first weights. Both rows are the best on the validation part of what each came to."
        ),
        table(head, rows, is_whole=True),
        note(margin(winner, beside.best, summary.goals[0]) or _no_test(summary)),
    )


def _no_test(summary: Summary) -> str:
    if summary.history.samples.get(TEST):
        return "There is no test column: the test part was not measured."
    if summary.history.samples:
        return "There is no test column: these data have no test part, so that nothing here is free of the choosing."
    return "There is no test column: this run measured no test part, so that nothing here is free of the choosing."


def _value(name: str, value: float | None) -> str:
    return DASH if value is None else format_value(name, value)


def _architecture(summary: Summary, network: Network | TrialRecord) -> Markup:
    """A cell: the strip, and the names below it."""
    words = tag("small", format_choices(network.architecture))
    if isinstance(network, TrialRecord) and not network.live:
        return tag("td", tag("small", "gone from the space: ", class_="gone"), words, class_="arch")
    return tag("td", strip(summary.card, network.architecture), tag("br"), words, class_="arch")


def pareto_section(summary: Summary) -> Markup:
    """What the goals cost each other: the networks one can use, and apart from them the scores of trials."""
    names = [goal.name for goal in summary.aims]
    title = f"{names[0].capitalize()} against {' and '.join(names[1:])}"
    if not summary.scored:
        return section("pareto", title, note("No trial has a score yet."))
    finals = [_final_figure(summary, goal, cost) for goal, cost in summary.trade_offs] if summary.finalists else []
    trials = [_trial_figure(summary, goal, cost) for goal, cost in summary.trade_offs]
    beats = "in both" if len(names) == 2 else f"in all {len(names)}"
    parts: list[Markup] = []
    if finals:
        parts += [
            tag("h3", "The networks one can use"),
            lead(f"Finalists by what they came to. On the front are those that no other finalist beats {beats}."),
            tag("div", *finals, class_="split"),
            tag("h3", "What they were chosen from"),
        ]
    front = summary.trial_front
    hidden = f" The table ends after {_MAX_ROWS} of them." if len(front) > _MAX_ROWS else ""
    head = [tag("th", "trial", class_="n"), tag("th", f"{names[0]}, trial score", class_="n wrap")]
    for name in names[1:]:
        is_cost = all(name in network.costs for network in (*summary.finalists, *summary.leaders(1)))
        head.append(tag("th", heading(name) if is_cost else f"{name}, trial score", class_="n wrap"))
    rows = [_front_row(summary, record) for record in front[:_MAX_ROWS]]
    return section(
        "pareto",
        title,
        *parts,
        lead(
            f"Every dot is a trial with a score of its own; the table has those that no other trial beats {beats}. "
            f"Point at a dot to see its network.{hidden}"
        ),
        tag("div", *trials, table([*head, tag("th", "architecture")], rows), class_="split"),
    )


def _final_figure(summary: Summary, goal: Goal, cost: Goal) -> Markup:
    few = f"on the front, {len(summary.final_front)} of {len(summary.finalists)}; "
    caption = [swatch("best"), few, swatch("final"), "other finalists; the bars are one standard error"]
    if not any(network.error(VALIDATION, goal.name) for network in summary.finalists):
        caption[-1] = "other finalists"
    return _figure(goal, cost, "validation, after training", finalist_chart(summary, goal, cost), caption)


def _trial_figure(summary: Summary, goal: Goal, cost: Goal) -> Markup:
    marked: Sequence[object] = (swatch("chosen"), "trained further as a finalist; ")
    if not summary.finalists:
        marked = (swatch("best"), f"on the front, {len(summary.trial_front)} of {len(summary.scored)}; ")
    return _figure(goal, cost, "trial score", trial_chart(summary, goal, cost), [*marked, swatch(""), "other trials"])


def _figure(goal: Goal, cost: Goal, what: str, chart: Markup, caption: Sequence[object]) -> Markup:
    better = {True: "more", False: "less"}
    return tag(
        "figure",
        tag("p", f"{goal.name}, {what} ({better[goal.maximize]} is better)", class_="axis"),
        chart,
        tag("p", f"{heading(cost.name)} ({better[cost.maximize]} is better)", class_="axis below"),
        tag("figcaption", *caption),
        class_="chart",
    )


def _front_row(summary: Summary, record: TrialRecord) -> Markup:
    cells = [number(f"{record.number}")]
    cells += [number(format_value(goal.name, record.values[goal.name]), class_="n") for goal in summary.aims]
    return tag("tr", *cells, _architecture(summary, record), data_trial=record.number)


def trials_section(summary: Summary) -> Markup:
    """Every trial as a row, to be unfolded."""
    records = summary.records
    if not records:
        return section("trials", "All trials", note("No trial is finished yet."))
    names = [goal.name for goal in summary.aims]
    head = [tag("th", "trial", class_="n"), tag("th", "outcome")]
    head += [tag("th", heading(name), class_="n wrap") for name in names]
    head += [tag("th", "seconds", class_="n"), tag("th", "architecture")]
    rows = []
    for record in records[:_MAX_TRIALS]:
        values = summary.with_parameters(record).values
        outcome = f"{record.state.label}, repeated" if record.cached else record.state.label
        cells = [number(f"{record.number}"), tag("td", outcome, title=record.reason or None)]
        cells += [number(_value(name, values.get(name))) for name in names]
        cells += [number(f"{record.seconds:.2f}"), _architecture(summary, record)]
        rows.append(tag("tr", *cells, data_trial=record.number))
    more = (
        f" The first {_MAX_TRIALS:,} of {len(records):,}; study.db has them all." if len(records) > _MAX_TRIALS else ""
    )
    return section(
        "trials",
        "All trials",
        lead(f"Scores are trial scores.{more}"),
        tag("details", tag("summary", f"Show {min(len(records), _MAX_TRIALS):,} trials"), table(head, rows)),
    )


def outcome(summary: Summary) -> Markup:
    """What the numbers in the headline are."""
    best = summary.best
    if best is None:
        return Markup("")
    if not best.is_trained:
        return lead(SCORES)
    errors = "a \N{PLUS-MINUS SIGN} is one standard error of the samples"
    if best.test:
        return lead(f"Validation is what the search chose by, test was looked at once, at the end; {errors}.")
    return lead(_no_test(summary).replace("There is no test column: t", "T"))
