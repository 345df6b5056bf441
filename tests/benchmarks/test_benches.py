from __future__ import annotations

import json

import pytest

from benchmarks.benches import BENCHES, all_agree, run_bench
from benchmarks.relay.peers import find_sides
from benchmarks.relay.work import StackSizes
from benchmarks.settings import Settings, Unwatched
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import settings


@pytest.mark.parametrize("name", BENCHES)
def test_the_defaults_of_every_bench_make_sense(name):
    bench = BENCHES[name]
    made = Settings(work=StackSizes(**bench.sizes), **bench.defaults)
    find_sides(list(made.sides))


@pytest.mark.parametrize("name", ["switching", "population"])
def test_one_candidate_leaves_nothing_to_compare(name):
    with pytest.raises(SettingError, match="at least 2 candidates at a position, got 1"):
        run_bench(name, settings(), Unwatched())


def test_a_result_is_json_and_says_what_it_was_measured_on_and_with():
    result = run_bench("depth", settings(depths=(1,), sides=("plain",)), Unwatched())
    assert json.loads(json.dumps(result)) == result
    assert result["machine"]["gpu"] == "none"
    assert result["settings"]["depths"] == [1]
    assert "depth" not in result["settings"]
    assert result["settings"]["hidden"] == 16


@pytest.mark.parametrize(
    ("result", "agree"),
    [
        ({"rows": [{"agreement": {"agrees": True}}, {"device_bytes": None}]}, True),
        ({"rows": [{"agreement": {"agrees": False}}]}, False),
        ({"rows": [{"results_equal": False}]}, False),
        ({"nothing_new": False}, False),
    ],
)
def test_whether_all_sides_did_what_they_should(result, agree):
    assert all_agree(result) is agree
