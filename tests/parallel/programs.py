"""What ranks do in tests: `python -m tests.parallel.programs NAME WORDS`, with the environment of a rank."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from pathlib import Path

import torch

from l2l_nas import AdamW
from l2l_nas.eps import checkpoint
from l2l_nas.eps.exchange import Channel
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.sharded import server_of
from l2l_nas.errors import NonFiniteError, RankError, SettingError, Stopped, StorageError, TrialError
from l2l_nas.parallel import meeting
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.lead import Follower, Leader
from l2l_nas.parallel.world import World, WorldConfig
from tests.toys import dense_pool

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool)


def some(rank: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What a rank has; every rank can make that of every other one."""
    numbers = torch.randint(-100, 100, shape, generator=torch.Generator().manual_seed(rank))
    return numbers.to(dtype)


def exchanges(world: World) -> None:
    """All that is exchanged equals what plain tensors say."""
    exchange, ranks = world.exchange, range(world.size)
    assert (exchange.rank, exchange.size) == (world.rank, world.size)
    for channel in Channel:
        for dtype in DTYPES:
            for shape in ((), (1,), (3, 5), (0, 4), (1000,)):
                whole = torch.empty(world.size, *shape, dtype=dtype)
                exchange.all_gather(some(world.rank, shape, dtype), whole, channel)
                assert torch.equal(whole, torch.stack([some(rank, shape, dtype) for rank in ranks]))
                rows = (world.size, *shape)
                received = torch.empty(rows, dtype=dtype)
                exchange.all_to_all(some(world.rank, rows, dtype), received, channel)
                assert torch.equal(received, torch.stack([some(rank, rows, dtype)[world.rank] for rank in ranks]))
    large = torch.empty(world.size, 2 << 20, dtype=torch.float32)  # which goes another way
    exchange.all_gather(some(world.rank, (2 << 20,), torch.float32), large, Channel.LOAD)
    assert torch.equal(large, torch.stack([some(rank, (2 << 20,), torch.float32) for rank in ranks]))
    total, most = some(world.rank, (70,), torch.float32), some(world.rank, (70,), torch.float32)
    world.reducer().sum(total)
    world.reducer().maximum(most)
    every = torch.stack([some(rank, (70,), torch.float32) for rank in ranks])
    assert torch.equal(total, every.sum(0))  # whole numbers
    assert torch.equal(most, every.amax(0))
    print("equal", flush=True)


def step(world: World, channel: Channel = Channel.LOAD) -> None:
    """One exchange of a few numbers."""
    whole = torch.empty(world.size, 100)
    world.exchange.all_gather(
        torch.full((100,), float(world.rank)), whole, channel, of="b3/wide" if channel is Channel.LOAD else ""
    )
    assert torch.equal(whole[:, 0], torch.arange(world.size, dtype=torch.float32))


def steps(world: World, who: str = "-1", at: str = "0", how: str = "", count: str = "1000000") -> None:
    """Exchange again and again; before one of these exchanges, counted from 0, one rank fails."""
    channels = list(Channel)
    for number in range(int(count)):
        channel = channels[number % len(channels)]
        if number % len(channels) == 0:
            world.exchange.note(f"step {number // len(channels)}")
        if number == len(channels):
            print(f"pid {os.getpid()} began", flush=True)
        if world.rank == int(who) and number == int(at):
            do(world, how)
        step(world, channel)
    print("done", flush=True)


def do(world: World, how: str) -> None:
    """Fail as is said."""
    if how == "raise":
        raise ValueError("my layer is broken")
    if how == "memory":
        torch.empty(1 << 60)
    elif how == "nan":
        raise NonFiniteError("loss", layer=None, step=7, is_own=True)
    elif how == "exit":
        sys.exit(3)
    elif how == "crash":
        os.abort()
    elif how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "sleep":
        time.sleep(3600)
    elif how == "slow":
        for number in range(8):
            time.sleep(0.5)
            world.exchange.note(f"part {number} of a long save")
    elif how == "code":
        raise SystemExit(0)
    elif how == "shape":
        world.exchange.all_gather(torch.ones(7), torch.empty(world.size, 7), Channel.LOAD)
    elif how == "divided":
        world.reducer().sum(torch.ones(7))
    elif how == "channel":
        step(world, Channel.SEND)
    else:
        raise AssertionError(how)


def rejoins(world: World, count: str = "5") -> None:
    """A trial of one rank fails, again and again: all begin anew, and nothing is left behind."""
    descriptors = []
    grid = world.mesh(tensor=2)
    for trial in range(int(count)):
        failing = trial % world.size
        try:
            for number in range(10):
                world.exchange.note(f"trial {trial}, step {number}")
                if number == 5 and world.rank == failing:
                    try:
                        raise NonFiniteError("loss", layer=None, step=number, is_own=True)
                    except NonFiniteError as error:
                        world.exchange.tell(error)
                        raise
                step(world, Channel.LOAD)
                step(world, Channel.SEND)
            raise AssertionError("no failure")
        except NonFiniteError:
            assert world.rank == failing
        except RankError as error:
            learned = (world.rank != failing, error.rank, error.goes_on, f"in trial {trial}, step 5" in str(error))
            assert learned == (True, failing, True, True)
        world.rejoin()
        step(world, Channel.STEP)
        total = torch.ones(3)
        grid.ranks.reducer.sum(total)  # of the groups that the mesh has now
        places = torch.empty(2, 1)
        grid.mesh.tensor.all_gather(torch.tensor([float(world.rank)]), places, Channel.SEND)
        first = world.rank // 2 * 2.0
        assert (total.tolist(), places.flatten().tolist()) == ([2.0] * 3, [first, first + 1])
        descriptors.append(len(os.listdir("/proc/self/fd")))
    print(f"descriptors {descriptors}", flush=True)


