"""A gradient that is a sum over ranks, threads of this process here, and whose it was where it is not finite."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch

from l2l_nas import SGD
from l2l_nas.eps import cut
from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.errors import NonFiniteError
from tests.eps.test_partition import KEY, Threads
from tests.parallel.test_split_pool import space

HUGE, NAN = 3e38, float("nan")


@pytest.mark.parametrize("is_cut", [True, False])
@pytest.mark.parametrize("is_checked", [True, False])
@pytest.mark.parametrize(
    ("values", "is_own"),
    [
        ([[1.0], [NAN]], [False, True]),
        ([[1.0, NAN], [1.0, 1.0]], [True, False]),  # the last number alone, which the second rank updates
        ([[NAN, 1.0], [1.0, NAN]], [None, None]),
        ([[HUGE], [HUGE]], [None, None]),
        ([[1.0], [1.0], [NAN], [1.0]], [False, False, True, False]),
    ],
)
def test_it_is_known_to_be_of_the_one_rank_whose_part_of_the_sum_it_was(
    values, is_own, is_checked, is_cut, monkeypatch
):
    if is_cut:
        monkeypatch.setattr(cut, "SMALL_BYTES", 0)
    size = len(values)
    shared = [None] * size, threading.Barrier(size)
    pool = space("gpt2")
    servers = [ShardedServer(pool, Threads(shared, n), optimizer=SGD(momentum=0.0), seed=5) for n in range(size)]
    for server in servers:
        server.prepare([KEY])

    def work(server):
        layout, inbox = server.layout(KEY), server.gradients
        block = GradientBlock(torch.full((gradient_bytes(layout),), 255, dtype=torch.uint8))  # NaN between parameters
        gradients = block.views(layout).gradients
        for gradient in gradients:
            gradient.fill_(values[server.exchange.rank][0])
        gradients[-1].view(-1)[-1] = values[server.exchange.rank][-1]
        inbox.add(KEY, block, [True] * len(layout.parameters), lr=1.0, step=3)
        check = partial(inbox.check, []) if is_checked else partial(inbox.update, KEY, checked=False)
        with pytest.raises(NonFiniteError, match=f"gradient of layer '{KEY}' is not finite at step 3") as caught:
            check(states=server.storage, clip=None)
        return caught.value.is_own

    with ThreadPoolExecutor(size) as threads:
        assert list(threads.map(work, servers)) == is_own


def test_a_sum_to_which_several_ranks_add_later_is_of_no_one():
    """A state that is used twice: one rank's first gradient is not finite, then those of both."""
    shared = [None] * 2, threading.Barrier(2)
    servers = [ShardedServer(space("gpt2"), Threads(shared, n), optimizer=SGD(), seed=5) for n in range(2)]
    for server in servers:
        server.prepare([KEY])

    def work(server):
        layout, inbox = server.layout(KEY), server.gradients
        for bad in ([0], [0, 1]):
            block = GradientBlock(torch.zeros(gradient_bytes(layout), dtype=torch.uint8))
            for gradient in block.views(layout).gradients:
                gradient.fill_(NAN if server.exchange.rank in bad else 1.0)
            inbox.add(KEY, block, [True] * len(layout.parameters), lr=1.0, step=3)
        with pytest.raises(NonFiniteError) as caught:
            inbox.check([], states=server.storage, clip=None)
        return caught.value.is_own

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(work, servers)) == [None, None]
