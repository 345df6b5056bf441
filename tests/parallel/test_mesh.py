"""Trainings on ranks that share layers, and on a mesh of these and of ranks that share mini-batches.

They are compared with one process, and with a control: one process whose gradients are summed in another order, which
differs from it by rounding alone.
"""

from __future__ import annotations

import math

import pytest
import torch

from tests.parallel.mesh_runs import BATCH, CASES, MICRO_BATCH, architectures_of, trained
from tests.parallel.ranked import Ranks, errors_of
from tests.parallel.test_split_pool import space

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]
MICRO_BATCHES = BATCH // MICRO_BATCH


def on_ranks(folder, size, *words):
    with Ranks(folder, size, "meshes", *words) as ranks:
        ended = ranks.ended(150)
    assert [one.code for one in ended] == [0] * size, (errors_of(ended), ended[0].err[-2000:])


def of_cases(folder, size, tensor, names):
    """By rank, what came of the cases."""
    on_ranks(folder, size, "on_mesh", folder, tensor, *names)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(size)]


def furthest(one, other):
    """The largest differences of losses, norms, and tensors of states."""
    rows = list(zip(one["results"], other["results"], strict=True))
    norms = [abs(a[1] - b[1]) / b[1] for a, b in rows if b[1] and math.isfinite(b[1])]
    tensors = [(one["whole"][key], tensor) for key, tensor in other["whole"].items() if tensor.numel()]
    assert one["whole"].keys() == other["whole"].keys()
    assert [a[2] for a, _ in rows] == [b[2] for _, b in rows]  # the same steps are skipped
    return (
        max(abs(a[0] - b[0]) for a, b in rows),
        max(norms, default=0.0),
        max(float((a.double() - b.double()).abs().max()) for a, b in tensors),
    )


def check(folder, size, tensor, names):
    found = of_cases(folder, size, tensor, names)
    for name in names:
        options = {key: value for key, value in CASES[name].items() if key != "gathers"}
        # a mesh of several ranks that share mini-batches sums by their chunks
        own, other = (None, 2) if size == tensor else (2, None)
        one, control = trained(**options, chunks=own), trained(**options, chunks=other)
        first = found[0][name]
        for rank, each in enumerate(found):
            each = each[name]
            assert each["results"] == first["results"], (name, rank)
            assert all(torch.equal(each["whole"][key], value) for key, value in first["whole"].items()), (name, rank)
            place = rank // tensor * tensor  # the first of the ranks that share its layers
            alike = found[place][name]["alike"]
            assert [k for k, value in each["alike"].items() if not torch.equal(value, alike[k])] == [], (name, rank)
            assert each["bytes"] < one["bytes"] / tensor + 4096
        measured, allowed = furthest(first, one), furthest(control, one)
        print(f"{name} on {size // tensor} x {tensor}: {measured}, control {allowed}")
        assert len(first["alike"]) > 50
        if name == "overflowing":
            assert any(result[2] for result in first["results"])
            continue
        if "precision" in options:  # parts are rounded before they are added, as what one process rounds
            full = furthest(one, trained(**{**options, "precision": "fp32", "loss_scale": None}, chunks=own))
            assert all(a <= 2 * b for a, b in zip(measured, full, strict=True))
            continue
        assert measured[0] <= 2e-6
        assert measured[1] <= 2e-6
        assert measured[2] <= 2 * allowed[2]
        if name == "ahead":
            assert first["put_back"] >= 1
    return found


@pytest.mark.parametrize(
    ("size", "tensor"),
    [(4, 2), pytest.param(2, 2, marks=pytest.mark.long), pytest.param(4, 4, marks=pytest.mark.long)],
    ids=["2x2", "2", "4"],
)
def test_fifty_clipped_steps_of_other_architectures_are_those_of_one_process(size, tensor, tmp_path):
    found = check(tmp_path, size, tensor, ["clipped"])
    steps = CASES["clipped"]["steps"]
    visits = {}  # of a rank, by layer
    for architecture in architectures_of(space("gpt2"), steps):
        for layer in space("gpt2").path(architecture):
            visits[layer.key] = visits.get(layer.key, 0) + MICRO_BATCHES * tensor // size
    counts = {
        key: tuple(
            found[0]["clipped"]["counts"].get(f"{key} {phase}", 0) / count for phase in ("forward", "again", "back")
        )
        for key, count in visits.items()
    }
    # attention and feed-forward are one block: two sums forward, two when it is run again, two backward
    assert {counts[key] for key in counts if "heads" in key or "width" in key or "window" in key} == {(1, 1, 1)}
    # where one head of keys serves all ranks, each sums its gradients, and those of its values
    assert {counts[key] for key in counts if "key_value" in key} == {(1, 1, 3)}
    assert {counts[key] for key in counts if "embedding" in key} == {(1, 1, 0)}
    assert {counts[key] for key in counts if "head/" in key} == {(1, 0, 1)}


def test_weights_in_low_precision_train_as_in_one_process(tmp_path):
    check(tmp_path, 2, 2, ["fp16", "bf16"])


@pytest.mark.long
@pytest.mark.parametrize(("size", "tensor"), [(2, 2), (4, 2)], ids=["2", "2x2"])
def test_all_settings_train_as_in_one_process(size, tensor, tmp_path):
    check(tmp_path, size, tensor, [name for name in CASES if name != "clipped"])


def test_a_save_of_one_mesh_goes_on_on_others(tmp_path):
    """2 steps on 2 x 2, then 2 in one process, and 2 on 2 ranks that share layers."""
    whole = trained(steps=6)["results"]
    folder, found = tmp_path / "weights", []
    for first, size, tensor in ((0, 4, 2), (2, 1, 1), (4, 2, 2)):
        if size == 1:
            found += trained(first=first, steps=2, folder=folder)["results"]
            continue
        on_ranks(tmp_path, size, "go_on", folder, tensor, first, 2)
        found += torch.load(tmp_path / "0.pt", weights_only=True)
    assert [row[0] for row in found] == pytest.approx([row[0] for row in whole], abs=4e-6)
    assert [row[1] for row in found] == pytest.approx([row[1] for row in whole], rel=1e-5)
