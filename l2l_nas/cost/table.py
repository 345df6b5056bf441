"""Costs by name: what an architecture costs, of which less is better. `catalogue.py` says how each is found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.constraint import Constraint
from l2l_nas.space.pool import Layer, LayerPool

# what is reported behind a value, and on the axes of pictures; a cost of the user's own has neither
_UNITS_AND_LABELS = {
    "parameters": ("parameters", "number of parameters"),  # a repeated or tied one counts once
    "flops": ("FLOPs", "FLOPs of a forward pass"),  # of one sample
    "file_bytes": ("bytes in a file", "bytes of the weights in a file"),  # each in the dtype of the layers
    "cache_bytes": ("bytes a token", "bytes kept of a token"),  # mean of a text as long as the input
    "streamed_bytes": ("streamed bytes", "bytes streamed in a training step"),
    "device_bytes": ("device bytes", "device bytes of a training step"),
    "latency_ms": ("ms", "latency in ms"),
    "step_ms": ("ms", "predicted ms of a training step"),
    "forward_ms": ("ms", "predicted ms of a forward pass"),  # of the plain network, on as many samples
    "first_token_ms": ("ms", "predicted ms to the first token"),  # of a text as long as the input
    "token_ms": ("ms", "predicted ms of a token"),  # behind such a text
    "token_latency_ms": ("ms", "latency of a token in ms"),  # the same, measured
}
UNITS = {name: unit for name, (unit, _) in _UNITS_AND_LABELS.items()}
LABELS = {name: label for name, (_, label) in _UNITS_AND_LABELS.items()}
PREDICTED = ("step_ms", "forward_ms", "first_token_ms", "token_ms")  # found for a hardware profile, where one is named
MEASURED = ("latency_ms", "token_latency_ms")
BYTES = ("file_bytes", "cache_bytes", "streamed_bytes", "device_bytes")
COUNTS = ("parameters", "flops", *BYTES)


def format_cost(name: str, value: float) -> str:
    """A value without its unit: counts whole, with separators, others with 4 digits."""
    return f"{value:,.0f}" if name in COUNTS else f"{value:.4g}"


def readable(name: str, value: float) -> str:
    """A value as tables and pages tell it: counts whole, bytes as KiB or MiB, milliseconds as such."""
    if name in BYTES:
        power = max(0, min(3, (int(abs(value)).bit_length() - 1) // 10))
        return f"{value / 1024**power:,.1f} {' KMG'[power]}iB" if power else f"{value:,.0f} B"
    return f"{format_cost(name, value)} ms" if UNITS.get(name) == "ms" else format_cost(name, value)


def with_unit(name: str, value: float) -> str:
    """A value as messages tell it: `1,234 parameters`, `1.25 ms`."""
    return f"{format_cost(name, value)} {UNITS.get(name, name)}"


@dataclass(frozen=True)
class Cost:
    """A figure of an architecture, of which less is better."""

    name: str  # in settings and results
    compute: Callable[[Architecture], float]  # gives the same every time, unless it is measured
    # what a layer adds at its position, where the cost is the sum of such, however the layers are combined
    of_layer: Callable[[Layer], float] | None = None
    is_measured: bool = False  # takes long and is noisy: examined last, once for each architecture


class Costs:
    """All costs of a run, by name. Those measured are remembered."""

    def __init__(self, costs: Iterable[Cost]) -> None:
        self._costs = {cost.name: cost for cost in costs}
        self._measured: dict[tuple[str, Architecture], float] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._costs)

    def __contains__(self, name: object) -> bool:
        return name in self._costs

    def __getitem__(self, name: str) -> Cost:
        return self._costs[name]

    def value(self, name: str, architecture: Architecture) -> float:
        """One cost; computed now, unless it was measured before."""
        cost, key = self._costs[name], (name, architecture)
        if not cost.is_measured:
            return cost.compute(architecture)
        if key not in self._measured:
            self._measured[key] = cost.compute(architecture)
        return self._measured[key]

    def figures(self, architecture: Architecture, *, measure: Iterable[str] = ()) -> dict[str, float]:
        """All costs that take no time, those measured before, and those asked for."""
        asked = set(measure)
        return {
            name: self.value(name, architecture)
            for name, cost in self._costs.items()
            if not cost.is_measured or name in asked or (name, architecture) in self._measured
        }

    def measured(self, architecture: Architecture) -> dict[str, float]:
        """Those of an architecture that were measured."""
        return {name: value for (name, one), value in self._measured.items() if one == architecture}

    def sums(self, pool: LayerPool) -> dict[str, Callable[[Architecture], float]]:
        """The costs that are sums over layers, by name: they take microseconds, as each layer is asked once."""

        def summed(of_layer: Callable[[Layer], float]) -> Callable[[Architecture], float]:
            values: dict[tuple[int, str], float] = {}

            def value_of(layer: Layer) -> float:
                key = (layer.position, layer.candidate.name)
                if key not in values:
                    values[key] = of_layer(layer)
                return values[key]

            return lambda architecture: float(sum(map(value_of, pool.path(architecture))))

        return {name: summed(cost.of_layer) for name, cost in self._costs.items() if cost.of_layer is not None}

    def remember(self, architecture: Architecture, figures: Mapping[str, float]) -> None:
        """Take over what an earlier run measured."""
        for name, value in figures.items():
            if name in self._costs and self._costs[name].is_measured:
                self._measured.setdefault((name, architecture), value)


class Limit:
    """A constraint: at most so much of a cost.

    Raises:
        SettingError: no such cost, or a limit that is not above 0.
    """

    def __init__(self, costs: Costs, name: str, most: float) -> None:
        if name not in costs:
            raise SettingError(f"search.limits: no cost '{name}'{did_you_mean(name, costs)}")
        if not most > 0:
            raise SettingError(f"search.limits.{name} must be above 0, got {most:g}")
        self.cost = costs[name]
        self.most = most
        self._costs = costs

    def value(self, architecture: Architecture) -> float:
        """The cost of an architecture."""
        return self._costs.value(self.cost.name, architecture)

    def violation(self, architecture: Architecture) -> str | None:
        """The reason, with got and limit, and the setting of the limit: several costs are in one unit."""
        name, value = self.cost.name, self.value(architecture)
        if value <= self.most:
            return None
        return f"{with_unit(name, value)}, allowed {format_cost(name, self.most)} (search.limits.{name})"

    def excess(self, architecture: Architecture) -> float:
        """The share by which an architecture exceeds the limit; 0 where it keeps it."""
        return max(0.0, self.value(architecture) / self.most - 1.0)


def unmeasured(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints that measure nothing."""
    return tuple(c for c in constraints if not (isinstance(c, Limit) and c.cost.is_measured))


def in_order(constraints: Iterable[Constraint]) -> tuple[Constraint, ...]:
    """The constraints, those that measure something last: what the others refuse is not measured."""
    return (*unmeasured(constraints), *(c for c in constraints if isinstance(c, Limit) and c.cost.is_measured))
