"""PyTorch's FSDP2 with its parameters on the host, for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard


def shard_on_host(model: nn.Module, layers: Iterable[nn.Module], device: torch.device) -> nn.Module:
    """Shard each layer by itself, then the rest, over a world of one; parameters and gradients stay on the host.

    Each layer comes to the device for its forward and again for its backward, and its gradient leaves after it.

    Args:
        model: on the host.
        layers: parts of it, in the order of the forward.
        device: where it runs; a process group exists.

    Returns:
        The same model.
    """
    mesh = init_device_mesh(device.type, (1,))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    for layer in layers:
        fully_shard(layer, mesh=mesh, offload_policy=policy)
    fully_shard(model, mesh=mesh, offload_policy=policy)
    return model
