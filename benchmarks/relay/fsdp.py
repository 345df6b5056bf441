"""PyTorch's FSDP2, with its parameters on the host or not, for comparison."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard


def shard(
    model: nn.Module,
    layers: Iterable[nn.Module],
    device: torch.device,
    *,
    dtype: torch.dtype | None = None,
    is_offloaded: bool = True,
) -> nn.Module:
    """Shard each layer by itself, then the rest, over all ranks of the process group.

    Each layer is gathered for its forward and again for its backward, and its gradient leaves after it.

    Args:
        model: on the host.
        layers: parts of it, in the order of the forward.
        device: where it runs; a process group exists.
        dtype: of weights and activations on the device; gradients are reduced in float32. The model's own by default.
        is_offloaded: whether each rank's part of parameters and gradients stays on the host.

    Returns:
        The same model.
    """
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if is_offloaded else OffloadPolicy()
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, offload_policy=policy, mp_policy=precision)
    return model
