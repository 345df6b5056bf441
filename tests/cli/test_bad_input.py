"""Bad input is one clear line on stderr that names the setting, exit code 2, and nothing written or lost."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest
import torch

from l2l_nas.__main__ import main
from l2l_nas.cli.words import is_of_hydra
from tests.cli.runs import TINY, contents, events, start

POOL = b"from l2l_nas import *\ndef build(): return LayerPool([Position('a', %s)], inputs=TensorSpec((2,)))\n"
FILES = {
    "conf/experiment/night.yaml": b"# @package _global_\nsearch: {trails: 9}\n",
    "conf/experiment/many.yaml": b"# @package _global_\nsearch: {trials: many}\n",
    "conf/experiment/bare.yaml": b"seed: 1\n",
    "conf/experiment/tab.yaml": b"search:\n\ttrials: 2\n",
    "conf/experiment/twice.yaml": b"seed: 1\nseed: 2\n",
    "conf/experiment/code.yaml": b"# @package _global_\nseed: !!python/object/apply:os.mkdir [made]\n",
    "conf/experiment/latin.yaml": b"seed: \xff\n",
    "conf/experiment/deep.yaml": b"search: " + b"[" * 3000,
    "conf/experiment/round.yaml": b"search: &a {trials: *a}\n",
    "conf/experiment/large.yaml": b"notes: '" + b"x" * 2_000_000 + b"'\n",
    "conf/sampler/few.yaml": b"name: tpe\nn_startup: 3\n",
    "conf/size/small.yaml": b"# @package _global_\nsearch: {trials: 3}\n",
    "conf/zero.yaml": b'defaults: [search, _self_]\nfolder: "a\\x00b"\n',
    "conf/numbered.yaml": b"defaults: [search, _self_]\nhydra: {sweep: {subdir: a}}\n",
    "broken.py": b"def build(:",
    "ends.py": b"import sys; sys.exit(0)",
    "raises.py": b"def build():\n    raise RuntimeError('two\\nlines')",
    "odd.py": b"def build():\n    return 5",
    "takes.py": b"def build(width):\n    pass",
    "factory.py": POOL % b"Candidate('x', lambda: 1 / 0)",
    "skips.py": POOL % b"[skip()]",
    "file": b"mine",
}
OWN = "search --config-dir conf "
# words, the setting or the word that the line names, and what it says that one may have meant
REFUSED_AT_ONCE = [
    ("serach", "serach", "search"),
    ("search search.trial=5", "search.trial", "search.trials"),
    ("search trials=5", "trials", "search.trials"),
    ("search ++trials=3", "trials", "search.trials"),
    ("search +foo=1", "foo", ""),
    ("train train.optimizer=sgd", "train.optimizer", "optimizer"),
    ("search search.limts.flops=9", "search.limts.flops", "search.limits"),
    ("train +experiment=quick", "experiment", ""),
    ("search data@x=digits", "data@x", "data"),
    ("search sampler=tpee", "sampler", "tpe"),
    ("search experiment=foo", "experiment", ""),
    ("search sampler=5", "sampler=5", ""),
    ("search -m sampler=5,tpe seed=0,1", "sampler=5,tpe", ""),
    ("search relay=null", "relay=null", ""),
    ("search space={a:1}", "space={a:1}", ""),
    ("search sampler=x=y", "sampler=x=y", ""),
    ("search callbacks=[a.py:B,x]", "callbacks/x", ""),
    ("search -m hydra/launcher=basi seed=0,1", "hydra/launcher", "basic"),
    ("search hydra/foo=1", "hydra/foo", ""),
    ("search hydra.foo=1", "hydra.foo", ""),
    ("search hydra.mode=nope", "hydra.mode", ""),
    ("search hydra.job.env_copy=[NOT_THERE]", "hydra.job.env_copy=[NOT_THERE]", ""),
    (OWN + "+size=large", "size", ""),
    (OWN + "size=small", "+size=small", ""),
    (OWN + "experiment=night", "In 'experiment/night': no setting 'search.trails'", "search.trials"),
    (OWN + "experiment=many", "In 'experiment/many': search.trials", ""),
    (OWN + "experiment=bare", "In 'experiment/bare': an experiment begins with the line '# @package _global_'", ""),
    (OWN + "experiment=tab", 'tab.yaml", line 2, column 1', ""),
    (OWN + "experiment=tab -m seed=0,1", 'tab.yaml", line 2, column 1', ""),
    (OWN + "experiment=twice", "found duplicate key seed", ""),
    (OWN + "experiment=code", 'code.yaml", line 2, column 7', ""),
    (OWN + "experiment=latin", "latin.yaml: not a text in UTF-8", ""),
    (OWN + "experiment=deep", "deep.yaml: nested too deep", ""),
    (OWN + "experiment=round", "round.yaml: ", ""),
    (OWN + "experiment=large", "large.yaml: ", ""),
    (OWN + "--config-name zero", "folder holds a zero byte", ""),
    (OWN + "--config-name numbered -m seed=0,1", "hydra.sweep.subdir has no effect", ""),
    ("search --config-dir nowhere", "--config-dir nowhere", ""),
    ("search --config-name nowhere", "'nowhere'", ""),
    ("search --config-path conf", "--config-path", ""),
    ("search --experimental-rerun x.pkl", "--experimental-rerun", ""),
    ("search -sc install=bash", "--shell-completion", ""),
    ("search --trials 5", "--trials", ""),
    ("search --cfg", "--cfg", ""),
    ("search --cfg jobs", "--cfg", ""),
    ("search --help nonsense", "nonsense", ""),
    ("search relay --help sirch", "sirch", "search"),
    ("search trials", "trials", ""),
    ("search =5", "=5", ""),
    ("search ~search", "~search", ""),
    ("search folder=a(b", "folder=a(b", ""),
    ("search resume=${", "resume=${", ""),
    ("search seed=int(x)", "seed=int(x)", ""),
    ("search space=choice()", "space=choice()", ""),
    ("search folder=a\0b", "folder=a?b", ""),
    ("search space.args.x=" + "[" * 3000 + "]" * 3000, "nested too deep: a setting", ""),
    ("search seed=0,1", "seed=0,1", ""),
    ("search seed=range(3)", "seed=range(3)", ""),
    ("search folder=${nope}", "folder", ""),
    ("search search.finalist_steps=${oc.env:NOT_THERE}", "search.finalist_steps=${oc.env:NOT_THERE}", ""),
    ("search -m seed=0,1 hydra.sweep.dir=${oc.env:NOT_THERE}", "hydra.sweep.dir", ""),
    ("search search.early_stop=???", "search.early_stop", ""),
    ("evaluate run=run recalibrate=${seed}", "recalibrate=${seed}", ""),
    ("search search.trials=abc", "search.trials", ""),
    ("search search=3", "search", ""),
    ("search folder=", "folder is empty", ""),
    ("search folder=" + "a" * 300, "the name is too long", ""),
    ("search folder=file", "file: part of the path is a file", ""),
    ("search resume=nowhere", "resume=nowhere", ""),
    ("search hydra.run.dir=a/b folder=a", "folder=a and hydra.run.dir=a/b", ""),
    ("search hydra.output_subdir=x", "hydra.output_subdir has no effect", ""),
    ("search -m folder=a,b", "folder", ""),
    ("search -m resume=a,b seed=0,1", "resume", ""),
    ("train -m resume=a seed=0,1", "resume", ""),
    ("search -m seed=0,-1", "seed must be at least 0, got -1", ""),
    ("search -m search.time=glob(*)", "search.time=glob(*)", ""),
    ("search skip_done=true", "skip_done", ""),
    ("search seed=99999999999999999999", "seed must be at most", ""),
    ("search search.trials=0", "search.trials must be at least 1, got 0", ""),
    ("search train.learning_rate=inf", "train.learning_rate must be a finite number", ""),
    ("search relay.threads=1e20", "relay.threads", ""),
    ("search space.pool=" + "b" * 9000, "space.pool has 9,000 characters", ""),
    ("evaluate run=run parallel.tensor=2", "parallel.tensor=2", ""),
    ("evaluate space.pool=hf:x original=true", "original=true", ""),
    ("evaluate run=run task=lambda file=x", "lambda", "lambada"),
    ("generate run=run parallel.data=2", "parallel.data=2", ""),
]
REFUSED_WHERE_IT_IS_BUILT = [
    ("space.pool=digit_conv", "space.pool", "digits_conv"),
    ("space.pool=nowhere.py:build", "nowhere.py", ""),
    ("space.pool=no_such_module_x:build", "no_such_module_x", ""),
    ("space.pool=os.path:sep", "space.pool", ""),
    ("space.pool=broken.py:build", "space.pool: broken.py raised SyntaxError", ""),
    ("space.pool=ends.py:build", "ends.py called sys.exit(0)", ""),
    ("space.pool=raises.py:build", "raises.py:build raised RuntimeError: two lines", ""),
    ("space.pool=raises.py:biuld", "raises.py has no 'biuld'", ""),
    ("space.pool=odd.py:build", "odd.py:build returned int", ""),
    ("space.pool=takes.py:build", "'width'", ""),
    ("space.pool=factory.py:build", "position 'a': candidate 'x': its factory raised ZeroDivisionError", ""),
    ("space.pool=skips.py:build", "every candidate of every position is a skip", ""),
    ("space.args.chanels=3", "chanels", ""),
    ("data.source=nothing", "data.source", ""),
    ("data.source=nothing.npz", "nothing.npz", ""),
    ("data.validation_fraction=2", "validation_fraction", ""),
    ("objectives=[acuracy]", "objectives", "accuracy"),
    ("objectives=[flops,accuracy]", "objectives", ""),
    ("objectives=[]", "objectives", ""),
    ("search.limits.paramters=9", "search.limits", "parameters"),
    ("search.limits.flops=many", "search.limits.flops", ""),
    ("space=digits_conv search.limits.parameters=3", "search.limits.parameters=3", ""),
    ("search.trial_weights=frok", "frok", "fork"),
    ("search.early_stop=halving search.trial_weights=shared", "search.trial_weights=fork", ""),
    ("search.trial_weights=scratch search.steps_per_trial=0", "search.steps_per_trial", ""),
    ("search.finalist_steps=0", "finalists", ""),
    ("search.finalist_rounds=9", "search.finalist_rounds", ""),
    ("sampler=tpe sampler.n_startup_trails=3", "sampler=tpe", "n_startup_trials"),
    ("sampler=tpe sampler.n_startup_trials=0", "sampler.n_startup_trials", ""),
    ("optimizer=sgd optimizer.beta1=0.5", "optimizer=sgd", ""),
    ("optimizer.weight_decay=nan", "optimizer.weight_decay", ""),
    ("strategy.name=defalt", "strategy", "default"),
    ("--config-dir conf sampler=few", "sampler=tpe", "n_startup_trials"),
    ("relay.update=eagre", "relay.update", "eager"),
    ("relay.layers=graphs relay.device=cpu", "relay.layers=graphs", ""),
    ("relay.clip=1", "update=exact", ""),
    ("relay.budget=1KiB", "budget", ""),
    ("relay.device=foo", "relay.device", ""),
]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with files of the user's."""
    folder = tmp_path_factory.mktemp("place")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def check(refused, place, words, names, meant):
    before = contents(place)
    line = refused(*words)
    assert names in line
    assert f"did you mean '{meant}'?" in line or not meant
    assert len(line) < 1300
    assert contents(place) == before
    assert {path.name for path in place.iterdir()} <= {name.partition("/")[0] for name in FILES} | {"__pycache__"}


