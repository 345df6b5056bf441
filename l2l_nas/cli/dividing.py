"""What a search does how often, settled: numbers that nobody said follow from the space, the data, and a time given."""

from __future__ import annotations

from collections.abc import Mapping

from l2l_nas.cli.schema import SearchConf
from l2l_nas.errors import SettingError
from l2l_nas.relay.executor import Relay
from l2l_nas.search.budget import Budget
from l2l_nas.search.division import Division, division, fitted, measured, parse_time
from l2l_nas.space.sampling import PathSampler
from l2l_nas.training.fit import Trainer
from l2l_nas.training.problem import Problem

_NUMBERS = ("warmup_steps", "trials", "finalist_steps")


def check_time(conf: SearchConf) -> None:
    """Refuse a time that is none, or that cannot be divided.

    Raises:
        SettingError: with what to do.
    """
    section = conf.search
    if not section.time:
        return
    parse_time(section.time)
    if conf.relay.storage == "file" and not conf.resume:
        raise SettingError(
            "search.time measures a few steps in memory, which says little of relay.storage=file; say "
            "search.warmup_steps, search.trials and search.finalist_steps instead"
        )
    if section.storage and not conf.resume:
        raise SettingError(
            "search.time would divide it otherwise on each machine of a shared study; say search.warmup_steps, "
            "search.trials and search.finalist_steps instead"
        )


def settle_numbers(
    conf: SearchConf, problem: Problem, trainer: Trainer, relay: Relay, paths: PathSampler
) -> Division | None:
    """Put numbers in place of those that nobody said; tells what is divided how, None where all were said.

    Raises:
        SettingError: a time that is too short.
    """
    section = conf.search
    said = {name: getattr(section, name) for name in _NUMBERS if getattr(section, name) is not None}
    if section.trial_weights == "scratch":
        said.setdefault("warmup_steps", 0)  # nothing would use its weights
    free = [name for name in _NUMBERS if name not in said and (section.finalists or name != "finalist_steps")]
    if section.time and not conf.resume and not free:
        raise SettingError(
            "search.time divides what is not said, and search.warmup_steps, search.trials and search.finalist_steps "
            "are all said, or without effect; leave one of them out, or the time"
        )
    if len(said) == len(_NUMBERS):
        _settle(conf, said)
        return None
    found = division(
        problem.pool,
        samples=len(problem.data.train),
        batch_size=conf.train.batch_size,
        steps_per_trial=section.steps_per_trial,
        finalists=section.finalists,
        said=said,
    )
    if section.time:
        pace = measured(trainer, relay, paths, problem.data.validation, workers=section.workers)
        kept = {name: getattr(found, name) for name in _NUMBERS if name not in free}
        found = fitted(found, parse_time(section.time), pace, said=kept, most_trials=problem.pool.size)
    _settle(conf, {name: getattr(found, name) for name in _NUMBERS})
    return found


def _settle(conf: SearchConf, numbers: Mapping[str, int]) -> None:
    for name, value in numbers.items():
        setattr(conf.search, name, value)


def budget_of(conf: SearchConf) -> Budget:
    """The budget that the settings tell; 1 stands for numbers that are not settled yet.

    Raises:
        SettingError: a number that makes no sense.
    """
    section = conf.search
    warmup, trials, finalist_steps = (
        1 if getattr(section, name) is None else getattr(section, name) for name in _NUMBERS
    )
    is_cold = section.trial_weights == "scratch"  # a warm-up would train what nobody uses
    budget = Budget(
        warmup_steps=min(warmup, 0) if is_cold else warmup,
        trials=trials,
        steps_per_trial=section.steps_per_trial,
        finalists=section.finalists,
        finalist_steps=finalist_steps,
        learning_rate=conf.train.learning_rate,
        finalist_learning_rate=section.finalist_learning_rate,
        checkpoint_seconds=section.checkpoint_seconds,
        population=section.population,
        trial_weights=section.trial_weights,
        early_stop=section.early_stop,
        introduce=section.introduce,
        baseline=section.baseline,
        finalist_rounds=section.finalist_rounds,
    )
    _check_rounds(conf, most=len(budget.rounds))
    return budget


def _check_rounds(conf: SearchConf, *, most: int) -> None:
    section = conf.search
    if len(section.objectives) > 1 and section.finalist_rounds > 1:
        raise SettingError(
            "search.finalist_rounds: with more than one objective no half of the finalists is the better one; name "
            "one, such as search.objectives=[accuracy]"
        )
    if section.finalist_rounds > most:
        steps = f" of {section.finalist_steps} steps" if section.finalist_steps is not None else ""
        raise SettingError(
            f"search.finalist_rounds={section.finalist_rounds}: each round halves the finalists, and search.finalists="
            f"{section.finalists}{steps} can be halved until round {most}; set it to {most} at most"
        )
