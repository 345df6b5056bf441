"""One run on several ranks, as torchrun starts them: the bits of one process, and one line where ranks cannot go on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.runs import environment, without_times, write_pool
from tests.parallel.ranked import end_torchrun, free_port

WIDE = "space.args.width=200"  # so that states are cut: smaller ones are whole on each rank
TRAIN = (
    "train", "space.pool=tiny.py:build", WIDE, "architecture=original", "train.validation_steps=4",
    "train.micro_batch=16", "relay.threads=1", "relay.clip=0.5", "relay.update=exact", "schedule=constant",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    write_pool(tmp_path)
    monkeypatch.chdir(tmp_path)


def alone(*words: str, seconds: float = 120) -> str:
    """`python -m l2l_nas` as one process; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "l2l_nas", *words], env=environment(), capture_output=True, text=True, timeout=seconds
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Launched:
    """`torchrun --nproc-per-node 2 -m l2l_nas`."""

    def __init__(self, *words: str, size: int = 2, program: tuple[str, ...] = ("-m", "l2l_nas")) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(size)]
        command += ["--master-port", str(free_port()), *program, *words]
        with open("out", "w") as out, open("err", "w") as err:
            self.process = subprocess.Popen(command, env=environment(), stdout=out, stderr=err, start_new_session=True)

    def ended(self, seconds: float = 120) -> tuple[int, str, list[str]]:
        """The exit code, what was printed, and lines of errors."""
        try:
            code = self.process.wait(seconds)
        finally:
            end_torchrun(self.process)
        errors = [line for line in Path("err").read_text().splitlines() if line.startswith(("error: ", "stopped"))]
        return code, Path("out").read_text(), errors


def together(*words: str, size: int = 2, **options) -> str:
    """What ranks printed that did what was asked for."""
    code, out, errors = Launched(*words, size=size, **options).ended()
    assert (code, errors) == (0, []), Path("err").read_text()
    return out


def apart(words: list[list[str]], *, variables: list[dict[str, str]] | None = None) -> tuple[list[int], list[str]]:
    """Exit codes and lines of errors of ranks that get words, and variables of their environment, of their own."""
    place = {"WORLD_SIZE": str(len(words)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "l2l_nas", *own],
            env={**environment(), **place, "RANK": str(rank), **(variables[rank] if variables else {})},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank, own in enumerate(words)
    ]  # fmt: skip
    try:
        said = [rank.communicate(timeout=90)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], [line for one in said for line in one.splitlines() if line]


def result(folder: str) -> dict:
    """What a run found, without times."""
    return without_times(json.loads(Path(folder, "result.json").read_text()))


