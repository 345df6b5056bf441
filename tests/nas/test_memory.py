from __future__ import annotations

import json
import math

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.nas.memory import EarlierTask, Memory, Remembered

PARAMS = {"block_1": "conv3", "block_2": "skip"}
MEMORY = Memory(
    (
        EarlierTask(
            "digits", "0f1e", (Remembered(PARAMS, 0.1, {"accuracy": 0.5, "loss": 1.5}), Remembered(PARAMS, 1.0, {}))
        ),
        EarlierTask("nothing yet", "2d3c", ()),
    )
)


def test_a_memory_is_the_same_after_it_was_written_as_json():
    assert Memory.from_json(json.loads(json.dumps(MEMORY.to_json()))) == MEMORY


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ((), [], "holds"),
        (("tasks",), None, "tasks"),
        (("tasks",), {"a": 1}, "tasks"),
        (("tasks", 1), "digits", "task 2"),
        (("tasks", 0, "name"), 3, "name"),
        (("tasks", 0, "data"), None, "data"),
        (("tasks", 0, "networks"), "all", "networks"),
        (("tasks", 0, "networks", 1), None, "task 1: network 2"),
        (("tasks", 0, "networks", 1, "params"), ["conv3"], "params"),
        (("tasks", 0, "networks", 1, "params"), {"block_1": 3}, "params"),
        (("tasks", 0, "networks", 1, "share"), 0, "share"),
        (("tasks", 0, "networks", 1, "share"), 1.01, "share"),
        (("tasks", 0, "networks", 1, "share"), math.nan, "share"),
        (("tasks", 0, "networks", 1, "share"), "all", "share"),
        (("tasks", 0, "networks", 1, "values"), {"accuracy": math.inf}, "values"),
        (("tasks", 0, "networks", 1, "values"), {"accuracy": math.nan}, "values"),
        (("tasks", 0, "networks", 1, "values"), {"accuracy": 10**400}, "values"),  # no floating-point number
        (("tasks", 0, "networks", 1, "values"), {"accuracy": -1e200}, "values"),  # its square is none
        (("tasks", 0, "networks", 1, "values"), {"accuracy": True}, "values"),
        (("tasks", 0, "networks", 1, "values"), {"accuracy": None}, "values"),
    ],
    ids=str,
)
def test_damaged_content_is_refused_and_named(path, value, named):
    content = {"root": MEMORY.to_json()}
    place = content
    for step in ("root", *path)[:-1]:
        place = place[step]
    place[("root", *path)[-1]] = value
    with pytest.raises(StorageError, match=f"^a file: .*{named}") as error:
        Memory.from_json(content["root"], "a file")
    assert "search without memory" in str(error.value)
