"""How much of what a search does."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.nas.evaluation.early_stopping import LEAST_STEPS, check_early_stop
from l2l_nas.nas.evaluation.segment import ScoredOn, Segment, check_trial_weights
from l2l_nas.nas.evaluation.stage_score import score_steps
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.schedule import Cosine, MakeSchedule

BASELINES = ("none", "random")

_FRONT = 0.75  # of finalists, what goes on after a round at most where there are several goals
_RUNGS = (0.25, 0.5)  # shares of a trial's steps after which it is scored, where it may be stopped early


@dataclass(frozen=True)
class Round:
    """A part of the finalists' training: so many finalists train for so many steps each, from step `start` on.

    Args:
        going_on: how many go on to the next one at most; 1 in the last: the best.
        score_steps: after how many steps of its training a finalist is scored.
    """

    finalists: int
    steps: int
    start: int
    going_on: int
    is_last: bool
    score_steps: tuple[int, ...] = ()


def halved(finalists: int, steps: int, rounds: int, *, done: int = 0, num_goals: int = 1) -> list[tuple[int, int]]:
    """How many finalists each round trains at most, and for how many steps each.

    With one goal all rounds take about as many steps. With more the ends of rounds are the same, but three quarters go
    on, as a front is worth more than its best network: see `front.py`.

    Args:
        steps: of the finalist that is in all rounds.
        rounds: as many as halve them to one, at most.
        done: steps that all of them have had before.
    """
    counts = [finalists]
    while len(counts) < min(rounds, steps - done) and counts[-1] > 1:
        counts.append(-(-counts[-1] // 2))
    whole = sum(1 / max(1, count) for count in counts)
    shares = itertools.accumulate(1 / max(1, count) / whole for count in counts)
    # a step for each round at least
    ends = [done + max(place, round((steps - done) * share)) for place, share in enumerate(shares, 1 if steps else 0)]
    if num_goals > 1:
        counts = [max(min(2, finalists), int(finalists * _FRONT**place)) for place in range(len(counts))]
    return [(count, end - start) for count, start, end in zip(counts, [done, *ends], ends, strict=False)]


@dataclass(frozen=True)
class Division:
    """What a search does, in numbers.

    Args:
        warmup_steps: steps on random paths before the first trial.
        trials: architectures to evaluate in all; repeats and refused ones are not counted.
        steps_per_trial: steps that a trial trains its path; 0 scores it as it is.
        finalists: how many of the best are trained further and scored again; 0: the best trial is named, no more.
        finalist_steps: steps that a finalist trains on its own copy of the weights, if it is in all rounds.
        finalist_rounds: in so many rounds; after each, the better half goes on, as long as one is left, or the best
            front of three quarters. 1: all are trained alike.
        trial_weights: what a trial trains: the shared weights ("shared"), a copy of them that is dropped afterwards
            ("fork"), or every layer from its first weights ("scratch"). With the last two the shared weights are
            trained by warm-up alone.
        num_goals: of the search.
        block_steps: that each block trains by itself; None where no blocks are.
    """

    warmup_steps: int
    trials: int
    steps_per_trial: int
    finalists: int
    finalist_steps: int
    finalist_rounds: int = 1
    trial_weights: str = "shared"
    num_goals: int = 1
    block_steps: int | None = None

    @property
    def steps_before_finalists(self) -> int:
        return self.warmup_steps + self.trials * self.steps_per_trial

    @property
    def rounds(self) -> tuple[Round, ...]:
        found: list[Round] = []
        start, done = self.steps_before_finalists, self.begun
        rounds = halved(
            self.finalists, self.finalist_steps, self.finalist_rounds, done=self.begun, num_goals=self.num_goals
        )
        for (count, steps), (going_on, _) in zip(rounds, [*rounds[1:], (1, 0)], strict=True):
            is_last = len(found) == len(rounds) - 1
            found.append(Round(count, steps, start, going_on, is_last, score_steps(done, steps, self.finalist_steps)))
            start, done = start + count * steps, done + steps
        return tuple(found)

    @property
    def is_raced(self) -> bool:
        """Whether trials are the first steps of a finalist's training, now or later: all begin with first weights."""
        return self.trial_weights == "scratch" and self.finalist_steps > 0

    @property
    def begun(self) -> int:
        """Steps that a finalist has had as a trial."""
        return self.steps_per_trial if self.is_raced else 0

    @property
    def steps(self) -> int:
        return self.steps_before_finalists + sum(one.finalists * one.steps for one in self.rounds)

    @property
    def last_step(self) -> int:
        """Where the training data ends that anything of a search sees: in a race all networks see the same batches."""
        return self.finalist_steps if self.is_raced else self.steps


