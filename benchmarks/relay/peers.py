"""The sides of a comparison: the relay in its variants, plain PyTorch, and other libraries where they are installed."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.relay.others import DeepSpeedRunner, FSDPRunner, LayerToLayerRunner, finish
from benchmarks.relay.work import StackSizes, TokenLoss
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.contents import storage_of
from l2l_nas.space.operations import LiveBytes


def synchronize(device: torch.device) -> None:
    """Free what is no longer used, and wait for the device."""
    gc.collect()
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
        torch.accelerator.empty_cache()


def allocated(device: torch.device) -> int:
    """What the device's allocator has given out; 0 on a CPU."""
    synchronize(device)
    return torch.accelerator.memory_allocated(device) if device.type != "cpu" else 0


def peak_bytes(
    step: Callable[[], object], device: torch.device, *, owned: Callable[[], int | None], before: int
) -> int | None:
    """Device-side bytes of a side at the worst moment of a step.

    On an accelerator it is the allocator's peak above `before`. On a CPU it is what the side owns on its device side
    when the step begins, and the most its operators make on top of that.
    """
    synchronize(device)
    if device.type != "cpu":
        torch.accelerator.reset_peak_memory_stats(device)
        step()
        torch.accelerator.synchronize(device)
        return torch.accelerator.max_memory_allocated(device) - before
    held = owned()
    if held is None:
        return None
    with LiveBytes() as live:
        step()
    return held + live.peak


def distinct_bytes(tensors: Iterable[Tensor]) -> int:
    storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}
    return sum(storages.values())


class Runner(Protocol):
    """A side at work."""

    def step(self, number: int) -> float:
        """One training step; the loss before its update."""

    def finish(self) -> None:
        """Wait until all that was begun is done, updates on the host too."""

    def device_bytes(self) -> int | None:
        """What it holds on the device side between steps; None where the host side is the same memory."""

    def close(self) -> None: ...


def repeat(runner: Runner, steps: int, first: int) -> float:
    """Some steps and all they began; the loss of the last."""
    loss = 0.0
    for number in range(first, first + steps):
        loss = runner.step(number)
    runner.finish()
    return loss


@dataclass(frozen=True)
class Side:
    """One way to train the stack, with the stack's own first weights.

    The tolerance is how far its losses may be from the reference's, relative; 0 on a CPU means bit for bit. Another
    library must be importable as `package`; `install` says how to get it.
    """

    name: str
    build: Callable[[StackSizes], Runner]
    tolerance: float = 0.0
    package: str = ""
    install: str = ""

    def unavailable(self) -> str:
        """Why it cannot run here; empty if it can."""
        is_missing = self.package and importlib.util.find_spec(self.package) is None
        return f"not installed: {self.install}" if is_missing else ""


class ExecutorRunner:
    """A relay or a resident model on a stack."""

    def __init__(self, executor: Relay | ReferenceTrainer, work: StackSizes) -> None:
        self.executor = executor
        self.work = work

    def step(self, number: int) -> float:
        return self.train(number, self.work.architecture, self.work.architecture)

    def train(self, number: int, chosen: Architecture, upcoming: Architecture) -> float:
        """A step of an architecture; the loss before its update."""
        work = self.work
        return self.executor.train_step(
            chosen, (work.tokens,), work.tokens,
            objective=TokenLoss(), micro_batch=work.micro_batch, lr=work.lr, step=number, upcoming=upcoming,
        ).loss  # fmt: skip

    def finish(self) -> None:
        if isinstance(self.executor, Relay):
            self.executor.drain()
        finish(self.work.torch_device)

    def device_bytes(self) -> int | None:
        if isinstance(self.executor, Relay):
            return self.executor.device_bytes
        tensors: list[Tensor] = []
        for module in self.executor.modules.values():
            tensors += [*module.parameters(), *module.buffers()]
        for state in (state for optimizer in self.executor.optimizers for state in optimizer.state.values()):
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return distinct_bytes(tensors)

    def close(self) -> None:
        if isinstance(self.executor, Relay):
            self.executor.close()


def _relay(*, keep_share: float = 0.0, **options: Any) -> Callable[[StackSizes], Runner]:
    """The relay; `keep_share` of the layers stays on the device and is not recomputed."""

    def build(work: StackSizes) -> Runner:
        keep: dict[str, Any] = {"keep": max(1, round(keep_share * len(work.pool.positions)))} if keep_share else {}
        return ExecutorRunner(Relay(work.server(), device=work.device, seed=work.seed, **options, **keep), work)

    return build


def _resident(**options: Any) -> Callable[[StackSizes], Runner]:
    """Plain PyTorch with every layer on the device."""

    def build(work: StackSizes) -> Runner:
        return ExecutorRunner(ReferenceTrainer(work.server(), device=work.device, seed=work.seed, **options), work)

    return build


_L2L = "pip install --no-deps layer-to-layer-pytorch==0.3.0 tqdm"
_DEEPSPEED = (
    "pip install einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm 'setuptools<81' wheel && "
    "DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8"
)
REFERENCE = "checkpointed"

_ALL = (
    Side("relay", _relay()),
    Side("relay_host", _relay(stash="host")),
    Side("relay_exact", _relay(update="exact")),
    Side("relay_half", _relay(keep_share=0.5)),
    Side("relay_kept", _relay(device_budget="all")),
    Side("relay_bf16", _relay(precision="bf16"), 2e-2),
    Side("relay_bf16_host", _relay(precision="bf16", stash="host", slots=3), 2e-2),
    Side("plain", _resident()),
    Side("checkpointed", _resident(checkpointing=True)),
    Side("checkpointed_bf16", _resident(checkpointing=True, autocast=torch.bfloat16), 2e-2),
    Side("fsdp2", FSDPRunner, 1e-4),
    Side("fsdp2_bf16", partial(FSDPRunner, dtype=torch.bfloat16), 2e-2),
    Side("l2l_pytorch", LayerToLayerRunner, 1e-4, "layer_to_layer_pytorch", _L2L),
    Side("deepspeed", DeepSpeedRunner, 1e-4, "deepspeed", _DEEPSPEED),
)
SIDES = {side.name: side for side in _ALL}


def tolerance_of(side: Side, device: torch.device) -> float:
    """How far a side's losses may be from the reference's: other kernels and orders on a GPU are not bit-equal."""
    return side.tolerance if device.type == "cpu" else max(side.tolerance, 1e-4)


def agreement(losses: Sequence[float], reference: Sequence[float], tolerance: float) -> dict[str, Any]:
    """How far losses are from the reference's, relative, and whether that is within the tolerance (0: bit for bit)."""
    differences = [abs(a - b) / abs(b) for a, b in zip(losses, reference, strict=True)]
    agrees = all(difference <= tolerance for difference in differences)  # not by the largest: of a NaN there is none
    return {"largest_difference": max(differences, default=0.0), "tolerance": tolerance, "agrees": agrees}
