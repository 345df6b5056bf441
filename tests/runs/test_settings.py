from __future__ import annotations

import dataclasses

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import check_value, declared, fitting
from l2l_nas.runs.folder_settings import own_settings
from l2l_nas.runs.groups import completed
from l2l_nas.runs.settings import COMMANDS, RetrainConf, SearchConf


@pytest.mark.parametrize("schema", [SearchConf, RetrainConf])
def test_every_setting_says_what_happens_to_another_value_when_a_run_goes_on(schema):
    """A section may answer for all of its settings only by refusing: what may change is said of each one by itself."""
    for entry in dataclasses.fields(schema):
        if entry.name in ("explicit", "objects"):  # no settings
            continue
        is_section = dataclasses.is_dataclass(entry.default_factory)
        if is_section and entry.metadata["resume"].stays:
            continue
        for one in dataclasses.fields(entry.default_factory) if is_section else (entry,):
            assert one.metadata.get("resume") is not None, f"{entry.name}.{one.name} declares no rule: FREE, stays(...)"


_SCHEMAS = [*COMMANDS.values(), *(schema for known in CHOICES.values() for schema in known.values())]
_LISTS = {one.name: one for schema in _SCHEMAS for one in declared(schema) if isinstance(one.default, list)}


@pytest.mark.parametrize("name", sorted(_LISTS))
@pytest.mark.parametrize("item", [None, [], {}, True, float("nan"), "a\0b", 10**400], ids=lambda item: str(item)[:9])
def test_an_item_of_a_list_that_is_none_is_refused_by_its_place(name, item):
    right = {float: 0.5, int: 5, str: "x"}[_LISTS[name].kind.__args__[0]]
    with pytest.raises(SettingError, match=rf"^{name}\[1\] "):
        check_value(_LISTS[name], fitting(_LISTS[name], [right, item]))
    assert fitting(_LISTS[name], [right]) == [right]


@pytest.mark.parametrize("group", CHOICES)
@pytest.mark.parametrize("name", [{}, [], ["adamw"], 3, None], ids=str)
def test_a_choice_whose_name_is_no_text_is_refused(group, name):
    """As a config file of one's own may say it; what has to be named again is asked before."""
    conf = dataclasses.replace(SearchConf(), **{group: {"name": name}})
    own_settings(conf)
    with pytest.raises(SettingError, match=f"no {group} "):
        completed(conf)
