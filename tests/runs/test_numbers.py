"""What a time is divided into, by the strategy's phases."""

from __future__ import annotations

import time
from types import SimpleNamespace

from l2l_nas.compress.blockwise import blockwise
from l2l_nas.nas.strategies.default import default_phases
from l2l_nas.nas.strategies.machine_speed import MachineSpeed
from l2l_nas.runs import search_parts
from l2l_nas.runs.fields import changed
from l2l_nas.runs.numbers import decide_numbers
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.lead import Solo
from tests.compress.test_blockwise import problem

SPEED = MachineSpeed(step=0.01, score=0.1, block_step=0.02, fixed=3.0)


def test_a_time_is_divided_among_what_the_phases_do():
    conf = changed(SearchConf(), {"search.time": "60s"})
    plain, found = decide_numbers(conf, problem(), phases=default_phases(), pace=lambda: SPEED)
    assert found.block_steps is None
    assert 50 < SPEED.seconds(found) <= 60
    assert plain.search.trials == found.trials > 12
    conf = changed(conf, {"strategy": {"name": "blockwise", "samples": 24}, "search.trial_weights": "fork"})
    apart, found = decide_numbers(conf, problem(), phases=blockwise(samples=24), pace=lambda: SPEED)
    assert apart.strategy["steps"] == found.block_steps > 0
    assert found.steps_per_trial == 0  # its trials are scored as they are
    assert 50 < SPEED.seconds(found) <= 60


def test_what_the_measurement_takes_is_taken_off(monkeypatch):
    monkeypatch.setattr(search_parts, "measured", lambda context: SPEED)
    monkeypatch.setattr(search_parts, "set_threads", lambda *args, **more: None)
    monkeypatch.setattr(search_parts, "evaluator_of", lambda *args: None)
    conf = changed(SearchConf(), {"search.time": "60s"})
    parts = SimpleNamespace(conf=conf, problem=problem(), relay=None)
    began = time.perf_counter()
    speed = search_parts._speed(parts, (), SimpleNamespace(path_at=None), Solo())
    assert SPEED.fixed < speed.fixed <= SPEED.fixed + time.perf_counter() - began
