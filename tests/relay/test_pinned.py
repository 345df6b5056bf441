"""Pinned memory comes back when nobody uses it, is used again once no copy can run in it, and so does not grow."""

from __future__ import annotations

import gc
import random
import threading
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec, UniformPaths
from l2l_nas.relay.pinned import PinnedBlocks
from tests.relay.pinning import Allocator, Fences, PinningCpu, use
from tests.relay.steps import in_time
from tests.toys import SquaredError, dense_pool, random_data

SLAB = 4096


def make(*, late=False):
    allocator, fences = Allocator(), Fences(late)
    return PinnedBlocks(allocator.pin, fence=fences, slab_bytes=SLAB), allocator, fences


def test_blocks_are_aligned_parts_of_slabs_that_do_not_overlap():
    blocks, allocator, _ = make()
    taken = [blocks.take(size) for size in (1, 256, 257, 1000)]
    assert [block.numel() for block in taken] == [256, 256, 512, 1024]
    assert all(block.data_ptr() % 256 == taken[0].data_ptr() % 256 for block in taken)
    for number, block in enumerate(taken):
        block.fill_(number)
    assert [int(block.min()) for block in taken] == [int(block.max()) for block in taken] == [0, 1, 2, 3]
    assert allocator.calls == 1
    assert blocks.take(0).numel() == 0


def test_a_block_comes_back_when_the_last_view_of_it_is_gone():
    blocks, allocator, _ = make()
    block = blocks.take(SLAB)
    view = block[100:200].view(torch.float32).data  # as the stash makes them: no longer based on the block
    del block
    assert allocator.now == SLAB
    blocks.take(SLAB)
    assert allocator.calls == 2  # the first one is in use
    del view
    again = blocks.take(SLAB)
    assert again.numel() == SLAB
    assert allocator.calls == 2


