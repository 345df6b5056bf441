"""Every setting, said once: name, type, default, help text, bounds, what a resume may change, when it has an effect.

YAML, `--help`, checks and warnings derive from here; `fields.Declared` lists what a field may say.

What is chosen by name and has arguments of its own (`Choice`) is one setting: a dict of the name and the arguments.
`choice_settings.py` has the arguments of those that come with the program; `cli/schema.py` makes config groups of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import (
    FREE,
    MAY_CHANGE,
    PATH,
    PLAIN,
    TEXT,
    OnResume,
    UsedIf,
    beside,
    declared,
    section,
    setting,
    stays,
    value_of,
)
from l2l_nas.runs.section_settings import (
    TRAINED,
    DataConf,
    MeshConf,
    NamedPoolConf,
    ObjectivesConf,
    ParallelConf,
    RanksConf,
    RelayConf,
    SpaceConf,
    TrainConf,
)


def _in_a_race(config: Mapping[str, Any]) -> str:
    search = config.get("search")
    is_race = isinstance(search, Mapping) and search.get("trial_weights") == "scratch"
    return "from first weights, trials are the first steps of the finalists' training" if is_race else ""


def _read_once(config: Mapping[str, Any]) -> str:
    return "earlier runs are read when a run begins, and its trials followed from that"


# what of `search.learn_from` means the runs that come with a space, if any do
SHIPPED = "shipped"

_COMPARED = "what is scored otherwise cannot be compared with the trials so far"


# the name of something, with its arguments
Choice = dict[str, Any]


@dataclass(frozen=True)
class SearchSection:
    """The budget of a search."""

    time: str = setting(
        "",
        "time for warm-up, trials and finalists: 10m",
        TEXT,
        resume=stays("it was divided when the run began; search.trials says a new total"),
    )
    trainings: float = setting(
        0.0,
        "steps in all, in whole trainings; 0: about 6",
        PLAIN,
        least=0,
        most=100_000,
        resume=stays("they were divided when the run began; search.trials says a new total"),
    )
    trials: Optional[int] = setting(
        None, "architectures to evaluate; null: automatic", PLAIN, least=1, read_by="Trials", resume=MAY_CHANGE
    )
    warmup_steps: Optional[int] = setting(
        None, "steps on random architectures; null: automatic", PLAIN, least=0, resume=stays(TRAINED), read_by="WarmUp"
    )
    warmup_paths: str = setting(
        "uniform",
        "how warm-up draws architectures: uniform, fair",
        PLAIN,
        resume=stays("warm-up would have trained other paths than the trials so far are scored with"),
        read_by="WarmUp",
    )
    steps_per_trial: Optional[int] = setting(
        None, "training steps of a trial; null: automatic", PLAIN, least=0, resume=stays(_COMPARED)
    )
    trial_weights: str = setting(
        "scratch", "what a trial trains: scratch, shared, fork", PLAIN, resume=stays(_COMPARED)
    )
    finalists: int = setting(
        8, "number of best trials to train further", PLAIN, least=0, read_by="Finalists", resume=MAY_CHANGE
    )
    finalist_steps: Optional[int] = setting(
        None,
        "steps of a finalist in total; null: automatic",
        PLAIN,
        least=0,
        resume=OnResume(unless=_in_a_race),
        effect=UsedIf(
            "search.finalists", lambda conf: conf.search.finalists > 0 or conf.search.trial_weights == "scratch"
        ),
    )
    finalist_rounds: Optional[int] = setting(
        None,
        "rounds that keep the better half; null: up to 3",
        PLAIN,
        least=1,
        effect=UsedIf("search.finalists", lambda conf: conf.search.finalists > 0),
        read_by="Finalists",
        resume=MAY_CHANGE,
    )
    finalist_learning_rate: float = setting(
        0.0, "peak rate of finalists; 0: that of trials", PLAIN, resume=OnResume(unless=_in_a_race)
    )
    baseline: str = setting(
        "none", "none; random: run random search as well", PLAIN, read_by="RandomSearch", resume=MAY_CHANGE
    )
    limits: dict[str, Any] = setting({}, "upper bounds on costs: search.limits.flops=2e6", PLAIN, resume=MAY_CHANGE)
    costs: list[str] = setting([], "costs of your own: [FILE.py:NAME]", PLAIN, is_code=True, resume=MAY_CHANGE)
    hardware: str = setting(
        "",
        "machine to predict step_ms for: h100, FILE.json",
        PATH,
        resume=stays("predictions for other machines cannot be compared"),
    )
    early_stop: str = setting(
        "none",
        "stop poor trials: none, halving, FILE.py:NAME",
        PLAIN,
        resume=stays("some trials would have been stopped early by it and others not"),
        is_code=True,
    )
    workers: int = setting(1, "processes that train and score trials", least=1, most=4096, resume=MAY_CHANGE)
    checkpoint_seconds: float = setting(
        15.0, "seconds between checkpoints of shared weights", PLAIN, least=0, resume=FREE
    )
    failures: int = setting(10, "failed trials in a row that end the search", PLAIN, least=1, resume=FREE)
    enqueue: list[str] = setting([], "try these first: [FILE.json,original]", PATH, resume=MAY_CHANGE)
    learn_from: list[str] = setting(
        [SHIPPED],
        "earlier runs: [RUN,RUN]; shipped: those of the space",
        PATH,
        read_by="Trials",
        resume=OnResume(unless=_read_once),
    )
    retire: list[str] = setting([], "candidates to leave out: layer_00/mlp, */sep5", TEXT, resume=MAY_CHANGE)
    freeze: list[str] = setting([], "candidates whose weights are not trained", TEXT, resume=MAY_CHANGE)


@dataclass(frozen=True)
class RunConf:
    """What every run has.

    Args:
        explicit: no setting, but the dotted names of those that somebody named; of what is in one, such as
            `space.args.depth`, too.
        objects: no setting, but what a caller gave in Python in place of what settings name, by their dotted names;
            and the "problem", in place of `space` and `data`.
    """

    explicit: frozenset[str] = beside(frozenset)
    objects: Mapping[str, Any] = beside(dict)
    seed: int = setting(
        0,
        "seed of weights, batches and all that is drawn",
        PLAIN,
        least=0,
        most=2**63 - 1,
        resume=stays("first weights, paths and batches follow from it"),
    )
    folder: str = setting(
        "runs/${now:%Y-%m-%d_%H-%M-%S.%f}", "where everything is written", resume=FREE, is_inherited=False
    )
    resume: str = setting("", "folder of the run to continue", resume=FREE, is_inherited=False)
    skip_done: bool = setting(False, "a sweep goes on: leave out what is done", resume=FREE, is_inherited=False)
    export: bool = setting(True, "export the best network for plain PyTorch", PLAIN, resume=FREE, is_inherited=False)
    optimizer: Choice = setting(
        {"name": "adamw"}, "optimizer of the weights; or FILE.py:NAME", PLAIN, resume=stays(TRAINED), is_code=True
    )
    schedule: Choice = setting(
        {"name": "cosine"}, "learning-rate schedule; or FILE.py:NAME", PLAIN, resume=stays(TRAINED), is_code=True
    )
    callbacks: dict[str, Any] = setting(
        {}, "hooks called during the run: [FILE.py:NAME]", resume=FREE, is_inherited=False
    )
    space: SpaceConf = section(SpaceConf, resume=MAY_CHANGE)
    data: DataConf = section(DataConf, resume=stays("scores on other samples cannot be compared"))
    relay: RelayConf = section(RelayConf, resume=FREE)
    parallel: ParallelConf = section(ParallelConf, resume=FREE)

    def chosen(self, name: str) -> Any:
        """What a setting says, or the object that a caller gave in its place."""
        return self.objects[name] if name in self.objects else value_of(self, name)


@dataclass(frozen=True)
class SearchConf(RunConf):
    """Find an architecture."""

    sampler: Choice = setting(
        {"name": "gp_hamming"},
        "what proposes trials; or FILE.py:NAME",
        PLAIN,
        resume=MAY_CHANGE,
        effect=UsedIf("strategy", lambda conf: conf.strategy["name"] != "random_search"),
        is_code=True,
    )
    strategy: Choice = setting(
        {"name": "default"},
        "phases of the search; or FILE.py:NAME",
        PLAIN,
        resume=stays("phases of another strategy train and score otherwise"),
        is_code=True,
    )
    executor: Choice = setting(
        {"name": "inline"}, "what runs trials; if search.workers: processes", resume=MAY_CHANGE, is_code=True
    )
    objectives: ObjectivesConf = section(ObjectivesConf, resume=stays("a study has its objectives for good"))
    search: SearchSection = section(SearchSection, resume=MAY_CHANGE)
    train: TrainConf = section(TrainConf, resume=stays(TRAINED))


@dataclass(frozen=True)
class RetrainSection(TrainConf):
    """How the network is trained."""

    learning_rate: float = setting(0.008, "peak learning rate", PLAIN, resume=stays(TRAINED), is_inherited=False)
    steps: int = setting(
        1000, "steps in total; 0: recalibrate and score only", PLAIN, least=0, resume=MAY_CHANGE, is_inherited=False
    )
    validation_steps: int = setting(
        100, "steps from one validation to the next", PLAIN, least=1, resume=MAY_CHANGE, is_inherited=False
    )
    recalibrate: int = setting(
        8,
        "batches for BatchNorm statistics before scoring",
        PLAIN,
        least=0,
        resume=stays("validations with other statistics cannot be compared"),
        is_inherited=False,
    )
    checkpoint_seconds: float = setting(
        15.0, "seconds between checkpoints", PLAIN, least=0, resume=FREE, is_inherited=False
    )


@dataclass(frozen=True)
class RetrainConf(RunConf):
    """Train one architecture with the settings of a run."""

    run: str = setting("", "folder of the run that found the network", PATH, resume=MAY_CHANGE, is_inherited=False)
    architecture: str = setting(
        "", "architecture.json or result.json; or original", PATH, resume=MAY_CHANGE, is_inherited=False
    )
    trial: int = setting(
        -1, "number of a trial of that run; -1: the best", PLAIN, resume=MAY_CHANGE, is_inherited=False
    )
    weights: str = setting(
        "scratch",
        "start from: scratch, pool, best, or a folder",
        PATH,
        resume=stays("the training began with those"),
        is_inherited=False,
    )
    metric: str = setting(
        "",
        "metric that says what is best; '': the first",
        TEXT,
        resume=stays("the best so far was chosen by it"),
        is_inherited=False,
    )
    train: RetrainSection = section(RetrainSection, resume=stays(TRAINED))


@dataclass(frozen=True)
class PlanSection:
    """The steps that are planned."""

    batch_size: int = setting(64, "samples a step", least=1)
    micro_batch: int = setting(64, "samples at a time on the device", least=1)


@dataclass(frozen=True)
class PlanConf:
    """Predict time and memory of a run, and whether it fits."""

    hardware: str = setting("measure", "h100, laptop, FILE.json; measure: this machine")
    propose: bool = setting(False, "propose settings that fit, fastest first")
    device_memory: str = setting("", "limit, such as 16GiB; '': all there is")
    host_memory: str = setting("", "limit, such as 64GiB; '': all there is")
    folder: str = setting("", "folder for plan.json, timeline.png; '': none")
    seed: int = setting(0, "seed of the random architectures", least=0, most=2**63 - 1)
    optimizer: Choice = setting({"name": "adamw"}, "optimizer of the weights; or FILE.py:NAME")
    space: SpaceConf = section(SpaceConf)
    data: DataConf = section(DataConf)
    train: PlanSection = section(PlanSection)
    relay: RelayConf = section(RelayConf, resume=FREE)
    parallel: MeshConf = section(MeshConf, resume=FREE)


@dataclass(frozen=True)
class FoundConf:
    """The network that a run has found."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = section(NamedPoolConf)
    parallel: RanksConf = section(RanksConf)


