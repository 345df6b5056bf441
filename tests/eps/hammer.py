"""Processes that use one shared storage as hard as they can. Each update is the same, so that the number of updates a
state has had decides its content, whoever made them: `checksums` tells which content belongs to which number.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import warnings
import zlib
from dataclasses import dataclass
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn

from l2l_nas import AdamW, Candidate, LayerPool, ParamServer, Position, Relay, TensorSpec
from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.eps.layout import Layout
from l2l_nas.eps.scale import norms_of
from l2l_nas.eps.shared_storage import SharedStorage
from l2l_nas.eps.state import LayerState, Part
from l2l_nas.relay.trace import Trace
from tests.toys import SquaredError

WIDTH = 192  # an update takes long enough to be seen in the middle


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


POOL = LayerPool(
    [Position("first", [Candidate(name, layer) for name in "ab"]), Position("last", Candidate("c", layer))],
    inputs=TensorSpec((WIDTH,)),
)
KEYS = POOL.states


def server_on(storage) -> ParamServer:
    return ParamServer(POOL, optimizer=AdamW(), seed=0, storage=storage)


def with_norms(gradients: Tensor, layout: Layout) -> GradientBlock:
    """Gradients as a layer sends them, with their norms behind them."""
    block = GradientBlock(gradients)
    views = block.views(layout)
    norms_of(views.gradients, out=views.norms)
    return block


def update(server: ParamServer, key: str) -> None:
    layout = server.layout(key)
    block = with_norms(torch.ones(gradient_bytes(layout) // 4).view(torch.uint8), layout)
    server.gradients.add(key, block, [True] * len(layout.parameters), lr=0.01, step=0)
    server.gradients.update(key, server.storage, checked=False)


def checksum(state: LayerState) -> int:
    blocks = (state.weights, *state.moments, state.steps.view(torch.uint8))
    return zlib.crc32(b"".join(block.numpy().tobytes() for block in blocks))


def checksums(count: int) -> dict[tuple[str, int], int]:
    """Of each state after 0, 1, ... updates, by one process alone."""
    server = ParamServer(POOL, optimizer=AdamW(), seed=0)
    found = {}
    for key in KEYS:
        for number in range(count + 1):
            found[key, number] = checksum(server.state(key))
            update(server, key)
    return found


def write(storage: SharedStorage, count: int, talk: Connection) -> None:
    """So many updates of random states; then tells how many of which, and the versions they had."""
    server = server_on(storage)
    rng = random.Random(os.getpid())
    server.prepare(KEYS)
    made = dict.fromkeys(KEYS, 0)
    for _ in range(count):
        key = rng.choice(KEYS)
        update(server, key)
        made[key] += 1
        if rng.random() < 0.1:  # as BatchNorm's statistics are: all values the same
            with storage.writing(key, Part.BUFFERS) as state:
                state.store_buffers(torch.full_like(state.buffers, rng.randrange(256)))
    with server.storage.reading(KEYS[0], Part.ALL) as state:
        talk.send({"made": made, "version": state.version})


def read(storage: SharedStorage, count: int, talk: Connection) -> None:
    """Looks until all states have had so many updates; tells what was torn, and how often it looked."""
    seen: list[tuple[str, int, int]] = []
    torn = []
    while True:
        visits = []
        for key in set(storage.keys):
            with storage.reading(key, Part.ALL) as state:
                copy = state.clone()
            visits.append(copy.visits)
            seen.append((key, copy.visits, checksum(copy)))
            if copy.visits and len(set(copy.buffers.tolist())) > 40:  # zeros and ones before, or one value
                torn.append([key, "buffers"])
        if len(visits) == len(KEYS) and sum(visits) >= count:
            break
    talk.send({"seen": seen, "torn": torn})


def half(storage: SharedStorage, part: str, _: Connection) -> None:
    """Is killed in the middle of a change."""
    with storage.writing(KEYS[0], Part[part]) as state:
        if part == "ALL":
            state.weights[: state.weights.numel() // 2].zero_()
            state.moments[1].fill_(7)
            state.steps.add_(1)
            storage._visits[storage._numbers[KEYS[0]]] = 99  # as at the very end of a change
        state.buffers[:8].fill_(5)
        os.kill(os.getpid(), signal.SIGKILL)


def forever(storage: SharedStorage, _: None, talk: Connection) -> None:
    """Updates until it is killed; says when it has begun."""
    server = server_on(storage)
    rng = random.Random(os.getpid())
    talk.send("begun")
    while True:
        update(server, rng.choice(KEYS))


def trained_on(storage) -> Relay:
    """A relay whose steps are held."""
    return Relay(server_on(storage), device="cpu", device_budget="all", trace=Trace())


def step(relay: Relay, choices: list[str], number: int) -> None:
    """A step on data of its number."""
    inputs = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(number))
    relay.train_step(
        POOL.architecture(choices), (inputs,), torch.zeros_like(inputs),
        objective=SquaredError(), micro_batch=2, lr=0.01, step=number,
    )  # fmt: skip


def train(storage: SharedStorage, count: int, talk: Connection) -> None:
    """So many held steps of random paths; tells how many of which."""
    relay, rng = trained_on(storage), random.Random(os.getpid())
    made = dict.fromkeys(KEYS, 0)
    for number in range(count):
        choice = rng.choice("ab")
        step(relay, [choice, "c"], number)
        made[f"first/{choice}"] += 1
        made["last/c"] += 1
    talk.send({"made": made, "ops": sorted({span.op for span in relay.trace.spans})})


def half_step(storage: SharedStorage, updates: int, _: Connection) -> None:
    """Is killed in the middle of an update of a held step, after so many updates."""
    relay, whole = trained_on(storage), AdamW.update
    made = 0

    def update(rule, weights, *rest, **options):
        nonlocal made
        if made == updates:
            weights[0][0].zero_()
            os.kill(os.getpid(), signal.SIGKILL)
        made += 1
        whole(rule, weights, *rest, **options)

    AdamW.update = update  # type: ignore[method-assign]
    for number in range(updates):
        step(relay, ["a", "c"], number)


WORKERS = 5
ROLES = {"write": write, "read": read, "half": half, "forever": forever, "train": train, "half_step": half_step}
SERVER = multiprocessing.get_context("forkserver")


def _play(role: str, address: str, argument: object, talk: Connection) -> None:
    torch.set_num_threads(1)
    storage = SharedStorage(POOL, optimizer=AdamW(), workers=WORKERS, address=address)
    talk.send("ready")
    talk.recv()
    ROLES[role](storage, argument, talk)


@dataclass
class Hammer:
    """One of the functions above in a process of its own, forked from one that has imported everything.

    It waits until `go`, so that all start at once.
    """

    role: str
    storage: SharedStorage
    argument: object = None

    def __post_init__(self) -> None:
        SERVER.set_forkserver_preload([__name__])
        self.talk, theirs = SERVER.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            arguments = (self.role, self.storage.address, self.argument, theirs)
            self.process = SERVER.Process(target=_play, args=arguments)
            self.process.start()
        theirs.close()

    def go(self) -> Hammer:
        assert self.talk.recv() == "ready"
        self.talk.send("go")
        return self

    def report(self) -> dict:
        assert self.talk.poll(60)
        found = self.talk.recv()
        self.process.join(60)
        return found

    def killed(self) -> None:
        """Kill it, if it does not do so itself."""
        if not self.role.startswith("half"):
            self.process.kill()
        self.process.join(60)
        assert self.process.exitcode == -signal.SIGKILL
