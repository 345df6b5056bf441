"""Runs a function on several ranks, each a process of its own, joined by gloo."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

_CONTEXT = multiprocessing.get_context("forkserver")  # whose processes have torch imported already
_CONTEXT.set_forkserver_preload(["torch", "torch.distributed", "l2l_nas.parallel.split", "l2l_nas.layers"])


def on_ranks(function, size: int, *arguments, timeout_s: float = 90, is_checked: bool = True) -> list:
    """What `function(*arguments)` returns on each rank: tensors, numbers, texts, and lists and dicts of these.

    Fails with the traceback of the first rank that raised; ends all processes after `timeout_s`. With `is_checked`
    another collective, or shape, on another rank is an error; it doubles the messages.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = [
            _CONTEXT.Process(target=_run, args=(folder, rank, size, function, arguments, is_checked), daemon=True)
            for rank in range(size)
        ]
        for process in started:
            process.start()
        try:
            _wait(started, time.monotonic() + timeout_s)
        finally:
            for process in started:
                if process.is_alive():
                    process.kill()
                process.join()
        errors = sorted(Path(folder).glob("*.error"), key=lambda path: path.stat().st_mtime)
        if errors:
            raise AssertionError(f"{errors[0].stem}: {errors[0].read_text()}")
        ended = [process.exitcode for process in started]
        assert ended == [0] * size, f"exit codes {ended}, or no end within {timeout_s} s"
        return [torch.load(Path(folder) / f"rank{rank}.pt", weights_only=True) for rank in range(size)]


def _wait(processes, deadline: float) -> None:
    """Until all have ended, or one has failed and the others had a moment to end, too."""
    while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
        if any(process.exitcode for process in processes):
            deadline = min(deadline, time.monotonic() + 2)
        time.sleep(0.01)


def _run(folder: str, rank: int, size: int, function, arguments, is_checked: bool) -> None:
    os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL" if is_checked else "OFF"
    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), size)
    try:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=20))
        torch.save(function(*arguments), Path(folder) / f"rank{rank}.pt")
        store.set(f"done{rank}", "")
        store.wait([f"done{other}" for other in range(size)])  # one that ends breaks the connections of the others
    except BaseException:
        (Path(folder) / f"rank{rank}.error").write_text(traceback.format_exc())
        raise SystemExit(1) from None
    dist.destroy_process_group()
    os._exit(0)  # torch's own teardown aborts now and then
