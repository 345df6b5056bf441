from __future__ import annotations

import dataclasses

import pytest

from l2l_nas.runs.settings import RetrainConf, SearchConf


@pytest.mark.parametrize("schema", [SearchConf, RetrainConf])
def test_every_setting_says_what_happens_to_another_value_when_a_run_goes_on(schema):
    """A section may answer for all of its settings only by refusing: what may change is said of each one by itself."""
    for entry in dataclasses.fields(schema):
        is_section = dataclasses.is_dataclass(entry.default_factory)
        if is_section and entry.metadata["resume"].stays:
            continue
        for one in dataclasses.fields(entry.default_factory) if is_section else (entry,):
            assert one.metadata.get("resume") is not None, f"{entry.name}.{one.name} declares no rule: FREE, stays(...)"
