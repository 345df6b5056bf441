"""What is read of a run, and of other files that name an architecture."""

from __future__ import annotations

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.runs.saved import read_choice


def test_a_folder_is_no_architecture_and_a_run_s_best_has_a_name_of_its_own(tmp_path):
    with pytest.raises(SettingError, match=f"run={tmp_path}"):
        read_choice("", str(tmp_path), trial=-1)
