"""A found network as plain PyTorch, which runs without this library, in several formats.

Every format is written, read back, and run on all validation samples before it gets its name: its outputs must be those
of the relay, and `export.json` holds the metrics measured through each.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_kind
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import first_weights
from l2l_nas.errors import L2LError, SettingError, StorageError, did_you_mean
from l2l_nas.files import (
    make_folder,
    named_failures,
    open_file,
    publish,
    read_json,
    remove_files,
    remove_if_empty,
    remove_leftovers,
    temporary_name,
    write_json,
)
from l2l_nas.relay.interface import Batch
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.build import put_parameter
from l2l_nas.space.elastic import cut_out
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.values import Flow, as_tuple
from l2l_nas.training.fit import chunk_size, chunks, in_micro_batches, learned
from l2l_nas.training.formats import (
    Call,
    ExportError,
    ExportSource,
    Format,
    Onnx,
    Program,
    StateDict,
    largest_difference,
    module_call,
)
from l2l_nas.training.problem import Problem
from l2l_nas.training.published_format import GGUFFile, HalfGGUFFile, HuggingFace
from l2l_nas.training.samples import groups_of, own_generators
from l2l_nas.training.tally import Tally

__all__ = ["Export", "ExportError", "Exported", "PlainNetwork", "build_network", "export_network", "plain_module"]

FORMATS: dict[str, Format] = {
    "state_dict": StateDict(),
    "program": Program(),
    "onnx": Onnx(),
    "hugging_face": HuggingFace(),
    "gguf": GGUFFile(),
    "gguf_f16": HalfGGUFFile(),
}
DEFAULT_FORMATS = ("state_dict", "program")
MANIFEST = "export.json"


def check_formats(names: Sequence[str]) -> None:
    """Refuse names that are none, and formats that need packages which are missing, with a SettingError."""
    if not names:
        raise SettingError(f"formats: name at least one of {', '.join(FORMATS)}")
    for name in names:
        if name not in FORMATS:
            raise SettingError(f"formats: no format '{name}'{did_you_mean(name, FORMATS)}")
    for name in names:
        FORMATS[name].require()


class PlainNetwork(nn.Sequential):
    """`nn.Sequential` whose layers take and give the values of a flow."""

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self._flow = flow

    def forward(self, *inputs: Tensor) -> Tensor | Batch:
        """Outputs of the network: one, or a tuple."""
        layers = tuple(self)
        outputs = self._flow.run(as_tuple(inputs), lambda place, *taken: layers[place](*taken))
        return outputs[0] if len(outputs) == 1 else outputs


def plain_module(pool: LayerPool, architecture: Architecture | Sequence[str]) -> PlainNetwork:
    """An architecture as a plain module, in evaluation mode, with the first weights of its layers.

    Its layers are called by their positions; a layer used twice is one module, a tied weight one parameter. The weights
    of a run are loaded with `load_state_dict(safetensors.torch.load_file("runs/.../export/state_dict.safetensors"))`.

    Raises:
        SpaceError: the architecture is not one of this pool.
        SettingError: there is no pool, or first weights that are not finite.
    """
    check_kind("plain_module: pool", pool, LayerPool, wanted="a LayerPool")
    tied: dict[str, nn.Parameter] = {}
    return _network(pool, architecture, lambda layer: first_module(pool, layer, tied))


def first_module(pool: LayerPool, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
    """A layer as a plain module with its first weights.

    Args:
        tied: parameters of layers before it, which it shares; gets its own.
    """
    module = pool.build_module(layer)
    parameters = dict(module.named_parameters(remove_duplicate=False))
    read = first_weights(pool, layer)
    if read is not None:
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if layer.candidate.tied.get(name) not in tied:
                    parameter.copy_(read(name, parameter.shape))
    for name, group in layer.candidate.tied.items():
        put_parameter(module, name, tied.setdefault(group, parameters[name]))
    return module


def build_network(server: ParamServer, architecture: Architecture) -> PlainNetwork:
    """`plain_module` with a copy of the architecture's weights and buffers."""
    tied: dict[str, nn.Parameter] = {}
    return _network(server.whole_pool, architecture, lambda layer: server.build_module(layer, tied))


def _network(
    pool: LayerPool, architecture: Architecture | Sequence[str], build: Callable[[Layer], nn.Module]
) -> PlainNetwork:
    layers = pool.path(architecture)
    network = PlainNetwork(pool.flow(layers))
    modules: dict[str, nn.Module] = {}
    for layer in layers:
        if layer.key not in modules:
            modules[layer.key] = cut_out(build(layer))
        name = pool.positions[layer.position].name.replace(".", "_")
        while hasattr(network, name):  # an attribute of nn.Module's own, or another position's
            name += "_"
        network.add_module(name, modules[layer.key])
    return network.eval()


