"""A run's folder: what lies in it, whose files they are, and what a kill left there.

[Note: other people's files] A new run writes into a folder only where nothing has a name that runs write. What a run
replaces or removes later are files that it wrote: a manifest of its own names them, or their names are those of files
under way. Links to folders are never followed to remove something.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from l2l_nas.eps.scratch import STATES_PREFIX, remove_scratch
from l2l_nas.errors import StorageError
from l2l_nas.files import is_temporary, read_bytes, remove_leftovers
from l2l_nas.nas.study.attributes import is_worker_name

# all that `search` and `train` write
RUN_NAMES = (
    *("config.yaml", ".hydra", "study.db", "study.db-journal", "worker", "pending.jsonl", "log.jsonl"),
    *("weights", "best", "pool", "export"),
    *("result.json", "architecture.json", "report.html", "trace.json"),
    *("timeline.png", "learning_curve.png", "learning_curves.png", "best_so_far.png", "pareto.png", "architecture.png"),
    *("coverage.png", "plan.json", "plan.png"),
)
# all that a sweep writes beside its runs, which are called by their numbers
SWEEP_NAMES = ("multirun.yaml", "summary.json", "sweep.db", "sweep.json", "sweep.png", "0")
# of a study that is being made
_DRAFT = ".study.db.tmp"


@dataclass(frozen=True)
class RunFolder:
    """Paths in a run's folder."""

    root: Path

    @property
    def config(self) -> Path:
        """All settings of the run."""
        return self.root / "config.yaml"

    @property
    def hydra(self) -> Path:
        """What the run was started with, as Hydra writes it."""
        return self.root / ".hydra"

    @property
    def study(self) -> Path:
        """Every finished trial, as Optuna saves them."""
        return self.root / "study.db"

    @property
    def worker(self) -> Path:
        """The name of a run that takes part in a shared study, of which it has no file."""
        return self.root / "worker"

    @property
    def log(self) -> Path:
        """One event a line."""
        return self.root / "log.jsonl"

    @property
    def weights(self) -> Path:
        """The shared weights of the whole pool."""
        return self.root / "weights"

    @property
    def best(self) -> Path:
        """The weights of the best architecture."""
        return self.root / "best"

    @property
    def result(self) -> Path:
        """What was found."""
        return self.root / "result.json"

    @property
    def architecture(self) -> Path:
        """The best architecture alone."""
        return self.root / "architecture.json"

    @property
    def report(self) -> Path:
        """Everything about the run as one page."""
        return self.root / "report.html"

    @property
    def curve(self) -> Path:
        """How a training went."""
        return self.root / "learning_curve.png"

    @property
    def trace(self) -> Path:
        """What each lane of the relay did, for chrome://tracing."""
        return self.root / "trace.json"

    @property
    def timeline(self) -> Path:
        """The same as a picture of the last steps."""
        return self.root / "timeline.png"

    @property
    def plan(self) -> Path:
        """What its steps were predicted to take."""
        return self.root / "plan.json"

    @property
    def plan_picture(self) -> Path:
        """What each lane was predicted to do."""
        return self.root / "plan.png"

    @property
    def pool(self) -> Path:
        """The states of the whole pool while a run goes on that keeps them in files."""
        return self.root / "pool"

    @property
    def export(self) -> Path:
        """The best network as plain PyTorch."""
        return self.root / "export"

    @property
    def is_worker(self) -> bool:
        """Whether a run has got its name among those that share a study."""
        try:
            return is_worker_name(read_bytes(self.worker).decode().strip())
        except (StorageError, ValueError):
            return False

    @property
    def has_joined(self) -> bool:
        """Whether a run has taken part in a shared study; one that could not reach it has a name alone."""
        return self.worker.exists() and self.config.exists()

    @property
    def is_begun(self) -> bool:
        """Whether it holds more than settings, and what a run leaves that was killed before it had a study."""
        return any(not _is_left(path) for path in self.root.iterdir()) if self.root.is_dir() else False


def refuse_taken(root: Path, names: Collection[str] = RUN_NAMES, *, but: Collection[str] = ()) -> None:
    """Refuse a folder for something new; see [Note: other people's files].

    Args:
        names: what would be written.
        but: those that are known to be of the same run.

    Raises:
        StorageError: something of that name is there, or the folder cannot be read.
    """
    for name in names:
        path = root / name
        if name not in but and (path.exists() or path.is_symlink()):
            raise StorageError(f"{path} is there already and would be overwritten; choose another folder, or move it")


def tidy(folder: RunFolder) -> None:
    """Remove what killed processes left in a run's folder. Whoever calls holds its lock."""
    for place in (folder.root, folder.weights, folder.best, folder.export):
        remove_leftovers(place)
    remove_scratch(folder.pool)


def _is_left(path: Path) -> bool:
    if path.name == "pool" and path.is_dir():
        return all(_is_left(one) or one.name.startswith(STATES_PREFIX) for one in path.iterdir())
    return (
        path.name.startswith(_DRAFT) or path.name in ("error.txt", "config.yaml", ".hydra") or is_temporary(path.name)
    )
