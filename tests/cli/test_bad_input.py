"""Bad input is one clear line on stderr, exit code 2, and nothing written or lost."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess

import numpy as np
import pytest
import torch

from l2l_nas.__main__ import main
from tests.cli.runs import TINY, contents, events, start

OUT = "folder=out"
DIGITS = ["x_train", "y_train", "x_test", "y_test"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["serach"], "no command 'serach'; did you mean 'search'?"),
        (["search", "search.trial=5"], "no setting 'search.trial'; did you mean 'search.trials'?"),
        (["search", "trials=5"], "no setting 'trials'; did you mean 'search.trials'?"),
        (["search", "space=digit_conv"], "no space 'digit_conv'; did you mean 'digits_conv'?"),
        (["search", "space.pool=digit_conv"], "space.pool: no space 'digit_conv'; did you mean 'digits_conv'?"),
        (["search", "sampler=tpee"], "no sampler 'tpee'; did you mean 'tpe'?"),
        (
            ["search", "sampler=zzz"],
            "choose from gp_hamming, random, tpe, nsga2, evolution; your own is optuna.samplers.NAME or FILE.py:NAME",
        ),
        (["search", "search.warmup_paths=fiar"], "search.warmup_paths: no path sampling 'fiar'; did you mean 'fair'?"),
        (["search", "search.warmup_paths=zzz"], "choose from uniform, fair"),
        (["search", "search.warmup_paths=sandwich"], "search.warmup_paths=sandwich is gone: take fair"),
        (["search", "search.trial_weights=frok"], "no such weights as 'frok'; did you mean 'fork'?"),
        (["search", "search.trial_weights=zzz"], "choose from shared, fork, scratch"),
        (["search", "train.optimiser=sgd"], "no setting 'train.optimiser'; did you mean 'optimizer'?"),
        (["search", "optimizer=sdg"], "no optimizer 'sdg'; did you mean 'sgd'?"),
        (["search", "data.sorce=x"], "no setting 'data.sorce'; did you mean 'data.source'?"),
        (["search", "objectives=[acuracy]"], "no objective 'acuracy'; did you mean 'accuracy'?"),
        (["search", "objectives=[accuracy,flosp]"], "no objective 'flosp'; did you mean 'flops'?"),
        (["search", "search.limits.paramters=9"], "search.limits: no cost 'paramters'; did you mean 'parameters'?"),
        (["search", "search.limits={flop: 9}"], "search.limits: no cost 'flop'; did you mean 'flops'?"),
        (["search", "search.limts.flops=9"], "no setting 'search.limts.flops'; did you mean 'search.limits'?"),
        (["search", "search.early_stop=halvin"], "search.early_stop: no rule 'halvin'; did you mean 'halving'?"),
        (["search", "relay.update=eagre"], "relay.update: no 'eagre'; did you mean 'eager'?"),
        (["search", "--cfg"], "--cfg/-c: expected one argument; --hydra-help tells of flags"),
        (["search", "--experimental-rerun", "x.pkl"], "no flag '--experimental-rerun'"),
        (["search", "--trials", "5"], "no flag '--trials'; settings are written NAME=VALUE"),
        (["search", "trials"], "'trials' is not a setting; write NAME=VALUE"),
        (["search", "folder=a(b"], "'folder=a(b' cannot be read"),
        (["search", "++trials=3"], "no setting 'trials'; did you mean 'search.trials'?"),
        (["search", "+foo=1"], "no setting 'foo'; --help lists them all"),
        (
            ["search", "experiment=foo"],
            "no experiment 'foo'; choose from quick, smaller; your own is DIR/experiment/*.yaml",
        ),
        (["train", "+experiment=foo"], "no setting 'experiment'"),
        (["search", "objectives=r2"], "no objectives 'r2'; choose from accuracy, accuracy_flops"),
        (["search", "relay=smal_device"], "no relay 'smal_device'; did you mean 'small_device'?"),
        (["search", "data=digit"], "no data 'digit'; did you mean 'digits'?"),
        (["search", "sampler=tpe", "sampler.n_startup_trails=3"], "did you mean 'n_startup_trials'?"),
        (["search", "sampler=random", "sampler.start=3"], "sampler=random takes no 'start', and no other"),
        (["search", "optimizer=sgd", "optimizer.beta1=0.5"], "optimizer=sgd takes no 'beta1'; choose from moments"),
        (["search", "strategy.name=defalt"], "no strategy 'defalt'; did you mean 'default'?"),
        (["search", "search.sampler=tpe"], "no setting 'search.sampler' any more: write sampler=tpe"),
        (["search", "search.objectives=[loss]"], "any more: write objectives=[loss]"),
        (["search", "search.callbacks=[a.py:B]"], "any more: write callbacks=[a.py:B]"),
        (["search", "search.strategy=a.py:b"], "any more: write strategy=a.py:b"),
        (["train", "train.optimizer=sgd"], "no setting 'train.optimizer' any more: write optimizer=sgd"),
        (["train", "relay.compile=true"], "no setting 'relay.compile' any more: write relay.layers=compile"),
        (["train", "sgd.momentum=0.8"], "any more: write optimizer=sgd optimizer.momentum=0.8"),
        (["search", "-m", "++adamw.beta1=0.8,0.9"], "any more: write optimizer=adamw optimizer.beta1=0.8,0.9"),
        (["search", "+search.trails=1"], "no setting 'search.trails'; did you mean 'search.trials'?"),
        (["search", "~search"], "~search: a setting cannot be taken away; give it a value"),
        (["search", "run=x"], "no setting 'run'; did you mean 'resume'?"),
        (["train", "pool=x"], "no setting 'pool'; did you mean 'space.pool'?"),
        (["report", "+runs=3"], "no setting 'runs'; did you mean 'run'?"),
        (["bench", "bench=depth"], "benches have left the package; in a checkout, run `python -m benchmarks depth`"),
        (["bench"], "run `python -m benchmarks NAME`"),
        (["search", "hydra.run.dir=a/b", "folder=a"], "folder=a and hydra.run.dir=a/b name two folders; leave one of"),
        (["search", "folder="], "folder is empty; name one, or leave it out"),
        (["train", "-m", "folder=''"], "folder is empty; name one, or leave it out"),
        (["search", "++folder= "], "folder is empty; name one, or leave it out"),
        (["search", "hydra.output_subdir=null"], "hydra.output_subdir has no effect: a run is in its folder"),
        (["search", "hydra.job.chdir=true"], "hydra.job.chdir has no effect: a run is in its folder"),
        (["export", "run=run", "parallel.tensor=2"], "parallel.tensor=2: an export is of one process"),
        (["evaluate", "run=run", "parallel.tensor=2"], "parallel.tensor=2: there is 1 process"),
        (["evaluate", "space.pool=hf:x", "original=true"], "original=true is of a run: name it by run="),
        (["evaluate", "run=run", "task=lambda", "file=x"], "no task 'lambda'; did you mean 'lambada'?"),
        (["generate", "run=run", "parallel.data=2"], "parallel.data=2: there is 1 process"),
        (["evaluate", "hydra.run.dir=a/b"], "hydra.run.dir has no effect: this command makes no run folder"),
        (["search", "-m", "hydra.sweep.subdir=x", "seed=0,1"], "hydra.sweep.subdir has no effect: a run is in its"),
        (["search", "-m", "folder=a", "hydra.sweep.dir=b"], "folder=a and hydra.sweep.dir=b name two folders"),
        (["search", "hydra/sweeper=basic"], "hydra/sweeper is for sweeps: add -m"),
        (
            ["search", "-m", "hydra.run.dir=a", "seed=0,1"],
            "hydra.run.dir is for one run: a sweep is in hydra.sweep.dir",
        ),
        (["search", "-m", "folder=a,b"], "folder cannot be swept: it is the same for all runs of a sweep"),
        (["search", "-m", "resume=a,b", "seed=0,1"], "resume cannot be swept"),
        (["train", "-m", "resume=a,b"], "resume cannot be swept"),
        (["plan", "devices=1000000000"], "devices must be at most 1,000,000, got 1e+09"),
        (["search", "search.trainings=1e9"], "search.trainings must be at most 100,000, got 1e+09"),
        (["search", "hydra.sweeper.max_batch_size=3"], "hydra.sweeper.max_batch_size is for sweeps: add -m"),
        (["search", "-m", "search.time=glob(*)"], "glob(*): there is nothing to choose from"),
    ],
)
def test_a_typing_error_gets_the_nearest_right_name(refused, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert says in refused(*words)
    assert contents(tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["search.trials=abc"], "search.trials"),
        (["seed=1.5"], "seed"),
        (["seed=-1"], "seed must be at least 0"),
        (["search.trials=0"], "search.trials must be at least 1, got 0"),
        (["search.finalists=-1"], "search.finalists must be at least 0"),
        (["search.warmup_steps=-1"], "search.warmup_steps must be at least 0"),
        (["search.steps_per_trial=-1"], "search.steps_per_trial must be at least 0"),
        (["search.finalist_steps=-1"], "search.finalist_steps must be at least 0"),
        (["search.finalist_rounds=0"], "search.finalist_rounds must be at least 1, got 0"),
        (["train.micro_batch=0"], "train.micro_batch must be at least 1, got 0"),
        (["train.batch_size=0"], "train.batch_size must be at least 1, got 0"),
        (["relay.slots=0"], "slot"),
        (["relay.update=foo"], "relay.update: no 'foo'; choose from eager, exact"),
        (["relay.precision=fp8"], "relay.precision: no 'fp8'; choose from fp32, bf16, fp16"),
        (["relay.stash=disk"], "relay.stash: no 'disk'; choose from device, host"),
        (["relay.lanes=fast"], "relay.lanes: no 'fast'; choose from auto, threads, inline"),
        (
            ["relay.layers=graphs", "relay.device=cpu"],
            "relay.layers=graphs needs a CUDA device, device=cpu has no graphs",
        ),
        (["relay.layers=graph"], "relay.layers: no 'graph'; did you mean 'graphs'?"),
        (["relay.storage=disk"], "relay.storage: no 'disk'; choose from ram, file"),
        (["relay.stash=auto"], "relay.stash=auto is gone; take stash=host"),
        (["relay.pinned=8GiB"], "relay.pinned takes all or none, and no number of bytes any more; got '8GiB'"),
        (["relay.clip=-1"], "relay.clip must be at least 0, got -1.0"),
        (["relay.clip=1"], "use update=exact, or clip per layer"),
        (["relay.update=ahead"], "update: 'ahead' is now 'exact', which chooses how it runs"),
        (["relay.update=serial"], "update: 'serial' is now 'exact', which chooses how it runs"),
        (["relay.clip=1", "relay.clip_scope=half"], "scope: no 'half'; choose from global, layer"),
        (["relay.precision=fp16"], "use update=exact"),
        (["relay.keep=0"], "relay.keep must be at least 1, got 0"),
        (["relay.budget=lots"], "relay.budget must be like 4GiB, or one of all, auto, none; got 'lots'"),
        (["relay.budget=1KiB"], "a device budget of 1,024 bytes is too small"),
        (["search.trial_weights=scratch", "search.steps_per_trial=0"], "would score networks that were never trained"),
        (["search.finalist_steps=0"], "would return first weights; give finalists steps"),
        (["search.population=0"], "search.population must be at least 1, got 0"),
        (["relay.device=foo"], "device must be auto, cpu, cuda or cuda:N (or xpu), got 'foo'"),
        (["relay.threads=-1"], "relay.threads must be at least 0"),
        (["train.learning_rate=0"], "train.learning_rate must be above 0, got 0"),
        (["train.learning_rate=inf"], "train.learning_rate must be a finite number, got inf"),
        (["search.finalist_learning_rate=-1"], "search.finalist_learning_rate must be above 0"),
        (["optimizer.beta1=2"], "beta"),
        (["optimizer.beta1=much"], "optimizer.beta1 must be of type float, got 'much'"),
        (["sampler=tpe", "sampler.n_startup_trials=0"], "sampler.n_startup_trials must be at least 1, got 0"),
        (["sampler=nsga2", "sampler.population_size=many"], "sampler.population_size must be of type int, got 'many'"),
        (["objectives=[]"], "one to three"),
        (["objectives=[flops,accuracy]"], "begins with a metric of the task, such as accuracy, then flops"),
        (
            ["space=digits_conv", "search.limits.parameters=3"],
            "search.limits.parameters=3: no architecture needs so little; the least is 442 parameters",
        ),
        (["search.limits.parameters=-1"], "search.limits.parameters must be a number above 0; got -1"),
        (["search.limits.flops=many"], "search.limits.flops must be a number above 0; got 'many'"),
        (
            ["space=digits_conv", "data.source=digits", "search.limits.flops=1e4", "search.limits.parameters=1e5"],
            "the least is 13,984 FLOPs (conv, 4*skip, conv",
        ),
        (["search.limits.device_bytes=4Mi"], "must be a number above 0, or a size such as 4MiB; got '4Mi'"),
        (["search.limits.device_bytes=4KiB"], "search.limits.device_bytes=4,096: no architecture was found that keeps"),
        (["search.limits=3"], "search.limits: Cannot assign int to Dict"),
        (["search.latency_batch=0"], "search.latency_batch must be at least 1, got 0"),
        (
            ["search.early_stop=halving", "search.trial_weights=shared"],
            "stops trials on weights of their own; set search.trial_weights=fork or scratch",
        ),
        (["search.early_stop=halving", "search.trial_weights=fork"], "and 6 are too few to tell"),
        (
            [
                "search.early_stop=halving",
                "search.trial_weights=fork",
                "search.steps_per_trial=9",
                "search.keep_fraction=1",
            ],
            "search.keep_fraction must lie between 0 and 1, got 1.0",
        ),
        (["objectives=[parameters]"], "begins with a metric"),
        (["data.source=nothing"], "data.source must be digits, cluttered_digits, pydoc or the path of an .npz file"),
        (["data.source=nothing.npz"], "nothing.npz: no such file"),
        (["objectives=[accuracy,loss]", "search.finalist_rounds=5"], "can be halved until round 4; set it to 4"),
        (["objectives=[accuracy]", "search.finalist_rounds=5"], "can be halved until round 4; set it to 4"),
        (["objectives=[accuracy]", "search.finalists=0", "search.finalist_rounds=2"], "until round 1"),
        (["data.validation_fraction=2"], "validation_fraction must lie between 0 and 1"),
        (["space.args.chanels=3"], "unexpected keyword argument 'chanels'"),
        (["space.args.classes=3"], "targets range from 0 to 9"),
        (
            ["space=digits_conv", "space.args.channels=abc"],
            "position 'stem': candidate 'conv': its factory raised TypeError",
        ),
        (["resume=missing"], "resume=missing: no such folder"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_before_anything_is_written(
    refused, tmp_path, monkeypatch, words, says
):
    monkeypatch.chdir(tmp_path)
    assert says in refused("search", OUT, *words)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_where_there_is_none_is_refused(refused, pool, tmp_path):
    assert "torch sees no CUDA device" in refused("search", OUT, f"space.pool={pool}", "relay.device=cuda")
    assert not (tmp_path / "out").exists()


HEAD = """
from torch import nn
from l2l_nas import Candidate, LayerPool, Position, TensorSpec
"""
POOLS = {
    "empty position": (
        "def build():\n    return LayerPool([Position('a', [])], inputs=TensorSpec((2,)))",
        "position 'a': has no candidates",
    ),
    "shapes": (
        "def build():\n    return LayerPool([Position('a', [Candidate('x', lambda: nn.Linear(2, 3)), "
        "Candidate('y', lambda: nn.Linear(2, 4))])], inputs=TensorSpec((2,)))",
        "position 'a': candidate 'y': got output [batch, 4] float32, expected [batch, 3] float32",
    ),
    "factory": (
        "def build():\n    return LayerPool([Position('a', Candidate('x', lambda: 1 / 0))], inputs=TensorSpec((2,)))",
        "position 'a': candidate 'x': its factory raised ZeroDivisionError",
    ),
    "raises": ("def build():\n    raise RuntimeError('two\\nlines')", "raised RuntimeError: two lines"),
    "no function": ("def built():\n    pass", "has no 'build'; did you mean 'built'?"),
    "syntax": ("def build(:", "raised SyntaxError"),
    "import": ("import no_such_thing", "raised ModuleNotFoundError: No module named 'no_such_thing'"),
    "something else": ("def build():\n    return 5", "returned int; return a LayerPool or a Problem"),
    "arguments": ("def build(width):\n    pass", "takes (width): missing a required argument: 'width'"),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_pool_that_cannot_be_used_is_refused(refused, tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    code, says = POOLS[name]
    (tmp_path / "mine.py").write_text(HEAD + code + "\n")
    assert says in refused("search", OUT, "space.pool=mine.py:build", "data.source=digits")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("pool", "says"),
    [
        ("absent.py:build", "no file 'absent.py'"),
        ("no_such_module_x:build", "no module 'no_such_module_x'"),
        ("math:hypot", "not a function written in Python"),
        ("os.path:sep", "os.path has no 'sep'; choose from"),
    ],
)
def test_a_pool_that_is_not_there_is_refused(refused, tmp_path, monkeypatch, pool, says):
    monkeypatch.chdir(tmp_path)
    line = refused("search", OUT, f"space.pool={pool}")
    assert says in line or (pool == "math:hypot" and "space.args: math:hypot takes" in line)
    assert os.listdir(tmp_path) == []


class Evil:
    """Would leave a file behind if it were ever unpickled."""

    def __reduce__(self):
        return os.mkdir, ("unpickled",)


def write_npz(name: str) -> None:
    x, y = np.zeros((40, 8, 8), dtype=np.float32)[:, None], np.arange(40) % 5
    nan = x.copy()
    nan[3, 0, 2, 2] = np.nan
    match name:
        case "one class":
            np.savez("data.npz", x=x, y=y * 0)
        case "few":
            np.savez("data.npz", x=x, y=np.minimum(np.arange(40), 7))
        case "nan":
            np.savez("data.npz", x=nan, y=y)
        case "lengths":
            np.savez("data.npz", x=x, y=y[:-1])
        case "other part":
            np.savez("data.npz", **dict(zip(DIGITS, (x, y, x, y), strict=True)), x_val=x, y_val=y)
        case "half a part":
            np.savez("data.npz", **dict(zip(DIGITS, (x, y, x, y), strict=True)), x_validation=x)
        case "both":
            np.savez("data.npz", x=x, y=y, x_test=x, y_test=y)
        case "names":
            np.savez("data.npz", images=x, labels=y)
        case "shape":
            np.savez("data.npz", x=x[:, :, :7], y=y)
        case "text":
            np.savez("data.npz", x=x, y=y.astype(str))
        case "scalar":
            np.savez("data.npz", x=np.float32(1), y=y)
        case "class in test":
            np.savez("data.npz", **dict(zip(DIGITS, (x, y, x, y + 6), strict=True)))
        case "no samples":
            np.savez("data.npz", **dict(zip(DIGITS, (x, y, x[:0], y[:0]), strict=True)))
        case "truncated":
            np.savez("whole.npz", x=x, y=y)
            with open("whole.npz", "rb") as whole, open("data.npz", "wb") as part:
                part.write(whole.read()[:500])
            os.remove("whole.npz")
        case "npy":
            with open("data.npz", "wb") as file:
                np.save(file, x)
        case "empty":
            open("data.npz", "w").close()
        case "pickled array":
            np.savez("data.npz", x=np.array([Evil()] * 4, dtype=object), y=y[:4])
        case "pickle":
            with open("data.npz", "wb") as file:
                pickle.dump(Evil(), file)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("one class", "all 24 samples have class 0; there is nothing to tell apart"),
        ("few", "cannot split 40 samples: of 8 classes 7 have too few samples to be in each part (0, 1, 2, 3, 4, ...)"),
        ("nan", "1 of "),
        ("lengths", "40 inputs, but 39 targets"),
        ("other part", "x_test, x_train, y_test, y_train are used, and x_val, y_val would not be; leave that out"),
        ("half a part", "and x_validation would not be"),
        ("both", "x, y are used, and x_test, y_test would not be"),
        ("names", "holds images, labels; expected x y, or x_train y_train (and x_test y_test, x_validation"),
        ("shape", "the training data is [batch, 1, 7, 8] float32, the pool takes [batch, 1, 8, 8] float32"),
        ("text", "'y' is <U"),
        ("scalar", "'x' is float32 []"),
        ("class in test", "targets range from 0 to 10, but the pool's last layer gives 10 classes"),
        ("no samples", "the test data has no samples"),
        ("truncated", "not an npz file of plain arrays"),
        ("npy", "not an npz file of plain arrays"),
        ("empty", "not an npz file of plain arrays"),
        ("pickled array", "not an npz file of plain arrays"),
        ("pickle", "not an npz file of plain arrays"),
    ],
)
def test_data_that_cannot_be_used_is_refused_and_never_unpickled(refused, tmp_path, monkeypatch, name, says):
    monkeypatch.chdir(tmp_path)
    write_npz(name)
    words = ["space.args.image=[1,8,8]", "space.args.classes=10"] if name == "shape" else []
    assert says in refused("search", OUT, "data.source=data.npz", *words)
    assert os.listdir(tmp_path) == ["data.npz"]


def test_a_folder_that_cannot_be_made_is_refused(refused, pool, tmp_path):
    (tmp_path / "file").write_text("mine")
    assert "part of the path is a file" in refused("search", f"space.pool={pool}", "folder=file/run")
    assert "file: part of the path is a file" in refused("search", f"space.pool={pool}", "folder=file")
    assert "/proc/x" in refused("search", f"space.pool={pool}", "folder=/proc/x")
    assert (tmp_path / "file").read_text() == "mine"


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
    assert "then go on with: python -m l2l_nas search resume=run space.pool=tiny.py:build" in said
    reported = [event["number"] for event in events(tmp_path / "run")]
    assert 0 < len(reported) < 120
    assert main([*words, "resume=run"]) == 0
    numbers = [event["number"] for event in events(tmp_path / "run")]
    assert numbers[: len(reported)] == reported
