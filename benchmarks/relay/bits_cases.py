"""The configurations that `bits.py` compares, and what they are made of."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

POLICIES = ("eager", "ahead", "exact", "serial")  # the last three are ways to carry out "exact"


@dataclass(frozen=True)
class Case:
    """A configuration: a pool, an optimizer, a relay, and so many steps on paths that change.

    Args:
        clip: its norm; by layer with "eager", else global.
        options: the relay's, by the names of l2l_nas 0.2.
        has_upcoming: whether each step is told the path of the next one.
        scale: of targets of every other step.
        kind: what is done: "train", or the name of a function of `bits.py`.
    """

    pool: str
    update: str = "eager"
    clip: float | None = None
    optimizer: str = "adamw"
    batch: int = 7
    micro_batch: int = 3
    storage: str = "ram"
    has_upcoming: bool = True
    scale: float = 1.0
    kind: str = "train"
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        parts = [self.pool, self.update]
        for one in dataclasses.fields(self)[2:-1]:
            value = getattr(self, one.name)
            if value != one.default:
                parts.append(f"{one.name}={value}")
        return " ".join((*parts, *(f"{name}={value}" for name, value in self.options.items())))


def cases() -> Iterator[Case]:
    toys = ("dense", "language", "repeated", "unet", "cell", "decoder", "elastic", "mixer")
    for pool in toys:
        for update in POLICIES:
            yield Case(pool, update)
            yield Case(pool, update, 0.5, micro_batch=2, has_upcoming=False)
    for pool in ("dense", "language", "decoder", "auxiliary"):
        yield from _memory(pool)
    for pool in ("dense", "language", "mixer", "auxiliary"):
        yield from _precision(pool)
    for pool in ("dense", "language", "auxiliary"):
        for update in POLICIES:
            lanes = "threads" if update in ("ahead", "serial") else "inline"
            clip = None if update == "eager" else 0.5
            yield Case(pool, update, clip, storage="file", options={"lanes": lanes})
        yield Case(pool, "ahead", 0.5, storage="file", options={"precision": "bf16", "device_budget": "all"})
    for optimizer in OPTIMIZERS:
        by_position = optimizer in ("groups", "frozen")  # what a layer that is used twice cannot have
        for pool, update in (("dense", "eager"), ("mixer" if by_position else "language", "ahead"), ("dense", "exact")):
            yield Case(pool, update, None if update == "eager" else 0.5, optimizer)
            yield Case(pool, update, optimizer=optimizer, batch=3, options={"device_budget": "all"})
    for pool in SPACES:
        yield Case(pool, "eager")
        yield Case(pool, "eager", batch=3, options={"device_budget": "all"})
        yield Case(pool, "exact", 1.0, options={"device_budget": "all", "stash": "host"})
        yield Case(pool, "ahead", 0.1, options={"precision": "fp32" if pool == "elastic_conv" else "bf16"})
    for kind in ("population", "recalibrate", "fork", "two_relays", "reference", "not_finite"):
        for pool in ("dense", "language", "decoder", "image_blocks"):
            yield Case(pool, "eager" if kind == "reference" else "exact", kind=kind)
            yield Case(pool, "eager", kind=kind, options={"device_budget": "all"}, batch=3)
    kept: list[dict[str, Any]] = [{}, {"device_budget": "all"}, {"stash": "host"}]
    for options in kept:
        yield Case("gpt2", "eager", kind="extend", options=options)


def _memory(pool: str) -> Iterator[Case]:
    """What stays on the device, by turns with both kinds of lanes."""
    for update, clip in (("eager", None), ("ahead", 0.5), ("exact", 0.5)):
        kept: tuple[dict[str, Any], ...] = (
            {"slots": 1}, {"slots": 3}, {"slots": 2, "keep": 3}, {"stash": "host"}, {"device_budget": 150_000},
            {"device_budget": 150_000, "stash": "host", "slots": 1}, {"device_budget": "all"},
            {"device_budget": "all", "stash": "host"}, {"device_budget": "auto"},
        )  # fmt: skip
        for number, options in enumerate(kept):
            lanes = "threads" if number % 2 else "inline"
            yield Case(pool, update, clip, batch=5, micro_batch=2, options={**options, "lanes": lanes})
        for micro_batch in (1, 5):
            yield Case(pool, update, clip, batch=5, micro_batch=micro_batch, options={"device_budget": "all"})


def _precision(pool: str) -> Iterator[Case]:
    for precision in ("bf16", "fp16"):
        for update in POLICIES[precision == "fp16" :]:
            for budget in (None, "all"):
                clip = None if update == "eager" else 0.5
                yield Case(pool, update, clip, options={"precision": precision, "device_budget": budget})
    for update in POLICIES[1:]:  # some steps overflow
        yield Case(pool, update, 0.5, scale=3e2, options={"precision": "fp16", "device_budget": "all"})
        yield Case(pool, update, scale=3e2, options={"precision": "fp16"})


def _optimizers() -> dict[str, Callable[[], Any]]:
    """By name; made where they are used, as only a worker may import the library."""

    def low() -> Any:
        import l2l_nas

        return l2l_nas.LowPrecision(l2l_nas.AdamW(), "bf16")

    def groups() -> Any:
        from l2l_nas import AdamW, Group, Groups, layer_decay, no_decay

        halved = Group("*.weight", lr_scale=0.5, name="halved")
        return Groups(AdamW(weight_decay=0.1), [no_decay(), halved, layer_decay(0.9)])

    def frozen() -> Any:
        from l2l_nas import SGD, AdamW, Group, Groups

        return Groups(AdamW(), [Group("*bias", frozen=True), Group("*1*weight", rule=SGD(momentum=0.5), name="sgd")])

    def plain(name: str, **arguments: Any) -> Any:
        import l2l_nas

        return getattr(l2l_nas, name)(**arguments)

    rules: dict[str, tuple[str, dict[str, Any]]] = {
        "adamw_decay": ("AdamW", {"weight_decay": 0.1}), "sgd": ("SGD", {}), "sgd_plain": ("SGD", {"momentum": 0.0}),
        "nesterov": ("SGD", {"nesterov": True, "weight_decay": 0.01}), "lion": ("Lion", {"weight_decay": 0.1}),
        "adafactor": ("Adafactor", {}), "muon": ("muon_with_adamw", {}),
    }  # fmt: skip
    made = {name: partial(plain, rule, **arguments) for name, (rule, arguments) in rules.items()}
    return {**made, "bf16": low, "groups": groups, "frozen": frozen}


OPTIMIZERS = _optimizers()
TEXT = {"vocabulary": 31, "length": 12, "hidden": 16, "depth": 2, "heads": 2}
SPACES: dict[str, dict[str, Any]] = {
    "image_blocks": {"channels": 4}, "digits_conv": {"depth": 4}, "digits_shared": {"channels": 4, "depth": 4},
    "elastic_conv": {"channels": 4, "depth": 2}, "gpt2": TEXT, "llama": TEXT, "hybrid": TEXT,
}  # fmt: skip
