"""Counts the device memory of a relay on a CPU: what it owns, and every storage made in the thread of the layers.

Lanes have threads of their own, so what they make on the host is not in it. States exist before, too; and so do the
blocks in which gradients wait for updates, on the host: where the device is the host, a layer takes them in its own
thread, and how many it takes depends on how far updates are behind.
"""

from __future__ import annotations

import torch

from l2l_nas.eps.gradients import GradientBlock, gradient_bytes
from l2l_nas.space.operations import LiveBytes


def peak_bytes(relay, step) -> int:
    """Of a warm relay: what it owns and the most that a step makes besides."""
    step()
    step()
    relay.drain()
    fill(relay.server)
    live = LiveBytes()
    with live:
        step()
    relay.drain()
    torch.set_grad_enabled(True)
    return relay.device_bytes + live.peak


def tensors_of(bank) -> list[torch.Tensor]:
    """Every device tensor that a bank owns or refers to."""
    blocks = [block for slot in bank.slots for block in slot.blocks]
    for template in bank._templates.values():
        blocks += [*template.module.parameters(), *template.module.buffers()]
        blocks += [block.memory for block in template.gradients]
    return blocks


def fill(server) -> None:
    """Have a free block for the gradients of every state."""
    layouts = [server.layout(key) for key in server.visited]
    size = max(gradient_bytes(layout) for layout in layouts)
    blocks = [GradientBlock(torch.empty(size, dtype=torch.uint8)) for _ in layouts]
    server.gradients.waiting.clear()
    server.gradients._blocks[:] = blocks
