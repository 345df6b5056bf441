"""PyTorch's FSDP2 with its parameters on the host, for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard


def shard_on_host(
    model: nn.Module, layers: Iterable[nn.Module], device: torch.device, *, dtype: torch.dtype | None = None
) -> nn.Module:
    """Shard each layer by itself, then the rest, over a world of one; parameters and gradients stay on the host.

    Each layer comes to the device for its forward and again for its backward, and its gradient leaves after it.

    Args:
        model: on the host.
        layers: parts of it, in the order of the forward.
        device: where it runs; a process group exists.
        dtype: of weights and activations on the device; gradients are reduced in float32. The model's own by default.

    Returns:
        The same model.
    """
    mesh = init_device_mesh(device.type, (1,))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, offload_policy=policy, mp_policy=precision)
    return model
