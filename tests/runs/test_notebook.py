"""What a notebook shows of a search's result."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import l2l_nas
from l2l_nas.report.html.notebook import render_result
from l2l_nas.space.architecture import format_choices
from l2l_nas.testing.problems import searched
from tests.report.examples import ACCURACY, LOSS
from tests.report.pages import HOSTILE, hostile_card, random_trials, summary_of


class Read(HTMLParser):
    """Tags, links, and the rows of the table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.rows = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name == "href"]
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, text):
        if self.tags[-1] in ("td", "th") and text.strip():
            self.rows[-1][-1] += text


def test_the_table_has_the_networks_that_were_trained_best_first_with_errors_and_costs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = searched(Path("a #1 run"), finalists=3)
    read = Read(result._repr_html_())
    head, *rows = read.rows
    assert len(rows) == len(result.finalists) == 3
    assert rows[0][0] == f"★\xa0{result.best.trial}"
    row = dict(zip(head, rows[0], strict=True))
    for part in ("validation", "test"):
        assert row[f"accuracy, {part}"] == result.best.scored(part, "accuracy")
        assert "±" in row[f"accuracy, {part}"]
    assert row["architecture"] == format_choices(result.best.architecture, is_whole=True)
    assert row["parameters"] == f"{result.best.costs['parameters']:,.0f}"
    assert read.links == ["a%20%231%20run/report.html"]
    assert repr(result) == "SearchResult(folder=PosixPath('a #1 run'))"


def test_names_are_escaped_and_no_script_is_in_it():
    card, goals = hostile_card(), (replace(ACCURACY, name="accuracy"), replace(LOSS, name=HOSTILE))
    records = [replace(r, values={**r.values, HOSTILE: 1.0}) if r.values else r for r in random_trials(card, 30)]
    text = render_result(summary_of(card, records, goals=goals, num_finalists=3).results, page=f'"{HOSTILE}')
    read = Read(text)
    assert {*read.tags} == {"div", "p", "table", "thead", "tbody", "tr", "th", "td", "a"}
    assert any(HOSTILE in cell for row in read.rows for cell in row)


def test_of_a_search_without_finalists_it_has_the_best_trial(tmp_path):
    result = searched(tmp_path / "run", finalists=0)
    text = result._repr_html_()
    assert f"of trial {result.best.trial}: " in text
    assert "table" not in Read(text).tags
    assert format_choices(result.best.architecture, is_whole=True) in text


def test_of_a_search_that_has_not_finished_it_says_how_to_go_on(tmp_path):
    class Never(l2l_nas.Callback):
        def phase(self, name, *, total, done):
            raise l2l_nas.Stopped

    result = searched(tmp_path / "<b>", callbacks=[Never()])
    text = result._repr_html_()
    assert "go on with: " in text
    assert Read(text).tags == ["p"]
