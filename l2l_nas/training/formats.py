"""The formats a network is exported in: what each writes, and how its file is run again to be checked."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor, nn

from l2l_nas.errors import L2LError, SettingError, one_line, raised_where
from l2l_nas.plugins import optional
from l2l_nas.relay.interface import Batch
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.values import as_tuple

Call = Callable[[Batch], Batch]
ROUNDED = 1e-4  # of the largest output: what other kernels may differ by, after sums of many terms


class ExportError(L2LError):
    """A network that a format cannot hold, or that gives other outputs in it."""


@dataclass(frozen=True)
class ExportSource:
    """What is exported."""

    network: nn.Sequential  # in evaluation mode, its layers in the order of the path
    example: Batch  # inputs of at least two samples; the number of samples stays free
    pool: LayerPool
    architecture: Architecture
    empty: Callable[[], nn.Module]  # builds the network anew, with other weights
    about: Mapping[str, Any] = field(default_factory=dict)  # what is known of its run

    @cached_property
    def program(self) -> torch.export.ExportedProgram:
        """The network as a `torch.export` program. Raises ExportError: it cannot be traced."""
        free = torch.export.Dim.DYNAMIC
        try:
            with torch.no_grad(), silence():
                return torch.export.export(
                    self.network, self.example, dynamic_shapes={"inputs": tuple({0: free} for _ in self.example)}
                )
        except Exception as error:
            raise ExportError(
                f"torch.export cannot trace this network: {_reason(error)}; its weights can be exported as state_dict"
            ) from error


class Format(ABC):
    """One way to write a network.

    Attributes:
        files: all that it may consist of, but for what is `beside`; the last one is what is run.
        tolerance: how far its outputs may be from the network's, as a share of the largest; 0: equal bit for bit.
    """

    files: tuple[str, ...]
    tolerance = 0.0

    def require(self) -> None:  # noqa: B027
        """Raises SettingError: a package is missing."""

    def beside(self, pool: LayerPool) -> Mapping[str, bytes]:
        """Files by name that it writes along with each network of a pool, as they are."""
        return {}

    @abstractmethod
    def write(self, source: ExportSource, path: Path) -> None:
        """Write a network. Raises ExportError: this format cannot hold it."""

    @abstractmethod
    def read(self, path: Path, source: ExportSource) -> Call:
        """The file as a function of a batch, without gradients. Raises ExportError: the file cannot be run."""

    def compare(self, path: Path, source: ExportSource, call: Call) -> str:
        """Compare the file, as it was read, with what another library makes of it; returns what to tell of it.

        Raises:
            ExportError: the two give other outputs.
        """
        return ""


def write_tensors(path: Path, tensors: Mapping[str, Tensor], **metadata: str) -> None:
    """A file of safetensors; a tied weight is written under each of its names."""
    copies = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    path.write_bytes(serialize(copies, metadata=metadata or None))


class StateDict(Format):
    """Weights and buffers by name, for `plain_module` or a module of one's own."""

    files = ("state_dict.safetensors",)

    def write(self, source: ExportSource, path: Path) -> None:
        write_tensors(path, source.network.state_dict())

    def read(self, path: Path, source: ExportSource) -> Call:
        network = source.empty()
        network.load_state_dict(load_file(path))
        return module_call(network)


class Program(Format):
    """A `torch.export` program: runs with PyTorch alone."""

    files = ("model.pt2",)
    tolerance = ROUNDED  # layers with a fused path in evaluation, such as torch's own encoder, are traced without it

    def write(self, source: ExportSource, path: Path) -> None:
        buffer = io.BytesIO()  # of a full disk, torch's own writer says nothing that a user could read
        torch.export.save(source.program, buffer)
        path.write_bytes(buffer.getbuffer())

    def read(self, path: Path, source: ExportSource) -> Call:
        program = module_call(torch.export.load(path).module())

        def call(batch: Batch) -> Batch:
            try:
                return program(batch)
            except Exception as error:
                raise ExportError(
                    f"torch.export's program does not run on {len(batch[0])} samples: {_innermost(error)}; does a "
                    "layer ask for the size of the batch?"
                ) from error

        return call


