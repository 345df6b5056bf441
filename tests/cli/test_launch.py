"""How commands are passed to Hydra, and what they print."""

from __future__ import annotations

import warnings

from l2l_nas import files
from l2l_nas.cli.launch import plain_warnings


def test_warnings_of_this_program_are_lines_and_those_of_others_are_as_they_were(capsys):
    with warnings.catch_warnings(), plain_warnings():
        warnings.simplefilter("always")
        warnings.warn_explicit("two folders\nare not used", UserWarning, files.__file__, 7)
        warnings.warn_explicit("of others", UserWarning, "other.py", 7)
    said = capsys.readouterr().err
    assert said.startswith("warning: two folders are not used\n")
    assert "other.py:7: UserWarning: of others" in said
