from __future__ import annotations

import json
import math

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.nas.earlier_task import EarlierTask, NetworkScore

PARAMS = {"block_1": "conv3", "block_2": "skip"}
TASK = EarlierTask(
    "digits", "0f1e", 10, (NetworkScore(PARAMS, 1, {"accuracy": 0.5, "loss": 1.5}), NetworkScore(PARAMS, 10, {}))
)


def test_a_task_is_the_same_after_it_was_written_as_json():
    assert EarlierTask.from_json(json.loads(json.dumps(TASK.to_json())), "a file") == TASK


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ((), [], "holds"),
        (("name",), 3, "name"),
        (("data",), None, "data"),
        (("whole_steps",), 0, "whole_steps"),
        (("whole_steps",), 9, "whole_steps"),  # fewer than a score's
        (("scores",), None, "scores"),
        (("scores",), "all", "scores"),
        (("scores", 1), None, "score 2"),
        (("scores", 1, "params"), ["conv3"], "params"),
        (("scores", 1, "params"), {"block_1": 3}, "params"),
        (("scores", 1, "steps"), 0, "steps"),
        (("scores", 1, "steps"), 1.5, "steps"),
        (("scores", 1, "steps"), "all", "steps"),
        (("scores", 1, "values"), {"accuracy": math.inf}, "values"),
        (("scores", 1, "values"), {"accuracy": math.nan}, "values"),
        (("scores", 1, "values"), {"accuracy": 10**400}, "values"),  # no floating-point number
        (("scores", 1, "values"), {"accuracy": -1e200}, "values"),  # its square is none
        (("scores", 1, "values"), {"accuracy": True}, "values"),
        (("scores", 1, "values"), {"accuracy": None}, "values"),
    ],
    ids=str,
)
def test_damaged_content_is_refused_and_named(path, value, named):
    content = {"root": TASK.to_json()}
    place = content
    for step in ("root", *path)[:-1]:
        place = place[step]
    place[("root", *path)[-1]] = value
    with pytest.raises(StorageError, match=f"^a file: .*{named}"):
        EarlierTask.from_json(content["root"], "a file")
