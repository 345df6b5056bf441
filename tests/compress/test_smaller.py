"""The tutorial from a folder to a smaller folder: every command and program of it, on a small model."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from pydoc_data.topics import topics

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import ROOT
from tests.compress.code_cache import use_code_cache
from tests.compress.small_model import save_small_llama

PAGE = (ROOT / "docs" / "tutorials" / "smaller.md").read_text()
BASH, PYTHON = (re.findall(rf"```{language}\n(.*?)```", PAGE, re.S) for language in ("bash", "python"))
COMMANDS = [shlex.split(line)[3:] for block in BASH for line in block.splitlines()]
SMALL = ["data.length=24", "strategy.steps=1", "strategy.samples=4", "strategy.rounds=1"]
SMALL += ["space.args.widths=[0.5]", "search.trials=4", "search.finalist_steps=2"]


@pytest.mark.slow
def test_the_tutorial_leads_from_a_folder_to_a_smaller_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    use_code_cache(monkeypatch, tmp_path / "modules")
    save_small_llama("model", layers=2, places=64)
    text = "\n".join(topics.values())
    Path("text.txt").write_text(text[:12000])
    Path("held_out.txt").write_text(text[20000:20400])
    assert [command for command, *_ in COMMANDS] == ["search", "evaluate", "evaluate", "evaluate", "export", "generate"]
    for command, *words in COMMANDS:
        small = SMALL if command == "search" else []
        assert main([command, *words, *small]) == 0, capsys.readouterr().err
    written = capsys.readouterr().out.splitlines()[-1]
    page = Path("runs/smaller/report.html").read_text()
    for said in (
        "What each block costs",
        "Best architectures",
        "Loss against parameters",
        "0, the original",
        "token latency",
    ):
        assert said in page
    assert page.index('id="blocks"') < page.index('id="finalists"')
    card = Path("smaller/README.md").read_text()
    (row,) = re.findall(r"text of `held_out.txt` \(\w+\) token_perplexity \| ([\d.]+) ± \S+ \| ([\d.]+) ± ", card)
    assert row[0] != row[1]
    page = Path("runs/smaller/report.html").read_text()
    for table in (page, card):
        assert re.search(r"answers of `held_out.txt` \(\w+\)\W+(?:<[^>]*>)*same_tokens|same_answers", table)
    first, second = (value.split(".")[0] for value in row)
    assert re.search(rf"token_perplexity</td>.*>{first}\.\d+ ± .*>{second}\.\d+ ± ", page)
    assert Path("smaller/model.gguf").exists()
    (program,) = PYTHON
    exec(compile(program, "smaller.md", "exec"), {})
    (again,) = eval(capsys.readouterr().out.splitlines()[-1])
    assert written
    assert written in again


@pytest.mark.slow
def test_attention_gives_way_to_layers_with_states_within_a_cache(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    save_small_llama("model", layers=3, places=64)
    Path("text.txt").write_text("\n".join(topics.values())[:12000])
    words = ["space.pool=hf:model", "data.source=text.txt", "folder=run", *SMALL, "data.length=48"]
    words += ["space.args.widths=[]", "space.args.mixers=[delta,state_space]", "space.args.windows=[8]"]
    words += ["strategy.sizes=[]", "strategy.scores=recall", "objectives.names=[loss]", "export=false"]
    assert main(["search", "experiment=smaller", *words, "search.limits.cache_bytes=800"]) == 0, capsys.readouterr().err
    result = json.loads(Path("run/result.json").read_text())
    assert result["scored_by"] == "recall"
    assert result["best"]["costs"]["cache_bytes"] <= 800
    assert {"delta", "state_space", "window_8", "skip"} & {*result["best"]["architecture"]}
    scores = {key.partition("/")[2] for key in result["blocks"]}
    assert {"delta", "state_space", "window_8"} <= scores
