from __future__ import annotations

import io

import pytest

from l2l_nas.nas.objectives import Goal, TrialRecord
from tests.report.examples import ACCURACY, LOSS, PARAMETERS, some_trials, trial

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.lines import Line2D

from l2l_nas.report.figures import png_bytes
from l2l_nas.report.plots import best_so_far_figure, pareto_figure, with_parameters


def line(figure: Figure, label: str) -> Line2D:
    return next(item for item in figure.axes[0].lines if item.get_label() == label)


def points(item: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(item.get_xdata(), item.get_ydata(), strict=True)]


def stairs(figure: Figure) -> Line2D:
    return next(item for item in figure.axes[0].lines if item.get_drawstyle() != "default")


def assert_drawn(figure: Figure) -> None:
    pixels = imread(io.BytesIO(png_bytes(figure)))
    assert 0.0005 < (pixels[..., :3].min(axis=-1) < 0.6).mean() < 0.5  # ink on white


def texts(figure: Figure) -> str:
    return " ".join(item.get_text() for item in [*figure.texts, *(t for axes in figure.axes for t in axes.texts)])


def test_every_trial_is_in_the_picture_in_its_own_way() -> None:
    figure = best_so_far_figure(some_trials(), [ACCURACY, PARAMETERS])
    assert points(line(figure, "complete")) == [(0, 0.5), (2, 0.9), (5, 0.7), (6, 0.6)]
    assert points(line(figure, "cached: seen before")) == [(3, 0.5)]
    assert list(line(figure, "failed").get_xdata()) == [1]
    assert list(line(figure, "refused").get_xdata()) == [4]
    assert points(line(figure, "best")) == [(2, 0.9)]
    assert "0.9000 (trial 2), 7 trials" in figure.axes[0].get_title(loc="left")
    assert_drawn(figure)


@pytest.mark.parametrize(("goal", "steps"), [(ACCURACY, [0.5, 0.9, 0.9]), (LOSS, [2.0, 0.5, 0.5])])
def test_the_best_line_steps_where_a_trial_is_better_and_ends_at_the_last(goal: Goal, steps: list[float]) -> None:
    best = line(best_so_far_figure(some_trials(), [goal]), "best so far")
    assert points(best) == list(zip([0, 2, 6], steps, strict=True))
    assert best.get_drawstyle() == "steps-post"


def test_marks_at_the_bottom_lie_below_every_value() -> None:
    figure = best_so_far_figure(some_trials(), [ACCURACY])
    figure.draw_without_rendering()
    axes = figure.axes[0]
    lowest = axes.transData.transform((0, 0.5))[1]
    failed = line(figure, "failed")
    assert failed.get_transform().transform((1, failed.get_ydata()[0]))[1] < lowest - 10


def test_the_front_is_a_staircase_that_goes_on_to_the_dearest_trial() -> None:
    dear = trial(7, {"accuracy": 0.8, "parameters": 20000}, "wide", "wide", "wide")
    figure = pareto_figure([*some_trials(), dear], [ACCURACY, PARAMETERS])
    front = [(70, 0.6), (126, 0.7), (12345, 0.9)]
    assert points(line(figure, "on the Pareto front")) == front
    assert points(stairs(figure)) == [*front, (20000, 0.9)]
    assert stairs(figure).get_drawstyle() == "steps-post"
    assert len(points(line(figure, "trial score"))) == 5
    assert "best: trial 2, accuracy 0.9000" in texts(figure)
    assert_drawn(figure)


def test_where_more_of_the_second_goal_is_better_the_staircase_turns_round() -> None:
    throughput = Goal("throughput", maximize=True)
    records = [
        trial(number, {"loss": loss, "throughput": speed}, middle)
        for number, (loss, speed, middle) in enumerate([(1.0, 5, "a"), (2.0, 9, "b"), (3.0, 2, "c")])
    ]
    figure = pareto_figure(records, [LOSS, throughput])
    assert points(stairs(figure)) == [(2, 1.0), (5, 1.0), (9, 2.0)]
    assert stairs(figure).get_drawstyle() == "steps-pre"