@dataclass(frozen=True)
class Exported:
    """A network in one format, as checked."""

    path: Path | None  # its file; None for the module in memory
    values: Mapping[str, float]  # metrics of the validation data, measured through it
    difference: float  # the largest of any output from the relay's
    compared: str = ""  # how it compares with what another library makes of the file


@dataclass(frozen=True)
class Export:
    """What an export gave."""

    values: Mapping[str, float]  # metrics of the validation data, measured through the relay, on the CPU
    # what was written, by format; "module" first, the network in memory
    formats: dict[str, Exported] = field(default_factory=dict)
    refused: dict[str, L2LError] = field(default_factory=dict)  # why a format could not be written


@own_generators()  # building a module draws, and its weights are replaced
def export_network(
    server: ParamServer,
    architecture: Architecture,
    folder: Path,
    *,
    problem: Problem,
    micro_batch: int,
    formats: Sequence[str] = DEFAULT_FORMATS,
    about: Mapping[str, Any] | None = None,
) -> Export:
    """Write a network in these formats, and `export.json`, which tells what was measured through each.

    A format that cannot hold the network does not keep the others from being written. Files of an earlier export to
    this folder are replaced or removed, by what its `export.json` names; other files are never touched.

    Args:
        problem: its validation data and task check what is written.
        micro_batch: samples at a time, as the reported metrics were measured.
        formats: keys of `FORMATS`.
        about: more to write into `export.json`, such as what was reported. A model's card tells of it: "data" with its
            "source" and how many "samples" each part has; "steps" of training; and "figures", by what was measured, of
            the "network" and of the "original", each with "values" and "errors".

    Raises:
        SettingError: no such format, or a package it needs is missing.
        ExportError: the plain network computes something else than the relay, or a file of that name is somebody
            else's; nothing is written.
        StorageError: a file cannot be written.
    """
    check_formats(formats)
    place = _ExportFolder(folder, architecture)
    place.refuse_taken(
        {file for name in formats for file in (*FORMATS[name].files, *FORMATS[name].beside(server.pool))}
    )
    check = _Check(problem, Relay(server, device="cpu"), architecture, micro_batch)
    network = build_network(server, architecture)
    try:
        module = check.measure(module_call(network), None, tolerance=0.0)
    except ExportError as error:
        raise ExportError(f"the network as a plain module: {error}; are its layers the same in every call?") from None
    export = Export(module.values, {"module": module})  # its outputs are the relay's bit for bit
    empty = partial(plain_module, server.pool, architecture)
    source = ExportSource(
        network,
        check.example,
        server.pool,
        architecture,
        empty,
        about=about or {},
    )
    for name in dict.fromkeys(formats):
        with place.workshop() as workshop:
            try:
                export.formats[name] = check.written(FORMATS[name], source, workshop, folder)
            except (ExportError, SettingError) as error:  # of a package that is missing, or broken
                export.refused[name] = error
                continue
            place.publish(workshop, FORMATS[name].files[-1])
    if len(export.formats) > 1:
        place.write_manifest(export, {"micro_batch": micro_batch, **(about or {})})
    return export


@dataclass(frozen=True)
class _Check:
    """Runs a network on all validation samples beside the relay, chunk by chunk, in the relay's micro-batches."""

    problem: Problem
    relay: Relay
    architecture: Architecture
    micro_batch: int

    @property
    def example(self) -> Batch:
        split = self.problem.data.validation
        samples = max(2, min(4, len(split)))
        return split.batch(torch.arange(samples) % len(split))[0]

    def written(self, how: Format, source: ExportSource, workshop: Path, folder: Path) -> Exported:
        """Write a format to a workshop, read it back, and measure what was read."""
        main = how.files[-1]
        with named_failures(folder / main):
            how.write(source, workshop / main)
        try:
            call = how.read(workshop / main, source)
        except (ExportError, SettingError):
            raise
        except L2LError as error:  # it is written as its reader does not have it
            raise ExportError(f"what was written cannot be read: {error}") from error
        measured = self.measure(call, folder / main, tolerance=how.tolerance)
        return replace(measured, compared=how.compare(workshop / main, source, call))

    def measure(self, call: Call, path: Path | None, *, tolerance: float) -> Exported:
        """Metrics and the largest difference; raises ExportError where the outputs are others."""
        split, size = self.problem.data.validation, chunk_size(self.relay, self.micro_batch)
        micro_batch = min(self.micro_batch, size)
        tally, difference, scale = Tally(learned(self.problem.task, self.relay), groups_of(split)), 0.0, 1.0
        for inputs, targets in chunks(split, size):
            expected = self.relay.predict(self.architecture, inputs, micro_batch=micro_batch)
            got = in_micro_batches(call, inputs, micro_batch)
            difference = max(difference, largest_difference(got, expected))
            scale = max(scale, _scale(expected))
            if difference == math.inf:
                break  # nothing that could be measured
            tally.add(got, targets)
        if difference > tolerance * scale:
            raise ExportError(f"its outputs differ from the relay's by {difference:.3g}")
        return Exported(path, tally.metrics(), difference)


