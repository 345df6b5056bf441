from __future__ import annotations

import itertools
import math

import pytest
import torch

from l2l_nas.errors import L2LError, SettingError
from l2l_nas.training.schedule import SCHEDULES, Constant, Cosine, InverseSqrt, Linear, Restarts, build_schedule


def rates_of(schedule, steps):
    return [schedule.at(step) for step in range(steps)]


def of_torch(build, steps, peak=0.1):
    """The rates of a scheduler of torch, step by step."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    scheduler, found = build(optimizer), []
    for _ in range(steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


def test_the_rate_rises_to_its_peak_and_falls_to_its_floor():
    schedule = Cosine(0.1, 100)
    rates = [schedule.at(step) for step in range(101)]
    assert rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert max(rates) == pytest.approx(0.1)
    assert all(a >= b for a, b in itertools.pairwise(rates[5:]))
    assert rates[100] == pytest.approx(0.002)
    assert schedule.at(10**6) == rates[100]
    middle = 5 + 95 / 2
    assert (schedule.at(math.floor(middle)) + schedule.at(math.ceil(middle))) / 2 == pytest.approx(0.051)


def test_the_default_gives_the_numbers_that_it_always_gave():
    peak, steps, rise, floor = 0.008, 333, 0.05, 0.02
    rising = max(1, round(rise * steps))
    for step in range(400):
        done = min(1.0, (step - rising) / max(1, steps - rising))
        falling = peak * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)
        assert build_schedule("cosine")(peak, steps).at(step) == (
            peak * (step + 1) / rising if step < rising else falling
        )


def test_a_cosine_without_rise_is_torch_s():
    expected = of_torch(lambda one: torch.optim.lr_scheduler.CosineAnnealingLR(one, 80, eta_min=0.002), 80)
    assert rates_of(Cosine(0.1, 80, rise=0.0), 80) == pytest.approx(expected)


def test_a_line_falls_to_zero_as_torch_s_does():
    expected = of_torch(lambda one: torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.0, 80), 80)
    assert rates_of(Linear(0.1, 80, rise=0.0), 80) == pytest.approx(expected)
    assert Linear(0.1, 80).at(80) == 0.0


def test_warm_up_rises_as_torch_s_and_then_falls_as_a_line():
    def both(one):
        rise = torch.optim.lr_scheduler.LinearLR(one, 1 / 20, 1.0, 19)
        fall = torch.optim.lr_scheduler.LinearLR(one, 1.0, 0.0, 80)
        return torch.optim.lr_scheduler.SequentialLR(one, [rise, fall], [20])

    assert rates_of(Linear(0.1, 100, rise=0.2), 100) == pytest.approx(of_torch(both, 100), abs=1e-9)


def test_restarts_are_torch_s_warm_restarts():
    expected = of_torch(lambda one: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(one, 10, T_mult=2), 70)
    assert rates_of(Restarts(0.1, 70, cycles=3), 70) == pytest.approx(expected)
    assert [step for step, rate in enumerate(expected) if rate == 0.1] == [0, 10, 30]


def test_a_constant_rate_may_rise_and_fall():
    assert set(rates_of(Constant(0.1, 50), 60)) == {0.1}
    rates = rates_of(Constant(0.1, 100, rise=0.1, fall=0.5), 101)
    assert rates[9:55] == pytest.approx([0.1] * 46)
    assert rates[55:] == pytest.approx([0.1 * (1 - one / 45) for one in range(46)])


def test_one_over_the_root_of_the_step():
    rates = rates_of(InverseSqrt(0.1, 400, rise=0.25), 400)
    assert rates[99] == pytest.approx(0.1)
    assert rates[300] == pytest.approx(0.1 * math.sqrt(100 / 300))


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("steps", [0, 1, 2, 37])
def test_every_schedule_has_a_rate_for_every_step_and_keeps_its_last(name, steps):
    schedule = build_schedule(name)(0.1, steps)
    assert all(0 <= schedule.at(step) <= 0.1 for step in range(steps + 4))
    assert schedule.at(0) > 0 or steps == 0
    assert schedule.at(10**6) == schedule.at(steps + 2)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_very_short_schedules_have_a_rate(steps):
    assert all(0 < Cosine(0.1, steps).at(step) <= 0.1 for step in range(4))


@pytest.mark.parametrize("peak", [0.0, -1.0, float("nan"), float("inf")])
def test_a_peak_that_makes_no_sense_is_refused(peak):
    with pytest.raises(SettingError, match="the learning rate's peak must be"):
        Cosine(peak, 10)


def halving(peak, steps, every=10):
    return lambda step: peak * 0.5 ** (step // every)


class Stairs:
    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def at(self, step):
        return self.peak * (1 if step < self.steps / 2 else 0.1)


def test_a_function_or_a_class_of_one_s_own_is_a_schedule():
    assert build_schedule(halving)(0.1, 40).at(25) == 0.025
    assert build_schedule(Stairs)(0.1, 40).at(25) == pytest.approx(0.01)
    named = build_schedule({"name": f"{__name__}:halving", "every": 5})
    assert named(0.1, 40).at(25) == 0.1 * 0.5**5


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ("cosin", "no schedule 'cosin'; did you mean 'cosine'"),
        ({"name": "cosine", "rise": 2.0}, r"schedule\.rise must lie between 0 and 1, got 2"),
        ({"name": "restarts", "cycles": 0}, r"schedule\.cycles must be at least 1"),
        ({"name": "restarts", "cycles": 3000}, r"cycles=3000 makes cycles of no steps"),
        (lambda peak, steps: 3, "gave int; expected a function of the step"),
        (lambda peak, steps: lambda step: float("nan"), "gave nan at step 0"),
        (lambda peak, steps: 1 / 0, "ZeroDivisionError"),
        ({"name": f"{__name__}:halving", "each": 5}, "takes no 'each'"),
        (3, "expected a name or a function"),
    ],
)
def test_what_is_no_schedule_is_refused_when_it_is_built(chosen, words):
    with pytest.raises(L2LError, match=words):
        build_schedule(chosen)
