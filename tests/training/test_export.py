from __future__ import annotations

import json
import re
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from l2l_nas import (
    Candidate,
    LayerPool,
    Position,
    Problem,
    Regression,
    Relay,
    TensorSpec,
    plain_module,
)
from l2l_nas.errors import SettingError
from l2l_nas.relay.interface import Batch
from l2l_nas.space.candidate import Specs
from l2l_nas.training.data import Data, Split
from l2l_nas.training.export import FORMATS, ExportError, build_network, export_network
from l2l_nas.training.fit import evaluate
from l2l_nas.training.formats import ExportSource, largest_difference
from tests.toys import NextToken, language_pool, random_data, repeated_pool
from tests.training.exports import linear_problem, made


class Tokens(NextToken):
    """The language toy as a task."""

    metrics = {"accuracy": True, "loss": False}

    def measure(self, outputs: Batch, targets: torch.Tensor) -> dict[str, float]:
        known = targets >= 0
        hits = int(((outputs[0].argmax(-1) == targets) & known).sum())
        return {
            "accuracy": hits / int(known.sum()),
            "loss": float(self.loss(outputs, targets)) / self.count(targets),
        }

    def check(self, targets: torch.Tensor, outputs: Specs) -> None:
        assert targets.dtype == torch.int64


def problem_of(pool, samples=11):
    split = Split(*random_data(pool, samples, seed=0))
    return Problem(pool, Data(split, split), Tokens() if pool.inputs[0].dtype == torch.int64 else Regression())


LANGUAGE = ["embed", "attention", "feed", "attention", "head"]
REPEATED = ["dense", "normed", "dense", "twice", "head"]
POOLS = [(language_pool(), LANGUAGE), (repeated_pool(), REPEATED)]


@pytest.mark.parametrize(("pool", "choices"), POOLS)
def test_the_network_is_the_relay_s_bit_for_bit(pool, choices):
    server, architecture = made(pool, choices)
    inputs, _ = random_data(pool, 6, seed=0)
    expected = Relay(server).predict(architecture, inputs, micro_batch=6)
    with torch.no_grad():
        outputs = build_network(server, architecture)(*inputs)
    got = outputs if isinstance(outputs, tuple) else (outputs,)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_tied_weight_is_one_parameter_and_a_layer_used_twice_one_module():
    server, architecture = made(language_pool(), LANGUAGE)
    for network in (build_network(server, architecture), plain_module(server.pool, architecture)):
        assert network.first.weight is network.last.weight
        assert network.layer_00 is network.layer_02
        assert not network.training


def test_the_network_is_a_copy():
    server, architecture = made(repeated_pool(), REPEATED)
    network = build_network(server, architecture)
    before = {key: server.state(key).weights.clone() for key in server.visited}
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    assert all(torch.equal(before[key], server.state(key).weights) for key in before)


@pytest.mark.slow
@pytest.mark.parametrize(("pool", "choices"), POOLS, ids=["language", "repeated"])
@pytest.mark.parametrize("formats", [["state_dict", "program"], ["onnx"]], ids=" ".join)
def test_every_format_gives_the_relay_s_outputs_and_its_metrics(tmp_path, pool, choices, formats):
    if "onnx" in formats:
        pytest.importorskip("onnxruntime")
    server, architecture = made(pool, choices)
    problem = problem_of(pool)
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=4, formats=formats)
    relay = Relay(server, device="cpu")
    expected = evaluate(relay, architecture, problem.data.validation, task=problem.task, micro_batch=4)
    assert export.values == expected
    assert list(export.formats) == ["module", *formats]
    assert not export.refused
    for name, done in export.formats.items():
        if name == "onnx":
            assert done.difference < 1e-5
            assert done.values == pytest.approx(expected, rel=1e-5)
            assert done.values.get("accuracy") == expected.get("accuracy")
        else:
            assert done.difference == 0
            assert done.values == expected
    written = json.loads((tmp_path / "export.json").read_text())
    assert written["architecture"] == list(architecture.choices)
    assert written["values"] == expected
    assert {name: entry["file"] for name, entry in written["formats"].items()} == {
        "module": None,
        **{name: FORMATS[name].files[-1] for name in formats},
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["export.json", *(FORMATS[name].files[-1] for name in formats)]
    )


