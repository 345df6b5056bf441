"""Other libraries that keep layers on the host, each doing what the relay does: same weights, batches and updates.

Each library is imported when its side is built. None of them tells its device side from its host side on a CPU.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from benchmarks.relay.work import StackSizes


class Recomputed(nn.Module):
    """A layer whose inner values are computed again in the backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class Stack(nn.Module):
    """All layers, each but the last recomputed in the backward."""

    def __init__(self, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList([*(Recomputed(layer) for layer in layers[:-1]), layers[-1]])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def finish(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def token_loss(outputs: Tensor, targets: Tensor, count: int) -> Tensor:
    """Cross entropy summed over a micro-batch's tokens, over the number of tokens of the mini-batch."""
    return functional.cross_entropy(outputs.flatten(0, 1).float(), targets.flatten(), reduction="sum") / count


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Their warnings are about their own use of torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def adamw(parameters: Iterable[nn.Parameter], work: StackSizes) -> torch.optim.AdamW:
    """Fused, with the relay's own settings; a kernel takes DTensors or tensors, so each kind is a group."""
    kinds: dict[type, list[nn.Parameter]] = {}
    for parameter in parameters:
        kinds.setdefault(type(parameter.data), []).append(parameter)
    groups = [{"params": group} for group in kinds.values()]
    return torch.optim.AdamW(groups, lr=work.lr, weight_decay=0.01, fused=True)


def join_world_of_one(device: torch.device) -> None:
    """Make a process group of this process alone, which lasts: DeepSpeed remembers groups that it has seen."""
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


def shard(
    model: nn.Module, layers: Iterable[nn.Module], device: torch.device, *, dtype: torch.dtype | None = None
) -> nn.Module:
    """FSDP2: shard each layer by itself, then the rest, over all ranks of the process group; parameters on the host.

    Each layer is gathered for its forward and again for its backward, and its gradient leaves after it. `dtype` is that
    of weights and activations on the device; gradients are reduced in float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = CPUOffloadPolicy(pin_memory=device.type == "cuda")
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32 if dtype else None)
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, offload_policy=policy, mp_policy=precision)
    return model


class _OtherRunner:
    """Another library at work on a stack; its device side cannot be told from its host side on a CPU."""

    def __init__(self, work: StackSizes) -> None:
        self._work = work

    def finish(self) -> None:
        finish(self._work.torch_device)

    def device_bytes(self) -> int | None:
        return None


class FSDPRunner(_OtherRunner):
    """FSDP2 with `CPUOffloadPolicy`, micro-batch after micro-batch, `torch.optim.AdamW` on the host."""

    def __init__(self, work: StackSizes, *, dtype: torch.dtype | None = None) -> None:
        super().__init__(work)
        join_world_of_one(work.torch_device)
        model = Stack(work.modules())
        self._model = shard(model, model.layers, work.torch_device, dtype=dtype)
        self._optimizer = adamw(self._model.parameters(), work)

    @_quiet()
    def step(self, number: int) -> float:
        total = 0.0
        for part in self._work.tokens.split(self._work.micro_batch):
            tokens = part.to(self._work.torch_device)
            loss = token_loss(self._model(tokens), tokens, self._work.tokens.numel())
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return total

    def close(self) -> None:
        del self._model, self._optimizer


class _RealTokens(nn.Module):
    """An embedding that takes tokens as real numbers and gives them a gradient of zero, as Layer2Layer asks for one."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding

    def forward(self, x: Tensor) -> Tensor:
        """[batch, sequence] float32 in, [batch, sequence, hidden] out."""
        return self.embedding(x.long()) + (x * 0).unsqueeze(-1)


class LayerToLayerRunner(_OtherRunner):
    """`layer-to-layer-pytorch`: layer-major, copies that wait, the optimizer after everything."""

    def __init__(self, work: StackSizes) -> None:
        from layer_to_layer_pytorch.l2l import Layer2Layer

        super().__init__(work)
        embedding, *layers = work.modules()
        model = nn.Module()
        model.layers = nn.ModuleList([_RealTokens(embedding), *layers])
        self._model = Layer2Layer(model, work.micro_batch, gpu_device=work.torch_device)
        self._optimizer = adamw(self._model.main_params, work)

    def step(self, number: int) -> float:
        self._model.zero_grad()
        self._model.forward(self._work.tokens.float())
        # it divides by the number of full micro-batches, so it is right only where they divide the batch
        mean = functional.cross_entropy
        loss = self._model.compute_loss(self._work.tokens, lambda x, y: mean(x.flatten(0, 1), y.flatten()))
        self._model.backward()
        self._optimizer.step()
        self._model.update_main_model_params()
        return float(loss)

    def close(self) -> None:
        del self._model, self._optimizer


class DeepSpeedRunner(_OtherRunner):
    """DeepSpeed ZeRO-3 with parameters and optimizer on the host; its default clipping is switched off."""

    @_quiet()
    def __init__(self, work: StackSizes) -> None:
        on_cpu = work.torch_device.type == "cpu"
        if on_cpu:
            os.environ["DS_ACCELERATOR"] = "cpu"
        for name in ("RANK", "LOCAL_RANK"):
            os.environ.setdefault(name, "0")
        os.environ.setdefault("WORLD_SIZE", "1")
        # it builds its optimizer with the ninja that lies beside this Python
        os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        import deepspeed

        logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
        super().__init__(work)
        join_world_of_one(work.torch_device)
        model = Stack(work.modules())
        with contextlib.redirect_stdout(io.StringIO()):  # it tells of what it compiles
            self._engine, *_ = deepspeed.initialize(model=model, config=_deepspeed_config(work, pinned=not on_cpu))

    @_quiet()
    def step(self, number: int) -> float:
        total = 0.0
        parts = self._work.tokens.split(self._work.micro_batch)
        for part in parts:
            tokens = part.to(self._work.torch_device)
            loss = token_loss(self._engine(tokens), tokens, tokens.numel())
            self._engine.backward(loss)  # it divides by the number of micro-batches
            self._engine.step()
            total += loss.item() / len(parts)
        return total

    def close(self) -> None:
        self._engine.destroy()
        del self._engine


def _deepspeed_config(work: StackSizes, *, pinned: bool) -> dict[str, Any]:
    offload = {"device": "cpu", "pin_memory": pinned}
    return {
        "train_batch_size": work.batch, "train_micro_batch_size_per_gpu": work.micro_batch, "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": work.lr, "weight_decay": 0.01}}, "steps_per_print": 10**9,
        "zero_optimization": {"stage": 3, "offload_optimizer": offload, "offload_param": offload},
    }  # fmt: skip
