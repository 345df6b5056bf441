"""Tensor parallelism with narrower products: against closed forms, and against what was published."""

from __future__ import annotations

import pytest

from benchmarks.machines import scale
from benchmarks.machines.sharing import Parallelism
from benchmarks.machines.tensor_parallel import TILE, Product, TensorParallel
from benchmarks.machines.transformers import Transformer
from l2l_nas.cost.profiles import PROFILES

H100 = PROFILES["h100"]


def test_a_product_costs_all_tiles_of_whole_waves():
    high, wide = TILE
    full = Product(10 * high, 64, 8 * wide)
    assert full.in_waves(80) == full.flops
    assert Product(10 * high, 64, 8 * wide + 1).in_waves(80) == 2 * full.flops  # nine columns of tiles, two waves
    assert Product(1, 64, 1).in_waves(80) == full.flops
    assert full.flops == 2 * 10 * high * 64 * 8 * wide


def test_the_products_of_all_devices_are_those_of_the_model():
    model = Transformer(1536, 4, vocabulary=51_200)
    one, four = (TensorParallel(model, devices, 8192, 80) for devices in (1, 4))
    assert one.flops == four.flops
    assert sum(product.flops for product in one.layer_products()) == model.forward(8192).flops


def test_narrower_products_are_less_efficient_and_what_is_not_divided_costs_time():
    model = Transformer(1536, 4, vocabulary=51_200)
    one, eight = (TensorParallel(model, devices, 8192, 80) for devices in (1, 8))
    times = [each.step_s(H100, Parallelism(tensor=each.devices)) for each in (one, eight)]
    assert times[0] / 8 < times[1] < times[0]


def test_megatrons_efficiencies_are_predicted_within_five_points_but_for_one():
    base = scale.megatron_rates(0)[0]
    assert base == pytest.approx(39e12)
    errors = {}
    for row, (*_, total, own, both) in enumerate(scale.MEGATRON):
        alone, together = (rate / base for rate in scale.megatron_rates(row))
        errors[row, 1], errors[row, total] = alone - own, together - both
    assert {place for place, error in errors.items() if abs(error) > 0.05} == {(1, 128)}
    assert abs(errors[1, 128]) < 0.12


def test_sequence_parallelism_pays_where_layers_are_wide_and_micro_batches_long():
    def ratio(hidden, tokens):
        model = Transformer(hidden, 4, vocabulary=51_200)
        without, by_sequence = (
            TensorParallel(model, 8, tokens, 132, one).step_s(H100, Parallelism(tensor=8)) for one in (False, True)
        )
        return by_sequence / without

    assert ratio(7680, 8192) < 1 < ratio(1536, 1024)