def test_the_program_takes_any_batch_and_the_state_dict_is_named_by_positions(tmp_path):
    pool = repeated_pool()
    server, architecture = made(pool, REPEATED)
    (x,), _ = random_data(pool, 9, seed=0)
    export_network(server, architecture, tmp_path / "out", problem=problem_of(pool), micro_batch=4)
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    network = build_network(server, architecture)
    with torch.no_grad():
        for size in (1, 2, 9):
            torch.testing.assert_close(program(x[:size]), network(x[:size]))
    weights = load_file(tmp_path / "out" / "state_dict.safetensors")
    assert weights.keys() == network.state_dict().keys()
    assert {name.split(".")[0] for name in weights} == {"layer_00", "layer_01", "layer_02", "layer_03", "last"}
    empty = plain_module(pool, architecture)
    with torch.no_grad():
        assert not torch.equal(empty(x), network(x))
        empty.load_state_dict(weights)
        assert torch.equal(empty(x), network(x))


@pytest.mark.slow
def test_the_onnx_file_takes_any_batch_and_names_its_inputs(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pool = language_pool()
    server, architecture = made(pool, LANGUAGE)
    export_network(server, architecture, tmp_path, problem=problem_of(pool), micro_batch=4, formats=["onnx"])
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    assert [(entry.name, entry.shape) for entry in session.get_inputs()] == [
        ("input_0", ["batch", 4]),
        ("input_1", ["batch", 4]),
    ]
    assert [entry.name for entry in session.get_outputs()] == ["output"]
    network = build_network(server, architecture)
    for size in (1, 2, 9):
        (tokens, mask), _ = random_data(pool, size, seed=1)
        (got,) = session.run(None, {"input_0": tokens.numpy(), "input_1": mask.numpy()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), network(tokens, mask), rtol=1e-4, atol=1e-5)


class Branching(nn.Linear):
    """Its path depends on a value, which cannot be traced."""

    def forward(self, x):
        y = super().forward(x)
        return y if x.device.type == "meta" or float(x.sum()) > 0 else -y


def test_what_cannot_be_traced_is_refused_in_one_line_and_its_weights_are_written(tmp_path, capfd):
    problem = linear_problem(Branching)
    server, architecture = made(problem.pool, ["x"])
    export = export_network(server, architecture, tmp_path / "out", problem=problem, micro_batch=2)
    assert list(export.formats) == ["module", "state_dict"]
    error = str(export.refused["program"])
    assert error.startswith("torch.export cannot trace this network: Could not guard on data-dependent expression")
    assert re.search(r"\(test_export\.py, line \d+\); its weights can be exported as state_dict$", error)
    assert "\n" not in error
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "state_dict.safetensors"]
    assert json.loads((tmp_path / "out" / "export.json").read_text())["refused"] == {"program": error}
    alone = export_network(server, architecture, tmp_path / "none", problem=problem, micro_batch=2, formats=["program"])
    assert alone.refused
    assert not (tmp_path / "none").exists()
    assert capfd.readouterr().err == ""


class InHalves(nn.Linear):
    """Computes a large batch in two parts, which a program traced with a small one cannot."""

    def forward(self, x):
        if x.shape[0] > 8:
            return torch.cat([super(InHalves, self).forward(part) for part in (x[:8], x[8:])])
        return super().forward(x)


def test_a_program_that_takes_no_other_batch_is_refused_in_one_line(tmp_path):
    problem = linear_problem(InHalves, samples=20)
    server, architecture = made(problem.pool, ["x"])
    export = export_network(server, architecture, tmp_path / "out", problem=problem, micro_batch=20)
    assert list(export.formats) == ["module", "state_dict"]
    assert re.match("torch.export's program does not run on 20 samples: [^\n]*; does", str(export.refused["program"]))