def _scale(outputs: Batch) -> float:
    """The largest finite output, at least 1."""
    largest = (tensor[tensor.isfinite()].double().abs().max() for tensor in outputs if bool(tensor.isfinite().any()))
    return max([1.0, *map(float, largest)])


class _ExportFolder:
    """Where an export goes; others may have files there, and what its user changed is no export's any more."""

    def __init__(self, root: Path, architecture: Architecture) -> None:
        self.root, self._architecture = root, architecture
        self._before = _owned(root)
        self._files: dict[str, str] = {}  # of this export: their digests by name

    def refuse_taken(self, names: Iterable[str]) -> None:
        owned = {*self._before, *([MANIFEST] if _is_ours(self.root) else [])}
        for file in (MANIFEST, *sorted(names)):
            if file not in owned and os.path.lexists(self.root / file):
                raise ExportError(
                    f"{self.root / file} is there already, and no export wrote it; move it, or export to another folder"
                )

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A place for what is not checked yet, in the folder; where nothing came of it, neither stays."""
        make_folder(self.root)
        remove_leftovers(self.root)
        workshop = temporary_name(self.root / "export")
        make_folder(workshop)
        try:
            yield workshop
        finally:
            remove_files(workshop, lambda name: True)
            remove_if_empty(self.root)

    def publish(self, workshop: Path, main: str) -> None:
        """Give the files of a format their names; the one that is run is the last.

        Before that the folder says whose files these are: a kill may come in between.
        """
        names = sorted((path.name for path in workshop.iterdir()), key=lambda name: (name == main, name))
        self._files |= {name: _digest_of(workshop / name) for name in names}
        before = {name: digests for name, digests in self._before.items() if digests}
        self._write(formats={}, files={**before, **{n: [*before.get(n, ()), d] for n, d in self._files.items()}})
        for name in names:
            publish(workshop / name, self.root / name)

    def write_manifest(self, export: Export, about: Mapping[str, Any]) -> None:
        """Tell what the folder holds, and remove what an earlier export left there."""
        _remove(self.root, self._before.keys() - self._files.keys())
        formats = {
            name: {
                "file": one.path.name if one.path else None,
                "values": dict(one.values),
                "largest_difference": one.difference,
                **({"compared": one.compared} if one.compared else {}),
            }
            for name, one in export.formats.items()
        }
        self._write(
            **about,
            values=dict(export.values),
            formats=formats,
            refused={name: str(error) for name, error in export.refused.items()},
            files={name: [digest] for name, digest in sorted(self._files.items())},
        )

    def _write(self, **content: Any) -> None:
        write_json(self.root / MANIFEST, {"architecture": list(self._architecture.choices), **content})


def _manifest(folder: Path) -> dict[str, Any]:
    """What a folder's manifest says; nothing where it is damaged or missing."""
    try:
        content = read_json(folder / MANIFEST)
    except StorageError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_ours(folder: Path) -> bool:
    return {"architecture", "formats"} <= _manifest(folder).keys()


def _owned(folder: Path) -> dict[str, list[str]]:
    """The files that exports wrote to a folder, or were about to when they were killed: what they may hold, by name.

    One that holds something else is not ours any more.
    """
    named = _manifest(folder).get("files")
    if isinstance(named, list):  # of a manifest without digests, as they were before
        known = {name for how in FORMATS.values() for name in how.files}
        named = {name: [_digest_of(folder / name)] for name in known.intersection(map(str, named))}
    return {
        name: digests
        for name, digests in (named.items() if isinstance(named, dict) else ())
        if isinstance(digests, list) and Path(name).name == name and _digest_of(folder / name) in digests
    }


def _digest_of(path: Path) -> str:
    """The digest of what a file holds; empty where there is none."""
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except StorageError:
        return ""


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with named_failures(folder / name):
            (folder / name).unlink(missing_ok=True)


def remove_export(folder: Path) -> None:
    """Remove what an export wrote to a folder, and the folder if nothing else is in it. A link to one is left alone.

    Raises:
        StorageError: a file cannot be removed.
    """
    if not folder.is_symlink() and _is_ours(folder):
        _remove(folder, [*_owned(folder), MANIFEST])  # a kill in between leaves what says whose files these are
        remove_if_empty(folder)
