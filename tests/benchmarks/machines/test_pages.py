"""Pages that are made of simulations are those of the present plans."""

from __future__ import annotations

import pytest

from benchmarks.machines import scale, simulated


@pytest.mark.slow
def test_the_page_of_scale_is_that_of_the_program():
    assert scale.PAGE.read_text() == scale.page(), "run: python -m benchmarks scale"


def test_the_table_of_simulated_ratios_is_that_of_the_present_plans():
    text = simulated.PAGE.read_text()
    found = text.partition(simulated.BEGIN)[2].partition(simulated.END)[0].strip()
    assert found == simulated.table(simulated.rows()), "run: python -m benchmarks simulated"
