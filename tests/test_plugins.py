"""What a user names is imported, called and checked."""

from __future__ import annotations

import sys

import pytest

from l2l_nas.errors import L2LError, SettingError
from l2l_nas.plugins import imported, made

TEXT = """
class One:
    def __init__(self, width={width}):
        self.width = width
"""


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path):
    found = []
    for width in (1, 2):
        folder = tmp_path / str(width)
        folder.mkdir()
        (folder / "mine.py").write_text(TEXT.format(width=width))
        found.append(imported(f"{folder}/mine.py:One", setting="space.pool"))
    assert [build().width for build in found] == [1, 2]
    for build in found:
        assert sys.modules[build.__module__].One is build  # as pickle finds it


def test_what_is_named_is_offered_the_arguments_that_it_takes_and_checked(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(TEXT.format(width=1) + "\ndef broken():\n    raise ValueError('no')\n")
    about = {"setting": "sampler", "kind": "a One", "is_right": lambda one: hasattr(one, "width")}
    assert made(f"{path}:One", offered={"width": 5, "seed": 3}, **about).width == 5
    with pytest.raises(SettingError, match=r"sampler: .*mine\.py:One gave One; expected a Two"):
        made(f"{path}:One", offered={}, **{**about, "kind": "a Two", "is_right": lambda one: False})
    with pytest.raises(L2LError, match=r"sampler: .*mine\.py:broken raised ValueError: no"):
        made(f"{path}:broken", offered={}, **about)
    given = {"name": f"{path}:One", "width": 7}
    assert made(given, offered={"width": 5}, **about).width == 7
    with pytest.raises(SettingError, match=r"sampler=.*mine\.py:One takes no 'widht'; did you mean 'width'\?"):
        made({**given, "widht": 7}, offered={}, **about)
