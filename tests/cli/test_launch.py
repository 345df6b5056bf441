"""How commands are passed to Hydra, and what they print."""

from __future__ import annotations

import warnings

import pytest

from l2l_nas import files
from l2l_nas.__main__ import main
from l2l_nas.cli.launch import plain_warnings
from l2l_nas.cli.words import is_sweep, read_words


def test_warnings_of_this_program_are_lines_and_those_of_others_are_as_they_were():
    others = warnings.formatwarning("of others", UserWarning, "other.py", 7)
    with plain_warnings():
        assert warnings.formatwarning("of\nours", UserWarning, files.__file__, 7) == "warning: of ours\n"
        assert warnings.formatwarning("of others", UserWarning, "other.py", 7) == others
    assert warnings.formatwarning("of others", UserWarning, files.__file__, 7) != "warning: of others\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False), (["seed=1"], False), (["-m", "seed=1"], True), (["seed=1,2", "hydra.mode=MULTIRUN"], True),
        (["+hydra.mode=MULTIRUN"], True),
    ],
)  # fmt: skip
def test_words_ask_for_a_sweep_by_a_flag_or_by_hydras_mode(words, expected):
    assert is_sweep(read_words(words)) == expected


def test_what_hydra_ends_the_program_for_is_bad_input(capsys):
    assert main(["search", "--cfg", "job", "--package", "nothing"]) == 2
