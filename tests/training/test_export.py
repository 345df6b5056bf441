from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.training.export import ExportError, build_network, export_network
from tests.toys import language_pool, random_data, repeated_pool


def made(pool, choices):
    architecture = pool.architecture(choices)
    return ParamServer(pool, optimizer=AdamW(), seed=0), architecture


LANGUAGE = ["embed", "attention", "feed", "attention", "head"]
REPEATED = ["dense", "normed", "dense", "twice", "head"]


@pytest.mark.parametrize(("pool", "choices"), [(language_pool(), LANGUAGE), (repeated_pool(), REPEATED)])
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
    network = build_network(server, architecture)
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


def test_the_program_takes_any_batch_and_the_state_dict_is_named_by_positions(tmp_path):
    pool = repeated_pool()
    server, architecture = made(pool, REPEATED)
    (x,), _ = random_data(pool, 9, seed=0)
    files = export_network(server, architecture, tmp_path / "out", example=(x[:4],))
    assert [path.name for path in files] == ["model.pt2", "state_dict.safetensors"]
    program = torch.export.load(files[0]).module()
    network = build_network(server, architecture)
    with torch.no_grad():
        for size in (1, 2, 9):
            torch.testing.assert_close(program(x[:size]), network(x[:size]))
    names = load_file(files[1]).keys()
    assert names == network.state_dict().keys()
    assert {name.split(".")[0] for name in names} == {"layer_00", "layer_01", "layer_02", "layer_03", "last"}


class Branching(nn.Linear):
    """Its path depends on a value, which cannot be traced."""

    def forward(self, x):
        y = super().forward(x)
        return y if x.device.type == "meta" or float(x.sum()) > 0 else -y


def test_what_cannot_be_traced_is_refused_in_one_line_and_nothing_is_written(tmp_path, capfd):
    pool = LayerPool([Position("a", Candidate("x", lambda: Branching(2, 2)))], inputs=TensorSpec((2,)))
    server, architecture = made(pool, ["x"])
    with pytest.raises(ExportError, match=r"torch\.export cannot trace this network") as caught:
        export_network(server, architecture, tmp_path / "out", example=(torch.ones(4, 2),))
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert capfd.readouterr().err == ""
