"""The whole page: whole HTML, nothing from outside, nothing that runs but its own script."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from functools import partial

import pytest
from torch import nn

from l2l_nas import Architecture, Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.report.charts.tables import coded
from l2l_nas.report.html.view import render_page
from l2l_nas.report.network import Network, RandomBaseline, front, in_order
from l2l_nas.report.planned import Planned
from l2l_nas.report.styles import STYLES
from l2l_nas.report.text import format_seconds
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, small_pool, some_trials, trial
from tests.report.pages import (
    GONE,
    HOSTILE,
    Reader,
    card_of_pool,
    every_state,
    finalist_figures,
    random_trials,
    summary_of,
)
from tests.toys import Sum, cell_pool

PNG = b"\x89PNG\r\n\x1a\n and so on"
SECTIONS = ["finalists", "curves", "best", "pareto", "progress", "importance", "coverage"]
SECTIONS += ["time", "trials", "settings"]


PLAN = {
    "hardware": {"name": "h100", "sources": {"disk": "a data sheet"}},
    "pool_bytes": 3 << 20,
    "batch_size": 64,
    "rows": [
        {
            "name": name,
            "parameters": 1000 * size,
            "step_ms": 2.0 * size,
            "plain_ms": 1.5 * size,
            "device_bytes": size << 20,
            "host_bytes": size << 21,
            "binds": "host",
            "use": {"compute": 0.3, "host": 0.9, "disk": 0.0},
            "missing": "2 MiB of host memory, there is 1 MiB" if size > 2 else "",
        }
        for size, name in enumerate(("smallest", "median", "largest"), start=1)
    ],
}
PLANNED = Planned.from_json(PLAN)
THREE = (ACCURACY, LOSS, PARAMETERS)


def read(summary) -> Reader:
    reader = Reader(render_page(summary))
    reader.refuse_references()
    return reader


def summaries():
    card = card_of_pool()
    many = random_trials(card, 30)
    yield "finished", summary_of(card, many, num_finalists=4, timeline=PNG)
    yield "planned", summary_of(card, many, planned=PLANNED, planned_picture=PNG)
    yield "planned alone", summary_of(card, until="warm-up", running_at=101.0, planned=PLANNED)
    yield "nothing yet", summary_of(card, until="space", running_at=101.0)
    yield "in warm-up", summary_of(card, until="warm-up", running_at=101.0, done="step 1 of 5")
    yield "in search", summary_of(card, many[:4], until="search", running_at=130.0)
    yield "stopped", summary_of(card, some_trials(), until="search")
    yield "one trial", summary_of(card, many[:1], num_finalists=1)
    yield "no score", summary_of(card, [trial(0), trial(1)])
    yield "equal scores", summary_of(card, [replace(r, values=many[0].values) for r in many])
    yield "every state", summary_of(card, every_state(many))
    yield "three goals", summary_of(card, random_trials(card, 20, THREE), goals=THREE, num_finalists=4)
    yield "only gone", summary_of(card, [replace(many[0], architecture=GONE, in_space=False)])
    yield "no test part", summary_of(card, many, num_finalists=3, with_test=False)
    yield "one goal", summary_of(card, random_trials(card, 20, (LOSS,)), goals=(LOSS,))
    yield "two metrics", summary_of(card, random_trials(card, 20, (ACCURACY, LOSS)), goals=(ACCURACY, LOSS))
    yield "shared", summary_of(card_of_pool(small_pool(shared=True)), many, num_finalists=3)
    deep = card_of_pool(small_pool(40))
    yield "deep", summary_of(deep, random_trials(deep, 30), num_finalists=3)
    deeper = card_of_pool(small_pool(90))
    yield "folded", summary_of(deeper, random_trials(deeper, 30))


def test_a_network_that_is_no_chain_has_wires_where_it_reads_what_is_above_and_arcs_for_the_rest() -> None:
    card = card_of_pool(cell_pool())
    text = render_page(summary_of(card, random_trials(card, 20), num_finalists=3))
    drawings = re.findall(r'<svg class="blocks".*?</svg>', text, re.S)
    assert drawings
    for drawing in drawings:
        boxes, wires = len(re.findall('<g class="block ', drawing)), len(re.findall('<polyline class="wire"', drawing))
        assert boxes == len(card.positions)
        above = [set(card.positions[i - 1].writes) & set(p.reads) for i, p in enumerate(card.positions) if i]
        assert wires == 1 + sum(map(bool, above)) < boxes
        assert "c0_1 \N{LEFTWARDS ARROW} c0_0_1" in drawing or "c0_1 \N{LEFTWARDS ARROW} stem" in drawing


def test_a_layer_that_nothing_reads_is_not_among_the_used_ones() -> None:
    linear = Candidate("linear", partial(nn.Linear, 2, 2))
    positions = [
        Position("first", linear),
        Position("beside", linear),
        Position("sum", [Candidate("sum", Sum), skip()], reads=("first", "beside")),
        Position("last", linear),
    ]
    card = card_of_pool(LayerPool(positions, inputs=TensorSpec((2,))))
    for choice, used in (("sum", 4), ("skip", 2)):
        found = Architecture(("linear", "linear", choice, "linear"))
        values = {"accuracy": 0.5, "parameters": float(card.num_parameters(found))}
        text = render_page(summary_of(card, [TrialRecord(0, found, State.COMPLETE, values)]))
        assert f"{used} of 4 positions used" in text


@pytest.mark.parametrize(("name", "summary"), list(summaries()), ids=[name for name, _ in summaries()])
def test_a_page_is_whole_html_and_loads_nothing(name, summary) -> None:
    reader = read(summary)
    sections = [value for tag, key, value in reader.attributes if (tag, key) == ("section", "id")]
    assert [section for section in sections if section not in ("reasons", "plan")] == SECTIONS
    links = {value for tag, key, value in reader.attributes if (tag, key) == ("a", "href")}
    assert links == {f"#{section}" for section in sections if section != "reasons"}
    assert ("plan" in sections) == (summary.planned is not None)
    page = render_page(summary)
    assert not re.search(r"@import|url\(|https?://", page)
    assert page == render_page(summary)


def test_the_page_of_a_finished_run_says_what_was_found() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=4, pool="my_pool")
    reader = read(summary)
    assert summary.found is not None
    best = f"{summary.found.values['accuracy']:.4f}"
    test = f"{summary.found.values['accuracy'] - 0.02:.4f}"
    parameters = f"{card.num_parameters(summary.found.architecture):,}"
    said = f"Best network: accuracy {best} ± 0.0078 validation, {test} ± 0.0091 test, with {parameters} parameters"
    assert said in reader.text
    assert "1,796 1,077 training, 360 validation, 359 test" in reader.text
    assert f"1. accuracy {best}" in reader.text
    assert "so far" not in reader.text.split("Best accuracy so far")[0]
    assert "predict the finalists" not in reader.text  # which were chosen by these very scores
    assert reader.count("svg", "blocks") == 4
    assert reader.count("circle", "trial") + reader.count("circle", "chosen") + reader.count("circle", "best") == 60
    assert reader.count("circle", "front") + reader.count("circle", "final") == 4
    assert reader.count("line", "error") == 4
    assert reader.count("svg", "share") == 3  # positions with a choice


def test_finalists_of_several_rounds_stand_longest_first_with_their_steps() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    last, *others = summary.results.finalists[::-1]  # the one with the lowest score was trained longest
    rounds = {last.trial: 900, **{one.trial: 100 for one in others}}
    found = [replace(one, steps=rounds[one.trial]) for one in summary.results.finalists]
    ordered = in_order(found, [ACCURACY])
    assert ordered[0].trial == last.trial
    assert [one.trial for one in front(found, [ACCURACY])] == [last.trial]
    history = replace(summary.history, finalists=tuple(found))
    text = read(replace(summary, history=history, found=ordered[0])).text
    assert (
        "They were trained in rounds; after each round the best front within the errors of the scores went on." in text
    )
    table = text[text.index("Finalists These networks") : text.index("marks the winner")]
    assert table.index("900") < table.index("100")


def test_a_finalist_that_could_not_be_trained_further_is_named_with_its_reason() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    history = replace(summary.history, given_up={7: f"gradient is not finite {HOSTILE}"})
    text = read(replace(summary, history=history)).text
    assert "Trial 7 could not be trained to the end: gradient is not finite" in text
    assert "could not be trained" not in read(summary).text


def test_finalists_are_listed_with_every_score_in_a_column_of_its_own() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    text = read(summary).text
    table = text[text.index("Finalists These networks") : text.index("★ marks the winner")]
    heads = [f"accuracy, {kind}" for kind in ("trial score", "validation", "test")]
    heads += ["on the front", "parameters", "streamed bytes"]
    assert [table.index(head) for head in heads] == sorted(table.index(head) for head in heads)
    assert "14.2 KiB" in table
    for network in summary.results.finalists:
        shown = f"{network.trial_score['accuracy']:.4f} {network.part('validation')['accuracy']:.4f} ± 0.0078"
        assert f"{shown} {network.part('test')['accuracy']:.4f} ± 0.0091" in table
    assert f"★ {summary.results.finalists[0].trial} " in table
    assert table.count("★") == 1


def test_the_winner_stands_beside_the_best_of_random_search() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    winner = summary.results.finalists[0]
    best = replace(winner, trial=-1, validation={"accuracy": 0.5}, test={"accuracy": 0.4}, standard_error={})
    beside = replace(summary, history=replace(summary.history, baseline=RandomBaseline(1234, 700, best)))
    reader = read(beside)
    assert ("a", "href", "#baseline") in reader.attributes
    section = reader.text[reader.text.index("Beside random search") : reader.text.index("Best architectures")]
    assert "Random search with as many steps: 1,234 random networks, 700 steps in all" in section
    assert f"this search {winner.values['accuracy']:.4f} ± 0.0078" in section
    assert "random search 0.5000 0.4000" in section
    assert "accuracy than that of random search" in section
    assert "Beside random search" not in read(summary).text


def test_learning_curves_are_lines_that_belong_to_their_trials() -> None:
    card = card_of_pool()
    records = random_trials(card, 30)
    records += [replace(records[0], number=40, state=State.STOPPED, values={}, rungs={"5/20": {"accuracy": 0.4}})]
    summary = summary_of(card, records, num_finalists=3)
    finalists = [replace(one, rungs={9: {"accuracy": 0.5}, 30: {"accuracy": 0.6}}) for one in summary.results.finalists]
    reader = read(replace(summary, history=replace(summary.history, finalists=tuple(finalists)), found=finalists[0]))
    assert reader.count("line", "course") == 2
    assert {("line", "data-trial", str(one.trial)) for one in finalists} <= set(reader.attributes)
    assert reader.count("circle", "stopped") == 1
    without = read(summary_of(card, random_trials(card, 30), num_finalists=3)).text
    assert "search.finalist_rounds" in without
    assert "search.early_stop" in without


def test_without_a_test_part_there_is_no_such_column_and_a_line_says_so() -> None:
    card = card_of_pool()
    text = read(summary_of(card, random_trials(card, 30), num_finalists=3, with_test=False)).text
    assert "accuracy, test" not in text
    assert "these data have no test part" in text
    assert "measured once" not in text


def test_why_the_best_has_no_figures_of_the_test_part_is_said_in_the_head() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    best = {**finalist_figures(summary.records[0], with_test=False), "number": 0}
    found = Network.from_json({**best, "problems": {"test": f"on the test data, loss is nan {HOSTILE}"}})
    head = read(replace(summary, found=found)).text.split("Finalists These networks")[0]
    assert "The test part was not measured." in head
    assert "On the test data, loss is nan" in head


def test_trial_scores_and_trained_scores_share_no_axis() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 30), num_finalists=3)
    page = render_page(summary)
    charts = {
        label: page[page.index(f'aria-label="accuracy ({label}') :].split("</svg>")[0]
        for label in ("validation after training", "trial score")
    }
    assert "trained further" not in charts["trial score"]
    assert charts["validation after training"].count("trained further") == 3
    assert "trial score:" not in charts["validation after training"]
    assert charts["trial score"].count("trial score:") == 30


def test_every_state_of_a_trial_is_told_in_words_and_has_a_mark_and_a_key() -> None:
    card = card_of_pool()
    reader = read(summary_of(card, every_state(random_trials(card, 30))))
    for state in State:
        if not state.has_score:
            assert f"{STYLES[state].glyph} {state.label}" in reader.text
            assert f"1 {state.meaning} because {state.value}" in reader.text
            assert reader.count("text", state.value) == 1
    assert "with candidates that the space no longer has" in reader.text
    assert "no longer in the space: stem, old, wide, older, head" in reader.text
    assert reader.count("circle", "gone") == 1


def test_the_page_of_a_running_search_says_how_far_it_is() -> None:
    card = card_of_pool()
    summary = summary_of(
        card, random_trials(card, 3), until="search", running_at=130.0, done="trial 3 of 64", num_asked=64
    )
    reader = read(summary)
    assert "Now searching: trial 3 of 64." in reader.text
    assert "3 of 64" in reader.text
    assert "Best network so far" in reader.text
    assert "This needs at least 10 different scores." in reader.text
    assert "Finalists are trained after the trials." in reader.text
    assert reader.count("span", "running") == 1


def test_a_run_that_went_on_says_that_its_files_are_older() -> None:
    card = card_of_pool()
    records = random_trials(card, 12)
    found = summary_of(card, records, num_finalists=1).found
    assert "from before this run was resumed" in read(summary_of(card, records, until="search", found=found)).text
    assert "those of the run before" not in read(summary_of(card, records, until="search")).text


def test_trials_without_a_score_are_told_with_their_reasons() -> None:
    text = read(summary_of(card_of_pool(), some_trials())).text
    assert "Trials without a score" in text
    assert "too big" in text
    assert "1 refused, 1 failed, 1 repeated" in text
    assert "Trials without a score" not in read(summary_of()).text


def test_what_was_predicted_has_a_table_the_use_of_lanes_and_a_picture() -> None:
    reader = read(summary_of(planned=PLANNED, planned_picture=PNG))
    assert (
        "For h100 (a data sheet), with 64 samples a step. The whole pool takes 3.0 MiB of host memory." in reader.text
    )
    assert "largest 3,000 6 ms 4.5 ms 3.0 MiB 6.0 MiB host, 90% 2 MiB of host memory, there is 1 MiB" in reader.text
    assert "architecture compute host smallest 30% 90% median 30% 90%" in reader.text  # lanes that rest are left out
    source = next(value for tag, name, value in reader.attributes if (tag, name) == ("img", "src"))
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PNG


def test_without_anything_missing_there_is_no_such_column() -> None:
    fits = Planned.from_json({**PLAN, "rows": PLAN["rows"][:2]})
    assert "does not fit" not in read(summary_of(planned=fits)).text
    assert "does not fit" in read(summary_of(planned=PLANNED)).text


def test_the_picture_of_the_lanes_is_in_the_page_itself() -> None:
    reader = read(summary_of(timeline=PNG))
    source = next(value for tag, name, value in reader.attributes if (tag, name) == ("img", "src"))
    assert base64.b64decode(source.removeprefix("data:image/png;base64,")) == PNG
    assert "img" not in read(summary_of()).tags


def test_three_thousand_trials_have_a_row_each_with_their_architecture_in_a_page_of_one_megabyte() -> None:
    card = card_of_pool(small_pool(24))
    records = random_trials(card, 3100)
    page = render_page(summary_of(card, records, goals=(ACCURACY, PARAMETERS), num_finalists=8))
    table = page[page.index('<section id="trials">') : page.index('<section id="settings">')]
    assert table.count("<tr data-trial=") == 3000
    codes = re.findall(r'<td class="arch">\s*<small class="code">(\w+)</small>', table)
    names = json.loads(html.unescape(re.search(r"data-names='(.*?)'", table)[1]))
    assert [list(card.positions[n].candidates) for n in range(len(names))] == names
    assert [tuple(names[n][int(digit, 36)] for n, digit in enumerate(code)) for code in codes] == [
        record.architecture.choices for record in records[:3000]
    ]
    assert "The first 3,000 of 3,100; study.log has them all." in table
    assert "data-label" not in table  # the page's script adds them
    assert len(page) < 1_000_000


def test_candidates_of_two_digits_are_parted_by_points() -> None:
    layers = [Candidate(f"c{index}", nn.Identity) for index in range(40)]
    card = card_of_pool(LayerPool([Position("a", layers), Position("b", layers)], inputs=TensorSpec((4,))))
    gone = TrialRecord(1, Architecture(("x", "c1")), State.FAILED, in_space=False)
    assert coded(card, TrialRecord(0, Architecture(("c35", "c39")), State.FAILED)).words == "z.13"
    assert coded(card, TrialRecord(0, Architecture(("c35", "c2")), State.FAILED)).words == "z2"
    assert (coded(card, gone).words, coded(card, gone).is_code) == ("x, c1", False)


def test_what_failed_trials_have_in_common_stands_below_their_reasons() -> None:
    card = card_of_pool()
    good = [trial(n, {"accuracy": 0.5, "parameters": 1.0}, "wide", "linear", "wide") for n in range(2)]
    bad = [trial(2, None, "wide", "skip", "linear"), trial(3, None, "wide", "skip", "wide")]
    text = read(summary_of(card, [*good, *bad])).text
    assert "layer_01/skip (in 2 of 2)" in text
    assert "search.retire=[layer_01/skip]" in text
    assert "in common" not in read(summary_of(card, good)).text


def test_every_cell_of_a_narrow_screen_says_what_it_is() -> None:
    card = card_of_pool()
    reader = read(summary_of(card, random_trials(card, 30), num_finalists=3))
    labels = {value for tag, name, value in reader.attributes if (tag, name) == ("td", "data-label")}
    assert {"trial", "accuracy, trial score", "accuracy, test", "on the front", "outcome"} <= labels


@pytest.mark.slow
def test_very_many_trials_are_thinned_but_not_the_front() -> None:
    card = card_of_pool(small_pool(12))
    records = random_trials(card, 5000)
    page = render_page(summary_of(card, records, goals=(ACCURACY, PARAMETERS)))
    reader = Reader(page)
    assert reader.count("circle", "front") >= 2
    assert reader.count("circle", "best") == 1
    assert reader.count("circle", "trial") < 3100
    assert len(page) < 1_000_000


def test_equal_neighbours_of_a_deep_network_are_one_box() -> None:
    card = card_of_pool(small_pool(90))
    middle = ("wide",) * 60 + ("linear",) * 30
    reader = read(summary_of(card, [trial(0, {"accuracy": 0.5, "parameters": 5.0}, *middle)]))
    assert reader.tags.count("rect") - reader.count("rect", "part") == 4
    assert "wide \N{MULTIPLICATION SIGN} 60" in reader.text
    assert f"{60 * 76:,}" in reader.text


def test_what_differs_from_the_first_is_framed() -> None:
    records = [
        trial(0, {"accuracy": 0.9, "parameters": 5.0}, "wide", "wide", "skip"),
        trial(1, {"accuracy": 0.5, "parameters": 5.0}, "wide", "linear", "wide"),
    ]
    assert read(summary_of(card_of_pool(), records)).count("rect", "differs") == 2


def test_seconds_are_said_as_a_person_says_them() -> None:
    said = {0.04: "0.0 s", 9.94: "9.9 s", 59.4: "59 s", 60: "1 min 0 s", 119.7: "2 min", 3599: "59 min 59 s"}
    said |= {3661: "1 h 1 min", 90_000: "25 h 0 min"}
    assert {seconds: format_seconds(seconds) for seconds in said} == said


def test_without_a_warm_up_coverage_counts_trials() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 12))
    without = replace(summary, history=replace(summary.history, warmup={}))
    assert "no warm-up was counted" in read(without).text
    assert "no warm-up was counted" not in read(summary).text


def test_the_style_prints_everything() -> None:
    """Boxes that scroll on a screen are whole on paper, colours are held, what is closed or clicked is left out."""
    style = re.search(r"<style>(.*)</style>", render_page(summary_of()), re.DOTALL)
    assert style is not None
    on_paper = style[1][style[1].index("@media print") :]
    for rule in (
        "print-color-adjust: exact",
        ".scroll, .row { overflow: visible; max-height: none; }",
        "page-break-inside: avoid",
        "nav, button, #trials, #tip { display: none; }",
    ):
        assert rule in on_paper
    for hue in range(8):
        assert f".hue{hue} {{ --hue: #" in style[1]
    assert all(STYLES[state].hue in range(8) for state in State if not state.has_score)


def test_a_predicted_time_of_a_token_says_for_which_machine_it_is() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 4), num_finalists=1)
    best = summary.found
    found = replace(best, costs={**best.costs, "token_ms": 3.0})
    history = replace(summary.history, latency={"token_latency_ms": {best.trial: 12.0}}, finalists=(found,))
    text = read(replace(summary, history=history, found=found)).text
    assert re.search(r"12 ms\s+for search\.hardware 3 ms predicted", text), text[:900]
