"""All costs of a run: those of this library, then the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from numbers import Real

from torch import Tensor, nn

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.cost.device_bytes import device_bytes
from l2l_nas.cost.flops import Flops
from l2l_nas.cost.generation import KeptBytes, WritingCosts, text_length
from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.latency import Latency, token_seconds
from l2l_nas.cost.own import OwnCost
from l2l_nas.cost.relay_path import RelayPath
from l2l_nas.cost.step_time import StepTime
from l2l_nas.cost.table import LABELS, Cost, Costs
from l2l_nas.cost.traffic import StreamedBytes
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.errors import SettingError, user_code
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.shapes import check_shapes


def parameters_cost(pool: LayerPool) -> Cost:
    """The number of weights: the sum over the layers, unless an architecture's choices decide which are shared."""
    of_layer = _of_states(pool, lambda layout: layout.num_parameters)
    return Cost("parameters", lambda a: float(num_parameters(pool, a)), of_layer)


def file_cost(pool: LayerPool) -> Cost:
    """Bytes of the weights and buffers as exports write them, without a file's head; a sum as parameters are."""

    def num_bytes(layout: Layout) -> int:
        return sum(entry.numel * entry.dtype.itemsize for entry in (*layout.parameters, *layout.buffers))

    def of_architecture(architecture: Architecture) -> float:
        return float(sum(num_bytes(layout_of(pool, state)) for state in path_states(pool, architecture)))

    return Cost("file_bytes", of_architecture, _of_states(pool, num_bytes))


def _of_states(pool: LayerPool, of: Callable[[Layout], int]) -> Callable[[Layer], float] | None:
    """What a layer adds to a sum over states that count once; None where an architecture decides which are shared."""
    first: dict[str, int] = {}  # position that each state is counted at
    for layer in pool.layers:
        for state in layer.states:
            first.setdefault(state, layer.position)
    tied = [pool.positions[layer.position] for layer in pool.layers if layer.candidate.tied]
    if pool.shared or not pool.is_separable or any(len(position.candidates) > 1 for position in tied):
        return None

    def of_layer(layer: Layer) -> float:
        counted = [state for state in layer.states if first[state] == layer.position]
        return sum(of(layout_of(pool, state)) for state in counted)

    return of_layer


def _sum(pool: LayerPool, name: str, of_layer: Callable[[Layer], float]) -> Cost:
    """A cost that is the sum over the layers of a path."""
    total = lambda architecture: float(sum(map(of_layer, pool.path(architecture))))  # noqa: E731
    return Cost(name, total, of_layer if pool.is_separable else None)


def _generation_costs(relay: Relay, flops: Flops, hardware: Hardware | None) -> list[Cost]:
    """Those of writing, where the pool's networks take text."""
    pool = relay.server.whole_pool
    length = text_length(pool)
    if length is None:
        return []
    kept = KeptBytes(pool, length, relay.config.precision.dtype)
    costs = [_sum(pool, "cache_bytes", kept.of_token)] if kept.is_any else []
    if hardware is not None:
        writing = WritingCosts(relay, flops, kept)
        costs.append(_sum(pool, "first_token_ms", partial(writing.first_token_ms, hardware=hardware)))
        costs.append(_sum(pool, "token_ms", partial(writing.token_ms, hardware=hardware)))
    return costs


def build_costs(
    relay: Relay,
    sizes: tuple[int, ...],
    *,
    build: Callable[[Architecture], nn.Sequential],
    inputs: Sequence[Tensor],
    own: Mapping[str, OwnCost] | None = None,
    hardware: Hardware | None = None,
) -> Costs:
    """All costs of a run.

    Args:
        sizes: samples of each micro-batch of the relay.
        build: the plain network of an architecture, in evaluation mode; its latency is measured with `inputs`.
        own: costs of the user's own, by name.
        hardware: what step times are predicted for; None: they are not.

    Raises:
        SettingError: a cost of the user's own whose name is taken, or no plain word.
    """
    pool = relay.server.whole_pool
    flops = Flops(pool, check_shapes(pool))
    costs = [
        parameters_cost(pool),
        file_cost(pool),
        Cost("flops", flops, flops.of_layer if pool.is_separable else None),
        Cost("streamed_bytes", StreamedBytes(relay, sizes)),
        Cost("device_bytes", lambda a: float(device_bytes(RelayPath(relay, sizes, a)))),
        Cost("latency_ms", Latency(build, inputs, relay.device.torch_device), is_measured=True),
    ]
    if hardware is not None:
        step_time = StepTime(relay, sizes, hardware)
        costs += [Cost("step_ms", step_time), Cost("forward_ms", step_time.latency_ms)]
    costs += _generation_costs(relay, flops, hardware)
    if text_length(pool) is not None:
        measured = Latency(
            build, [row[:1] for row in inputs], relay.device.torch_device, name="token_latency_ms",
            seconds=lambda network, row, one: token_seconds(network, pool.flow(pool.path(one)), row),
        )  # fmt: skip
        costs.append(Cost("token_latency_ms", measured, is_measured=True))
    for name, function in (own or {}).items():
        if name in LABELS:
            raise SettingError(f"cost '{name}': this library has one of this name; rename yours")
        if not name.isidentifier():
            raise SettingError(
                f"cost {name!r}: its name may hold only letters, digits and _; name it: costs={{NAME: function}}"
            )
        costs.append(Cost(name, partial(_checked, name, function)))
    return Costs(costs)


def _checked(name: str, function: OwnCost, architecture: Architecture) -> float:
    """What a function of the user's own gives; it must be a finite number."""
    with user_code(f"for {architecture}, cost '{name}'", SettingError):
        value = function(architecture)
    try:
        number = float(value) if isinstance(value, Real) else math.nan
    except OverflowError:
        raise SettingError(f"cost '{name}' gave a number too large for a float; for {architecture}") from None
    if not math.isfinite(number):
        raise SettingError(f"cost '{name}' gave {value!r}, expected a finite number; for {architecture}")
    return number