def weights(folder: str) -> dict[str, str]:
    """Digests of the states that a run has saved, moments and steps among them."""
    content = json.loads(Path(folder, "manifest.json").read_text())
    return {key: entry["sha256"] for key, entry in content["states"].items()}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_two_ranks_train_to_the_bits_of_one_process_and_go_on_as_one_and_as_two(tmp_path):
    words = (*TRAIN, "train.learning_rate=0.001")
    alone(*words, "train.steps=24", "parallel.chunks=2", "folder=one")
    out = together(*words, "train.steps=8", "folder=two", "export=false")
    assert "2 ranks share each step and all weights (data parallel, parallel.chunks=2)" in out
    assert out.count("last (step 8)") == 1
    alone("train", "space.pool=tiny.py:build", "resume=two", "train.steps=16")
    together("train", "space.pool=tiny.py:build", "resume=two", "train.steps=24", "export=true", "relay.storage=file")
    assert result("two") == result("one")
    assert weights("two/weights") == weights("one/weights")
    assert weights("two/best") == weights("one/best")
    export = [Path(name, "export/model.safetensors") for name in ("one", "two")]
    assert not export[0].exists() or export[0].read_bytes() == export[1].read_bytes()
    assert sorted(path.name for path in Path("two").iterdir()) == sorted(path.name for path in Path("one").iterdir())
    assert list(tmp_path.glob("**/*rank1*")) == []


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_signal_stops_all_ranks_after_what_is_done_was_saved():
    launched = Launched(*TRAIN, "train.steps=100000", "folder=run", "export=false")
    end = time.monotonic() + 60
    while not Path("run/weights/manifest.json").exists():
        assert time.monotonic() < end, Path("err").read_text()
        time.sleep(0.1)
    time.sleep(0.5)
    launched.process.send_signal(signal.SIGINT)
    code, out, errors = launched.ended()
    assert code != 0
    assert out.count("all saved. Go on with: python -m l2l_nas train resume=run") == 1, Path("err").read_text()
    assert errors == []
    log = [json.loads(line) for line in Path("run/log.jsonl").read_text().splitlines()]
    assert log[-1]["event"] == "stopped"
    done = json.loads(Path("run/weights/manifest.json").read_text())["extra"]["step"]
    assert log[-1]["step"] == done > 0


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_signal_to_another_rank_than_the_first_stops_all_after_a_save():
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [sys.executable, "-m", "l2l_nas", *TRAIN, "train.steps=100000", "folder=run", "export=false"]
    ranks = [
        subprocess.Popen(words, env={**environment(), **place, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    try:
        end = time.monotonic() + 60
        while not Path("run/weights/manifest.json").exists():
            assert time.monotonic() < end
            time.sleep(0.1)
        ranks[1].send_signal(signal.SIGTERM)
        out, other = (rank.communicate(timeout=60)[0] for rank in ranks)
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [130, 130]
    assert "all saved. Go on with: python -m l2l_nas train resume=run" in out
    assert other == ""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["relay.slots=0"], "relay.slots must be at least 1, got 0"),
        (["train.stepz=3"], "no setting 'train.stepz'; did you mean 'train.steps'?"),
        (["parallel.chunks=1"], "parallel.chunks: 1 chunks cannot be divided among 2 ranks; take 2 or a multiple"),
    ],
)
def test_a_bad_setting_is_one_line_and_exit_code_2_on_all_ranks(words, said):
    codes, lines = apart([[*TRAIN, "folder=run", *words]] * 2)
    assert codes == [2, 2]
    assert [line.endswith(said) for line in lines] == [True], lines
    assert not Path("run").exists()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_that_differ_are_told_in_what():
    codes, lines = apart([[*TRAIN, "folder=run"], [*TRAIN, "folder=run", "seed=5"]])
    assert codes == [2, 2]
    assert len(lines) == 1
    assert "seed is 5 on rank 1, and 0 on rank 0; start all ranks alike" in lines[0]
    pool = Path("tiny.py")
    pool.write_text(
        pool.read_text().replace(
            "*data(samples)", "*data(samples + 40 * (os.environ['RANK'] == '1'))"
        ).replace("import torch\n", "import os\nimport torch\n", 1)
    )  # fmt: skip
    codes, lines = apart([[*TRAIN, "folder=run"]] * 2)
    assert codes == [2, 2]
    assert len(lines) == 1
    assert "data samples.training is 120 on rank 1, and 96 on rank 0" in lines[0]
    pool.write_text(
        "import os\n"
        + pool.read_text().replace("return Problem", "open(os.environ['DATA']).close()\n    return Problem")
    )
    codes, lines = apart([[*TRAIN, "folder=run"]] * 2, variables=[{"DATA": "tiny.py"}, {"DATA": "gone.npz"}])
    assert codes == [2, 2]
    assert len(lines) == 1
    assert "rank 1" in lines[0]
    assert "gone.npz" in lines[0]
    assert not Path("run").exists()


SEARCH = (
    "search", "space.pool=tiny.py:build", WIDE, "search.trials=6", "search.steps_per_trial=8", "search.finalists=2",
    "search.finalist_steps=16", "train.micro_batch=16", "relay.threads=1", "export=false",
)  # fmt: skip


FORK = "search.trial_weights=fork"
_OWN = ("device_bytes", "latency_ms")


