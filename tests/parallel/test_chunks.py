"""Sums over chunks: plain PyTorch with the same tree gives the same bits, and the tree is what it says."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.gradients import gradient_bytes
from l2l_nas.eps.inbox import QueuedGradient
from l2l_nas.eps.sums import BLOCK, Chunks, ChunkTree, cut_chunks, norm_of, squares_of, tree_sum
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.relay.config import ParallelConfig
from tests.equivalence.plain import Plain
from tests.equivalence.test_relay_equals_plain import (
    each_run,
    first_server,
    plain_tensors,
    relay_of,
    train,
)
from tests.toys import SquaredError

PATHS = ["unet", "cell", "decoder", "elastic", "mixers"]


def leaves(sums, tree, *, chunks):
    """What a tree makes of the sums of chunks, those of None being empty."""
    values, partials = [torch.zeros(3)], [[torch.full((3,), torch.nan)] for _ in range(chunks.bit_length() - 1)]
    for chunk in sums:
        if chunk is not None:
            values[0].add_(chunk)
        tree.end_chunk(values, partials, is_empty=chunk is None)
    return values[0]


@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
@pytest.mark.parametrize("empty", [(), (0,), (1,), (0, 2), (0, 1, 2)])
def test_a_tree_adds_in_pairs(chunks, empty):
    sums = [None if n in empty and n < chunks - 1 else torch.rand(3) * 10.0**n for n in range(chunks)]
    expected = tree_sum([torch.zeros(3) if one is None else one for one in sums])
    tree = ChunkTree(chunks)
    for _ in range(2):  # it begins anew after the last chunk
        assert torch.equal(leaves(sums, tree, chunks=chunks), expected)


def test_a_tree_is_another_sum_than_one_after_the_other():
    sums = [torch.full((3,), value) for value in (1.0, 2.0**24, 1.0, 1.0)]
    assert not torch.equal(tree_sum(sums), sum(sums))


@pytest.mark.parametrize("micro_batches", range(1, 12))
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_ranks_have_the_chunks_of_one_process(micro_batches, chunks):
    whole = cut_chunks(micro_batches, chunks)
    assert whole.starts[0] == 0
    assert whole.starts[-1] == micro_batches
    for size in (1, 2, 4, 8):
        if size > chunks:
            continue
        parts = [cut_chunks(micro_batches, chunks, rank=rank, size=size) for rank in range(size)]
        assert [n for part in parts for n in part.micro_batches] == list(range(micro_batches))
        for part in parts:
            assert part.starts == whole.starts[part.first : part.first + chunks // size + 1]
            ended = [chunk for index in range(len(part.micro_batches)) for chunk in part.ending(index)]
            assert ended == ([] if part.is_idle else list(range(part.count)))
            assert all(not part.is_empty(part.of(index)) for index in range(len(part.micro_batches)))


def test_where_chunks_end():
    assert Chunks((0, 2, 2, 3, 5), 0, 4).ending(1) == [0, 1]
    assert Chunks((0, 0, 1), 0, 2).ending(0) == [0, 1]
    assert Chunks((0, 2, 2, 3, 5), 2, 2).ending(0) == [0]


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [2, 4, 8])
def test_training_equals_plain_pytorch_that_sums_by_chunks(chunks):
    @each_run(PATHS, examples=6)
    def check(run):
        run["options"]["clip"] = None
        server = first_server(run)
        relay = relay_of({**run, "options": {**run["options"], "chunks": chunks}}, server)
        losses = train(run, relay.train_step)
        plain = Plain(first_server(run), seed=run["seed"], chunks=chunks)
        assert losses == train(run, plain.step)
        for key in server.visited:
            tensors = server.state(key).tensors()
            for tensor_name, expected in plain_tensors(plain, key).items():
                # of running statistics see [Note: statistics]
                compared = torch.allclose if ".running_" in tensor_name else torch.equal
                assert compared(tensors[tensor_name], expected), f"{key} {tensor_name}"
        relay.close()

    check()


@pytest.mark.slow
@each_run([*PATHS, "dense"], examples=4)
def test_one_chunk_is_todays_sum(run):
    run["options"]["clip"] = None
    servers = [first_server(run) for _ in range(2)]
    relays = [
        relay_of({**run, "options": {**run["options"], "chunks": chunks}}, server)
        for server, chunks in zip(servers, (None, 1), strict=True)
    ]
    assert train(run, relays[0].train_step) == train(run, relays[1].train_step)
    for key in servers[0].visited:
        first, second = (server.state(key).tensors() for server in servers)
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_block_norms_are_those_of_any_cut():
    gradient = torch.randn(5 * BLOCK + 77)
    squares = squares_of([gradient])
    assert squares.dtype == torch.float64
    for cut in range(0, gradient.numel(), BLOCK):
        assert torch.equal(squares, squares_of([gradient[:cut], gradient[cut:]]))
    assert norm_of([squares]) == norm_of([squares.flip(0)[:2], squares.flip(0)[2:]])
    torch.testing.assert_close(norm_of([squares]), gradient.norm())
    assert torch.equal(norm_of([squares], 0.5), norm_of([squares]) * 0.5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_shows_what_is_not_finite(bad):
    squares = squares_of([torch.tensor([1.0, bad]), torch.ones(3)])
    assert not norm_of([squares]).isfinite()
    assert squares_of([torch.tensor([3e38, 3e38])]).isfinite().all()  # which overflows in float32


@pytest.mark.parametrize("chunks", [0, 3, -2, True, 2.0])
def test_chunks_are_a_power_of_two(chunks):
    with pytest.raises(SettingError, match="chunks"):
        ParallelConfig(chunks=chunks)


class Normed(nn.Module):
    def __init__(self, momentum):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(6, momentum=momentum), nn.Linear(6, 6)

    def forward(self, x):
        return x + self.linear(self.norm(x))


class Counting(nn.Linear):
    """Changes a buffer that is no running statistic."""

    def __init__(self):
        super().__init__(6, 6)
        self.register_buffer("calls", torch.zeros(2, 2))

    def forward(self, x):
        if self.training:
            self.calls.add_(1)
        return super().forward(x)


def one_layer(candidate):
    head = Position("head", Candidate("head", partial(nn.Linear, 6, 6)))
    return LayerPool([Position("layer", candidate), head], inputs=(TensorSpec((6,), torch.float32),))


def stepped(pool, *, steps=3, **options):
    server = ParamServer(pool, optimizer=AdamW(), seed=1)
    relay = Relay(server, device="cpu", lanes="inline", **options)
    architecture = pool.architecture([position.candidates[0].name for position in pool.positions])
    for step in range(steps):
        data = torch.Generator().manual_seed(step)
        inputs, targets = (torch.rand(14, 6, generator=data) for _ in range(2))
        relay.train_step(architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.01, step=step)
    state = server.state(server.visited[0])
    relay.close()
    return state.named_buffers()


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("options", [{}, {"keep": 2}, {"update": "exact"}])
@pytest.mark.parametrize("chunks", [1, 2, 4, 8])
def test_running_statistics_are_those_of_one_pass_but_for_rounding(momentum, options, chunks):
    pool = one_layer(Candidate("normed", partial(Normed, momentum)))
    expected, found = stepped(pool), stepped(pool, chunks=chunks, **options)
    assert found["norm.num_batches_tracked"] == expected["norm.num_batches_tracked"] == 21
    for name in ("norm.running_mean", "norm.running_var"):
        assert not torch.equal(found[name], torch.zeros(6))
        torch.testing.assert_close(found[name], expected[name], rtol=2e-6, atol=2e-6)


def test_another_buffer_that_changes_is_refused():
    pool = one_layer(Candidate("counting", Counting))
    assert stepped(pool, chunks=1)["calls"].unique().tolist() == [21]
    with pytest.raises(SpaceError, match=r"changes its buffer 'calls' in training"):
        stepped(pool, chunks=2)


class Failing(nn.Linear):
    """Raises in its backward, at the second micro-batch, once."""

    left = 0

    def __init__(self):
        super().__init__(6, 6)

    def forward(self, x):
        if Failing.left and torch.is_grad_enabled():
            Failing.left -= 1
            if not Failing.left:
                raise ValueError("broken")
        return super().forward(x)


@pytest.mark.parametrize("calls", range(2, 9))
def test_a_step_that_failed_between_two_chunks_leaves_nothing(calls):
    pool = one_layer(Candidate("failing", Failing))
    found = []
    for fails in (False, True):
        server = ParamServer(pool, optimizer=AdamW(), seed=1)
        relay = Relay(server, device="cpu", lanes="inline", chunks=4, update="exact")
        data = torch.Generator().manual_seed(0)
        inputs, targets = (torch.rand(8, 6, generator=data) for _ in range(2))
        step = partial(
            relay.train_step, pool.architecture(["failing", "head"]), inputs, targets,
            objective=SquaredError(), micro_batch=2, lr=0.01, step=0,
        )  # fmt: skip
        if fails:
            Failing.left = calls
            with pytest.raises(SpaceError, match="broken"):
                step()
            assert not Failing.left
        found.append(step().gradient_norm)
        relay.close()
    assert found[0] == found[1] > 0


def test_a_layer_with_statistics_that_is_used_twice_is_refused_with_chunks():
    normed = Candidate("normed", partial(Normed, 0.1))
    pool = LayerPool.repeated(
        [normed], depth=2, inputs=TensorSpec((6,)), last=Candidate("head", partial(nn.Linear, 6, 6))
    )
    assert stepped(pool)["norm.num_batches_tracked"] == stepped(pool, chunks=1)["norm.num_batches_tracked"] == 42
    with pytest.raises(SpaceError, match="used twice in this architecture"):
        stepped(pool, chunks=2)


def test_a_second_relay_on_a_server_leaves_the_first_its_norms():
    pool = one_layer(Candidate("normed", partial(Normed, 0.1)))
    server = ParamServer(pool, optimizer=AdamW(), seed=1)
    first = Relay(server, device="cpu", chunks=2, update="exact")
    Relay(server, device="cpu")
    data = torch.Generator().manual_seed(0)
    inputs, targets = (torch.rand(8, 6, generator=data) for _ in range(2))
    result = first.train_step(
        pool.architecture(["normed", "head"]), inputs, targets,
        objective=SquaredError(), micro_batch=2, lr=0.01, step=0,
    )  # fmt: skip
    assert result.gradient_norm > 0


class Used(nn.BatchNorm1d):
    """Computes on its running statistics in training, which a recompute must find as the forward did."""

    def forward(self, x):
        result = (x - self.running_mean) * self.weight
        super().forward(x)
        return result


@pytest.mark.parametrize("chunks", [2, 4])
def test_a_recompute_begins_each_chunk_as_its_forward_did(chunks):
    pool = one_layer(Candidate("used", partial(Used, 6)))
    norms = []
    for keep in (1, 2):
        server = ParamServer(pool, optimizer=AdamW(), seed=1)
        relay = Relay(server, device="cpu", chunks=chunks, update="exact", keep=keep)
        data = torch.Generator().manual_seed(0)
        inputs, targets = (torch.rand(20, 6, generator=data) for _ in range(2))
        result = relay.train_step(
            pool.architecture(["used", "head"]), inputs, targets,
            objective=SquaredError(), micro_batch=2, lr=0.01, step=0,
        )  # fmt: skip
        norms.append(result.gradient_norm)
        relay.close()
    assert norms[0] == pytest.approx(norms[1], rel=1e-6)


def test_an_overflow_that_one_rank_has_counts_on_all():
    server = ParamServer(one_layer(Candidate("counting", Counting)), optimizer=AdamW(), seed=1)
    inbox, key = server.gradients, "layer/counting"
    block = inbox.allocate(gradient_bytes(server.layout(key)))
    block.memory.zero_()  # this rank's part is finite
    inbox.has_block_norms = True
    norms = torch.tensor([1.0, torch.inf], dtype=torch.float64)
    queued = QueuedGradient(0.1, 0, parts=[block], norms=norms)
    assert inbox._not_finite({key: queued}) == [key]
