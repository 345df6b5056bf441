"""Help comes at once, fits a terminal, and names every setting."""

from __future__ import annotations

import shutil
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


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], *([name, "--help"] for name in COMMANDS)], ids=" ".join)
def test_help_fits_80_columns_and_40_lines(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_s_help_names_every_setting_its_default_and_its_meaning(command, capsys):
    main([command, "--help"])
    text = capsys.readouterr().out
    groups = GROUPS.get(command, ())
    assert all(any(line.startswith(f"  {group} ") for line in text.splitlines()) for group in groups)
    # sections that had no space, and groups: the help of each fits as well
    without_room = [line.split(": ")[-1].split() for line in text.splitlines() if ".NAME " in line]
    for words in [*without_room, *([command, "--help", group] for group in groups)]:
        assert main(words) == 0
        more = capsys.readouterr().out
        assert len(more.splitlines()) <= 40
        assert max(map(len, more.splitlines())) <= 80
        text += more
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


@pytest.mark.parametrize(
    "words", [["search", "--help", "nonsense"], ["search", "relay", "--help", "sirch"]], ids=" ".join
)
def test_help_on_a_section_that_there_is_not_is_one_line(refused, words):
    line = refused(*words)
    assert line.startswith(f"error: search has no section '{words[-1]}'; ")


def test_help_at_the_end_of_a_command_is_help(capsys):
    assert main(["search", "search.trials=3", "-m", "--help"]) == 0
    assert "usage: python -m l2l_nas search" in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["ex"], {"export"}),
        (["search", "search.tri"], {"search.trials=", "search.trial_weights="}),
        (["search", "resume", "=", "runs/a"], set()),
        (["search", "samp"], {"sampler="}),
        (["search", "sampler", "=", "gp"], {"gp_hamming"}),
        (["search", "experiment", "="], {"quick", "smaller"}),
        (["evaluate", "space"], {"space.pool="}),
        (["search", "-m", "hydra/l"], {"hydra/launcher="}),
        (["nonsense", "x"], set()),
    ],
)
def test_bash_completes_commands_and_settings(tmp_path, line, offered):
    words = " ".join(f'"{word}"' for word in ["l2l-nas", *line])
    script = (
        f'l2l-nas() {{ "{sys.executable}" -m l2l_nas "$@"; }}\n'
        f'eval "$(l2l-nas --completion)"\nCOMP_WORDS=({words})\nCOMP_CWORD={len(line)}\n'
        '_l2l_nas\nprintf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == offered, done.stderr
    assert not done.stderr


def test_hydra_s_own_completion_is_refused_with_ours(refused):
    assert 'eval "$(l2l-nas --completion)"' in refused("search", "-sc", "install=bash")
