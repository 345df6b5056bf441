"""The card beside an exported model tells what was removed, what it costs, what it lost, and how to load it."""

from __future__ import annotations

import re
from functools import partial

import pytest
import torch
from safetensors import safe_open

from l2l_nas.cost.generation import KeptBytes
from l2l_nas.pretrained.model_card import _costs, _lost, _times
from l2l_nas.training.export import plain_module
from l2l_nas.training.formats import ExportSource
from tests.cost.test_generation import LENGTH, path, pool_of
from tests.pretrained.test_found import exported

MIXED = ["original", "original", "key_value_1", "skip", "skip", "width_24"]


def card(tmp_path, name, choices, **files):
    """The card, and the measured values before and after."""
    (tmp_path / "model").mkdir(parents=True, exist_ok=True)
    for file, text in files.items():
        (tmp_path / "model" / file.replace("__", ".")).write_text(text)
    export, _ = exported(tmp_path / "model", name, choices, tmp_path / "out", ["hugging_face"])
    assert not export.refused
    return (tmp_path / "out" / "README.md").read_text(), export.values


def test_each_layer_that_is_another_is_told_with_its_parameters(tmp_path):
    text, _ = card(tmp_path, "llama, tied", MIXED)
    assert "4 of 9 layers were replaced or left out:" in text
    for row in (
        "attention_1 | key_value_1 | 3,104 | 2,592",
        "feedforward_1 | left out | 4,640 | 0",
        "attention_2 | left out | 3,104 | 0",
        "feedforward_2 | width_24 | 4,640 | 2,336",
    ):
        assert f"| {row} |" in text
    assert "| layer |" in text
    assert "feedforward_0" not in text.partition("## How to load it")[0]


def test_it_tells_parameters_bytes_and_what_is_remembered_of_a_token(tmp_path):
    text, _ = card(tmp_path, "llama, tied", MIXED)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        count = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    original = 61 * 32 + 3 * (3104 + 4640) + 32
    assert f"| parameters | {original:,} | {count:,} |" in text
    assert f"| {4 * original:,} | {4 * count:,} |" in text  # one definition for both
    kept = "| bytes that writing keeps of a token, in a text of 17, in float32 | 384 | 192 |"
    assert kept in text  # 3 and 1.5 times 2 * 2 heads of 8
    times = re.findall(r"^\| ms (?:to read a text|of a token).* \| ([\d.]+) \| ([\d.]+) \|$", text, re.M)
    assert len(times) == 2
    assert all(float(one) > 0 for pair in times for one in pair)


def test_times_are_of_the_text_that_was_read():
    pool = pool_of()
    network, text = plain_module(pool, pool.original), torch.zeros(2, LENGTH - 2, dtype=torch.int64)
    empty = partial(plain_module, pool, pool.original)
    rows = [*_times(ExportSource(network, (text,), pool, pool.original, empty))]
    assert rows[0][0].startswith(f"ms to read a text of {LENGTH - 2} tokens")
    assert rows[1][0].startswith(f"ms of a token behind {LENGTH - 3} others")


def test_a_window_and_a_state_count_for_what_writing_keeps():
    pool = pool_of()
    rows = {name: [*_costs(pool, path(pool, name), is_causal=True)][-1][1:] for name in ("window", "linear")}
    for name, row in rows.items():
        kept = KeptBytes(pool, LENGTH)
        whole, own = (sum(map(kept.of_token, pool.path(one))) for one in (pool.original, path(pool, name)))
        assert 0 < own != whole
        assert row == [f"{whole:,.0f}", f"{own:,.0f}"]


def test_it_tells_the_validation_before_and_after(tmp_path):
    text, values = card(tmp_path, "llama", MIXED)
    whole, _ = card(tmp_path / "whole", "llama", ["original"] * 6)
    assert f"| {values['loss']:.4g} |" in text
    assert "All of its layers are the original's." in whole
    rows = [line for line in text.splitlines() if line.startswith("| validation")]
    assert len(rows) == len(values)
    assert all(row.count("|") == 4 and row.split("|")[2].strip() for row in rows)


def test_how_to_load_it_depends_on_whether_it_has_its_own_code(tmp_path):
    coded, _ = card(tmp_path, "llama", MIXED)
    assert "trust_remote_code=True" in coded
    assert "a llama model cannot be this network: '" in coded
    assert "`generate` has a cache for prompts without padding" in coded
    plain, _ = card(tmp_path / "plain", "llama", ["original", "width_24"] * 3)
    assert "trust_remote_code" not in plain
    assert "own code" not in plain


def test_a_masked_language_model_is_loaded_as_one_and_remembers_nothing(tmp_path):
    text, _ = card(tmp_path, "bert", ["original", "original", "skip", "original", "original", "original"])
    assert "pipeline_tag: fill-mask" in text
    assert "AutoModelForMaskedLM.from_pretrained" in text
    assert "keeps" not in text


@pytest.mark.parametrize(
    ("files", "head", "words"),
    [
        ({"README__md": "---\nlicense: apache-2.0\ntags: [x]\n---\ntheirs"}, True, "It is `apache-2.0`"),
        (
            {"README__md": "# license: mit\n", "LICENSE": "free"},
            False,
            "is not known here. See `LICENSE` beside this file.",
        ),
        ({}, False, "Which one the original has is not known here."),
        ({"README__md": '---\nlicense: "apache-2.0"\n---\n'}, True, "It is `apache-2.0`"),
        ({"README__md": "---\r\nlicense: apache-2.0  # ours\r\n---\r\n"}, True, "It is `apache-2.0`"),
        ({"README__md": "---\nlicense: [mit, 'x']\n---\n"}, False, "Which one the original has is not known here."),
        ({"README__md": "---\nlicense:\n- mit\n---\n"}, False, "Which one the original has is not known here."),
    ],
)
def test_the_licence_is_the_original_s(tmp_path, files, head, words):
    text, _ = card(tmp_path, "llama", ["original"] * 6, **files)
    assert words in text
    assert ("license: apache-2.0" in text.split("---")[1]) is head
    assert "theirs" not in text


def test_a_figure_has_the_error_of_its_own_part():
    pool = pool_of()
    about = {
        "test": {"loss": 2.5},
        "standard_error": {"validation": {"loss": 0.25}, "test": {"loss": 0.125}},
    }
    empty = partial(plain_module, pool, pool.original)
    text = torch.zeros(2, LENGTH, dtype=torch.int64)
    rows = [*_lost(ExportSource(empty(), (text,), pool, pool.original, empty, values={"loss": 3.5}, about=about))]
    assert rows[-2:] == ["| validation loss |  | 3.5 ± 0.25 |", "| test loss |  | 2.5 ± 0.12 |"]
