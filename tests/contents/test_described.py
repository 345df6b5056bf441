"""Objects as texts that are the same in every process, and not those of other objects."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Classification, Clip
from l2l_nas.contents.described import described, digest_of

ROOT = Path(__file__).parents[2]


@dataclass
class Settings:
    rate: float = 0.1
    names: list[str] = field(default_factory=lambda: ["a"])


class Own:
    scale = 2.0

    def __init__(self, count=1, **more):
        self.count, self._kept = count, more

    @functools.cached_property
    def computed(self):
        return 3

    def value(self, x):
        return x * self.scale


def closing_over(number):
    return lambda x: x + number


def circle():
    own = Own()
    own.itself = own
    return own


VALUES = [
    lambda: 1, lambda: 1.0, lambda: "1", lambda: True, lambda: None, lambda: (1, 2), lambda: [1, 2], lambda: {1, 2},
    lambda: {"a": 1}, lambda: {"a": 2}, lambda: Settings(), lambda: Settings(0.2), lambda: Settings(names=["b"]), Own,
    lambda: Own(2), lambda: Own(kept=1), lambda: Own, circle, lambda: closing_over(1), lambda: closing_over(2),
    lambda: lambda x: x - 1, lambda: lambda x, y=1: x - 1, lambda: functools.partial(Own, 1),
    lambda: functools.partial(Own, 2), lambda: Own().value, lambda: Own(2).value, lambda: torch.float32,
    lambda: torch.zeros(2), lambda: torch.ones(2), lambda: torch.zeros(2, 1), lambda: torch.zeros(2, dtype=torch.int64),
    lambda: np.zeros(2), lambda: np.ones(2), lambda: nn.ReLU(), lambda: nn.Tanh(), lambda: nn.Dropout(0.1),
    lambda: nn.Dropout(0.2), lambda: nn.CrossEntropyLoss(), lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])),
    lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 3.0])), lambda: AdamW(), lambda: AdamW(betas=(0.5, 0.9)),
    lambda: Clip(1.0), lambda: Clip(1.0, "layer"), lambda: Classification(), lambda: range(3), lambda: Path,
]  # fmt: skip


def test_each_value_is_told_alike_twice_and_unlike_all_others():
    texts = [described(make()) for make in VALUES]
    assert texts == [described(make()) for make in VALUES]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Path("/a"), Path("/b")),  # a rank has places of its own
        (torch.device("cuda", 0), torch.device("cuda", 1)),
        (torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)),
        (object(), object()),
    ],
)
def test_what_each_process_has_of_its_own_is_told_by_its_class(one, other):
    assert described(one) == described(other)
    assert described(one) in (f"{type(one).__module__}.{type(one).__qualname__}", "cuda", "builtins.object()")


def test_what_was_computed_meanwhile_or_is_a_mode_is_left_out():
    one, module = Own(), nn.Dropout()
    before = described(one), described(module)
    assert one.computed == 3
    module.eval()
    assert (described(one), described(module)) == before


def test_a_method_of_another_body_is_another_class():
    other = type("Own", (), {**vars(Own), "value": lambda self, x: x * self.scale + 1})
    same = type("Own", (), dict(vars(Own)))
    for kind in (other, same):
        kind.__qualname__, kind.__module__ = Own.__qualname__, Own.__module__
    assert described(same) == described(Own)
    assert described(other) != described(Own)


def test_numbers_of_modules_are_told_only_where_they_are_wanted():
    one, other = (nn.Linear(2, 2) for _ in range(2))
    assert described(one) != described(other)
    assert described(one, has_values=False) == described(other, has_values=False) != described(nn.Linear(2, 3))


def test_whether_equal_values_are_one_object_is_no_difference():
    one = (1, 2)
    assert described([one, one]) == described([one, (1, int("2"))])
    assert described([Own, {Own(1).value, closing_over(2)}]) == described([Own, {closing_over(2), Own(1).value}])


def test_dates_are_told_by_their_values():
    days = np.array(["2026-11-29", "2026-11-30"], dtype="datetime64[D]")
    assert described(days) == described(days.copy()) != described(days[::-1])


def test_what_lies_too_deep_is_told_by_its_class():
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    assert described(nested).endswith("builtins.list" + "]" * 32)


@pytest.mark.parametrize("name", ["rate", "names"])
def test_each_field_counts(name):
    assert digest_of(replace(Settings(), **{name: "other"})) != digest_of(Settings())


def test_it_is_the_same_in_another_process():
    code = "from tests.contents.test_described import VALUES, digest_of; print([digest_of(make()) for make in VALUES])"
    seeds = [os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)} for seed in "12"]
    said = {subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env, text=True) for env in seeds}
    assert len(said) == 1
