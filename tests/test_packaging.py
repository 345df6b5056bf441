"""A wheel built from the tree, in another virtual environment and an empty folder."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return next(out.glob("*.whl"))


@pytest.mark.slow
def test_the_wheel_holds_configs_and_spaces(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert "l2l_nas/runs/shipped_memory.json" in names
    for folder in ("conf", "search_spaces"):
        for path in (ROOT / folder).rglob("*.*"):
            if "__pycache__" not in path.parts:
                assert f"l2l_nas/{folder}/{path.relative_to(ROOT / folder)}" in names


@pytest.mark.slow
def test_the_wheel_holds_no_benchmarks_and_no_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"l2l_nas"}
    assert not [
        name for name in names if "bench" in Path(name).name and "nas_bench_201" not in name and "nasbench" not in name
    ]


@pytest.mark.slow
def test_the_wheel_searches_in_an_empty_folder_of_another_environment(wheel: Path, tmp_path: Path) -> None:
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    packages = next((home / "lib").glob("python*/site-packages"))
    zipfile.ZipFile(wheel).extractall(packages)
    # what it depends on comes from this environment: listed last, so that the wheel's own files win
    (packages / "_dependencies.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    empty = tmp_path / "empty"
    empty.mkdir()
    python = str(home / "bin" / "python")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}

    def run(*words: str) -> str:
        done = subprocess.run([python, *words], cwd=empty, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert str(home) in run("-c", "import l2l_nas; print(l2l_nas.__file__)")
    budget = ["search.trials=3", "search.warmup_steps=4", "search.finalists=1", "search.finalist_steps=2"]
    run("-m", "l2l_nas", "search", "space=digits_shared", "folder=out", "export=false", *budget)
    assert json.loads((empty / "out" / "result.json").read_text())["trials"]["complete"] == 3
    words = ["data.source=digits", "search.learn_from=shipped", "search.steps_per_trial=1", "folder=learned"]
    assert "memory: 300 networks of 3 earlier tasks" in run("-m", "l2l_nas", "search", *words, "export=false", *budget)
    sweep = ["seed=0", "folder=sweep"]
    run("-m", "l2l_nas", "search", "-m", *sweep, "space=digits_shared", "export=false", *budget)
    assert "accuracy" in json.loads((empty / "sweep" / "summary.json").read_text())[0]
