"""The latency of a plain network: measured, so it is noisy, and it is that of this machine, as it is now.

Other processes only ever make a call slower. So of every ten calls in a row the fastest counts, and the median of these
is reported.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from l2l_nas.errors import DataError, SettingError, TrialError, user_code
from l2l_nas.relay.extend import extend_of, is_placewise
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.values import Flow

_WARM_UP = 3  # calls: the first ones make buffers and choose kernels
_LEAST = 5  # calls, however slow the network
_LONG = 10  # times the limit that a call takes: one warms up, two are measured
_ROW = 10  # calls, of which the fastest counts
_LEAST_ROWS = 5  # rows whose spread says anything
_SPREAD = 0.05  # of the median: the quartiles' distance below which it is known well enough
_LIMIT_S = 0.2  # of measuring, after which the median is taken as it is


class Latency:
    """Milliseconds that a network takes for a batch in evaluation mode, on one CPU thread.

    Weights are the first ones, as they do not change it.

    Args:
        build: gives the plain network in evaluation mode.
        name: of the cost.
        seconds: measures a network on inputs; see `typical_seconds`.
    """

    def __init__(
        self,
        build: Callable[[Architecture], nn.Sequential],
        inputs: Sequence[Tensor],
        device: torch.device,
        *,
        name: str = "latency_ms",
        seconds: Callable[[nn.Sequential, Sequence[Tensor], Architecture], float] | None = None,
    ) -> None:
        self._name, self._build = name, build
        self._seconds = seconds or (lambda network, inputs, _: typical_seconds(network, inputs))
        self._inputs = tuple(tensor.to(device) for tensor in inputs)
        self._device = device

    def __call__(self, architecture: Architecture) -> float:
        """Measure an architecture.

        Raises:
            SettingError: the whole network does not fit on the device.
            TrialError: one of its layers raised something.
        """
        try:
            with user_code(f"{self._name}: {architecture}", TrialError):
                with torch.random.fork_rng(devices=[]):  # building draws weights
                    network = self._build(architecture).to(self._device)
                return 1000 * self._seconds(network, self._inputs, architecture)
        except torch.OutOfMemoryError:
            raise SettingError(
                f"{self._name}: the whole network does not fit on the device; leave it out of the objectives and "
                f"limits, or allow less: {architecture}"
            ) from None


def token_seconds(network: nn.Sequential, flow: Flow, inputs: Sequence[Tensor]) -> float:
    """Seconds for the last token of a text whose other tokens were read before; see `typical_seconds`.

    Where a layer cannot go on token by token, all of the text is read again for it, as `generate` does. An input that
    is not as long as the text is given whole.

    Args:
        network: its layers in the order of the flow.
        inputs: of one text at least: [batch, tokens], and what else the network takes.
    """
    layers = list(network)
    goes_on = [extend_of(layer) for layer in layers]
    can = all(extend or is_placewise(layer) for extend, layer in zip(goes_on, layers, strict=True))
    length = inputs[0].shape[1]
    if not can or length < 2:
        return typical_seconds(network, inputs)
    before: dict[int, tuple[Tensor, ...]] = {}
    after: dict[int, tuple[Tensor, ...]] = {}

    def call(place: int, x: Tensor, *others: Tensor) -> object:
        extend = goes_on[place]
        if extend is None:
            return layers[place](x, *others)
        outputs, after[place] = extend(x, before.get(place))
        return outputs

    def cut(places: slice) -> list[Tensor]:
        return [tensor[:, places] if tensor.shape[1:2] == (length,) else tensor for tensor in inputs]

    try:
        with torch.inference_mode():
            flow.run(cut(slice(-1)), call)
    except DataError:  # attention that sees later tokens
        return typical_seconds(network, inputs)
    before.update(after)
    return typical_seconds(lambda *last: flow.run(last, call), cut(slice(-1, None)))


def typical_seconds(network: Callable[..., object], inputs: Sequence[Tensor], *, limit_s: float = _LIMIT_S) -> float:
    """The median over rows of ten calls of the fastest one: until quartiles are within 5 % of it, or for `limit_s`."""
    # its own device: another one may be the current one, and would be done at once
    device = inputs[0].device
    # a CPU is done when the call returns
    wait = (lambda: None) if device.type == "cpu" else partial(torch.accelerator.synchronize, device)
    times: list[float] = []
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            start = time.perf_counter()
            network(*inputs)
            wait()
            is_long = time.perf_counter() - start > _LONG * limit_s
            least = 2 if is_long else _LEAST
            for _ in range(0 if is_long else _WARM_UP - 1):
                network(*inputs)
            wait()
            end = time.perf_counter() + limit_s
            while len(times) < least or (time.perf_counter() < end and not _is_stable(times)):
                start = time.perf_counter()
                network(*inputs)
                wait()
                times.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(num_threads)
    return statistics.median(_fastest(times))


def _fastest(times: Sequence[float]) -> list[float]:
    """The fastest call of each whole row; of all calls where there is no whole row."""
    whole = len(times) // _ROW
    return [min(times[row * _ROW : (row + 1) * _ROW]) for row in range(whole)] or [min(times)]


def _is_stable(times: Sequence[float]) -> bool:
    if len(times) % _ROW or len(times) < _LEAST_ROWS * _ROW:
        return False
    first, median, third = statistics.quantiles(_fastest(times), n=4)
    return third - first <= _SPREAD * median
