"""What a random search beside a search came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from l2l_nas.nas.evaluation.stage_score import StageScore, compared_by
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.score import Score, by_part


@dataclass(frozen=True)
class Baseline:
    """The best of a random search.

    Args:
        networks: how many were to be trained.
        total_steps: of all of them.
        steps: of the best.
        architecture: of the best on the validation part.
        stage_score: what it was compared with the others by, as finalists are.
        failed: why others could not be trained, by architecture.
        search_steps: that the search took: more, where the space has no more networks.
    """

    networks: int
    total_steps: int
    steps: int
    architecture: Architecture
    scores: Mapping[str, Score]
    costs: Mapping[str, float]
    stage_score: StageScore | None = None
    failed: Mapping[Architecture, str] = field(default_factory=dict)
    search_steps: int = 0

    def entry(self) -> dict[str, Any]:
        return {
            "kind": "random",
            "networks": self.networks,
            "total_steps": self.total_steps,
            "search_steps": self.search_steps,
            "steps": self.steps,
            "architecture": list(self.architecture.choices),
            **by_part(self.scores),
            **compared_by(self.stage_score),
            "costs": dict(self.costs),
            "failed": [{"architecture": list(one.choices), "reason": reason} for one, reason in self.failed.items()],
        }
