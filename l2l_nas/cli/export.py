"""`export`: write the best network of a run as plain PyTorch, and as ONNX, and measure what was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2l_nas.eps.identity import fingerprint
from l2l_nas.errors import SettingError
from l2l_nas.report.text import format_value
from l2l_nas.runs.build import build_relay, set_threads
from l2l_nas.runs.evaluated import figures_of
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.mesh import check_mesh
from l2l_nas.runs.origin import doubts, versions
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.saved import LoadedRun, SavedRun, data_warning, load_found
from l2l_nas.runs.settings import ExportConf
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.training.export import ExportError, check_formats, export_network
from l2l_nas.training.published_format import MODELING

_USE = {
    "module": "in Python: l2l_nas.plain_module(pool, architecture)",
    "program": 'torch.export.load("{path}").module()',
    "state_dict": 'plain_module(...).load_state_dict(safetensors.torch.load_file("{path}"))',
    "hugging_face": 'transformers.AutoModelForCausalLM.from_pretrained("{path.parent}", trust_remote_code=True)',
    "gguf": "llama-cli -m {path}",
    "gguf_f16": "llama-cli -m {path}",
    "onnx": 'onnxruntime.InferenceSession("{path}")',
}


def main(conf: ExportConf, ranks: RunRanks | None = None) -> None:
    """Write the files, say what was measured through each and how to load them; of several ranks, the first one."""
    ranks = ranks or RunRanks()
    if not ranks.is_first:
        ranks.follow({})
        return
    if conf.parallel.tensor > 1:
        raise SettingError(
            f"parallel.tensor={conf.parallel.tensor}: an export is of one process, which has the whole network; "
            "leave it out"
        )
    check_mesh(conf.parallel, ranks.size)
    _export(conf)


def _export(conf: ExportConf) -> None:
    check_formats(conf.formats)
    found = load_found(conf.run, pool=conf.space.pool)
    set_threads(found.relay.threads, build_relay(found.server, replace(found.relay, device="cpu"), seed=0))
    run = RunFolder(Path(conf.run))
    reported = found.result["best"]["values"]
    export = export_network(
        found.server,
        found.architecture,
        Path(conf.out) if conf.out else run.export,
        problem=found.problem,
        micro_batch=found.micro_batch,
        formats=conf.formats,
        about={"weights": str(run.best), "reported": reported, "versions": versions(), **_for_card(conf, found)},
    )
    console = open_terminal()
    for name, done in export.formats.items():
        how = _USE[name].format(path=done.path)
        if done.path is not None and not done.path.with_name(f"{MODELING}.py").exists():
            how = how.replace(", trust_remote_code=True", "")
        console.print(f"  {name:10} {_measured(done.values, reported)}", soft_wrap=True)
        for line in filter(None, (done.compared, how)):
            console.print(f"             {line}", soft_wrap=True)
    others = data_warning(found.problem.data, found.result, run.root)
    for line in [others] if others else doubts(export, reported):
        warn(console, line)
    for name, error in export.refused.items():
        raise ExportError(f"{name} was not written: {error}")


def _for_card(conf: ExportConf, found: LoadedRun) -> dict[str, Any]:
    """What a model's card tells of its run; see `export_network`."""
    best, data = found.result["best"], found.result.get("data")
    source = value_of(SavedRun(RunFolder(found.root)).config, "data.source")
    samples = data.get("samples") if isinstance(data, dict) else None
    return {
        "data": {"source": Path(str(source)).name, "samples": samples},
        "steps": best.get("steps", best.get("step")),  # of a search, of a training
        "figures": figures_of(conf.run, found.result, original=fingerprint(found.server.whole_pool)),
    }


def _measured(values: Mapping[str, float], reported: Mapping[str, float]) -> str:
    """Each metric, and how it compares with what was reported."""
    parts = []
    for name, value in values.items():
        note = "as reported"
        if value != reported.get(name):
            note = f"differs by {abs(value - reported[name]):.1e}" if name in reported else ""
        parts.append(f"{name} {format_value(name, value)} {note}".rstrip())
    return ", ".join(parts)
