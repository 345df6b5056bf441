"""What a run calls itself, whatever that is, cannot make a page do anything."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace

from l2l_nas.nas.earlier_task import LearnedFrom
from l2l_nas.nas.objectives import State, TrialRecord
from l2l_nas.report.html.view import render_page
from tests.report.examples import ACCURACY, LOSS
from tests.report.html.test_view import read
from tests.report.pages import HOSTILE, Reader, card_of_pool, hostile_card, random_trials, summary_of


def test_hostile_names_are_words_and_nothing_else() -> None:
    card = hostile_card()
    records = random_trials(card, 30)
    records += [TrialRecord(40, records[0].architecture, State.FAILED, reason=HOSTILE)]
    goals = (replace(ACCURACY, name="accuracy"), replace(LOSS, name=HOSTILE))
    records = [
        replace(r, values={"accuracy": r.values["accuracy"], HOSTILE: 1.0 + r.number}) if r.values else r
        for r in records
    ]
    plain = summary_of(
        random_trials_card := card_of_pool(),
        [replace(r, values={**r.values, "loss": 1.0 + r.number}) for r in random_trials(random_trials_card, 30)],
        goals=(ACCURACY, LOSS),
    )
    reader = read(summary_of(card, records, goals=goals, word=HOSTILE, done=HOSTILE, num_finalists=3))
    normal = read(plain)
    assert set(reader.tags) <= set(normal.tags)
    assert reader.tags.count("script") == 1
    assert reader.tags.count("style") == 1
    assert HOSTILE in reader.words
    page = render_page(summary_of(card, records, goals=goals, word=HOSTILE))
    assert "<script>alert" not in page
    assert page.count("</style>") == page.count("</script>") == 1


def test_hostile_names_of_earlier_tasks_are_words() -> None:
    def with_task(word: str) -> Reader:
        learned = LearnedFrom((word,), 3, (word,))
        summary = summary_of()
        return read(replace(summary, history=replace(summary.history, learned_from=learned)))

    reader, normal = with_task(HOSTILE), with_task("runs/a")
    assert reader.tags == normal.tags
    assert reader.text.count("alert(1)") == 2
    assert "The search learns from 3 networks of 1 earlier task: runs/a." in normal.text
    assert "The search knew" not in read(summary_of()).text


def test_what_no_page_may_hold_is_left_out() -> None:
    page = render_page(summary_of(word="a\x00b\x1b[31mc\ud800d"))
    assert "ab[31mc?d" in Reader(page).words
    assert page.encode()


def test_the_browser_is_told_to_run_the_page_s_own_script_alone() -> None:
    page = render_page(summary_of())
    policy = next(
        value for tag, name, value in Reader(page).attributes if (tag, name) == ("meta", "content") and "src" in value
    )
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy.startswith("default-src 'none'; ")
    assert policy.endswith(f"script-src 'sha256-{digest}'")
    assert page.index("Content-Security-Policy") < page.index("<style>") < page.index("<script>")
