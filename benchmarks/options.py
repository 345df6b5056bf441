"""Settings of the command `bench`; see `runs.settings`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from l2l_nas.runs.fields import setting


@dataclass(frozen=True)
class StackConf:
    """The stack of encoder blocks that is trained; 0: the bench's own size."""

    depth: int = setting(0, "blocks; all of these, 0: the bench's own")
    hidden: int = setting(0, "width of a block")
    heads: int = setting(0, "attention heads of a block")
    feedforward: int = setting(0, "width of a block's feed-forward part")
    sequence: int = setting(0, "tokens of a sample")
    vocabulary: int = setting(0, "different tokens")
    batch: int = setting(0, "samples a step")
    micro_batch: int = setting(0, "samples at a time on the device")
    candidates: int = setting(0, "equally costly blocks at a position")


@dataclass(frozen=True)
class MeasuredSpaceConf:
    """Of `ranking`, `search_chain`; image and classes of a built-in one follow the data."""

    pool: str = setting("", "built in, FILE.py:FUNCTION; '': the bench's own")
    args: dict[str, Any] = setting({}, "its arguments: space.args.channels=16")


@dataclass(frozen=True)
class MeasuredDataConf:
    """What is learned there, unless the pool brings its own data."""

    source: str = setting("", "digits, cluttered_digits, .npz; '': its own")
    validation_fraction: float = setting(0.25, "share that searches choose by")
    test_fraction: float = setting(0.25, "share that is the truth")


@dataclass(frozen=True)
class BenchConf:
    """Measure the relay beside its peers."""

    bench: str = setting("", "which one; without it, all are named")
    folder: str = setting("bench/${now:%Y-%m-%d_%H-%M-%S}", "where NAME.json and NAME.png are written")
    seed: int = setting(0, "of weights, tokens and paths", most=2**63 - 1)
    device: str = setting("auto", "auto, cpu, cuda or cuda:N")
    threads: int = setting(0, "CPU threads; 0: torch's own choice", most=4096)
    sides: list[str] = setting([], "relay, plain, ...; []: the bench's own")
    depths: list[int] = setting([], "for depth, throughput; []: the bench's own")
    batches: list[int] = setting([], "for batch; []: the bench's own")
    rounds: int = setting(0, "rounds of each side; 0: the bench's own")
    steps: int = setting(0, "of a round, switching, a trial; 0: its own")
    architectures: int = setting(0, "of a population, sample; 0: its own")
    population_bytes: int = setting(0, "bound of what a population keeps; 0: none")
    samplers: list[str] = setting([], "for nas201, ranking; []: the bench's own")
    runs: int = setting(0, "of each sampler; 0: the bench's own")
    trials: int = setting(0, "evaluations of a run; 0: the bench's own")
    workers: int = setting(0, "processes of a search; 0: the bench's own", most=4096)
    trace: bool = setting(False, "trace.json and timeline.png of the relay too")
    table: str = setting("", "trained alone: read or go on; '': what fits")
    seeds: int = setting(0, "trainings alone of a network; 0: its own")
    training_steps: int = setting(0, "of each of them; 0: its own")
    warmup_steps: int = setting(0, "of supernets; 0: the bench's own")
    trial_weights: str = setting("", "of search_chain: scratch, its own, or shared")
    space: MeasuredSpaceConf = field(default_factory=MeasuredSpaceConf)
    data: MeasuredDataConf = field(default_factory=MeasuredDataConf)
    stack: StackConf = field(default_factory=StackConf)
