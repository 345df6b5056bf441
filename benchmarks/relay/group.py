"""Process groups."""

from __future__ import annotations

import atexit

import torch
import torch.distributed as dist


def join_world_of_one(device: torch.device) -> None:
    """Make a process group of this process alone, in its own memory: no port, no file, no environment variable.

    It lasts as long as the process: DeepSpeed remembers the groups it has seen, and fails where they are made anew. One
    that exists already is left as it is.
    """
    if dist.is_initialized():
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    atexit.register(_leave)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()
