"""Whether the parts of a model do what the model does: in evaluation, and in a step of training.

[Note: comparison] A part may compute what the model computes and train otherwise: gradients stop where the model's code
detaches a tensor, and hooks change them, wherever that is written. So one backward of the model is compared with one of
its parts, parameter by parameter. Both run on copies, which have the same weights and buffers of their own. Each random
operation begins with the same seed there, because parts draw in another order than the model. Sums may be made in
another order, too, so that gradients are equal within rounding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from l2l_nas.errors import SpaceError, is_out_of_memory, user_code, what_raised
from l2l_nas.space.build import named_tensors
from l2l_nas.space.convert.example import Arguments
from l2l_nas.space.convert.forms import BATCHES
from l2l_nas.space.convert.parts import copied
from l2l_nas.space.convert.recording import Recording
from l2l_nas.space.losses import collect_losses
from l2l_nas.space.operations import OperationLog
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.tolerance import is_near, is_same, noise_of, some_gradient

_ADVICE = "choose blocks further outside"
_OUTSIDE = f"between its blocks it uses what is neither argument nor output of a block; {_ADVICE}"


def refuse_other_parts(
    pool: LayerPool, model: nn.Module, parts: Sequence[nn.Module], example: Arguments, recording: Recording
) -> None:
    """The parts one after the other must give what the model gives, and train as it does; see [Note: comparison].

    Args:
        parts: by position; their tensors are the model's.
        recording: of the model in training.
    """
    path = pool.path(pool.original)
    flow = pool.flow(path)
    whole, cut = _Copy(model, model), _Copy(nn.ModuleList(parts), model)
    layers = tuple(cut.module.children())

    def run_whole(batch: int) -> tuple[Tensor, ...]:
        return example.outputs_of(whole.module, batch)

    def run_cut(batch: int) -> tuple[Tensor, ...]:
        with user_code("a part of the model", SpaceError):
            return flow.run(example.tensors_of(batch), lambda index, *inputs: layers[path[index].position](*inputs))

    with same_draws(), torch.no_grad():
        expected, got = run_whole(example.num_samples), run_cut(example.num_samples)
    if not all(map(is_same, got, expected)):
        raise SpaceError(f"the parts of the model give something else than the model: {_OUTSIDE}")
    whole.train(run_whole)
    cut.train(run_cut)
    if difference := _other_outputs(whole, cut):
        raise SpaceError(f"in training the parts of the model {difference} than the model: {_OUTSIDE}")
    if difference := _other_gradients(whole, cut):
        raise SpaceError(f"{difference}: {_cause(recording)}")


class _Copy:
    """A model, or parts of it, with the memory of the model's parameters, and other gradients and buffers."""

    def __init__(self, module: nn.Module, model: nn.Module) -> None:
        names = {id(tensor): name for name, tensor in named_tensors(model)}
        # by the names of their tensors in the model
        self.buffers: dict[str, Tensor] = {}
        self._parameters: dict[str, nn.Parameter] = {}

        def parameter(tensor: nn.Parameter) -> nn.Parameter:
            return self._parameters.setdefault(names[id(tensor)], nn.Parameter(tensor.detach(), tensor.requires_grad))

        def buffer(tensor: Tensor) -> Tensor:
            return self.buffers.setdefault(names[id(tensor)], tensor.clone())

        self.module = copied(module, parameter=parameter, buffer=buffer)
        self.module.eval()

    def train(self, forward: Callable[[int], tuple[Tensor, ...]]) -> None:
        self.failure = ""  # what its backward raised
        self.module.train()
        with same_draws(), torch.enable_grad():
            with collect_losses() as losses:
                outputs = [*forward(BATCHES[1])]
            outputs += losses
            ends = [output for output in outputs if output.requires_grad]
            try:
                if ends:
                    torch.autograd.backward(ends, [some_gradient(end) for end in ends])
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                self.failure = what_raised(error)
        self.outputs = [output.detach() for output in outputs]
        self.gradients = {name: p.grad for name, p in self._parameters.items() if p.grad is not None}


def _other_outputs(whole: _Copy, cut: _Copy) -> str:
    """The first difference of the parts from the model, in outputs or buffers; empty if there is none."""
    if len(whole.outputs) != len(cut.outputs) or not all(map(is_near, cut.outputs, whole.outputs)):
        return "give something else"
    names = (name for name, buffer in cut.buffers.items() if not is_near(buffer, whole.buffers[name]))
    return next((f"change the buffer '{name}' otherwise" for name in names), "")


def _other_gradients(whole: _Copy, cut: _Copy) -> str:
    """Which gradient the parts have otherwise than the model; empty if none."""
    if whole.failure:
        return ""  # it cannot be trained, but searched without
    if cut.failure:
        return f"the backward of the model's parts {cut.failure}"
    noise = noise_of(whole.gradients.values())
    for name in dict.fromkeys((*whole.gradients, *cut.gradients)):
        gradient, other = whole.gradients.get(name), cut.gradients.get(name)
        if gradient is None or other is None:
            who, whose = ("the model", "its parts") if other is None else ("its parts", "the model")
            return f"'{name}' has a gradient in {who}, and none in {whose}"
        if not is_near(other, gradient, noise):
            return f"the gradient of '{name}' is another one in the parts of the model than in the model"
    return ""


@contextlib.contextmanager
def same_draws() -> Iterator[None]:
    """Each random operation gives the same numbers wherever it stands."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices=devices), _SameDraws():
        yield


class _SameDraws(OperationLog):
    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            torch.default_generator.manual_seed(0)
            if torch.cuda.is_initialized():
                torch.cuda.manual_seed_all(0)


def _cause(recording: Recording) -> str:
    """The likely cause in the model's forward, and what to do about it."""
    for call in recording.calls:
        if any(isinstance(leaf, Tensor) and leaf._backward_hooks for leaf in (*call.takes, *call.gives)):
            return f"a hook (register_hook) is on a tensor that the block '{call.path}' takes or gives; {_ADVICE}"
    for call in recording.calls:
        nodes = [leaf.grad_fn for leaf in call.gives if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
        if nodes and not call.has_gradients:
            name = nodes[0].name().removesuffix("Backward")
            return f"the block '{call.path}' runs within the autograd function {name}; {_ADVICE}"
    return f"something between its blocks changes gradients; {_ADVICE}"
