from __future__ import annotations

import pytest
import torch

from benchmarks.relay.others import Stack, token_loss
from benchmarks.relay.peers import SIDES
from tests.benchmarks.stacks import TINY


def test_recomputing_changes_no_gradient():
    plain = torch.nn.Sequential(*TINY.modules())
    stack = Stack(TINY.modules())
    for model in (plain, stack):
        token_loss(model(TINY.tokens), TINY.tokens, TINY.tokens.numel()).backward()
    pairs = zip(plain.parameters(), stack.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


@pytest.mark.parametrize("name", ["fsdp2", "l2l_pytorch", "deepspeed"])
def test_a_peer_cannot_tell_its_device_side_and_can_be_built_twice(name):
    side = SIDES[name]
    if side.unavailable():
        pytest.skip(side.unavailable())
    for _ in range(2):
        runner = side.build(TINY)
        assert runner.device_bytes() is None
        assert runner.step(0) > 0
        runner.finish()
        runner.close()
