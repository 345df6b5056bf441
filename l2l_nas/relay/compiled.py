"""Compiled templates: one graph for each kind of layer, whatever the slot and the architecture."""

from __future__ import annotations

import importlib.util
import os
import shutil
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.relay.device import Device
from l2l_nas.relay.slots import SlotBank
from l2l_nas.space.build import hollow

Backend = str | Callable[..., Any]


def compile_templates(bank: SlotBank, device: Device, backend: Backend) -> None:
    """Have templates run compiled; with a warning and no change where there is no compiler.

    Weights and buffers are inputs of the graph, so that templates of one kind in different slots share it.

    Args:
        backend: as `torch.compile` takes it.
    """
    lacking = _lacking(device) if backend == "inductor" else ""
    if lacking:
        warnings.warn(f"relay.compile has no effect: {lacking}", stacklevel=3)
        return
    compiled: dict[object, tuple[nn.Module, Callable[..., Any]]] = {}
    for kind, template in bank.templates:
        if kind not in compiled:
            code = hollow(template.module)  # `functional_call` gives it tensors, while a lane may read a template
            compiled[kind] = code, torch.compile(_runner(code, len(compiled)), backend=backend)
        template.call = _Call(*compiled[kind], template.module)


def _lacking(device: Device) -> str:
    if device.torch_device.type == "cuda":
        return "" if importlib.util.find_spec("triton") else "torch.compile needs the package triton on CUDA"
    names = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
    return "" if any(shutil.which(name) for name in names) else "torch.compile needs a C++ compiler (g++ or clang++)"


def _runner(module: nn.Module, number: int) -> Callable[..., Any]:
    """A function of its own code for each kind: torch keeps graphs by code, and gives up after a few."""

    def run(tensors: dict[str, Tensor], *inputs: Tensor) -> Any:
        return torch.func.functional_call(module, tensors, inputs, tie_weights=False)

    return types.FunctionType(run.__code__.replace(co_name=f"run{number}"), globals(), closure=run.__closure__)


class _Call:
    """A template's forward by its kind's graph.

    Args:
        code: the module that was compiled, without memory of its own; the graph reads its mode.
        run: its compiled form.
        module: the template's own module.
    """

    def __init__(self, code: nn.Module, run: Callable[..., Any], module: nn.Module) -> None:
        self._code = code
        self._run = run
        self._module = module

    def __call__(self, *inputs: Tensor) -> Any:
        if self._code.training != self._module.training:
            self._code.train(self._module.training)
        buffers: dict[str, Tensor] = dict(self._module.named_buffers(remove_duplicate=False))
        # AOTAutograd refuses to change inputs that share a storage, as the buffers in a slot do
        given = buffers
        if self._module.training:
            clones = {id(buffer): buffer.clone() for buffer in buffers.values()}  # one, whatever its names
            given = {name: clones[id(buffer)] for name, buffer in buffers.items()}
        outputs = self._run({**dict(self._module.named_parameters(remove_duplicate=False)), **given}, *inputs)
        if self._module.training:
            for name, buffer in buffers.items():
                buffer.copy_(given[name])
        return outputs
