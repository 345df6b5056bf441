"""Constraints say why."""

from __future__ import annotations

from l2l_nas import Architecture, Require
from l2l_nas.space.constraint import first_violation

SHORT = Require("at most one layer", lambda architecture: len(architecture.choices) <= 1)
NO_B = Require("no b", lambda architecture: "b" not in architecture.choices)


def test_the_first_violation_is_told_in_words():
    assert first_violation(Architecture(("a", "b")), [SHORT, NO_B]) == "requires at most one layer"
    assert first_violation(Architecture(("b",)), [SHORT, NO_B]) == "requires no b"


def test_what_is_allowed_has_no_violation():
    assert first_violation(Architecture(("a",)), [SHORT, NO_B]) is None