def of_any_ranks(content):
    """Without what is measured, and what a rank of several needs less of."""
    if isinstance(content, dict):
        return {name: of_any_ranks(one) for name, one in content.items() if name not in _OWN}
    return [of_any_ranks(one) for one in content] if isinstance(content, list) else content


@pytest.mark.slow
@pytest.mark.timeout(500)
@pytest.mark.parametrize(
    "kind", ["shared", *(pytest.param(one, marks=pytest.mark.long) for one in ("scratch", "fork"))]
)
def test_two_ranks_search_to_the_bits_of_one_process(kind):
    words = [*SEARCH, f"search.trial_weights={kind}"]
    if kind != "scratch":
        words += ["search.warmup_steps=6"]
    if kind == "shared":  # two goals ask for all of the sampler, and a limit for what one rank measures
        words += ["objectives=[accuracy,parameters]", "search.limits.latency_ms=100"]
    else:
        words += ["search.early_stop=halving"]
    alone(*words, "parallel.chunks=2", "folder=one")
    out = together(*words, "folder=two")
    assert out.count("2 ranks share each step") == 1
    assert of_any_ranks(result("two")) == of_any_ranks(result("one"))
    for place in ("weights", "best") if kind == "shared" else ("best",):
        assert weights(f"two/{place}") == weights(f"one/{place}")
    trials = [len(Path(name, "study.log").read_text().splitlines()) for name in ("one", "two")]
    assert trials[0] == trials[1]
    assert Path("two/report.html").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lora", [0, pytest.param(2, marks=pytest.mark.long)])
