"""What a bench is given, and whom it tells how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from benchmarks.relay.work import StackSizes
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import SettingError
from l2l_nas.training.problem import Problem


class BenchWatch(Protocol):
    """Follows a bench."""

    def start(self, total: float) -> None:
        """How much there is to do, in units of the bench's own."""

    def advance(self, done: float, text: str) -> None:
        """So much more is done; the text says what."""

    def note(self, text: str) -> None:
        """Something to know before the end."""


class Unwatched:
    """Tells nobody."""

    def start(self, total: float) -> None:
        """See `BenchWatch.start`."""

    def advance(self, done: float, text: str) -> None:
        """See `BenchWatch.advance`."""

    def note(self, text: str) -> None:
        """See `BenchWatch.note`."""


@dataclass(frozen=True)
class Settings:
    """All a bench may be given; each reads what concerns it.

    Args:
        work: the stack's sizes.
        sides: who is compared.
        depths, batches: what the stack's depth and batch go through.
        rounds: how often the sides alternate.
        steps: training steps of a round; for `switching`, of the whole bench; for `search_chain`, of a trial.
        architectures: of a population, or of the sample of `search_chain` and `ranking`; 0: `ranking` takes all.
        population_bytes: bound of the activations that a population keeps; 0 for none.
        samplers: who searches, of `nas201`.
        runs: how often each of them does.
        trials: evaluations of such a run, or of a search with `workers` or `search_chain`.
        workers: processes of a search.
        problem: whose architectures are trained, of `ranking` (`samplers` are its path samplers) and `search_chain`;
            `runs` are their supernets.
        table: a file of stand-alone accuracies to read or go on with.
        stored: such files to search where none is named.
        seeds: trainings alone of each architecture.
        training_steps: of such a training; 0 for six passes over the data, or as a finalist of `search_chain`.
        warmup_steps: of a supernet.
        trial_weights: what trials train, of `search_chain`: "scratch" or "shared".
        scratch: folder for files that are gone after the bench.

    Raises:
        SettingError: a value that makes no sense.
    """

    work: StackSizes
    sides: tuple[str, ...] = ()
    depths: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    rounds: int = 8
    steps: int = 1
    architectures: int = 64
    population_bytes: int = 0
    samplers: tuple[str, ...] = ()
    runs: int = 60
    trials: int = 200
    problem: Problem | None = None
    table: Path | None = None
    stored: tuple[Path, ...] = ()
    seeds: int = 3
    training_steps: int = 0
    warmup_steps: int = 3000
    workers: int = 2
    trial_weights: str = "scratch"
    scratch: Path = Path()

    def __post_init__(self) -> None:
        for name in ("rounds", "runs", "seeds", "workers"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("architectures", "population_bytes", "training_steps", "steps", "trials", "warmup_steps"):
            if getattr(self, name) < 0:
                raise SettingError(f"{name} must be at least 0, got {getattr(self, name)}")
        for name, values in (("depths", self.depths), ("batches", self.batches)):
            if any(value < 1 for value in values) or len(set(values)) < len(values):
                raise SettingError(f"{name} must be different numbers from 1, got {list(values)}")

    @property
    def asked_problem(self) -> Problem:
        """The problem, of a bench that asks for one."""
        assert self.problem is not None  # the command line sees to it
        return self.problem

    def at(self, **sizes: Any) -> StackSizes:
        """The stack with other sizes."""
        return replace(self.work, **sizes)


@dataclass(frozen=True)
class Bench:
    """A bench.

    Args:
        run: measures; what it returns becomes JSON.
        sizes: of `StackSizes`, where they differ from its own defaults.
        defaults: of `Settings`, for what the bench reads.
        least_candidates: at a position, without which there is nothing to measure.
        refuse: raises a SettingError for what makes no sense to this bench alone.
        trains: whether it trains a stack; if not, the stack's sizes are not given.
        space: the space that it measures by default; empty for a bench that asks for none.
        data: what it is trained on there.
    """

    run: Callable[[Settings, BenchWatch], dict[str, Any]]
    sizes: dict[str, int]
    defaults: dict[str, Any]
    least_candidates: int = 1
    refuse: Callable[[Settings], None] | None = None
    trains: bool = True
    space: str = ""
    data: str = "digits"

    def check(self, settings: Settings) -> None:
        """Refuse what makes no sense for this bench, before anything is built.

        Raises:
            SettingError: too few candidates, or what `refuse` refuses.
        """
        got = settings.work.candidates
        if got < self.least_candidates:
            raise SettingError(f"this bench needs at least {self.least_candidates} candidates at a position, got {got}")
        if self.refuse is not None:
            self.refuse(settings)


def too_large(work: StackSizes, *, bytes_per_parameter: int = 16) -> str:
    """Why a stack does not fit this machine's free memory; empty if it does."""
    needed, free = work.num_parameters * bytes_per_parameter, free_memory_bytes()
    if needed < 0.8 * free:
        return ""
    return f"weights, gradients and moments need {needed / 2**30:.1f} GiB of host memory, {free / 2**30:.1f} are free"
