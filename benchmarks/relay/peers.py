"""The sides of a comparison: the relay in its variants, plain PyTorch, and other libraries where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from benchmarks.relay.memory import distinct_bytes
from benchmarks.relay.others import DeepSpeedRunner, FSDPRunner, LayerToLayerRunner, finish
from benchmarks.relay.work import StackSizes, TokenLoss
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture


class Runner(Protocol):
    """A side at work."""

    def step(self, number: int) -> float:
        """One training step; the loss before its update."""

    def finish(self) -> None:
        """Wait until all that was begun is done, updates on the host too."""

    def device_bytes(self) -> int | None:
        """What it holds on the device side between steps; None where the host side is the same memory."""

    def close(self) -> None:
        """Let go of everything."""


def repeat(runner: Runner, steps: int, first: int) -> float:
    """Some steps and all they began; the loss of the last."""
    loss = 0.0
    for number in range(first, first + steps):
        loss = runner.step(number)
    runner.finish()
    return loss


@dataclass(frozen=True)
class Side:
    """One way to train the stack.

    Args:
        name: what results call it.
        build: makes it ready for a stack, with the stack's own first weights.
        tolerance: how far its losses may be from the reference's, relative; 0 on a CPU means bit for bit.
        note: what a reader must know to compare.
        package: what must be importable, of another library.
        install: how to get it.
    """

    name: str
    build: Callable[[StackSizes], Runner]
    tolerance: float = 0.0
    note: str = ""
    package: str = ""
    install: str = ""

    def unavailable(self) -> str:
        """Why it cannot run here; empty if it can."""
        is_missing = self.package and importlib.util.find_spec(self.package) is None
        return f"not installed: {self.install}" if is_missing else ""


class ExecutorRunner:
    """A relay or a resident model on a stack.

    Args:
        executor: what trains.
        work: the stack.
    """

    def __init__(self, executor: Relay | ReferenceTrainer, work: StackSizes) -> None:
        self.executor = executor
        self.work = work
        self._objective = TokenLoss()

    def step(self, number: int) -> float:
        """See `Runner.step`."""
        return self.train(number, self.work.architecture, self.work.architecture)

    def train(self, number: int, chosen: Architecture, upcoming: Architecture) -> float:
        """A step of an architecture; the loss before its update."""
        return self.executor.train_step(
            chosen,
            (self.work.tokens,),
            self.work.tokens,
            objective=self._objective,
            micro_batch=self.work.micro_batch,
            lr=self.work.lr,
            step=number,
            upcoming=upcoming,
        ).loss

    def finish(self) -> None:
        """See `Runner.finish`."""
        if isinstance(self.executor, Relay):
            self.executor.drain()
        finish(self.work.torch_device)

    def device_bytes(self) -> int | None:
        """See `Runner.device_bytes`."""
        if isinstance(self.executor, Relay):
            return self.executor.device_bytes
        tensors: list[Tensor] = []
        for module in self.executor.modules.values():
            tensors += [*module.parameters(), *module.buffers()]
        for state in (state for optimizer in self.executor.optimizers for state in optimizer.state.values()):
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
        return distinct_bytes(tensors)

    def close(self) -> None:
        """See `Runner.close`."""
        if isinstance(self.executor, Relay):
            self.executor.close()


def _relay(*, keep_share: float = 0.0, **options: Any) -> Callable[[StackSizes], Runner]:
    """The relay; `keep_share` of the layers stays on the device and is not recomputed."""

    def build(work: StackSizes) -> Runner:
        keep: dict[str, Any] = {"keep": max(1, round(keep_share * len(work.pool.positions)))} if keep_share else {}
        return ExecutorRunner(Relay(work.server(), device=work.device, seed=work.seed, **options, **keep), work)

    return build


def _resident(*, is_whole: bool = False, **options: Any) -> Callable[[StackSizes], Runner]:
    """Plain PyTorch with every layer on the device; `is_whole`: one micro-batch, as large as the batch."""

    def build(work: StackSizes) -> Runner:
        work = replace(work, micro_batch=work.batch) if is_whole else work
        return ExecutorRunner(ReferenceTrainer(work.server(), device=work.device, seed=work.seed, **options), work)

    return build


_L2L = "pip install --no-deps layer-to-layer-pytorch==0.3.0 tqdm"
_DEEPSPEED = (
    "pip install einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm 'setuptools<81' wheel && "
    "DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8"
)
REFERENCE = "checkpointed"

_CHECKPOINTED = "each layer but the last recomputed"
_ALL = (
    Side("relay", _relay()),
    Side("relay_host", _relay(stash="host"), note="stash on the host"),
    Side("relay_exact", _relay(update="exact"), note="updates wait for the whole gradient"),
    Side("relay_half", _relay(keep_share=0.5), note="the last half of the layers held on the device"),
    Side("relay_kept", _relay(device_budget="all"), note="everything held on the device"),
    Side("relay_bf16", _relay(precision="bf16"), 2e-2, "bf16 compute, fp32 masters"),
    Side(
        "relay_bf16_host",
        _relay(precision="bf16", stash="host", slots=3),
        2e-2,
        "bf16 compute, fp32 masters, stash on the host, 3 slots",
    ),
    Side("relay_compiled", _relay(layers="compile"), 1e-4, "compiled templates"),
    Side("plain", _resident(), note="nothing recomputed"),
    Side("plain_whole", _resident(is_whole=True), 1e-4, "nothing recomputed, one micro-batch"),
    Side("checkpointed", _resident(checkpointing=True), note=_CHECKPOINTED),
    Side(
        "checkpointed_bf16",
        _resident(checkpointing=True, autocast=torch.bfloat16),
        2e-2,
        f"{_CHECKPOINTED}, bf16 by autocast",
    ),
    Side("fsdp2", FSDPRunner, 1e-4, f"FSDP2, CPUOffloadPolicy, {_CHECKPOINTED}", "torch"),
    Side(
        "fsdp2_bf16",
        partial(FSDPRunner, dtype=torch.bfloat16),
        2e-2,
        f"FSDP2, CPUOffloadPolicy, bf16 on the device, {_CHECKPOINTED}",
        "torch",
    ),
    Side("l2l_pytorch", LayerToLayerRunner, 1e-4, "0.3.0, every layer recomputed", "layer_to_layer_pytorch", _L2L),
    Side(
        "deepspeed",
        DeepSpeedRunner,
        1e-4,
        f"ZeRO-3, optimizer and parameters offloaded, no clipping, {_CHECKPOINTED}",
        "deepspeed",
        _DEEPSPEED,
    ),
)
SIDES = {side.name: side for side in _ALL}


def find_sides(names: list[str]) -> list[Side]:
    """Sides by name.

    Raises:
        SettingError: there is none of that name, or one is named twice.
    """
    for name in names:
        if name not in SIDES:
            raise SettingError(f"sides: no side '{name}'{did_you_mean(name, SIDES)}")
        if names.count(name) > 1:
            raise SettingError(f"sides: '{name}' is named twice")
    return [SIDES[name] for name in names]


def tolerance_of(side: Side, device: torch.device) -> float:
    """How far a side's losses may be from the reference's: other kernels and orders on a GPU are not bit-equal."""
    return side.tolerance if device.type == "cpu" else max(side.tolerance, 1e-4)
