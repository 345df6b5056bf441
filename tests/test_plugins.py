"""What a user names by `FILE.py:NAME` is imported as Python would import it from its own folder."""

from __future__ import annotations

import sys

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.plugins import imported, optional


@pytest.fixture(autouse=True)
def path_as_it_was(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("l2l_nas_helper", "l2l_nas_late_helper"):
        sys.modules.pop(name, None)


def test_a_helper_beside_the_file_is_imported_when_the_function_is_called(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "l2l_nas_helper.py").write_text("WIDTH = 8\n")
    (folder / "l2l_nas_late_helper.py").write_text("DEPTH = 3\n")
    late = "def build():\n    import l2l_nas_late_helper\n    return WIDTH, l2l_nas_late_helper.DEPTH\n"
    (folder / "pool.py").write_text("from l2l_nas_helper import WIDTH\n" + late)
    monkeypatch.chdir(tmp_path)
    assert imported("mine/pool.py:build", setting="space.pool")() == (8, 3)


def test_a_file_beside_it_takes_no_other_module_s_place(tmp_path):
    """What is imported later, by anybody, is found where it was before."""
    (tmp_path / "colorsys.py").write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "pool.py").write_text("def build():\n    import colorsys\n    return colorsys\n")
    before = sys.modules.pop("colorsys", None)
    try:
        assert "colorsys" in imported(f"{tmp_path}/pool.py:build", setting="space.pool")().__spec__.origin
        assert str(tmp_path) not in sys.modules["colorsys"].__spec__.origin
        imported(f"{tmp_path}/pool.py:build", setting="space.pool")
        assert sys.path.count(str(tmp_path)) == 1
    finally:
        if before is not None:
            sys.modules["colorsys"] = before


def test_a_package_whose_import_fails_is_named_in_one_line(tmp_path):
    (tmp_path / "l2l_nas_helper.py").write_text("raise RuntimeError('made for another version\\nof something')\n")
    sys.path.insert(0, str(tmp_path))
    with pytest.raises(
        SettingError, match=r"this needs the package l2l_nas_helper, whose import fails \(.*made for"
    ) as e:
        optional("l2l_nas_helper", "this needs", extra="onnx")
    assert "\n" not in str(e.value)
    with pytest.raises(SettingError, match=r"the package l2l_nas_nowhere: pip install 'l2l-nas\[onnx\]'"):
        optional("l2l_nas_nowhere", "this needs", extra="onnx")
