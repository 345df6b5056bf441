"""Hardware profiles: what is in them, and what is refused."""

from __future__ import annotations

import json
from dataclasses import fields

import pytest

from l2l_nas.cost.hardware import Hardware
from l2l_nas.cost.profiles import PROFILES, find_hardware
from l2l_nas.errors import SettingError
from l2l_nas.relay.measure import Work


@pytest.mark.parametrize("name", PROFILES)
def test_a_profile_names_its_sources_and_survives_a_file(name, tmp_path):
    profile = find_hardware(name)
    assert profile.sources.keys() == {entry.name for entry in fields(Hardware)} - {"name", "lanes", "sources"}
    assert all(len(source) > 10 for source in profile.sources.values())
    assert 0 < profile.efficiency < 1
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(profile.to_json()))
    assert find_hardware(str(file)) == profile


def test_work_takes_its_products_its_traffic_or_its_launches():
    hardware = Hardware("x", {"fp32": 100.0}, 1, 10.0, 1.0, 1.0, 1, 1.0, 1.0, efficiency=0.5, kernel_s=1.0)
    assert hardware.seconds(Work(flops=100, bytes=20, kernels=1), "fp32") == 100 / 50 + 20 / 10
    assert hardware.seconds(Work(flops=1, bytes=1, kernels=7), "fp32") == 7
    assert hardware.seconds(Work(flops=100), "bf16") == 2  # no units for it


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "no hardware profile"),
        ('{"speed": 1}', "'speed' is no figure of one"),
        ('{"name": "x"}', "missing"),
        ('{"link_up": "fast"}', "link_up is 'fast', expected a finite number"),
        ('{"sources": {"disk": 3}}', "texts by figure"),
        ('{"link_up": NaN}', "link_up is nan"),
        ('{"link_up": 1' + "0" * 400 + "}", "link_up is 1000"),
        ('{"peak_flops": {"fp32": "x"}}', "peak_flops: fp32 is 'x'"),
        ('{"peak_flops": {}}', "numbers by precision, with fp32"),
    ],
)
def test_a_file_that_is_no_profile_is_refused(content, message, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(content)
    with pytest.raises(SettingError, match=message):
        find_hardware(str(file))


def test_sources_are_told_in_a_line(tmp_path):
    h100 = PROFILES["h100"]
    count = sum(source.startswith("assumed") for source in h100.sources.values())
    assert h100.origin.startswith(f"{len(h100.sources) - count} figures as published, {count} assumed")
    file = tmp_path / "before.json"
    file.write_text(json.dumps({**h100.to_json(), "sources": "a data sheet"}))
    assert find_hardware(str(file)).origin == "a data sheet"
    assert Hardware("x", {"fp32": 1.0}, 1, 1.0, 1.0, 1.0, 1, 1.0, 1.0).origin == "a profile of your own"


def test_rates_are_above_zero(tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({**PROFILES["h100"].to_json(), "link_up": 0}))
    with pytest.raises(SettingError, match="above 0"):
        find_hardware(str(file))


def test_an_unknown_name_is_answered_with_what_there_is():
    with pytest.raises(SettingError, match="did you mean 'h100'"):
        find_hardware("h10")
