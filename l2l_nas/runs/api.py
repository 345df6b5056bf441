"""The search as a Python call. `python -m l2l_nas search` is the same, with words of a command line."""

from __future__ import annotations

import contextlib
import datetime
import numbers
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from l2l_nas.arguments import check_kind, check_list, check_path, refuse_class
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.files import read_json
from l2l_nas.nas.callback import Callback, Stopped
from l2l_nas.nas.evaluation.early_stopping import check_early_stop
from l2l_nas.nas.study.reading import load_study
from l2l_nas.nas.study.study import optuna_as_it_was
from l2l_nas.report.network import Network, RandomBaseline
from l2l_nas.runs.build import load_found
from l2l_nas.runs.fields import built, fitting, settings, titles
from l2l_nas.runs.folder import RunFolder, reserved
from l2l_nas.runs.inherit import go_on
from l2l_nas.runs.objects import Objects
from l2l_nas.runs.old import renamed
from l2l_nas.runs.search import SearchRun
from l2l_nas.runs.settings import CHOICES, SearchConf
from l2l_nas.runs.terminal import open_terminal
from l2l_nas.training.export import build_network
from l2l_nas.training.problem import Problem

if TYPE_CHECKING:
    import optuna

# settings that may be given as objects, and what stands for those in a run's settings and in messages
_OBJECTS = ("sampler", "strategy", "optimizer", "schedule", "early_stop", "costs")
_UNNAMED = "FILE.py:NAME"


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
    problem: Problem

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", check_path("SearchResult: folder", self.folder))
        check_kind("SearchResult: problem", self.problem, Problem, wanted="a Problem")

    @cached_property
    def content(self) -> Mapping[str, Any]:
        """`result.json`.

        Raises:
            StorageError: it is missing or damaged.
        """
        return dict(read_json(RunFolder(self.folder).result))

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
            StorageError: the study is missing, damaged, or in a database that processes share.
        """
        return load_study(RunFolder(self.folder).study)

    def network(self) -> nn.Module:
        """The best network with its weights, as a plain module in evaluation mode.

        Raises:
            StorageError: there are no weights, or they are damaged.
        """
        found = load_found(str(self.folder), problem=self.problem)
        return build_network(found.server, found.architecture)


def search(
    problem: Problem | str, *, progress: bool = True, callbacks: Sequence[Callback | str] = (), **said: Any
) -> SearchResult:
    """Search for the best architecture of a problem.

    It writes what the command writes, into the same kind of folder, and goes on with a run of either.

    Args:
        problem: layers, data and task; or the name of a space, as `space.pool` takes it.
        progress: whether to print how far it is, what was found, and warnings.
        callbacks: that see it go by; objects, or names, as in `callbacks=[FILE.py:NAME]`.
        **said: settings, see `python -m l2l_nas search --help`. Those of `search.` by their names (`trials=64`), then
            `seed`, `folder` (by default `runs/DATE_TIME`), `resume`, `export`, `objectives=["accuracy"]`, and the
            sections `train`, `relay`, `data` and `space` as a dict, such as `train={"batch_size": 32}`. `sampler`,
            `strategy`, `optimizer` and `schedule` are a name, or a dict of it and its arguments: `sampler="tpe"`,
            `optimizer={"name": "sgd", "momentum": 0.8}`. These, `early_stop`, `costs` and the relay's `storage` may be
            objects, too: a sampler of Optuna's kind, a list of phases, an optimizer or `Groups`, a function of the peak
            and the steps, a rule, a list of functions, a storage. Going on with a run these are given again.

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
            f"search() takes a Problem or the name of a space, got {type(problem).__name__}; write Problem(pool, data)"
        )
    if isinstance(problem, Problem):
        for name in ("data", "space"):
            if said.get(name):
                raise SettingError(f"search() takes {name}= with the name of a space; a Problem has its own")
    check_kind("progress", progress, bool, wanted="True or False")
    for one in check_list("callbacks", callbacks, of=object, wanted="callbacks"):
        refuse_class("callbacks", one)
    own, named = _parted(said)
    check_early_stop(own.get("early_stop", "none"))
    content = _content(problem, named)
    conf: SearchConf = built(SearchConf, content)
    given = {name for name in _named(content) if name != "folder" or said.get("folder")}
    console = open_terminal(quiet=not progress)
    threads = torch.get_num_threads()
    try:
        with optuna_as_it_was(), contextlib.ExitStack() as kept:
            if not conf.resume and not said.get("folder"):
                conf = replace(conf, folder=str(kept.enter_context(reserved(Path(conf.folder)))))
            if conf.resume:
                conf = go_on("search", conf, given=given) or conf
            again = f'l2l_nas.search(..., resume="{conf.resume or conf.folder}")'
            whole = None if isinstance(problem, str) else problem
            run = SearchRun(conf, console, again=again, objects=Objects(whole, **own, callbacks=callbacks), said=given)
            try:
                run.go()
            except Stopped:
                if run.stopped_by is None:
                    raise KeyboardInterrupt from None
    finally:
        torch.set_num_threads(threads)
    return SearchResult(run.folder.root, run.problem)


