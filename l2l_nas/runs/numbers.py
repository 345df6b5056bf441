"""What a search does how often: numbers not given follow from the space, the data, and a time or trainings given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

from l2l_nas.compress.block_division import apart, fitted_apart
from l2l_nas.compress.block_scores import ScoreBlocks
from l2l_nas.compress.block_training import DistilBlocks
from l2l_nas.compress.blockwise import BLOCKWISE
from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.early_stopping import LEAST_STEPS
from l2l_nas.nas.strategies.budget import Budget, Division, halved
from l2l_nas.nas.strategies.division import division, fitted, in_trainings, parse_time
from l2l_nas.nas.strategies.machine_speed import MachineSpeed
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.runs.fields import changed
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.problem import Problem

# numbers that are decided when a search begins, and what stands for them until then
_UNDECIDED = {"warmup_steps": 1, "trials": 1, "steps_per_trial": LEAST_STEPS, "finalist_steps": 2**31}
_NUMBERS = tuple(_UNDECIDED)
_FINALISTS = ("finalists", "finalist_rounds")  # they are decided as well where whole trainings are divided
_ROUNDS = 3  # of finalists at most, where nobody says it


def check_total(conf: SearchConf) -> None:
    """Refuse a time, or a number of whole trainings, that is none or that cannot be divided.

    Raises:
        SettingError: with what to do.
    """
    section = conf.search
    if section.trainings:
        _check_trainings(conf)
    if not section.time:
        return
    parse_time(section.time)
    if conf.relay.storage != "ram" and not conf.resume:
        raise SettingError(
            f"search.time measures a few steps in memory, which says little of relay.storage={conf.relay.storage}; say "
            f"{_listed(_NUMBERS)} instead"
        )


def _check_trainings(conf: SearchConf) -> None:
    section = conf.search
    if section.trainings < 1:
        raise SettingError(f"search.trainings must be at least 1, or 0 for about 6, got {section.trainings:g}")
    if section.time:
        raise SettingError("search.time and search.trainings each say how long a search takes; leave one of them out")
    if not is_from_scratch(conf):
        raise SettingError(
            "search.trainings counts networks trained from first weights, and with search.trial_weights="
            f"{section.trial_weights} trials train others; set search.trial_weights=scratch, or say {_listed(_NUMBERS)}"
        )
    if not section.finalists:
        raise SettingError(
            "search.trainings counts whole trainings, which finalists have, and search.finalists=0 trains none; say "
            "search.trials and search.steps_per_trial instead"
        )


def decide_numbers(
    conf: SearchConf,
    problem: Problem,
    *,
    phases: Sequence[Phase],
    pace: Callable[[], MachineSpeed],
) -> tuple[SearchConf, Division | None]:
    """Settings with numbers in place of those not given; and what is divided how, None where all were given.

    Args:
        conf: the settings.
        problem: what is searched.
        phases: of the strategy: without a warm-up, no steps are for it.
        pace: measures the machine, where a time is to be divided.

    Raises:
        SettingError: a time, or trainings, that are too few.
    """
    section = conf.search
    explicit = {name: getattr(section, name) for name in _NUMBERS if getattr(section, name) is not None}
    if is_from_scratch(conf) or not any(isinstance(phase, WarmUp) for phase in phases):
        explicit.setdefault("warmup_steps", 0)  # nothing would use its weights, or train them
    free = [name for name in _NUMBERS if name not in explicit and (section.finalists or name != "finalist_steps")]
    divides_blocks = bool(section.time) and _has_free_blocks(conf)
    if section.time and not conf.resume and not free and not divides_blocks:
        raise SettingError(
            f"search.time divides what is not said, and {_listed(_NUMBERS)} are all said, or without effect; leave one "
            "of them out, or the time"
        )
    # of a run that goes on they were divided; one that was killed before it had settings begins
    trainings = 0.0 if conf.resume and not free else section.trainings
    if len(explicit) == len(_NUMBERS) and not trainings and not divides_blocks:
        return changed(conf, _settings(explicit)), None
    found = division(
        problem.pool,
        samples=len(problem.data.train),
        batch_size=conf.train.batch_size,
        trial_weights=section.trial_weights,
        explicit={
            **explicit,
            "finalists": section.finalists,
            "finalist_rounds": _rounds(conf),
            "num_goals": len(conf.objectives.names),
        },
    )
    kept = [name for name in _NUMBERS if name not in free]
    if (blocks := _blocks(phases)) is not None:
        networks = max((phase.num_networks for phase in phases if isinstance(phase, ScoreBlocks)), default=1)
        found = replace(found, block_steps=blocks.steps)
        found = apart(found, networks=networks, explicit=kept, most_trials=problem.pool.size)
    if section.time and blocks is not None:
        found = fitted_apart(found, parse_time(section.time), pace(), divides_blocks=divides_blocks, explicit=kept)
    elif section.time:
        found = fitted(found, parse_time(section.time), pace(), explicit=kept, most_trials=problem.pool.size)
    decided: tuple[str, ...] = _NUMBERS
    if trainings:
        kept = [*explicit, *(name for name in _FINALISTS if f"search.{name}" in conf.explicit)]
        found = in_trainings(found, trainings, explicit=kept, most_trials=problem.pool.size)
        decided += _FINALISTS
    if divides_blocks:
        conf = replace(conf, strategy={**conf.strategy, "steps": found.block_steps})
    return changed(conf, _settings({name: getattr(found, name) for name in decided})), found


def _has_free_blocks(conf: SearchConf) -> bool:
    """Whether nobody says how many steps blocks train."""
    return conf.strategy["name"] == BLOCKWISE and conf.strategy.get("steps") is None


def _blocks(phases: Sequence[Phase]) -> DistilBlocks | None:
    return next((phase for phase in phases if isinstance(phase, DistilBlocks)), None)


def is_from_scratch(conf: SearchConf) -> bool:
    """Whether all begins with first weights, so that there is no warm-up."""
    return conf.search.trial_weights == "scratch"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"search.{name}" for name in names[:-1]) + f" and search.{names[-1]}"


def _rounds(conf: SearchConf) -> int:
    """Of finalists: what is given, or as many as halve them to one."""
    section = conf.search
    if section.finalist_rounds is not None:
        return section.finalist_rounds
    steps = 2**31 if section.finalist_steps is None else section.finalist_steps
    begun = section.steps_per_trial or 0 if is_from_scratch(conf) else 0
    return len(halved(section.finalists, steps, _ROUNDS, done=begun))


def _settings(numbers: Mapping[str, int]) -> dict[str, int]:
    return {f"search.{name}": number for name, number in numbers.items()}


def budget_of(conf: SearchConf) -> Budget:
    """The budget that the settings tell; something small stands for numbers that are not decided yet.

    Raises:
        SettingError: a number that makes no sense.
    """
    section = conf.search
    numbers = {name: getattr(section, name) for name in _NUMBERS}
    undecided = dict(_UNDECIDED)
    if section.finalist_steps:  # a trial is shorter than a finalist's training
        undecided["steps_per_trial"] = max(1, min(LEAST_STEPS, section.finalist_steps - 1))
    numbers = {name: undecided[name] if number is None else number for name, number in numbers.items()}
    rate = conf.train.learning_rate
    if is_from_scratch(conf):  # a warm-up would train what nobody uses
        numbers["warmup_steps"] = min(numbers["warmup_steps"], 0)
    same = {one.name: getattr(section, one.name) for one in fields(Budget) if hasattr(section, one.name)}
    rates = {"learning_rate": rate, "finalist_learning_rate": section.finalist_learning_rate or rate}
    goals = len(conf.objectives.names)
    budget = Budget(**{**same, **numbers, **rates, "finalist_rounds": _rounds(conf), "num_goals": goals})
    if section.finalist_rounds is not None:
        _check_rounds(conf, section.finalist_rounds, most=len(budget.rounds))
    return budget


def _check_rounds(conf: SearchConf, rounds: int, *, most: int) -> None:
    section = conf.search
    if rounds > most:
        steps = f" of {section.finalist_steps} steps" if section.finalist_steps is not None else ""
        raise SettingError(
            f"search.finalist_rounds={rounds}: each round halves the finalists, and search.finalists="
            f"{section.finalists}{steps} can be halved until round {most}; set it to {most} at most"
        )
