"""What goes wrong in one of several ranks, at a moment that was chosen: installed in the process of that rank.

A moment is an exchange with the other ranks, counted from 1. `kill` and `stop` happen there and then; `raise`,
`memory`, `nan` and `nan_gradient` (of a finite output) in the next layer that trains. Within a save, `raise` and
`memory` happen there, too.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from torch import nn

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.parallel.ranks import GroupExchange
from l2l_nas.parallel.world import World
from l2l_nas.training.consensus import Consensus

KINDS = ("kill", "stop", "raise", "nan", "nan_gradient", "memory")
OF_TRIALS = ("raise", "nan", "memory")


@dataclass(frozen=True)
class Fault:
    """What happens to a rank.

    Args:
        kind: one of `KINDS`.
        rank: whose.
        at: before which exchange of this rank, from 1; with `trial`, in which layer's forward of that trial.
        in_save: whether exchanges within saves are counted, and no others.
        trial: of a search; None of a training.
    """

    kind: str
    rank: int
    at: int
    in_save: bool = False
    trial: int | None = None

    def as_content(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Harm:
    """Counts the moments of this rank, and does what is said.

    Args:
        faults: of this rank; none: moments are counted only.
        mark: a file for a line of JSON for each thing that happens.
    """

    def __init__(self, faults: list[Fault], mark: Path) -> None:
        self._faults, self._mark = list(faults), mark
        self._all = self._in_saves = self._forwards = 0
        self._is_saving = False
        self._is_armed: Fault | None = None
        self._trial = -1

    def install(self) -> None:
        """Wrap what is counted. The process is one that ends soon."""
        for name in ("gather", "swap"):
            _wrap(GroupExchange, name, self._exchange)
        _wrap(Checkpoint, "save", self._save)
        _wrap(World, "leave", self._leave)
        _wrap(Consensus, "failure", self._failure)
        _wrap(Evaluator, "run", self._segment)
        _wrap(nn.Linear, "forward", self._forward)

    def _note(self, **content: Any) -> None:
        with self._mark.open("a") as file:
            file.write(json.dumps({**content, "at_s": time.monotonic()}) + "\n")
            file.flush()

    def _exchange(self, call: Callable[..., Any], exchange: GroupExchange, *words: Any, **named: Any) -> Any:
        self._all += 1
        self._in_saves += self._is_saving
        for fault in self._faults:
            if fault.trial is None and fault.at == (self._in_saves * self._is_saving if fault.in_save else self._all):
                self._faults.remove(fault)
                if fault.kind in ("kill", "stop") or fault.in_save:
                    self._happen(fault)
                else:
                    self._is_armed = fault
                break
        return call(exchange, *words, **named)

    def _happen(self, fault: Fault) -> None:
        self._note(fault=fault.kind, trial=self._trial)
        if fault.kind in ("kill", "stop"):
            os.kill(os.getpid(), signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        elif fault.kind == "raise":
            raise ValueError("my layer is broken")
        elif fault.kind == "memory":
            raise MemoryError

    def _forward(self, call: Callable[..., Any], layer: nn.Module, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = call(layer, x)
        if x.is_meta or not layer.training or self._is_saving:
            return result
        self._forwards += 1
        for fault in self._faults:
            if fault.trial == self._trial and fault.at == self._forwards:
                self._faults.remove(fault)
                self._is_armed = fault
                break
        armed = self._is_armed
        if armed is None or (armed.kind == "nan_gradient" and not result.requires_grad):
            return result  # in the second case, a layer that is run again before its backward
        self._is_armed = None
        self._happen(armed)
        if armed.kind == "nan":
            return result * torch.nan
        result.register_hook(lambda gradient: gradient * torch.nan)
        return result

    def _save(self, call: Callable[..., Any], *words: Any, **named: Any) -> Any:
        self._is_saving = True
        try:
            return call(*words, **named)
        finally:
            self._is_saving = False

    def _segment(self, call: Callable[..., Any], *words: Any, **named: Any) -> Any:
        self._trial, self._forwards = self._trial + 1, 0
        result = call(*words, **named)
        self._note(trial=self._trial, forwards=self._forwards)
        return result

    def _failure(self, call: Callable[..., Any], *words: Any, **named: Any) -> Any:
        begun = time.monotonic()
        result = call(*words, **named)
        self._note(rejoined_s=time.monotonic() - begun, trial=self._trial)
        return result

    def _leave(self, call: Callable[..., Any], world: World) -> Any:
        self._note(exchanges=self._all, in_saves=self._in_saves)
        return call(world)


def _wrap(owner: type, name: str, around: Callable[..., Any]) -> None:
    inner = getattr(owner, name)

    @wraps(inner)
    def outer(*words: Any, **named: Any) -> Any:
        return around(inner, *words, **named)

    setattr(owner, name, outer)
