"""The pages of docs/ as a site."""

from __future__ import annotations

import dataclasses
import inspect
import re
import runpy
import subprocess
import sys
from types import FunctionType

import pytest
import yaml

from l2l_nas import Callback
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.storage import Storage
from l2l_nas.nas.evaluation.early_stopping import EarlyStop
from l2l_nas.nas.objectives import TrialRecord
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.space.constraint import Constraint, Graded
from l2l_nas.space.parameters import Parameter
from l2l_nas.training.schedule import Schedule
from l2l_nas.training.task import Task
from tests.cli.runs import ROOT
from tests.test_readme import PAGES

LINK = re.compile(r"\]\(([^)\s]+)\)")
NET = re.compile(r"""(?:src=|href=|url\(|@import\s)["']?(?:https?:)?//([^"' )>]+)""")


@pytest.mark.parametrize("page", PAGES)
def test_links_between_pages_lead_somewhere(page):
    for link in LINK.findall(re.sub(r"`[^`]*`", "", PAGES[page])):
        path = link.split("#")[0]
        if path and "://" not in path:
            target = ((ROOT / page).parent / path).resolve()
            assert target.exists(), link
            assert page == "README.md" or ROOT / "docs" in target.parents, f"{link} is not in the site"


def test_every_page_is_in_the_navigation():
    def leaves(entry):
        return [entry] if isinstance(entry, str) else [x for one in entry for x in leaves(_value(one))]

    def _value(one):
        return next(iter(one.values())) if isinstance(one, dict) else one

    nav = leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(f"docs/{name}" for name in nav) == sorted(set(PAGES) - {"README.md"})


def test_the_page_of_settings_is_up_to_date():
    page = runpy.run_path(str(ROOT / "docs" / "settings_page.py"))["page"]()
    assert PAGES["docs/settings.md"] == page, "run: python docs/settings_page.py"


def test_the_site_builds_and_loads_nothing_from_the_net(tmp_path):
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for path in (tmp_path / "site").rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            text = re.sub(r"<a [^>]*>", "", path.read_text())  # a link is followed by whoever wants to
            assert not NET.findall(text), path


def _names(kind: type) -> set[str]:
    fields = {field.name for field in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    return {name for name in {*vars(kind), *fields} if not name.startswith("_")}


def _is_told(kind: type, name: str) -> bool:
    member = inspect.getattr_static(kind, name, None)
    if isinstance(member, FunctionType | property):
        return bool(member.__doc__)
    listed = rf"^ +(?:\w+, )*{name}(?:, \w+)*: "
    return any(re.search(listed, base.__doc__ or "", re.MULTILINE) for base in kind.__mro__)


@pytest.mark.parametrize(
    ("kind", "left_out"),
    [
        (Callback, set()),
        (TrialRecord, {"to_json"}),
        (Finalist, {"entry", "to_json", "from_json"}),
        (Phase, set()),
        (SearchContext, set()),
        (EarlyStop, set()),
        (Storage, set()),
        (Optimizer, set()),
        (Parameter, set()),
        (Schedule, set()),
        (Constraint, set()),
        (Graded, set()),
        (Task, set()),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_docstrings_list_whole_what_an_extension_meets(kind, left_out):
    assert [name for name in sorted(_names(kind) - left_out) if not _is_told(kind, name)] == []


@pytest.mark.parametrize("kind", [TrialRecord, Finalist, EarlyStop, Storage, LayerState, Optimizer, Parameter])
def test_the_page_names_where_they_stand(kind):
    assert f"`{kind.__module__}.{kind.__name__}`" in PAGES["docs/extending.md"]