def test_positions_that_are_called_as_another_s_module_keep_their_own():
    names = ["train_", "train", "a_b_", "a.b", "a_b"]
    pool = LayerPool([Position(n, Candidate("x", partial(nn.Linear, 2, 2))) for n in names], inputs=TensorSpec((2,)))
    server, architecture = made(pool, ["x"] * len(names))
    network = build_network(server, architecture)
    assert [name for name, _ in network.named_children()] == ["train_", "train__", "a_b_", "a_b", "a_b__"]
    inputs, _ = random_data(pool, 3, seed=0)
    expected = Relay(server).predict(architecture, inputs, micro_batch=3)[0]
    with torch.no_grad():
        assert torch.equal(network(*inputs), expected)


def test_numbers_of_the_caller_stay_as_they_were(tmp_path):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    torch.manual_seed(3)
    before = torch.get_rng_state()
    build_network(server, architecture)
    export_network(server, architecture, tmp_path, problem=problem, micro_batch=2, formats=["state_dict"])
    assert torch.equal(torch.get_rng_state(), before)


class OfTwo(nn.Linear):
    """It takes two samples, and no other number."""

    def forward(self, x):
        return super().forward(x).view(2, 2)


def test_the_reasons_that_torch_lists_below_its_first_line_are_told():
    network = nn.Sequential(OfTwo(2, 2)).eval()
    with pytest.raises(
        ExportError, match=r"marked .* as dynamic but your code specialized it to be a constant"
    ) as caught:
        _ = ExportSource(Takes(network), (torch.zeros(2, 2),), None, None, None).program
    assert "\n" not in str(caught.value)
    assert "TORCH_LOGS" not in str(caught.value)


class Takes(nn.Module):
    """Its inputs are called as those of an exported network."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *inputs):
        return self.inner(*inputs)


class Exotic(nn.Linear):
    """`torch.export` traces it, ONNX has no such operation."""

    def forward(self, x):
        return torch.special.bessel_j0(super().forward(x))


@pytest.mark.slow
def test_what_onnx_cannot_hold_is_refused_in_one_line_and_the_other_formats_are_written(tmp_path, capfd):
    pytest.importorskip("onnxruntime")
    problem = linear_problem(Exotic)
    server, architecture = made(problem.pool, ["x"])
    formats = ["onnx", "program"]
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=2, formats=formats)
    assert list(export.formats) == ["module", "program"]
    assert "bessel_j0" in str(export.refused["onnx"])
    assert "\n" not in str(export.refused["onnx"])
    assert not (tmp_path / "model.onnx").exists()
    assert capfd.readouterr().err == ""


def test_a_single_sample_is_enough_to_check(tmp_path):
    problem = linear_problem(nn.Linear, samples=1)
    server, architecture = made(problem.pool, ["x"])
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=5)
    assert export.formats["program"].difference == 0
    assert torch.export.load(tmp_path / "model.pt2").module()(torch.ones(3, 2)).shape == (3, 2)


def test_formats_are_named_and_their_packages_must_be_there(tmp_path, monkeypatch):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    export = partial(export_network, server, architecture, tmp_path / "out", problem=problem, micro_batch=5)
    with pytest.raises(SettingError, match="no format 'onyx'; did you mean 'onnx'"):
        export(formats=["onyx"])
    with pytest.raises(SettingError, match="name at least one of state_dict, program, onnx"):
        export(formats=[])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name.startswith("onnx") else object())
    with pytest.raises(SettingError, match=r"package onnx and onnxscript .* pip install 'l2l-nas\[onnx\]'"):
        export(formats=["onnx"])
    assert not (tmp_path / "out").exists()


def test_differences_are_infinite_where_outputs_cannot_be_compared_and_nan_agrees_with_itself():
    x, nan = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert largest_difference((x,), (x,)) == 0
    assert largest_difference((nan,), (nan.clone(),)) == 0
    assert largest_difference((x + 0.25,), (x,)) == 0.25
    assert largest_difference((nan,), (x,)) == float("inf")
    assert largest_difference((x,), (x, x)) == float("inf")
    assert largest_difference((x.double(),), (x,)) == float("inf")
    assert largest_difference((torch.tensor([True]),), (torch.tensor([False]),)) == 1
