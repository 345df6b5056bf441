"""Stacks that every test of the benches can afford."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.relay.work import StackSizes
from benchmarks.settings import Settings

SIZES = {"hidden": 16, "heads": 2, "feedforward": 32, "sequence": 8, "vocabulary": 20, "batch": 4, "micro_batch": 2}
TINY = StackSizes(depth=2, device="cpu", **SIZES)


def settings(scratch: Path = Path(), *, depth: int = 2, candidates: int = 1, **given: Any) -> Settings:
    """Few rounds of a tiny stack."""
    work = StackSizes(depth=depth, candidates=candidates, device="cpu", **SIZES)
    return Settings(work=work, **{"rounds": 3, "scratch": scratch, **given})


class Counted:
    """A watch that remembers how much was announced and how much was done, and what it was given."""

    def __init__(self) -> None:
        self.total = 0.0
        self.done = 0.0
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def start(self, total: float) -> None:
        self.total = total

    def advance(self, done: float, text: str) -> None:
        assert text
        self.done += done
