"""Code of the user's that raises, or ends the program: one line that names it, exit code 2, and a page that says so."""

from __future__ import annotations

import pytest

from l2l_nas.__main__ import main
from tests.cli.runs import POOL, TINY, events, start

LAYER = """
class Bad(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
    def forward(self, x):
        if x.device.type != "meta" and WHEN:
            BOOM
        return self.linear(x)

def build(**kinds):
    whole = pool()
    positions = [*whole.positions[:-1], Position("odd", [Candidate("bad", Bad)]), whole.positions[-1]]
    return Problem(LayerPool(positions, inputs=whole.inputs), Data.from_arrays(*data(160)), **PARTS)
"""


def write(folder, *, when="False", boom="pass", parts="{}"):
    text = POOL.replace("def build", "def plain") + LAYER
    head = "import sys\nfrom l2l_nas import *\n"
    (folder / "odd.py").write_text(
        head + text.replace("WHEN", when).replace("BOOM", boom).replace("**PARTS", f"**{parts}")
    )


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Runs a search of the odd pool that must end with exit code 2 and one line; returns the line."""
    monkeypatch.chdir(tmp_path)

    def go(*words, **parts) -> str:
        write(tmp_path, **parts)
        capsys.readouterr()
        assert main(["search", "space.pool=odd.py:build", *TINY, "folder=out", *words]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1, said
        assert "Traceback" not in said
        return said

    return go


@pytest.mark.slow
@pytest.mark.parametrize("budget", ["all", "none"])
@pytest.mark.parametrize(
    ("boom", "says"),
    [
        ("raise RuntimeError('no\\nway')", "raised RuntimeError: no way"),
        ("sys.exit(0)", "called sys.exit(0)"),
        ("raise KeyError('x')", "raised KeyError: 'x'"),
    ],
)
def test_a_layer_that_raises_in_training_is_named_and_the_page_says_so(run, tmp_path, budget, boom, says):
    said = run(f"relay.budget={budget}", when="self.training", boom=boom)
    assert f"position 'odd': candidate 'bad': its layer {says}" in said
    assert says in events(tmp_path / "out", "failed")[0]["reason"]
    page = (tmp_path / "out" / "report.html").read_text() if (tmp_path / "out" / "report.html").exists() else ""
    assert "The search was cut off" not in page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ("dict(constraints=(Require('x', lambda a: 1 / 0),))", "constraint Require raised ZeroDivisionError"),
        ("dict(constraints=(7,))", "constraints[0]"),
        ("dict(costs={'mine': 7})", "costs['mine'] is int"),
        ("dict(costs={'mine': lambda a: sys.exit(0)})", "cost 'mine' called sys.exit(0)"),
        ("dict(task=object())", "task"),
        ("dict(metrics={'mine': Metric(lambda o, t: sys.exit(0))})", "metric 'mine' called sys.exit(0)"),
    ],
)
def test_a_part_of_a_problem_of_a_wrong_type_or_that_raises_is_named(run, tmp_path, parts, says):
    said = run("objectives=[accuracy]", parts=parts)
    assert says in said
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_memory_that_is_missing_is_one_line(run, tmp_path):
    said = run(when="self.training", boom="torch.empty(10**16)")
    assert "out of memory" in said
    assert "train.micro_batch" in said
    assert events(tmp_path / "out", "failed")


@pytest.mark.slow
def test_a_program_collects_garbage_but_not_what_it_imported(tmp_path):
    asked = "import gc\ndef build():\n    raise ValueError(f'{gc.isenabled()} {gc.get_freeze_count() > 100_000}')\n"
    (tmp_path / "asks.py").write_text(asked)
    process = start("search", "space.pool=asks.py:build", "folder=run", cwd=tmp_path)
    assert "True True" in process.communicate()[1]
    assert process.returncode == 2
