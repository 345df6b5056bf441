"""The folder of an export: what is replaced, what is left alone, and what a kill leaves."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from l2l_nas.errors import StorageError
from l2l_nas.training.export import FORMATS, ExportError, build_network, export_network, remove_export
from l2l_nas.training.formats import Format
from tests.training.exports import linear_problem, made


class Moody(nn.Linear):
    """Every call gives something else."""

    calls = 0

    def forward(self, x):
        type(self).calls += 1
        return super().forward(x) + type(self).calls


def test_a_network_that_computes_something_else_than_the_relay_is_not_written(tmp_path):
    problem = linear_problem(Moody)
    server, architecture = made(problem.pool, ["x"])
    with pytest.raises(ExportError, match=r"plain module: its outputs differ from the relay's by \d"):
        export_network(server, architecture, tmp_path / "out", problem=problem, micro_batch=5)
    assert not (tmp_path / "out").exists()


class Doubled(Format):
    """A format that gives other numbers back."""

    files = ("doubled",)
    is_exact = False

    def require(self):
        pass

    def write(self, source, path):
        path.write_text("x")

    def read(self, path, source):
        network = source.empty()
        return lambda batch: (network(*batch).detach() * 2,)


def test_a_format_that_gives_other_outputs_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "doubled", Doubled())
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=5, formats=["doubled"])
    assert str(export.refused["doubled"]).startswith("its outputs differ from the relay's by")
    assert not (tmp_path / "doubled").exists()


class Unreadable(Doubled):
    def read(self, path, source):
        raise StorageError("it lacks a bias")


def test_a_format_that_cannot_be_read_again_keeps_no_other_from_being_written(tmp_path, monkeypatch):
    monkeypatch.setitem(FORMATS, "broken", Unreadable())
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    formats = ["broken", "state_dict"]
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=5, formats=formats)
    assert "what was written cannot be read: it lacks a bias" in str(export.refused["broken"])
    assert "state_dict" in export.formats
    assert (tmp_path / "export.json").exists()


class InTwo(Doubled):
    """As ONNX with weights beyond 2 GB."""

    files = ("two.data", "two")

    def write(self, source, path):
        path.write_text("x")
        path.with_name("two.data").write_text("weights")

    def read(self, path, source):
        assert path.with_name("two.data").read_text() == "weights"
        return lambda batch: (self.network(*batch).detach(),)


def test_a_format_of_two_files_comes_and_goes_with_both(tmp_path, monkeypatch):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    how = InTwo()
    how.network = build_network(server, architecture)
    monkeypatch.setitem(FORMATS, "two", how)
    export_network(server, architecture, tmp_path, problem=problem, micro_batch=5, formats=["two"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.json", "two", "two.data"]
    export_network(server, architecture, tmp_path, problem=problem, micro_batch=5, formats=["state_dict"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["export.json", "state_dict.safetensors"]


def test_an_export_replaces_the_one_before_and_nothing_else(tmp_path):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "model.onnx").write_text("mine")
    export_network(server, architecture, tmp_path, problem=problem, micro_batch=5)
    assert (tmp_path / "model.onnx").read_text() == "mine"  # there was no export of ours before
    export_network(server, architecture, tmp_path, problem=problem, micro_batch=5, formats=["state_dict"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"export.json", "notes.txt", "model.onnx", "state_dict.safetensors"}
    assert (tmp_path / "model.onnx").read_text() == "mine"  # the manifest never named it


def test_what_its_user_changed_is_no_export_s_any_more(tmp_path):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    run = partial(export_network, server, architecture, tmp_path, problem=problem, micro_batch=5)
    run(formats=["state_dict", "program"])
    (tmp_path / "model.pt2").write_text("changed by hand")
    with pytest.raises(ExportError, match=r"model\.pt2 is there already, and no export wrote it"):
        run(formats=["program"])
    run(formats=["state_dict"])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"export.json", "model.pt2", "state_dict.safetensors"}
    assert (tmp_path / "model.pt2").read_text() == "changed by hand"


def test_a_manifest_without_digests_says_whose_files_these_are_too(tmp_path):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    run = partial(export_network, server, architecture, tmp_path, problem=problem, micro_batch=5)
    run()
    (tmp_path / "notes.txt").write_text("mine")
    content = json.loads((tmp_path / "export.json").read_text())
    content["files"] = ["model.pt2", "state_dict.safetensors", "notes.txt", "../state_dict.safetensors", 3]
    (tmp_path / "export.json").write_text(json.dumps(content))
    run(formats=["state_dict"])
    assert {path.name for path in tmp_path.iterdir()} == {"export.json", "notes.txt", "state_dict.safetensors"}


@pytest.mark.parametrize("name", ["state_dict.safetensors", "export.json", "model.pt2"])
def test_an_export_never_replaces_what_no_export_wrote(tmp_path, name):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    (tmp_path / name).write_text("[1]")
    with pytest.raises(ExportError, match=f"{name} is there already, and no export wrote it"):
        export_network(server, architecture, tmp_path, problem=problem, micro_batch=5)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "[1]")]


def test_an_export_that_was_killed_before_its_manifest_is_made_again_and_can_be_removed(tmp_path, monkeypatch):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    run = partial(export_network, server, architecture, tmp_path / "out", problem=problem, micro_batch=5)
    with monkeypatch.context() as patch:
        patch.setattr("l2l_nas.training.export._ExportFolder.write_manifest", lambda *given: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(formats=["state_dict"])
    left = tmp_path / "out" / ".export.999999999.l2l_nas.tmp"
    left.mkdir()
    (left / "model.pt2").write_text("half")
    run(formats=["state_dict"])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["export.json", "state_dict.safetensors"]
    (tmp_path / "link").symlink_to(tmp_path / "out")
    remove_export(tmp_path / "link")
    assert (tmp_path / "out" / "export.json").exists()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    remove_export(tmp_path / "out")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["notes.txt"]


def test_what_says_whose_files_these_are_goes_last(tmp_path, monkeypatch):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    export_network(server, architecture, tmp_path / "out", problem=problem, micro_batch=5)
    removed, unlink = [], Path.unlink
    monkeypatch.setattr(Path, "unlink", lambda path, **named: (removed.append(path.name), unlink(path, **named)))
    remove_export(tmp_path / "out")
    assert len(removed) > 2
    assert removed[-1] == "export.json"


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    problem = linear_problem(nn.Linear)
    server, architecture = made(problem.pool, ["x"])
    (tmp_path / "out").write_text("a file")
    with pytest.raises(StorageError, match="out: part of the path is a file"):
        export_network(server, architecture, tmp_path / "out", problem=problem, micro_batch=5)
