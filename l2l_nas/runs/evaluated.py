"""What was measured of a run's best network and of its original, as an export's card tells it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import open_file, read_json, write_json
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.saved import SavedRun
from l2l_nas.training.score import Score


def note_evaluation(run: str, task: str, file: Path, score: Score, *, tokenizer: str, original: str = "") -> None:
    """Keep what was measured of the run's best network on a text, or of the original of the pool with a fingerprint.

    Raises StorageError: the run's result cannot be read, or the folder cannot be written.
    """
    folder = RunFolder(Path(run))
    of = original or _best(SavedRun(folder).result())
    folder = folder.of_all_sizes if original else folder  # one original for all
    with open_file(file) as content:
        digest = hashlib.file_digest(content, "sha256")  # type: ignore[arg-type]
    digest.update(tokenizer.encode())
    what = f"{task} of `{file.name}` ({digest.hexdigest()[:8]})"
    others = [one for one in _read(folder) if one["what"] != what or isinstance(one["of"], str) is not bool(original)]
    write_json(folder.evaluations, {"evaluations": [*others, {"of": of, "what": what, **score.to_json()}]})


def figures_of(run: str, result: Mapping[str, Any], *, original: str) -> dict[str, Any]:
    """Figures of the "network" and of the pool's "original": of each part of the run's data, and of each text."""
    folder, best = RunFolder(Path(run)), _best(result)
    parts, errors = result["best"], result["best"].get("standard_error") or {}
    found: dict[str, Any] = {}
    for part, name in (("validation", "values"), ("test", "test")):
        found[part] = {"network": {"values": parts.get(name) or {}, "errors": errors.get(part) or {}}}
    for one in (*_read(folder), *_read(folder.of_all_sizes)):
        if one["of"] in (best, original):
            found.setdefault(one["what"], {})["network" if one["of"] == best else "original"] = one
    return found


def texts_of(root: Path) -> dict[str, dict[str, Mapping[str, Any]]]:
    """What was measured on each text: of the "original", and of the best network or that of each size, by its name."""
    whole = RunFolder(root).of_all_sizes
    folders = {path.name: RunFolder(path) for path in sorted(whole.sizes.glob("*"))} if whole.sizes.is_dir() else {}
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for one in _read(whole):
        if isinstance(one["of"], str):
            found.setdefault(one["what"], {})["original"] = one
    for name, folder in (folders or {"network": whole}).items():
        entries = _read(folder)
        best = _best(SavedRun(folder).result()) if entries else None
        for one in entries:
            if one["of"] == best:
                found.setdefault(one["what"], {})[name] = one
    return found


def _best(result: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the run's best network from others."""
    return {name: result["best"][name] for name in ("architecture", "values")}


def _read(folder: RunFolder) -> list[dict[str, Any]]:
    """All that is kept, also of networks that are no longer the best; nothing of what is damaged."""
    kinds = {"what": str, "of": str | dict, "values": dict, "errors": dict}
    try:
        found = read_json(folder.evaluations)["evaluations"]
        return [one for one in found if all(isinstance(one[name], kind) for name, kind in kinds.items())]
    except (KeyError, StorageError, TypeError):
        return []
