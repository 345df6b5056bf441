"""Every setting: name, type, default and help text, once. YAML, `--help` and type checks derive from here.

What is chosen by name and has arguments of its own (`Choice`) is one setting: a dict of the name and the arguments.
`choice_settings.py` has the arguments of those that come with the program; `cli/schema.py` makes config groups of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional

from l2l_nas.runs.bench_settings import BenchConf
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import setting

# the password of search.storage; the command line puts it here when it is part of the address
PASSWORD_VARIABLE = "L2L_NAS_STORAGE_PASSWORD"


# the name of something, with its arguments
Choice = dict[str, Any]


@dataclass(frozen=True)
class SpaceConf:
    """What is searched."""

    pool: str = setting("image_blocks", "built in, FILE.py:FUNCTION or MODULE:FUNCTION")
    args: dict[str, Any] = setting({}, "its arguments: space.args.channels=32")


@dataclass(frozen=True)
class NamedPoolConf:
    """The pool of a run."""

    pool: str = setting("", "FILE.py:FUNCTION again, if it was your own")


@dataclass(frozen=True)
class DataConf:
    """What is learned, unless the pool brings its own data."""

    source: str = setting("cluttered_digits", "or digits, .npz, folder, text file, pydoc")
    validation_fraction: float = setting(0.2, "share of the samples to select on")
    test_fraction: float = setting(0.2, "share that finalists are tested on; 0: none")
    size: list[int] = setting([], "height, width that a folder's images get")
    workers: int = setting(0, "processes that read a folder's images ahead")
    length: int = setting(128, "of text: tokens of a sequence", least=1)
    tokenizer: str = setting("auto", "of text: bytes, FILE, FOLDER; auto: the model's")
    objective: str = setting("causal", "of text: causal, masked; classify sentences")
    columns: list[str] = setting([], "of classify: one or two of text, one of classes")
    splits: list[float] = setting([], "of text: shares of documents, as [949,50,1]")
    documents: str = setting("across", "of text: attention across them, or apart")
    masked: float = setting(0.15, "of text: share of tokens that are guessed")
    predictions: int = setting(0, "of text: most of these a sequence; 0: no bound")
    text_key: str = setting("text", "of JSON lines: where an object has its text")
    cache: str = setting("", "folder of token files; '': the user's cache")


@dataclass(frozen=True)
class TrainConf:
    """How layers are trained."""

    batch_size: int = setting(64, "samples a step")
    micro_batch: int = setting(64, "samples at a time on the device")
    learning_rate: float = setting(0.008, "peak, of warm-up, trials and finalists")


@dataclass(frozen=True)
class ObjectivesConf:
    """What is optimised."""

    names: list[str] = setting(["accuracy"], "a metric, then metrics or costs")


@dataclass(frozen=True)
class RelayConf:
    """The device side."""

    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    slots: int = setting(2, "layers on the device at once")
    update: str = setting("eager", "eager; by the whole gradient's norm: exact")
    clip: float = setting(0.0, "largest gradient norm; 0: no clipping")
    clip_scope: str = setting("global", "global, or layer: each by itself")
    precision: str = setting("fp32", "fp32, bf16 or fp16 on the device")
    stash: str = setting("device", "where inputs wait: device or host")
    keep: int = setting(1, "last layers retained, not recomputed")
    budget: str = setting("auto", "device memory to fill: 4GiB, all, none")
    resident: str = setting("auto", "states on the device: 4GiB, all, none")
    pinned: str = setting("all", "keep copies for the link on the host: all, none")
    lanes: str = setting("auto", "threads, inline, or what suits")
    storage: str = setting("ram", "where the pool lives: ram, file; FILE.py:NAME")
    layers: str = setting("eager", "how they run: eager, compile, graphs on CUDA")
    trace: bool = setting(False, "write trace.json and timeline.png")
    threads: int = setting(0, "CPU threads; 0: one for small layers")


@dataclass(frozen=True)
class SearchSection:
    """The budget of a search."""

    time: str = setting("", "of warm-up, trials and finalists together: 10m")
    trials: Optional[int] = setting(None, "architectures to evaluate; null: as it fits")  # noqa: UP045 - OmegaConf
    warmup_steps: Optional[int] = setting(None, "on random paths; null: as it fits")  # noqa: UP045
    warmup_paths: str = setting("uniform", "uniform or fair")
    steps_per_trial: Optional[int] = setting(None, "steps that a trial trains; null: as it fits")  # noqa: UP045
    trial_weights: str = setting("scratch", "what it trains: scratch, shared, fork")
    finalists: int = setting(8, "how many of the best are trained further")
    finalist_steps: Optional[int] = setting(None, "of one in all rounds; null: as it fits")  # noqa: UP045
    finalist_rounds: Optional[int] = setting(None, "rounds, each of half as many; null: up to 3")  # noqa: UP045
    finalist_learning_rate: float = setting(0.0, "peak, of theirs; 0: as of trials")
    baseline: str = setting("none", "none, or random: random networks beside it")
    limits: dict[str, Any] = setting({}, "most of a cost: search.limits.flops=2e6")
    costs: list[str] = setting([], "of your own: [FILE.py:NAME]")
    latency_batch: int = setting(1, "samples that latency_ms is measured with")
    hardware: str = setting("", "predict step_ms for it: h100 ..., FILE.json")
    early_stop: str = setting("none", "none, halving: of trials that lag; FILE.py:NAME")
    keep_fraction: float = setting(0.5, "of trials, at a quarter and half their steps")
    population: int = setting(16, "trials in one pass, if they train nothing")
    workers: int = setting(1, "processes that train and score trials")
    checkpoint_seconds: float = setting(15.0, "at most this much shared training is lost")
    failures: int = setting(10, "failed trials in a row that end the search")
    enqueue: list[str] = setting([], "tried first: [FILE.json,original]")
    retire: list[str] = setting([], "candidates to leave out: layer_00/mlp, */sep5")
    freeze: list[str] = setting([], "candidates whose weights stay as they are")
    introduce: float = setting(1.0, "train new ones to so much of the mean first")
    storage: str = setting("", "database of a study that processes share")
    study: str = setting("search", "its name there")
    lost_after_seconds: float = setting(60.0, "trials of silent processes are redone")
    storage_retry_seconds: float = setting(60.0, "wait for a database that is away")


@dataclass(frozen=True)
class SearchConf:
    """Find an architecture."""

    seed: int = setting(0, "of weights, paths, batches and the sampler")
    folder: str = setting("runs/${now:%Y-%m-%d_%H-%M-%S}", "where everything is written")
    resume: str = setting("", "go on with the run in this folder")
    export: bool = setting(True, "the best network as a plain PyTorch program too")
    sampler: Choice = setting({"name": "gp_hamming"}, "proposes trials; or FILE.py:NAME")
    strategy: Choice = setting({"name": "default"}, "the phases; or FILE.py:NAME")
    optimizer: Choice = setting({"name": "adamw"}, "of the layers' weights; or FILE.py:NAME")
    schedule: Choice = setting({"name": "cosine"}, "of the learning rate; or FILE.py:NAME")
    callbacks: dict[str, Any] = setting({}, "that see it go by: [FILE.py:NAME]")
    space: SpaceConf = field(default_factory=SpaceConf)
    data: DataConf = field(default_factory=DataConf)
    objectives: ObjectivesConf = field(default_factory=ObjectivesConf)
    search: SearchSection = field(default_factory=SearchSection)
    train: TrainConf = field(default_factory=TrainConf)
    relay: RelayConf = field(default_factory=RelayConf)


@dataclass(frozen=True)
class RetrainSection(TrainConf):
    """How the network is trained."""

    learning_rate: float = setting(0.008, "peak of the schedule")
    steps: int = setting(1000, "in all; 0: recalibrate and score only")
    validation_steps: int = setting(100, "steps from one validation to the next")
    recalibrate: int = setting(8, "batches to measure BatchNorm on each time")
    checkpoint_seconds: float = setting(15.0, "at most this much training is lost")


@dataclass(frozen=True)
class RetrainConf:
    """Train one architecture, as the run named but for rate and steps."""

    run: str = setting("", "a run's folder: its best, its weights")
    architecture: str = setting("", "architecture.json or result.json; or original")
    trial: int = setting(-1, "number in that run; -1: its best")
    weights: str = setting("scratch", "scratch; that run's pool, best; a folder")
    metric: str = setting("", "decides what is best; the first by default")
    seed: int = setting(0, "of first weights, batches and dropout")
    folder: str = setting("runs/${now:%Y-%m-%d_%H-%M-%S}", "where everything is written")
    resume: str = setting("", "go on with the training in this folder")
    export: bool = setting(True, "the best network as a plain PyTorch program too")
    optimizer: Choice = setting({"name": "adamw"}, "of the layers' weights; or FILE.py:NAME")
    schedule: Choice = setting({"name": "cosine"}, "of the learning rate; or FILE.py:NAME")
    train: RetrainSection = field(default_factory=RetrainSection)
    space: SpaceConf = field(default_factory=SpaceConf)
    data: DataConf = field(default_factory=DataConf)
    relay: RelayConf = field(default_factory=RelayConf)


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
    seed: int = setting(0, "of the sampler")
    params: dict[str, Any] = setting({}, "what to sweep, if a config file says it")


@dataclass(frozen=True)
class PlanSection:
    """The steps that are planned."""

    batch_size: int = setting(64, "samples a step")
    micro_batch: int = setting(64, "samples at a time on the device")


@dataclass(frozen=True)
class PlanConf:
    """Tell what a run would take, and whether it fits, before it."""

    hardware: str = setting("measure", "h100, laptop ..., FILE.json; measure: this one")
    propose: bool = setting(False, "settings that fit, fastest predicted first")
    devices: int = setting(1, "that share a step: all ways to do so")
    device_memory: str = setting("", "that may be used: 16GiB; '': all there is")
    host_memory: str = setting("", "that may be used: 64GiB; '': all there is")
    folder: str = setting("", "for plan.json, timeline.png; '': nowhere")
    seed: int = setting(0, "of the architectures that a median is taken of")
    optimizer: Choice = setting({"name": "adamw"}, "of the layers' weights; or FILE.py:NAME")
    space: SpaceConf = field(default_factory=SpaceConf)
    data: DataConf = field(default_factory=DataConf)
    train: PlanSection = field(default_factory=PlanSection)
    relay: RelayConf = field(default_factory=RelayConf)


@dataclass(frozen=True)
class EvaluateConf:
    """Score the best architecture of a run again, with the weights found."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = field(default_factory=NamedPoolConf)
    split: str = setting("validation", "validation, test or train")
    recalibrate: int = setting(0, "batches to measure BatchNorm on; 0: as saved")
    task: str = setting("", "on text: wikitext, text, lambada or classify")
    file: str = setting("", "that the task is measured on")
    stride: int = setting(0, "new tokens of each window; 0: all of them")
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class GenerateConf:
    """Have the language model of a run write on."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = field(default_factory=NamedPoolConf)
    prompt: str = setting("", "what the text begins with")
    tokens: int = setting(100, "new ones, at most")
    temperature: float = setting(1.0, "below 1 more likely ones; 0: the likeliest")
    top_k: int = setting(0, "of so many likeliest tokens; 0: of all")
    top_p: float = setting(1.0, "of the likeliest with so much probability")
    seed: int = setting(0, "of the choice")
    tokenizer: str = setting("", "file, folder, or bytes; '': the run's own")


@dataclass(frozen=True)
class ExportConf:
    """Write the best network of a run as a plain PyTorch program."""

    run: str = setting("", "the run's folder")
    space: NamedPoolConf = field(default_factory=NamedPoolConf)
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
    "bench": BenchConf,
}


# settings of Hydra's that a command's help tells of too, by section
HYDRA: dict[str, dict[str, type]] = {"search": {"hydra.sweeper": SweeperConf}}


# settings that are text, taken as it is typed
TEXTS = ("prompt",)


# settings whose names below them are arguments, or costs
OPEN = ("space.args", "search.limits", "callbacks", *CHOICES)
