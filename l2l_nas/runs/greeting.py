"""What a search prints before its first step."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.errors import L2LError
from l2l_nas.nas.strategies.division import described
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.plugins import name_and_arguments
from l2l_nas.runs.build import num_threads
from l2l_nas.runs.choice_settings import CHOICES, NoArguments
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.components import Components
from l2l_nas.runs.fields import declared, settings, value_of
from l2l_nas.runs.locate import is_builtin, load_data
from l2l_nas.runs.numbers import is_cold
from l2l_nas.runs.origin import NO_TEST, sizes
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import say, warn
from l2l_nas.training.problem import Problem


def greet(console: Console, components: Components, *, sampler: Any, folder: Path, given: Collection[str]) -> None:
    """Tell what is searched, where, with what, and which settings change nothing.

    Args:
        given: names of settings that were given explicitly.
    """
    conf, problem, relay = components.conf, components.problem, components.training.relay
    pool, bank = problem.pool, relay.bank
    count = f"{pool.size:,}" if pool.size < 10**9 else f"{pool.size:.1e}"
    say(console, conf.space.pool, f": {len(pool)} positions, {count} architectures; {sizes(problem.data)} samples")
    if problem.data.test is None:
        console.print(NO_TEST, soft_wrap=True)
    console.print(
        f"{relay.device.torch_device}: {len(bank.slots)} slots, {bank.num_bytes / 1024:,.0f} KiB; "
        f"sampler {_shown(sampler)}, seed {conf.seed}, into {folder}",
        soft_wrap=True,
    )
    for line in (*without_effect(conf, given, components.phases), *data_without_effect(conf, given, problem)):
        warn(console, line)
    workers = conf.search.workers
    if workers > 1:
        threads = num_threads(conf.relay.threads, relay, workers=workers)
        console.print(f"{workers} workers, {threads} thread{'s' * (threads > 1)} each")
    if components.division is not None:
        console.print(described(components.division), soft_wrap=True)
    if is_cold(conf) and (conf.search.warmup_steps or conf.search.warmup_paths != "uniform"):
        console.print("no warm-up: search.trial_weights=scratch would not use its weights")


def _shown(sampler: Any) -> str:
    """Its name, and the arguments that are not as they come."""
    if not isinstance(sampler, Mapping):
        return str(sampler)
    name, arguments = name_and_arguments(sampler)
    known = {key: default for key, default, _ in settings(CHOICES["sampler"].get(name, NoArguments))}
    changed = ", ".join(f"{key}={value}" for key, value in arguments.items() if value != known.get(key))
    return f"{name} ({changed})" if changed else name


def without_effect(conf: SearchConf, given: Collection[str], phases: Sequence[Phase]) -> Iterator[str]:
    """A line for each setting that was given and changes nothing.

    Args:
        conf: all settings, the numbers of the search decided.
        given: names of those that somebody gave.
        phases: of the search.
    """
    kinds = {kind.__name__ for phase in phases for kind in type(phase).__mro__}
    for one in declared(SearchConf):
        named = ", ".join(sorted(name for name in given if name == one.name or name.startswith(f"{one.name}.")))
        if named and one.effect is not None and not one.effect.is_there(conf):
            reason = one.effect.setting
            value = value_of(conf, reason)
            value = value["name"] if reason in CHOICES else "cpu" if reason == "relay.device" else value
            yield f"{named} has no effect with {reason.removesuffix('.names')}={spell(value)}"
        if named and one.read_by and one.read_by not in kinds:
            yield f"{named} has no effect with strategy={conf.strategy['name']}, which has no {one.read_by}()"


def data_without_effect(conf: SearchConf, given: Collection[str], problem: Problem) -> Iterator[str]:
    """A line for settings of data that were given where the pool brings its own."""
    named = sorted(one for one in given if one.partition(".")[0] == "data")
    if not named or is_builtin(conf.space.pool):
        return
    section = conf.data
    try:
        found = load_data(**asdict(section))
    except L2LError:
        found = None  # nobody needed them
    if found is None or found.digest != problem.data.digest:
        yield f"{', '.join(named)} has no effect with space.pool={conf.space.pool}, which brings its own data"
