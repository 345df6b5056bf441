from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.nas.strategies.coverage import Coverage
from l2l_nas.report.pictures import parameters_by_position, write_pictures
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.shapes import check_shapes
from tests.report.examples import ACCURACY, PARAMETERS, small_pool, some_trials, trial

NAMES = ["best_so_far.png", "pareto.png", "architecture.png"]


@pytest.mark.parametrize("goals", [(ACCURACY,), (ACCURACY, PARAMETERS)])
@pytest.mark.parametrize("records", [some_trials(), [trial(0)], []])
def test_three_pictures_are_written_whatever_became_of_the_trials(
    tmp_path: Path, goals: tuple[Goal, ...], records: list[TrialRecord]
) -> None:
    image = pytest.importorskip("matplotlib.image")
    pool = small_pool()
    paths = write_pictures(tmp_path, records, goals, pool=pool, boundaries=check_shapes(pool))
    assert [path.name for path in paths] == NAMES
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)  # no temporary file stays
    for path in paths:
        pixels = image.imread(path)[..., :3]
        assert pixels.min() < 0.5
        assert pixels.mean() > 0.8


def test_coverage_is_a_picture_more_where_something_was_trained(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pool = small_pool()
    coverage = Coverage(pool)
    written = [
        [p.name for p in write_pictures(tmp_path, [], [ACCURACY], pool=pool, boundaries=check_shapes(pool), coverage=c)]
        for c in (None, coverage)
    ]
    coverage.add("warmup", pool.architecture(["stem", "wide", "wide", "skip", "head"]))
    paths = write_pictures(tmp_path, [], [ACCURACY], pool=pool, boundaries=check_shapes(pool), coverage=coverage)
    assert written == [NAMES, NAMES]
    assert [path.name for path in paths] == [*NAMES, "coverage.png"]


def test_without_matplotlib_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    pool = small_pool()
    assert write_pictures(tmp_path, some_trials(), [ACCURACY], pool=pool, boundaries=check_shapes(pool)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    pool = small_pool()
    with pytest.raises(StorageError, match=r"best_so_far\.png.*no such file or folder"):
        write_pictures(tmp_path / "none", some_trials(), [ACCURACY], pool=pool, boundaries=check_shapes(pool))


@pytest.mark.parametrize("shared", [False, True])
def test_the_parameters_of_the_positions_add_up(shared: bool) -> None:
    pool = small_pool(shared=shared)
    architecture = Architecture(("stem", "wide", "wide", "skip", "head"))
    counts = parameters_by_position(pool, architecture)
    assert counts == {"stem": 20, "layer_00": 76, "layer_01": 0 if shared else 76, "head": 10}
    assert sum(counts.values()) == num_parameters(pool, architecture)


def test_the_report_is_imported_without_matplotlib_and_never_with_pyplot() -> None:
    code = (
        "import sys, l2l_nas.report.pictures, l2l_nas.report.table\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from l2l_nas.report.plots import best_so_far_figure\n"
        "best_so_far_figure([], [__import__('l2l_nas.nas.objectives').nas.objectives.Goal('loss', False)])\n"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
