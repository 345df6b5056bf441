"""Servers whose layers are divided among ranks, which are threads of this process here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch

from l2l_nas import SGD, AdamW, Group, Groups, Muon, ParamServer, plain_module
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.exchange import Mesh
from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.identity import fingerprint, space_of
from l2l_nas.eps.optimizers.groups import freeze
from l2l_nas.eps.optimizers.rules import Adafactor
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.sharded import ShardedServer
from l2l_nas.eps.storage import RamStorage
from l2l_nas.errors import NonFiniteError, SettingError
from l2l_nas.parallel.collectives import Ranks, Unjoined
from l2l_nas.parallel.split_pool import SplitPool
from l2l_nas.training.export import build_network
from tests.parallel.test_split_pool import space

KEY = "feedforward_0/width_64"


class Threads:
    """An exchange of threads."""

    def __init__(self, shared, rank):
        self._rows, self._barrier = shared
        self.rank, self.size = rank, len(self._rows)
        self.members = range(self.size)

    def all_gather(self, part, whole, channel, of=""):
        self._rows[self.rank] = part.clone()
        self._barrier.wait(60)
        whole.copy_(torch.stack(self._rows))
        self._barrier.wait(60)

    def working(self, what):
        return nullcontext()

    def all_to_all(self, parts, received, channel, of=""):
        self._rows[self.rank] = parts.clone()
        self._barrier.wait(60)
        received.copy_(torch.stack([parts[self.rank] for parts in self._rows]))
        self._barrier.wait(60)


def on_threads(size, pool, work, optimizer=None):
    """What `work(server)` returns, by rank."""
    shared = [None] * size, threading.Barrier(size)
    servers = [server_of(Threads(shared, rank), pool, optimizer) for rank in range(size)]
    for server in servers:
        server.prepare(sorted(pool.states))  # one after the other, as threads share torch's random numbers

    def run(server):
        try:
            return work(server)
        except BaseException:
            shared[1].abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, servers))


def server_of(exchange, pool, optimizer=None):
    split = SplitPool(pool, Ranks(Unjoined(exchange.rank, exchange.size)))
    return ShardedServer(split, Mesh(exchange, tensor=exchange), optimizer=optimizer or AdamW(), seed=5)


def filled(pool):
    """A server of one process, whose states were updated, each parameter another number of times."""
    server = ParamServer(pool, optimizer=AdamW(), seed=5)
    generator = torch.Generator().manual_seed(3)
    for key in sorted(pool.states):
        state = server.state(key)
        for name, tensor in state.tensors().items():
            if "." in name and tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=generator))
        state.steps.copy_(torch.arange(len(state.steps)) + 1)
        state.mark_changed()
    return server


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("size", [2, 4])
def test_saves_are_those_of_one_process_file_by_file(size, tmp_path):
    pool = space("gpt2")
    Checkpoint(tmp_path / "one").save(filled(pool), extra={"step": 7})

    def work(server):
        assert Checkpoint(tmp_path / "one").load(server) == {"step": 7}
        Checkpoint(tmp_path / "some").save(server, extra={"step": 7})
        own = server.storage.open(KEY).parameters()
        return own["up.weight"].shape, own["down.bias"].shape

    assert on_threads(size, pool, work) == [((64 // size, 32), (32,))] * size
    assert files_of(tmp_path / "some") == files_of(tmp_path / "one")
    back = ParamServer(pool, optimizer=AdamW(), seed=5)
    Checkpoint(tmp_path / "some").load(back)
    assert torch.equal(back.state(KEY).weights, filled(pool).state(KEY).weights)


def test_first_states_are_those_of_one_process():
    pool = space("llama")
    one = ParamServer(pool, optimizer=AdamW(), seed=5)
    one.prepare(sorted(pool.states))  # not within the threads, which share torch's random numbers

    def work(server):
        return all(
            torch.equal(tensor, one.state(key).tensors()[name])
            for key in sorted(pool.states)
            for name, tensor in server.state(key).tensors().items()
        )

    assert on_threads(2, pool, work) == [True, True]


def test_a_change_of_a_whole_state_and_a_fork_reach_every_part():
    pool = space("gpt2")

    def work(server):
        with server.writing(KEY) as state:
            state.parameters()["up.weight"].fill_(2)
        copy = server.fork([KEY])
        return copy.storage.open(KEY).parameters()["up.weight"], copy.state(KEY).parameters()["up.weight"]

    for part, whole in on_threads(2, pool, work):
        assert torch.equal(part, torch.full((32, 32), 2.0))
        assert torch.equal(whole, torch.full((64, 32), 2.0))


def test_identity_and_exported_networks_are_those_of_the_whole_pool():
    pool = space("gpt2")
    architecture = pool.architecture([position.candidates[0].name for position in pool.positions])

    def work(server):
        network = build_network(server, architecture).state_dict()
        return fingerprint(server.whole_pool), space_of(server.whole_pool), network

    expected = build_network(ParamServer(pool, optimizer=AdamW(), seed=5), architecture).state_dict()
    for found, known, network in on_threads(2, pool, work):
        assert (found, known) == (fingerprint(pool), space_of(pool))
        assert network.keys() == expected.keys() == plain_module(pool, architecture).state_dict().keys()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in network.items())


class Told:
    """An exchange with a rank that gives this number."""

    size, members = 2, (0, 1)

    def __init__(self, rank, number):
        self.rank, self._number = rank, number

    def all_gather(self, part, whole, channel, of=""):
        whole[self.rank].copy_(part)
        whole[1 - self.rank] = torch.tensor([self._number, 0.0])


def added(rank, number, value=1.0, **clip):
    """A server of a rank whose gradients all have a value, where the other rank tells of a number."""
    split = SplitPool(space("gpt2"), Ranks(Unjoined(rank, 2)))
    server = ShardedServer(split, Mesh(tensor=Told(rank, number)), optimizer=SGD(momentum=0.0), seed=5)
    server.gradients.has_block_norms = True
    server.prepare([KEY])
    add(server, value)
    return server


def add(server, value):
    """Have a server's gradients of a state all be a value."""
    layout = server.layout(KEY)
    block = GradientBlock(torch.zeros(gradient_bytes(layout), dtype=torch.uint8))
    for gradient in block.views(layout).gradients:
        gradient.fill_(value)
    server.gradients.add(KEY, block, [True] * len(layout.parameters), lr=1.0, step=0)


