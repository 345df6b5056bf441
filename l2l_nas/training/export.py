"""A found network as plain PyTorch, which runs without this library."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save as serialize
from torch import Tensor, nn

from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError
from l2l_nas.files import make_folder, write_atomically
from l2l_nas.relay.interface import Batch
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.shapes import as_tuple


class ExportError(L2LError):
    """A network that `torch.export` cannot write, or that gives other outputs afterwards."""


class Chain(nn.Sequential):
    """`nn.Sequential` whose layers may pass tuples on."""

    def forward(self, *inputs: Tensor) -> Tensor | Batch:
        """Outputs of the last layer."""
        values: Batch = inputs
        for layer in self:
            values = as_tuple(layer(*values))
        return values[0] if len(values) == 1 else values


def build_network(server: ParamServer, architecture: Architecture) -> Chain:
    """A plain module with a copy of the architecture's weights, in evaluation mode.

    Its layers are called by their positions; a layer used twice is one module, a tied weight one parameter.
    """
    pool = server.pool
    chain = Chain()
    modules: dict[str, nn.Module] = {}
    tied: dict[str, nn.Parameter] = {}
    for layer in pool.path(architecture):
        if layer.key not in modules:
            modules[layer.key] = server.build_module(layer, tied)
        name = pool.positions[layer.position].name.replace(".", "_")
        # a module may not be called as one of nn.Module's own attributes
        chain.add_module(f"{name}_" if hasattr(nn.Module, name) else name, modules[layer.key])
    return chain.eval()


def export_network(server: ParamServer, architecture: Architecture, folder: Path, *, example: Batch) -> list[Path]:
    """Write `model.pt2`, a `torch.export` program with a free batch size, and `state_dict.safetensors`.

    The program is read back and compared on the example before anything is called done.

    Args:
        example: inputs of at least two samples.

    Returns:
        the files written.

    Raises:
        ExportError: the network cannot be traced, or the program's outputs differ.
        StorageError: a file cannot be written.
    """
    network = build_network(server, architecture)
    batch = torch.export.Dim.DYNAMIC  # the first dimension stays free
    try:
        with torch.no_grad(), _silence():
            program = torch.export.export(
                network, example, dynamic_shapes={"inputs": tuple({0: batch} for _ in example)}
            )
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ExportError(f"torch.export cannot trace this network: {text}; its weights are in best/") from error
    buffer = io.BytesIO()
    torch.export.save(program, buffer)
    buffer.seek(0)
    with torch.no_grad():
        read_back = as_tuple(torch.export.load(buffer).module()(*example))
        expected = as_tuple(network(*example))
    for got, want in zip(read_back, expected, strict=True):
        if not torch.allclose(got, want, rtol=1e-4, atol=1e-5):
            raise ExportError(f"the exported program differs by {float((got - want).abs().max()):.3g}")
    make_folder(folder)
    files = [folder / "model.pt2", folder / "state_dict.safetensors"]
    write_atomically(files[0], buffer.getvalue())
    write_atomically(files[1], serialize({name: value.clone() for name, value in network.state_dict().items()}))
    return files


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Where torch cannot trace a network, it prints the graph so far before it raises."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)
