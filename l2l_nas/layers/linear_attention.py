"""Causal linear attention: attention whose weights are products of features, so that a state of fixed size suffices."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas.layers.state_space import emptied, scan
from l2l_nas.layers.style import Cache, Residual, Style


class LinearAttention(Residual):
    """Causal linear attention (arXiv 2006.16236, section 3.2 and equation 7) as a residual sub-layer.

    A token weighs itself and those before it by `f(query) . f(key)`, over their sum, with f = elu + 1.

    Args:
        hidden: width.
        count: of heads.
        chunk: tokens that are worked on at once; it changes the speed, not the result.
        style: of the model.

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

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        """[batch, length, hidden] in and out.

        Args:
            documents: int64 [batch, length]; states are emptied where the number changes. None: all are of one.
        """
        return self._attended(x, None, documents)[0]

    def extend(self, x: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`.

        The cache holds the states [batch, heads, size + 1, size]; the last row is the sum of features.
        """
        return self._attended(x, cache, None)

    def _attended(self, x: Tensor, cache: Cache | None, documents: Tensor | None) -> tuple[Tensor, Cache]:
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
        return self.behind(x, self.out(attended.flatten(2).to(x.dtype))), (states,)
