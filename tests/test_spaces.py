"""The spaces that come with the package."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from l2l_nas.__main__ import main
from l2l_nas.errors import DataError, SettingError
from l2l_nas.runs.locate import builtin_spaces, load_problem
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network
from tests.cli.runs import ROOT

BUDGET = ("search.warmup_steps=4", "search.trials=3", "search.steps_per_trial=1", "search.finalists=1")


def test_every_space_has_a_config_and_every_config_a_space():
    assert builtin_spaces() == tuple(sorted(path.stem for path in (ROOT / "conf" / "space").glob("*.yaml")))


@pytest.mark.parametrize("space", builtin_spaces())
def test_shapes_agree_and_end_in_ten_classes(space):
    problem = load_problem(space, {}, source="digits", validation_fraction=0.2)
    shapes = check_shapes(problem.pool)
    assert shapes.outputs[0].shape == (10,)
    problem.check(shapes)


@pytest.mark.parametrize("space", builtin_spaces())
def test_a_small_search_runs(space, tmp_path):
    words = [f"space={space}", "space.args.channels=4", "space.args.depth=3", "export=false", "search.finalist_steps=2"]
    assert main(["search", *words, *BUDGET, f"folder={tmp_path / 'run'}"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["trials"]["complete"] == 3


def test_the_default_space_has_1_7_million_networks():
    assert load_problem("digits_conv", {}, source="digits", validation_fraction=0.2).pool.size == 6**8


def test_other_images_fit_when_their_shape_is_named():
    for space in builtin_spaces():
        args = {"image": [3, 12, 12], "classes": 4, "channels": 4}
        pool = load_problem(space, args, source="digits", validation_fraction=0.2).pool
        assert pool.inputs[0].shape == (3, 12, 12)
        assert check_shapes(pool).outputs[0].shape == (4,)


@pytest.mark.parametrize("space", builtin_spaces())
def test_images_and_classes_follow_the_data(space, tmp_path):
    x, y = np.random.default_rng(0).random((60, 3, 12, 10), dtype=np.float32), np.arange(60) % 12
    np.savez(tmp_path / "a.npz", x=x, y=y)
    problem = load_problem(space, {}, source=str(tmp_path / "a.npz"), validation_fraction=0.2)
    assert problem.pool.inputs[0].shape == (3, 12, 10)
    shapes = check_shapes(problem.pool)
    assert shapes.outputs[0].shape == (12,)
    problem.check(shapes)


def test_fewer_classes_leave_the_head_as_it_is_and_numbers_are_no_classes(tmp_path):
    x = np.random.default_rng(0).random((60, 1, 8, 8), dtype=np.float32)
    for name, y in {"few": np.arange(60) % 4, "ids": np.arange(60) // 6 * 10_000}.items():
        np.savez(tmp_path / f"{name}.npz", x=x, y=y)
    few, ids = (
        load_problem("digits_conv", {}, source=str(tmp_path / f"{name}.npz"), validation_fraction=0.2)
        for name in ("few", "ids")
    )
    assert check_shapes(few.pool).outputs[0].shape == check_shapes(ids.pool).outputs[0].shape == (10,)
    with pytest.raises(DataError, match="targets range from 0 to"):
        ids.check(check_shapes(ids.pool))


def test_a_space_for_images_refuses_other_data(tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "flat.npz", x=rng.random((60, 7), dtype=np.float32), y=np.arange(60) % 4)
    np.savez(tmp_path / "numbers.npz", x=rng.random((60, 1, 8, 8), dtype=np.float32), y=rng.random(60))
    for name, says in {"flat": r"takes images .* has \[36, 7\]", "numbers": "tells classes apart"}.items():
        with pytest.raises(SettingError, match=says):
            load_problem("digits_conv", {}, source=str(tmp_path / f"{name}.npz"), validation_fraction=0.2)


def test_a_layer_of_the_shared_space_may_come_again_and_is_one_module():
    from l2l_nas import AdamW, ParamServer, Relay

    pool = load_problem("digits_shared", {"channels": 4, "depth": 3}, source="digits", validation_fraction=0.2).pool
    again = pool.architecture(["stem", "conv5", "mlp_a", "conv5", "head"])
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server)
    x = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    network = build_network(server, again)
    assert network.layer_00 is network.layer_02
    with torch.no_grad():
        assert torch.equal(relay.predict(again, (x,), micro_batch=6)[0], network(x))
    assert server.visited.count("shared/conv5") == 1