class Onnx(Format):
    """ONNX, from the `torch.export` program: runs wherever an ONNX runtime does.

    Weights beyond 2 GB lie beside it in `model.onnx.data`, as protobuf holds no more.
    """

    files = ("model.onnx.data", "model.onnx")
    tolerance = ROUNDED  # other kernels sum in another order

    def require(self) -> None:
        missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if importlib.util.find_spec(name) is None]
        if missing:
            raise SettingError(
                f"formats: onnx needs the package {' and '.join(missing)}, not installed: pip install 'l2l-nas[onnx]'"
            )

    def write(self, source: ExportSource, path: Path) -> None:
        program = source.program
        outputs = module_call(source.network)(source.example)
        try:
            with silence():
                written = torch.onnx.export(
                    program,
                    input_names=_names("input", len(source.example)),
                    output_names=_names("output", len(outputs)),
                    dynamic_shapes={"inputs": tuple({0: "batch"} for _ in source.example)},
                    dynamo=True,
                    verbose=False,
                )
        except Exception as error:
            raise ExportError(f"ONNX cannot hold this network: {_innermost(error)}") from error
        assert written is not None
        written.save(path)

    def read(self, path: Path, source: ExportSource) -> Call:
        onnxruntime = optional("onnxruntime", "formats: onnx needs", extra="onnx")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        options.log_severity_level = 3  # errors
        with _runs_onnx():
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [entry.name for entry in session.get_inputs()]

        def call(batch: Batch) -> Batch:
            arrays = {name: tensor.contiguous().numpy() for name, tensor in zip(names, batch, strict=True)}
            with _runs_onnx():
                return tuple(torch.from_numpy(array) for array in session.run(None, arrays))

        return call


@contextlib.contextmanager
def _runs_onnx() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ExportError(f"ONNX Runtime cannot run this network: {_innermost(error)}") from error


def module_call(network: nn.Module) -> Call:
    """A module as a function of a batch, without gradients."""

    def call(batch: Batch) -> Batch:
        with torch.no_grad():
            return as_tuple(network(*batch))

    return call


def _names(stem: str, count: int) -> list[str]:
    return [stem] if count == 1 else [f"{stem}_{index}" for index in range(count)]


def _innermost(error: BaseException) -> str:
    """What began a chain of errors: exporters wrap the cause in advice of many lines."""
    while error.__cause__ is not None:
        error = error.__cause__
    return _first_line(error)


def _reason(error: BaseException) -> str:
    """What torch.export says: the first line, the reasons listed below it, and the user's line that it came to."""
    lines = re.sub(r"\x1b\[\d*m", "", str(error)).splitlines()
    listed = [line.strip().removeprefix("- ") for line in lines[1:] if line.lstrip().startswith("- ")]
    first = re.sub(r" *For more information.*", "", _first_line(error))
    cause: BaseException | None = error
    places = []
    while cause is not None:
        places.append(raised_where(cause))
        cause = cause.__cause__
    return one_line(" ".join([first.rstrip(), *listed]), most=600).rstrip(".") + next(filter(None, places), "")


def _first_line(error: BaseException) -> str:
    plain = re.sub(r"\x1b\[\d*m", "", str(error)).strip()
    return plain.splitlines()[0] if plain else type(error).__name__


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Exporters print a graph that they give up on, log packages that are missing, and use what torch deprecates."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def largest_difference(got: Batch, expected: Batch) -> float:
    """The largest difference of any output; infinite where numbers, shapes or dtypes do not agree.

    NaN and inf agree with themselves.
    """
    if [(t.shape, t.dtype) for t in got] != [(t.shape, t.dtype) for t in expected]:
        return float("inf")
    return max((_difference(a, b) for a, b in zip(got, expected, strict=True)), default=0.0)


def _difference(got: Tensor, expected: Tensor) -> float:
    if torch.equal(got, expected) or got.numel() == 0:
        return 0.0
    a, b = got.double(), expected.double()
    gap: Any = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs())
    return float(gap.nan_to_num(nan=float("inf")).max())
