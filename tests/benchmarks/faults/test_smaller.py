"""Two runs that found the same are told from two that did not."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from benchmarks.faults.smaller import WHOLE, check
from l2l_nas.files import write_json


def run(folder, *, weight=1.0, score=0.5, seconds=1.0):
    (folder / "best").mkdir(parents=True)
    write_json(folder / "result.json", {"best": {"values": {"loss": score}}, "trials": [1], "seconds": seconds})
    save_file({"weight": torch.full((2,), weight)}, folder / "best" / "layer.safetensors")
    return folder


def test_what_a_run_found_is_compared_bit_for_bit_and_how_long_it_took_is_not(tmp_path):
    run(tmp_path / WHOLE)
    assert check(run(tmp_path / "same", seconds=2.0)) == ""
    assert "best/layer.safetensors" in check(run(tmp_path / "weights", weight=1.0 + 2**-23))
    assert check(run(tmp_path / "scores", score=0.5 + 2**-53)).endswith(" in best")
    less = run(tmp_path / "less")
    (less / "best" / "layer.safetensors").unlink()
    assert "best/layer.safetensors" in check(less)
