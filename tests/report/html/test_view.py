"""The whole page: whole HTML, nothing from outside, nothing that runs but its own script."""

from __future__ import annotations

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
from l2l_nas.report.network import Network, RandomBaseline
from l2l_nas.report.styles import MARKS
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

SECTIONS = ["finalists", "curves", "best", "pareto", "trials", "time", "settings"]
THREE = (ACCURACY, LOSS, PARAMETERS)


def read(summary) -> Reader:
    reader = Reader(render_page(summary))
    reader.refuse_references()
    return reader


def summaries():
    card = card_of_pool()
    many = random_trials(card, 30)
    yield "finished", summary_of(card, many, num_finalists=4)
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
    assert sections == SECTIONS
    links = {value for tag, key, value in reader.attributes if (tag, key) == ("a", "href")}
    assert links == {f"#{section}" for section in sections}
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
    assert reader.count("svg", "blocks") == 4
    assert reader.count("circle", "trial") + reader.count("circle", "chosen") + reader.count("circle", "best") == 60
    assert reader.count("circle", "front") + reader.count("circle", "final") == 4
    assert reader.count("line", "error") == 4


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
    kinds = {label: re.findall(r'<circle class="dot (\w+)"', chart) for label, chart in charts.items()}
    assert len(kinds["validation after training"]) == 3
    assert set(kinds["validation after training"]) <= {"final", "front"}
    assert len(kinds["trial score"]) == 30
    assert set(kinds["trial score"]) == {"trial", "chosen"}


def test_every_state_of_a_trial_is_told_in_words_and_has_a_mark_and_a_key() -> None:
    card = card_of_pool()
    reader = read(summary_of(card, every_state(random_trials(card, 30))))
    for state in State:
        if not state.has_score:
            assert f"{MARKS[state][1]} {state.label}" in reader.text
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


def test_three_thousand_trials_have_a_row_each_with_their_architecture_in_a_page_of_one_megabyte() -> None:
    card = card_of_pool(small_pool(24))
    records = random_trials(card, 3100)
    page = render_page(summary_of(card, records, goals=(ACCURACY, PARAMETERS), num_finalists=8))
    table = page[page.index('<section id="trials">') : page.index('<section id="time">')]
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


def test_a_predicted_time_of_a_token_says_for_which_machine_it_is() -> None:
    card = card_of_pool()
    summary = summary_of(card, random_trials(card, 4), num_finalists=1)
    best = summary.found
    found = replace(best, costs={**best.costs, "token_ms": 3.0})
    history = replace(summary.history, latency={"token_latency_ms": {best.trial: 12.0}}, finalists=(found,))
    text = read(replace(summary, history=history, found=found)).text
    assert re.search(r"12 ms\s+for search\.hardware 3 ms predicted", text), text[:900]
