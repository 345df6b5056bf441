"""What a language model costs where it writes: bytes a token of what it keeps, and predicted times of tokens.

All of them are sums over layers. They are of a text as long as the network's input, one text at a time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.cost.flops import Flops
from l2l_nas.cost.hardware import Hardware
from l2l_nas.eps.layout import wire_layout_of
from l2l_nas.errors import DataError, SpaceError, user_code
from l2l_nas.relay.extend import extend_of
from l2l_nas.relay.measure import Work, layer_needs
from l2l_nas.relay.relay import Relay
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.shapes import check_shapes, runs_on
from l2l_nas.space.split import Experts, own_splits


def text_length(pool: LayerPool) -> int | None:
    """How many tokens a network of this pool takes; None where its first input is no row of tokens."""
    first = pool.inputs[0]
    is_row = len(first.shape) == 1 and not first.dtype.is_floating_point
    return first.shape[0] if is_row and first.shape[0] > 0 else None


class KeptBytes:
    """What layers keep for the tokens to come (see `relay.extend`): their own `extend` is asked.

    Of attention these are keys and values; a window keeps no more than it sees, and a state is as large after a long
    text as after a short one. A layer without `extend` keeps nothing: it treats every place alike, or all is computed
    anew for each token.

    Args:
        length: of a text in tokens; see `text_length`.
        dtype: that float32 is kept in.
    """

    def __init__(self, pool: LayerPool, length: int, dtype: torch.dtype = torch.float32) -> None:
        self._pool, self.length, self._dtype = pool, length, dtype
        self._known: dict[object, int] = {}

    @property
    def is_any(self) -> bool:
        """Whether some layer keeps something: else all is computed anew here, and what others would keep is not known.

        Raises:
            SpaceError: a layer's `extend` fails.
        """
        return any(self.of_text(layer) for layer in self._pool.layers if not layer.candidate.is_skip)

    def of_token(self, layer: Layer) -> float:
        """Bytes a token: the mean over a whole text."""
        return self.of_text(layer) / self.length

    @torch.no_grad()
    def of_text(self, layer: Layer) -> int:
        """Bytes after a whole text.

        Raises:
            SpaceError: a layer's `extend` fails.
        """
        takes = check_shapes(self._pool).takes[layer.position]
        key = (layer.candidate.kind, takes)
        if key not in self._known:
            device = runs_on(self._pool, layer)
            extend = extend_of(_module(self._pool, layer))
            kept: tuple[Tensor, ...] = ()
            if extend is not None:
                x = torch.zeros(1, *takes[0].shape, dtype=takes[0].dtype, device=device)
                try:
                    with user_code(f"extend of '{layer.key}'", SpaceError):
                        kept = extend(x, None)[1]
                except DataError:  # attention that sees later tokens writes no text
                    kept = ()
            self._known[key] = sum(tensor.numel() * self._itemsize(tensor) for tensor in kept if tensor.dim())
        return self._known[key]

    def _itemsize(self, tensor: Tensor) -> int:
        return self._dtype.itemsize if tensor.dtype == torch.float32 else tensor.element_size()


def _module(pool: LayerPool, layer: Layer) -> nn.Module:
    device = runs_on(pool, layer)
    with preserved_generators(device):
        return pool.build_module(layer, device=device)


class WritingCosts:
    """Predicted times of writing with the layers of a relay's pool, in the precision of the relay.

    Args:
        flops: of its layers.
        kept: by its layers, in that precision.
    """

    def __init__(self, relay: Relay, flops: Flops, kept: KeptBytes) -> None:
        self._pool, self._relay, self._flops, self._kept = relay.server.whole_pool, relay, flops, kept
        self._dtype = relay.config.precision.dtype
        self._unread: dict[object, float] = {}

    def first_token_ms(self, layer: Layer, hardware: Hardware) -> float:
        """Predicted milliseconds that a layer takes to read a text."""
        return 1000 * hardware.seconds(self._forward(layer), self._relay.precision)

    def token_ms(self, layer: Layer, hardware: Hardware) -> float:
        """Predicted milliseconds that a layer takes for one more token behind such a text.

        It reads all weights and all that is kept, and computes a share of what the whole text takes. Of experts those
        are read that it takes (`Experts.chosen`). Of a layer that takes tokens one row of its table is read.
        """
        takes = check_shapes(self._pool).takes[layer.position]
        is_table = not any(spec.dtype.is_floating_point for spec in takes)
        layouts = [wire_layout_of(self._pool, state, self._dtype) for state in layer.states]
        read = 0 if is_table else sum(layout.parameter_bytes for layout in layouts) - self._unread_bytes(layer)
        work = Work(
            self._flops.of_layer(layer) / self._kept.length,
            read + self._kept.of_text(layer),
            self._forward(layer).kernels,
        )
        return 1000 * hardware.seconds(work, self._relay.precision)

    def _unread_bytes(self, layer: Layer) -> float:
        """Those of the weights of experts that a token does not take."""
        kind = layer.candidate.kind
        if kind not in self._unread:
            entries = wire_layout_of(self._pool, layer.key, self._dtype).parameters
            self._unread[kind] = 0.0
            for name, rule in own_splits(_module(self._pool, layer)).items():
                if isinstance(rule, Experts) and rule.chosen is not None:
                    experts = [entry for entry in entries if entry.name.startswith(f"{name}.")]
                    num_bytes = sum(entry.numel * entry.dtype.itemsize for entry in experts)
                    self._unread[kind] += num_bytes * (1 - rule.chosen / rule.count)
        return self._unread[kind]

    def _forward(self, layer: Layer) -> Work:
        inputs = self._relay.stash.inputs_of(layer)
        return layer_needs(self._pool, layer, inputs, 1, dtype=self._dtype).forward
