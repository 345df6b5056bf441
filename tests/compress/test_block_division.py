"""How a time is divided where a network is taken apart, and what its blocks and scores take."""

from __future__ import annotations

import pytest
import torch
import yaml
from torch import nn

import l2l_nas
from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.compress.block_division import apart, fitted_apart
from l2l_nas.compress.block_solver import Block, blocks_of, changed
from l2l_nas.compress.block_speed import ScorePasses, block_seconds
from l2l_nas.errors import SettingError
from l2l_nas.nas.strategies.budget import Division
from l2l_nas.nas.strategies.division import described
from l2l_nas.nas.strategies.machine_speed import MachineSpeed
from tests.compress.test_blockwise import problem

SPEED = MachineSpeed(step=2.0, score=10.0, block_step=5.0, fixed=600.0)
GIVEN = {"warmup_steps", "finalists"}


def start(**changes):
    numbers = {"warmup_steps": 0, "trials": 240, "steps_per_trial": 6, "finalists": 2, "finalist_steps": 9000}
    found = Division(**{**numbers, "block_steps": 100, "trial_weights": "fork", **changes})
    return apart(found, networks=1, explicit=GIVEN | changes.keys(), most_trials=10**6)


def fitted(seconds, *, divides_blocks=True, speed=SPEED, **changes):
    return fitted_apart(
        start(**changes), seconds, speed, divides_blocks=divides_blocks, explicit=GIVEN | changes.keys()
    )


def test_the_best_predicted_networks_are_scored_as_they_are():
    assert (start().trials, start().steps_per_trial) == (8, 0)
    assert start(finalists=12).trials == 12
    assert apart(start(), networks=3, explicit=GIVEN, most_trials=10**6).trials == 24
    assert apart(start(), networks=3, explicit=GIVEN, most_trials=5).trials == 5
    said = start(trials=99, steps_per_trial=4)
    assert (said.trials, said.steps_per_trial) == (99, 4)


@pytest.mark.parametrize("seconds", [900, 1000, 3600, 36_000])
def test_a_time_is_kept_and_recovery_has_what_is_left(seconds):
    found = fitted(seconds)
    assert seconds - 2 * SPEED.step < SPEED.seconds(found) <= seconds
    left = seconds - 600 - 8 * 10 - 2 * 30  # each finalist is scored three times towards its end
    assert found.block_steps == min(100, 0.2 * (left - 2 * 20 * SPEED.step) // 5)
    assert found.finalists * found.finalist_steps * SPEED.step >= 0.8 * left - 5
    assert described(found).startswith(f"blocks of {found.block_steps} steps, 8 trials of 0 steps, 2 finalists of")


def test_what_is_said_of_a_search_that_takes_apart_stays():
    found = fitted(3600.0, divides_blocks=False, block_steps=7, trials=20)
    assert (found.block_steps, found.trials) == (7, 20)
    assert 3590 < SPEED.seconds(found) <= 3600
    recovery = fitted(3600.0, finalist_steps=50)
    assert (recovery.finalist_steps, recovery.block_steps) == (50, 100)  # as many as are of any use
    nobody = fitted(800.0, finalists=0, finalist_steps=0)
    assert nobody.block_steps == (800 - 600 - 80) / 5


def test_a_time_too_short_for_blocks_and_scores_is_refused():
    with pytest.raises(
        SettingError, match=r"search\.time is 700 s, and the smallest search takes 820 s on this machine: blocks of 0 "
        r"steps, 8 trials of 0 steps, 2 finalists of 20 steps, and 600 s of what takes no steps; give it more time"
    ):  # fmt: skip
        fitted(700.0)
    with pytest.raises(SettingError, match="blocks of 100 steps"):
        fitted(900.0, divides_blocks=False)
    assert fitted(821.0).finalist_steps == 20


def chain():
    blocks = [Candidate("whole", lambda: nn.Linear(4, 4)), Candidate("other", lambda: nn.Linear(4, 4)), skip()]
    return LayerPool([Position(f"p{i}", blocks) for i in range(4)], inputs=TensorSpec((4,)))


def test_passes_count_what_networks_do_not_share():
    pool = chain()
    singles: list[Block] = [block for block in blocks_of(pool) if block[1] != "whole"]
    networks = [pool.original, *(changed(pool, [block]) for block in singles)]
    # behind the layers that all share, "other" at position i has itself and 3 - i layers more, and skip those alone
    assert ScorePasses(pool, population=16)(networks) == pytest.approx((4 + (4 + 3 + 2 + 1) + (3 + 2 + 1)) / 4)
    assert ScorePasses(pool, population=1)(networks) == pytest.approx((4 + 4 * 4 + 4 * 3) / 4)


class Recorded:
    """Blocks that take a known time, by a clock of their own."""

    def __init__(self, pool):
        self.server, self.done, self.now = type("Server", (), {"pool": pool}), [], 0.0

    def clock(self):
        return self.now

    def run(self, inputs, *, after_step):
        for position in self.server.pool.positions:
            for candidate in position.candidates:
                self.now += 1.0
                for _ in range(3 * (candidate.name == "other")):
                    after_step(f"{position.name}/{candidate.name}", 8)
                    self.now += 2.0
                self.done.append(f"{position.name}/{candidate.name}")
                yield self.done[-1], 0.0


def test_blocks_of_each_kind_are_measured_once():
    recorded = Recorded(chain())
    fixed, step = block_seconds(recorded, (torch.zeros(1, 4),), seconds=60.0, clock=recorded.clock)
    assert recorded.done == ["p0/whole", "p0/other", "p0/skip"]
    assert (fixed, step) == (4 * 3.0, 4 * 2.0)


def test_kinds_that_were_not_seen_in_time_count_as_others_do():
    blocks = [[Candidate("whole", lambda: nn.Linear(4, 4)), Candidate("other", lambda n=n: nn.Sequential(
        nn.Linear(4, n), nn.Linear(n, 4)))] for n in range(1, 5)]  # fmt: skip
    pool = LayerPool([Position(f"p{i}", some) for i, some in enumerate(blocks)], inputs=TensorSpec((4,)))
    recorded = Recorded(pool)
    fixed, step = block_seconds(recorded, (torch.zeros(1, 4),), seconds=10.0, clock=recorded.clock)
    assert len(recorded.done) == 4
    assert (fixed, step) == (4 * 2.0, 4 * 2.0)


@pytest.mark.slow
def test_a_search_in_a_time_has_its_numbers_and_keeps_them(tmp_path):
    explicit = {
        "time": "6s", "trial_weights": "fork", "finalists": 2, "objectives": ["loss"],
        "strategy": {"name": "blockwise", "samples": 24}, "limits": {"parameters": 560},
    }  # fmt: skip
    l2l_nas.search(problem(), folder=tmp_path / "run", **explicit)
    numbers = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert 0 < numbers["strategy"]["steps"] <= 100
    assert numbers["search"]["steps_per_trial"] == 0
    assert numbers["search"]["finalist_steps"] > 20
    found = l2l_nas.search(problem(), resume=tmp_path / "run", trials=9)
    again = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert again["strategy"] == numbers["strategy"]
    assert again["search"]["finalist_steps"] == numbers["search"]["finalist_steps"]
    assert len([trial for trial in found.study.trials if trial.state.name == "COMPLETE"]) == 9
    with pytest.raises(SettingError, match="the smallest search takes"):
        l2l_nas.search(problem(), folder=tmp_path / "other", **{**explicit, "time": "0.01s"})
    assert not (tmp_path / "other").exists()
