"""What decides in a search, and is the user's own, ends it where it raises: one line names it, the cause chained."""

from __future__ import annotations

import pytest

from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import L2LError, UserCodeError
from l2l_nas.nas.strategies.default import Search
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.trials import Trials
from tests.nas.problems import budget, pool_of, search_on


class Rule:
    def __init__(self, where: str, gives: object = None) -> None:
        self.where, self.gives = where, gives

    def stop_reason(self, architecture, rung, values):
        if self.where == "stop_reason":
            raise KeyError("rung")
        return self.gives

    def learn(self, records):
        if self.where == "learn":
            raise KeyError("rung")


class Mine(Phase):
    def __init__(self, where: str) -> None:
        self.where = where

    def _at(self, where: str) -> dict:
        if self.where == where:
            raise KeyError("mine")
        return {}

    def run(self, search):
        self._at("run")

    def state(self, search):
        return self._at("state")

    def results(self, search):
        return self._at("results")


@pytest.mark.parametrize(
    "rule", [Rule("stop_reason"), Rule("learn"), Rule("", gives=5)], ids=["reason", "learn", "type"]
)
def test_an_early_stop_that_raises_or_gives_no_reason_is_named(tmp_path, rule):
    spend = budget(trials=2, warmup_steps=0, steps_per_trial=8, finalists=0, trial_weights="fork", early_stop="halving")
    with pytest.raises(UserCodeError, match="early_stop Rule raised") as raised:
        search_on(tmp_path, pool_of("tanh", "relu"), spend=spend, early_stop=rule)[0].run()
    assert isinstance(raised.value.__cause__, KeyError | TypeError)


@pytest.mark.parametrize("where", ["run", "state", "results"])
def test_a_phase_that_raises_is_named(tmp_path, where):
    search, *_ = search_on(tmp_path, pool_of("tanh"), spend=budget(warmup_steps=0, trials=1, finalists=0))

    def go():
        Search(search.context, [Mine(where), Trials(), Finalists()]).run()
        search.context.results()

    with pytest.raises(UserCodeError, match="phase Mine raised KeyError: 'mine'") as raised:
        go()
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_phase_whose_results_are_no_json_is_named(tmp_path):
    class Odd(Mine):
        def results(self, search):
            return {"found": {1, 2}}

    search, *_ = search_on(tmp_path, pool_of("tanh"), spend=budget(warmup_steps=0, trials=1, finalists=0))
    Search(search.context, [Odd(""), Trials(), Finalists()]).run()
    with pytest.raises(UserCodeError, match="phase Odd raised TypeError: Object of type set is not JSON"):
        search.context.results()


@pytest.mark.parametrize("where", ["put", "expect", "reading", "writing"])
def test_a_storage_that_raises_is_named_with_its_line(tmp_path, where):
    class Odd(RamStorage):
        pass

    def fail(self, *_):
        raise OSError("disk gone")

    setattr(Odd, where, fail)
    search, relay, _, _ = search_on(tmp_path, pool_of("tanh"), spend=budget())
    relay.server.move_to(Odd())
    with pytest.raises(L2LError, match=r"disk gone \(test_user_code.py, line \d+\)") as raised:
        search.run()
    assert isinstance(raised.value.__cause__, OSError)
