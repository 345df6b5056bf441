"""Every setting, said once: name, type, default, help text, bounds, what a resume may change, when it has an effect.

YAML, `--help`, checks and warnings derive from here; `fields.Declared` lists what a field may say.

What is chosen by name and has arguments of its own (`Choice`) is one setting: a dict of the name and the arguments.
`choice_settings.py` has the arguments of those that come with the program; `cli/schema.py` makes config groups of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from l2l_nas.plugins import is_own
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import FREE, MAY_CHANGE, OnResume, UsedIf, rules, section, setting, stays
from l2l_nas.runs.section_settings import (
    TRAINED,
    DataConf,
    NamedPoolConf,
    ObjectivesConf,
    RelayConf,
    SpaceConf,
    TrainConf,
)

# the password of search.storage; the command line puts it here when it is part of the address
PASSWORD_VARIABLE = "L2L_NAS_STORAGE_PASSWORD"


def _in_a_race(config: Mapping[str, Any]) -> str:
    search = config.get("search")
    is_race = isinstance(search, Mapping) and search.get("trial_weights") == "scratch"
    return "from first weights, trials are the first steps of the finalists' training" if is_race else ""


_COMPARED = "what is scored otherwise cannot be compared with the trials so far"
_IN_DATABASE = UsedIf("search.storage", lambda conf: bool(conf.search.storage))


# the name of something, with its arguments
Choice = dict[str, Any]


@dataclass(frozen=True)
class SearchSection:
    """The budget of a search."""

    time: str = setting(
        "",
        "of warm-up, trials and finalists together: 10m",
        resume=stays("it was divided when the run began; search.trials says a new total"),
    )
    trials: Optional[int] = setting(None, "architectures to evaluate; null: as it fits", least=1, read_by="Trials")
    warmup_steps: Optional[int] = setting(
        None, "on random paths; null: as it fits", least=0, resume=stays(TRAINED), read_by="WarmUp"
    )
    warmup_paths: str = setting(
        "uniform",
        "uniform or fair",
        resume=stays("warm-up would have trained other paths than the trials so far are scored with"),
        read_by="WarmUp",
    )
    steps_per_trial: Optional[int] = setting(
        None, "steps that a trial trains; null: as it fits", least=0, resume=stays(_COMPARED)
    )
    trial_weights: str = setting("scratch", "what it trains: scratch, shared, fork", resume=stays(_COMPARED))
    finalists: int = setting(8, "how many of the best are trained further", least=0, read_by="Finalists")
    finalist_steps: Optional[int] = setting(
        None,
        "of one in all rounds; null: as it fits",
        least=0,
        resume=OnResume(unless=_in_a_race),
        effect=UsedIf(
            "search.finalists", lambda conf: conf.search.finalists > 0 or conf.search.trial_weights == "scratch"
        ),
    )
    finalist_rounds: Optional[int] = setting(
        None,
        "rounds, each of half as many; null: up to 3",
        least=1,
        effect=UsedIf("search.finalists", lambda conf: conf.search.finalists > 0),
        read_by="Finalists",
    )
    finalist_learning_rate: float = setting(0.0, "peak, of theirs; 0: as of trials", resume=OnResume(unless=_in_a_race))
    baseline: str = setting("none", "none, or random: random networks beside it", read_by="RandomSearch")
    limits: dict[str, Any] = setting({}, "most of a cost: search.limits.flops=2e6")
    costs: list[str] = setting([], "of your own: [FILE.py:NAME]", is_code=True)
    latency_batch: int = setting(
        1,
        "samples that latency_ms is measured with",
        least=1,
        most=1_000_000,
        resume=stays("latencies of other batches cannot be compared"),
        effect=UsedIf("objectives.names", lambda conf: "latency_ms" in {*conf.objectives.names, *conf.search.limits}),
    )
    hardware: str = setting(
        "",
        "predict step_ms for it: h100 ..., FILE.json",
        resume=stays("predictions for other machines cannot be compared"),
    )
    early_stop: str = setting(
        "none",
        "none, halving: of trials that lag; FILE.py:NAME",
        resume=stays("some trials would have been stopped early by it and others not"),
        is_code=True,
    )
    keep_fraction: float = setting(
        0.5,
        "of trials, at a quarter and half their steps",
        effect=UsedIf(
            "search.early_stop", lambda conf: conf.search.early_stop == "halving" or is_own(conf.search.early_stop)
        ),
    )
    population: int = setting(
        16,
        "trials in one pass, if they train nothing",
        least=1,
        most=1_000_000,
        effect=UsedIf("search.steps_per_trial", lambda conf: conf.search.steps_per_trial == 0),
    )
    workers: int = setting(1, "processes that train and score trials", least=1, most=4096)
    checkpoint_seconds: float = setting(15.0, "at most this much shared training is lost", least=0, resume=FREE)
    failures: int = setting(10, "failed trials in a row that end the search", least=1, resume=FREE)
    enqueue: list[str] = setting([], "tried first: [FILE.json,original]")
    retire: list[str] = setting([], "candidates to leave out: layer_00/mlp, */sep5")
    freeze: list[str] = setting([], "candidates whose weights stay as they are")
    introduce: float = setting(1.0, "train new ones to so much of the mean first", least=0)
    storage: str = setting("", "database that keeps the study; empty: the run's folder")
    study: str = setting("search", "name of the study in that database", effect=_IN_DATABASE)
    storage_retry_seconds: float = setting(60.0, "wait for a database that is away", least=0, effect=_IN_DATABASE)


@dataclass(frozen=True)
class SearchConf:
    """Find an architecture."""

    seed: int = setting(
        0,
        "of weights, paths, batches and the sampler",
        least=0,
        most=2**63 - 1,
        resume=stays("first weights, paths and batches follow from it"),
    )
    folder: str = setting("runs/${now:%Y-%m-%d_%H-%M-%S}", "where everything is written", resume=FREE)
    resume: str = setting("", "go on with the run in this folder", resume=FREE)
    export: bool = setting(True, "the best network as a plain PyTorch program too", resume=FREE)
    sampler: Choice = setting(
        {"name": "gp_hamming"},
        "proposes trials; or FILE.py:NAME",
        resume=MAY_CHANGE,
        effect=UsedIf("strategy", lambda conf: conf.strategy["name"] != "random_search"),
        is_code=True,
    )
    strategy: Choice = setting(
        {"name": "default"},
        "the phases; or FILE.py:NAME",
        resume=stays("phases of another strategy train and score otherwise"),
        is_code=True,
    )
    optimizer: Choice = setting(
        {"name": "adamw"}, "of the layers' weights; or FILE.py:NAME", resume=stays(TRAINED), is_code=True
    )
    schedule: Choice = setting(
        {"name": "cosine"}, "of the learning rate; or FILE.py:NAME", resume=stays(TRAINED), is_code=True
    )
    executor: Choice = setting(
        {"name": "inline"}, "runs trials; search.workers=N: processes", resume=MAY_CHANGE, is_code=True
    )
    callbacks: dict[str, Any] = setting({}, "that see it go by: [FILE.py:NAME]", resume=FREE)
    space: SpaceConf = section(SpaceConf, resume=MAY_CHANGE)
    data: DataConf = section(DataConf, resume=stays("scores on other samples cannot be compared"))
    objectives: ObjectivesConf = section(ObjectivesConf, resume=stays("a study has its objectives for good"))
    search: SearchSection = section(SearchSection, resume=MAY_CHANGE)
    train: TrainConf = section(TrainConf, resume=stays(TRAINED))
    relay: RelayConf = section(RelayConf, resume=FREE)


@dataclass(frozen=True)
class RetrainSection(TrainConf):
    """How the network is trained."""

    learning_rate: float = setting(0.008, "peak of the schedule", resume=stays(TRAINED), is_inherited=False)
    steps: int = setting(1000, "in all; 0: recalibrate and score only", least=0, resume=MAY_CHANGE, is_inherited=False)
    validation_steps: int = setting(
        100, "steps from one validation to the next", least=1, resume=MAY_CHANGE, is_inherited=False
    )
    recalibrate: int = setting(
        8,
        "batches to measure BatchNorm on each time",
        least=0,
        resume=stays("validations with other statistics cannot be compared"),
        is_inherited=False,
    )
    checkpoint_seconds: float = setting(
        15.0, "at most this much training is lost", least=0, resume=FREE, is_inherited=False
    )


@dataclass(frozen=True)
class RetrainConf:
    """Train one architecture, as the run named but for rate and steps."""

    run: str = setting("", "a run's folder: its best, its weights", resume=MAY_CHANGE, is_inherited=False)
    architecture: str = setting(
        "", "architecture.json or result.json; or original", resume=MAY_CHANGE, is_inherited=False
    )
    trial: int = setting(-1, "number in that run; -1: its best", resume=MAY_CHANGE, is_inherited=False)
    weights: str = setting(
        "scratch",
        "scratch; that run's pool, best; a folder",
        resume=stays("the training began with those"),
        is_inherited=False,
    )
    metric: str = setting(
        "",
        "decides what is best; the first by default",
        resume=stays("the best so far was chosen by it"),
        is_inherited=False,
    )
    seed: int = setting(
        0,
        "of first weights, batches and dropout",
        least=0,
        most=2**63 - 1,
        resume=stays("first weights, paths and batches follow from it"),
    )
    folder: str = setting(
        "runs/${now:%Y-%m-%d_%H-%M-%S}", "where everything is written", resume=FREE, is_inherited=False
    )
    resume: str = setting("", "go on with the training in this folder", resume=FREE, is_inherited=False)
    export: bool = setting(True, "the best network as a plain PyTorch program too", resume=FREE, is_inherited=False)
    optimizer: Choice = setting(
        {"name": "adamw"}, "of the layers' weights; or FILE.py:NAME", resume=stays(TRAINED), is_code=True
    )
    schedule: Choice = setting(
        {"name": "cosine"}, "of the learning rate; or FILE.py:NAME", resume=stays(TRAINED), is_code=True
    )
    train: RetrainSection = section(RetrainSection, resume=stays(TRAINED))
    space: SpaceConf = section(SpaceConf, resume=MAY_CHANGE)
    data: DataConf = section(DataConf, resume=stays("scores on other samples cannot be compared"))
    relay: RelayConf = section(RelayConf, resume=FREE)


@dataclass(frozen=True)
class SweeperConf:
    """Sampled sweeps.

    With -m hydra/sweeper=l2l a sampler chooses the values of settings written as
    choice(A,B), range(1,9,2), interval(0.1,0.5) or tag(log,interval(0.001,0.1)).
    """

    trials: int = setting(20, "runs in all, those before a resume included")
    jobs: int = setting(1, "runs of a batch, at once if hydra/launcher can")
    sampler: str = setting("tpe", "tpe, random, nsga2, gp, grid, evolution ...")
    objectives: list[str] = setting([], "one or two; []: the first of the runs")
    seed: int = setting(0, "of the sampler", most=2**63 - 1)
    params: dict[str, Any] = setting({}, "what to sweep, if a config file says it")


@dataclass(frozen=True)
class PlanSection:
    """The steps that are planned."""

    batch_size: int = setting(64, "samples a step", least=1)
    micro_batch: int = setting(64, "samples at a time on the device", least=1)


@dataclass(frozen=True)
class PlanConf:
    """Tell what a run would take, and whether it fits, before it."""

    hardware: str = setting("measure", "h100, laptop ..., FILE.json; measure: this one")
    propose: bool = setting(False, "settings that fit, fastest predicted first")
    devices: int = setting(1, "that share a step: all ways to do so", least=1, most=1_000_000)
    device_memory: str = setting("", "that may be used: 16GiB; '': all there is")
    host_memory: str = setting("", "that may be used: 64GiB; '': all there is")
    folder: str = setting("", "for plan.json, timeline.png; '': nowhere")
    seed: int = setting(0, "of the architectures that a median is taken of", least=0, most=2**63 - 1)
    optimizer: Choice = setting({"name": "adamw"}, "of the layers' weights; or FILE.py:NAME")
    space: SpaceConf = section(SpaceConf)
    data: DataConf = section(DataConf)
    train: PlanSection = section(PlanSection)
    relay: RelayConf = section(RelayConf, resume=FREE)


@dataclass(frozen=True)
class EvaluateConf:
    """Score the best architecture of a run again, with the weights found."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = section(NamedPoolConf)
    split: str = setting("validation", "validation, test or train")
    recalibrate: int = setting(0, "batches to measure BatchNorm on; 0: as saved", least=0)
    task: str = setting("", "on text: wikitext, text, lambada or classify")
    file: str = setting("", "that the task is measured on")
    stride: int = setting(0, "new tokens of each window; 0: all of them")
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class GenerateConf:
    """Have the language model of a run write on."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = section(NamedPoolConf)
    prompt: str = setting("", "what the text begins with")
    tokens: int = setting(100, "new ones, at most")
    temperature: float = setting(1.0, "below 1 more likely ones; 0: the likeliest")
    top_k: int = setting(0, "of so many likeliest tokens; 0: of all")
    top_p: float = setting(1.0, "of the likeliest with so much probability")
    seed: int = setting(0, "of the choice", most=2**63 - 1)
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class ExportConf:
    """Write the best network of a run as a plain PyTorch program."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = section(NamedPoolConf)
    out: str = setting("", "where to; the run's own export/ by default")
    formats: list[str] = setting(["state_dict", "program"], "and onnx, source, hugging_face")


