"""Gated DeltaNet: linear attention whose states forget, and replace what a key has written before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.layers.attention_start import fit_gate, fit_last, heads_of, only_present, slow_steps
from l2l_nas.layers.state_space import Recurrence, convolved, decays, emptied, in_chunks
from l2l_nas.layers.style import Cache, Style


@dataclass(frozen=True)
class DeltaHeads:
    """How Gated DeltaNet is divided."""

    count: int  # of heads
    size: int  # of a head's queries, keys and values
    kernel: int = 4  # tokens that the convolution before it sees, the token itself among them
    chunk: int = 64  # tokens that are worked on at once; it changes the speed, not the result


class GatedDelta(Recurrence):
    """Gated DeltaNet (arXiv 2412.06464, section 3) as a residual sub-layer.

    Of each token come a key and a value, how much states decay before it, and which share of what the key reads is
    replaced by the value. It equals transformers' Qwen3NextGatedDeltaNet in its torch path. The cache holds what the
    convolution sees of earlier tokens, and the states [batch, heads, size of keys, size of values].
    """

    keep_dtype = ("step", "decay")

    def __init__(self, hidden: int, heads: DeltaHeads, style: Style | None = None) -> None:
        style = style or Style(norm="rms", bias=False)
        super().__init__(hidden, style)
        self.heads, self.eps, self.inner = heads, style.eps, heads.count * heads.size
        self.query, self.key, self.value, self.gate = (nn.Linear(hidden, self.inner, bias=False) for _ in range(4))
        self.replaced, self.forgets = (nn.Linear(hidden, heads.count, bias=False) for _ in range(2))
        self.conv = nn.Conv1d(3 * self.inner, 3 * self.inner, heads.kernel, groups=3 * self.inner, bias=False)
        self.step = nn.Parameter(torch.ones(heads.count))
        self.decay = nn.Parameter(torch.empty(heads.count).uniform_(0.01, 16).log())
        self.scale = nn.Parameter(torch.ones(heads.size))
        self.out = nn.Linear(self.inner, hidden, bias=False)
        style.draw(self.query, self.key, self.value, self.gate, self.replaced, self.forgets, last=self.out)

    def read(self, x: Tensor, cache: Cache | None, documents: Tensor | None = None) -> tuple[Tensor, Cache]:
        """What the last layer takes, [batch, length, heads * size], and the cache behind it."""
        heads, length, normed = self.heads, x.shape[1], self.before(x)
        mixed = torch.cat([part(normed) for part in (self.query, self.key, self.value)], dim=-1)
        earlier = mixed.new_zeros(x.shape[0], heads.kernel - 1, 3 * self.inner) if cache is None else cache[0]
        seen = torch.cat((earlier, mixed), dim=1)
        wide = torch.promote_types(x.dtype, torch.float32)
        query, key, value = (
            part.unflatten(-1, (heads.count, heads.size)).to(wide)
            for part in functional.silu(convolved(seen, self.conv, length, documents)).chunk(3, dim=-1)
        )
        decay = -self.decay.to(wide).exp() * functional.softplus(self.forgets(normed).to(wide) + self.step)
        y, states = delta_scan(
            _unit(query) / heads.size**0.5,
            _unit(key),
            value,
            emptied(decay, documents),
            self.replaced(normed).to(wide).sigmoid(),
            states=None if cache is None else cache[1],
            chunk=heads.chunk,
        )
        gate = functional.silu(self.gate(normed).unflatten(-1, (heads.count, heads.size)).to(wide))
        y = functional.rms_norm(y, (heads.size,), weight=self.scale.to(wide), eps=self.eps) * gate
        return y.flatten(2).to(x.dtype), (seen[:, length:], states)

    @torch.no_grad()
    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Begin from attention of as many heads of this size; see `l2l_nas.layers.attention_start`."""
        found: Any = original
        count, size = self.heads.count, self.heads.size
        self.take_norms(found)
        for layer, weight in zip((self.query, self.key, self.value), heads_of(found, count, size), strict=True):
            layer.weight.copy_(weight)
        only_present(self.conv)
        for part in (self.replaced, self.forgets):
            part.weight.zero_()
        self.decay.zero_()
        self.step.copy_(slow_steps(count))
        self.scale.fill_(1)
        fit_gate(self, self.gate.weight, inputs)
        self.out.weight.zero_()
        fit_last(self, found, inputs)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def delta_scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    decay: Tensor,
    replaced: Tensor,
    *,
    states: Tensor | None = None,
    chunk: int = 64,
) -> tuple[Tensor, Tensor]:
    """The recurrence `state = exp(decay) * state; state += key x replaced * (value - state . key)`, read by queries.

    Within a chunk, what each place adds follows from a triangular system (arXiv 2412.06464, section 3.3). Sums of
    decays are never taken apart by a difference, so that a decay may be -inf.

    Args:
        query, key, value: [batch, length, heads, size].
        decay, replaced: [batch, length, heads]; logarithms, at most 0, and shares.
        states: [batch, heads, size of keys, size of values] before the first place; None: zeros.
        chunk: places that are worked on at once.

    Returns:
        What is read, [batch, length, heads, size]; and the states behind the last place.
    """
    length = query.shape[1]
    chunk = min(chunk, length)
    query, key, value, decay, replaced = (in_chunks(one, chunk) for one in (query, key, value, decay, replaced))
    between, since = decays(decay)
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).tril(-1)
    written = key * replaced[..., None]
    system = ((written @ key.transpose(-1, -2)) * between).masked_fill(~later, 0)
    system = system + torch.eye(chunk, dtype=system.dtype, device=system.device)
    wanted = torch.cat((value * replaced[..., None], written * since[..., None]), dim=-1)
    added, read = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True).split(
        [value.shape[-1], key.shape[-1]], dim=-1
    )
    within = (query @ key.transpose(-1, -2)) * between
    query, key = query * since[..., None], key * between[..., -1, :, None]
    state = torch.zeros_like(key[:, 0].transpose(-1, -2) @ value[:, 0]) if states is None else states
    outputs = []
    for index in range(query.shape[1]):
        new = added[:, index] - read[:, index] @ state
        outputs.append(query[:, index] @ state + within[:, index] @ new)
        state = since[:, index, :, -1, None, None] * state + key[:, index].transpose(-1, -2) @ new
    y = torch.stack(outputs, dim=1)
    return y.transpose(2, 3).flatten(1, 2)[:, :length], state
