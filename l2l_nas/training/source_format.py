"""A network as a Python file that needs PyTorch and safetensors alone: layer by layer, to be read and changed.

Layers are those of `torch.nn` and of `l2l_nas.layers`, whose files are copied beside it.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from l2l_nas.errors import L2LError
from l2l_nas.space.candidate import Candidate
from l2l_nas.training.formats import Call, ExportError, ExportSource, Format, module_call, write_tensors

_LAYERS = "l2l_nas.layers"
# what layers may import beside each other, and what it is called beside the network
_SHARED = {"l2l_nas.errors": "l2l_errors", "l2l_nas.space.losses": "l2l_losses"}
# what layers import for their plan of division among ranks, which is left out of the files
_DIVISION, _PLAN = "l2l_nas.space.split", "splits"
_HEAD = '''"""A network that l2l_nas found: its layers in order; its weights are in network.safetensors.

    python -c "import network; print(network.load())"
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

{imports}

{build}

def load() -> nn.Sequential:
    """The network, in evaluation mode."""
    network = build()
    network.load_state_dict(load_file(Path(__file__).with_name("network.safetensors")))
    return network.eval()
'''
_BUILD = '''def build() -> nn.Sequential:
    """The layers, with weights that are drawn."""
    network = nn.Sequential()
{layers}
    return network
'''
_GENERATE = '''

@torch.no_grad()
def generate(network: nn.Module, tokens: list[int], count: int) -> list[int]:
    """The likeliest next tokens."""
    for _ in range(count):
        tokens = [*tokens, int(network(torch.tensor([tokens]))[0, -1].argmax())]
    return tokens
