"""Imports point one way: the table below is the architecture."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import l2l_nas

ROOT = Path(l2l_nas.__file__).parents[1]
ORDER = [
    {"version"}, {"errors"}, {"arguments"}, {"files"}, {"contents"}, {"plugins"}, {"space"}, {"eps"}, {"relay"},
    {"parallel"}, {"cost"}, {"layers"}, {"training"}, {"text"}, {"nas"}, {"compress"}, {"report"}, {"runs"},
    {"testing"}, {"cli"}, {"__main__"},
]  # fmt: skip
LEVEL = {package: level for level, packages in enumerate(ORDER) for package in packages}
HOMES = {
    "optuna": "nas",
    "hydra": "cli",
    "omegaconf": "cli",
    "matplotlib": "report",
    "torch.distributed": "parallel",
    "benchmarks": "no room",
    "tests": "no room",
}
SOURCES = sorted((ROOT / "l2l_nas").rglob("*.py"))


def imports_of(tree: ast.AST) -> list[str]:
    """Full names of all that is imported, at any nesting, but under `if TYPE_CHECKING`."""
    names = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names += imports_of(node)
    return names


def room_of(name: str) -> str:
    """The package of `l2l_nas.package.module.name`; names that the package itself offers have none."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LEVEL else ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_its_own_room_and_lower_ones(path):
    own = path.relative_to(ROOT / "l2l_nas").parts[0].removesuffix(".py")
    for name in imports_of(ast.parse(path.read_text())):
        for package, home in HOMES.items():
            if name == package or name.startswith(package + "."):
                assert own == home, f"only l2l_nas/{home} may import {package}"
        if not name.startswith("l2l_nas"):
            continue
        if own == "__init__":
            assert name.startswith("l2l_nas.version"), f"l2l_nas/__init__.py imports {name} at once; load it when used"
            continue
        if not room_of(name):
            assert LEVEL[own] >= LEVEL["cli"], f"{name}: say which package it is from"
            continue
        assert room_of(name) == own or LEVEL[room_of(name)] < LEVEL[own], f"{own} may not import {name}"


def test_no_files_import_each_other_in_a_circle():
    """Imports for types alone count, too: whoever reads one file of a circle must read all."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in SOURCES}
    paths = {name: path for name, path in paths.items() if not name.endswith("__init__")}  # the package's face
    wanted = {
        name: {one for one in _modules(ast.parse(path.read_text())) if one in paths} for name, path in paths.items()
    }
    while ends := [name for name, others in wanted.items() if not others & wanted.keys()]:
        for name in ends:
            del wanted[name]
    assert sorted(wanted) == []


def _modules(tree: ast.AST) -> set[str]:
    """Full names of all modules that are imported, and of what is imported from them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def test_every_room_is_in_the_table():
    packages = {path.relative_to(ROOT / "l2l_nas").parts[0].removesuffix(".py") for path in SOURCES}
    assert packages - {"__init__"} <= set(LEVEL)


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.py")), ids=lambda path: path.name)
def test_search_spaces_use_public_names_only(path):
    for name in imports_of(ast.parse(path.read_text())):
        if name.startswith("l2l_nas"):
            home, _, leaf = name.rpartition(".")
            assert home in ("l2l_nas", "l2l_nas.layers"), name
            assert not leaf.startswith("_")
            if home == "l2l_nas":
                assert leaf in l2l_nas.__all__


@pytest.mark.slow
def test_the_engine_does_without_optuna_hydra_and_matplotlib():
    code = (
        "import sys, l2l_nas; l2l_nas.Relay; l2l_nas.ReferenceTrainer; l2l_nas.ParamServer; l2l_nas.UniformPaths;"
        "print([name for name in ('optuna', 'hydra', 'omegaconf', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_can_be_loaded_and_no_other():
    for name in l2l_nas.__all__:
        assert getattr(l2l_nas, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        l2l_nas.nothing  # noqa: B018


@pytest.mark.slow
def test_a_run_of_one_process_loads_nothing_of_ranks(tmp_path):
    code = (
        "import sys; from pathlib import Path; import l2l_nas; from l2l_nas.testing.problems import searched;"
        f"searched(Path({str(tmp_path / 'run')!r}), trials=2, warmup_steps=1, steps_per_trial=1);"
        "print([name for name in sys.modules if name.startswith('l2l_nas.parallel')])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
