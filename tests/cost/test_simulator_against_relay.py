"""The simulator against the real executor, on lanes of known rates. Times: `python -m benchmarks simulator`."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.cost.throttled import Triple, measured, predicted
from tests.relay.stress import CHECKED

TRIPLES = 12


def fast(triple: Triple) -> Triple:
    """The same, on a machine a hundred times as fast, where bytes are the same but for what a late update holds."""
    rates = triple.hardware
    faster = {name: 100 * getattr(rates, name) for name in ("link_up", "link_down", "host_updates", "disk")}
    return replace(triple, hardware=replace(rates, peak_flops={"fp32": 100 * rates.peak_flops["fp32"]}, **faster))


@pytest.mark.parametrize("number", range(TRIPLES))
def test_bytes_are_those_of_the_executor(number):
    generator = random.Random(f"bytes/{number}")
    triple = Triple.draw(generator)
    # other updates race with copies: what waits is a matter of time
    triple = fast(replace(triple, options={**triple.options, "update": CHECKED}))
    ours, real = predicted(triple), measured(triple)
    assert ours["device_bytes"] == real["device_bytes"]
    assert ours["disk_bytes"] == real["disk_bytes"]
    assert ours["host_bytes"] == pytest.approx(real["host_bytes"], rel=0.03)