@pytest.mark.parametrize(("largest", "scale"), [(600, "linear"), (7000, "log"), (10**12, "log")])
def test_parameters_are_on_a_log_scale_beyond_a_decade(largest: int, scale: str) -> None:
    records = [trial(0, {"accuracy": 0.5, "parameters": 70}, "a"), trial(1, {"accuracy": 0.6, "parameters": largest})]
    figure = pareto_figure(records, [ACCURACY, PARAMETERS])
    assert figure.axes[0].get_xscale() == scale
    assert ("log scale" in figure.axes[0].get_xlabel()) == (scale == "log")
    assert_drawn(figure)


def test_a_search_for_one_goal_gets_its_parameters_from_outside() -> None:
    records = [trial(0, {"accuracy": 0.5}), trial(1)]
    extended, goals = with_parameters(records, [ACCURACY], {records[0].architecture: 126})
    assert goals == (ACCURACY, PARAMETERS)
    assert points(line(pareto_figure(extended, goals), "trial score")) == [(126, 0.5)]
    assert records[0].values == {"accuracy": 0.5}


@pytest.mark.parametrize("records", [[], [trial(0)], [trial(0), trial(1)]])
def test_without_a_complete_trial_a_picture_says_so(records: list[TrialRecord]) -> None:
    for figure in (best_so_far_figure(records, [ACCURACY]), pareto_figure(records, [ACCURACY, PARAMETERS])):
        assert "no complete trial" in texts(figure)
        assert_drawn(figure)


@pytest.mark.parametrize("value", [0.0, -3.0, 1e9])
def test_one_trial_of_any_value_is_drawn(value: float) -> None:
    records = [trial(0, {"accuracy": value, "parameters": 0})]
    assert_drawn(best_so_far_figure(records, [ACCURACY]))
    assert_drawn(pareto_figure(records, [ACCURACY, PARAMETERS]))


def test_the_same_figure_gives_the_same_bytes() -> None:
    first, second = (png_bytes(pareto_figure(some_trials(), [ACCURACY, PARAMETERS])) for _ in range(2))
    assert first == second
    assert b"matplotlib" not in first


def test_trials_that_were_stopped_are_told_from_those_that_were_refused() -> None:
    stopped = [
        TrialRecord(number, trial(0).architecture, "stopped", cached=number == 9, reason="stopped after 5 of 20 steps")
        for number in (7, 9)
    ]
    figure = best_so_far_figure([*some_trials(), *stopped], [ACCURACY])
    assert list(line(figure, "stopped early").get_xdata()) == [7, 9]
    assert list(line(figure, "refused").get_xdata()) == [4]
    assert points(line(figure, "cached: seen before")) == [(3, 0.5)]
    assert_drawn(figure)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("flops", "FLOPs of a forward pass (lower is better)"),
        ("streamed_bytes", "bytes streamed in a training step (lower is better)"),
        ("device_bytes", "device bytes of a training step (lower is better)"),
        ("latency_ms", "latency in ms (lower is better)"),
        ("mine", "mine (lower is better)"),
    ],
)
def test_axes_tell_what_a_cost_is_and_its_unit(name: str, label: str) -> None:
    trials = [trial(number, {"accuracy": number / 10, name: 1000.0 * (number + 1)}) for number in range(3)]
    figure = pareto_figure(trials, [ACCURACY, Goal(name, maximize=False)])
    assert figure.axes[0].get_xlabel() == label
    assert_drawn(figure)


def test_of_three_goals_the_first_two_are_drawn_with_a_front_of_their_own() -> None:
    """Trial 1 is on the front of all three for its size alone."""
    values = [(0.9, 1.0, 100), (0.5, 2.0, 10), (0.6, 0.5, 200)]
    goals = [ACCURACY, LOSS, PARAMETERS]
    trials = [trial(number, {"accuracy": a, "loss": b, "parameters": c}) for number, (a, b, c) in enumerate(values)]
    figure = pareto_figure(trials, goals)
    assert "2 of 3 architectures on the front" in figure.axes[0].get_title(loc="left")
    assert points(line(figure, "on the Pareto front")) == [(0.5, 0.6), (1.0, 0.9)]
