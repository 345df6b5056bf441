"""What a relay is told: memory, precision, updates, how work is issued, and sums over ranks. Frozen and checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from types import NoneType
from typing import Any, Literal

import torch

from l2l_nas.arguments import check_count, check_kind, check_word, shown
from l2l_nas.eps.scale import Clip
from l2l_nas.eps.sums import check_chunks
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.relay.calls import Layers, check_layers
from l2l_nas.relay.plan import UpdateOrder, UpdatePolicy
from l2l_nas.relay.trace import Trace

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LANES = ("auto", "threads", "inline")
STASHES = ("device", "host")
Budget = int | Literal["all", "auto"] | None


@dataclass(frozen=True, kw_only=True)
class MemoryConfig:
    """What lies on the device, and what is pinned on the host.

    Args:
        slots: number of slots: 2 holds the running layer and the next. More than a path can use are not made.
        keep: how many of the last layers stay on the device and are not recomputed, where there is no budget.
        stash: where values wait for the backward: "device", "host" (the device's memory then does not grow with the
            depth of a chain).
        device_budget: bytes of device memory to use; what is left after the least is used to keep layers and stash.
            "all" keeps everything, "auto" what half of the free memory holds; None what `slots` and `keep` say.
        resident: "all" for states that live on the device, moments included, and are updated there; None for states on
            the host; "auto" for "all" where `device_budget` is "all" and the device has space for the states of the
            whole pool. On a CPU they are where layers compute in any case.
        pinned: "all" to store weights on the host as they cross the link; None to round them for each load, into a
            block that is used again. See `eps/wire.py`.
        sharers: relays, this one among them, that fill the same device memory with `device_budget="auto"`.
    """

    slots: int = 2
    keep: int = 1
    stash: str = "device"
    device_budget: Budget = None
    resident: Literal["all", "auto"] | None = "auto"
    pinned: Literal["all"] | None = "all"
    sharers: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.device_budget, str) and self.device_budget not in ("all", "auto"):
            raise SettingError(f"device_budget takes bytes, all, auto or None, got {shown(self.device_budget)}")
        if self.device_budget is not None and not isinstance(self.device_budget, str):
            check_count("device_budget", self.device_budget)
        if self.resident is not None and not (isinstance(self.resident, str) and self.resident in ("all", "auto")):
            raise SettingError(f"resident takes all, auto or none, got {shown(self.resident)}")
        for name in ("slots", "keep", "sharers"):
            check_count(name, getattr(self, name), least=1)
        check_word("stash", self.stash, STASHES)
        if self.pinned is not None and not (isinstance(self.pinned, str) and self.pinned == "all"):
            raise SettingError(f"pinned takes all or none, got {shown(self.pinned)}")


@dataclass(frozen=True)
class PrecisionConfig:
    """Of weights and activations on the device.

    Args:
        precision: "fp32", "bf16", or "fp16" with a dynamic loss scale. Master weights, moments and sums of gradients
            are float32 in any case.
    """

    precision: str = "fp32"

    def __post_init__(self) -> None:
        check_word("precision", self.precision, tuple(PRECISIONS))

    @property
    def dtype(self) -> torch.dtype:
        return PRECISIONS[self.precision]

    @property
    def is_scaled(self) -> bool:  # of the loss, so that small gradients do not vanish
        return self.dtype == torch.float16


@dataclass(frozen=True)
class UpdateConfig:
    """What updates go by.

    Args:
        update: "eager", each layer's own gradient; or "exact", the whole gradient, which a clip by global norm and fp16
            need.
        clip: scales gradients down; by global norm not with "eager".
    """

    update: UpdatePolicy | str = UpdatePolicy.EAGER
    clip: Clip | None = None

    def __post_init__(self) -> None:
        if isinstance(self.update, str) and self.update in ("ahead", "serial"):
            raise SettingError(f"update: '{self.update}' is now 'exact', which chooses how it runs")
        object.__setattr__(self, "update", UpdatePolicy(check_word("update", self.update, tuple(UpdatePolicy))))
        check_kind("clip", self.clip, (Clip, NoneType), wanted="None or an l2l_nas.Clip, such as Clip(1.0)")
        if self.policy is UpdatePolicy.EAGER and self.clip is not None and self.clip.scope == "global":
            raise SettingError(
                "eager updates cannot wait for the norm of all gradients; use update=exact, or clip per layer"
            )

    @property
    def policy(self) -> UpdatePolicy:
        return UpdatePolicy(self.update)

    def order(self, *, overlaps: bool) -> UpdateOrder:
        """How updates are done best.

        Args:
            overlaps: whether host and device work side by side on states in the host's own memory. Elsewhere nothing
                is won by an update ahead of the check, and the copy of what it changes costs time and memory.
        """
        if self.update is UpdatePolicy.EAGER:
            return UpdateOrder.EAGER
        return UpdateOrder.AHEAD if overlaps else UpdateOrder.CHECKED


@dataclass(frozen=True)
class ExecutionConfig:
    """How work is issued.

    Args:
        lanes: "threads" for copies and updates beside the layers, "inline" for in between; "auto": threads, but on a
            CPU, where they would take the cores from the layers, unless they wait for a disk or for other ranks.
        layers: how they run: "eager", "compile" (`torch.compile`, one graph for each kind; or a backend of it), or
            "graphs": CUDA graphs for each kind, slot and mode, where the device has them. See `relay/graphs.py`.
        trace: records what each lane does.
    """

    lanes: str = "auto"
    layers: Layers = "eager"
    trace: Trace | None = None

    def __post_init__(self) -> None:
        check_word("lanes", self.lanes, LANES)
        check_layers(self.layers)
        check_kind("trace", self.trace, (Trace, NoneType), wanted="None or a Trace")


@dataclass(frozen=True)
class ParallelConfig:
    """What makes results independent of how many ranks there are.

    Args:
        chunks: runs of micro-batches whose gradients and losses are summed by a tree: a power of two that the number of
            ranks divides. Any number of ranks then gives the same bits, one process too; norms are of blocks. None:
            without ranks micro-batches are summed one after the other, as plain PyTorch does; with ranks, as many as
            there are ranks. Each doubling takes one more block for gradients in each slot.
    """

    chunks: int | None = None

    def __post_init__(self) -> None:
        if self.chunks is not None:
            check_chunks(self.chunks)


@dataclass(frozen=True)
class RelayConfig:
    """All five. A value that makes no sense is a SettingError when its config is made."""

    memory: MemoryConfig = field(default_factory=MemoryConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    execution: ExecutionConfig = field(default_factory=ExecutionConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        if self.precision.is_scaled and self.update.policy is UpdatePolicy.EAGER:
            raise SettingError(
                "with fp16 a step is refused when any gradient overflows, which eager updates cannot know; "
                "use update=exact"
            )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RelayConfig:
        """From configs by their names, and fields of them by theirs, which then replace the config's own."""
        left, configs = dict(given), {}
        kinds: dict[str, Any] = {section.name: section.default_factory for section in fields(cls)}
        for section, kind in kinds.items():
            base = left.pop(section) if isinstance(left.get(section), kind) else kind()
            chosen = {entry.name: left.pop(entry.name) for entry in fields(kind) if entry.name in left}
            configs[section] = replace(base, **chosen)
        if left:
            name, value = next(iter(left.items()))
            known = [*kinds, *(entry.name for kind in kinds.values() for entry in fields(kind))]
            if name in kinds:
                raise SettingError(f"{name} takes a {kinds[name].__name__}, got {shown(value)}")
            raise SettingError(f"Relay: no argument {name!r}{did_you_mean(name, known)}")
        return cls(**configs)
