"""Reads what runs saved, as a user of Optuna does: by the line that stands in the docs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

from l2l_nas.nas.study.journal import open_journal


def saved_study(folder: Path | str) -> optuna.Study:
    """The study of a run's folder."""
    return optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend(f"{folder}/study.log")))


def unchained(journal: bytes) -> bytes:
    """A journal as a version wrote it that had no chains, or somebody whose chain would be right."""
    return re.sub(rb',"chain":"[^"]*"', b"", journal)


def change_events(folder: Path | str, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> None:
    """Write the events of a run anew, as somebody whose chain would be right; None leaves one out."""
    path, log = Path(folder) / "study.log", Path(folder) / "log.jsonl"
    lines = []
    if not path.exists():
        changed = [change(json.loads(line)) for line in log.read_text().splitlines()]
        log.write_text("".join(f"{json.dumps(event)}\n" for event in changed if event is not None))
        return
    for line in unchained(path.read_bytes()).splitlines():
        entry = json.loads(line)
        named = entry.get("system_attr", {})
        if any(name.startswith("event_") for name in named):
            ((name, event),) = named.items()
            changed = change(event)
            if changed is None:
                continue
            entry["system_attr"] = {name: changed}
        lines.append(json.dumps(entry))
    path.write_text("".join(f"{line}\n" for line in lines))


def add_event(folder: Path | str, event: str, **fields: Any) -> None:
    """Append an event to a search's own."""
    journal = open_journal(Path(folder) / "study.log", name="search")
    journal.append({"event": event, "time": 0, "at_trial": len(journal.study.trials), **fields})


def change_result(folder: Path | str, change: Callable[[Any], Any]) -> None:
    """The same of what a search came to; None leaves it out."""

    def changed(event: dict[str, Any]) -> dict[str, Any] | None:
        if event["event"] != "result":
            return event
        content = change(event["content"])
        return None if content is None else {**event, "content": content}

    change_events(folder, changed)
