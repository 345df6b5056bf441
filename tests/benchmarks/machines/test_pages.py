"""Pages that are made of simulations are those of the present plans."""

from __future__ import annotations

import json

import pytest

from benchmarks import RESULTS
from benchmarks.machines import scale, simulated
from l2l_nas.files import read_json


@pytest.mark.slow
def test_the_page_of_scale_is_that_of_the_program():
    assert scale.PAGE.read_text() == scale.page(), "run: python -m benchmarks scale"


def test_the_raw_file_of_simulated_steps_is_that_of_the_present_plans():
    kept = read_json(RESULTS / "simulated.json")["rows"]
    assert kept == json.loads(json.dumps(simulated.rows())), "run: python -m benchmarks simulated"
