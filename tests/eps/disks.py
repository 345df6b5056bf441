"""Disks that behave badly, for tests of states in files."""

from __future__ import annotations

import os
import random
import time


def make_rough(monkeypatch, *, seed: int = 0, longest_delay_s: float = 0.002) -> None:
    """From now on reads and writes take their time, and do only a part of what they are asked."""
    generator = random.Random(seed)

    def rough(real):
        def call(handle, views, position):
            (view,) = views
            time.sleep(longest_delay_s * generator.random() ** 3)
            return real(
                handle, [view[: generator.randint(1, len(view)) if generator.random() < 0.3 else None]], position
            )

        return call

    for name in ("preadv", "pwritev"):
        monkeypatch.setattr(os, name, rough(getattr(os, name)))
