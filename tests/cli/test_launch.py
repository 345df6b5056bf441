"""How commands are passed to Hydra, and what they print."""

from __future__ import annotations

import warnings

from l2l_nas import files
from l2l_nas.cli.launch import plain_warnings


def test_warnings_of_this_program_are_lines_and_those_of_others_are_as_they_were():
    others = warnings.formatwarning("of others", UserWarning, "other.py", 7)
    with plain_warnings():
        assert warnings.formatwarning("of\nours", UserWarning, files.__file__, 7) == "warning: of ours\n"
        assert warnings.formatwarning("of others", UserWarning, "other.py", 7) == others
    assert warnings.formatwarning("of others", UserWarning, files.__file__, 7) != "warning: of others\n"
