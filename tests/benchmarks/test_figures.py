"""Figures of README and docs are those of the raw results."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from benchmarks.pages import figures


def test_pages_tell_the_figures_of_the_raw_results(capsys):
    assert main(["figures"]) == 0, capsys.readouterr().out


def test_every_block_stands_on_a_page():
    named = [name for path in figures.pages() for name, _ in figures.blocks(path.read_text())]
    assert set(figures.BLOCKS) == set(named)


@pytest.fixture
def copied(tmp_path, monkeypatch):
    page = tmp_path / "README.md"
    page.write_text((figures.ROOT / "README.md").read_text())
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    return page


def test_another_figure_on_a_page_is_shown_and_fails(copied, capsys):
    text = copied.read_text()
    copied.write_text(text.replace("+2.1 (0.9 to 3.3)", "+2.9 (1.9 to 3.3)"))
    assert copied.read_text() != text
    assert main(["figures"]) == 1
    assert "+2.9 (1.9 to 3.3)" in capsys.readouterr().out
    assert main(["figures", "--write"]) == 0
    assert copied.read_text() == text


def test_a_block_of_no_known_name_is_refused(copied, refused):
    copied.write_text("<!-- figures: mesured -->\n<!-- figures: end -->\n")
    assert "did you mean 'measured'?" in refused("figures")