def not_finite(world: World, origin: str) -> None:
    """All ranks find the same number that is not finite, which came from one rank, or from any of them."""
    step(world)
    time.sleep(0.1 * world.rank)  # rank 0 is the first to find it
    raise NonFiniteError("loss", layer=None, step=3, is_own=world.rank == int(origin) if origin else None)


def known_elsewhere(world: World) -> None:
    """A rank ends with what another one has failed with, which that one says later."""
    step(world)
    if world.rank == 0:
        raise RankError("rank 1 failed", rank=1)
    time.sleep(0.2)
    raise TrialError("my layer is broken")


def restarts(world: World, failed: str, count: str) -> None:
    """Fail on some rank, in other ways, until there were so many failures; then end well."""
    before = len(list(Path(failed).parent.glob(Path(failed).name + "*")))
    if before == int(count):
        return steps(world, count="30")
    world.exchange.all_gather(torch.ones(1), torch.empty(world.size, 1), Channel.STEP)  # both have counted
    who = before % world.size
    if world.rank == who:
        Path(f"{failed}{before}").touch()
    return steps(world, str(who), "9", ("raise", "kill")[before % 2])


def lasts(world: World) -> None:
    """Go on until a rank is alone, and a little longer."""
    end = time.monotonic() + (2 if world.size == 1 else 90)
    print(f"in a world of {world.size}", flush=True)
    while time.monotonic() < end:
        step(world)
        time.sleep(0.02)
    print(f"done in a world of {world.size}", flush=True)


def saves_slowly(world: World, folder: str) -> None:
    """Rank 0 writes each file for longer than patience."""
    write = checkpoint.write_atomically

    def slow(path: Path, data: bytes) -> None:
        time.sleep(5)
        write(path, data)

    checkpoint.write_atomically = slow
    server = server_of(dense_pool(8), world.exchange, optimizer=AdamW(), seed=0)
    server.prepare(["layer0/normed"])
    checkpoint.Checkpoint(Path(folder)).save(server)
    print("saved", flush=True)


class Work:
    """What all ranks can do; each keeps a list of what it did."""

    def __init__(self, world: World) -> None:
        self.world, self.done = world, []
        self.server = server_of(dense_pool(8), world.exchange, optimizer=AdamW(), seed=0)

    def make(self) -> ParamServer:
        return self.server.fork(())

    def visit(self, server: ParamServer, key: str) -> None:
        server.prepare([key])
        self.done.append(f"{len(server.visited)} states")

    def add(self, number: int, ask) -> None:
        for _ in range(3):
            number += ask(number)
            step(self.world)
            self.done.append(f"added to {number}")

    def load(self, folder: Path) -> None:
        self.done.append("loads")
        checkpoint.Checkpoint(folder).load(self.server)

    def break_down(self, who: int) -> None:
        if self.world.rank == who:
            raise ValueError("my layer is broken")
        step(self.world)


def leads(world: World, how: str, folder: str) -> None:
    """Rank 0 has the others do what it names."""
    work = Work(world)
    actions = {one.__name__: one for one in (work.make, work.visit, work.add, work.load, work.break_down)}
    if world.rank > 0:
        follower = Follower(world)
        follower.actions.update(actions)
        follower.asks = lambda: how == "asks" and world.rank == world.size - 1
        follower.follow()
        print(len(follower._servers), *work.done, sep=", ", flush=True)
        return

    def do(name: str, *args: object) -> object:
        return lead.do(name, args, actions[name])

    def ask(number: int) -> int:
        if number > 10:
            do("visit", first, "layer1/normed")  # between two steps of what all are in
        if how == "stops" and number > 20:
            raise Stopped
        return number

    lead = Leader(world)
    with lead.leading():
        first, second = do("make"), do("make")
        do("visit", first, "layer0/normed")
        del second
        gc.collect()
        try:
            do("add", 8, ask)
        except Stopped:
            work.done.append("stopped")
        try:
            do("load", Path(folder))
        except StorageError:
            work.done.append("nothing to load")
        do("visit", first, "layer1/normed")
        if how == "waits":
            time.sleep(6)
        if how == "asks":
            assert lead.is_asked_to_stop
        elif how == "refuses":
            raise SettingError("trials must be at least 1")
        elif how.startswith("breaks"):
            do("break_down", int(how[-1]))
    print(1, *work.done, sep=", ", flush=True)


def meshes(world: World, name: str, *words: str) -> None:
    """A function of `mesh_runs.py`."""
    from tests.parallel import mesh_runs

    getattr(mesh_runs, name)(world, *words)


PROGRAMS = {
    one.__name__: one
    for one in (exchanges, steps, rejoins, not_finite, known_elsewhere, restarts, lasts, saves_slowly, leads, meshes)
}


def run(words: list[str]) -> None:
    """Run one of them, as the environment says."""
    torch.set_num_threads(1)
    if os.environ.get("RANK") == "1" and "VERSION_OF_RANK_1" in os.environ:
        meeting.VERSIONS["l2l_nas"] = os.environ["VERSION_OF_RANK_1"]
    if os.environ.get("LONELY") == os.environ.get("RANK"):
        time.sleep(60)
    config = WorldConfig(
        patience_s=float(os.environ.get("PATIENCE_S", "20")),
        join_s=float(os.environ.get("JOIN_S", "60")),
        has_checks=os.environ.get("CHECKS", "1") == "1",
    )
    name, *rest = words
    run_ranked(lambda world: PROGRAMS[name](world, *rest), config)


if __name__ == "__main__":
    run(sys.argv[1:])
