"""The list of benchmarks, and what each module of a benchmark offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import ROOT, __main__, catalogue
from benchmarks.options import OptionParser


def test_without_a_name_all_are_listed_each_with_the_time_it_takes(capsys):
    assert __main__.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (about, takes) in (one for group in catalogue.ROOMS.values() for one in group.items()):
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.endswith(f"{about} ({takes})")
        assert len(line) <= 100


def test_an_unknown_name_gets_the_nearest(refused):
    assert refused("throughputs") == "error: no benchmark 'throughputs'; did you mean 'throughput'?"


def test_every_module_with_a_main_is_in_the_list():
    scripts = [path for path in (ROOT / "benchmarks").glob("*/*.py") if "\ndef add_options(" in path.read_text()]
    assert {path.stem for path in scripts} == set(catalogue.NAMES)


@pytest.mark.parametrize("name", catalogue.NAMES)
def test_every_benchmark_says_what_it_does_and_what_it_can_be_told(name):
    script = catalogue.find(name)
    parser = OptionParser(name, script.__doc__ or "")
    script.add_options(parser)
    said = parser.format_help()
    assert said.startswith(f"usage: python -m benchmarks {name} ")
    assert script.__doc__


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["kills", "--sede", "3"], "unrecognized arguments: --sede 3"),
        (["throughput", "--steps", "0"], "argument --steps: must be at least 1"),
        (["bits"], "the following arguments are required: before"),
        (["images", "none.npz", "none.xz"], "none.npz: no such file"),
        (["search_quality", "--seeds", "b"], "argument --seeds: invalid whole number value: 'b'"),
        (["pruning", "--model", "hf:x"], "the following arguments are required: --text"),
        (["kills", "--scenario", "report and run"], "argument --scenario: invalid choice"),
    ],
)
def test_bad_input_of_scripts_is_one_line_too(refused, words, says):
    assert refused(*words).startswith(f"error: {says}")


def test_a_command_that_fails_beneath_one_is_named(monkeypatch, capsys):
    def fail(name: str) -> None:
        raise subprocess.CalledProcessError(2, ["python", "-m", "l2l_nas", "search"])

    monkeypatch.setattr(__main__, "find", fail)
    assert __main__.main(["search_quality"]) == 1
    assert capsys.readouterr().err == "error: exit code 2: python -m l2l_nas search\n"


@pytest.mark.slow
def test_ctrl_c_ends_one_with_130():
    code = "import benchmarks.catalogue, benchmarks.__main__ as entry\n"
    code += "def stop(name): raise KeyboardInterrupt\n"
    code += "entry.find = stop\nraise SystemExit(entry.main(['bits']))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "stopped\n")
