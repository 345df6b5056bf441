"""This machine, measured."""

from __future__ import annotations

import json

import pytest

from l2l_nas.cost.measure import measure
from l2l_nas.cost.profiles import find_hardware


@pytest.mark.slow
def test_a_measured_profile_is_one_and_leaves_nothing(tmp_path):
    found = measure("cpu", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    # between a very slow and a very fast machine
    assert 1e8 < found.peak_flops["fp32"] < 1e14
    assert 1e8 < found.link_up < 1e12
    assert 1e6 < found.host_updates < 1e11
    assert 1e6 < found.disk < 1e11
    assert 1e-7 < found.kernel_s < 1e-3
    assert 1e-6 <= found.step_s < 1e-1
    assert found.lanes == "inline"
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(found.to_json()))
    assert find_hardware(str(file)) == found
