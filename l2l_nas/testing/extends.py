"""What every layer must do that goes on token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


def check_extend(build: Callable[[], nn.Module], x: Tensor, *, pieces: Sequence[int] = (3, 1, 1, 2)) -> None:
    """`extend` gives at each place what `forward` does, however the places come.

    Args:
        build: makes the layer.
        x: its input [batch, places, ...], of more places than all pieces have.
        pieces: new places of one call after the other; what is left comes in one more.

    Raises:
        AssertionError: it does not; what the layer raises comes through.
    """
    layer = build().eval()
    extend: Callable[..., tuple[Tensor, tuple[Tensor, ...]]] = layer.extend  # type: ignore[assignment]
    with torch.no_grad():
        whole, cache, place = layer(x), None, 0
        for count in (*pieces, x.shape[1] - sum(pieces)):
            before = None if cache is None else [tensor.clone() for tensor in cache]
            given, after = extend(x[:, place : place + count], cache)
            expected = whole[:, place : place + count]
            assert given.shape == expected.shape, (
                f"gave {list(given.shape)} for {count} places after {place}, expected {list(expected.shape)}"
            )
            assert torch.allclose(given, expected, rtol=1e-4, atol=1e-5 * float(whole.abs().max())), (
                f"differs from forward by {float((given - expected).abs().max()):.3g} in {count} places after {place}"
            )
            assert isinstance(after, tuple), f"gave a cache that is {type(after).__name__}, expected a tuple of tensors"
            assert all(isinstance(tensor, Tensor) for tensor in after), "gave a cache that holds other than tensors"
            if cache is not None and before is not None:
                changed = [not torch.equal(one, other) for one, other in zip(cache, before, strict=True)]
                assert not any(changed), "changed the cache that it was given; make a new one"
            cache, place = after, place + count
