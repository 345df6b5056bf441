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
from torch.utils.dlpack import from_dlpack

from l2l_nas.relay.device import Device
from l2l_nas.relay.slots import Template
from l2l_nas.space.build import meta_copy

Backend = str | Callable[..., Any]


class Compiled:
    """Has templates run compiled.

    Weights and buffers are inputs of the graph, so that templates of one kind in different slots share it. They are the
    slot's own memory: nothing is copied for a call.

    Args:
        backend: as `torch.compile` takes it.
    """

    num_bytes = 0

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._known: dict[object, tuple[nn.Module, Callable[..., Any]]] = {}

    def __call__(self, kind: object, template: Template, slot: int) -> None:
        del slot
        if kind not in self._known:
            code = meta_copy(template.module)  # `functional_call` gives it tensors, while a lane may read a template
            self._known[kind] = code, torch.compile(_runner(code, len(self._known)), backend=self._backend)
        template.call = template.call_again = _compiled_call(*self._known[kind], template.module)


def what_lacks(device: Device) -> str:
    """Name what `torch.compile` lacks to compile for a device, and warn of it; empty if nothing."""
    if device.torch_device.type == "cuda":
        lacking = "" if importlib.util.find_spec("triton") else "torch.compile needs the package triton on CUDA"
    else:
        names = [name for name in (os.environ.get("CXX"), "g++", "clang++") if name]
        lacking = "" if any(map(shutil.which, names)) else "torch.compile needs a C++ compiler (g++ or clang++)"
    if lacking:
        warnings.warn(f"relay.layers=compile has no effect: {lacking}", stacklevel=4)
    return lacking


def _runner(module: nn.Module, number: int) -> Callable[..., Any]:
    """Make a function with code of its own for each kind: torch keeps graphs by code, and gives up after a few."""

    def run(tensors: dict[str, Tensor], *inputs: Tensor) -> Any:
        return torch.func.functional_call(module, tensors, inputs, tie_weights=False)

    return types.FunctionType(run.__code__.replace(co_name=f"run{number}"), globals(), closure=run.__closure__)


def _compiled_call(code: nn.Module, run: Callable[..., Any], module: nn.Module) -> Callable[..., Any]:
    """A template's forward by its kind's graph, which reads the mode of `code`, the module that was compiled."""
    named = dict(module.named_buffers(remove_duplicate=False))
    apart = {id(buffer): _apart(buffer) for buffer in named.values()}  # one, whatever its names
    buffers = {name: apart[id(buffer)] for name, buffer in named.items()}

    def call(*inputs: Tensor) -> Any:
        if code.training != module.training:
            code.train(module.training)
        return run({**dict(module.named_parameters(remove_duplicate=False)), **buffers}, *inputs)

    return call


def _apart(buffer: Tensor) -> Tensor:
    """Give the same memory as a storage of its own.

    AOTAutograd refuses to change inputs that share a storage, as the buffers in a slot do.
    """
    return from_dlpack(buffer) if buffer.numel() else buffer  # type: ignore[no-any-return]
