"""The parts of a search, built once from its settings, before anything is written."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from l2l_nas.compress.block_training import DistilBlocks
from l2l_nas.compress.blockwise import STRATEGIES
from l2l_nas.cost.catalogue import build_costs
from l2l_nas.cost.feasible import check_limits, check_memory, largest
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.own import own_costs
from l2l_nas.cost.profiles import PROFILES, find_hardware
from l2l_nas.cost.table import PREDICTED, Costs, Limit, unmeasured
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, did_you_mean, of_user
from l2l_nas.nas.evaluation.early_stopping import EarlyStop, build_early_stop
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.memory import Learned
from l2l_nas.nas.objectives import Goal, parse_goals
from l2l_nas.nas.samplers.registry import build_sampler
from l2l_nas.nas.strategies.budget import Budget, Division
from l2l_nas.nas.strategies.default import RANDOM, build_phases
from l2l_nas.nas.strategies.division import parse_time
from l2l_nas.nas.strategies.machine_speed import MachineSpeed, SpeedContext, measured
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.relay.interface import cut_sizes
from l2l_nas.relay.relay import Relay
from l2l_nas.runs.build import parse_bytes, set_threads
from l2l_nas.runs.earlier_runs import learned_by
from l2l_nas.runs.fields import changed
from l2l_nas.runs.mesh import paper_relay, refuse_undivided
from l2l_nas.runs.numbers import budget_of, decide_numbers
from l2l_nas.runs.parts import Parts, evaluator_of, led_parts
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.saved import read_enqueued
from l2l_nas.runs.settings import SHIPPED, SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint, NonEmpty
from l2l_nas.space.convert.convert import is_converted
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.sampling import PathSampler, build_paths
from l2l_nas.training.export import build_network
from l2l_nas.training.lead import Lead
from l2l_nas.training.problem import Problem
from l2l_nas.training.schedule import build_schedule
from l2l_nas.training.weights import SharedWeights

_MEASURING = 0.02  # of a time that is divided, about: what each of steps, scores and blocks is measured for


@dataclass(frozen=True)
class SearchParts(Parts):
    """All that a search is made of, built once from its settings.

    Args:
        conf: all settings, with what was decided meanwhile in place of what nobody gave.
        evaluator, weights, budget, goals, constraints, costs, early_stop, paths, enqueued: see `SearchContext`.
        division: what numbers that nobody gave follow from; None where all were given.
        learned: from earlier runs; None where none were named.
    """

    conf: SearchConf
    phases: Sequence[Phase]
    evaluator: Evaluator
    weights: SharedWeights
    budget: Budget
    goals: tuple[Goal, ...]
    constraints: Sequence[Constraint]
    costs: Costs
    early_stop: EarlyStop
    paths: PathSampler
    enqueued: Sequence[Architecture]
    division: Division | None
    learned: Learned | None


def build_search_parts(conf: SearchConf, ranks: RunRanks | None = None) -> SearchParts:
    """Build a search's parts.

    Args:
        conf: all settings; see `completed`.
        ranks: that share the work; None: this process does it.

    Raises:
        L2LError: whatever is wrong with the settings or the problem.
    """
    ranks = ranks or RunRanks()
    build_schedule(conf.chosen("schedule"))
    parts = led_parts(conf, ranks)
    conf = parts.conf  # type: ignore[assignment]
    problem, relay, server, pool = parts.problem, parts.relay, parts.server, parts.problem.pool
    refuse_undivided(server)
    phases = _phases(conf, server)
    step = cut_sizes(min(conf.train.batch_size, len(problem.data.train)), conf.train.micro_batch)
    costs = _costs(conf, problem, relay, step)
    goals = parse_goals(conf.objectives.names, problem.measured_task.metrics, costs)
    is_given = "search.early_stop" in conf.objects
    rule = conf.chosen("search.early_stop") if is_given else build_early_stop(conf.search.early_stop, goals)
    constraints = _constraints(conf, problem, costs)
    allowed = unmeasured((NonEmpty(pool), *constraints))
    paths = build_paths(conf.search.warmup_paths, pool, seed=conf.seed, constraints=allowed)
    costs.figures(paths.path_at(0))  # refuses costs that cannot be found
    if not conf.resume:  # what has run may go on: the figures are estimates
        check_memory(relay, step, largest(pool, constraints=constraints), storage=conf.relay.storage)
    strategy = conf.strategy
    conf, division = decide_numbers(conf, problem, phases=phases, pace=lambda: _speed(parts, phases, paths, ranks.lead))
    if conf.strategy != strategy:
        phases = _phases(conf, server)
    budget = full_budget(conf)
    if not conf.resume:  # what has run may go on: a trial that fails is one that failed
        parts.trainer.check(None, steps=budget.last_step)
    enqueued = _enqueued(conf, pool)
    # files may be gone when it goes on
    conf = changed(conf, {"search.enqueue": list(map(str, enqueued))})
    is_default = "search.learn_from" not in conf.explicit and conf.search.learn_from == [SHIPPED]
    if (why := _no_use_for_earlier_tasks(conf)) and not is_default:
        raise SettingError(why)
    learned = None if why else learned_by(conf, problem, goals[0], is_default=is_default)
    ranks.lead.do("begin", (replace(conf, objects={}),), lambda _: None)
    return SearchParts(
        **{**vars(parts), "conf": conf},
        phases=phases,
        evaluator=evaluator_of(parts, budget, ranks.lead),
        weights=SharedWeights(server, ranks.lead),
        budget=budget,
        goals=goals,
        constraints=constraints,
        costs=costs,
        early_stop=rule,
        paths=paths,
        enqueued=enqueued,
        division=division,
        learned=learned,
    )


def full_budget(conf: SearchConf) -> Budget:
    """The budget of settings that are all decided, with the schedule."""
    return replace(budget_of(conf), schedule=build_schedule(conf.chosen("schedule")))


def _phases(conf: SearchConf, server: ParamServer) -> list[Phase]:
    """Those of the strategy; what they, and the sampler, cannot do is refused."""
    phases = build_phases(conf.chosen("strategy"), STRATEGIES)
    if "sampler" not in conf.objects:  # built when it is known how much is done
        build_sampler(conf.sampler, seed=conf.seed, num_trials=1, num_finished=0)
    for phase in phases:
        with of_user(phase, "phase"):
            phase.check(server, budget_of(conf))
    return phases


def _enqueued(conf: SearchConf, pool: LayerPool) -> list[Architecture]:
    """What is tried first: a user's own model, unless they say what; other strategies score that by themselves."""
    is_explicit = "search.enqueue" in conf.explicit
    is_default = not conf.resume and not is_explicit
    chooses = conf.strategy["name"] == "default" or "strategy" in conf.objects
    if is_default and chooses and is_converted(pool):
        return [pool.original]
    return read_enqueued(conf.search.enqueue, pool, is_given=not conf.resume or is_explicit)


