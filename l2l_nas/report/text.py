"""Numbers and architectures as short text, the same in tables and in pictures."""

from __future__ import annotations

from l2l_nas.cost.table import LABELS, UNITS, readable, with_unit


def format_value(name: str, value: float) -> str:
    """A value: costs as `readable` has them, metrics with 4 decimals (4 digits where those would not do)."""
    if name in UNITS:
        return readable(name, value)
    return f"{value:.4f}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.4g}"


def labelled(name: str, value: float) -> str:
    """A value with its unit or its name."""
    return with_unit(name, value) if name in UNITS else f"{name} {format_value(name, value)}"


def with_error(name: str, value: float, error: float | None) -> str:
    """A metric and its standard error: `0.9778 ± 0.0078`; without the error where it is not known."""
    shown = format_value(name, value)
    if error is None:
        return shown
    decimals = len(shown.partition(".")[2]) if "e" not in shown else 0
    return f"{shown} ± {error:.{decimals}f}" if decimals else f"{shown} ± {error:.2g}"


def heading(name: str) -> str:
    """What stands above a column or beside an axis: of a cost, what it is and its unit."""
    return LABELS.get(name, name)


def short_heading(name: str) -> str:
    """The same in a narrow column, where each value has its unit: `streamed bytes`, `latency`."""
    return name.removesuffix("_ms").replace("_", " ") if name in UNITS else name


def shorten(text: str, max_chars: int) -> str:
    """The text, its middle left out where it is too long: names often differ in their first and last letters."""
    if len(text) <= max_chars:
        return text
    width = max(max_chars, 2) - 1
    return f"{text[: width - width // 2]}…{text[len(text) - width // 2 :]}"


def format_seconds(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60) if seconds >= 3600 else int(seconds // 60)
    if seconds < 3600:
        return f"{minutes} min {seconds % 60:.0f} s" if seconds % 60 < 59.5 else f"{minutes + 1} min"
    return f"{minutes // 60:,} h {minutes % 60} min"
