"""A wheel built from the tree, in another virtual environment and an empty folder."""

from __future__ import annotations

import ast
import json
import os
import re
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from l2l_nas.errors import SettingError
from l2l_nas.nas.evaluation.engines import ENGINES, check_installed
from tests.test_imports import SOURCES, imports_of

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
# packages that are imported by another name than they are installed by
IMPORTED_AS = {
    "hydra-core": "hydra", "pyyaml": "yaml", "scikit-learn": "sklearn", "pillow": "pil", "mlflow-skinny": "mlflow",
}  # fmt: skip
OF_DEVELOPERS = {"nas201", "docs", "test"}


def declared(requirements: list[str]) -> set[str]:
    """Names that these requirements are imported by."""
    names = [re.match(r"[\w-]+", one)[0].lower() for one in requirements]
    return {IMPORTED_AS.get(name, name).replace("-", "_") for name in names}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_file_imports_is_declared(path: Path) -> None:
    tree = ast.parse(path.read_text())
    needed = {name.partition(".")[0].lower() for name in imports_of(tree)} - {*sys.stdlib_module_names, "l2l_nas"}
    extras = {name for extra, more in EXTRAS.items() if extra not in OF_DEVELOPERS for name in declared(more)}
    assert needed <= declared(PROJECT["dependencies"]) | extras


def test_every_extra_that_a_line_or_a_page_names_is_declared_and_each_is_named() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    named = {one for path in [*SOURCES, *pages] for one in re.findall(r"l2l-nas\[([\w-]+)\]", path.read_text())}
    assert named <= EXTRAS.keys() | ENGINES.keys()
    for page in ("README.md", "docs/install.md"):
        assert [name for name in EXTRAS.keys() - OF_DEVELOPERS if f"`{name}`" not in (ROOT / page).read_text()] == []


def test_an_engine_whose_package_is_missing_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr("l2l_nas.plugins.importlib.import_module", missing)
    for name in ENGINES.keys() - {"processes"}:  # which needs loky, as all do
        assert ENGINES[name].package in declared(EXTRAS[name])
        with pytest.raises(SettingError, match=re.escape(f"l2l-nas[{name}]")):
            check_installed(name)


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
    words = ["data.source=digits", "search.steps_per_trial=1", "folder=learned"]
    assert "learns from 300 networks of 3 earlier tasks" in run(
        "-m", "l2l_nas", "search", *words, "export=false", *budget
    )
    sweep = ["seed=0", "folder=sweep"]
    run("-m", "l2l_nas", "search", "-m", *sweep, "space=digits_shared", "export=false", *budget)
    assert "accuracy" in json.loads((empty / "sweep" / "summary.json").read_text())["runs"][0]
