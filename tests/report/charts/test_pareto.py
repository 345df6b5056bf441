from __future__ import annotations

import pytest

from l2l_nas.nas.objectives import Goal
from l2l_nas.report.charts.pareto import trade_off_charts
from tests.report.charts.reading import notes, places, styled
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, some_trials, trial
from tests.report.pages import card_of_pool, random_trials, results_of, summary_of


def test_the_front_is_a_staircase_that_goes_on_to_the_dearest_trial() -> None:
    dear = trial(7, {"accuracy": 0.8, "parameters": 20000}, "wide", "wide", "wide")
    (chart,) = trade_off_charts(results_of([*some_trials(), dear], [ACCURACY, PARAMETERS]), ACCURACY, PARAMETERS)
    assert sorted(places(styled(chart, "front"))) == [(70, 0.6), (126, 0.7), (12345, 0.9)]
    corners = [(70, 0.6), (126, 0.6), (126, 0.7), (12345, 0.7), (12345, 0.9), (20000, 0.9)]
    assert places(styled(chart, "stairs")) == corners
    assert sorted(places(styled(chart, "trial"))) == [(126, 0.5), (20000, 0.8)]
    assert notes(chart) == ["best: trial 2, accuracy 0.9000"]
    assert styled(chart, "front").label == "on the front, 3 of 5"


def test_where_more_of_the_second_goal_is_better_the_staircase_turns_round() -> None:
    throughput = Goal("throughput", maximize=True)
    records = [
        trial(number, {"loss": loss, "throughput": speed}, *middle)
        for number, (loss, speed, middle) in enumerate(
            [(1.0, 5, ["wide"] * 3), (2.0, 9, ["linear"] * 3), (3.0, 2, ["linear", "wide", "wide"])]
        )
    ]
    (chart,) = trade_off_charts(results_of(records, [LOSS, throughput]), LOSS, throughput)
    assert places(styled(chart, "stairs")) == [(9, 2.0), (5, 2.0), (5, 1.0), (2, 1.0)]


def test_a_search_for_one_goal_is_drawn_over_the_parameters_of_its_trials() -> None:
    results = results_of([trial(0, {"accuracy": 0.5}), trial(1)], [ACCURACY])
    (chart,) = trade_off_charts(results, *results.trade_offs[0])
    assert places(styled(chart, "front")) == [(126, 0.5)]
    assert chart.x is not None
    assert chart.x.label == "number of parameters (less is better)"


def test_finalists_have_a_chart_of_their_own_with_errors_and_the_front() -> None:
    card = card_of_pool()
    results = summary_of(card, random_trials(card, 30), num_finalists=4).results
    finals, trials = trade_off_charts(results, ACCURACY, PARAMETERS)
    points = [point for style in ("final", "front") for point in styled(finals, style).points]
    assert len(points) == 4
    for point in points:
        assert point.reach == pytest.approx((point.y - 0.0078, point.y + 0.0078))
    assert {point.trial for point in styled(trials, "chosen").points} == {point.trial for point in points}
    assert not any(series.style in ("stairs", "front") for series in trials.series)
    assert finals.x == trials.x
    winner = results.finalists[0]
    assert notes(finals) == [f"best: trial {winner.trial}, accuracy {winner.values['accuracy']:.4f}"]
    assert notes(trials) == []


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("latency_ms", "latency in ms (less is better)"),
    ],
)
def test_axes_tell_what_a_cost_is_and_its_unit(name: str, label: str) -> None:
    cost = Goal(name, maximize=False)
    trials = [trial(number, {"accuracy": number / 10, name: 1000.0 * (number + 1)}) for number in range(3)]
    (chart,) = trade_off_charts(results_of(trials, [ACCURACY, cost]), ACCURACY, cost)
    assert chart.x is not None
    assert chart.x.label == label


def test_without_a_complete_trial_there_is_a_message() -> None:
    (chart,) = trade_off_charts(results_of([trial(0)], [ACCURACY, PARAMETERS]), ACCURACY, PARAMETERS)
    assert chart.message == "no complete trial"
