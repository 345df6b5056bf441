"""The sides of a comparison: the relay in its variants, plain PyTorch, and other libraries where they are installed."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from l2l_nas.bench.others import DeepSpeedRunner, FSDPRunner, LayerToLayerRunner, finish
from l2l_nas.bench.work import TokenLoss, Work
from l2l_nas.cost.live_bytes import distinct_bytes
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.relay.executor import Relay
from l2l_nas.relay.resident import Resident


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


class Side(Protocol):
    """One way to train the stack."""

    @property
    def name(self) -> str:
        """What results call it."""

    @property
    def tolerance(self) -> float:
        """How far its losses may be from the reference's, relative; 0 on a CPU means bit for bit."""

    @property
    def note(self) -> str:
        """What a reader must know to compare."""

    def unavailable(self) -> str:
        """Why it cannot run here; empty if it can."""

    def build(self, work: Work) -> Runner:
        """Make it ready for a stack, with the stack's own first weights."""


class ExecutorRunner:
    """A relay or a resident model on a stack.

    Args:
        executor: what trains.
        work: the stack.
    """

    def __init__(self, executor: Relay | Resident, work: Work) -> None:
        self.executor = executor
        self.work = work
        self._objective = TokenLoss()
        self._path = work.architecture

    def step(self, number: int) -> float:
        """See `Runner.step`."""
        result = self.executor.train_step(
            self._path,
            (self.work.tokens,),
            self.work.tokens,
            objective=self._objective,
            micro_batch=self.work.micro_batch,
            lr=self.work.lr,
            step=number,
            upcoming=self._path,
        )
        return result.loss

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


@dataclass(frozen=True)
class RelaySide:
    """The relay.

    Args:
        options: keyword arguments of `Relay`.
        keep_share: sets `keep`: this share of the layers stays on the device and is not recomputed.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = 0.0
    note: str = ""
    keep_share: float | None = None

    def unavailable(self) -> str:
        """See `Side.unavailable`."""
        return ""

    def build(self, work: Work) -> Runner:
        """See `Side.build`."""
        options = dict(self.options)
        if self.keep_share is not None:
            options["keep"] = max(1, round(self.keep_share * len(work.pool.positions)))
        return ExecutorRunner(Relay(work.server(), device=work.device, seed=work.seed, **options), work)


@dataclass(frozen=True)
class ResidentSide:
    """Plain PyTorch with every layer on the device.

    Args:
        checkpointing: recompute each layer but the last in the backward.
        whole_batch: one micro-batch, as large as the batch.
        autocast: computes in this dtype, on float32 weights.
    """

    name: str
    checkpointing: bool = False
    whole_batch: bool = False
    autocast: torch.dtype | None = None
    tolerance: float = 0.0
    note: str = ""

    def unavailable(self) -> str:
        """See `Side.unavailable`."""
        return ""

    def build(self, work: Work) -> Runner:
        """See `Side.build`."""
        if self.whole_batch:
            work = replace(work, micro_batch=work.batch)
        resident = Resident(
            work.server(),
            device=work.device,
            seed=work.seed,
            checkpointing=self.checkpointing,
            autocast=self.autocast,
        )
        return ExecutorRunner(resident, work)


@dataclass(frozen=True)
class OtherSide:
    """Another library.

    Args:
        runner: builds it; imports the library.
        package: what must be importable.
        install: how to get it.
    """

    name: str
    runner: Callable[[Work], Runner]
    package: str
    install: str
    tolerance: float = 1e-4
    note: str = ""

    def unavailable(self) -> str:
        """See `Side.unavailable`."""
        if importlib.util.find_spec(self.package) is None:
            return f"not installed: {self.install}"
        return ""

    def build(self, work: Work) -> Runner:
        """See `Side.build`."""
        return self.runner(work)


_L2L = "pip install --no-deps layer-to-layer-pytorch==0.3.0 tqdm"
_DEEPSPEED = (
    "pip install einops hjson msgpack ninja packaging psutil py-cpuinfo pydantic tqdm 'setuptools<81' wheel && "
    "DS_BUILD_OPS=0 pip install --no-deps --no-build-isolation deepspeed==0.19.8"
)
REFERENCE = "checkpointed"

_ALL: tuple[Side, ...] = (
    RelaySide("relay"),
    RelaySide("relay_host", {"stash": "host"}, note="stash on the host"),
    RelaySide("relay_exact", {"update": "exact"}, note="updates wait for the whole gradient"),
    RelaySide("relay_ahead", {"update": "ahead"}, note="updates ahead of the check of the whole gradient"),
    RelaySide("relay_serial", {"update": "serial"}, note="all updates at the end"),
    RelaySide("relay_half", keep_share=0.5, note="the last half of the layers held on the device"),
    RelaySide("relay_kept", {"device_budget": "all"}, note="everything held on the device"),
    RelaySide("relay_bf16", {"precision": "bf16"}, tolerance=2e-2, note="bf16 compute, fp32 masters"),
    RelaySide(
        "relay_bf16_host",
        {"precision": "bf16", "stash": "host", "slots": 3},
        tolerance=2e-2,
        note="bf16 compute, fp32 masters, stash on the host, 3 slots",
    ),
    RelaySide("relay_compiled", {"layers": "compile"}, tolerance=1e-4, note="compiled templates"),
    ResidentSide("plain", note="nothing recomputed"),
    ResidentSide("plain_whole", whole_batch=True, tolerance=1e-4, note="nothing recomputed, one micro-batch"),
    ResidentSide("checkpointed", checkpointing=True, note="each layer but the last recomputed"),
    ResidentSide(
        "checkpointed_bf16",
        checkpointing=True,
        autocast=torch.bfloat16,
        tolerance=2e-2,
        note="each layer but the last recomputed, bf16 by autocast",
    ),
    OtherSide("fsdp2", FSDPRunner, "torch", "", note="FSDP2, CPUOffloadPolicy, each layer but the last recomputed"),
    OtherSide(
        "fsdp2_bf16",
        partial(FSDPRunner, dtype=torch.bfloat16),
        "torch",
        "",
        tolerance=2e-2,
        note="FSDP2, CPUOffloadPolicy, bf16 on the device, each layer but the last recomputed",
    ),
    OtherSide("l2l_pytorch", LayerToLayerRunner, "layer_to_layer_pytorch", _L2L, note="0.3.0, every layer recomputed"),
    OtherSide(
        "deepspeed",
        DeepSpeedRunner,
        "deepspeed",
        _DEEPSPEED,
        note="ZeRO-3, optimizer and parameters offloaded, no clipping, each layer but the last recomputed",
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
