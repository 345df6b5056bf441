from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.search.agreement import Truth
from benchmarks.search.correlation import rho, tau

GENERATOR = np.random.default_rng(0)
QUALITY = np.sort(GENERATOR.random(40))
ALONE = QUALITY[:, None] + 0.05 * GENERATOR.standard_normal((40, 3))
PARAMETERS = GENERATOR.permutation(40)


def test_the_controls_are_the_statistics_of_scipy_by_pairs():
    found = Truth(ALONE, PARAMETERS).controls()
    mean = ALONE.mean(axis=1)
    assert found["parameters"]["tau"]["value"] == pytest.approx(tau(PARAMETERS, mean), abs=1e-4)
    assert found["parameters"]["rho"]["value"] == pytest.approx(rho(PARAMETERS, mean), abs=1e-4)
    pairs = [tau(ALONE[:, a], ALONE[:, b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert found["seed_against_seed"]["tau"]["each"] == pytest.approx(pairs, abs=1e-4)
    assert found["seed_against_seed"]["tau"]["value"] == pytest.approx(np.mean(pairs), abs=1e-4)
    others = tau(ALONE[:, 0], (ALONE[:, 1] + ALONE[:, 2]) / 2)
    assert found["seed_against_the_others"]["tau"]["each"][0] == pytest.approx(others, abs=1e-4)


def test_a_supernet_that_ranks_well_is_above_the_parameter_count_and_above_one_that_does_not():
    noise = GENERATOR.random((3, 40))
    good, bad = QUALITY + 0.05 * noise, noise
    rows = {row["sampler"]: row for row in Truth(ALONE, PARAMETERS).rows({"good": good, "bad": bad})}
    mean = ALONE.mean(axis=1)
    assert rows["good"]["tau"]["each"] == pytest.approx([tau(run, mean) for run in good], abs=1e-4)
    assert rows["good"]["tau"]["sd"] == pytest.approx(np.std([tau(run, mean) for run in good], ddof=1), abs=1e-4)
    over = rows["good"]["over_parameters"]["tau"]
    expected = np.mean([tau(run, mean) for run in good]) - tau(PARAMETERS, mean)
    assert over["value"] == pytest.approx(expected, abs=1e-4)
    assert over["low"] > 0.1
    assert rows["bad"]["over_parameters"]["tau"]["low"] < 0 < rows["good"]["over"]["bad"]["tau"]["low"]
    assert rows["bad"]["over"]["good"]["tau"]["value"] == -rows["good"]["over"]["bad"]["tau"]["value"]


def test_the_standard_error_of_a_difference_is_that_of_two_means():
    runs = {"a": QUALITY + 0.3 * GENERATOR.random((4, 40)), "b": QUALITY + 0.6 * GENERATOR.random((2, 40))}
    rows = Truth(ALONE, PARAMETERS).rows(runs)
    deviations = [row["tau"]["sd"] for row in rows]
    expected = (deviations[0] ** 2 / 4 + deviations[1] ** 2 / 2) ** 0.5
    assert rows[0]["over"]["b"]["tau"]["se"] == pytest.approx(expected, abs=1e-4)


def test_regret_is_what_the_best_of_six_lacks():
    alone = [[value, value] for value in range(10)]
    row = Truth(alone, range(10)).rows({"late": [list(range(10)), [-value for value in range(10)]]})[0]
    assert row["regret"] == pytest.approx((0 + 4) / 2)


def test_spread_tells_architectures_from_seeds():
    found = Truth([[0.1, 0.3], [0.5, 0.7], [0.9, 1.1]], [1, 2, 3]).spread()
    assert found["between_architectures"] == pytest.approx(0.4, abs=1e-5)
    assert found["between_seeds"] == pytest.approx(0.2 / 2**0.5, abs=1e-5)


def test_what_it_tells_is_json_and_the_same_each_time():
    given = [
        json.dumps([truth.spread(), truth.controls(), truth.rows({"a": [QUALITY.tolist()]})])
        for truth in (Truth(ALONE, PARAMETERS), Truth(ALONE, PARAMETERS))
    ]
    assert given[0] == given[1]
    assert "NaN" not in given[0]