@pytest.mark.parametrize(("words", "names", "meant"), REFUSED_AT_ONCE, ids=[row[0][:60] for row in REFUSED_AT_ONCE])
def test_bad_words_are_one_line_that_names_them(refused, place, monkeypatch, words, names, meant):
    monkeypatch.chdir(place)
    check(refused, place, words.split(" "), names, meant)


@pytest.mark.slow
@pytest.mark.parametrize(("words", "names", "meant"), REFUSED_WHERE_IT_IS_BUILT)
def test_what_cannot_be_built_is_refused_before_anything_is_written(refused, place, monkeypatch, words, names, meant):
    monkeypatch.chdir(place)
    check(refused, place, ["search", "folder=out", "data.source=digits", *words.split(" ")], names, meant)


def test_an_error_is_hydras_by_where_it_comes_from():
    from hydra.core.override_parser.overrides_parser import OverridesParser

    def mistake():
        raise ValueError("ours")

    for raises, is_hydras in ((mistake, False), (lambda: OverridesParser.create().parse_overrides([5]), True)):
        with pytest.raises(Exception) as raised:  # noqa: PT011
            raises()
        assert is_of_hydra(raised.value) is is_hydras


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_refused(refused, pool, tmp_path):
    assert "torch sees no CUDA device" in refused("search", "folder=out", f"space.pool={pool}", "relay.device=cuda")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_bad_input_is_one_line_in_a_process_of_its_own(tmp_path):
    process = start("search", "search.trials=abc", cwd=tmp_path)
    out, err = process.communicate()
    assert (process.returncode, out) == (2, "")
    assert err.count("\n") == 1
    assert err.startswith("error: search.trials: ")
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_the_run_goes_on_once_there_is_space(small_disk, pool, tmp_path, capsys):
    fill = small_disk / "fill"
    fill.write_bytes(bytes(930_000))
    words = ["search", f"space.pool={pool}", *TINY, "search.trials=30", f"folder={small_disk / 'run'}"]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "full" in said
    assert "resume=" in said
    reported = [event["number"] for event in events(small_disk / "run")]
    fill.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    assert main([*words, f"resume={small_disk / 'run'}"]) == 0
    numbers = [event["number"] for event in events(small_disk / "run")]
    assert numbers[: len(reported)] == reported
    assert len(set(numbers)) == len(numbers)


@pytest.mark.slow
def test_a_limit_on_file_sizes_is_one_line_and_the_run_goes_on_without_it(pool, tmp_path, capsys, page_may_fail):
    words = ["search", f"space.pool={pool}", *TINY, "search.trials=120", "folder=run"]
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (131_072, hard))  # some trials fit, not all
    try:
        assert main(words) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    said = capsys.readouterr().err
    assert said.count("\n") == 1, said
    assert "resume=" in said
    reported = [event["number"] for event in events(tmp_path / "run")]
    assert 0 < len(reported) < 120
    assert main([*words, "resume=run"]) == 0
    numbers = [event["number"] for event in events(tmp_path / "run")]
    assert numbers[: len(reported)] == reported
