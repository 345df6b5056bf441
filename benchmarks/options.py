"""How a measurement is told what to do: plain options, each with its default; what is wrong is one line.

The library is imported where something is wrong: processes that measure another checkout import this module as well,
and that library may be of another age.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn

_MOST = 2**63 - 1


class OptionParser(argparse.ArgumentParser):
    """Raises a SettingError where argparse prints its usage and exits."""

    def __init__(self, name: str, about: str) -> None:
        formatter = argparse.RawDescriptionHelpFormatter
        super().__init__(
            prog=f"python -m benchmarks {name}", description=about, formatter_class=formatter, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        from l2l_nas.errors import SettingError

        raise SettingError(message)


def at_least(least: int) -> Callable[[str], int]:
    """A type of options: whole numbers from `least`."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= _MOST:
            raise argparse.ArgumentTypeError(f"must be at least {least} and at most {_MOST}, got {text}")
        return value

    number.__name__ = "whole number"  # argparse names the type where `int` refuses the text
    return number
