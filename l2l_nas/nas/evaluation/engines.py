"""Engines: what it takes to run functions on worker processes, Ray, Dask or submitit, each in a few lines.

Any `concurrent.futures.Executor` is one as it is.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from typing import Any

from l2l_nas.errors import WorkerError, described
from l2l_nas.nas.evaluation.remote import DRIVER, LACKS, ends_with, for_driver, keep_recipe, with_named
from l2l_nas.plugins import optional

Function = Callable[..., Any]


class Engine:
    """Runs functions on the caller's executor, which stays open; a subclass opens one of its own.

    Args:
        executor: runs functions elsewhere; None in a subclass with a `_submit` of its own.
        recipe: what functions are given first; None where workers have it.

    Attributes:
        package: that a subclass needs.
        lost: errors which tell that a worker ended, not that a function failed.
        breaks: whether the executor is of no use after such an error, and is opened anew.
    """

    package = ""
    lost: tuple[type[BaseException], ...] = (BrokenExecutor, CancelledError)
    breaks = False

    def __init__(self, executor: Executor | None, recipe: Any) -> None:
        self._executor, self._recipe = executor, recipe
        os.environ[DRIVER] = str(os.getpid())  # for processes that the executor starts; see `ends_with`
        self._cancels: weakref.WeakKeyDictionary[Future[Any], Callable[[], object]] = weakref.WeakKeyDictionary()
        self._ending = contextlib.ExitStack()  # what ends the workers that a subclass started

    def submit(self, function: Function, *args: Any) -> Future[Any]:
        """Have a worker call a function with the recipe and arguments; it ends with this process, see `ends_with`.

        Raises:
            WorkerError: the executor is shut down or broken, and is not opened anew.
        """
        try:
            return self._submit(for_driver, (socket.gethostname(), os.getpid()), function, *args)
        except Exception as error:
            if not (self.breaks and isinstance(error, self.lost)):
                what = f"{type(error).__name__}: {described(error)}"
                raise WorkerError(f"the executor takes no more work ({what}); go on with a new one") from error
            future: Future[Any] = Future()  # a worker ended since the last call
            future.set_exception(error)
            return future

    def _submit(self, function: Function, *args: Any) -> Future[Any]:
        assert self._executor is not None
        return self._executor.submit(function, self._recipe, *args)

    def cancel(self, future: Future[Any]) -> None:
        """Have it not be done any more, as far as that is possible."""
        self._cancels.get(future, future.cancel)()

    def end(self) -> None:
        """End the workers that were started here."""
        self._ending.close()


class Processes(Engine):
    """Processes of this machine, by loky."""

    package = "loky"
    breaks = True

    def __init__(self, recipe: bytes, workers: int) -> None:
        loky = importlib.import_module(self.package)
        pool = loky.process_executor.ProcessPoolExecutor(
            workers,
            context=loky.backend.get_context("loky"),
            initializer=_begin,
            initargs=(recipe, os.getpid()),
            env={"LOKY_MAX_MEMORY_LEAK_SIZE": "1e18"},  # else a worker that holds 300 MB of weights is replaced for it
        )
        super().__init__(pool, None)
        self._ending.callback(pool.shutdown, wait=True, kill_workers=True)

    def _submit(self, function: Function, *args: Any) -> Future[Any]:
        with _without_interrupts():  # it starts workers
            return super()._submit(function, *args)


class Ray(Engine):
    """Tasks of a Ray cluster (Ray Core); without an address, of one that Ray finds, or of this machine."""

    package = "ray"

    def __init__(self, recipe: bytes, workers: int, *, address: str, cpus: float, gpus: float) -> None:
        self._ray = ray = importlib.import_module(self.package)
        is_ours = not ray.is_initialized()
        if is_ours:
            ray.init(address=address or None, log_to_driver=False, configure_logging=False)
        super().__init__(None, ray.put(recipe))
        if is_ours:
            self._ending.callback(ray.shutdown)
        names = "WorkerCrashedError", "NodeDiedError", "ObjectLostError", "OutOfMemoryError"
        self.lost = *self.lost, *(getattr(ray.exceptions, name) for name in names)
        takes = {"num_cpus": cpus, "num_gpus": gpus}
        self._remote = functools.cache(ray.remote(max_retries=0, **takes))

    def _submit(self, function: Function, *args: Any) -> Future[Any]:
        reference = self._remote(function).remote(self._recipe, *args)
        future: Future[Any] = reference.future()
        self._cancels[future] = functools.partial(self._ray.cancel, reference, force=True)
        return future


class Dask(Engine):
    """Workers of a Dask cluster; without an address, one of this machine."""

    package = "distributed"

    def __init__(self, recipe: bytes, workers: int, *, address: str) -> None:
        self._name, dask = uuid.uuid4().hex, importlib.import_module(self.package)
        cluster: Any = contextlib.nullcontext(address)
        if not address:
            about = {"allowed_failures": 0, "dashboard": False, "dashboard_address": "127.0.0.1:0"}  # 8787 may be taken
            with _without_interrupts():
                cluster = dask.LocalCluster(
                    n_workers=workers, threads_per_worker=1, scheduler_kwargs=about, silence_logs=logging.CRITICAL
                )
        with contextlib.ExitStack() as opened:
            if not address:  # else workers that are killed again and again are not started any more, which nobody says
                config = importlib.import_module("dask").config
                opened.enter_context(config.set({"distributed.deploy.lost-worker-timeout": "1000 days"}))
            client = opened.enter_context(dask.Client(opened.enter_context(cluster)))
            super().__init__(client.get_executor(pure=False), recipe)
            self._ending = opened.pop_all()
        self.lost = *self.lost, dask.KilledWorker, dask.CancelledError, dask.comm.CommClosedError

    def _submit(self, function: Function, *args: Any) -> Future[Any]:
        """Call it with the recipe's name, and with the recipe where a worker lacks it.

        Dask's own ways lose it: what was scattered goes with the workers that have it, and a task that waits for it may
        wait without an end (distributed 2026.8); a plugin stays on a cluster when the search is killed.
        """
        future: Future[Any] = Future()

        def send(recipe: bytes | None) -> None:
            assert self._executor is not None
            sent = self._executor.submit(with_named, self._name, recipe, function, *args)
            self._cancels[future] = sent.cancel
            sent.add_done_callback(take)

        def take(sent: Future[Any]) -> None:
            try:
                result = sent.result()
                if isinstance(result, str) and result == LACKS:
                    send(self._recipe)
                else:
                    future.set_result(result)
            except BaseException as error:
                future.set_exception(error)

        send(None)
        return future


class Submitit(Engine):
    """Jobs of a cluster such as Slurm, one for each segment. `cluster`: "slurm", "local", or "" for what it finds."""

    package = "submitit"

    def __init__(
        self, recipe: bytes, workers: int, *, folder: str, cluster: str, parameters: Mapping[str, Any]
    ) -> None:
        module = importlib.import_module(self.package)
        self._jobs = module.AutoExecutor(folder, cluster=cluster or None)
        self._jobs.update_parameters(**parameters)
        super().__init__(None, recipe)
        self.lost = *self.lost, module.core.utils.UncompletedJobError

    def _submit(self, function: Function, *args: Any) -> Future[Any]:
        job, future = self._jobs.submit(function, self._recipe, *args), Future[Any]()
        self._cancels[future] = functools.partial(job.cancel, check=False)  # it may have ended by itself

        def follow() -> None:
            try:
                future.set_result(job.result())
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=follow, daemon=True).start()
        return future


ENGINES: Mapping[str, Any] = {"processes": Processes, "ray": Ray, "dask": Dask, "submitit": Submitit}


def check_installed(name: str) -> None:
    """Refuse an engine whose package is missing.

    Raises:
        SettingError: names it.
    """
    package = ENGINES[name].package if name in ENGINES else ""
    if package:
        optional(package, f"executor={name} needs", extra=name)


def ended(error: BaseException) -> str:
    """How a worker ended, in words, as far as an error of `Engine.lost` tells."""
    signals = re.findall(r"\bSIG(?!TERM)[A-Z]+\b", str(error))
    return f"was killed by {signals[0]}" if signals else f"ended ({type(error).__name__})"


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started meanwhile get no Ctrl-C, not even while they import: it is for the search alone."""
    if sys.platform == "win32":  # no such masks
        yield
        return
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()  # which unblocks the signal when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(recipe: bytes, search: int) -> None:
    """Begin a worker process: it ends with its search, and Ctrl-C is for the search alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    keep_recipe(recipe)

    ends_with(search)
