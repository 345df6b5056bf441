"""Transformers as figures: against closed forms."""

from __future__ import annotations

import pytest

from benchmarks.machines.sharing import Parallelism
from benchmarks.machines.transformers import (
    Transformer,
    host_parameters,
    least_tokens,
    relay_step,
    resident_step_s,
)
from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.profiles import PROFILES

BERT_LARGE = Transformer(hidden=1024, layers=24, sequence=512, vocabulary=30522)


def test_parameters_are_those_of_published_models():
    assert BERT_LARGE.layer_parameters == 12_596_224
    assert BERT_LARGE.num_parameters == pytest.approx(336e6, rel=0.02)
    # Megatron-LM's largest (arXiv 1909.08053, table 1)
    assert Transformer(3072, 72, vocabulary=51_200).num_parameters == pytest.approx(8.3e9, rel=0.01)


def test_tensor_parallel_devices_are_faster_and_less_efficient():
    v100 = PROFILES["v100"]
    one, eight = (
        resident_step_s(BERT_LARGE, v100, tokens=4096, precision="fp16", ways=Parallelism(tensor=n)) for n in (1, 8)
    )
    assert one / 8 < eight < one


def test_recompute_costs_a_third():
    h100 = PROFILES["h100"]
    model = Transformer(8192, 4)
    plain, again = (
        resident_step_s(model, h100, tokens=65536, precision="bf16", recompute=one) for one in (False, True)
    )
    assert again / plain == pytest.approx(4 / 3, rel=0.02)


def test_from_the_least_tokens_on_compute_has_the_most_work():
    h100, shape = PROFILES["h100"], RelayShape(slots=3)
    found = least_tokens(BERT_LARGE, h100, precision="bf16")
    assert relay_step(BERT_LARGE, h100, shape, tokens=found, precision="bf16").binds == "compute"
    assert relay_step(BERT_LARGE, h100, shape, tokens=found // 2, precision="bf16").binds != "compute"


def test_ranks_that_share_states_load_faster():
    h100, shape = PROFILES["h100"], RelayShape(slots=3)
    one, eight = (
        relay_step(BERT_LARGE, h100, shape, tokens=512, precision="bf16", ranks=ranks).step_s for ranks in (1, 8)
    )
    assert eight < one


def test_host_memory_bounds_the_parameters():
    assert host_parameters(512e9, 12) == 42_666_666_666
