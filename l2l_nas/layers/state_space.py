"""State-space mixers and linear attention: a token reads from a state of fixed size, into which earlier ones wrote.

A place costs the same however long the sequence is. `scan` is the recurrence that both share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.layers.attention_start import before_softplus, fit_gate, fit_last, heads_of, only_present, slow_steps
from l2l_nas.layers.style import Cache, Residual, Style
from l2l_nas.space.split import Attribute, Channels, Column, Row, SplitRule, Splits


@dataclass(frozen=True)
class StateHeads:
    """How a state-space mixer is divided."""

    count: int  # of heads, each with a decay of its own
    size: int = 64  # numbers of a head; Mamba-2 has twice the width in all heads together
    state: int = 64  # numbers of the state for each of these
    groups: int = 1  # of heads, each with projections of its own for writing and reading
    kernel: int = 4  # tokens that the convolution before it sees, the token itself among them
    chunk: int = 64  # tokens that are worked on at once; it changes the speed, not the result


class Recurrence(Residual):
    """A token reads from states into which earlier ones wrote."""

    out: nn.Linear

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out.

        Args:
            documents: int64 [batch, length]; states are emptied where the number changes. None: all are of one.
        """
        return self.behind(x, self.out(self.read(x, None, documents)[0]))

    def extend(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`."""
        taken, cache = self.read(x, cache)
        return self.behind(x, self.out(taken)), cache

    def read(self, x: Tensor, cache: Cache | None, documents: Tensor | None = None) -> tuple[Tensor, Cache]:
        """What the last layer takes, [batch, length, ...], and the cache behind it."""
        raise NotImplementedError


class StateSpace(Recurrence):
    """Mamba-2's mixer (arXiv 2405.21060, sections 6 and 7) as a residual sub-layer.

    Of each token come what is written into the states, how much they decay before it, and what is read from them. It
    equals transformers' Mamba2 in its torch path. The convolution has a bias in any style. The cache holds what the
    convolution sees of earlier tokens, and the states [batch, heads, size, state].
    """

    keep_dtype = ("step", "decay")  # small changes of a decay near 1 matter over many tokens

    def __init__(self, hidden: int, heads: StateHeads, style: Style | None = None) -> None:
        style = style or Style(norm="rms", bias=False)
        super().__init__(hidden, style)
        self.heads, self.eps = heads, style.eps
        self.inner = heads.count * heads.size
        self.mixed = self.inner + 2 * heads.groups * heads.state
        self.into = nn.Linear(hidden, self.inner + self.mixed + heads.count, bias=style.bias)
        self.conv = nn.Conv1d(self.mixed, self.mixed, heads.kernel, groups=self.mixed)
        steps = torch.empty(heads.count).uniform_(-6.9, -2.3).exp()  # from 0.001 to 0.1, as the authors' code
        self.step = nn.Parameter(before_softplus(steps))
        self.decay = nn.Parameter(torch.arange(1, heads.count + 1).float().log())
        self.direct = nn.Parameter(torch.ones(heads.count))
        self.scale = nn.Parameter(torch.ones(self.inner))
        self.out = nn.Linear(self.inner, hidden, bias=style.bias)
        style.draw(self.into, last=self.out)

    def read(self, x: Tensor, cache: Cache | None, documents: Tensor | None = None) -> tuple[Tensor, Cache]:
        """See `Recurrence`."""
        heads, length = self.heads, x.shape[1]
        gate, mixed, step = self.into(self.before(x)).split([self.inner, self.mixed, heads.count], dim=-1)
        earlier = mixed.new_zeros(x.shape[0], heads.kernel - 1, self.mixed) if cache is None else cache[0]
        seen = torch.cat((earlier, mixed), dim=1)
        value, written, read = functional.silu(convolved(seen, self.conv, length, documents)).split(
            [self.inner, heads.groups * heads.state, heads.groups * heads.state], dim=-1
        )
        value = value.unflatten(-1, (heads.count, heads.size))
        written, read = (part.unflatten(-1, (heads.groups, heads.state)) for part in (written, read))
        wide = torch.promote_types(x.dtype, torch.float32)
        step = functional.softplus(step.to(wide) + self.step)
        decay = emptied(-self.decay.exp() * step, documents)
        y, states = scan(
            value.to(wide) * step[..., None],
            decay,
            written.to(wide),
            read.to(wide),
            states=None if cache is None else cache[1],
            chunk=heads.chunk,
        )
        y = (y + self.direct[:, None] * value.to(wide)).flatten(2) * functional.silu(gate.to(wide))
        y = functional.rms_norm(y.unflatten(-1, (heads.groups, -1)), (self.inner // heads.groups,), eps=self.eps)
        y = self.scale * y.flatten(2).to(x.dtype)
        return y, (seen[:, length:], states)

    @torch.no_grad()
    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Begin from attention of as many heads of this size: values are written by keys, and queries read them.

        That is what linear attention and Mamba-2 have in common; see `l2l_nas.layers.attention_start`.

        Raises:
            ValueError: heads that share what they write.
        """
        heads, inner = self.heads, self.inner
        if heads.groups != heads.count or heads.state != heads.size:
            raise ValueError("to begin as attention, each head needs projections of its own, of its size")
        found: Any = original
        self.take_norms(found)
        query, key, value = heads_of(found, heads.count, heads.size)
        rows = self.into.weight
        rows[inner : 4 * inner] = torch.cat((value, key, query / heads.size**0.5))
        rows[4 * inner :] = 0
        if self.into.bias is not None:
            self.into.bias.zero_()
        only_present(self.conv)
        for parameter in (self.decay, self.direct):
            parameter.zero_()
        self.step.copy_(slow_steps(heads.count))
        self.scale.fill_(1)
        fit_gate(self, rows[:inner], inputs)
        self.out.weight.zero_()
        fit_last(self, found, inputs)

    def splits(self) -> Splits:
        """By groups of heads; where all heads are one group, it is whole."""
        heads = self.heads
        if heads.groups == 1:
            return {}
        mixed = Column(parts=(self.inner, heads.groups * heads.state, heads.groups * heads.state))
        splits: dict[str, SplitRule] = dict.fromkeys(("heads.count", "heads.groups", "inner", "mixed"), Attribute())
        splits |= dict.fromkeys(("step", "decay", "direct", "scale"), Channels())
        into = Column(parts=(self.inner, *mixed.groups(self.mixed), heads.count))
        return splits | {"into": into, "conv.weight": mixed, "conv.bias": mixed, "out": Row()}


class LinearAttention(Recurrence):
    """Causal linear attention (arXiv 2006.16236, section 3.2 and equation 7) as a residual sub-layer.

    A token weighs itself and those before it by `f(query) . f(key)`, over their sum, with f = elu + 1. The cache holds
    the states [batch, heads, size + 1, size]; the last row is the sum of features.

    Args:
        count: of heads.
        chunk: tokens that are worked on at once; it changes the speed, not the result.

    Raises:
        ValueError: a width that heads do not divide.
    """

    def __init__(self, hidden: int, count: int, *, chunk: int = 64, style: Style | None = None) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        if hidden % count:
            raise ValueError(f"a width of {hidden} is not divided by {count} heads")
        self.count, self.chunk = count, chunk
        self.query, self.key, self.value, self.out = (nn.Linear(hidden, hidden, bias=style.bias) for _ in range(4))
        style.draw(self.query, self.key, self.value, last=self.out)

    def read(self, x: Tensor, cache: Cache | None, documents: Tensor | None = None) -> tuple[Tensor, Cache]:
        """See `Recurrence`."""
        normed, wide = self.before(x), torch.promote_types(x.dtype, torch.float32)
        query, key, value = (
            part(normed).unflatten(-1, (self.count, -1)).to(wide) for part in (self.query, self.key, self.value)
        )
        y, states = scan(
            functional.pad(value, (0, 1), value=1.0),
            emptied(query.new_zeros(query.shape[:3]), documents),
            functional.elu(key) + 1,
            functional.elu(query) + 1,
            states=None if cache is None else cache[0],
            chunk=self.chunk,
        )
        attended = y[..., :-1] / (y[..., -1:] + 1e-6)
        return attended.flatten(2).to(x.dtype), (states,)

    def splits(self) -> Splits:
        """By heads."""
        by_heads = Column(unit=self.query.out_features // self.count)
        layers = dict.fromkeys(("query", "key", "value"), by_heads)
        return {**layers, "out": Row(unit=by_heads.unit), "count": Attribute()}


def convolved(seen: Tensor, conv: nn.Conv1d, length: int, documents: Tensor | None) -> Tensor:
    """Of each token and those before it, within its document, what a convolution of each channel gives.

    Args:
        seen: [batch, earlier + length, channels], with as many earlier tokens as the kernel sees behind a token.

    Returns:
        [batch, length, channels].
    """
    if documents is None:
        found = functional.conv1d(seen.transpose(1, 2), conv.weight, conv.bias, groups=len(conv.weight))
        return found.transpose(1, 2)
    total = seen.new_zeros(()) if conv.bias is None else conv.bias
    (kernel,) = conv.kernel_size
    for back in range(kernel):
        start = kernel - 1 - back
        is_within = functional.pad(documents, (back, 0), value=-2)[:, :length] == documents
        total = total + seen[:, start : start + length] * conv.weight[:, 0, start] * is_within[..., None]
    return total


def emptied(decay: Tensor, documents: Tensor | None) -> Tensor:
    """Logarithms of decays [batch, length, heads], without an end where a document begins; see `StateSpace.forward`."""
    if documents is None:
        return decay
    is_first = functional.pad(documents[:, 1:] != documents[:, :-1], (1, 0))
    return decay.masked_fill(is_first[..., None], -torch.inf)


def scan(
    value: Tensor, decay: Tensor, written: Tensor, read: Tensor, *, states: Tensor | None = None, chunk: int = 64
) -> tuple[Tensor, Tensor]:
    """The recurrence `state = exp(decay) * state + value x written`, and of each place `state . read`.

    Within a chunk it is a masked product of matrices, as in attention, and between chunks a recurrence (arXiv
    2405.21060, section 6). Sums of decays are never taken apart by a difference, so that a decay may be -inf.

    Args:
        value: [batch, length, heads, size].
        decay: [batch, length, heads], logarithms, at most 0.
        written, read: [batch, length, groups, state], each for as many heads.
        states: [batch, heads, size, state] before the first place; None: zeros.
        chunk: places that are worked on at once.

    Returns:
        What is read, [batch, length, heads, size]; and the states behind the last place.
    """
    length = value.shape[1]
    chunk = min(chunk, length)
    value, decay, written, read = (in_chunks(one, chunk) for one in (value, decay, written, read))
    share = value.shape[2] // written.shape[2]
    between, since = decays(decay)
    alike = (read @ written.transpose(-1, -2)).repeat_interleave(share, dim=2)
    y = (alike * between) @ value
    written, read = written.repeat_interleave(share, dim=2), read.repeat_interleave(share, dim=2)
    added = (value * between[..., -1, :, None]).transpose(-1, -2) @ written
    state = torch.zeros_like(added[:, 0]) if states is None else states
    before = []
    for index in range(added.shape[1]):
        before.append(state)
        state = since[:, index, :, -1, None, None] * state + added[:, index]
    y = y + (read @ torch.stack(before, dim=1).transpose(-1, -2)) * since[..., None]
    return y.transpose(2, 3).flatten(1, 2)[:, :length], state


def in_chunks(tensor: Tensor, chunk: int) -> Tensor:
    """[batch, length, heads, ...] as [batch, chunks, heads, places, ...]; what is added at the end changes no state."""
    padded = functional.pad(tensor, (*[0] * (2 * tensor.dim() - 4), 0, -tensor.shape[1] % chunk))
    return padded.unflatten(1, (-1, chunk)).transpose(2, 3)


def decays(decay: Tensor) -> tuple[Tensor, Tensor]:
    """How much is left at each place of a chunk: of what an earlier one, or itself, wrote; of what was before it.

    Args:
        decay: [..., places], logarithms.

    Returns:
        [..., place, earlier place], 0 for later ones; and [..., places].
    """
    chunk = decay.shape[-1]
    is_later = torch.ones(chunk, chunk, dtype=torch.bool, device=decay.device).tril(-1)
    sums = decay[..., None].expand(*decay.shape, chunk).masked_fill(~is_later, 0).cumsum(dim=-2)
    return sums.masked_fill(is_later.t(), -torch.inf).exp(), decay.cumsum(dim=-1).exp()
