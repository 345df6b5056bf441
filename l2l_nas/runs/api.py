"""The search as a Python call. `python -m l2l_nas search` is the same, with words of a command line."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from markupsafe import escape
from torch import nn

from l2l_nas.arguments import check_kind, check_list, check_methods, check_path, of_argument, refuse_class
from l2l_nas.eps.agreement import broadcast_bytes
from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import parsing
from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.evaluation.early_stopping import check_early_stop
from l2l_nas.nas.study.reading import load_study
from l2l_nas.nas.study.study import optuna_as_it_was
from l2l_nas.report.card import space_summary
from l2l_nas.report.comparison import Comparison, goals_of
from l2l_nas.report.html.notebook import render_result
from l2l_nas.report.network import Network, RandomBaseline, in_order
from l2l_nas.report.results import Results
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.follow import joined, lead_or_follow
from l2l_nas.runs.locate import check_space
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.saved import SavedRun, compared, load_found
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.training.export import build_network
from l2l_nas.training.problem import Problem

if TYPE_CHECKING:
    import optuna

    from l2l_nas.parallel.world import World
import datetime
import numbers
from types import NoneType

from l2l_nas.arguments import shown
from l2l_nas.cost.own import named_costs
from l2l_nas.errors import did_you_mean
from l2l_nas.plugins import GIVEN, GIVEN_PROBLEM
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import Declared, changed, declared, entries, fitting, settings, titles
from l2l_nas.runs.settings import PLACES, SearchConf
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.shapes import check_shapes


@dataclass(frozen=True)
class SearchResult:
    """What a search found; all of it is read from the run's folder.

    Args:
        folder: the run's.
        problem: what was searched.

    Raises:
        SettingError: one of these is something else.
    """

    folder: Path
    problem: Problem = field(repr=False)  # it holds all data

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", check_path("SearchResult: folder", self.folder))
        check_kind("SearchResult: problem", self.problem, Problem, wanted="a Problem")

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """What it came to last, as `result.json` has it; see `docs/study.md`.

        Raises:
            StorageError: the study is damaged; or there is none, as the search has not finished.
        """
        with parsing(self.folder, "the result of a search", advice="restore it"):
            return dict(SavedRun(RunFolder(self.folder)).result())

    @cached_property
    def best(self) -> Network:
        """The network that is returned: the best on the validation part."""
        return Network.from_json(self.content["best"])

    @cached_property
    def pareto(self) -> tuple[Network, ...]:
        """The front of the finalists that were trained to the end, or of trials where none were trained."""
        return tuple(map(Network.from_json, self.content["pareto"]))

    @cached_property
    def finalists(self) -> tuple[Network, ...]:
        """All that were trained further."""
        return tuple(map(Network.from_json, self.content["finalists"]))

    @cached_property
    def baseline(self) -> Network | None:
        """The best of random search of as many steps; None without `baseline="random"`."""
        entry = self.content["baseline"]
        return RandomBaseline.from_json(entry).best if entry else None

    @property
    def test(self) -> Mapping[str, float] | None:
        """Metrics of the best network on the test part, which nothing was chosen by."""
        return self.best.test

    @property
    def study(self) -> optuna.Study:
        """All trials, as Optuna has them.

        Raises:
            StorageError: the study is missing or damaged.
        """
        return load_study(RunFolder(self.folder).study)

    def _repr_html_(self) -> str:
        """What a notebook shows; of a search that has not finished its text, which says how to go on."""
        try:
            content = self.content
        except StorageError as error:
            return f"<p>{escape(str(error))}</p>"
        pool, goals = self.problem.pool, goals_of(content)
        trained = in_order([one for one in self.finalists if one.trial != self.best.trial], goals)
        finalists = (self.best, *trained) if self.best.is_trained else tuple(trained)
        results = Results(space_summary(pool, check_shapes(pool)), tuple(goals), (), finalists, self.best)
        page = RunFolder(self.folder).report
        return render_result(results, page=os.path.relpath(page) if page.exists() else "")

    def network(self) -> nn.Module:
        """The best network with its weights, as a plain module in evaluation mode.

        Raises:
            StorageError: there are no weights, or they are damaged.
        """
        found = load_found(str(self.folder), problem=self.problem)
        return build_network(found.server, found.architecture)


def search(
    problem: Problem | str,
    *,
    progress: bool = True,
    callbacks: Sequence[Callback | str] = (),
    world: World | None = None,
    **settings: Any,
) -> SearchResult:
    """Search for the best architecture of a problem.

    It writes what the command writes, into the same kind of folder, and goes on with a run of either.

    Args:
        problem: layers, data and task; or the name of a space, as `space.pool` takes it.
        progress: whether to print how far it is, what was found, and warnings.
        callbacks: that see it go by; objects, or names, as in `callbacks=[FILE.py:NAME]`. Of several ranks, rank 0 has
            them.
        world: the ranks that `run_ranked` joined, which share each trial: all of them make the same call, and get the
            result.
        **settings: see `python -m l2l_nas search --help`. Those of `search.` by their names (`trials=64`), then
            `seed`, `folder` (by default `runs/DATE_TIME`), `resume`, `export`, `objectives=["accuracy"]`, and the
            sections `train`, `relay`, `data` and `space` as a dict, such as `train={"batch_size": 32}`. `sampler`,
            `strategy`, `optimizer` and `schedule` are a name, or a dict of it and its arguments: `sampler="tpe"`,
            `optimizer={"name": "sgd", "momentum": 0.8}`. These, `early_stop`, `costs` and the relay's `storage` may be
            objects, too: a sampler of Optuna's kind, a list of phases, an optimizer or `Groups`, a function of the peak
            and the steps, a rule, functions as a list or a dict by name, a storage. `executor` is a name with its
            arguments, or any `concurrent.futures.Executor`, with `workers=` for how many trials it runs at a time.
            Going on with a run these are given again. `learn_from` is one, or a list, of folders of runs, of what
            `search` returned, and of `"shipped"`, as `search.learn_from` takes them.

    Raises:
        L2LError: whatever is wrong with the problem or the settings, before anything is written.
        KeyboardInterrupt: it was stopped by Ctrl-C; what is done is saved, and `resume=FOLDER` goes on with it. Where a
            callback raises `Stopped`, what was found so far is returned.

    Example:
        >>> result = l2l_nas.search(problem, trials=32, seed=1)
        >>> result.best.architecture, result.test, result.network()
    """
    if not isinstance(problem, str | Problem):
        raise SettingError(
            f"problem takes a Problem or the name of a space, got {type(problem).__name__}; write Problem(pool, data)"
        )
    if isinstance(problem, str):
        check_space("problem", problem)
    check_kind("progress", progress, bool, wanted="True or False")
    if world is not None:
        check_methods("world", world, ["rejoin"], wanted="what run_ranked gives a program")
    for one in check_list("callbacks", callbacks, of=object, wanted="callbacks"):
        refuse_class("callbacks", one)
    own, named = parted(settings)
    check_early_stop(own.get("search.early_stop", "none"))
    whole = {} if isinstance(problem, str) else {"problem": problem}
    conf = replace(conf_of(problem, named), objects={**own, **whole, "callbacks": callbacks})
    resume_command = f'l2l_nas.search(..., resume="{conf.resume or conf.folder}")'
    threads = torch.get_num_threads()
    try:
        with joined(world) if world is not None else nullcontext(RunRanks()) as ranks, optuna_as_it_was():
            console = open_terminal(quiet=not progress)
            if world is None and os.environ.get("WORLD_SIZE", "1") != "1":
                warn(console, _APART)

            def found() -> tuple[Path, Problem]:
                run = SearchRun(conf, console, resume_command=resume_command, ranks=ranks)
                try:
                    run.go()
                except Stopped:
                    if run.stopped_by is None:
                        raise KeyboardInterrupt from None
                return run.folder.root, run.parts.problem

            if ranks.size == 1:
                return SearchResult(*found())
            done = lead_or_follow(ranks, conf, found)
            root, searched = (Path(), done) if isinstance(done, Problem) else done
            place = str(root.absolute()).encode() if ranks.is_first else b""
            return SearchResult(Path(broadcast_bytes(ranks.exchange, place)[0].decode()), searched)
    finally:
        torch.set_num_threads(threads)


def compare(results: Iterable[SearchResult | Path | str]) -> Comparison:
    """Whether searches are ahead of random search, over their seeds, by the first goal on the test part.

    Args:
        results: of searches with `baseline="random"` that differ in their seed, or their folders: two at least.

    Raises:
        SettingError: these are none, or fewer than two have a figure of both.
        StorageError: a result is missing or damaged.

    Example:
        >>> results = [l2l_nas.search(problem, seed=seed, baseline="random") for seed in range(10)]
        >>> print(l2l_nas.compare(results).sentence())
    """
    kinds = (SearchResult, Path, str)
    folders = [one.folder if isinstance(one, SearchResult) else Path(one)
               for one in check_list("results", results, of=kinds, wanted="results of searches")]  # fmt: skip
    found = compared(folders)
    if found is None:
        raise SettingError(
            "results: two searches at least need a figure of the test part, and random search beside them one "
            '(baseline="random")'
        )
    return found


_APART = (
    "torchrun started several processes, and each searches by itself; to share one search, run the program by "
    "l2l_nas.parallel.entry.run_ranked and give search(world=) what that gives it"
)
# settings that may be given as objects
_CODE = tuple(one.name for one in declared(SearchConf) if one.is_code)
_OBJECTS = {name.removeprefix("search."): name for name in _CODE if name not in ("relay.storage", "space.pool")}
# what users of Optuna and of trainers look for
_ELSEWHERE = {
    "n_trials": "trials=", "timeout": 'time="10m"', "n_jobs": "workers=", "pruner": 'early_stop="halving"',
    "study_name": "study=", "load_if_exists": "resume=FOLDER", "show_progress_bar": "progress=",
    "direction": 'objectives=["accuracy"]', "directions": 'objectives=["accuracy", "parameters"]',
    "metric": 'objectives=["accuracy"]', "device": 'relay={"device": "cuda"}', "verbose": "progress=",
    "constraints": "Problem(pool, data, constraints=[...]), or limits={...}",
    "metrics": "Problem(pool, data, metrics={...})",
    "epochs": "finalist_steps=", "max_epochs": "finalist_steps=", "output_dir": "folder=", "random_state": "seed=",
}  # fmt: skip


def parted(named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is given as objects, by the settings' dotted names; and all settings with a mark in the place of each.

    Raises:
        SettingError: costs that are no list.
    """
    if isinstance(named.get("costs"), Mapping):
        named = {**named, "costs": named_costs(named["costs"])}
    given = [name for name in _OBJECTS if not isinstance(named.get(name), str | Mapping | NoneType)]
    for name in given:
        if name != "schedule":  # a class makes one of a peak and the steps
            refuse_class(name, named[name])
    own, marks = {_OBJECTS[name]: named[name] for name in given}, dict[str, Any](dict.fromkeys(given, GIVEN))
    if "costs" in given:
        own["search.costs"] = costs = check_list("search.costs", named["costs"], of=object, wanted="functions or names")
        marks["costs"] = [one if isinstance(one, str) else GIVEN for one in costs]
    relay = named.get("relay")
    if isinstance(relay, Mapping) and not isinstance(relay.get("storage", ""), str):
        own["relay.storage"], marks["relay"] = relay["storage"], {**relay, "storage": GIVEN}
    return own, {**named, **marks}


