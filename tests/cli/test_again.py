"""Settings of a run's page, and the command that goes on, whatever a setting or a folder is called."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from l2l_nas.__main__ import main
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.page import changed_settings, gather
from tests.cli.runs import TINY
from tests.studies import add_event

AWKWARD = [
    "a b",
    "",
    "true",
    "Null",
    "1e3",
    "a'b",
    'a"b',
    "a\\",
    'a\\"b\\\\',
    "[a,b]",
    "a=b,c",
    "ü",
    "$(x)",
    "~/x",
]


def config_of(run: Path) -> dict:
    return yaml.safe_load((run / "config.yaml").read_text())


@pytest.mark.parametrize(
    "value",
    [
        *AWKWARD,
        AWKWARD,
        {"a b": ["x", 1.5, None, True]},
        "my.py:build",
        -3,
        0.5,
        True,
        None,
        [],
        {},
    ],
    ids=repr,
)
def test_a_value_is_spelled_so_that_hydra_reads_it_back(value) -> None:
    override = OverridesParser.create().parse_override(f"key={spell(value)}")
    assert override.value() == value
    assert type(override.value()) is type(value)


def test_an_interpolation_is_no_interpolation_when_it_is_spelled() -> None:
    from omegaconf import OmegaConf

    text = OverridesParser.create().parse_override(f"key={spell('${oc.env:HOME} $x')}").value()
    assert OmegaConf.create({"key": text}).key == "${oc.env:HOME} $x"


@pytest.mark.slow
def test_what_differs_from_the_defaults_is_told_with_its_meaning(finished) -> None:
    found = {setting.name: setting for setting in changed_settings(config_of(finished))}
    given = {word.split("=")[0] for word in TINY} | {"space.pool"}
    held = {"relay.budget", "relay.keep", "relay.slots"}  # decided when the run began
    assert given <= found.keys() <= given | held
    assert (found["search.trials"].value, found["search.trials"].default) == ("12", "")
    assert found["search.trials"].meaning == "architectures to evaluate (decided by space and data, or given)"
    config = config_of(finished)
    config["space"]["args"] = {"width": 4}
    assert ("space.args.width", "4") in {(s.name, s.value) for s in changed_settings(config)}


def test_a_run_of_a_version_with_fewer_settings_is_still_described(finished) -> None:
    config = config_of(finished)
    del config["search"]["failures"], config["data"]["validation_fraction"]
    config["space"]["args"] = {"width": 4}
    found = {setting.name: setting.meaning for setting in changed_settings(config)}
    assert found.keys() >= {"search.trials", "space.pool"}
    assert "tiny.py:build" in found["space.args.width"]


@pytest.mark.slow
def test_the_page_s_command_goes_on_with_a_run_in_a_folder_with_an_awkward_name(finished) -> None:
    run = Path("it's a run, [no] $x")
    shutil.move(finished, run)
    command = shlex.split(gather(run, is_running=False).resume)
    assert command[-2:] == ["space.pool=tiny.py:build", "search.trials=24"]
    assert main(command[3:]) == 0
    assert json.loads((run / "result.json").read_text())["trials"]["complete"] == 24
    add_event(run, "start")  # and was killed: it goes on to the trials asked for
    assert shlex.split(gather(run, is_running=False).resume) == command[:-1]
