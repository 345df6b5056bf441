"""What worker processes are asked to do, as this process knows it, and what it makes of their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from safetensors.torch import load as parse
from safetensors.torch import save as serialize

from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.errors import L2LError, NonFiniteError, WorkerError
from l2l_nas.nas.evaluation.evaluator import Job, Training, go_on
from l2l_nas.nas.evaluation.worker_pool import Message


class WorkerTask(Protocol):
    """Something for one worker to do. `deaths`: how many workers ended while they did it."""

    deaths: int

    def message(self) -> Message:
        """What the worker is given."""

    def blocks(self) -> list[bytes]:
        """Bytes that go with the message."""

    def parts(self) -> Sequence[WorkerTask]:
        """The same in as many tasks as can be done one by one, to see which of them a worker cannot survive."""

    def stop_reason(self, rung: str, metrics: Mapping[str, float]) -> str | None:
        """See `Job.stop_reason`."""


@dataclass(eq=False)
class TrialBatch:
    """Trials; more than one are scored in one pass."""

    jobs: Sequence[Job]
    deaths: int = 0

    def message(self) -> Message:
        """See `WorkerTask`."""
        return {"op": "trials", "jobs": [[job.architecture.choices, job.ordinal] for job in self.jobs]}

    def blocks(self) -> list[bytes]:
        """See `WorkerTask`."""
        return []

    def parts(self) -> Sequence[WorkerTask]:
        """See `WorkerTask`."""
        return [TrialBatch([job], self.deaths) for job in self.jobs]

    def stop_reason(self, rung: str, metrics: Mapping[str, float]) -> str | None:
        """See `WorkerTask`: a worker scores rungs of one trial at a time."""
        (job,) = self.jobs
        return job.stop_reason(rung, metrics)

    def __str__(self) -> str:
        return "the trial of architecture " + ", ".join(job.architecture.digest for job in self.jobs)


@dataclass(eq=False)
class TrainingAlone:
    """A network's training on weights of its own."""

    index: int
    training: Training
    deaths: int = 0

    def message(self) -> Message:
        """See `WorkerTask`."""
        about = {**vars(self.training), "architecture": self.training.architecture.choices}
        server = about.pop("server")
        return {"op": "alone", "training": about, **({} if server is None else header_of(server))}

    def blocks(self) -> list[bytes]:
        """See `WorkerTask`: the weights that it goes on with."""
        return [] if self.training.server is None else pack(self.training.server)

    def parts(self) -> Sequence[WorkerTask]:
        """See `WorkerTask`."""
        return [self]

    stop_reason = staticmethod(go_on)

    def __str__(self) -> str:
        return self.training.name


def error_of(message: Message) -> L2LError:
    """The error that `worker.describe` gave."""
    if message["kind"] == "NonFiniteError":
        return NonFiniteError(message["what"], layer=message["layer"], step=message["step"])
    if message["kind"] == "L2LError":
        return L2LError(message["text"])
    return WorkerError(f"a worker process raised {message['text']}; search.workers=1 shows where")


def header_of(server: ParamServer) -> Message:
    """What a message says of the blocks that `pack` makes."""
    return {"keys": server.visited, "own_scale": server.gradients.scale_state}


def pack(server: ParamServer) -> list[bytes]:
    """All states of a server, each as safetensors, in the order of `visited`."""
    return [
        serialize({name: tensor.contiguous() for name, tensor in server.state(key).tensors().items()})
        for key in server.visited
    ]


def unpack(like: ParamServer, message: Message, blocks: Sequence[bytes]) -> ParamServer:
    """A server in memory with the states that `header_of` and `pack` gave."""
    server = ParamServer(like.pool, optimizer=like.optimizer, seed=like.seed)
    for key, block in zip(message["keys"], blocks, strict=True):
        state = LayerState.zeros(server.rules.of(key).layout)
        state.load_tensors(parse(block))
        server.storage.put(key, state)
    if message["own_scale"] is not None:
        server.gradients.scale_losses(message["own_scale"])
    return server
