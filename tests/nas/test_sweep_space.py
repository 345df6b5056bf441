from __future__ import annotations

import optuna
import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.sweeps.sweep_space import Between, SettingChoice, values_of

SETTINGS = [
    (SettingChoice("a", ("y", "x", "y")), "choice(x,y)", 2, ["x", "y"]),
    (Between("a", 0.5, 2.0), "interval(0.5,2)", 0, []),
    (Between("a", 0.5, 2.0, is_log=True), "tag(log,interval(0.5,2))", 0, []),
    (Between("a", 2, 4, is_whole=True), "int(interval(2,4))", 3, [2, 3, 4]),
    (Between("a", 16, 64, is_whole=True, step=16), "range(16,80,16)", 4, [16, 32, 48, 64]),
    (Between("a", 0.1, 0.4, step=0.1), "range(0.1,0.5,0.1)", 4, [0.1, 0.2, 0.3, 0.4]),
]


@pytest.mark.parametrize(("setting", "text", "count", "values"), SETTINGS, ids=lambda value: str(value))
def test_a_setting_reads_as_the_command_line_writes_it_and_counts_its_values(setting, text, count, values):
    assert (str(setting), setting.count) == (text, count)
    assert values_of(setting.distribution()) == values


@pytest.mark.parametrize("setting", [row[0] for row in SETTINGS], ids=str)
def test_a_sampler_draws_what_the_setting_allows(setting):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = [study.ask({"a": setting.distribution()}).params["a"] for _ in range(50)]
    if isinstance(setting, SettingChoice):
        assert set(drawn) == {"x", "y"}
        return
    assert all(setting.low <= value <= setting.high for value in drawn)
    assert {type(value) for value in drawn} == {int if setting.is_whole else float}
    if setting.step:
        assert len({round(value, 9) for value in drawn}) == setting.count


def test_the_order_of_choices_makes_no_other_space():
    assert SettingChoice("a", ("x", "y")).distribution() == SettingChoice("a", ("y", "x")).distribution()


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: SettingChoice("a", ()), "a: nothing to choose from"),
        (lambda: Between("a", 2, 1), "the range from 2 to 1 is empty"),
        (lambda: Between("a", float("nan"), 1), "is empty"),
        (lambda: Between("a", 0, 1, is_log=True), "begins above 0"),
        (lambda: Between("a", 1, 2, is_log=True, step=0.5), "not with steps of 0.5"),
        (lambda: Between("a", 1, 9, is_log=True, is_whole=True, step=2), "not with steps of 2"),
        (lambda: Between("a", 1.5, 4, is_whole=True), "a takes whole numbers"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(build, says):
    with pytest.raises(SettingError, match=says):
        build()
