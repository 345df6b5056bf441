"""What README and docs show, run as it stands."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import subprocess
import sys
import warnings

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from l2l_nas.__main__ import main
from l2l_nas.cli.schema import register, with_own_choices
from l2l_nas.cli.words import check_words, read_words
from tests.cli.runs import ROOT, environment

PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
README = PAGES["README.md"]
FENCED = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)
NAMED = re.compile(r"<!-- (\w+\.py) -->\n```python\n(.*?)```", re.S)
PYTHON = [
    (page, code) for page, text in PAGES.items() for language, code in FENCED.findall(text) if language == "python"
]
# a block below a comment with a file's name is that file: it runs as it stands
FILES = {name: code for text in PAGES.values() for name, code in NAMED.findall(text)}
POOL = FILES["my_pool.py"]
# config files that are shown, by their place
CONFIGS = {
    name: text
    for page in PAGES.values()
    for name, text in re.findall(r"<!-- (conf/[\w/]+\.yaml) -->\n```yaml\n(.*?)```", page, re.S)
}
COMMAND_LINES = list(
    dict.fromkeys(
        line.split("#")[0].strip()
        for text in PAGES.values()
        for language, block in FENCED.findall(text)
        for line in block.splitlines()
        if language == "bash" and line.startswith("python -m l2l_nas ")
    )
)
# what must be true when a file has run
OUTCOMES = {
    "search.py": "assert len(result.study.trials) >= 24 and network(torch.zeros(3, 2)).shape == (3, 2)",
    "more_trials.py": "assert len(result.study.trials) >= 28",
    "loop.py": "import os; assert len(study.trials) == 30 and os.path.exists('front.png')",
    "ten_lines.py": "assert 0 < float(result.loss) < 10",
    "exported.py": "assert logits.shape == (32, 10)",
    "plain.py": "assert network(torch.zeros(3, 2)).shape == (3, 2)",
    "read_results.py": "assert len(table) >= 24 and set(study.best_trial.params) == {f'layer_{i}' for i in range(4)}",
    "read_study.py": "assert len(optuna.load_study(study_name='search', storage='sqlite:///studies.db').trials) >= 2",
    "read_events.py": "assert {'start', 'result', 'done'} <= {one['event'] for one in events}",
    "own_data.py": "assert [len(part) for part in problem.data.parts.values()] == [400, 100, 100]",
    "in_files.py": "relay.close()",
    "write_text.py": "assert len(written) == 20 and 0 < figures['bits_per_byte'] < 8",
    "own_dataset.py": "assert len(named.train) == 360 and named.train.inputs_specs[0].shape == (2,)",
}


def run(name: str, patch: pytest.MonkeyPatch) -> None:
    """A file of the folder that we are in, as a program; what it imports from there is forgotten again."""
    patch.syspath_prepend(".")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")  # as users have it; Optuna calls its drawings experimental
            runpy.run_path(name, run_name="__main__")
    finally:
        for other in FILES:
            sys.modules.pop(other.removesuffix(".py"), None)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with all files of the pages, `runs/first` of the command and `runs/python` of search.py, in small."""
    folder = tmp_path_factory.mktemp("pages")
    for name, code in FILES.items():
        code = code.replace("trials=24,", "trials=24, steps_per_trial=2, finalist_steps=9,")
        code = "import torch\n" + code + OUTCOMES.get(name, "")
        (folder / name).write_text(code + "\nbuild()\n" if "\ndef build(" in code else code + "\n")
    small = ["space.args.channels=4", "space.args.depth=2", "search.trials=2", "search.steps_per_trial=1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["search", "folder=runs/first", "search.finalist_steps=2", *small]) == 0
        run("search.py", patch)
    return folder


@pytest.mark.slow
def test_a_pool_of_ones_own_takes_at_most_25_lines_and_one_command(tmp_path):
    assert len(POOL.splitlines()) <= 25
    (tmp_path / "my_pool.py").write_text(POOL)
    budget = ["search.warmup_steps=30", "search.trials=4", "search.finalists=1", "search.finalist_steps=20"]
    done = subprocess.run(
        [sys.executable, "-m", "l2l_nas", "search", "space.pool=my_pool.py:build", "folder=run", *budget],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["best"]["architecture"][0] == "linear"
    assert result["trials"]["complete"] == 4
    assert (tmp_path / "run" / "export" / "model.pt2").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name not in ("my_pool.py", "search.py")])
def test_a_file_of_a_page_runs_as_it_stands(place, monkeypatch, name):
    monkeypatch.chdir(place)
    run(name, monkeypatch)


def test_a_file_that_two_pages_show_is_the_same_on_both():
    for text in PAGES.values():
        for name, code in NAMED.findall(text):
            assert code == FILES[name], name


@pytest.mark.parametrize(("page", "code"), PYTHON, ids=[page for page, _ in PYTHON])
def test_python_that_is_shown_compiles(page, code):
    compile(code, page, "exec")


@pytest.mark.parametrize("line", COMMAND_LINES)
def test_every_command_shown_names_only_settings_that_exist_and_composes(line, tmp_path, monkeypatch):
    command, *words = shlex.split(line)[3:]
    if command.startswith("-"):
        return
    if "--help" in words:
        assert main([command, "--help"]) == 0
        return
    args = read_words(words)
    if args.config_dir:
        for name, text in CONFIGS.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        monkeypatch.chdir(tmp_path)
    check_words(command, args)
    if any(word.startswith("hydra/launcher=") for word in words):
        pytest.importorskip("hydra_plugins.hydra_joblib_launcher")
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    register(command)
    single = [override for override in with_own_choices(command, args.overrides) if not _is_sweep(override)]
    if args.config_dir:
        single.append(f"hydra.searchpath=[file://{tmp_path}/conf]")
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert compose(command, single)


def _is_sweep(word: str) -> bool:
    return OverridesParser.create().parse_override(word).is_sweep_override()
