"""Settings of the sections that several commands have; see `settings.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from l2l_nas.runs.fields import FREE, MAY_CHANGE, PATH, PLAIN, TEXT, UsedIf, setting, stays

TRAINED = "earlier trials were trained with that"


def _has_link(conf: Any) -> bool:
    """Whether the device has memory of its own."""
    from l2l_nas.relay.device import open_device  # with torch, which `--help` does without

    return not open_device(conf.relay.device).shares_memory


def _has_json(conf: Any) -> bool:
    from l2l_nas.text.documents import JSON, text_files

    return any(path.suffix.lower() in JSON for path in text_files(conf.data.source))


_WHERE_GUESSED = UsedIf("data.objective", lambda conf: conf.data.objective == "masked")


@dataclass(frozen=True)
class SpaceConf:
    """What is searched."""

    pool: str = setting(
        "image_blocks", "built in, FILE.py:FUNCTION or MODULE:FUNCTION", PATH, resume=MAY_CHANGE, is_code=True
    )
    args: dict[str, Any] = setting({}, "arguments of the pool: space.args.channels=32", PATH, resume=MAY_CHANGE)


@dataclass(frozen=True)
class NamedPoolConf:
    """The pool of a run."""

    pool: str = setting("", "FILE.py:FUNCTION again, if the pool is your own")


@dataclass(frozen=True)
class DataConf:
    """What is learned, unless the pool brings its own data."""

    source: str = setting("cluttered_digits", "or digits, .npz, folder, text file, pydoc", PATH)
    validation_fraction: float = setting(0.2, "share of samples that the search selects by", PLAIN)
    test_fraction: float = setting(0.2, "share of samples for the final test; 0: none", PLAIN)
    size: list[int] = setting([], "height, width to scale a folder's images to", PLAIN)
    workers: int = setting(0, "processes that read a folder's images ahead", least=0, most=4096, resume=FREE)
    length: int = setting(128, "text: tokens of a sequence", PLAIN, least=1)
    tokenizer: str = setting("auto", "text: bytes, FILE, FOLDER; auto: the model's", PATH)
    objective: str = setting("causal", "text: causal or masked", PLAIN)
    documents: str = setting("across", "text: attention across documents, or apart", PLAIN)
    masked: float = setting(0.15, "text: share of tokens to guess", PLAIN, effect=_WHERE_GUESSED)
    predictions: int = setting(0, "text: most guesses in a sequence; 0: no bound", PLAIN, effect=_WHERE_GUESSED)
    text_key: str = setting(
        "text", "JSON lines: key of an object's text", TEXT, effect=UsedIf("data.source", _has_json)
    )


@dataclass(frozen=True)
class TrainConf:
    """How layers are trained."""

    batch_size: int = setting(64, "samples a step", PLAIN, least=1)
    micro_batch: int = setting(
        64, "samples at a time on the device", PLAIN, least=1, resume=stays("BatchNorm sees other samples at a time")
    )
    learning_rate: float = setting(0.008, "peak rate of warm-up, trials and finalists", PLAIN)


@dataclass(frozen=True)
class ObjectivesConf:
    """What is optimised."""

    names: list[str] = setting(["accuracy"], "a metric first, then metrics or costs", TEXT)


@dataclass(frozen=True)
class RanksConf:
    """Ranks that share a network."""

    data: Optional[int] = setting(
        None, "ranks that share the samples; null: all others", least=1, most=65536, is_inherited=False, resume=FREE
    )
    tensor: int = setting(1, "ranks that share each layer", least=1, most=65536, is_inherited=False, resume=FREE)


@dataclass(frozen=True)
class MeshConf(RanksConf):
    """Ranks that share each step."""

    chunks: Optional[int] = setting(
        None, "parts of a step, summed in pairs; null: ranks", PLAIN, least=1, is_inherited=False, resume=stays(TRAINED)
    )


@dataclass(frozen=True)
class ParallelConf(MeshConf):
    """Ranks that torchrun starts, which share each step."""

    patience_s: float = setting(20.0, "seconds to wait for a rank's answer", least=1, is_inherited=False, resume=FREE)


@dataclass(frozen=True)
class RelayConf:
    """The device side."""

    device: str = setting("auto", "auto, cpu, cuda or cuda:N", resume=FREE)
    slots: int = setting(2, "layers on the device at once", PLAIN, most=4096, is_inherited=False, resume=FREE)
    update: str = setting("eager", "eager: at once; exact: after the global norm", PLAIN, resume=MAY_CHANGE)
    clip: float = setting(0.0, "largest gradient norm; 0: no clipping", PLAIN, least=0, resume=stays(TRAINED))
    clip_scope: str = setting(
        "global",
        "norm of all layers: global; of each: layer",
        PLAIN,
        resume=stays(TRAINED),
        effect=UsedIf("relay.clip", lambda conf: conf.relay.clip > 0),
    )
    precision: str = setting("fp32", "fp32, bf16 or fp16 on the device", PLAIN, resume=stays(TRAINED))
    stash: str = setting("device", "where inputs wait for backward: device or host", PLAIN, resume=FREE)
    keep: int = setting(
        1, "number of last layers that are not recomputed", PLAIN, most=4096, is_inherited=False, resume=FREE
    )
    budget: str = setting("auto", "device memory to fill: 4GiB, all, none", TEXT, is_inherited=False, resume=FREE)
    resident: str = setting(
        "auto",
        "whether states stay on the device: all, none",
        PLAIN,
        effect=UsedIf("relay.device", _has_link),
        is_inherited=False,
        resume=FREE,
    )
    lanes: str = setting("auto", "how copies and updates run: threads, inline", PLAIN, resume=FREE)
    storage: str = setting("ram", "where layer states lie: ram, file, FILE.py:NAME", PLAIN, is_code=True, resume=FREE)
    layers: str = setting("eager", "how layers run: eager, compile, graphs (CUDA)", PLAIN, resume=FREE)
    trace: bool = setting(False, "write trace.json and timeline.png", PLAIN, is_inherited=False, resume=FREE)
    threads: int = setting(0, "CPU threads; 0: one for small layers", least=0, most=4096, resume=FREE)
