"""`plan`: predictions on the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import pytest

from l2l_nas import AdamW
from l2l_nas.__main__ import main
from l2l_nas.cost.feasible import extremes
from l2l_nas.cost.plan import MemoryLimits, Planner, describe_binding
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.runs.build import build_relay
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.section_settings import MeshConf, RelayConf
from l2l_nas.space.sampling import UniformPaths

TINY = ["space=digits_conv", "data=digits", "train.batch_size=16", "train.micro_batch=16"]


def planner_of(problem, **about) -> Planner:
    return Planner(problem.pool, partial(build_relay, seed=0), mesh=MeshConf(), **about)


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
def test_it_tells_what_the_ends_and_the_middle_of_a_space_take(tmp_path, capsys, refused):
    assert main(["plan", *TINY, "hardware=h100", "folder=out"]) == 0
    shown = capsys.readouterr().out
    assert "predicted for h100" in shown
    assert "binds" in shown
    found = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert found["kind"] == "predicted"
    small, middle, large = found["rows"]
    assert [row["name"] for row in found["rows"]] == ["smallest", "median", "largest"]
    assert small["parameters"] <= middle["parameters"] <= large["parameters"]
    assert all(row["fits"] and row["step_ms"] > 0 for row in found["rows"])
    assert set(large["use"]) == {"compute", "up", "down", "host", "disk", "issue", "round", "net"}
    assert found["pool_bytes"] > 0
    assert (tmp_path / "out" / "timeline.png").read_bytes().startswith(b"\x89PNG")
    # its own profile can be named again
    assert main(["plan", *TINY, "hardware=out/hardware.json"]) == 0
    assert "out/plan.json is there already" in refused("plan", *TINY, "hardware=h100", "folder=out")


@pytest.mark.slow
def test_what_does_not_fit_is_shown(capsys):
    assert main(["plan", *TINY, "hardware=v100", "device_memory=20KB", "host_memory=1KB", "relay.budget=none"]) == 0
    shown = capsys.readouterr().out
    assert "does not fit: relay.storage=file" in shown
    assert "of device memory, there are 19.5 KiB" in " ".join(shown.split())
    assert "largest!" in shown


@pytest.mark.slow
def test_proposals_fit_and_the_fastest_comes_first(tmp_path):
    assert main(["plan", *TINY, "hardware=h100", "propose=true", "device_memory=2MiB", "folder=out"]) == 0
    proposals = json.loads((tmp_path / "out" / "plan.json").read_text())["proposals"]
    times = [one["step_ms"] for one in proposals]
    assert len(times) > 1
    assert times == sorted(times)
    assert all(one["device_bytes"] <= 2 << 20 for one in proposals)
    sizes = [one["device_bytes"] for one in proposals]
    assert sizes == sorted(sizes, reverse=True)
    words = [f"{name}={value}" for name, value in proposals[0]["settings"].items()]
    assert main(["plan", *TINY[:3], *words, "hardware=h100", "folder=again"]) == 0
    again = json.loads((tmp_path / "again" / "plan.json").read_text())["rows"][-1]
    assert again["step_ms"] == pytest.approx(times[0])
    assert again["device_bytes"] == proposals[0]["device_bytes"]


@pytest.mark.slow
def test_a_rank_of_a_mesh_is_predicted_without_any_other(tmp_path, capsys):
    words = ["space=image_blocks", "data=digits", "train.batch_size=16", "train.micro_batch=2", "hardware=h100"]
    assert main(["plan", *words, "parallel.data=8", "parallel.tensor=4", "folder=out"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "16 samples a step of 8 x 4 ranks, and of each" in shown
    assert "between ranks: 50 GB/s each way" in shown
    assert "not divided, so that each of 4 ranks has all of it: " in shown
    assert main(["plan", *words, "folder=alone"]) == 0
    mesh, alone = (json.loads((tmp_path / name / "plan.json").read_text()) for name in ("out", "alone"))
    assert mesh["parallel"] == {"data": 8, "tensor": 4, "chunks": None}
    for ours, single in zip(mesh["rows"], alone["rows"], strict=True):
        assert ours["exchanged_bytes"] > single["exchanged_bytes"] == 0
        assert 0 < ours["exposed_ms"] <= ours["step_ms"]
        assert ours["parameters"] == single["parameters"]
    assert mesh["pool_bytes"] < alone["pool_bytes"]


@pytest.mark.slow
def test_where_the_host_binds_states_on_the_device_are_proposed_if_all_of_them_fit():
    problem = load_problem("digits_conv", {}, source="digits", validation_fraction=0.2)
    largest = extremes(problem.pool)["largest"]
    hardware = replace(PROFILES["h100"], host_updates=1e5)

    def planner(device_bytes: int) -> Planner:
        memory = MemoryLimits(device_bytes, 1 << 34)
        return planner_of(problem, optimizer=AdamW(), hardware=hardware, memory=memory, batch_size=1)

    conf = RelayConf(budget="none", resident="all")
    all_of_it = planner(1 << 34).step_time(conf, 1).predict(largest)
    found = planner(all_of_it.device_bytes).proposals(conf, 1, largest)
    best = found[0].prediction
    assert best.resident_bytes > 0
    assert all(one.prediction.device_bytes <= all_of_it.device_bytes for one in found)
    less = planner(all_of_it.device_bytes - all_of_it.resident_bytes // 2).proposals(conf, 1, largest)
    assert {one.settings["relay.resident"] for one in less} == {"none"}
    streamed = [one.prediction for one in found if one.settings["relay.resident"] == "none"]
    assert best.simulation.step_s < 0.9 * min(one.simulation.step_s for one in streamed)


def test_where_launches_take_longer_than_their_work_no_faster_device_is_advised():
    problem = load_problem("digits_conv", {}, source="digits", validation_fraction=0.2)

    def says(kernel_s: float) -> str:
        hardware = replace(PROFILES["h100"], kernel_s=kernel_s, step_s=0.0, copy_s=0.0)
        memory = MemoryLimits(1 << 34, 1 << 34)
        planner = planner_of(problem, optimizer=AdamW(), hardware=hardware, memory=memory, batch_size=64)
        prediction = planner.step_time(RelayConf(budget="all"), 64).predict(extremes(problem.pool)["largest"])
        assert prediction.simulation.binds == "compute"
        return describe_binding(prediction)

    assert says(1e-3).startswith("launching operations binds")
    assert "faster device" not in says(1e-3)
    assert says(0.0).startswith("compute binds")


def test_files_say_milliseconds():
    problem = load_problem("digits_conv", {}, source="digits", validation_fraction=0.2)
    memory = MemoryLimits(1 << 34, 1 << 34)
    planner = planner_of(problem, optimizer=AdamW(), hardware=PROFILES["h100"], memory=memory, batch_size=16)
    (row,) = planner.rows(planner.step_time(RelayConf(), 16), {"some": UniformPaths(problem.pool, seed=0).path_at(0)})
    said, found = row.to_json(), row.prediction
    assert [said[name] for name in ("step_ms", "plain_ms", "checkpointed_ms")] == pytest.approx(
        [1000 * seconds for seconds in (found.simulation.step_s, found.plain_s, found.checkpointed_s)]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["hardware=h10"], "did you mean 'h100'"),
        (["hardware=h100", "device_memory=much"], "device_memory must be a size such as 16GiB, got 'much'"),
        (["hardware=h100", "relay.budget=1KB"], "too small"),
        (["hardware=h100", "parallel.data=4", "parallel.chunks=2"], "parallel.chunks=2: 4 ranks cannot divide it"),
        (["hardware=h100", "space=image_blocks", "parallel.tensor=7"], "to divide among 7 ranks"),
    ],
)
def test_bad_input_is_refused(words, says, refused):
    assert says in refused("plan", *TINY, *words)


@pytest.mark.slow
def test_a_predicted_objective_wants_a_machine(refused):
    line = refused("search", *TINY, "objectives=[accuracy,step_ms]")
    assert "step_ms is predicted for a machine; name it: search.hardware=" in line


@pytest.mark.slow
def test_a_search_takes_predicted_step_times_as_an_objective_and_a_limit(tmp_path):
    words = ["search.hardware=laptop", "objectives=[accuracy,step_ms]", "search.limits.step_ms=1000"]
    short = ["search.trials=3", "search.steps_per_trial=1", "search.finalists=1", "search.finalist_steps=2"]
    assert main(["search", *TINY, *words, *short, "folder=run", "export=false"]) == 0
    best = json.loads((tmp_path / "run" / "result.json").read_text())["best"]
    assert best["values"]["step_ms"] > 0


@pytest.mark.slow
def test_a_search_whose_networks_do_not_fit_is_refused_before_it_begins(refused, monkeypatch):
    monkeypatch.setattr("l2l_nas.relay.device.free_memory_bytes", lambda: 0)
    line = refused("search", *TINY, "relay.budget=none", "relay.device=cpu", "folder=run")
    assert "of device memory" in line
    assert "what would help" in line


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "search"])
def test_states_in_files_need_no_host_memory(pool, tmp_path, monkeypatch, command, refused):
    monkeypatch.setattr("l2l_nas.cost.feasible.free_memory_bytes", lambda: 100)
    words = ["architecture=original", "train.steps=2"] if command == "train" else TINY
    words = [command, "space.pool=tiny.py:build", *words, "export=false", "folder=run"]
    assert "100 are free" in refused(*words)
    assert main([*words, "relay.storage=file"]) == 0


def test_a_training_that_does_not_fit_is_refused_before_it_begins(refused, monkeypatch):
    monkeypatch.setattr("l2l_nas.relay.device.free_memory_bytes", lambda: 0)
    words = ["architecture=original", "relay.budget=none", "relay.device=cpu", "folder=run"]
    assert "of device memory" in refused("train", *TINY, *words)
