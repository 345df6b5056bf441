from __future__ import annotations

import os
import time

import pytest

from benchmarks.relay import training
from benchmarks.settings import Unwatched
from l2l_nas.errors import SettingError
from tests.benchmarks.stacks import Counted, settings


@pytest.mark.slow
def test_memory_by_depth_has_a_row_for_every_side_and_depth_and_grows_where_layers_stay():
    watch = Counted()
    given = settings(depths=(2, 8), sides=("relay_host", "checkpointed", "plain", "fsdp2"))
    result = training.depth(given, watch)
    assert watch.done == watch.total
    found = {(row["side"], row["depth"]): row for row in result["rows"]}
    assert len(found) == len(result["rows"]) == 8
    assert found["fsdp2", 2]["device_bytes"] is None
    assert "cannot be distinguished" in found["fsdp2", 2]["left_out"]
    growth = result["last_depth_over_first"]
    assert growth["plain"] > 2.5
    assert growth["relay_host"] < 1.1
    assert all(row["agreement"]["agrees"] for row in result["rows"] if row["side"] != "fsdp2")


@pytest.mark.slow
def test_memory_by_batch_grows_for_a_stash_on_the_device_and_not_for_micro_batches():
    result = training.batch(settings(batches=(4, 16), sides=("relay", "plain", "plain_whole")), Unwatched())
    growth = result["last_batch_over_first"]
    assert growth["plain"] == pytest.approx(1.0, abs=0.01)
    assert growth["relay"] > 1.1
    assert growth["plain_whole"] > 1.1


def test_throughput_compares_every_side_with_the_reference_and_with_its_promise():
    watch = Counted()
    result = training.throughput(settings(depths=(1, 2), sides=("relay", "relay_exact", "plain")), watch)
    assert watch.done == watch.total
    rows = {(row["depth"], row["side"]): row for row in result["rows"]}
    assert {side for _, side in rows} == {"checkpointed", "relay", "relay_exact", "plain", "control"}
    assert set(rows[1, "relay_exact"]["over"]) == {"checkpointed", "relay"}
    assert all(
        row["agreement"] == {"largest_difference": 0.0, "tolerance": 0.0, "agrees": True} for row in rows.values()
    )
    assert all(row["over"]["checkpointed"]["pairs"] == 3 for key, row in rows.items() if key[1] != "checkpointed")
    assert set(result["medians_over_depths"]) >= {"relay / checkpointed", "control / checkpointed"}


def test_what_is_not_installed_is_listed_with_the_way_to_get_it(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = training.throughput(settings(depths=(1,), sides=("plain", "deepspeed")), Unwatched())
    assert [row["side"] for row in result["left_out"]] == ["deepspeed"]
    assert result["left_out"][0]["left_out"].startswith("not installed: pip install")
    assert {row["side"] for row in result["rows"]} == {"checkpointed", "plain", "control"}


def test_a_side_that_does_not_exist_is_refused():
    with pytest.raises(SettingError, match="no side 'x'"):
        training.throughput(settings(depths=(1,), sides=("x",)), Unwatched())


def test_losses_that_differ_are_told():
    assert training.agreement([1.0, 2.0], [1.0, 2.0], 0.0)["agrees"]
    off = training.agreement([1.0, 2.002], [1.0, 2.0], 1e-4)
    assert not off["agrees"]
    assert off["largest_difference"] == pytest.approx(1e-3)
    assert not training.agreement([1.0, float("nan")], [1.0, 1.0], 1.0)["agrees"]


def test_storage_states_the_bytes_written_and_equal_losses(tmp_path):
    killed = tmp_path / "l2l_nas-states-killed"
    killed.mkdir()
    (killed / "000001-layer").write_bytes(b"state")
    os.utime(killed, times=(time.time() - 61, time.time() - 61))
    watch = Counted()
    result = training.storage(settings(tmp_path), watch)
    assert watch.done == watch.total
    assert [row["side"] for row in result["rows"]] == ["ram", "file", "control"]
    assert all(row["agreement"]["agrees"] for row in result["rows"])
    if result["written_bytes_a_step"] is not None:
        assert result["written_bytes_a_step"] >= result["weights_and_moments_bytes"]
    assert list(tmp_path.iterdir()) == []
