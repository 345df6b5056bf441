"""What files of runs tell: settings, results, architectures, networks. Nothing in them is resolved or imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from l2l_nas.arguments import of_argument
from l2l_nas.cost.closed_form import path_states
from l2l_nas.eps.checkpoint import MANIFEST, Checkpoint
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, SpaceError, StorageError, did_you_mean
from l2l_nas.files import parsing, read_bytes, read_json
from l2l_nas.report.comparison import Comparison, goals_of, pair_of
from l2l_nas.report.history import ENDS, Event, last_result, read_events
from l2l_nas.runs.command_line import resume_command
from l2l_nas.runs.fields import typed, value_of
from l2l_nas.runs.folder import SWEEP_CONFIG, RunFolder
from l2l_nas.runs.folder_settings import FolderSettings, must_be_named, name_again, read_settings, typeable
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.mesh import gathers_logits, problem_on, refuse_undivided
from l2l_nas.runs.origin import identity
from l2l_nas.runs.ranks import RunRanks, compare_files, compare_problems
from l2l_nas.runs.section_settings import DataConf, RelayConf
from l2l_nas.runs.settings import SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data, other_data
from l2l_nas.training.overlap import HeldOut, chosen_by
from l2l_nas.training.problem import Problem

if TYPE_CHECKING:
    from l2l_nas.nas.study.reading import StudyContents


def name_in(config: Any, name: str) -> Any:
    """What a setting names: its value, or, where that has arguments, the name in it."""
    found = value_of(config, name)
    return found.get("name") if isinstance(found, Mapping) else found


@dataclass(frozen=True)
class SavedRun:
    """A search or a training, by its folder."""

    folder: RunFolder

    @cached_property
    def settings(self) -> FolderSettings:
        """Its settings; see `read_settings`."""
        return read_settings(self.folder.config)

    @property
    def config(self) -> dict[str, Any]:
        """Those of its settings that a folder may give."""
        return self.settings.config

    @property
    def command(self) -> str:
        """What made it: search or train."""
        if self.folder.config.exists():
            return "search" if isinstance(self.settings.whole.get("search"), dict) else "train"
        return "search" if self.folder.study.exists() or not self.folder.architecture.exists() else "train"

    @cached_property
    def study(self) -> StudyContents | None:
        """What its study tells; None of a training. Raises StorageError: it is damaged."""
        if not self.folder.study.exists():
            return None
        from l2l_nas.nas.study.reading import read_study  # with all of Optuna: only where it is needed

        return read_study(self.folder.study)

    @cached_property
    def events(self) -> Sequence[Event]:
        """What it tells of itself, in order: trials among them of a search, which has them in its study.

        Raises:
            StorageError: they cannot be read.
        """
        if self.study is not None:
            return self.study.events
        return read_events(read_bytes(self.folder.log).decode("utf-8", "replace")) if self.folder.log.exists() else ()

    @property
    def last_end(self) -> Event:
        """What tells how its last session ended; "start" if it was cut off; empty without any.

        Raises:
            StorageError: its events cannot be read.
        """
        return next((event for event in reversed(self.events) if event["event"] in ("start", *ENDS)), {})

    @property
    def noun(self) -> str:
        """The same in a sentence."""
        return {"search": "search", "train": "training"}[self.command]

    def resume_command(self, named: Mapping[str, Any] | None = None) -> str:
        """The command that goes on with it, with these settings said anew."""
        own = typeable(self.settings.withheld) if self.folder.config.exists() else {}
        return resume_command(self.command, self.folder.root, {**own, **(named or {})})

    def refuse_none(self) -> None:
        """Refuse a folder that holds no run. Raises StorageError: it tells what to name, if it holds a sweep."""
        root, folder = self.folder.root, self.folder
        if (root / SWEEP_CONFIG).exists():
            raise StorageError(f"{root} holds a sweep ({SWEEP_CONFIG}); name one of its runs, such as run={root / '0'}")
        if not any(path.exists() for path in (folder.config, folder.study, folder.architecture, folder.result)):
            raise StorageError(f"{root} holds no run")

    def result(self) -> Any:
        """What it came to last, as `result.json` tells it, which nothing here reads.

        Raises:
            StorageError: its events are damaged; or it came to nothing, as the run has not finished.
        """
        result = last_result(self.events)
        if result is not None:
            return result
        self.refuse_none()
        raise StorageError(
            f"{self.folder.root}: no result, as the {self.noun} has not finished; go on with: {self.resume_command()}"
        )


def compared(folders: Sequence[Path]) -> Comparison | None:
    """Searches against random searches, by the first goal; None of fewer than two that have both.

    Raises:
        SettingError: they are for different goals.
        StorageError: a result is missing or damaged.
    """
    pairs, goals = [], []
    for number, folder in enumerate(folders):
        run = RunFolder(folder)
        with of_argument(f"results[{number}]"):
            content = SavedRun(run).result()
            with parsing(run.root, "the result of a search", advice="restore it"):
                goals.append(goals_of(content)[0])
                pairs.append(pair_of(content, goals[-1]))
    if any(goal != goals[0] for goal in goals):
        raise SettingError(f"results: searches for {goals[0].name} and for others cannot be compared")
    return Comparison.of(pairs, goals[0]) if goals else None


@dataclass(frozen=True)
class LoadedRun:
    """The best network of a run, read back; the task is one that its ranks can do, see `problem_on`."""

    root: Path
    problem: Problem
    architecture: Architecture
    server: ParamServer
    result: Mapping[str, Any]
    batch_size: int
    micro_batch: int
    relay: RelayConf


def data_warning(data: Data, result: object, run: Path) -> str:
    """What to tell where data are not those that a run was made with, as far as its result tells; else nothing.

    Of these data's test samples it says how many the run chose by. See [Note: overlap].
    """
    recorded = result.get("data") if isinstance(result, dict) else None
    if not isinstance(recorded, dict):
        return ""
    other = other_data(recorded.get("digest"), data.digest)
    parts = [other] * bool(other) + ["test"] * (recorded.get("test_digest") != data.test_digest)
    if not parts:
        return ""
    line = f"the {' and '.join(parts)} data are others than those of {run}; figures cannot be compared with its own"
    rows = chosen_by(result)
    overlap = HeldOut(data.test).overlap(rows) if rows is not None and data.test is not None else ""
    return f"{line}; it chose by {overlap}, so that a test score is too good" if overlap else line


def load_found(
    run: str,
    *,
    pool: str = "",
    problem: Problem | None = None,
    ranks: RunRanks | None = None,
    tensor: int = 1,
    gather_logits: bool = False,
) -> LoadedRun:
    """Read the best network of a run.

    Args:
        run: the run's folder.
        pool: the pool again if it is the user's own; see [Note: folders of others] in `folder_settings.py`.
        problem: what was searched, instead of its name.
        ranks: each has a part of the weights; all of them call it.
        tensor: how many of them share each layer.
        gather_logits: whether each rank is to have the scores of all tokens, although its task can do without.

    Raises:
        SettingError: no run given, or the pool must be named.
        StorageError: something is missing or damaged.
        SpaceError: layers that the ranks which share them do not divide.
    """
    if not run:
        raise SettingError("name the run's folder: run=runs/...")
    folder = RunFolder(Path(run))
    if not folder.root.is_dir():
        raise StorageError(f"{run}: no such folder")
    saved = SavedRun(folder)
    saved.refuse_none()
    config, withheld = saved.config, saved.settings.withheld
    result = saved.result()
    entry = result.get("best") if isinstance(result, dict) else None
    if isinstance(entry, dict) and entry.get("trained") is False:
        was_stopped = bool(value_of(config, "search.finalists"))  # a callback did, before there was a trained one
        why = "stopped before its finalists were trained" if was_stopped else "this run trained no finalists"
        line = saved.resume_command({} if was_stopped else {"search.finalists": 1})
        raise StorageError(f"{run}: {why}, so that it has no weights; go on with: {line}")
    try:
        space, data, train = config["space"], config["data"], config["train"]
        chosen = pool or str(space.get("pool", ""))
        args = dict(space["args"])
        samples = typed(DataConf, data)
        seed = int(config["seed"])
        batch_size, micro_batch = int(train["batch_size"]), int(train["micro_batch"])
        relay = RelayConf(slots=int(config["relay"]["slots"]))  # its device was another machine's
        best = result["best"]
        choices, values = Architecture.from_choices(best["architecture"]).choices, dict(best["values"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, SettingError) as error:
        raise StorageError(f"{folder.config}, or the result of the run: damaged ({error}); restore it") from None
    own = {name: value for name, value in withheld.items() if name.partition(".")[0] in ("space", "data")}
    own = must_be_named(own, explicit={"space.pool"} if pool else (), schema=SearchConf)
    if own and problem is None:
        raise SettingError(f"{run}: {name_again(own)}")
    problem = problem or load_problem(chosen, args, **asdict(samples))
    # nothing is trained: what the run's optimizer stored is left, and an optimizer of the user's own is not imported
    ranks = ranks or RunRanks()
    compare_problems(ranks, problem)
    compare_files(ranks, folder.best / MANIFEST)
    gathers = gather_logits or gathers_logits(problem)
    server = ranks.server(problem.pool, tensor=tensor, gather_logits=gathers, optimizer=SGD(momentum=0.0), seed=seed)
    architecture = problem.pool.architecture(choices)
    refuse_undivided(server, architecture)
    needs = path_states(problem.pool, architecture)
    if Checkpoint(folder.best).load(server, needs=needs, weights_only=True) != identity(choices, values):
        raise StorageError(
            f"{folder.best}: not the weights that the run's result tells of: a {saved.noun} was cut off "
            f"while it wrote them; let it finish with: {saved.resume_command()}"
        )
    problem = problem_on(problem, server)
    return LoadedRun(folder.root, problem, architecture, server, result, batch_size, micro_batch, relay)


def original_of(
    found: LoadedRun, *, ranks: RunRanks | None = None, tensor: int = 1, gather_logits: bool = False
) -> LoadedRun:
    """The network that a run began with: the first candidates, with the weights that they come with.

    Args:
        ranks, tensor, gather_logits: see `load_found`.

    Raises:
        SettingError: they come with none.
        SpaceError: see `load_found`.
    """
    pool = found.server.whole_pool
    if not any(layer.candidate.has_weights for layer in pool.path(pool.original)):
        raise SettingError(
            f"{found.root}: its pool has no original with weights, as that of a published or converted model has"
        )
    gathers = gather_logits or gathers_logits(found.problem)
    options: dict[str, Any] = {"optimizer": SGD(momentum=0.0), "seed": found.server.seed}
    server = (ranks or RunRanks()).server(pool, tensor=tensor, gather_logits=gathers, **options)
    refuse_undivided(server, pool.original)
    return replace(found, architecture=pool.original, server=server)


SCRATCH = "scratch"
ORIGINAL = "original"  # as an architecture: the first candidate of each position
_OF_A_RUN = {"pool": "weights", "best": "best"}  # sources by name, and their places in the run
_PARTS = ("study.log", "log.jsonl", "weights")  # that a run has once it was begun


@dataclass(frozen=True)
class ChosenArchitecture:
    """An architecture as it was read.

    Args:
        source: the file it is from.
        choices: candidate names; None: those that the pool names first.
        positions: names of the positions they are for; None where the file does not say.
    """

    source: Path
    choices: tuple[str, ...] | None
    positions: tuple[str, ...] | None = None

    def of(self, pool: LayerPool) -> Architecture:
        """The architecture in a pool.

        Raises:
            SettingError: it is not one of this pool, or runs no layer.
        """
        names = tuple(position.name for position in pool.positions)
        if self.positions is not None and self.positions != names:
            differing = [f"'{a}' is '{b}'" for a, b in zip(self.positions, names, strict=False) if a != b][:1]
            why = differing or [f"{len(self.positions)} positions, there are {len(names)}"]
            raise SettingError(f"{self.source}: made for another search space ({why[0]} here); {_ADVICE}")
        try:
            architecture = pool.original if self.choices is None else pool.architecture(self.choices)
        except SpaceError as error:
            raise SettingError(f"{self.source}: not an architecture of this search space: {error}; {_ADVICE}") from None
        if not pool.path(architecture):
            raise SettingError(f"{self.source}: the architecture has no layers: every position is skipped")
        return architecture


def read_enqueued(named: Sequence[str], pool: LayerPool, *, is_given: bool) -> list[Architecture]:
    """The architectures of `search.enqueue`.

    Args:
        named: each a file as `read_choice` takes it, "original", or the candidates as `str(architecture)` gives them.
        pool: whose they are.
        is_given: whether it was given explicitly now. Of those that a run's folder tells, some may have left the pool.

    Raises:
        SettingError, StorageError: one is said that is none of this pool.
    """
    found = []
    for one in named:
        try:
            found.append(_enqueued(one).of(pool))
        except (SettingError, StorageError):
            if is_given:
                raise
    return found


def _enqueued(named: str) -> ChosenArchitecture:
    if named == ORIGINAL or named.endswith(".json"):
        return read_choice("", named, trial=-1)
    return ChosenArchitecture(Path("search.enqueue"), tuple(name.strip() for name in named.split(">")))


_ADVICE = "name the space it is from by space.pool= and space.args."


def read_choice(run: str, architecture: str, *, trial: int) -> ChosenArchitecture:
    """Read an architecture.

    Args:
        run: a run's folder, whose best it is where nothing else is said; or empty.
        architecture: an `architecture.json` or `result.json`; "original", the first candidate of each position; or
            empty.
        trial: number of a trial of the run; -1, its best.

    Raises:
        SettingError: nothing is named, or two things, or a trial without a run.
        StorageError: a file is missing, damaged, or something else; there is no such trial.
    """
    if trial < -1:
        raise SettingError(f"trial must be at least -1, the best, got {trial}")
    if not run and not architecture:
        raise SettingError(
            "name what to train: run=runs/..., its best; architecture=FILE.json; or architecture=original, the first "
            "candidate of each position"
        )
    if architecture == ORIGINAL and not run and trial < 0:
        return ChosenArchitecture(Path(ORIGINAL), None)
    if architecture and Path(architecture).is_dir():
        raise SettingError(f"architecture={architecture} is a folder; the best of a run is named run={architecture}")
    folder = RunFolder(Path(run))
    if trial >= 0:
        from l2l_nas.nas.study.reading import choices_of_trial  # with all of Optuna: only where it is needed

        if architecture or not run:
            raise SettingError(f"trial={trial} is one of a search: name that by run=, and no architecture")
        return ChosenArchitecture(folder.study, choices_of_trial(folder.study, trial))
    if run and not folder.root.is_dir():
        raise StorageError(f"run={run}: no such folder")
    if architecture:
        return _read(Path(architecture))
    if not folder.architecture.exists():
        if folder.config.exists():
            read_settings(folder.config)  # which knows a run of version 0.1.0
        raise StorageError(f"{run}: holds no architecture.json; a search writes it when it has finished")
    return _read(folder.architecture)


def run_of(path: Path) -> RunFolder | None:
    """The run that a file or folder is in, if any: it is the run's own folder, or lies right in it."""
    for root in (path, path.parent):
        # a folder that is none may have links of these names
        if (root / "config.yaml").is_file() and any((root / name).exists() for name in _PARTS):
            return RunFolder(root)
    return None