@dataclass(frozen=True)
class ReportConf:
    """Write a run's report.html again, from its folder alone."""

    run: str = setting("", "the run's folder")
    out: str = setting("", "where to; the run's own report.html by default")


COMMANDS: dict[str, type] = {
    "search": SearchConf,
    "train": RetrainConf,
    "plan": PlanConf,
    "evaluate": EvaluateConf,
    "generate": GenerateConf,
    "export": ExportConf,
    "report": ReportConf,
}


# settings of Hydra's that a command's help tells of too, by section
HYDRA: dict[str, dict[str, type]] = {"search": {"hydra.sweeper": SweeperConf}}


# settings that are text, taken as it is typed
TEXTS = ("prompt",)


# settings whose names below them are arguments, or costs
OPEN = ("space.args", "search.limits", "callbacks", *CHOICES)


# settings that say where a run is
PLACES = frozenset({"folder", "resume"})

_RULES = {**rules(RetrainConf), **rules(SearchConf)}


def rule_of(name: str) -> OnResume:
    """What holds for another value of a setting when a run goes on: its own rule, or its section's.

    Raises:
        KeyError: there is none.
    """
    while name not in _RULES:
        name, dot, _ = name.rpartition(".")
        if not dot:
            raise KeyError(name)
    return _RULES[name]
