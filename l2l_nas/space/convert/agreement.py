"""What recordings of a model must agree on: which blocks it calls, and with what."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten_with_path, tree_unflatten

from l2l_nas.errors import SpaceError
from l2l_nas.space.convert.events import BlockCall
from l2l_nas.space.convert.forms import is_constant
from l2l_nas.space.convert.recording import Recording


def refuse_other_calls(model: nn.Module, recordings: Sequence[Recording]) -> None:
    """Both recordings must call the same blocks alike: what is no tensor is the same in both, and decides nothing."""
    for recording in recordings:
        recording.refuse_random_decisions()
    first, second = ([call.key for call in recording.calls] for recording in recordings)
    if first != second:
        raise SpaceError(
            "in training the model calls other blocks than in evaluation; set what drops blocks at random to 0"
        )
    if not second:
        raise SpaceError(
            "the model's forward calls none of these blocks; are they used, as block(x), not block.forward(x)?"
        )
    idle = [path for path in recordings[1].blocks if path not in {path for path, _ in second}]
    if idle:
        raise SpaceError(f"the model's forward does not call the block '{idle[0]}'; name those that run")
    for one, other in zip(recordings[0].calls, recordings[1].calls, strict=True):
        for what, a, b in (("takes", one.takes, other.takes), ("gives", one.gives, other.gives)):
            if [isinstance(x, Tensor) for x in a] != [isinstance(y, Tensor) for y in b]:
                raise SpaceError(
                    f"the block '{one.path}' {what} other things in training than in evaluation, or for other samples"
                )
        for name, x, y in zip(argument_names(model, one), one.takes, other.takes, strict=True):
            if not isinstance(x, Tensor) and not is_constant(x, y):
                raise SpaceError(
                    f"the block '{one.path}' takes a {type(x).__name__} as '{name}', which is another one in each "
                    'forward; switch that off (for transformers\' caches: "use_cache": False in the example)'
                )
        for x, y in zip(one.gives, other.gives, strict=True):
            if not isinstance(x, Tensor) and not is_constant(x, y):
                raise SpaceError(
                    f"the block '{one.path}' returns a {type(x).__name__} that is another one for other samples or "
                    "in training; let it return tensors"
                )
    for recording in recordings:
        recording.refuse_decisions()


def argument_names(model: nn.Module, call: BlockCall) -> list[str]:
    """Names of the arguments of a block, by leaf."""
    tree = tree_unflatten(list(range(len(call.takes))), call.takes_tree)
    module = model.get_submodule(call.path)
    positional = list(inspect.signature(module.forward).parameters)
    labels = [""] * len(call.takes)
    for path, leaf in tree_flatten_with_path(tree)[0]:
        keys: list[Any] = [getattr(key, "idx", getattr(key, "key", key)) for key in path]
        is_named, first, *rest = keys
        name = first if is_named else positional[first] if first < len(positional) else str(first)
        labels[leaf] = re.sub(r"[^\w.+-]", "_", ".".join(map(str, (name, *rest))))
    return labels
