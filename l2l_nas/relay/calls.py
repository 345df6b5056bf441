"""How layers run: as they are, compiled, or from graphs."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from l2l_nas.arguments import check_word
from l2l_nas.errors import SettingError
from l2l_nas.relay.compiled import Compiled, what_lacks
from l2l_nas.relay.device import Device
from l2l_nas.relay.graphs import Graphs
from l2l_nas.relay.refusals import keeps_torch_state
from l2l_nas.relay.slots import CallFactory

LAYERS = ("eager", "compile", "graphs")
Layers = str | Callable[..., object]


def check_layers(layers: object) -> None:
    """Refuse with a SettingError what names no way to run layers, and is none."""
    if not callable(layers):
        check_word("layers", layers, LAYERS)


def calls_of(layers: Layers, device: Device, *, is_chain: bool) -> CallFactory | None:
    """What gives templates the way they run; None where they run as they are."""
    if callable(layers):
        return Compiled(layers)
    if layers == "graphs":
        if device.capture is None:
            kind = device.torch_device.type
            raise SettingError(f"layers=graphs needs a CUDA device, device={kind} has no graphs; use layers=eager")
        return Graphs(device, device.capture, is_chain=is_chain)
    if layers == "compile" and not what_lacks(device):
        return Compiled("inductor")
    return None


def alone(method: Callable[..., Any]) -> Callable[..., Any]:
    """Have a method of a relay refuse a call while its relay or its server is at work, in this thread or in another."""
    method = keeps_torch_state(method)

    @functools.wraps(method)
    def guarded(relay: Any, *args: Any, **kwargs: Any) -> Any:
        with contextlib.ExitStack() as held:
            for one, name in ((relay, "relay"), (relay.server, "server")):
                at_work: threading.Lock = one.at_work
                if not at_work.acquire(blocking=False):
                    raise SettingError(
                        f"this {name} is at work already, in another thread or for a call that has not ended; one "
                        "relay and one server serve one thread at a time (Optuna's n_jobs=1)"
                    )
                held.callback(at_work.release)
            return method(relay, *args, **kwargs)

    return guarded


def refuse_modes(device: Device) -> None:
    """Refuse what the caller is within, where layers would give something else than they should."""
    if torch.is_autocast_enabled(device.torch_device.type) and torch.is_autocast_cache_enabled():
        raise SettingError(
            "torch.autocast keeps casts of weights, which a relay replaces by those of the next layer: write "
            'torch.autocast(..., cache_enabled=False), or leave it and use precision="bf16"'
        )
    if torch.is_inference_mode_enabled():
        raise SettingError(
            "torch.inference_mode makes tensors that cannot be trained: leave it; a relay needs no such mode"
        )