def _parted(said: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is given as objects, and all settings with a mark in the place of each.

    Raises:
        SettingError: costs that are no list.
    """
    own = {name: said[name] for name in _OBJECTS if not isinstance(said.get(name), str | Mapping | NoneType)}
    for name, given in own.items():
        if name != "schedule":  # a class makes one of a peak and the steps
            refuse_class(name, given)
    marks: dict[str, Any] = dict.fromkeys(own, _UNNAMED)
    if "costs" in own:
        if not isinstance(own["costs"], list | tuple):
            raise SettingError(f"search.costs must be a list of functions or names, got {own['costs']!r}")
        marks["costs"] = [one if isinstance(one, str) else _UNNAMED for one in own["costs"]]
    relay = said.get("relay")
    if isinstance(relay, Mapping) and not isinstance(relay.get("storage", ""), str):
        own["storage"], marks["relay"] = relay["storage"], {**relay, "storage": _UNNAMED}
    return own, {**said, **marks}


def _content(problem: Problem | str, said: Mapping[str, Any]) -> dict[str, Any]:
    """The settings said, as a nested dict whose names and types are right.

    Raises:
        SettingError: one is not.
    """
    known = {name: default for name, default, _ in settings(SearchConf)}
    sections = {name for name, _ in titles(SearchConf)} - {"search", "objectives"}
    of_search = {name.partition(".")[2] for name in known if name.startswith("search.")}
    top = {name for name in known if "." not in name} - {"callbacks"}
    content: dict[str, Any] = {"search": {}, **{name: {} for name in sections}}
    for name, value in said.items():
        if name in sections:
            if not isinstance(value, Mapping):
                raise SettingError(f"{name} must be a dict of settings, got {value!r}")
            for leaf, one in value.items():
                content[name][leaf] = _fitting(f"{name}.{leaf}", one, known)
        elif name == "objectives":
            content[name] = {"names": fitting(name, _plain(value), known["objectives.names"])}
        elif name in CHOICES:
            content[name] = {"name": value} if isinstance(value, str) else _fitting(name, value, known)
        elif name in ("folder", "resume"):
            content[name] = "" if value is None or value == "" else str(check_path(name, value))
        elif name in of_search:
            content["search"][name] = _fitting(f"search.{name}", value, known)
        elif name in top:
            content[name] = _fitting(name, value, known)
        else:
            every = sorted(of_search | top | sections | {"objectives"})
            today = renamed(name) or renamed(f"search.{name}")
            hint = f"; write {today}=" if today else did_you_mean(name, every)
            raise SettingError(f"search() has no setting '{name}'{hint}")
    content["folder"] = content.get("folder") or f"runs/{datetime.datetime.now():%Y-%m-%d_%H-%M-%S}"
    if "pool" in content["space"]:
        raise SettingError("search() takes the name of a space first, and space= for its args")
    content["space"]["pool"] = problem if isinstance(problem, str) else _UNNAMED
    return content


def _named(content: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of settings, those of a dict's entries with them."""
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _named(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def _fitting(name: str, value: Any, known: Mapping[str, Any]) -> Any:
    """A value of the setting's type, of plain Python.

    Raises:
        SettingError: there is no such setting, or it is of another type.
    """
    if name not in known:
        hint = f"; write {renamed(name)}=" if renamed(name) else did_you_mean(name, known)
        raise SettingError(f"search() has no setting '{name}'{hint}")
    return fitting(name, _plain(value), known[name])


def _plain(value: Any) -> Any:
    """Numbers of numpy and the like as Python's, tuples as lists, paths as text; anything else as it is."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise SettingError(f"a setting is text, a number, a list or a dict, got {type(value).__name__}")
