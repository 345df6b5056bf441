"""What `evaluate` measured on texts of a run's best network and of its original, kept for the card of an export."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from l2l_nas.errors import StorageError
from l2l_nas.files import open_file, read_json, write_json
from l2l_nas.runs.folder import RunFolder
from l2l_nas.training.score import Score

BEST, ORIGINAL = "best", "original"  # networks of a run


@dataclass(frozen=True)
class Measurement:
    """What was measured: the same of two networks can be compared.

    Args:
        task: see `runs.language.TASKS`.
        file: its name, without folders.
        digest: of what it held.
        stride: of windows; 0: they do not overlap.
        tokenizer: its fingerprint; empty where there was none.
    """

    task: str
    file: str
    digest: str = ""
    stride: int = 0
    tokenizer: str = ""

    @classmethod
    def of(cls, task: str, file: Path, *, stride: int = 0, tokenizer: str = "") -> Measurement:
        """Of a file as it is now. Raises StorageError: it cannot be read."""
        with open_file(file) as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()  # type: ignore[arg-type]
        return cls(task, file.name, digest, stride, tokenizer)


def note_evaluation(run: str, what: Measurement, score: Score, *, original: str = "") -> None:
    """Keep what was measured, in place of what was before of the same network, task and name of a file.

    Args:
        original: fingerprint of the pool, if its original was measured; empty: the run's best network.

    Raises:
        StorageError: the run's result cannot be read, or the folder cannot be written.
    """
    folder = RunFolder(Path(run))
    own = {"network": ORIGINAL if original else BEST, "of": original or _best(folder), **asdict(what)}
    folder = folder.of_all_sizes if original else folder  # one original for all
    place = ("network", "task", "file")
    others = [one for one in _read(folder) if any(one[name] != own[name] for name in place)]
    found = {**own, "values": dict(score.values), "errors": dict(score.errors)}
    write_json(folder.evaluations, {"evaluations": [*others, found]})


def evaluations_of(run: str, *, original: str = "") -> list[Mapping[str, Any]]:
    """What was measured of the run's best network as it is now, and the same of its original.

    Args:
        original: fingerprint of the pool whose original counts.

    Returns:
        Each task and file with "values" and "errors" of the best network, and "original", which has both of the
        original; what was measured of one of them alone is empty of the other. A damaged file tells nothing.
    """
    folder = RunFolder(Path(run))
    try:
        best = _best(folder)
    except StorageError:
        return []
    found = [*_read(folder), *(_read(folder.of_all_sizes) if folder.of_all_sizes != folder else ())]
    none: Mapping[str, Any] = {"values": {}, "errors": {}}
    names = list(asdict(Measurement("", "")))
    pairs: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for one in found:
        if one["of"] == (best if one["network"] == BEST else original):
            pairs.setdefault(tuple(one[name] for name in names), {})[one["network"]] = one
    return [
        {
            **dict(zip(names, key, strict=True)),
            **_figures(pair.get(BEST, none)),
            ORIGINAL: _figures(pair.get(ORIGINAL, none)),
        }
        for key, pair in pairs.items()
    ]


def _figures(one: Mapping[str, Any]) -> dict[str, Any]:
    return {name: one[name] for name in ("values", "errors")}


def _read(folder: RunFolder) -> list[Mapping[str, Any]]:
    """All that is kept, also of networks that are no longer the best; nothing of what is damaged."""
    try:
        content = read_json(folder.evaluations) if folder.evaluations.exists() else {}
    except StorageError:
        return []
    found = content.get("evaluations") if isinstance(content, dict) else None
    return [one for one in found if _is_whole(one)] if isinstance(found, list) else []


def _is_whole(one: Any) -> bool:
    if not isinstance(one, dict) or not {"network", "of", "stride", "values", "errors"} <= one.keys():
        return False
    is_named = all(isinstance(one.get(name), str) for name in ("task", "file", "digest", "tokenizer"))
    numbers = [*one["values"].values(), *one["errors"].values()] if _are_dicts(one) else [None]
    return is_named and isinstance(one["stride"], int) and all(isinstance(n, int | float) for n in numbers)


def _are_dicts(one: Mapping[str, Any]) -> bool:
    return isinstance(one["values"], dict) and isinstance(one["errors"], dict)


def _best(folder: RunFolder) -> Any:
    """What tells the run's best network from others."""
    result = read_json(folder.result)
    best = result.get("best") if isinstance(result, dict) else None
    return {name: best.get(name) for name in ("architecture", "values")} if isinstance(best, dict) else None