def is_architecture(path: Path) -> bool:
    """Whether a file is one that `write_architecture` wrote."""
    try:
        return _read(path).positions is not None
    except StorageError:
        return False


def _read(path: Path) -> ChosenArchitecture:
    content: Any = read_json(path)
    positions = None
    try:
        if "best" in content:
            choices = content["best"]["architecture"]
        else:
            choices = content["choices"]
            positions = content.get("positions")
        architecture = Architecture.from_choices(choices)
        if positions is not None:
            positions = Architecture.from_choices(positions).choices
    except (KeyError, TypeError, SpaceError, AttributeError):
        raise StorageError(
            f'{path}: not an architecture; expected {{"choices": [...]}} as in architecture.json, or a result.json'
        ) from None
    return ChosenArchitecture(path, architecture.choices, positions)


def weights_folder(given: str, *, run: RunFolder | None) -> Path | None:
    """The folder of the weights to begin with; None to begin from the seed.

    Args:
        given: what `weights` says.
        run: the run that the architecture is from.

    Raises:
        SettingError: no such source.
        StorageError: there are no weights.
    """
    if given == SCRATCH:
        return None
    if given in _OF_A_RUN:
        if run is None:
            raise SettingError(f"weights={given}: of which run? Name it by run=, or name the weights' folder")
        folder = getattr(run, _OF_A_RUN[given])
    else:
        folder = Path(given)
        if not folder.exists() and folder.name == given:
            raise SettingError(
                f"weights: no '{given}'{did_you_mean(given, (SCRATCH, *_OF_A_RUN))}, or name a folder of weights"
            )
    if not (folder / MANIFEST).is_file():
        raise StorageError(f"{folder}: holds no weights; in a run they are in weights/ and best/")
    return folder