def conf_of(problem: Problem | str, named: Mapping[str, Any]) -> SearchConf:
    """The settings that a call names, all of the right name and type.

    Raises:
        SettingError: one is not, or it does not go with the problem.
    """
    if isinstance(problem, Problem):
        for name in ("data", "space"):
            if named.get(name):
                raise SettingError(f"search() takes {name}= with the name of a space; a Problem has its own")
    known = {one.name: one for one in declared(SearchConf)}
    sections = {name for name, _ in titles(SearchConf)} - {"search", "objectives"}
    values: dict[str, Any] = {}
    for name, value in named.items():
        if name in sections:
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a dict of settings, got {value!r}")
            values |= {f"{name}.{leaf}": one for leaf, one in value.items()}
        elif name == "objectives":
            values["objectives.names"] = [value] if isinstance(value, str) else value
        elif name in CHOICES:
            values[name] = {"name": value} if isinstance(value, str) else value
        elif name in PLACES and name != "skip_done":  # which is refused as in a command
            values[name] = str(check_path(name, value)) if value is not None and str(value) else ""
        elif name == "enqueue":
            found = check_list("search.enqueue", value, of=object, wanted="architectures")
            values["search.enqueue"] = [_spelled(f"search.enqueue[{n}]", one) for n, one in enumerate(found)]
        elif name == "learn_from":
            values["search.learn_from"] = _named_runs(value)
        elif name in known and "." not in name and name != "callbacks":
            values[name] = value
        elif f"search.{name}" in known:
            values[f"search.{name}"] = value
        else:
            raise SettingError(f"search() has no setting '{name}'{_hint(name, known)}")
    if "space.pool" in values:
        raise SettingError("search() takes the name of a space first, and space= for its args")
    values = {name: _fitting(name, value, known) for name, value in values.items()}
    explicit = entries(values).keys() - ({"folder"} if not values.get("folder") else set())
    values["folder"] = values.get("folder") or f"runs/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S.%f}"
    values["space.pool"] = problem if isinstance(problem, str) else GIVEN_PROBLEM
    return changed(SearchConf(explicit=frozenset({*explicit, "space.pool"})), values)