def test_two_ranks_take_a_network_apart_to_the_bits_of_one_process(lora):
    """Begun on two ranks, which are killed among its blocks; and in one process."""
    strategy = ("strategy=blockwise", "strategy.teacher=0", "strategy.samples=24", f"strategy.lora={lora}")
    words = [*SEARCH, FORK, *strategy, "strategy.steps=3", "search.steps_per_trial=0", "search.checkpoint_seconds=0"]
    words += ["train.micro_batch=2"]  # so that there is something to sum in another order
    alone(*words, "parallel.chunks=2", "folder=one")
    Path("mine.py").write_text(
        "import os, signal\nimport l2l_nas\n"
        "class Killed(l2l_nas.Callback):\n"
        "    def phase(self, name, *, total, done):\n        self.name = name\n"
        "    def advance(self, done, *, detail=''):\n"
        "        if self.name == 'blocks' and done == 9:\n            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, _, _ = Launched(*words, "callbacks=[mine.py:Killed]", "folder=two").ended()
    assert code != 0
    out = together("search", "space.pool=tiny.py:build", "resume=two", "callbacks=[]")
    assert "2 ranks share each step" in out
    assert of_any_ranks(result("two")) == of_any_ranks(result("one"))
    assert any(one["error"] for one in result("two")["blocks"].values())
    for place in ("weights", "best"):
        assert weights(f"two/{place}") == weights(f"one/{place}")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_do_the_work_of_a_phase_of_the_user_s_own():
    Path("phases.py").write_text(
        "import l2l_nas\n"
        "from l2l_nas.nas.strategies.random_search import RandomSearch\n"
        "def updates(evaluator, key):\n    return evaluator.server.state(key).visits\n"
        "class Mine(l2l_nas.Phase):\n"
        "    def run(self, search):\n"
        "        path = search.paths.path_at(0)\n"
        "        search.evaluator.train(lambda step: path, start=0, steps=3, learning_rate=0.1, total=3)\n"
        "        self.found = search.evaluator.do(updates, search.pool.path(path)[0].key)\n"
        "    def results(self, search):\n        return {'updates': self.found}\n"
        "def phases():\n    return [Mine(), l2l_nas.Trials(), l2l_nas.Finalists(), RandomSearch()]\n"
    )
    words = [*SEARCH, "strategy=phases.py:phases", "search.trial_weights=shared", "search.finalists=0"]
    alone(*words, "parallel.chunks=2", "folder=one")
    together(*words, "folder=two")
    assert result("two")["updates"] == 3
    assert of_any_ranks(result("two")) == of_any_ranks(result("one"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_a_search_of_two_ranks_goes_on_as_one_process_and_back():
    words = (*SEARCH, "search.trial_weights=shared", "search.warmup_steps=6", "sampler=random")
    together(*words, "search.trials=3", "folder=run")
    alone("search", "space.pool=tiny.py:build", "resume=run", "search.trials=5")
    out = together("search", "space.pool=tiny.py:build", "resume=run", "search.trials=7")
    assert "resumed with 5 of 7 trials evaluated" in out
    assert result("run")["trials"]["complete"] == 7
    out = together("search", "space.pool=tiny.py:build", "resume=run", "search.trials=7")
    assert out.startswith("finished: 7 of 7 trials are evaluated")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_callback_of_rank_0_stops_all_ranks():
    Path("mine.py").write_text(
        "import l2l_nas\n"
        "class Enough(l2l_nas.Callback):\n"
        "    def trial(self, record, records):\n"
        "        if len(records) == 2:\n"
        "            raise l2l_nas.Stopped\n"
    )
    code, out, errors = Launched(*SEARCH, "callbacks=[mine.py:Enough]", "folder=run").ended()
    assert code != 0
    assert errors == []
    assert "stopped by callback Enough after 2 of 6 trials, all saved" in out, Path("err").read_text()
    assert result("run")["trials"]["complete"] == 2


BROKEN = """
class Broken(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        if x.device.type == "cpu" and os.environ.get("RANK") == "1":
            raise ValueError("my layer is broken")
        return self.linear(x)

def pool("""


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_trial_that_fails_on_one_rank_is_a_failed_trial_of_all():
    pool, last = Path("tiny.py"), "for name, act in kinds.items()),"
    text = "import os\n" + pool.read_text().replace("\ndef pool(", BROKEN, 1)
    pool.write_text(text.replace(last, last + ' Candidate("broken", lambda: Broken(width)),'))
    words = (*SEARCH, "search.trials=10", "sampler=random", "search.failures=100")
    code, _, lines = Launched(*words, "search.trial_weights=shared", "folder=shared").ended()
    assert code != 0
    # a store that is late has rank 0 say that a connection broke, too
    assert any(re.match(r"error: rank 1 \(.*my layer is broken.*go on with: resume=FOLDER", line) for line in lines)
    together(*words, "folder=two")
    found = result("two")["trials"]
    assert found["failed"] > 0
    assert found["complete"] > 0
    assert found["failed"] + found["complete"] == 10
    reasons = {one["reason"] for one in result("two")["failed"]}
    assert all("my layer is broken" in reason for reason in reasons), reasons


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search.workers=2"], "search.workers=2: several ranks do each trial together; leave it out"),
        (["strategy=blockwise", FORK], "strategy.teacher=0.5: several ranks cannot ask the original for its outputs"),
        (
            ["strategy=blockwise", "strategy.teacher=0", "strategy.scores=divergence", FORK],
            "strategy.scores=divergence: several ranks cannot ask the original for its outputs; use scores=exchange",
        ),
        (["strategy=blockwise", "strategy.teacher=0", "parallel.tensor=2", FORK], "have parallel.tensor=1"),
        (["relay.storage=tiny.py:build"], "relay.storage=tiny.py:build: each of several ranks keeps its part"),
    ],
)
def test_what_ranks_cannot_do_is_refused_before_anything_is_written(words, said):
    codes, lines = apart([[*SEARCH, "folder=run", *words]] * 2)
    assert codes == [2, 2]
    assert [said in line for line in lines] == [True], lines
    assert not Path("run").exists()


@pytest.mark.slow
def test_a_run_without_a_world_does_not_import_torch_distributed_of_its_own():
    code = (
        "import sys; from l2l_nas.__main__ import main;"
        "assert main(['train', 'space.pool=tiny.py:build', 'architecture=original', 'train.steps=1', 'folder=run',"
        "'export=false']) == 0;"
        "print([name for name in sys.modules if name.startswith('l2l_nas.parallel')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines()[-1] == "[]"
