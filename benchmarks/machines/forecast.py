"""What the simulator predicts for the sizes and settings that `python -m benchmarks gpu` measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.relay.work import StackSizes
from l2l_nas.cost.device import PaperDevice
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.cost.step_time import Prediction, StepTime
from l2l_nas.eps.scale import Clip
from l2l_nas.errors import SettingError
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.relay import Relay

Figures = dict[str, dict[str, float]]  # by section and name of a figure


@dataclass(frozen=True)
class Sizes:
    """What is measured.

    Args:
        work: the stack of most sections.
        tokens: of a step, in `steps`.
        small: a stack of layers that hardly compute, in `layers`.
        depths: in `memory`, with the stash on the host.
        batches: in `memory`, with the stash on the device.
        architectures: in `segments`.
        share: of the free host memory, for `largest`.
        patience_s: for one figure of time.
        layers: ways to run them, `relay.layers`.
    """

    work: StackSizes
    tokens: tuple[int, ...]
    small: StackSizes
    depths: tuple[int, ...]
    batches: tuple[int, ...]
    architectures: int
    share: float
    patience_s: float
    layers: tuple[str, ...] = ("eager", "compile", "graphs")

    @classmethod
    def of(cls, device: str, *, is_quick: bool) -> Sizes:
        """BERT-Large, or as small as goes through all sections."""
        if is_quick:
            tiny = StackSizes(
                depth=3, hidden=32, heads=2, feedforward=64, sequence=16, vocabulary=50, batch=4, micro_batch=2,
                device=device,
            )  # fmt: skip
            return cls(tiny, (64,), tiny, (3, 6), (4,), 8, 0.0, 0.1, ("eager", "graphs"))  # compiling takes long
        large = StackSizes(
            depth=24, hidden=1024, heads=16, feedforward=4096, sequence=512, vocabulary=30522, batch=32, micro_batch=8,
            device=device,
        )  # fmt: skip
        small = replace(large, depth=12, hidden=128, heads=4, feedforward=512, sequence=64, vocabulary=1000)
        return cls(large, (4096, 16384, 65536), small, (24, 96, 384), (32, 256), 1000, 0.6, 1.5)

    def of_tokens(self, tokens: int) -> StackSizes:
        """The stack with so many tokens a step."""
        batch = max(1, tokens // self.work.sequence)
        return replace(self.work, batch=batch, micro_batch=min(batch, self.work.micro_batch))


def settings(work: StackSizes) -> dict[str, dict[str, Any]]:
    """Relays of the section `steps`: as the simulated table of docs/benchmarks.md has them."""
    half = max(1, work.depth // 2)
    streamed: dict[str, Any] = {"resident": None, "slots": 3}
    rare = Clip(1e9)  # nothing is clipped
    return {
        "everything resident": {"device_budget": "all"},
        "everything kept, updated on the host": {"device_budget": "all", "resident": None},
        "half kept, updated on the host": {"slots": half + 2, "keep": half, "resident": None},
        "streamed, 2 slots": {**streamed, "slots": 2},
        "streamed, 3 slots": streamed,
        "streamed, stash on the host": {**streamed, "stash": "host"},
        "streamed, nothing pinned": {**streamed, "pinned": None},
        "exact, 3 slots, nothing clipped": {**streamed, "update": "exact", "clip": rare},
    }


def on_paper(work: StackSizes, device_bytes: int, options: Mapping[str, Any]) -> Relay:
    """A relay in bf16 that is only asked."""
    return Relay(work.server(), device=PaperDevice(device_bytes), seed=work.seed, **{"precision": "bf16", **options})


def predicted(work: StackSizes, hardware: Hardware, options: Mapping[str, Any]) -> Prediction:
    """Of a step of the stack.

    Raises:
        SettingError: it does not fit the device.
    """
    relay = on_paper(work, hardware.device_bytes, options)
    try:
        return StepTime(relay, cut_sizes(work.batch, work.micro_batch), hardware).predict(work.architecture)
    finally:
        relay.close()


def rates_of(hardware: Hardware) -> dict[str, float]:
    """The figures of a profile that the section `rates` measures."""
    return {
        "products in bf16, TFLOP/s": hardware.flops("bf16") / 1e12,
        "products in fp32, TFLOP/s": hardware.flops("fp32") / 1e12,
        "device memory, GB/s": hardware.device_bandwidth / 1e9,
        "link to the device, GB/s": hardware.link_up / 1e9,
        "link from the device, GB/s": hardware.link_down / 1e9,
        "updates on the host, G parameters/s": hardware.host_updates / 1e9,
        "time between launches, us": hardware.kernel_s * 1e6,
    }


def profile_of(gpu: str) -> Hardware | None:
    """The profile that bears a device's name; None for none."""
    words = gpu.lower().replace(" ", "")
    found = [profile for name, profile in PROFILES.items() if name in words]
    return max(found, key=lambda profile: len(profile.name), default=None)


def forecast(sizes: Sizes, hardware: Hardware) -> Figures:
    """All that can be predicted; what would not fit has no figure."""
    found: Figures = {"rates": rates_of(hardware), "steps": {}, "memory": {}, "peers": {}, "layers": {}}
    for tokens in sizes.tokens:
        work = sizes.of_tokens(tokens)
        for name, options in settings(work).items():
            for one in _asked(work, hardware, options):
                found["steps"][step_name(tokens, name)] = 1000 * one.simulation.step_s
                found["steps"].setdefault(step_name(tokens, "plain"), 1000 * one.plain_s)
    streamed = {"resident": None, "slots": 3, "stash": "host"}
    for depth in sizes.depths:
        for one in _asked(replace(sizes.work, depth=depth), hardware, streamed):
            found["memory"] |= _memory(f"{depth} layers, stash on the host", one)
    for batch in sizes.batches:
        for one in _asked(replace(sizes.work, batch=batch), hardware, {**streamed, "stash": "device"}):
            found["memory"] |= _memory(f"batch {batch}, stash on the device", one)
    tokens = sizes.work.batch * sizes.work.sequence
    for name, options in (("relay_bf16", {}), ("relay_bf16_host", {"stash": "host", "slots": 3})):
        for one in _asked(sizes.work, hardware, options):
            found["peers"][name] = tokens / one.simulation.step_s
            found["peers"]["checkpointed_bf16"] = tokens / one.checkpointed_s
    for size, work in (("large", sizes.work), ("small", sizes.small)):
        for one in _asked(work, hardware, {"resident": None, "slots": 3}):
            found["layers"][f"{size} layers, eager"] = 1000 * one.simulation.step_s
    return found


def step_name(tokens: int, name: str) -> str:
    """Of a figure in `steps`."""
    return f"{tokens:,} tokens: {name}"


def _memory(name: str, one: Prediction) -> dict[str, float]:
    return {f"{name}: slots and stash": float(one.owned_bytes), f"{name}: peak": float(one.device_bytes)}


def _asked(work: StackSizes, hardware: Hardware, options: Mapping[str, Any]) -> Iterator[Prediction]:
    try:
        yield predicted(work, hardware, options)
    except SettingError:
        return  # it does not fit
