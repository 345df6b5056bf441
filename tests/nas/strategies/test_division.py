"""How training is divided where nobody says it, and fitted to a time."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.strategies.budget import Division
from l2l_nas.nas.strategies.division import described, division, fitted, in_trainings, parse_time
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext, measured
from l2l_nas.space.sampling import UniformPaths
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.schedule import Cosine
from l2l_nas.training.task import Classification
from tests.nas.problems import Act, budget, data, pool_of, search_on
from tests.nas.strategies.test_baseline import SPEND

PACE = MachineSpeed(step=0.01, score=0.1)


def pool(*candidates: int) -> LayerPool:
    def position(number, count):
        return Position(f"p{number}", [Candidate(f"c{i}", lambda: Act(4, nn.Tanh)) for i in range(count)])

    return LayerPool([position(n, count) for n, count in enumerate(candidates)], inputs=TensorSpec((4,)))


def divided(*candidates, samples=1077, batch_size=128, explicit=(), weights="shared", finalists=6, rounds=1):
    explicit = {**dict(explicit), "finalists": finalists, "finalist_rounds": rounds}
    return division(pool(*candidates), samples=samples, batch_size=batch_size, trial_weights=weights, explicit=explicit)


def raced(*candidates, samples=4308, batch_size=64, explicit=()):
    explicit = {"warmup_steps": 0, **dict(explicit)}
    return divided(
        *candidates, samples=samples, batch_size=batch_size, explicit=explicit, weights="scratch", finalists=8, rounds=3
    )


def test_shared_weights_on_digits_get_what_was_tried_by_hand():
    found = divided(1, 6, 6, 6, 6, 1, 6, 6, 6, 6, 1)
    assert (found.warmup_steps, found.trials, found.finalist_steps) == (1000, 64, 320)
    assert found.steps == 1000 + 64 * 6 + 6 * 320
    assert (
        described(found) == "1,000 steps of warm-up, 64 trials of 6 steps, 6 finalists of 320 steps; 3,304 steps in all"
    )


def test_first_weights_on_the_default_task_get_what_was_measured():
    found = raced(5, *[8] * 3, 5, *[8] * 3, 3)
    assert (found.warmup_steps, found.trials, found.steps_per_trial, found.finalist_steps) == (0, 27, 74, 740)
    assert found.steps == 27 * 74 + 8 * 95 + 4 * 190 + 2 * 381
    assert (
        described(found)
        == "27 trials of 74 steps, 8 finalists in 3 rounds of halving, up to 740 steps; 4,280 steps in all"
    )


def test_steps_from_first_weights_grow_with_the_root_of_a_pass():
    start, more = raced(6, 6, 6), raced(6, 6, 6, samples=4 * 4308)
    assert more.steps_per_trial == pytest.approx(2 * start.steps_per_trial, rel=0.03)
    assert more.finalist_steps == pytest.approx(2 * start.finalist_steps, rel=0.03)
    assert more.trials == start.trials == 9
    # all alike: as long as the longest of the halved
    alike = divided(6, 6, 6, samples=4308, batch_size=64, explicit={"warmup_steps": 0}, weights="scratch", finalists=8)
    assert alike.finalist_steps == 740
    nobody = divided(6, 6, 6, explicit={"warmup_steps": 0}, weights="scratch", finalists=0)
    assert nobody.steps == nobody.trials * nobody.steps_per_trial


def test_a_finalist_of_a_race_trains_longer_than_its_trial_whatever_was_said():
    assert raced(6, 6, 6, explicit={"steps_per_trial": 5000}).finalist_steps == 10_000
    short = raced(6, 6, 6, explicit={"finalist_steps": 60})
    assert (short.steps_per_trial, short.finalist_steps) == (30, 60)
    both = raced(6, 6, 6, explicit={"finalist_steps": 60, "steps_per_trial": 50})
    assert (both.steps_per_trial, both.finalist_steps) == (50, 60)
    fit = fitted(
        raced(6, 6, 6, explicit={"steps_per_trial": 500}), 70.0, PACE, explicit=["steps_per_trial"], most_trials=99
    )
    assert fit.finalist_steps >= 1000


def test_more_samples_candidates_and_positions_get_more():
    start = divided(6, 6, 6)
    more = divided(6, 6, 6, samples=4 * 1077)
    assert more.warmup_steps == pytest.approx(4 * start.warmup_steps, rel=0.05)
    assert more.finalist_steps == pytest.approx(4 * start.finalist_steps, rel=0.05)
    assert more.trials == start.trials == 24
    assert divided(6, 12, 6).warmup_steps == pytest.approx(2 * start.warmup_steps, rel=0.05)
    assert divided(6, 6, 6, batch_size=64).finalist_steps == pytest.approx(2 * start.finalist_steps, rel=0.05)
    assert divided(*[6] * 8).trials == 64


def test_nothing_is_without_end_or_nothing():
    huge = divided(*[9] * 100, samples=50_000_000)
    assert (huge.warmup_steps, huge.trials, huge.finalist_steps) == (20_000, 256, 10_000)
    tiny = divided(2, samples=3)
    assert (tiny.warmup_steps, tiny.trials, tiny.finalist_steps) == (40, 2, 38)  # there are no more architectures
    assert fitted(tiny, 3600.0, PACE, explicit=[], most_trials=2).trials == 2


def test_what_is_said_stays():
    found = divided(6, 6, 6, explicit={"warmup_steps": 7, "trials": 3})
    assert (found.warmup_steps, found.trials) == (7, 3)
    fit = fitted(found, 60.0, PACE, explicit=["warmup_steps", "trials"], most_trials=99)
    assert (fit.warmup_steps, fit.trials) == (7, 3)
    assert fit.finalist_steps > found.finalist_steps


@pytest.mark.parametrize("seconds", [12, 60, 600, 7200, 1e6])
@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("by", [divided, raced])
def test_a_division_takes_the_time_that_it_is_given(seconds, workers, by):
    pace = MachineSpeed(0.01, 0.1, workers)
    found = fitted(by(*[6] * 8), seconds, pace, explicit=[], most_trials=10**6)
    assert 0.8 * seconds < pace.seconds(found) <= seconds


def test_twice_the_time_is_more_of_everything_and_of_trials_least():
    once, thrice = (fitted(divided(*[6] * 8), seconds, PACE, explicit=[], most_trials=10**6) for seconds in (60, 180))
    growth = thrice.warmup_steps / once.warmup_steps
    assert 1 < thrice.trials / once.trials < growth
    assert thrice.finalist_steps / once.finalist_steps == pytest.approx(growth, rel=0.1)


def test_a_time_too_short_is_refused_with_what_the_least_takes():
    with pytest.raises(
        SettingError, match=r"search\.time is 2 s.*the smallest search takes \d s.*20 steps of warm-up, 8"
    ):
        fitted(divided(*[6] * 8), 2.0, PACE, explicit=[], most_trials=10**6)


def test_seconds_of_a_search_shared_by_workers():
    plan = Division(100, 10, 5, 3, 50)
    assert MachineSpeed(0.1, 1.0).seconds(plan) == pytest.approx(10 + 10 * (0.5 + 1) + 3 * 5 + 3 * 3)
    assert MachineSpeed(0.1, 1.0, 2).seconds(plan) == pytest.approx(10 + 10 * 1.5 / 2 + 2 * 5 + 1.5 * 3)
    halving = Division(0, 10, 5, 3, 50, finalist_rounds=2)  # 3 of 20, 2 of 30
    assert halving.steps == 50 + 60 + 60
    assert MachineSpeed(0.1, 1.0, 2).seconds(halving) == pytest.approx(7.5 + (2 * 2 + 1.5) + (3 + 3 * 1))


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("2h", 7200), (" 1.5H ", 5400), ("0.5m", 30)]
)
def test_times_are_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "ten minutes", "-5m", "0s", "m", "1d", "1e400s", "10m!", "9" * 400 + "s"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(SettingError, match=r"search\.time must be a time such as 90s, 10m or 1h30m"):
        parse_time(text)


def test_measuring_leaves_no_trace(tmp_path):
    space = pool_of("tanh", "normed", depth=2)
    _, relay, _, _ = search_on(tmp_path, space, spend=budget(**SPEND))
    split = data()
    trainer = Trainer(relay, Classification(), Batches(split.train, batch_size=16, seed=0), 16)
    paths = UniformPaths(space, seed=0)
    trainer.fit(paths.path_at, start=0, steps=3, schedule=Cosine(0.01, 3))
    server = relay.server
    relay.drain()
    before = {key: (server.state(key).visits, server.state(key).weights.clone()) for key in server.visited}
    evaluator = Evaluator(relay, trainer, validation=split.validation, budget=budget(**SPEND))
    pace = measured(SpeedContext(evaluator, paths.path_at, workers=2))
    assert relay.server is server
    assert {key: server.state(key).visits for key in server.visited} == {key: n for key, (n, _) in before.items()}
    assert all((server.state(key).weights == weights).all() for key, (_, weights) in before.items())
    assert 0 < pace.step < 1
    assert 0 < pace.score < 2
    assert pace.workers == 2


def on_the_default_task(trainings, explicit=(), most_trials=10**6, **changes):
    start = replace(raced(5, *[8] * 3, 5, *[8] * 3, 3), **changes)
    return in_trainings(start, trainings, explicit=[*explicit, *changes], most_trials=most_trials)


def test_the_trainings_of_the_default_search_give_the_default_search():
    default = raced(5, *[8] * 3, 5, *[8] * 3, 3)
    assert on_the_default_task(default.steps / default.finalist_steps) == default


@pytest.mark.parametrize("trainings", [1, 1.5, 2, 3, 3.9, 4, 4.5, 5, 6, 7.3, 12, 24.9, 25, 50, 200])
def test_trainings_are_spent_and_not_exceeded(trainings):
    found = on_the_default_task(trainings)
    steps = trainings * 740
    assert steps - found.steps_per_trial < found.steps <= steps
    assert found.trials >= found.finalists >= 1
    assert len(found.rounds) == found.finalist_rounds
    assert found.finalist_steps == 740


def test_few_trainings_have_short_trials_and_one_network_to_the_end():
    for trainings in (1, 2, 3, 3.9):
        found = on_the_default_task(trainings)
        assert found.steps_per_trial == 49
        assert found.rounds[-1].finalists == 1
    more = on_the_default_task(4)
    assert more.steps_per_trial == 74


def test_many_trainings_have_more_trials_and_train_few_networks_to_the_end():
    default, many = on_the_default_task(24), on_the_default_task(50)
    assert len(default.rounds) == 3
    assert len(many.rounds) == 5
    assert many.trials > 2 * default.trials
    assert many.rounds[-1].finalists < many.finalists / 10


def test_numbers_that_are_said_stay_and_the_others_follow():
    assert on_the_default_task(12, trials=100).trials == 100
    assert on_the_default_task(12, trials=100).steps <= 12 * 740
    fixed = on_the_default_task(12, finalists=8, finalist_rounds=2)
    assert (fixed.finalists, fixed.finalist_rounds) == (8, 2)
    assert fixed.trials > on_the_default_task(12).trials
    longer = on_the_default_task(6, finalist_steps=2000, steps_per_trial=100)
    assert (longer.steps_per_trial, longer.finalist_steps) == (100, 2000)
    assert 6 * 2000 - 100 < longer.steps <= 6 * 2000


def test_all_finalists_of_several_goals_are_trained_alike():
    found = on_the_default_task(6, finalist_rounds=1)
    assert len(found.rounds) == 1
    assert 6 * 740 - 74 < found.steps <= 6 * 740
    assert 0.4 < found.rounds[0].finalists * found.rounds[0].steps / (6 * 740) <= 0.6


def test_a_space_that_is_tried_out_gives_its_trainings_to_finalists():
    found = on_the_default_task(12, most_trials=30)
    assert found.trials == 30
    assert found.finalists > on_the_default_task(12).finalists
    assert found.steps <= 12 * 740
    everything = on_the_default_task(500, most_trials=30)
    assert everything.trials == everything.finalists == 30


def test_what_is_said_may_take_more_than_the_trainings():
    with pytest.raises(SettingError, match=r"search\.trainings=3 are 2,220 steps.*500 trials of 49 steps"):
        on_the_default_task(3, trials=500)
    with pytest.raises(SettingError, match="these numbers take more"):
        on_the_default_task(3, finalists=20, finalist_rounds=1)