def test_neighbours_that_came_back_are_one_free_part_again():
    blocks, allocator, _ = make()
    taken = [blocks.take(SLAB // 8) for _ in range(8)]
    order = list(range(8))
    random.Random(0).shuffle(order)
    for place in order:
        taken[place] = blocks.take(0)
    assert blocks.take(SLAB).numel() == SLAB
    assert allocator.calls == 1


def test_a_block_larger_than_a_slab_gets_one_of_its_own_and_takes_the_place_of_what_is_unused():
    blocks, allocator, _ = make()
    block = blocks.take(100)
    del block
    large = blocks.take(SLAB + 1)
    assert allocator.now == blocks.pinned_bytes == 2 * SLAB  # the unused slab went first
    small = blocks.take(SLAB // 2)
    assert allocator.calls == 2
    del large, small


def test_what_a_copy_may_still_read_is_not_used_again_before_it_is_done():
    blocks, allocator, fences = make(late=True)
    first, second = blocks.take(SLAB // 2), blocks.take(SLAB // 4)
    place = first.data_ptr()
    del first
    other = blocks.take(SLAB // 4)  # there is space beside it
    (fence,) = fences.made
    assert not fence.waits
    assert other.data_ptr() != place
    again = blocks.take(SLAB // 2)  # there is none now: rather wait than pin more
    assert fence.waits == 1
    assert again.data_ptr() == place
    assert allocator.calls == 1
    del second


def test_a_fence_is_made_after_the_block_came_back_and_an_older_one_does_not_count():
    blocks, _, fences = make(late=True)
    first, second = blocks.take(SLAB // 2), blocks.take(SLAB // 2)
    del first
    blocks.take(1)  # waits: all of it is in use or resting
    del second  # copies from it may have been issued since
    blocks.take(SLAB)
    assert [fence.waits for fence in fences.made] == [1, 1]


def test_a_slab_is_not_let_go_while_a_copy_may_run_in_it():
    blocks, allocator, fences = make(late=True)
    blocks.take(SLAB)
    blocks.take(2 * SLAB)
    assert [fence.waits for fence in fences.made] == [1]
    assert allocator.now == 2 * SLAB


def test_blocks_that_are_collected_in_the_midst_of_a_take_do_no_harm():
    blocks, allocator, _ = make()

    def pin(num_bytes):
        gc.collect()  # a finalizer runs under the lock
        return allocator.pin(num_bytes)

    blocks._pin = pin
    cycle: list[object] = [blocks.take(SLAB)]
    cycle.append(cycle)
    del cycle
    in_time(lambda: blocks.take(SLAB))
    assert blocks.take(SLAB).numel() == SLAB
    assert allocator.calls == 2


def test_threads_that_take_and_drop_never_share_a_block():
    blocks, allocator, _ = make()
    failures: list[int] = []

    def work(seed):
        draw = random.Random(seed)
        held: list[tuple[int, Tensor]] = []
        for number in range(2000):
            if len(held) > 3 or (held and draw.random() < 0.5):
                mark, block = held.pop(draw.randrange(len(held)))
                if not bool((block == mark).all()):
                    failures.append(number)
            else:
                held.append((draw.randrange(255), blocks.take(draw.randrange(1, 600))))
                held[-1][1].fill_(held[-1][0])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert allocator.peak <= 6 * SLAB  # 4 threads of 5 blocks of 600 bytes, and what lies between them


# The relay over such a device.


def normed_pool() -> LayerPool:
    """One position, two sizes, BatchNorm in both: as quick as it gets."""
    larger = lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Linear(2, 2))  # noqa: E731
    candidates = [Candidate("small", partial(nn.BatchNorm1d, 3)), Candidate("larger", larger)]
    return LayerPool([Position("body", candidates)], inputs=TensorSpec((3, 2)))


def forks_and_scores(device, count, *, lanes="inline"):
    """What a search does, in turns: train a fork of the shared weights, and score them on one of their own.

    Returns bytes pinned after a tenth, and at the end.
    """
    pool = normed_pool()
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu", stash="host", update="exact", lanes=lanes)
    inputs = (torch.ones(1, 3, 2),)
    targets = torch.zeros(1, 3, 2)
    paths = [pool.architecture([name]) for name in ("small", "larger")]
    keys = [[state for layer in pool.path(path) for state in layer.states] for path in paths]
    server.prepare(key for some in keys for key in some)
    pinned = []
    for number in range(count):
        path, states = paths[number % 2], keys[number % 2]
        relay.use(server.fork(states))
        if number // 2 % 2:
            relay.recalibrate(path, [inputs])
            relay.predict(path, inputs, micro_batch=1)
        else:
            options = {"objective": SquaredError(), "micro_batch": 1, "lr": 0.01, "step": number}
            relay.train_step(path, inputs, targets, **options)
        if number + 1 in (max(1, count // 10), count):
            relay.use(server)
            pinned.append((device.allocator.now, device.allocator.calls))
    relay.close()
    return pinned


@pytest.fixture
def no_garbage():
    """Blocks come back without the collector of cycles, which may be long in coming."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_ten_thousand_forks_and_scores_pin_no_more_than_the_first(monkeypatch, no_garbage):
    device = use(monkeypatch, PinningCpu(slab_bytes=1024))
    first, last = forks_and_scores(device, 10_000)
    assert first == last
    assert device.allocator.peak <= 8192


@pytest.mark.parametrize("late", [False, True])
def test_nor_do_they_with_lanes_in_threads(monkeypatch, no_garbage, late):
    device = use(monkeypatch, PinningCpu(slab_bytes=1024, late=late))
    forks_and_scores(device, 400, lanes="threads")
    assert device.allocator.peak <= 8192


def test_they_would_if_blocks_did_not_come_back(monkeypatch):
    device = use(monkeypatch, PinningCpu(slab_bytes=1024))
    monkeypatch.setattr(PinnedBlocks, "_rest", lambda self: None)
    (first, _), (last, _) = forks_and_scores(device, 200)
    assert last > 5 * first


def test_a_stash_that_was_outgrown_gives_its_memory_back(monkeypatch, no_garbage):
    device = use(monkeypatch, PinningCpu(slab_bytes=1024))
    pool = dense_pool()
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", stash="host")
    path = pool.architecture(["dense"] * 4 + ["linear"])
    for batch in (1, 300, 600, 900):
        inputs, targets = random_data(pool, batch, seed=batch)
        relay.train_step(path, inputs, targets, objective=SquaredError(), micro_batch=batch, lr=0.01, step=batch)
    needed = relay.stash._host.numel()
    assert needed > 1 << 17
    assert device.allocator.now <= (1 << needed.bit_length()) + 4096  # without that: all four
    relay.close()


def test_training_over_pinned_blocks_is_equal_to_training_without(monkeypatch):
    def losses():
        pool = dense_pool()
        server = ParamServer(pool, optimizer=AdamW(), seed=0)
        relay = Relay(server, device="cpu", stash="host", lanes="threads", update="exact")
        sampler = UniformPaths(pool, seed=0)
        found = []
        for step in range(30):
            path = sampler.path_at(step)
            if step % 3 == 2:
                relay.use(server.fork(state for layer in pool.path(path) for state in layer.states))
            inputs, targets = random_data(pool, 5, seed=step)
            options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
            found.append(relay.train_step(path, inputs, targets, **options).loss)
            found.append(float(relay.predict(path, inputs, micro_batch=3)[0].sum()))
            relay.use(server)
        relay.close()
        return found

    expected = losses()
    device = use(monkeypatch, PinningCpu(late=True))
    assert losses() == expected
    assert device.allocator.calls
