"""The list of benchmarks, and what each module of a benchmark offers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import ROOT, __main__, catalogue
from benchmarks.benches import BENCHES
from benchmarks.options import OptionParser


def test_without_a_name_all_are_listed_each_with_the_time_it_takes(capsys):
    assert __main__.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, entry in catalogue.CATALOGUE.items():
        (line,) = (line for line in lines if line.startswith(f"  {name} "))
        assert line.endswith(f"{entry.about} ({entry.takes})")
        assert len(line) <= 100


def test_an_unknown_name_gets_the_nearest(refused):
    assert refused("throughputs") == "error: no benchmark 'throughputs'; did you mean 'throughput'?"


def test_every_bench_and_every_module_with_a_main_is_in_the_list():
    scripts = [path for path in (ROOT / "benchmarks").glob("*/*.py") if "\ndef main(" in path.read_text()]
    assert {*BENCHES, *(path.stem for path in scripts)} == set(catalogue.CATALOGUE)
    for name, entry in catalogue.CATALOGUE.items():
        assert (entry.room == "") == (name in BENCHES)


@pytest.mark.parametrize("name", catalogue.CATALOGUE)
def test_every_benchmark_says_what_it_does_and_what_it_can_be_told(name):
    script = catalogue.find(name).load(name)
    parser = OptionParser(name, script.__doc__ or "")
    script.add_options(parser)
    said = parser.format_help()
    assert said.startswith(f"usage: python -m benchmarks {name} ")
    assert script.__doc__


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["moments", "--sedes", "3"], "no option '--sedes'; did you mean '--seeds'?"),
        (["moments", "--steps", "0"], "argument --steps: must be at least 1"),
        (["bits"], "the following arguments are required: before"),
        (["images", "none.npz", "none.xz"], "none.npz: no such file"),
        (["search_quality", "--seeds", "0,b"], "argument --seeds: invalid numbers value: '0,b'"),
        (["data", "images"], "images needs --records"),
        (["pruning", "run", "--model", "hf:x"], "run needs --corpus"),
        (["kills", "--scenario", "report and run"], "argument --scenario: invalid choice"),
        (["mutations", "--only", "7"], "argument --only: write file:NUMBER or input:NUMBER, got '7'"),
    ],
)
def test_bad_input_of_scripts_is_one_line_too(refused, words, says):
    assert refused(*words).startswith(f"error: {says}")


def test_a_command_that_fails_beneath_one_is_named(monkeypatch, capsys):
    def fail(name: str) -> catalogue.Entry:
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
