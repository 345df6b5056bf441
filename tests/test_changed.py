"""Continuous integration runs the slow proofs of what changed."""

from __future__ import annotations

from tests.changed import changed_since, due, last_release


def test_a_room_that_changed_has_its_slow_proofs_run():
    assert due(["l2l_nas/report/charts/front.py"]) == ["tests/report"]
    assert due(["tests/text/networks.py", "benchmarks/timing.py"]) == ["tests/benchmarks", "tests/text"]
    assert due(["tests/text/test_tokenizer.py"]) == ["tests/text/test_tokenizer.py"]
    assert due([]) == []


def test_a_change_of_the_engine_has_all_equivalences_proved():
    assert due(["l2l_nas/relay/planner.py"]) == ["tests/accelerator", "tests/equivalence", "tests/relay"]


def test_settings_are_proved_by_the_command_line_and_documents_by_the_tests_that_read_them():
    assert "tests/cli" in due(["conf/search.yaml"])
    assert {"tests/test_readme.py", "tests/test_packaging.py"} <= set(due(["README.md"]))


def test_where_the_last_release_is_not_known_everything_is_due():
    assert last_release()
    rooms = due(changed_since("no such commit"))
    assert {"tests/relay", "tests/nas", "tests/equivalence", "tests/test_packaging.py"} <= set(rooms)
