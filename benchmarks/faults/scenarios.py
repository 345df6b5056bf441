"""Commands that are killed and resumed, and what must be true of their folders at the end."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.faults import forks
from l2l_nas.compress.families import family_of
from l2l_nas.files import read_json, write_json
from l2l_nas.nas.study.reading import read_study
from tests.cli.runs import events, write_pool

WHOLE = "whole"  # the folder of the run that nothing interrupts
SMALLER = (
    *("search", "experiment=smaller", "space.pool=hf:model", "space.args.heads=[2]", "data.source=corpus.jsonl"),
    *("data.tokenizer=bytes", "data.length=64", "strategy.samples=16", "strategy.steps=6"),
    *("strategy.sizes=[0.15,0.3]", "search.finalists=2", "search.finalist_steps=40"),
    *("search.checkpoint_seconds=0.05", "export=false"),
)
_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5,
    "intermediate_size": 96, "vocab_size": 257, "max_position_embeddings": 128, "tie_word_embeddings": True,
}  # fmt: skip
_SPREAD = 0.15  # of its weights: so much that layers depend on each other
_TEXT = "It jumped over the dogs, and over the cats; it did not jump over the river.\n"
# what differs between two runs that find the same
_OF_THE_RUN = {"seconds", "latency_ms", "token_latency_ms", "versions", "folder", "time", "started", "process"}


def with_model(place: Path) -> None:
    """A Llama whose tokens are bytes, a corpus, and a run that nothing interrupts."""
    model = place / "model"
    model.mkdir()
    write_json(model / "config.json", _CONFIG)
    generator = torch.Generator().manual_seed(0)
    shapes = family_of(_CONFIG).shapes
    tensors = {name: torch.randn(shape, generator=generator) * _SPREAD for name, shape in shapes.items()}
    save_file({name: 1 + one if one.dim() == 1 else one for name, one in tensors.items()}, model / "model.safetensors")
    lines = [json.dumps({"text": f"{number}. {_TEXT * 3}"}) for number in range(600)]
    (place / "corpus.jsonl").write_text("\n".join(lines) + "\n")
    made = forks.command(place, *SMALLER, f"folder={WHOLE}")
    assert made.wait(PATIENCE_S) == 0, made.errors


def check_smaller(folder: Path) -> str:
    """Whether a run found what the one without interruption did: results and all weights, bit for bit."""
    found, expected = (_content(path) for path in (folder, folder.parent / WHOLE))
    different = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
    return f"differs from a run without interruption in {', '.join(different[:8])}" if different else ""


def _content(folder: Path) -> dict[str, Any]:
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*.safetensors")}
    weights = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return weights | _of_all_runs(read_json(folder / "result.json"))


def _of_all_runs(content: Any) -> Any:
    if isinstance(content, list):
        return [_of_all_runs(one) for one in content]
    if not isinstance(content, dict):
        return content
    return {key: _of_all_runs(value) for key, value in content.items() if key not in _OF_THE_RUN}


# so long a command may take that is not killed
PATIENCE_S = 600.0
POOL = "space.pool=tiny.py:build"
TINY = (
    *("search.trial_weights=shared", "search.warmup_steps=8", "search.trials=10", "search.steps_per_trial=1"),
    *("search.finalists=1", "search.finalist_steps=2", "search.checkpoint_seconds=0", "export=false"),
)


def with_run(place: Path) -> None:
    write_pool(place)
    made = forks.command(place, "search", POOL, *TINY, "folder=run")
    assert made.wait(PATIENCE_S) == 0, made.errors


@dataclass(frozen=True)
class Scenario:
    """A command that is killed."""

    name: str
    words: tuple[str, ...]
    share: int
    check: Callable[[Path], str]
    key: str = "folder"
    resumes: bool = True
    least: int = 1
    most: int = 4
    build: Callable[[Path], None] = with_run

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
        records = read_study(copy).records
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
    result = json.loads((folder / "result.json").read_text())
    steps = [validation["step"] for validation in result["validations"]]
    if steps != sorted(set(steps)) or steps[-1] != 30:
        return f"validations at the steps {steps}"
    return whole_weights(folder / "weights") or whole_weights(folder / "best")


def check_sweep(folder: Path) -> str:
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
    return "" if path.read_text().rstrip().endswith("</html>") else "a page that is not whole"


_OWN = ("search.trial_weights=fork", "search.workers=2")
_TRAIN = ("train.steps=30", "train.validation_steps=4", "train.checkpoint_seconds=0", "export=false")


def scenarios() -> tuple[Scenario, ...]:
    search, sweep, run = ("search", POOL, *TINY), ("search", "-m", POOL, *TINY), ("run=run", POOL)
    exported = ("export", *run, "formats=[state_dict]")
    return (
        Scenario("search", search, 10, check_search),
        Scenario("search with states in files", (*search, "relay.storage=file"), 6, check_search),
        Scenario("search with two workers", (*search, "search.workers=2"), 3, check_search),
        Scenario("search with two workers on weights of their own", (*search, *_OWN), 3, check_search),
        Scenario("sweep with two workers", (*sweep, "seed=0,1", "search.workers=2"), 1, check_sweep, least=4, most=8),
        Scenario("train", ("train", *run, *_TRAIN), 6, check_training),
        Scenario("sweep of combinations", (*sweep, "seed=0,1"), 4, check_sweep, least=6, most=8),
        Scenario("export", exported, 4, check_export, "out", resumes=False),
        Scenario("report", ("report", "run=run"), 3, check_page, "out", resumes=False),
        Scenario("search experiment=smaller", SMALLER, 3, check_smaller, least=2, most=5, build=with_model),
        Scenario("evaluate", ("evaluate", *run), 2, lambda path: "", "", resumes=False),
    )
