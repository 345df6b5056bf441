"""Settings that somebody said and that change nothing beside the others: each gets a line, instead of silence."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict

from l2l_nas.errors import L2LError
from l2l_nas.nas.strategies.build import RANDOM
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.strategies.trials import Trials
from l2l_nas.nas.strategies.warm_up import WarmUp
from l2l_nas.plugins import is_own
from l2l_nas.relay.device import open_device
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.locate import is_builtin, load_data
from l2l_nas.runs.settings import SearchConf
from l2l_nas.text.documents import JSON, text_files
from l2l_nas.training.problem import Problem


def _is_measured(conf: SearchConf) -> bool:
    return "latency_ms" in {*conf.objectives.names, *conf.search.limits}


def _has_json(source: str) -> bool:
    return any(path.suffix.lower() in JSON for path in text_files(source))


def _has_link(conf: SearchConf) -> bool:
    """Whether the device has memory of its own."""
    return not open_device(conf.relay.device).shares_memory


# setting or section, whether it changes something, and the setting that decides it
_RULES: tuple[tuple[str, Callable[[SearchConf], bool], str], ...] = (
    ("sampler", lambda conf: conf.strategy["name"] != RANDOM, "strategy"),
    ("relay.resident", _has_link, "relay.device"),
    ("relay.pinned", lambda conf: conf.relay.precision != "fp32" or _has_link(conf), "relay.precision"),
    ("relay.clip_scope", lambda conf: conf.relay.clip > 0, "relay.clip"),
    (
        "search.keep_fraction",
        lambda conf: conf.search.early_stop == "halving" or is_own(conf.search.early_stop),
        "search.early_stop",
    ),
    ("search.latency_batch", _is_measured, "objectives.names"),
    ("search.population", lambda conf: conf.search.steps_per_trial == 0, "search.steps_per_trial"),
    ("search.finalist_rounds", lambda conf: conf.search.finalists > 0, "search.finalists"),
    (
        "search.finalist_steps",
        lambda conf: conf.search.finalists > 0 or conf.search.trial_weights == "scratch",
        "search.finalists",
    ),
    ("data.masked", lambda conf: conf.data.objective == "masked", "data.objective"),
    ("data.predictions", lambda conf: conf.data.objective == "masked", "data.objective"),
    ("data.text_key", lambda conf: _has_json(conf.data.source), "data.source"),
    ("search.study", lambda conf: bool(conf.search.storage), "search.storage"),
    ("search.lost_after_seconds", lambda conf: bool(conf.search.storage), "search.storage"),
    ("search.storage_retry_seconds", lambda conf: bool(conf.search.storage), "search.storage"),
)


# setting, and the phase that reads it
_READ_BY: tuple[tuple[str, type[Phase]], ...] = (
    ("search.warmup_steps", WarmUp),
    ("search.warmup_paths", WarmUp),
    ("search.trials", Trials),
    ("search.finalists", Finalists),
    ("search.finalist_rounds", Finalists),
    ("search.baseline", RandomSearch),
)


def data_without_effect(conf: SearchConf, said: Collection[str], problem: Problem) -> Iterator[str]:
    """A line for settings of data that were said where the pool brings its own."""
    named = sorted(one for one in said if one.partition(".")[0] == "data")
    if not named or is_builtin(conf.space.pool):
        return
    section = conf.data
    try:
        found = load_data(**asdict(section))
    except L2LError:
        found = None  # nobody needed them
    if found is None or found.digest != problem.data.digest:
        yield f"{', '.join(named)} has no effect with space.pool={conf.space.pool}, which brings its own data"


def without_effect(conf: SearchConf, said: Collection[str], phases: Sequence[Phase]) -> Iterator[str]:
    """A line for each setting that was said and changes nothing.

    Args:
        conf: all settings, the numbers of the search decided.
        said: names of those that somebody said, see `cli.said.said_names`.
        phases: of the search.
    """
    for name, is_used, reason in _RULES:
        named = sorted(one for one in said if one == name or one.startswith(f"{name}."))
        if named and not is_used(conf):
            value = value_of(conf, reason)
            value = value["name"] if reason in CHOICES else "cpu" if reason == "relay.device" else value
            yield f"{', '.join(named)} has no effect with {reason.removesuffix('.names')}={spell(value)}"
    for name, kind in _READ_BY:
        if name in said and not any(isinstance(phase, kind) for phase in phases):
            strategy = conf.strategy["name"]
            yield f"{name} has no effect with strategy={strategy}, which has no {kind.__name__}()"
