"""Worker processes of a search: what each builds, and who starts them (`executor`, `search.workers`)."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
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
from l2l_nas.runs.components import Components, build_components
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.shared import Objects
from l2l_nas.training.problem import Problem


def engine_name(conf: SearchConf, objects: Objects) -> str:
    """The executor that a search has: workers=N alone means processes."""
    name = str(conf.executor["name"])
    if objects.executor is not None or is_own(name):
        return "own"
    return "processes" if name == "inline" and conf.search.workers > 1 else name


def check_workers(conf: SearchConf, objects: Objects, *, explicit: Collection[str] = ()) -> None:
    """Refuse settings that do not go with several processes.

    Args:
        explicit: names of settings that somebody named.

    Raises:
        SettingError: named.
    """
    workers, name = conf.search.workers, engine_name(conf, objects)
    if conf.executor["name"] == "inline" and name == "processes" and {"executor", "executor.name"} & {*explicit}:
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
    if conf.relay.storage != "ram" or objects.storage is not None:
        raise SettingError(
            f"relay.storage={conf.relay.storage} keeps states where other workers do not see them; use "
            "executor=inline, or relay.storage=ram"
        )
    if conf.relay.trace:
        raise SettingError("relay.trace tells of one process's lanes; use executor=inline, or relay.trace=false")


@dataclass(frozen=True)
class SearchRecipe:
    """The search, as a worker builds it: its pool, data, relay and trainer from the same settings and objects.

    Args:
        folder: that relative paths of the settings begin in, where there is one of that name.
    """

    conf: SearchConf
    objects: Objects
    folder: str = field(default_factory=os.getcwd)

    def build(self) -> Workplace:
        """In the process that it is called in."""
        quiet_optuna()
        with contextlib.chdir(self.folder if os.path.isdir(self.folder) else os.getcwd()):
            components = build_components(self.conf, self.objects)
        server, workers = components.server, self.conf.search.workers
        set_threads(self.conf.relay.threads, components.training.relay, workers=workers)
        return Workplace(components.search.evaluator, server, identity(components.problem))


def recipe_of(conf: SearchConf, objects: Objects) -> SearchRecipe:
    """What workers need: they propose nothing, and see nothing go by."""
    section = replace(conf.search, time="", learn_from=[])
    rule = objects.early_stop if objects.early_stop is not None else section.early_stop
    if not isinstance(rule, str) or is_own(rule):  # the rule decides here; a worker needs none
        section = replace(section, early_stop="none")
    random, default, inline = ({"name": name} for name in ("random", "default", "inline"))
    plain = replace(conf, search=section, sampler=random, strategy=default, callbacks={}, executor=inline)
    kept = Objects(problem=objects.problem, optimizer=objects.optimizer, schedule=objects.schedule, costs=objects.costs)
    return SearchRecipe(plain, kept)


@contextlib.contextmanager
def worker_executor(components: Components, objects: Objects) -> Iterator[FuturesExecutor]:
    """The executor of a search that has workers.

    Raises:
        SettingError: the executor cannot be opened.
        WorkerError: it takes no work.
    """
    conf, server, workers = components.conf, components.server, components.conf.search.workers
    group = -(-population_size(server, components.search.budget) // workers)
    executor = FuturesExecutor(
        _opener(conf, objects, pickled(recipe_of(conf, objects))),
        server,
        workers=workers,
        size=group * workers,
        identity=identity(components.problem),
    )
    with contextlib.closing(executor):
        executor.open()
        yield executor


def _opener(conf: SearchConf, objects: Objects, recipe: bytes) -> Callable[[], Engine]:
    """What opens the engine, and raises a `SettingError` where it cannot be."""
    name, workers = engine_name(conf, objects), conf.search.workers
    if name == "own":
        own: Executor = objects.executor or made(
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
