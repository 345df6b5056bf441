"""What a search does how often: numbers that were not given follow from the space, the data, and a time given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.early_stopping import LEAST_STEPS
from l2l_nas.nas.strategies.budget import Budget, Division, halved
from l2l_nas.nas.strategies.division import MachineSpeed, division, fitted, parse_time
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.runs.fields import changed
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.problem import Problem

# numbers that are decided when a search begins, and what stands for them until then
_UNDECIDED = {"warmup_steps": 1, "trials": 1, "steps_per_trial": LEAST_STEPS, "finalist_steps": 2**31}
_NUMBERS = tuple(_UNDECIDED)
_ROUNDS = 3  # of finalists at most, where nobody says it


def check_time(conf: SearchConf) -> None:
    """Refuse a time that is none, or that cannot be divided.

    Raises:
        SettingError: with what to do.
    """
    section = conf.search
    if not section.time:
        return
    parse_time(section.time)
    if conf.relay.storage != "ram" and not conf.resume:
        raise SettingError(
            f"search.time measures a few steps in memory, which says little of relay.storage={conf.relay.storage}; say "
            f"{_listed(_NUMBERS)} instead"
        )


def decide_numbers(
    conf: SearchConf, problem: Problem, *, phases: Sequence[Phase], pace: Callable[[], MachineSpeed]
) -> tuple[SearchConf, Division | None]:
    """Settings with numbers in place of those not given; and what is divided how, None where all were given.

    Args:
        conf: the settings.
        problem: what is searched.
        phases: of the strategy: without a warm-up, no steps are for it.
        pace: measures the machine, where a time is to be divided.

    Raises:
        SettingError: a time that is too short.
    """
    section = conf.search
    given = {name: getattr(section, name) for name in _NUMBERS if getattr(section, name) is not None}
    if is_cold(conf) or not any(isinstance(phase, WarmUp) for phase in phases):
        given.setdefault("warmup_steps", 0)  # nothing would use its weights, or train them
    free = [name for name in _NUMBERS if name not in given and (section.finalists or name != "finalist_steps")]
    if section.time and not conf.resume and not free:
        raise SettingError(
            f"search.time divides what is not said, and {_listed(_NUMBERS)} are all said, or without effect; leave one "
            "of them out, or the time"
        )
    if len(given) == len(_NUMBERS):
        return changed(conf, _settings(given)), None
    found = division(
        problem.pool,
        samples=len(problem.data.train),
        batch_size=conf.train.batch_size,
        trial_weights=section.trial_weights,
        given={**given, "finalists": section.finalists, "finalist_rounds": _rounds(conf)},
    )
    if section.time:
        kept = [name for name in _NUMBERS if name not in free]
        found = fitted(found, parse_time(section.time), pace(), given=kept, most_trials=problem.pool.size)
    return changed(conf, _settings({name: getattr(found, name) for name in _NUMBERS})), found


def is_cold(conf: SearchConf) -> bool:
    """Whether all begins with first weights, so that there is no warm-up."""
    return conf.search.trial_weights == "scratch"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"search.{name}" for name in names[:-1]) + f" and search.{names[-1]}"


def _rounds(conf: SearchConf) -> int:
    """Of finalists: what is given, or as many as halve them to one; with several goals no half is the better one."""
    section = conf.search
    if section.finalist_rounds is not None:
        return section.finalist_rounds
    if len(conf.objectives.names) > 1:
        return 1
    steps = 2**31 if section.finalist_steps is None else section.finalist_steps
    begun = section.steps_per_trial or 0 if is_cold(conf) else 0
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
    if is_cold(conf):  # a warm-up would train what nobody uses
        numbers["warmup_steps"] = min(numbers["warmup_steps"], 0)
    same = {one.name: getattr(section, one.name) for one in fields(Budget) if hasattr(section, one.name)}
    rates = {"learning_rate": rate, "finalist_learning_rate": section.finalist_learning_rate or rate}
    budget = Budget(**{**same, **numbers, **rates, "finalist_rounds": _rounds(conf)})
    if section.finalist_rounds is not None:
        _check_rounds(conf, section.finalist_rounds, most=len(budget.rounds))
    return budget


def _check_rounds(conf: SearchConf, rounds: int, *, most: int) -> None:
    section = conf.search
    if len(conf.objectives.names) > 1 and rounds > 1:
        raise SettingError(
            "search.finalist_rounds: with more than one objective no half of the finalists is the better one; name "
            "one, such as objectives=[accuracy]"
        )
    if rounds > most:
        steps = f" of {section.finalist_steps} steps" if section.finalist_steps is not None else ""
        raise SettingError(
            f"search.finalist_rounds={rounds}: each round halves the finalists, and search.finalists="
            f"{section.finalists}{steps} can be halved until round {most}; set it to {most} at most"
        )
