"""Commands that are killed and resumed, and what must be true of their folders at the end."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import forks, smaller
from l2l_nas.nas.study.reading import read_study
from tests.cli.runs import events, write_pool

# so long a command may take that is not killed
PATIENCE_S = 600.0
POOL = "space.pool=tiny.py:build"
TINY = (
    "search.trial_weights=shared",
    "search.warmup_steps=8",
    "search.trials=10",
    "search.steps_per_trial=1",
    "search.finalists=1",
    "search.finalist_steps=2",
    "search.checkpoint_seconds=0",
    "export=false",
)
OWN = ("search.trial_weights=fork", "search.workers=2")
SAVING = ", saving"  # behind a phase: weights are being saved in it


def with_run(place: Path) -> None:
    """A finished run beside its pool."""
    write_pool(place)
    made = forks.command(place, "search", POOL, *TINY, "folder=run")
    assert made.wait(PATIENCE_S) == 0, made.errors


@dataclass(frozen=True)
class Scenario:
    """A command that is killed.

    Args:
        words: without its folder.
        share: how often it is chosen.
        check: examines the folder when all is done; says what is wrong.
        key: names its folder; empty where it writes none.
        resumes: whether a second call is asked to go on.
        least, most: kills of one life.
        build: writes into a folder what the command needs.
        moments: of its kills, one after the other: phases by name, as its log has them, with `SAVING` where weights
            are to be saved. Without any, kills come at random.
    """

    name: str
    words: tuple[str, ...]
    share: int
    check: Callable[[Path], str]
    key: str = "folder"
    resumes: bool = True
    least: int = 1
    most: int = 4
    build: Callable[[Path], None] = with_run
    moments: tuple[str, ...] = ()

    def command(self, *, again: bool) -> tuple[str, ...]:
        """The words of the first call, or of one that goes on."""
        named = [f"{self.key}=out"] if self.key else []
        goes_on = ["skip_done=true"] if "-m" in self.words else ["resume=out"] if self.resumes else []
        return (*self.words, *named, *(goes_on if again else []))


def trials_of(path: Path) -> dict[int, list[str]]:
    """Finished trials of a run's study, by number, read from a copy as a reader would see it now."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch, path.name)
        shutil.copy(path, copy)
        _, records = read_study(copy)
        return {record.number: list(record.architecture.choices) for record in records}


def whole_weights(folder: Path) -> str:
    """Whether every file that a manifest names is there, with its checksum, and nothing else is."""
    import hashlib

    from l2l_nas.eps.manifest import Manifest

    manifest = Manifest.read(folder / "manifest.json")
    for entry in manifest.entries.values():
        if hashlib.sha256((folder / entry["file"]).read_bytes()).hexdigest() != entry["sha256"]:
            return f"{folder.name}/{entry['file']} is damaged"
    extra = {path.name for path in folder.glob("*.safetensors")} - manifest.files
    return f"{folder.name} holds {len(extra)} files that no save names" if extra else ""


def check_search(folder: Path) -> str:
    """A finished search."""
    from l2l_nas.runs.saved import load_found

    numbers = [event["number"] for event in events(folder)]
    if len(set(numbers)) != len(numbers):
        return "a trial is in the log twice"
    result = json.loads((folder / "result.json").read_text())
    if result["trials"]["complete"] != 10:
        return f"{result['trials']} trials instead of 10"
    if not (folder / "report.html").exists():
        return "no report.html"
    load_found(str(folder), pool=f"{folder.parent / 'tiny.py'}:build")
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_training(folder: Path) -> str:
    """A finished training."""
    result = json.loads((folder / "result.json").read_text())
    steps = [validation["step"] for validation in result["validations"]]
    if steps != sorted(set(steps)) or steps[-1] != 30:
        return f"validations at the steps {steps}"
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_sweep(folder: Path) -> str:
    """Two finished runs."""
    runs = [path for path in folder.iterdir() if path.is_dir()]
    if len(runs) != 2:
        return f"runs {sorted(path.name for path in runs)}"
    for run in runs:
        if json.loads((run / "result.json").read_text())["trials"]["complete"] != 10:
            return f"run {run.name} is not finished"
    return next((said for run in runs if (said := whole_weights(run / "weights"))), "")


def check_export(folder: Path) -> str:
    """What its manifest names is there, and nothing else."""
    named = {about["file"] for about in json.loads((folder / "export.json").read_text())["formats"].values()} - {None}
    there = {path.name for path in folder.iterdir()}
    return "" if there == named | {"export.json"} else f"holds {sorted(there)}, the manifest names {sorted(named)}"


def check_page(path: Path) -> str:
    """A whole page."""
    return "" if path.read_text().rstrip().endswith("</html>") else "a page that is not whole"


def scenarios() -> tuple[Scenario, ...]:
    """All commands."""
    search = ("search", POOL, *TINY)
    sweep = ("search", "-m", POOL, *TINY)
    return (
        Scenario("search", search, 10, check_search),
        Scenario("search with states in files", (*search, "relay.storage=file"), 6, check_search),
        Scenario(
            "search with two workers on weights of their own",
            (*search, *OWN),
            3,
            check_search,
        ),
        Scenario("sweep with two workers", (*sweep, "seed=0,1", *OWN), 1, check_sweep, least=4, most=8),
        Scenario(
            "train",
            (
                "train",
                "run=run",
                POOL,
                "train.steps=30",
                "train.validation_steps=4",
                "train.checkpoint_seconds=0",
                "export=false",
            ),
            6,
            check_training,
        ),
        Scenario("sweep of combinations", (*sweep, "seed=0,1"), 4, check_sweep, least=6, most=8),
        Scenario(
            "export",
            ("export", "run=run", "space.pool=tiny.py:build", "formats=[state_dict]"),
            4,
            check_export,
            "out",
            resumes=False,
        ),
        Scenario("report", ("report", "run=run"), 3, check_page, "out", resumes=False),
        Scenario(
            "search experiment=smaller",
            smaller.WORDS,
            3,
            smaller.check,
            least=2,
            most=5,
            build=smaller.build,
            moments=smaller.MOMENTS,
        ),
        Scenario(
            "evaluate", ("evaluate", "run=run", "space.pool=tiny.py:build"), 2, lambda path: "", "", resumes=False
        ),
    )
