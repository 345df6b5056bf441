"""Models that come with their own code, as an export writes them where no family has the network.

Their config holds each layer as the expression that makes it, such as `FeedForward(64, 160, is_gated=True)`. What is
read is parsed, and never run: known layers with plain arguments are made of it.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import l2l_nas.layers as layers
from l2l_nas.arguments import shown
from l2l_nas.compress.config import MOST_EXPERTS, MOST_LAYERS, MOST_PARAMETERS, Config
from l2l_nas.compress.families import ORIGINAL, Factory, Family, TensorSource, family_of, split_of
from l2l_nas.errors import SpaceError, one_line
from l2l_nas.layers.style import NORMS
from l2l_nas.space.candidate import Candidate, Position

CODED = "l2l_nas"  # what configs call the family
PREFIX = "network."  # of the names of all tensors
_KNOWN: Mapping[str, Any] = {
    **{name: getattr(layers, name) for name in layers.__all__},
    **{kind.__name__: kind for kind in NORMS.values() if isinstance(kind, type)},
    "Linear": nn.Linear,
}
_LONGEST = 2_000  # characters of an expression
_LARGEST, _FARTHEST = 1 << 24, (1 << 63) - 1  # of whole numbers, and of windows
_PLACES = {"device", "dtype"}  # arguments of torch's layers
_NEEDED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def model_of(config: Mapping[str, Any]) -> Family:
    """The model whose `config.json` has this content: of a family, or with its own code.

    Raises:
        SpaceError: an unknown family, or something in it that our layers do not do.
    """
    return _coded(Config(config)) if config.get("model_type") == CODED else family_of(config)


def _coded(config: Config) -> Family:
    factories = {name: _factory(name, text) for name, text in _layers(config).items()}
    parameters: dict[str, dict[str, Tensor]] = {}
    count = 0
    for name, factory in factories.items():
        try:
            with torch.device("meta"):
                parameters[name] = dict(factory().named_parameters())
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise SpaceError(f"config: layer '{name}' cannot be made: {one_line(str(error))}") from None
        count += len(parameters[name])
        if count > MOST_PARAMETERS:
            raise SpaceError(f"config: its layers have more than {MOST_PARAMETERS} parameters by name")
    ties = _ties(config, parameters)
    sources: dict[tuple[str, str], TensorSource] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    copies: dict[str, str] = {}
    owners: dict[str, str] = {}
    for name, own in parameters.items():
        for key, parameter in own.items():
            published = f"{PREFIX}{name}.{key}"
            owner = owners.setdefault(ties[name].get(key, published), published)
            if owner != published:
                if shapes[owner] != parameter.shape:
                    both = f"{list(parameter.shape)} and {list(shapes[owner])}"
                    raise SpaceError(f"config: 'tied' makes {published} and {owner} one, which are {both}")
                copies[published] = owner
                continue
            sources[name, key] = TensorSource(published)
            shapes[published] = tuple(parameter.shape)
    positions = tuple(
        Position(name, Candidate(ORIGINAL, factory, ties[name], split=split_of(factory)))
        for name, factory in factories.items()
    )
    first = next(iter(factories), "")
    if not isinstance(factories.get(first), partial) or factories[first].func is not layers.Embedding:  # type: ignore[attr-defined]
        raise SpaceError("config: 'layers' must begin with an Embedding")
    vocabulary = len(parameters[first]["token.weight"])
    return Family(positions, sources, shapes, vocabulary, config.count("max_position_embeddings"), (), copies)


def _layers(config: Config) -> dict[str, Any]:
    """What each layer is said to be, by name."""
    pairs = config.get("layers")
    if not isinstance(pairs, list) or not all(isinstance(one, list) and len(one) == 2 for one in pairs):
        config.refuse("layers", "pairs of a name and a layer")
    if len(pairs) > MOST_LAYERS:
        raise SpaceError(f"config: {len(pairs)} layers; expected at most {MOST_LAYERS}")
    found = {name: text for name, text in pairs if isinstance(name, str) and name.isidentifier()}
    if len(found) < len(pairs):
        config.refuse("layers", "names of letters, digits and _, each once")
    return found


def _ties(config: Config, parameters: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, str]]:
    """What tied parameters share, by layer and parameter."""
    ties: dict[str, dict[str, str]] = {name: {} for name in parameters}
    for name, group in config.table("tied", default={}).items():
        layer, _, key = name.partition(".")
        if not isinstance(group, str) or key not in parameters.get(layer, {}):
            config.refuse("tied", "parameters of its layers, and names of what they share")
        ties[layer][key] = group
    return ties


def _factory(name: str, text: object) -> Factory:
    """What makes a layer, of the expression that does."""
    try:
        if not isinstance(text, str) or len(text) > _LONGEST:
            raise ValueError(f"no text of at most {_LONGEST} characters")
        made = _value(ast.parse(text, mode="eval").body, "")
        if not isinstance(made, partial):
            raise ValueError("no layer")
        return made
    except (MemoryError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise SpaceError(f"config: layer '{name}' is {shown(text)}: {one_line(str(error))}") from None


def _value(node: ast.expr, name: str) -> Any:
    """A layer that is still to be made, a dataclass of ours, or a plain value.

    Args:
        name: of the argument that it is.
    """
    if not isinstance(node, ast.Call):
        value = ast.literal_eval(node)
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ValueError(f"{ast.unparse(node)} is neither a number nor a word")
        most = _FARTHEST if name == "window" else _LARGEST
        if isinstance(value, int) and not -1 <= value <= most:
            raise ValueError(f"{value} is more than {most}")
        if isinstance(value, float) and not 0 <= value < math.inf:
            raise ValueError(f"{value} is no finite number from 0")
        return value
    kind: Any = _KNOWN.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if kind is None:
        raise ValueError(f"{ast.unparse(node.func)} is no layer that is known here")
    given = [_value(one, "") for one in node.args]
    named = {str(one.arg): _value(one.value, str(one.arg)) for one in node.keywords}
    wanted = inspect.signature(kind)
    values = wanted.bind(*given, **named).arguments
    experts = values.get("experts")
    if isinstance(experts, int) and experts > MOST_EXPERTS:
        raise ValueError(f"{experts} experts are more than {MOST_EXPERTS}")
    if is_dataclass(kind):
        return kind(**values)  # type: ignore[operator]
    if not _PLACES.isdisjoint(values):
        raise ValueError("where it lies, and in which dtype, is not for a config to say")
    # what layers need stands first, and the rest is named, as families have it
    first = [one.name for one in wanted.parameters.values() if one.default is one.empty and one.kind in _NEEDED]
    return partial(kind, *(values.pop(name) for name in first), **values)
