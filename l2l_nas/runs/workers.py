"""Worker processes of a search: what each builds, and who starts them (`executor`, `search.workers`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial

from l2l_nas.eps.identity import fingerprint
from l2l_nas.errors import L2LError, SettingError, described
from l2l_nas.nas.evaluation.engines import ENGINES, Engine, check_installed
from l2l_nas.nas.evaluation.futures import FuturesExecutor
from l2l_nas.nas.evaluation.inline import population_size
from l2l_nas.nas.evaluation.remote import Message, Workplace, pickled
from l2l_nas.nas.study.study import quiet_optuna
from l2l_nas.plugins import is_own, made
from l2l_nas.runs.build import set_threads
from l2l_nas.runs.search_parts import SearchParts, build_search_parts
from l2l_nas.runs.settings import SearchConf
from l2l_nas.training.problem import Problem

# what workers need of what is given as objects
_BUILT = ("problem", "optimizer", "schedule", "search.costs")


def engine_name(conf: SearchConf) -> str:
    """The executor that a search has: workers=N alone means processes."""
    name = str(conf.executor["name"])
    if "executor" in conf.objects or is_own(name):
        return "own"
    return "processes" if name == "inline" and conf.search.workers > 1 else name


def check_workers(conf: SearchConf) -> None:
    """Refuse settings that do not go with several processes.

    Raises:
        SettingError: named.
    """
    workers, name = conf.search.workers, engine_name(conf)
    if conf.executor["name"] == "inline" and name == "processes" and {"executor", "executor.name"} & conf.explicit:
        raise SettingError(
            f"executor=inline runs one trial at a time, not search.workers={workers}; say search.workers=1, or "
            "executor=processes"
        )
    if name == "inline":
        return
    if name == "own" and workers == 1:
        raise SettingError("executor: say how many segments it runs at a time, such as search.workers=4")
    if conf.search.trial_weights == "shared":
        raise SettingError(
            "search.trial_weights=shared: shared weights stay in one process, or on the ranks of torchrun; leave "
            "out search.workers and executor, or take search.trial_weights=fork or scratch"
        )
    for ranks in ("data", "tensor"):
        if (size := getattr(conf.parallel, ranks) or 1) > 1:
            raise SettingError(
                f"parallel.{ranks}={size}: ranks train a trial together, workers train one each; leave it out, or "
                "start the search with torchrun and without workers"
            )
    check_installed(name)
    if conf.chosen("relay.storage") != "ram":
        raise SettingError(
            f"relay.storage={conf.relay.storage} keeps states where other workers do not see them; use "
            "executor=inline, or relay.storage=ram"
        )
    if conf.relay.trace:
        raise SettingError("relay.trace tells of one process's lanes; use executor=inline, or relay.trace=false")


@dataclass(frozen=True)
class SearchRecipe:
    """The search, as a worker builds it: its pool, data, relay and trainer from the same settings.

    Args:
        folder: that relative paths of the settings begin in, where there is one of that name.
    """

    conf: SearchConf
    folder: str = field(default_factory=os.getcwd)

    def build(self) -> Workplace:
        """In the process that it is called in."""
        quiet_optuna()
        with contextlib.chdir(self.folder if os.path.isdir(self.folder) else os.getcwd()):
            parts = build_search_parts(self.conf)
        set_threads(self.conf.relay.threads, parts.relay, workers=self.conf.search.workers)
        return Workplace(parts.evaluator, parts.server, identity(parts.problem))


def recipe_of(conf: SearchConf) -> SearchRecipe:
    """What workers need: they propose nothing, and see nothing go by."""
    section = replace(conf.search, time="", learn_from=[])
    rule = conf.chosen("search.early_stop")
    if not isinstance(rule, str) or is_own(rule):  # the rule decides here; a worker needs none
        section = replace(section, early_stop="none")
    random, default, inline = ({"name": name} for name in ("random", "default", "inline"))
    kept = {name: conf.objects[name] for name in _BUILT if name in conf.objects}
    plain = replace(conf, search=section, sampler=random, strategy=default, callbacks={}, executor=inline, objects=kept)
    return SearchRecipe(plain)


@contextlib.contextmanager
def worker_executor(parts: SearchParts) -> Iterator[FuturesExecutor]:
    """The executor of a search that has workers.

    Raises:
        SettingError: the executor cannot be opened.
        WorkerError: it takes no work.
    """
    conf, workers = parts.conf, parts.conf.search.workers
    group = -(-population_size(parts.server, parts.budget) // workers)
    executor = FuturesExecutor(
        _opener(conf, pickled(recipe_of(conf))),
        parts.server,
        workers=workers,
        size=group * workers,
        identity=identity(parts.problem),
    )
    with contextlib.closing(executor):
        executor.open()
        yield executor


def _opener(conf: SearchConf, recipe: bytes) -> Callable[[], Engine]:
    """What opens the engine, and raises a `SettingError` where it cannot be."""
    name, workers = engine_name(conf), conf.search.workers
    if name == "own":
        own: Executor = conf.objects.get("executor") or made(
            conf.executor,
            setting="executor",
            offered={"workers": workers},
            is_right=lambda one: isinstance(one, Executor),
            kind="a concurrent.futures.Executor",
        )
        return partial(Engine, own, recipe)
    arguments = {key: value for key, value in conf.executor.items() if key != "name"}

    def opened() -> Engine:
        try:
            engine: Engine = ENGINES[name](recipe, workers, **arguments)
        except L2LError:
            raise
        except Exception as error:
            address = f" executor.address={arguments['address']}" if arguments.get("address") else ""
            raise SettingError(f"executor={name}{address}: {described(error)}") from error
        return engine

    return opened


def identity(problem: Problem) -> Message:
    """What a worker's pool and data must have in common with those here."""
    data = problem.data
    return {"pool": fingerprint(problem.pool), "data set": data.digest + data.test_digest}
