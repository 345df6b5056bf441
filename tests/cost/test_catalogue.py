from __future__ import annotations

import pytest
import torch

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.cost.catalogue import build_costs, parameters_cost
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.errors import SettingError
from l2l_nas.training.export import build_network
from tests.toys import dense_pool, language_pool, repeated_pool

PATH = ["dense", "twice", "skip", "partial", "mlp"]


def table(own=None, pool=None):
    pool = pool or dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    return build_costs(
        relay,
        (4,),
        build=lambda architecture: build_network(relay.server.fork(()), architecture),
        inputs=[torch.zeros(1, 3, 6)],
        own=own,
    )


def test_all_costs_of_an_architecture_are_found_and_positive():
    costs = table({"layers": lambda architecture: len(architecture.choices)})
    figures = costs.figures(dense_pool().architecture(PATH), measure=["latency_ms"])
    bytes_of = ["streamed_bytes", "device_bytes"]
    assert list(figures) == ["parameters", "file_bytes", "flops", *bytes_of, "latency_ms", "layers"]
    assert all(value > 0 for value in figures.values())
    assert figures["layers"] == 5


def test_step_times_are_predicted_where_a_machine_is_named():
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    costs = build_costs(relay, (4,), build=None, inputs=[], hardware=PROFILES["h100"])
    figures = costs.figures(pool.architecture(PATH))
    assert 0 < figures["forward_ms"] < figures["step_ms"]
    assert relay.server.visited == ()


def test_measuring_a_latency_makes_no_state_and_moves_no_random_number():
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    build = lambda architecture: build_network(relay.server.fork(()), architecture)  # noqa: E731
    costs = build_costs(relay, (4,), build=build, inputs=[torch.zeros(1, 3, 6)])
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    assert costs.value("latency_ms", pool.architecture(PATH)) > 0
    assert torch.equal(torch.rand(3), expected)
    assert relay.server.visited == ()


def test_parameters_are_a_sum_over_layers_only_where_none_are_shared():
    pool = dense_pool()
    cost = parameters_cost(pool)
    assert cost.of_layer is not None
    architecture = pool.architecture(PATH)
    assert sum(map(cost.of_layer, pool.path(architecture))) == num_parameters(pool, architecture)
    assert parameters_cost(repeated_pool()).of_layer is None
    assert parameters_cost(language_pool()).of_layer is None


@pytest.mark.parametrize(
    ("own", "says"),
    [
        ({"flops": len}, "cost 'flops': this library has one of this name"),
        ({"my cost": len}, "letters, digits and _"),
    ],
)
def test_names_that_cannot_be_are_refused(own, says):
    with pytest.raises(SettingError, match=says):
        table(own)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda a: 1 / 0, "for dense > twice.*, cost 'mine' raised ZeroDivisionError: division by zero"),
        (lambda a: float("nan"), "cost 'mine' gave nan, expected a finite number"),
        (lambda a: (1, 2), r"cost 'mine' gave \(1, 2\), expected a finite number"),
        (lambda a: 10**5000, "cost 'mine' gave a number too large for a float"),
    ],
)
def test_a_cost_of_the_user_s_own_that_gives_no_number_is_one_line(function, says):
    with pytest.raises(SettingError, match=says):
        table({"mine": function}).figures(dense_pool().architecture(PATH))
