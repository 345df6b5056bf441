"""The card beside an exported model tells what was replaced, on what text, sizes, figures, and the licence."""

from __future__ import annotations

import pytest
from safetensors import safe_open

from l2l_nas.compress.model_card import _figures
from tests.compress.test_found import exported

ITS_OWN = "Licence: `apache-2.0`, that of the original."
MIXED = ["original", "original", "key_value_1", "skip", "skip", "width_24"]


def card(tmp_path, name, choices, **files):
    (tmp_path / "model").mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (tmp_path / "model" / file.replace("__", ".")).write_text(text)
    export, _ = exported(tmp_path / "model", name, choices, tmp_path / "out", ["hugging_face"])
    assert not export.refused
    return (tmp_path / "out" / "README.md").read_text()


def test_each_layer_that_is_another_is_told_with_its_parameters(tmp_path):
    text = card(tmp_path, "llama, tied", MIXED)
    assert "4 of 9 layers were replaced or left out." in text
    for row in (
        "attention_1 | key_value_1 | 3,104 | 2,592",
        "feedforward_1 | left out | 4,640 | 0",
        "attention_2 | left out | 3,104 | 0",
        "feedforward_2 | width_24 | 4,640 | 2,336",
    ):
        assert f"| {row} |" in text
    assert "feedforward_0" not in text.partition("Load it by")[0]
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        count = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert f"| all |  | {61 * 32 + 3 * (3104 + 4640) + 32:,} | {count:,} |" in text
    assert "0 of 9 layers were replaced" in card(tmp_path / "whole", "llama", ["original"] * 6)


def test_how_to_load_it_depends_on_whether_it_has_its_own_code(tmp_path):
    coded = card(tmp_path, "llama", MIXED)
    assert "trust_remote_code=True" in coded
    assert "It comes with its own code: its layers differ." in coded
    plain = card(tmp_path / "plain", "llama", ["original", "width_24"] * 3)
    assert "trust_remote_code" not in plain
    assert "own code" not in plain


def test_a_masked_language_model_is_loaded_as_one(tmp_path):
    text = card(tmp_path, "bert", ["original", "original", "skip", "original", "original", "original"])
    assert "pipeline_tag: fill-mask" in text
    assert "AutoModelForMaskedLM.from_pretrained" in text


@pytest.mark.parametrize(
    ("files", "head", "words"),
    [
        (
            {"README__md": "---\nlicense: apache-2.0\ntags: [x]\n---\ntheirs"},
            True,
            ITS_OWN,
        ),
        (
            {"README__md": "# license: mit\n", "LICENSE": "free"},
            False,
            "is not known here. See `LICENSE` beside this file.",
        ),
        ({"README__md": '---\nlicense: "apache-2.0"\n---\n'}, True, ITS_OWN),
        ({"README__md": "---\nlicense: [mit, 'x']\n---\n"}, False, "Which one the original has is not known here."),
        ({"README__md": "---\nlicense:\n- mit\n---\n"}, False, "Which one the original has is not known here."),
    ],
)
def test_the_licence_is_the_original_s(tmp_path, files, head, words):
    text = card(tmp_path, "llama", ["original"] * 6, **files)
    assert words in text
    assert ("license: apache-2.0" in text.split("---")[1]) is head
    assert "theirs" not in text


def test_figures_of_both_networks_stand_side_by_side_with_their_errors():
    figures = {
        "validation": {"network": {"values": {"loss": 3.5, "accuracy": 0.25}, "errors": {"loss": 0.25}}},
        "test": {"network": {"values": {}, "errors": {}}},
        "text of `a.txt` (12345678)": {
            "network": {"values": {"p": 12.345}, "errors": {"p": 0.125}},
            "original": {"values": {"p": 11.0}, "errors": {}},
        },
        "text of `b.txt` (12345678)": {"original": {"values": {"p": 9.0}, "errors": {}}},
    }
    data = {"source": "c.txt", "samples": {"training": 1200, "validation": 30}}
    lines = [*_figures({"data": data, "steps": 20, "figures": figures})]
    assert lines[0] == "Data: `c.txt`; samples: 1,200 training, 30 validation; steps: 20."
    assert lines[4:] == [
        "| validation loss |  | 3.5 ± 0.25 |",
        "| validation accuracy |  | 0.25 |",
        "| text of `a.txt` (12345678) p | 11 | 12.35 ± 0.12 |",
        "| text of `b.txt` (12345678) p | 9 |  |",
    ]
