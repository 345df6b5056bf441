"""Engines: what it takes to run functions on worker processes, Ray, Dask or submitit, each in a few lines.

Any `concurrent.futures.Executor` is one as it is.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import logging
import os
import re
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from l2l_nas.errors import SettingError, WorkerError, described
from l2l_nas.nas.evaluation.remote import keep_recipe

Function = Callable[..., Any]

_WATCH_S = 0.5  # how often a worker asks whether its search is alive


@dataclass
class Engine:
    """An executor, and what its functions are given first.

    Args:
        executor: runs functions elsewhere.
        recipe: a pickled recipe; None where workers have it.
        lost: errors which tell that a worker ended, not that a function failed.
        breaks: whether the executor is of no use after such an error, and is opened anew.
        cancel: has what a future stands for not be done any more, as far as that is possible.
        end: ends the workers.
    """

    executor: Executor
    recipe: Any
    lost: tuple[type[BaseException], ...] = (BrokenExecutor,)
    breaks: bool = False
    cancel: Callable[[Future[Any]], object] = Future.cancel
    end: Callable[[], None] = lambda: None

    def submit(self, function: Function, *args: Any) -> Future[Any]:
        """Have a worker call a function with the recipe and arguments.

        Raises:
            WorkerError: the executor is shut down or broken, and is not opened anew.
        """
        try:
            return self.executor.submit(function, self.recipe, *args)
        except Exception as error:
            if self.breaks and isinstance(error, self.lost):
                raise
            raise WorkerError(
                f"the executor takes no more work ({type(error).__name__}: {described(error)}); go on with a new one"
            ) from error

    @staticmethod
    def ended(error: BaseException) -> str:
        """How a worker ended, in words, as far as an error of `lost` tells."""
        signals = re.findall(r"\bSIG(?!TERM)[A-Z]+\b", str(error))
        return f"was killed by {signals[0]}" if signals else f"ended ({type(error).__name__})"


class Submitting(Executor):
    """An executor of a function that submits."""

    def __init__(self, submit: Callable[..., Future[Any]]) -> None:
        self._submit = submit

    def submit(self, fn: Function, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See `concurrent.futures.Executor`."""
        return self._submit(fn, *args, **kwargs)


def own(executor: Executor, recipe: bytes) -> Engine:
    """The caller's executor; it stays open."""
    return Engine(executor, recipe)


def processes(recipe: bytes, workers: int) -> Engine:
    """Processes of this machine, by loky."""
    loky = _imported("processes")
    pool = loky.process_executor.ProcessPoolExecutor(
        workers,
        context=loky.backend.get_context("loky"),
        initializer=_begin,
        initargs=(recipe, os.getpid()),
        env={"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"},  # else a worker that holds 300 MB of weights is replaced for it
    )
    return Engine(pool, None, breaks=True, end=lambda: pool.shutdown(wait=True, kill_workers=True))


def ray(recipe: bytes, workers: int, *, address: str, cpus: float, gpus: float, memory: int) -> Engine:
    """Tasks of a Ray cluster (Ray Core).

    Args:
        address: of the cluster; empty: the one that Ray finds, or one of this machine alone.
        cpus, gpus, memory: what a segment takes; memory in bytes, 0: unsaid.
    """
    module = _imported("ray")
    is_ours = not module.is_initialized()
    if is_ours:
        module.init(address=address or None, log_to_driver=False, configure_logging=False)
    options = {"num_cpus": cpus, "num_gpus": gpus, "max_retries": 0, **({"memory": memory} if memory else {})}
    remote = functools.cache(module.remote(**options))
    references: weakref.WeakKeyDictionary[Future[Any], Any] = weakref.WeakKeyDictionary()

    def submit(function: Function, *args: Any) -> Future[Any]:
        reference = remote(function).remote(*args)
        future: Future[Any] = reference.future()
        references[future] = reference
        return future

    errors = module.exceptions
    return Engine(
        Submitting(submit),
        module.put(recipe),
        (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError, errors.OutOfMemoryError),
        cancel=lambda future: module.cancel(references[future], force=True),
        end=module.shutdown if is_ours else lambda: None,
    )


def dask(recipe: bytes, workers: int, *, address: str) -> Engine:
    """Workers of a Dask cluster.

    Args:
        address: of the scheduler; empty: a cluster of this machine.
    """
    distributed = _imported("dask")
    cluster = None
    if not address:
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address=None,
            scheduler_kwargs={"allowed_failures": 0},
            silence_logs=logging.CRITICAL,
        )
    client = distributed.Client(cluster or address)
    if cluster is not None:  # Ctrl-C is for the search alone
        ignoring = {"setup": lambda self, worker: signal.signal(signal.SIGINT, signal.SIG_IGN)}
        client.register_plugin(type("Ignoring", (distributed.WorkerPlugin,), ignoring)(), name="ignoring Ctrl-C")

    def end() -> None:
        client.close()
        if cluster is not None:
            cluster.close()

    lost = (distributed.KilledWorker, distributed.CancelledError, distributed.comm.CommClosedError)
    executor, held = client.get_executor(pure=False), [client.scatter(recipe, broadcast=True)]

    def submit(function: Function, _: None, *args: Any) -> Future[Any]:
        if held[0].status != "finished":  # all workers that had it are gone
            held[:] = [client.scatter(recipe, broadcast=True)]
        future: Future[Any] = executor.submit(function, held[0], *args)
        return future

    return Engine(Submitting(submit), None, lost, end=end)


def submitit(recipe: bytes, workers: int, *, folder: str, cluster: str, parameters: Mapping[str, Any]) -> Engine:
    """Jobs of a cluster such as Slurm, one for each segment.

    Args:
        folder: that all machines see; submitit keeps its files there.
        cluster: "slurm", "local", or empty for what submitit finds.
        parameters: of each job, as `AutoExecutor.update_parameters` takes them.
    """
    module = _imported("submitit")
    executor = module.AutoExecutor(folder, cluster=cluster or None)
    executor.update_parameters(**parameters)

    def submit(function: Function, *args: Any) -> Future[Any]:
        job, future = executor.submit(function, *args), Future[Any]()

        def follow() -> None:
            try:
                future.set_result(job.result())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=follow, daemon=True).start()
        return future

    return Engine(Submitting(submit), recipe, (module.core.utils.UncompletedJobError,))


ENGINES: Mapping[str, Callable[..., Engine]] = {
    "processes": processes,
    "ray": ray,
    "dask": dask,
    "submitit": submitit,
}
PACKAGES: Mapping[str, str] = {"processes": "loky", "ray": "ray", "dask": "distributed", "submitit": "submitit"}


def _begin(recipe: bytes, search: int) -> None:
    """Begin a worker process: it ends with its search, and Ctrl-C is for the search alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_recipe(recipe)

    def watch() -> None:
        while os.getppid() == search:
            time.sleep(_WATCH_S)
        os._exit(1)

    threading.Thread(target=watch, name="l2l_nas watch", daemon=True).start()


def check_installed(name: str) -> None:
    """Refuse an engine whose package is missing.

    Raises:
        SettingError: names it.
    """
    package = PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        raise SettingError(f"executor={name} needs the package {package}: pip install {package}")


def _imported(name: str) -> ModuleType:
    check_installed(name)
    return importlib.import_module(PACKAGES[name])
