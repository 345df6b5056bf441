"""What smaller networks promise is of models that it is known of."""

from __future__ import annotations

import pytest

from benchmarks.__main__ import main
from tests.pretrained.test_families import published


@pytest.mark.parametrize("name", ["mixtral", "gpt_neox"])
def test_a_model_of_other_blocks_is_refused(tmp_path, name, capsys):
    published(name).save_pretrained(tmp_path)
    assert main(["smaller_speed", "--model", f"hf:{tmp_path}", "--prompt", "8", "--tokens", "2"]) == 2
    assert "its blocks are not attention and one feed-forward network" in capsys.readouterr().err