def test_a_norm_counts_parts_of_all_ranks_and_once_what_all_have():
    whole, part = 32 + 32 + 32, 64 * 32 + 32 + 0  # of norm and of the second bias; of both matrices and the first bias
    sizes = [
        (split.is_whole(KEY, name), tensor.numel())
        for split in [SplitPool(space("gpt2"), Ranks(Unjoined(0, 2)))]
        for name, tensor in ParamServer(split.parts, optimizer=SGD(), seed=5).state(KEY).parameters().items()
    ]
    assert sum(numel for is_whole, numel in sizes if is_whole) == whole
    assert sum(numel for is_whole, numel in sizes if not is_whole) == part
    for rank, own in ((0, whole + part), (1, part)):
        check = added(rank, 7.0).gradients.check([], RamStorage(), clip=None)
        assert check.norm == pytest.approx((own + 7) ** 0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_number_that_is_not_finite_on_another_rank_refuses_the_step_here(rank):
    for number in (float("nan"), float("inf")):
        server = added(rank, number)
        before = server.storage.open(KEY).weights.clone()
        with pytest.raises(NonFiniteError) as caught:
            server.gradients.update(KEY, server.storage, checked=False)
        assert caught.value.layer == KEY
        assert torch.equal(server.storage.open(KEY).weights, before)
        with pytest.raises(NonFiniteError):
            added(rank, number).gradients.check([], RamStorage(), clip=None)


@pytest.mark.parametrize(("bad", "is_own"), [([1], [False, True]), ([0, 1], [None, None])])
def test_a_gradient_that_is_not_finite_is_known_to_be_of_the_one_rank_whose_part_it_was(bad, is_own):
    def work(server):
        rank = server.mesh.tensor.rank
        add(server, float("nan") if rank in bad else 1.0)
        with pytest.raises(NonFiniteError) as caught:
            server.gradients.check([], server.storage, clip=None)
        return caught.value.is_own

    assert on_threads(2, space("gpt2"), work) == is_own


def test_an_overflow_on_another_rank_skips_the_step_and_lowers_the_scale():
    server = added(1, float("inf"))
    server.gradients.scale_losses()
    before = server.gradients.loss_scale.scale
    check = server.gradients.check([], server.storage, clip=None, is_scaled=True)
    assert check.is_refused
    assert server.gradients.loss_scale.scale == before / 2


def test_a_layer_is_clipped_by_the_norm_of_all_its_parts():
    for rank, own in ((0, 96 + 2080), (1, 2080)):
        server = added(rank, 7.0)
        before = server.storage.open(KEY).parameters()["up.bias"].clone()
        server.gradients.update(KEY, server.storage, checked=False, clip=Clip(0.5, "layer"))
        change = before - server.storage.open(KEY).parameters()["up.bias"]
        assert change.tolist() == pytest.approx([0.5 / (own + 7) ** 0.5] * 32, rel=1e-4)


def test_groups_see_whole_parameters():
    seen = set()

    def rate(parameter):
        seen.add((parameter.path, parameter.shape))
        return 1.0 if parameter.shape[0] == 64 else 0.5

    optimizer = Groups(SGD(), [Group("*/up.weight", lr_scale=rate)])

    def work(server):
        calls = server.rules.of(KEY).calls
        index = [entry.name for entry in server.layout(KEY).parameters].index("up.weight")
        return next(call.lr_scale for call in calls if index in call.indices)

    assert on_threads(2, space("gpt2"), work, optimizer) == [1.0, 1.0]
    assert {shape for path, shape in seen if path.startswith(KEY)} == {(64, 32)}


@pytest.mark.parametrize("optimizer", [Muon(), Adafactor()])
def test_rules_that_need_whole_weights_are_refused(optimizer):
    said = (
        f"optimizer {optimizer.name} updates whole weights, but '.*' of '.*' is divided among 2 ranks; take adamw, sgd "
        "or lion, leave such parameters to them by a group, or have parallel.tensor=1"
    )
    with pytest.raises(SettingError, match=said):
        server_of(Told(0, 0.0), space("gpt2"), optimizer)


def test_parameters_that_every_rank_has_may_be_updated_as_whole_ones():
    groups = Groups(AdamW(), [Group("norm/*", rule=Adafactor())])
    assert server_of(Told(0, 0.0), space("gpt2"), groups).optimizer is groups


def test_a_pool_is_frozen_before_it_is_divided():
    groups = Groups(AdamW(), [Group("norm/*", frozen=True)])
    with pytest.raises(SettingError, match="divide the pool that freeze"):
        server_of(Told(0, 0.0), space("gpt2"), groups)
    server = server_of(Told(0, 0.0), freeze(space("gpt2"), groups), groups)
    assert not server.layout("norm/layer").is_trainable
