"""Norms, activations, first weights and the residual sum, which the sub-layers of a model have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

Cache = tuple[Tensor, ...]

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_tanh": partial(functional.gelu, approximate="tanh"),
    "hardswish": functional.hardswish,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "silu": functional.silu,
}


class OffsetRMSNorm(nn.Module):
    """An RMS norm whose weights are what is added to 1 (Gemma); computed in float32."""

    is_placewise = True  # see `l2l_nas.relay.extend`

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """[..., width], the same shape out."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return (normed * (1.0 + self.weight.float())).to(x.dtype)


NORMS: Mapping[str, Callable[..., nn.Module]] = {
    "layer": nn.LayerNorm,
    "rms": nn.RMSNorm,
    "offset_rms": OffsetRMSNorm,
    "none": nn.Identity,
}


@dataclass(frozen=True)
class Style:
    """What all sub-layers of a model have in common."""

    norm: str = "layer"  # a name in `NORMS`
    eps: float = 1e-5  # of the norm
    # whether the norm follows the sum (arXiv 1706.03762), in place of standing before the sub-layer (arXiv 2002.04745)
    is_post: bool = False
    is_input_normed: bool = True  # whether what a sub-layer takes has a norm, unless `is_post`
    is_added_normed: bool = False  # whether what it adds has one
    bias: bool = True  # whether linear layers have one
    dropout: float = 0.0  # probability, on what a sub-layer adds
    deviation: float | None = None  # standard deviation of first weights, beside zero biases; None: as PyTorch's
    # of the model; the first weights of the last layer in each are divided by the root of it, so that what a model
    # adds up does not grow with its depth (GPT-2, section 2.3)
    sublayers: int = 1

    @torch.no_grad()
    def draw(self, *layers: nn.Module | None, last: nn.Module | None = None) -> None:
        """Draw the first weights of the linear layers and embeddings in these; the last of `last` is scaled down."""
        modules = [part for layer in (*layers, last) if layer is not None for part in layer.modules()]
        drawn = [part for part in modules if isinstance(part, nn.Linear | nn.Embedding)]
        if self.deviation is not None:
            for part in drawn:
                part.weight.normal_(0, self.deviation)
                if isinstance(part, nn.Linear) and part.bias is not None:
                    part.bias.zero_()
        if last is not None and self.sublayers > 1:
            drawn[-1].weight.div_(self.sublayers**0.5)


class Residual(nn.Module):
    """Adds something to its input, with norms before it, of it, or behind the sum."""

    def __init__(self, hidden: int, style: Style) -> None:
        super().__init__()
        self.is_post = style.is_post
        norm = NORMS[style.norm]
        self.norm = norm(hidden, eps=style.eps) if style.is_post or style.is_input_normed else nn.Identity()
        self.added_norm = norm(hidden, eps=style.eps) if style.is_added_normed else nn.Identity()
        self.dropout = nn.Dropout(style.dropout)

    def before(self, x: Tensor) -> Tensor:
        """Norm the input, if the norm comes first: the sub-layer works on that."""
        return x if self.is_post else self.norm(x)

    def added(self, x: Tensor) -> Tensor:
        """The sum that is added to the input, of what `before` gives, [batch, ..., hidden]."""
        raise NotImplementedError

    def adds(self, x: Tensor, *others: Tensor) -> Tensor:
        """The same of the input itself, and of what else `forward` takes."""
        added: Callable[..., Tensor] = self.added
        return added(self.before(x), *others)

    def changes(self, added: Tensor) -> Tensor:
        """Norm and drop out what the sub-layer adds."""
        return self.dropout(self.added_norm(added))

    def behind(self, x: Tensor, added: Tensor) -> Tensor:
        """Add to the input, and norm the sum if the norm comes last."""
        total = x + self.changes(added)
        return self.norm(total) if self.is_post else total

    def take_norms(self, original: Residual) -> None:
        """Have the norms of another sub-layer."""
        self.norm.load_state_dict(original.norm.state_dict())
        self.added_norm.load_state_dict(original.added_norm.state_dict())
