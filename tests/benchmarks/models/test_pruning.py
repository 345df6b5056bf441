from __future__ import annotations

import re

import pytest

from benchmarks import ROOT
from benchmarks.models import prune
from benchmarks.models.pruning import ARMS


@pytest.mark.parametrize("arm", ARMS)
def test_a_strategy_of_an_arm_is_there(arm):
    for path, name in re.findall(r"strategy=(\S+\.py):(\w+)", ARMS[arm]):
        assert ROOT / path == (ROOT / "benchmarks" / "models" / "prune.py")
        assert callable(getattr(prune, name))