def _no_use_for_earlier_tasks(conf: SearchConf) -> str:
    """Why a search cannot learn from earlier runs; empty where it can, or does not."""
    if not conf.search.learn_from:
        return ""
    if conf.strategy["name"] == RANDOM and "strategy" not in conf.objects:
        return f"search.learn_from has no effect with strategy={RANDOM}, which draws at random; leave one out"
    name, sampler = conf.sampler["name"], conf.objects.get("sampler")
    if sampler is None:
        sampler = build_sampler(conf.sampler, seed=conf.seed, num_trials=1, num_finished=0)
    else:
        name = type(sampler).__name__
    if getattr(sampler, "uses_earlier_tasks", False):
        return ""
    return (
        f"search.learn_from: sampler={name} has no use for earlier runs; take sampler=gp_hamming, or leave "
        "search.learn_from out"
    )


def _constraints(conf: SearchConf, problem: Problem, costs: Costs) -> tuple[Constraint, ...]:
    limits = _limits(conf.search.limits, costs)
    check_limits(problem.pool, costs, limits, constraints=problem.constraints, seed=conf.seed)
    return (*problem.constraints, *limits)


def _costs(conf: SearchConf, problem: Problem, relay: Relay, sizes: tuple[int, ...]) -> Costs:
    train = problem.data.train
    first = torch.zeros(1, dtype=torch.int64)  # latencies are of one sample

    if conf.parallel.tensor > 1:
        relay = paper_relay(relay, conf)

    return build_costs(
        relay,
        sizes,
        build=lambda architecture: build_network(relay.server.another(problem.pool), architecture),
        inputs=train.batch(first)[0],
        own=own_costs(conf.chosen("search.costs"), pool=problem.pool, beside=problem.costs),
        hardware=_hardware(conf),
    )


def _hardware(conf: SearchConf) -> Hardware | None:
    section = conf.search
    if section.hardware:
        return find_hardware(section.hardware)
    for name in PREDICTED:
        if name in (*conf.objectives.names, *section.limits):
            raise SettingError(
                f"{name} is predicted for a machine; name it: search.hardware={next(iter(PROFILES))}, another "
                "profile, or the hardware.json of `plan`"
            )
    return None


def _speed(parts: Parts, phases: Sequence[Phase], paths: PathSampler, lead: Lead) -> MachineSpeed:
    """How fast this machine is, with as many threads as each worker will have."""
    began = time.perf_counter()
    conf = parts.conf
    assert isinstance(conf, SearchConf)
    original = parts.problem.pool.original if any(isinstance(one, DistilBlocks) for one in phases) else None
    path_at = paths.path_at if original is None else lambda step: original
    seconds = _MEASURING * parse_time(conf.search.time)
    evaluator = evaluator_of(parts, budget_of(conf), lead)
    context = SpeedContext(evaluator, path_at, conf.search.workers, seconds, conf.seed)
    try:
        set_threads(conf.relay.threads, parts.relay, workers=conf.search.workers)  # as many as a worker will have
        for phase in phases:
            with of_user(phase, "phase"):
                phase.teach(evaluator)
        speed = measured(context)
        for phase in phases:
            with of_user(phase, "phase"):
                speed = phase.speed(speed, context)
        return replace(speed, fixed=speed.fixed + time.perf_counter() - began)
    finally:
        set_threads(conf.relay.threads, parts.relay)


def _limits(section: Mapping[str, object], costs: Costs) -> list[Limit]:
    """Those of `search.limits`, in the order of the costs: numbers, or, for bytes, sizes such as 4MiB."""
    for name in section:
        if name not in costs:
            raise SettingError(f"search.limits: no cost '{name}'{did_you_mean(name, costs)}")
    return [Limit(costs, name, _most(name, section[name])) for name in costs if section.get(name) is not None]


def _most(name: str, value: object) -> float:
    if isinstance(value, str) and name.endswith("_bytes"):
        size = parse_bytes(value)
        value = value if size is None else size
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        example = ", or a size such as 4MiB" if name.endswith("_bytes") else ""
        raise SettingError(f"search.limits.{name} must be a number above 0{example}; got {value!r}")
    return float(value)
