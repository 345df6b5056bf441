from __future__ import annotations

import json
import shutil
from itertools import pairwise

import pytest

from benchmarks.benches import BENCHES, run_bench
from benchmarks.relay import larger
from benchmarks.relay.work import StackSizes
from benchmarks.settings import Settings, Unwatched
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import Counted, settings


def test_the_default_is_a_pool_of_24_positions_of_8_bert_large_layers():
    bench = BENCHES["larger_than_memory"]
    work = StackSizes(**bench.sizes, device="cpu")
    bert_large = (
        12 * 1024 * 1024 + 13 * 1024
    )  # Devlin et al., 2018: four matrices, a feed-forward of two, biases, norms
    assert larger.states_bytes(work) == pytest.approx(12 * 24 * 8 * bert_large, rel=0.001)
    assert larger.states_bytes(work) > 27 << 30


def test_it_tells_bytes_times_and_what_binds_and_leaves_nothing_behind(tmp_path):
    watch = Counted()
    given = settings(tmp_path, depth=3, candidates=3, rounds=2)
    result = run_bench("larger_than_memory", given, watch)
    assert watch.done == watch.total
    assert json.loads(json.dumps(result)) == result
    rows = {row["side"]: row for row in result["rows"]}
    assert list(rows) == ["file", "ram", "control", "disk"]
    assert rows["file"]["agreement"] == {"largest_difference": 0.0, "tolerance": 0.0, "agrees": True}
    assert all(row["over"]["ram"]["pairs"] == 2 for side, row in rows.items() if side != "ram")
    assert result["states_written_bytes"] >= result["states_bytes"] == 12 * result["parameters"]
    volume = 12 * result["parameters_of_an_architecture"]
    assert volume <= result["bytes_a_step"]["written"] < 1.25 * volume  # with a count of steps for each tensor
    # at most weights for either visit and all for the update; at this size some are in a frame
    assert 0 < result["bytes_a_step"]["read"] < 2 * volume
    assert result["binds"] in result["seconds_a_step_of"]
    assert result["seconds_a_step_of"]["disk"] > 0
    assert list(tmp_path.iterdir()) == []


def test_each_step_trains_another_layer_at_every_position_and_all_come_to_be_trained(tmp_path):
    work = settings(tmp_path, depth=3, candidates=4).work
    files = larger._Files(work, tmp_path)
    try:
        paths = [files.architecture(number) for number in range(4)]
        for one, other in pairwise(paths):
            assert all(a != b for a, b in list(zip(one.choices, other.choices, strict=True))[1:-1])
        for number in range(4):
            files.step(number)
        assert set(files.storage.keys) == set(work.pool.states)
    finally:
        files.close()


def test_nothing_is_left_behind_when_it_is_interrupted(tmp_path):
    class Impatient(Counted):
        def advance(self, done, text):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_bench("larger_than_memory", settings(tmp_path, candidates=2), Impatient())
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_too_small_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: shutil._ntuple_diskusage(1 << 40, 1 << 40, 20 << 30))
    sizes = BENCHES["larger_than_memory"].sizes
    given = Settings(work=StackSizes(**sizes, device="cpu"), scratch=tmp_path / "missing")
    with pytest.raises(SettingError, match=r"states need 3\d\.\d GiB in .*, 20\.0 are free; name another folder"):
        run_bench("larger_than_memory", given, Unwatched())
    assert list(tmp_path.iterdir()) == []


def test_an_architecture_that_does_not_fit_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(larger, "too_large", lambda work: "weights, gradients and moments need 99 GiB")
    with pytest.raises(SettingError, match="to compare with: weights, gradients and moments need 99 GiB"):
        run_bench("larger_than_memory", settings(tmp_path, candidates=2), Unwatched())