'''


def layer_files() -> list[str]:
    """The names that files of layers may have."""
    folder = Path(importlib.import_module(_LAYERS).__path__[0])
    return sorted(f"layers_{path.stem}.py" for path in folder.glob("[a-z]*.py")) + [f"{n}.py" for n in _SHARED.values()]


@dataclass(frozen=True)
class NetworkSource:
    """A network as Python."""

    imports: str  # of its layers; `torch.nn` is imported as `nn` beside them
    build: str  # the function that makes the network
    layers: Mapping[str, str]  # each layer as the expression that makes it, by its name in the network
    files: Mapping[str, str]  # with the code of its layers, by name


def source_of(source: ExportSource, *, lead: str = "") -> NetworkSource:
    """A network as Python.

    Args:
        lead: what names of files begin with where they are imported, such as ".modeling_" for those of a package.

    Raises:
        ExportError: a network that is no chain, or a layer that is of another library.
    """
    if not source.pool.wiring.is_chain:
        raise ExportError("source: the network is no chain of layers; export it as state_dict or program")
    modules: dict[str, set[str]] = {}
    layers: dict[str, str] = {}
    lines = "\n".join(f"    {line}" for line in _statements(source, modules, layers))
    imports = (f"from {_flat(one, lead)} import {', '.join(sorted(used))}" for one, used in sorted(modules.items()))
    needed = _with_imported({name for name in modules if name.startswith(_LAYERS)})
    files = {f"{_flat(module, lead).lstrip('.')}.py": _freed(module, lead) for module in needed}
    return NetworkSource("\n".join(imports), _BUILD.format(layers=lines), layers, files)


class SourceCode(Format):
    """`network.py` with its weights and the files of its layers; runs with PyTorch and safetensors alone."""

    files = (*layer_files(), "network.safetensors", "network.py")

    def write(self, source: ExportSource, path: Path) -> None:
        written = source_of(source)
        text = _HEAD.format(imports=written.imports, build=written.build)
        inputs = source.pool.inputs
        if len(inputs) == 1 and inputs[0].dtype == torch.int64 and len(inputs[0].shape) == 1:
            text += _GENERATE
        for name, content in written.files.items():
            path.with_name(name).write_text(content)
        write_tensors(path.with_name("network.safetensors"), source.network.state_dict())
        path.write_text(text)

    def read(self, path: Path, source: ExportSource) -> Call:
        with _importable(path.parent):
            return module_call(importlib.import_module("network").load())


def _statements(source: ExportSource, imports: dict[str, set[str]], made: dict[str, str]) -> Iterator[str]:
    """The body of `build`: a layer used twice is one module, a tied weight one parameter.

    Adds to names by module, and to expressions by name in the network.
    """
    first, owners = dict[str, str](), dict[str, str]()
    layers = source.pool.path(source.architecture)
    for name, layer in zip(source.network._modules, layers, strict=True):  # `named_children` has each layer once
        if layer.key in first:
            yield f'network.add_module("{name}", network.get_submodule("{first[layer.key]}"))'
            continue
        first[layer.key] = name
        made[name] = _call_of(layer.candidate, imports)
        yield f'network.add_module("{name}", {made[name]})'
        for parameter, group in sorted(layer.candidate.tied.items()):
            place, _, own = f"{name}.{parameter}".rpartition(".")
            if (owner := owners.setdefault(group, f"{name}.{parameter}")) != f"{name}.{parameter}":
                yield f'network.get_submodule("{place}").{own} = network.get_parameter("{owner}")'


def _call_of(candidate: Candidate, imports: dict[str, set[str]]) -> str:
    """How a layer is made, as text: by a class, or `functools.partial` of one, with arguments that are plain."""
    factory = candidate.factory if isinstance(candidate.factory, partial) else partial(candidate.factory)
    if not inspect.isclass(factory.func):
        raise ExportError(
            f"source: candidate '{candidate.name}' is made by {getattr(factory.func, '__name__', factory.func)}; "
            "layers that are written as source are made by a class, or functools.partial of one"
        )
    given = [_text(value, imports) for value in factory.args]
    given += [f"{name}={_text(value, imports)}" for name, value in factory.keywords.items()]
    return f"{_named(factory.func, imports)}({', '.join(given)})"


def _named(kind: type, imports: dict[str, set[str]]) -> str:
    module = "torch.nn" if kind.__module__.startswith("torch.nn.") else kind.__module__
    if module != "torch.nn" and not module.startswith(f"{_LAYERS}."):
        raise ExportError(
            f"source: {kind.__name__} is of {module}; layers of torch.nn and l2l_nas.layers are written as source. "
            "Export this network as state_dict or program"
        )
    imports.setdefault(module, set()).add(kind.__name__)
    return kind.__name__


def _text(value: Any, imports: dict[str, set[str]]) -> str:
    if hasattr(value, "__dataclass_fields__"):
        given = [
            f"{one.name}={_text(getattr(value, one.name), imports)}"
            for one in fields(value)
            if one.default is MISSING or getattr(value, one.name) != one.default
        ]
        return f"{_named(type(value), imports)}({', '.join(given)})"
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    raise ExportError(f"source: an argument {value!r} is neither plain nor a dataclass of {_LAYERS}")


def _flat(module: str, lead: str = "") -> str:
    """The name by which a module is imported beside the network."""
    if not module.startswith(f"{_LAYERS}.") and module not in _SHARED:
        return module
    return lead + (_SHARED.get(module) or module.replace(f"{_LAYERS}.", "layers_"))


def _imports(module: str) -> Iterator[str]:
    """The modules of l2l_nas that a module imports from, but for its plan of division."""
    for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(module)))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("l2l_nas") and node.module != _DIVISION:
            yield str(node.module)


def _with_imported(modules: set[str]) -> list[str]:
    """The modules, and all of `l2l_nas.layers` that they import; they may import no other part of l2l_nas."""
    found: set[str] = set()
    waiting = sorted(modules)
    while waiting:
        module = waiting.pop()
        found.add(module)
        for other in _imports(module):
            if not other.startswith(f"{_LAYERS}.") and other not in _SHARED:
                raise ExportError(f"source: {module} needs {other}; export this network as state_dict or program")
            if other not in found:
                waiting.append(other)
    return sorted(found)


def _freed(module: str, lead: str = "") -> str:
    """The source of a module without plans of division; it imports of `l2l_nas.layers` from the files beside it."""
    text = inspect.getsource(importlib.import_module(module))
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        is_plan = isinstance(node, ast.FunctionDef) and node.name == _PLAN
        if is_plan or (isinstance(node, ast.ImportFrom) and node.module == _DIVISION):
            assert isinstance(node, ast.stmt)
            start, end = node.lineno - 1, node.end_lineno or node.lineno
            while is_plan and not lines[start - 1].strip():  # with the blank lines before it
                start -= 1
            lines[start:end] = [""] * (end - start)
    text = "".join(lines)
    for other in _imports(module):
        text = text.replace(f"from {other} import", f"from {_flat(other, lead)} import")
    return text


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The files of a folder can be imported, and are forgotten afterwards."""
    names = {"network", *(name.removesuffix(".py") for name in layer_files())}
    before: dict[str, ModuleType] = {name: sys.modules.pop(name) for name in names if name in sys.modules}
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    except L2LError:
        raise
    except Exception as error:
        raise ExportError(f"source: what was written does not run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(folder))
        sys.dont_write_bytecode = writes
        for name in names:
            sys.modules.pop(name, None)
        sys.modules.update(before)
