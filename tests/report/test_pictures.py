from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from l2l_nas.errors import StorageError
from l2l_nas.nas.objectives import Goal, TrialRecord
from l2l_nas.report.pictures import write_pictures
from tests.report.examples import ACCURACY, PARAMETERS, some_trials, trial
from tests.report.pages import results_of

NAMES = ["best_so_far.png", "pareto.png", "architecture.png"]


@pytest.mark.parametrize("goals", [(ACCURACY,), (ACCURACY, PARAMETERS)])
@pytest.mark.parametrize("records", [some_trials(), [trial(0)], []])
def test_three_pictures_are_written_whatever_became_of_the_trials(
    tmp_path: Path, goals: tuple[Goal, ...], records: list[TrialRecord]
) -> None:
    image = pytest.importorskip("matplotlib.image")
    paths = write_pictures(tmp_path, results_of(records, goals))
    assert [path.name for path in paths] == NAMES
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(NAMES)  # no temporary file stays
    for path in paths:
        pixels = image.imread(path)[..., :3]
        assert pixels.min() < 0.5
        assert pixels.mean() > 0.8


def test_learning_curves_are_a_picture_more_where_networks_were_scored_on_their_way(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    records = [replace(record, rungs={"5/20": {"accuracy": 0.1}}) for record in some_trials()]
    paths = write_pictures(tmp_path, results_of(records, [ACCURACY]))
    assert [path.name for path in paths] == [*NAMES, "learning_curves.png"]


def test_without_matplotlib_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    assert write_pictures(tmp_path, results_of(some_trials(), [ACCURACY])) == []
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(StorageError, match=r"best_so_far\.png.*no such file or folder"):
        write_pictures(tmp_path / "none", results_of(some_trials(), [ACCURACY]))


@pytest.mark.slow
def test_the_report_is_imported_without_matplotlib_and_never_with_pyplot() -> None:
    code = (
        "import sys, l2l_nas.report.pictures, l2l_nas.report.table\n"
        "assert 'matplotlib' not in sys.modules\n"
        "from l2l_nas.report.charts.chart import Chart, Sheet\n"
        "l2l_nas.report.pictures.png_of(Sheet((Chart('a title', message='a message'),)))\n"
        "assert 'matplotlib.figure' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    pytest.importorskip("matplotlib")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
