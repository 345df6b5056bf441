"""Help comes at once, and names every setting."""

from __future__ import annotations

import subprocess
import sys

import pytest

from l2l_nas import __version__
from l2l_nas.__main__ import main
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import GROUPS, arguments, choices
from l2l_nas.runs.settings import COMMANDS
from tests.cli.runs import ROOT, environment


@pytest.mark.parametrize("words", [["--help"], ["search", "--help"], ["--version"], ["serach"]], ids=" ".join)
def test_help_and_typing_errors_in_the_command_import_nothing_heavy(words):
    code = (
        "import sys; from l2l_nas.__main__ import main; main(sys.argv[1:]);"
        "print([n for n in ('torch', 'hydra', 'optuna', 'numpy', 'rich', 'yaml') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *words], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_s_help_names_every_setting_its_default_and_its_meaning(command, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    groups = GROUPS.get(command, ())
    assert all(any(line.startswith(f"  {group} ") for line in text.splitlines()) for group in groups)
    sections = [line.split()[-1] for line in text.splitlines() if ".NAME " in line]
    for section in [*sections, *groups]:
        assert main([command, "--help", section]) == 0
        text += capsys.readouterr().out
    for group in groups:
        assert all(name in text for name in choices(group))
        for name in CHOICES.get(group, ()):
            assert all(f"    {group}.{one}=" in text for one in arguments(group, name))
    for name, _, meaning in settings(COMMANDS[command]):
        lines = [line for line in text.splitlines() if line.strip().startswith(f"{name}=")]
        assert any(line.endswith(meaning) for line in lines)
        assert len(meaning) > 5
    assert (COMMANDS[command].__doc__ or "?") in text


def test_version_and_overview(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"l2l_nas {__version__}\n"
    main(["help"])
    overview = capsys.readouterr().out
    assert all(f"  {name} " in overview for name in COMMANDS)


def test_hydra_s_own_flags_work_anywhere_on_the_line(capsys):
    assert main(["search", "search.trials=7", "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    assert "trials: 7" in shown
    assert "pool: image_blocks" in shown


def test_help_at_the_end_of_a_command_is_help(capsys):
    assert main(["search", "search.trials=3", "-m", "--help"]) == 0
    assert "usage: python -m l2l_nas search" in capsys.readouterr().out
