"""`l2l_nas.search(world=...)`: the search of several ranks, called by a program that torchrun started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import l2l_nas
from l2l_nas.errors import SettingError
from tests.cli.runs import environment, write_pool
from tests.cli.test_ranks import Launched, of_any_ranks, result, together, weights

PROGRAM = """
import json, sys
import optuna
from pathlib import Path
import l2l_nas
from l2l_nas.parallel.entry import run_ranked
from tiny import build

class Enough(l2l_nas.Callback):
    def trial(self, record, records):
        if len(records) == 3:
            raise l2l_nas.Stopped

def main(world=None):
    settings = json.loads(sys.argv[1])
    if "differs" in settings:
        settings = {"seed": world.rank}
    callbacks = [Enough()] if settings.pop("stops", False) else []
    found = l2l_nas.search(
        build(width=200), trials=4, steps_per_trial=4, finalists=2, finalist_steps=8,
        sampler=optuna.samplers.RandomSampler(seed=1), optimizer=l2l_nas.SGD(momentum=0.9),
        train={"micro_batch": 16}, relay={"threads": 1}, export=False, callbacks=callbacks, world=world, **settings
    )
    rank = world.rank if world is not None else "one"
    Path(f"rank{rank}.json").write_text(json.dumps([str(found.folder), found.best.test, len(found.study.trials)]))

if __name__ == "__main__":
    run_ranked(main) if sys.argv[2:] else main()
"""


@pytest.fixture(autouse=True)
def _place(tmp_path, monkeypatch):
    write_pool(tmp_path)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)


def words(**settings) -> str:
    return json.dumps(settings)


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ranks_share_a_search_that_a_program_calls():
    one = [sys.executable, "program.py", words(folder="one", parallel={"chunks": 2})]
    subprocess.run(one, env=environment(), check=True, capture_output=True, timeout=100)
    out = together(words(folder="two"), "ranks", program=("program.py",))
    assert out.count("2 ranks share each step") == 1
    assert of_any_ranks(result("two")) == of_any_ranks(result("one"))
    assert weights("two/best") == weights("one/best")
    expected = json.loads(Path("rankone.json").read_text())
    for rank in (0, 1):
        found = json.loads(Path(f"rank{rank}.json").read_text())
        assert found[1:] == expected[1:]
        assert Path(found[0]).resolve() == Path("two").resolve()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_a_callback_ends_the_call_on_all_ranks_and_a_resume_goes_on():
    together(words(folder="run", stops=True), "ranks", program=("program.py",))
    assert [json.loads(Path(f"rank{rank}.json").read_text())[2] for rank in (0, 1)] == [3, 3]
    assert result("run")["trials"]["complete"] == 3
    together(words(resume="run"), "ranks", program=("program.py",))
    assert result("run")["trials"]["complete"] == 4


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(100)
def test_a_call_that_differs_between_ranks_is_one_line():
    code, _, errors = Launched(words(differs=True), "ranks", program=("program.py",)).ended()
    assert code != 0
    assert ["seed is 1 on rank 1, and 0 on rank 0" in line for line in errors] == [True]
    assert not Path("runs").exists()


def test_a_world_that_is_none_is_refused():
    with pytest.raises(SettingError, match="world takes what run_ranked gives a program"):
        l2l_nas.search("digits_conv", world=2)