@dataclass(frozen=True)
class EvaluateConf(FoundConf):
    """Score the best architecture of a run again, with its weights."""

    original: bool = setting(False, "measure what the run began with instead")
    split: str = setting("validation", "validation, test or train")
    recalibrate: int = setting(0, "batches to measure BatchNorm on; 0: as saved", least=0)
    task: str = setting("", "wikitext, text, lambada, recall, answers")
    file: str = setting("", "file that the task reads")
    stride: int = setting(0, "new tokens in each window; 0: all of them")
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class GenerateConf(FoundConf):
    """Continue a text with the language model of a run."""

    prompt: str = setting("", "text to continue")
    tokens: int = setting(100, "largest number of new tokens")
    temperature: float = setting(1.0, "below 1 favours likely tokens; 0: the likeliest")
    top_k: int = setting(0, "number of likeliest tokens to draw from; 0: all")
    top_p: float = setting(1.0, "draw from the likeliest up to this probability")
    seed: int = setting(0, "seed of the draws", most=2**63 - 1)
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class ExportConf(FoundConf):
    """Write the best network of a run as a plain PyTorch program."""

    out: str = setting("", "folder to write; '': export/ of the run")
    formats: list[str] = setting(["state_dict", "program"], "also onnx, source, hugging_face, gguf, gguf_f16")


@dataclass(frozen=True)
class ReportConf:
    """Write a run's report.html again, from its folder alone."""

    run: str = setting("", "the run's folder")
    out: str = setting("", "file to write; '': report.html of the run")


COMMANDS: dict[str, type] = {
    "search": SearchConf,
    "train": RetrainConf,
    "plan": PlanConf,
    "evaluate": EvaluateConf,
    "generate": GenerateConf,
    "export": ExportConf,
    "report": ReportConf,
}


# settings that are text, taken as it is typed
TEXTS = ("prompt",)


# settings whose names below them are arguments, or costs
OPEN = ("space.args", "search.limits", "callbacks", *CHOICES)


# settings that say where a run is
PLACES = frozenset({"folder", "resume", "skip_done"})

_RULES = {one.name: one.resume for conf in (RetrainConf, SearchConf) for one in declared(conf) if one.resume}


def rule_of(name: str) -> OnResume:
    """What holds for another value of a setting, or of an entry of it, when a run goes on.

    Raises:
        KeyError: there is none.
    """
    while name not in _RULES:
        name, dot, _ = name.rpartition(".")
        if not dot:
            raise KeyError(name)
    return _RULES[name]
