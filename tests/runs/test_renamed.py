"""What stood behind settings of before is read as their settings of today take it."""

from __future__ import annotations

import pytest

from l2l_nas.runs.renamed import value_of_today


@pytest.mark.parametrize(
    ("name", "value", "today"),
    [
        ("relay.compile", "true", "compile"),
        ("relay.compile", "Off,on,0,1", "eager,compile,eager,compile"),
        ("search.sampler", "auto,tpe", "gp_hamming,tpe"),
        ("search.strategy", "auto", "auto"),
    ],
)
def test_a_value_is_the_one_of_today(name, value, today):
    assert value_of_today(name, value) == today