def _spelled(name: str, architecture: object) -> str:
    with of_argument(name):
        return architecture if isinstance(architecture, str) else str(Architecture.from_choices(architecture))


def _named_runs(value: object) -> list[str]:
    """Runs to learn from, as `search.learn_from` names them: texts, paths and results, one or several."""
    is_one = isinstance(value, str | Path | SearchResult)
    several = [value] if is_one else check_list("learn_from", value, of=(str, Path, SearchResult), wanted="runs")
    return [str(one.folder if isinstance(one, SearchResult) else one) for one in several]


def _hint(name: str, known: Mapping[str, Any]) -> str:
    """Where a setting that is none of search's own is found."""
    if name in _ELSEWHERE:
        return f"; write {_ELSEWHERE[name]}"
    within = [section for section, dot, leaf in (one.rpartition(".") for one in known) if dot and leaf == name]
    if within:
        return "; write " + " or ".join(f'{section}={{"{name}": ...}}' for section in within)
    for group, kinds in CHOICES.items():
        for kind, schema in kinds.items():
            if name in {one for one, _, _ in settings(schema)}:
                return f'; write {group}={{"name": "{kind}", "{name}": ...}}'
    return did_you_mean(name, sorted({one.removeprefix("search.").partition(".")[0] for one in known}))


def _fitting(name: str, value: Any, known: Mapping[str, Declared]) -> Any:
    """A value of the setting's type, of plain Python.

    Raises:
        SettingError: there is no such setting, or it is of another type.
    """
    if name not in known:
        raise SettingError(f"search() has no setting '{name}'{did_you_mean(name, known)}")
    one = replace(known[name], name=name.removesuffix(".names"))  # objectives, as they are written
    return fitting(one, _plain(one.name, value))


def _plain(setting: str, value: Any) -> Any:
    """Numbers of numpy and the like as Python's, tuples as lists, paths and devices as text; the rest as it is."""
    if isinstance(value, Mapping):
        return {str(name): _plain(setting, one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(setting, one) for one in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path | torch.device):
        return str(value)
    raise SettingError(f"{setting} takes text, a number, a list or a dict, got {shown(value)}")
