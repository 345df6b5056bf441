from __future__ import annotations

import subprocess

import pytest

from benchmarks.paired import check_library, command_of


@pytest.mark.parametrize(("has_library", "code"), [(True, 0), (False, 1)])
def test_a_process_measures_the_library_of_its_folder_with_the_benchmarks_of_this_checkout(tmp_path, has_library, code):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text("raise ImportError('of the other checkout')\n")
    if has_library:
        (tmp_path / "l2l_nas").mkdir()
        (tmp_path / "l2l_nas" / "__init__.py").touch()
    done = subprocess.run(command_of(check_library), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert "of the other checkout" not in done.stderr
