"""The spaces that come with the package."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import yaml

from l2l_nas import AdamW, Batches, ParamServer, ReferenceTrainer, Relay, UniformPaths, plain_module
from l2l_nas.__main__ import main
from l2l_nas.errors import DataError, SettingError
from l2l_nas.runs.locate import builtin_spaces, load_problem
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network
from search_spaces import encoder_decoder, mobilenet, nasbench_macro
from tests.cli.runs import ROOT
from tests.equivalence.plain import Plain
from tests.equivalence.test_relay_equals_plain import assert_same

BUDGET = ("search.warmup_steps=4", "search.trials=3", "search.steps_per_trial=1", "search.finalists=1")


# spaces that classify whatever images there are; the others bring their own data
LANGUAGE = ["bert", "gpt2", "hybrid", "llama"]
CLASSIFIERS = [space for space in builtin_spaces() if space not in ("unet", "encoder_decoder", *LANGUAGE)]


def test_every_space_has_a_config_and_every_config_a_space():
    """A preset is a further config of a space: its `space.pool` names another than its file."""
    configs = sorted((ROOT / "conf" / "space").glob("*.yaml"))
    contents = {path.stem: yaml.safe_load(path.read_text()) for path in configs}
    pools = {name: content.get("space", content)["pool"] for name, content in contents.items()}
    assert builtin_spaces() == tuple(name for name in pools if pools[name] == name)
    assert set(pools.values()) == set(builtin_spaces())


@pytest.mark.slow
@pytest.mark.parametrize(
    "space",
    [
        pytest.param(space, marks=pytest.mark.long) if space == "mobilenet" else space  # it takes a minute
        for space in builtin_spaces()
        if space not in LANGUAGE
    ],
)
def test_a_small_search_runs(space, tmp_path):
    sizes = {"unet": {"channels": 4, "samples": 1}, "encoder_decoder": {"hidden": 8, "heads": 2, "depth": 2}}
    sizes |= {"nas_bench_201": {"channels": 4, "depth": 1}, "nasbench_macro": {"channels": 4}}
    args = sizes.get(space, {"channels": 4, "depth": 1 if space == "mobilenet" else 3})
    words = [
        f"space={space}",
        *(f"space.args.{name}={value}" for name, value in args.items()),
        "search.finalist_steps=2",
    ]
    words.append(f"objectives=[{'loss' if space == 'unet' else 'accuracy'}]")
    assert main(["search", *words, *BUDGET, f"folder={tmp_path / 'run'}"]) == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["trials"]["complete"] == 3


def test_the_default_space_has_1_7_million_networks():
    assert load_problem("digits_conv", {}, source="digits", validation_fraction=0.2).pool.size == 6**8


@pytest.mark.slow
@pytest.mark.parametrize("space", CLASSIFIERS)
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


def test_the_cells_of_nas_bench_201_are_alike():
    pool = load_problem("nas_bench_201", {"channels": 4}, source="digits", validation_fraction=0.2).pool
    assert pool.size == 5**6
    path = UniformPaths(pool, seed=0).path_at(0)
    chosen = {position.name: name for position, name in zip(pool.positions, path.choices, strict=True)}
    edges = [name.removeprefix("s0c0_") for name in chosen if name.startswith("s0c0_") and "to" in name]
    assert len(edges) == 6
    assert all(chosen[f"s{stage}c0_{edge}"] == chosen[f"s0c0_{edge}"] for stage in (1, 2) for edge in edges)


def test_nasbench_macro_is_the_published_one():
    pool = nasbench_macro.build(32, image=(3, 32, 32))
    assert pool.size == 3**8
    network = plain_module(pool, pool.architecture(["conv", *["mb3_k3"] * 8, "average"])).eval()
    sizes, x = [], torch.rand(2, 3, 32, 32)
    for layer in network.children():
        x = layer(x)
        sizes.append(tuple(x.shape[1:]))
    stages = [(64, 16, 16)] * 2 + [(128, 8, 8)] * 3 + [(256, 4, 4)] * 3
    assert sizes == [(32, 32, 32), *stages, (10,)]
    assert network.head[-1].in_features == 1280


@pytest.mark.slow
def test_mobilenet_s_sizes_are_those_of_the_article():
    pool = mobilenet.build(16, 4, 1000, (3, 224, 224))
    chosen = ["x6k7" if "x6k7" in [c.name for c in p.candidates] else p.candidates[0].name for p in pool.positions]
    with torch.device("meta"):
        layers = [layer.candidate.factory() for layer in pool.path(pool.architecture(chosen))]
        x, sizes = torch.zeros(2, 3, 224, 224), []
        for layer in layers:
            x = layer(x)
            sizes.append(tuple(x.shape[1:3]))
    assert sizes == [(16, 112)] * 2 + [(24, 56)] * 4 + [(40, 28)] * 4 + [(80, 14)] * 4 + [(112, 14)] * 4 + [
        (160, 7)
    ] * 4 + [(1000,)]


def test_numbers_are_spelled_and_no_number_is_in_two_parts():
    data = encoder_decoder.data()
    assert [encoder_decoder.in_words(n) for n in (0, 17, 40, 342, 7008, 9999)] == [
        "zero",
        "seventeen",
        "forty",
        "three hundred forty two",
        "seven thousand eight",
        "nine thousand nine hundred ninety nine",
    ]
    rows = [tuple(row.tolist()) for split in data.parts.values() for row in split.inputs[0]]
    assert len(set(rows)) == len(rows) == 10_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "space",
    ["unet", "encoder_decoder", "nas_bench_201", pytest.param("mobilenet", marks=pytest.mark.long), "nasbench_macro"],
)
def test_a_space_trains_as_plain_pytorch(space):
    args = {"depth": 1} if space == "mobilenet" else {}
    problem = load_problem(space, args, source="digits", validation_fraction=0.2)
    relay, resident = (
        kind(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device="cpu") for kind in (Relay, ReferenceTrainer)
    )
    # an optimizer for each parameter: minutes for the networks of mobilenet
    plain = None if space == "mobilenet" else Plain(ParamServer(problem.pool, optimizer=AdamW(), seed=0), seed=0)
    paths, batches = UniformPaths(problem.pool, seed=1), Batches(problem.data.train, batch_size=8, seed=0)
    for step in range(3):
        (inputs, targets), architecture = batches.at(step), paths.path_at(step)
        about = {"objective": problem.task, "micro_batch": 3, "lr": 0.01, "step": step}
        losses = {one.train_step(architecture, inputs, targets, **about).loss for one in (relay, resident)}
        if plain is not None:
            losses.add(plain.step(architecture, inputs, targets, **about))
        assert len(losses) == 1
    relay.drain()
    if plain is not None:
        assert_same(relay.server, plain)


OWN = """
from torch import nn
from l2l_nas import Candidate, LayerPool, Position, TensorSpec

def build(image, classes, width=4):
    size = image[0] * image[1] * image[2]
    layers = lambda: nn.Sequential(nn.Flatten(), nn.Linear(size, width), nn.Linear(width, classes))
    return LayerPool([Position("head", Candidate("linear", layers))], inputs=TensorSpec(tuple(image)))
"""


def test_a_space_of_one_s_own_takes_its_image_and_classes_from_the_data(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    x = np.random.default_rng(0).random((60, 2, 6, 5), np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 3)
    where = {"source": str(tmp_path / "a.npz"), "validation_fraction": 0.2}
    for args, classes in (({}, 3), ({"classes": 20, "width": 2}, 20)):
        problem = load_problem(f"{tmp_path}/own.py:build", args, **where)
        assert problem.pool.inputs[0].shape == (2, 6, 5)
        assert check_shapes(problem.pool).outputs[0].shape == (classes,)
    np.savez(tmp_path / "b.npz", x=x, y=np.linspace(0, 1, 60, dtype=np.float32))
    with pytest.raises(SettingError, match="tells classes apart"):
        load_problem(f"{tmp_path}/own.py:build", {}, **{**where, "source": str(tmp_path / "b.npz")})
