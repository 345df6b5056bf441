"""Architectures: data that is the same everywhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from l2l_nas import Architecture
from l2l_nas.errors import SpaceError

DIGEST = "9d43a6ffac2750ed"


def test_json_gives_back_the_same_architecture():
    architecture = Architecture(("conv3", "skip", "größe"))
    assert Architecture.from_json(architecture.to_json()) == architecture
    assert hash(Architecture.from_json(architecture.to_json())) == hash(architecture)


def test_the_digest_never_changes():
    assert Architecture(("a", "b", "skip")).digest == DIGEST


def test_the_digest_is_the_same_in_another_process():
    code = "from l2l_nas import Architecture; print(Architecture(('a', 'b', 'skip')).digest)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == DIGEST


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"choices": 3}', '{"choices": "ab"}', '{"choices": [1]}', "null"])
def test_anything_else_is_refused(text):
    with pytest.raises(SpaceError, match=r"architecture"):
        Architecture.from_json(text)
