"""The figures that callbacks are told: losses of steps, and scores of parts of the data."""

from __future__ import annotations

from functools import partial

import pytest

from l2l_nas.nas.callback import Callback, Callbacks, Numbers, Stopped
from l2l_nas.training.fit import Trainer
from tests.nas.problems import Watcher, budget, pool_of, search_on
from tests.nas.strategies.test_race import ACCURACY, RACE


def figures(watcher, name, trial=None):
    return [(step, value) for one, value, step, of in watcher.numbers if (one, of) == (name, trial)]


@pytest.fixture
def fitted(monkeypatch):
    """Losses of all steps that were trained, in order, with the architecture of each."""
    seen, real = [], Trainer.fit

    def fit(self, path_at, *, after_step, **more):
        paths = {}

        def path(step):
            return paths.setdefault(step, path_at(step))

        def noted(step, loss):
            seen.append((paths[step], loss))
            after_step(step, loss)

        real(self, path, after_step=noted, **more)

    monkeypatch.setattr(Trainer, "fit", fit)
    return seen


def test_in_a_race_the_losses_of_a_network_are_one_curve_with_the_scores_beside_it(tmp_path, fitted):
    pool = pool_of("tanh", "relu", "normed", "skip", depth=3)
    search, _, _, seen = search_on(tmp_path, pool, spend=budget(**RACE, baseline="random"), goals=ACCURACY)
    best = search.run()
    trial = best.record.number
    curve = [*figures(seen, "search/train/loss", trial), *figures(seen, "finalists/train/loss", trial)]
    assert [step for step, _ in curve] == list(range(1, 13))
    own = [loss for architecture, loss in fitted if architecture == best.record.architecture]
    assert [loss for _, loss in curve] == own[:12]
    for record in search.context.study.records:
        told = figures(seen, "search/validation/accuracy", record.number)
        assert told == ([] if record.cached else [(3, record.values["accuracy"])])
    validation = dict(figures(seen, "finalists/validation/accuracy", trial))
    assert validation == {int(k.split("/")[0]): v["accuracy"] for k, v in best.rungs.items() if k != "3/12"}
    assert figures(seen, "finalists/test/accuracy", trial) == [(12, best.scores["test"].values["accuracy"])]
    assert [step for step, _ in figures(seen, "baseline/network_1/train/loss")] == list(range(1, 13))
    baseline = search.context.baseline
    assert figures(seen, "baseline/test/loss") == [(baseline.steps, baseline.scores["test"].values["loss"])]
    assert sum(name.endswith("train/loss") for name, *_ in seen.numbers) == len(fitted)


def test_a_finalist_without_the_weights_of_its_trial_is_told_of_from_its_first_step_on(tmp_path, fitted, monkeypatch):
    monkeypatch.setattr("l2l_nas.nas.strategies.trials.free_memory_bytes", lambda: 0)
    pool = pool_of("tanh", "relu", "skip", depth=3)
    search, _, _, seen = search_on(tmp_path, pool, spend=budget(**RACE), goals=ACCURACY)
    best = search.run()
    steps = [step for step, _ in figures(seen, "finalists/train/loss", best.record.number)]
    assert steps == list(range(1, 13))


def test_warm_up_goes_on_counting_where_it_was_stopped(tmp_path):
    make = partial(search_on, tmp_path, pool_of("tanh", "relu"), spend=budget(warmup_steps=6))
    search, _, _, before = make()
    before.stop_at, before.stop = 4, Stopped
    with pytest.raises(Stopped):
        search.run()
    search, _, _, seen = make(resume=True)
    search.run()
    steps = [step for one in (before, seen) for step, _ in figures(one, "warm-up/train/loss")]
    assert steps == [1, 2, 3, 4, 5, 6]


class Plain(Callback):
    pass


def test_nothing_is_gathered_for_callbacks_that_take_no_numbers():
    assert not Callbacks(Plain(), own=[Plain()]).takes_numbers
    assert Callbacks(Plain(), own=[Plain(), Watcher()]).takes_numbers
    numbers = Numbers(Callbacks(Plain()), "search")
    numbers.scores({"3/12": None}, {})  # would raise where it is read
    assert numbers.done == 0