@dataclass(frozen=True, kw_only=True)
class Budget(Division):
    """A division plus learning rates, checkpoints and early stopping.

    Args:
        learning_rate: peak, of warm-up and trials.
        finalist_learning_rate: peak, of finalists.
        checkpoint_seconds: at most this much training of the shared weights is lost to a crash.
        population: trials that train nothing are evaluated so many at a time, in one pass.
        population_bytes: of activations that wait on the device meanwhile.
        early_stop: a key of `EARLY_STOPS`.
        baseline: "random" if random search of as many steps follows, to hold the result against; or "none".
        schedule: of the learning rate, made of a peak and a number of steps, anew for each training.
        failures: so many trials in a row that fail end the search.

    Raises:
        SettingError: a value that makes no sense, named.
    """

    learning_rate: float
    finalist_learning_rate: float
    checkpoint_seconds: float = 15.0
    population: int = 16
    population_bytes: int = 1 << 28
    early_stop: str = "none"
    failures: int = 10
    baseline: str = "none"
    schedule: MakeSchedule = Cosine

    def __post_init__(self) -> None:
        for name, rate in {
            "train.learning_rate": self.learning_rate,
            "search.finalist_learning_rate": self.finalist_learning_rate,
        }.items():
            if not 0 < rate < math.inf:
                raise SettingError(f"{name} must be above 0, got {rate}")
        check_trial_weights(self.trial_weights)
        if self.trial_weights == "scratch" and self.steps_per_trial == 0:
            raise SettingError(
                "search.trial_weights=scratch with search.steps_per_trial=0 would score networks that were never "
                "trained; give it steps, such as search.steps_per_trial=200, or score shared weights as they are: "
                "search.trial_weights=shared"
            )
        if self.trial_weights == "scratch" and self.finalists and self.finalist_steps == 0:
            raise SettingError(
                "search.finalist_steps=0 with search.trial_weights=scratch would return first weights; give "
                "finalists steps, or name the best trial and no more: search.finalists=0"
            )
        if self.is_raced:
            self._refuse_race()
        if self.baseline not in BASELINES:
            raise SettingError(
                f"search.baseline: no such baseline as '{self.baseline}'{did_you_mean(self.baseline, BASELINES)}"
            )
        if self.baseline != "none" and not self.finalists * self.finalist_steps:
            raise SettingError(
                f"search.baseline={self.baseline} trains networks as long as finalists, and there are none: set "
                "search.finalists and search.finalist_steps, or search.baseline=none"
            )
        check_early_stop(self.early_stop)
        if self.early_stop != "none":
            self._refuse_early_stop()

    def _refuse_race(self) -> None:
        """Trials and finalists that cannot be one training."""
        one = "with search.trial_weights=scratch trials are the first steps of the finalists' training"
        if self.finalist_steps <= self.steps_per_trial:
            raise SettingError(
                f"search.finalist_steps must be above search.steps_per_trial={self.steps_per_trial}, got "
                f"{self.finalist_steps}: {one}; search.finalist_steps=0 search.finalists=0 trains no finalists"
            )
        if self.finalist_learning_rate != self.learning_rate:
            raise SettingError(
                f"search.finalist_learning_rate={self.finalist_learning_rate:g} and train.learning_rate="
                f"{self.learning_rate:g} must be one: {one}; leave search.finalist_learning_rate out"
            )

    def _refuse_early_stop(self) -> None:
        setting = f"search.early_stop={self.early_stop}"
        if self.trial_weights == "shared":
            raise SettingError(
                f"{setting} stops trials on weights of their own; set search.trial_weights=fork or scratch"
            )
        if self.steps_per_trial < LEAST_STEPS:
            raise SettingError(
                f"{setting} examines a trial after a quarter of its steps, and {self.steps_per_trial} are too few to "
                f"tell; set search.steps_per_trial to {LEAST_STEPS} at least, such as 100"
            )

    @property
    def rungs(self) -> tuple[int, ...]:
        """After which steps a trial is scored on its way."""
        return () if self.early_stop == "none" else tuple(round(share * self.steps_per_trial) for share in _RUNGS)

    @property
    def shared_steps(self) -> int:
        return self.warmup_steps if self.trial_weights != "shared" else self.steps_before_finalists

    def trial_segment(
        self,
        architecture: Architecture,
        ordinal: int,
        *,
        done: int = 0,
        server: ParamServer | None = None,
    ) -> Segment:
        """The next segment of a trial: to its next rung, or to its end.

        Args:
            ordinal: how many trials came before; it decides the numbers of the steps.
            done: steps that the trial has had.
            server: weights that it goes on with.
        """
        end = next((rung for rung in self.rungs if rung > done), self.steps_per_trial)
        first = 0 if self.is_raced else self.warmup_steps + ordinal * self.steps_per_trial
        is_shared = self.trial_weights == "shared"
        total = self.finalist_steps if self.is_raced else self.steps_per_trial
        is_last = end == self.steps_per_trial
        return Segment(
            f"the trial of architecture {architecture.digest}",
            architecture,
            self.trial_weights,
            first + done,
            end - done,
            self.learning_rate,
            done=first + done if is_shared else done,
            total=self.shared_steps if is_shared else total,
            scored_on=ScoredOn.VALIDATION if is_last else ScoredOn.SAMPLE,
            server=server,
            keeps_weights=self.is_raced or not is_last,
        )

    def finalist_segment(self, architecture: Architecture, index: int, *, spend: Round, done: int = 0) -> Segment:
        """A finalist's training in a round.

        Args:
            index: among those of the round.
            done: steps that it had before.
        """
        return Segment(
            f"finalist {index + 1}",
            architecture,
            "fork" if self.trial_weights == "shared" else self.trial_weights,
            # in a race all networks have the same steps: those of its trial go on
            done if self.is_raced else spend.start + index * spend.steps,
            spend.steps,
            self.finalist_learning_rate,
            done=done,
            total=self.finalist_steps,
            scored_on=ScoredOn.TEST if spend.is_last else ScoredOn.ERRORS,
        )
