"""What `evaluate` measured on texts of the best network of a run, kept in its folder for the card of an export."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import read_json, write_json
from l2l_nas.runs.folder import RunFolder
from l2l_nas.training.score import Score


def note_evaluation(run: str, task: str, file: str, score: Score) -> None:
    """Keep what was measured, in place of what was before on a file of that name.

    Raises:
        StorageError: the run's result cannot be read, or the folder cannot be written.
    """
    own = {"task": task, "file": Path(file).name}
    others = [one for one in evaluations_of(run) if {name: one.get(name) for name in own} != own]
    found = {**own, "values": dict(score.values), "errors": dict(score.errors)}
    folder = RunFolder(Path(run))
    write_json(folder.evaluations, {"best": _best(folder), "evaluations": [*others, found]})


def evaluations_of(run: str) -> list[Mapping[str, Any]]:
    """What was measured of the network that is the run's best now; a damaged file tells nothing."""
    folder = RunFolder(Path(run))
    try:
        content = read_json(folder.evaluations) if folder.evaluations.exists() else {}
        if isinstance(content, dict) and content.get("best") == _best(folder):
            return [one for one in content["evaluations"] if _is_whole(one)]
    except (StorageError, AttributeError, KeyError, TypeError):
        pass
    return []


def _is_whole(one: Mapping[str, Any]) -> bool:
    return isinstance(one.get("values"), dict) and all(isinstance(one.get(name), str) for name in ("task", "file"))


def _best(folder: RunFolder) -> Any:
    """What tells the run's best network from others."""
    result = read_json(folder.result)
    best = result.get("best") if isinstance(result, dict) else None
    return {name: best.get(name) for name in ("architecture", "values")} if isinstance(best, dict) else None
