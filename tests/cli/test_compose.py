"""A single run has what Hydra promises, though Hydra's `main` does not run it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from l2l_nas.__main__ import main
from tests.cli.runs import TINY

FEW = ("search.trials=1", "search.warmup_steps=1", "search.steps_per_trial=1", "search.finalist_steps=1", "folder=run")
SEEN = """\
import os
from hydra.experimental.callback import Callback

seen = []

class Seen(Callback):
    def on_run_start(self, config, **_):
        seen.append(("run", config.hydra.job.name))

    def on_job_start(self, config, **_):
        seen.append(("job", os.environ.get("OF_THE_JOB")))

    def on_job_end(self, config, job_return, **_):
        seen.append(("end", job_return.status.name))
"""


@pytest.fixture
def callbacks(tmp_path, monkeypatch):
    """What a callback of the user's own saw, which a config file names."""
    (tmp_path / "seen_by_hydra.py").write_text(SEEN)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text(
        "defaults:\n  - search\n  - _self_\nhydra:\n  callbacks:\n    seen:\n      _target_: seen_by_hydra.Seen\n"
        "  job:\n    env_set:\n      OF_THE_JOB: here\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import seen_by_hydra

    seen_by_hydra.seen.clear()
    return seen_by_hydra.seen


@pytest.mark.parametrize(("more", "status", "code"), [((), "COMPLETED", 0), (("search.trials=0",), "FAILED", 2)])
def test_callbacks_of_hydra_see_a_run_in_the_environment_of_its_job(pool, callbacks, more, status, code):
    words = ["--config-dir", "conf", "--config-name", "mine", f"space.pool={pool}", *TINY, *FEW, *more]
    assert main(["search", *words]) == code
    assert callbacks == [("run", "search"), ("job", "here"), ("end", status)]
    assert "OF_THE_JOB" not in os.environ


def test_a_run_is_where_hydra_says_and_knows_what_it_was_started_with(pool, tmp_path):
    words = ["search", f"space.pool={pool}", *TINY, *FEW[:-1], "seed=3"]
    assert main([*words, "hydra.run.dir=${hydra:runtime.cwd}/out/${seed}"]) == 0
    place = tmp_path / "out" / "3" / ".hydra"
    assert "seed=3" in yaml.safe_load((place / "overrides.yaml").read_text())
    about = yaml.safe_load((place / "hydra.yaml").read_text())["hydra"]
    assert (about["job"]["name"], about["mode"], about["runtime"]["output_dir"]) == ("search", "RUN", str(place.parent))
    assert Path(yaml.safe_load((place.parent / "config.yaml").read_text())["folder"]) == place.parent


def test_a_config_file_may_ask_for_a_sweep(pool, tmp_path, refused):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "swept.yaml").write_text(
        "defaults:\n  - search\n  - _self_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 0,1\n"
    )
    words = ["--config-dir", "conf", "--config-name", "swept", f"space.pool={pool}", *TINY, *FEW]
    assert main(["search", *words]) == 0
    assert all((tmp_path / "run" / seed / "result.json").exists() for seed in "01")
    assert "multirun.yaml is there already" in refused("search", *words)


def test_a_mistake_of_the_program_is_a_traceback(pool, monkeypatch):
    monkeypatch.setattr("l2l_nas.cli.search.prepared", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["search", f"space.pool={pool}", *FEW])
