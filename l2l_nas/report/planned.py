"""Predicted cost of a training step, as a run's folder has it in `plan.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from l2l_nas.cost.hardware import origin_of


@dataclass(frozen=True)
class PlannedStep:
    """A training step of an architecture."""

    name: str  # smallest, median or largest
    parameters: int
    step_ms: float
    plain_ms: float  # of plain training with everything on the device
    device_bytes: int
    host_bytes: int
    binds: str  # the lane with the most work
    use: Mapping[str, float]  # by lane, the share of the step in which it works
    missing: str  # what does not fit; empty where all does


@dataclass(frozen=True)
class Planned:
    """Predictions for a space on some hardware."""

    hardware: str  # name of the profile
    sources: str  # where its figures come from, in a line
    pool_bytes: int  # host memory of the whole pool
    batch_size: int  # samples of a step
    steps: tuple[PlannedStep, ...]

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Planned:
        """As `plan` writes it.

        Raises:
            KeyError, TypeError, ValueError, AttributeError: it is something else.
        """
        steps = tuple(
            PlannedStep(
                str(row["name"]),
                int(row["parameters"]),
                float(row["step_ms"]),
                float(row["plain_ms"]),
                int(row["device_bytes"]),
                int(row["host_bytes"]),
                str(row["binds"]),
                {str(lane): float(share) for lane, share in row["use"].items()},
                str(row["missing"]),
            )
            for row in content["rows"]
        )
        if not steps:
            raise ValueError("no architecture")
        hardware = content["hardware"]
        sources = origin_of(dict(hardware["sources"]))
        return cls(str(hardware["name"]), sources, int(content["pool_bytes"]), int(content["batch_size"]), steps)
