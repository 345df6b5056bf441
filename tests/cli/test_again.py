"""The commands on a run's page do what they say, whatever a setting or a folder is called."""

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
from l2l_nas.runs.folder_settings import read_settings
from l2l_nas.runs.next_commands import changed_settings, next_commands
from tests.cli.runs import TINY
from tests.studies import saved_study

AWKWARD = [
    "a b",
    "",
    "true",
    "Null",
    "1e3",
    "5",
    "a'b",
    'a"b',
    "a\\",
    'a\\"b\\\\',
    "{a}",
    "[a,b]",
    "a=b,c",
    "ü",
    "$(x)",
    "~/x",
]


def config_of(run: Path) -> dict:
    return yaml.safe_load((run / "config.yaml").read_text())


def commands_of(run: Path, **changes) -> dict[str, list[str]]:
    said = {"is_finished": True, "has_result": True, **changes}
    found = next_commands(run, read_settings(run / "config.yaml"), **said)
    return {command.purpose: shlex.split(command.line) for command in found}


@pytest.mark.parametrize(
    "value",
    [
        *AWKWARD,
        AWKWARD,
        {"a b": ["x", 1.5, None, True]},
        "runs/a-1_b.c",
        "my.py:build",
        1e-8,
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


@pytest.mark.slow
def test_the_command_to_go_on_names_the_folder_the_total_and_a_pool_of_ones_own(finished) -> None:
    own = ["resume=" + str(finished), "space.pool=tiny.py:build"]
    search = ["python", "-m", "l2l_nas", "search"]
    assert commands_of(finished)["Go on, to twice as many trials"] == [*search, *own, "search.trials=24"]
    assert commands_of(finished, is_finished=False)["Go on, to the trials asked for"] == [*search, *own]


def test_a_run_of_a_version_with_fewer_settings_is_still_described(finished) -> None:
    config = config_of(finished)
    del config["search"]["catch_up_fraction"], config["data"]["validation_fraction"]
    config["space"]["args"] = {"width": 4}
    found = {setting.name: setting.meaning for setting in changed_settings(config)}
    assert found.keys() >= {"search.trials", "space.pool"}
    assert "tiny.py:build" in found["space.args.width"]


@pytest.mark.slow
def test_the_commands_work_as_they_stand_in_a_folder_with_an_awkward_name(finished, capsys) -> None:
    run = Path("it's a run, [no] $x")
    shutil.move(finished, run)
    commands = commands_of(run)
    assert main(commands["Go on, to twice as many trials"][3:]) == 0
    assert json.loads((run / "result.json").read_text())["trials"]["complete"] == 24
    assert main(commands["Score the best network again"][3:]) == 0
    assert "as reported" in capsys.readouterr().out
    assert main([*commands["Train the best architecture by itself"][3:], "train.steps=3", "folder=trained"]) == 0
    assert main(commands["Export the best network as plain PyTorch"][3:]) == 0
    assert Path("network/model.pt2").exists()
    (run / "report.html").unlink()
    assert main(commands["Make this page again"][3:]) == 0
    assert (run / "report.html").exists()
    assert commands["Look at all trials in optuna-dashboard"] == ["optuna-dashboard", str(run / "study.log")]
    assert len(saved_study(run).trials) >= 24


def test_without_a_result_there_is_nothing_to_export_or_to_train(finished) -> None:
    assert list(commands_of(finished, is_finished=False, has_result=False)) == [
        "Go on, to the trials asked for",
        "Look at all trials in optuna-dashboard",
        "Make this page again",
    ]


def test_training_and_scoring_name_the_run_and_the_pool_alike(finished) -> None:
    found = commands_of(finished)
    named = [f"run={finished}", "space.pool=tiny.py:build"]
    assert found["Train the best architecture by itself"] == ["python", "-m", "l2l_nas", "train", *named]
    assert found["Score the best network again"] == ["python", "-m", "l2l_nas", "evaluate", *named]
