"""`convert`: a pool of an existing model, whose blocks become positions; see [Note: recording] and [Note: parts]."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from l2l_nas.arguments import check_kind, check_list, check_names, check_table
from l2l_nas.errors import SpaceError, did_you_mean, is_out_of_memory, one_line, what_raised
from l2l_nas.space.build import named_tensors
from l2l_nas.space.candidate import Candidate, Position, TensorSpec
from l2l_nas.space.convert.compare import refuse_other_parts, same_draws
from l2l_nas.space.convert.dataflow import Dataflow
from l2l_nas.space.convert.example import Arguments, Choice, Example, Output
from l2l_nas.space.convert.forms import BATCHES
from l2l_nas.space.convert.masks import masks_always_made
from l2l_nas.space.convert.offers import Candidates, Offers
from l2l_nas.space.convert.parts import BlockLayer, BlockPlan, ModelFragment, Plan, copied
from l2l_nas.space.convert.recording import Recording
from l2l_nas.space.objective import ObjectiveLayer
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.randomness import drawing_nothing
from l2l_nas.space.shapes import check_shapes
from l2l_nas.space.tolerance import is_same
from l2l_nas.space.values import as_tuple

ORIGINAL = "original"


class ConvertedPool(LayerPool):
    """A pool of a model's parts; `original` is the model itself."""

    def __init__(
        self, positions: Sequence[Position], *, inputs: Mapping[str, TensorSpec], model: nn.Module, arguments: Arguments
    ) -> None:
        super().__init__(positions, inputs=inputs)
        self._model = model
        self._arguments = arguments

    def restore(self, network: nn.Module) -> nn.Module:
        """The model with the weights of a network of this pool: a copy, of the model's own class.

        A block that a candidate replaced is replaced. One that is skipped is `nn.Identity`, where the model can call
        that. The model must give what the network gives.

        Args:
            network: such as `SearchResult.network()` and `plain_module` give.

        Raises:
            SpaceError: it is no network of this pool, or the model's own code cannot run its path.
        """
        weights = lambda p: nn.Parameter(p.detach().clone(), p.requires_grad)  # noqa: E731
        model = copied(self._model, parameter=weights, buffer=Tensor.clone)
        layers = {name: one for name, one in network.named_children() if not isinstance(one, ObjectiveLayer)}
        for position in self.positions:
            name = position.name.replace(".", "_")
            layer, original = layers.pop(name, None), getattr(position.candidates[0].factory, "module", None)
            if isinstance(original, BlockLayer) and layer is None:
                if not original.may_be_identity:
                    raise SpaceError(
                        "it is skipped, which this model's own code cannot do; use the network as it is, or leave "
                        "skip() out",
                        position=position.name,
                    )
                model.set_submodule(original.path, nn.Identity())
            elif isinstance(layer, BlockLayer) and isinstance(original, BlockLayer) and not layer.path:
                model.set_submodule(original.path, copy.deepcopy(layer.block))
            elif isinstance(layer, BlockLayer):
                _copy_tensors(layer.block, model.get_submodule(layer.path))
            elif isinstance(layer, ModelFragment):
                _copy_tensors(layer.model, model)
            else:
                raise SpaceError(f"the network has no layer '{name}'; give one of this pool, as SearchResult.network()")
        if layers:
            raise SpaceError(f"this pool has no position '{next(iter(layers))}', which the network has")
        _refuse_other_outputs(model, network, self._arguments)
        model.train(self._model.training)
        return model


@torch.no_grad()
def _copy_tensors(source: nn.Module, target: nn.Module) -> None:
    tensors = dict(named_tensors(target, remove_duplicate=False))
    for name, tensor in named_tensors(source, remove_duplicate=False):
        tensors[name].copy_(tensor)


def is_converted(pool: LayerPool) -> bool:
    """Whether the pool is one that `convert` made, maybe with a task's layer behind it."""
    return any(isinstance(getattr(p.candidates[0].factory, "module", None), ModelFragment) for p in pool.positions)


def convert(
    model: nn.Module,
    example: Example,
    *,
    blocks: str | Sequence[str],
    candidates: Candidates | None = None,
    output: Output | Sequence[Output] | None = None,
    losses: Mapping[Output, float] | None = None,
) -> ConvertedPool:
    """A pool of an existing model.

    Each block becomes a position of its own path, whose first candidate, "original", has its weights. What the model
    computes before its blocks, between them and behind them becomes positions with one candidate: `stem`,
    `before.BLOCK`, `head`. What blocks take beside the stream, such as masks, becomes values. The model is not changed;
    its weights are read when a layer is first used.

    Args:
        model: in float32.
        example: what its forward takes: a tensor, several, or a dict of arguments by name, among them such as
            `"use_cache": False`. Tensors [samples, ...] become the pool's inputs by the names of the arguments.
        blocks: their paths, `*` and the like allowed; a path of a ModuleList or Sequential means what is in it.
        candidates: by name, what each block may be replaced by: a module, a function that builds one, or a `Candidate`
            such as `skip()`. It is called as the block is, and returns what that returns. A function with an argument
            `block` gets a copy of the model's block. Or by path (`*` allowed), such dicts for some blocks only. A skip
            for all blocks is offered where a block gives what it takes.
        output: which of the model's outputs the pool gives: a key or a number, or several, of which the task's loss
            takes all. By default "logits", or the only one.
        losses: by key or number, the weights of outputs that are auxiliary losses, such as a router's: scalars, means
            over the samples. A step minimises the task's loss plus these.

    Raises:
        SpaceError: no such blocks; a model whose blocks depend on more than what they take; candidates that do not fit.
        SettingError: an argument of another type, or weights that are not finite.
    """
    check_kind("convert: model", model, nn.Module, wanted="a module")
    check_table("convert: candidates", {} if candidates is None else candidates, wanted="a dict of candidates by name")
    choice = _choice(output, {} if losses is None else losses)
    model = _uncompiled(model)
    _refuse_unfit_weights(model)
    paths = _block_paths(model, blocks)
    arguments = Arguments(model, example, choice)
    replica = copied(model, buffer=Tensor.clone)
    in_evaluation = _record(replica, paths, arguments.of(BATCHES[0]), training=False)
    in_training = _record(replica, paths, arguments.of(BATCHES[1]), training=True)
    _refuse_nested(replica, in_training)
    parts = Dataflow(replica, (in_evaluation, in_training), arguments.names, choice.ends).parts
    offers = Offers(candidates or {}, [part for part in parts if isinstance(part, BlockPlan)])
    code = _with_hooks(model, replica)
    modules = [_layer_of(part, code, choice) for part in parts]
    positions = _positions(model, parts, modules, offers)
    _refuse_unused(arguments, parts)
    inputs = {name: TensorSpec.of(tensor) for name, tensor in arguments.tensors.items()}
    pool = ConvertedPool(positions, inputs=inputs, model=model, arguments=arguments)
    check_shapes(pool)
    refuse_other_parts(pool, model, modules, arguments, in_training)
    return pool


def _uncompiled(model: nn.Module) -> nn.Module:
    """The model without torch.compile around it, or around modules in it: relay.layers=compile compiles layers."""

    def compiled(model: nn.Module) -> list[str]:
        modules = model.named_modules(remove_duplicate=False)
        return [path for path, module in modules if type(module).__name__ == "OptimizedModule"]

    if "" in compiled(model):
        model = model.get_submodule("_orig_mod")
    if compiled(model):
        model = copied(model)
        for path in reversed(compiled(model)):  # what lies deeper comes later
            model.set_submodule(path, model.get_submodule(f"{path}._orig_mod"))
    return model


def _choice(output: Output | Sequence[Output] | None, losses: Mapping[Output, float]) -> Choice:
    check_kind("convert: losses", losses, Mapping, wanted="a dict of weights by the output's name")
    outputs: list[Any] = [output]
    if output is not None and not isinstance(output, str | int):
        outputs = check_list("convert: output", output, of=(str, int), wanted="keys or numbers")
    if not outputs:
        raise SpaceError("output=[] names no output; give keys or numbers")
    for name, weight in losses.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
            raise SpaceError(f"losses: the weight of '{name}' is {weight!r}; write a number, such as 0.01")
    return Choice(tuple(outputs), dict(losses))


def _positions(
    model: nn.Module, parts: Sequence[Plan], modules: Sequence[BlockLayer | ModelFragment], offers: Offers
) -> list[Position]:
    positions = []
    for part, module, tied in zip(parts, modules, _ties(model, modules), strict=True):
        others = offers.of(part, module.block) if isinstance(part, BlockPlan) and isinstance(module, BlockLayer) else ()
        choices = [Candidate(ORIGINAL, module, tied), *others]
        positions.append(Position(part.name, choices, reads=part.reads, writes=part.writes))
    return positions


def _refuse_unused(arguments: Arguments, parts: Sequence[Plan]) -> None:
    for name in arguments.tensors:
        if not any(name in part.reads for part in parts):
            raise SpaceError(
                f"what the model gives does not depend on '{name}'; leave it out of the example, or give an example "
                "in which it matters"
            )


def _with_hooks(model: nn.Module, ran: nn.Module) -> nn.Module:
    """A copy of a model with its tensors, and the hooks and flags that the first forward of another, `ran`, set."""
    code = copied(model)
    pairs = list(zip(code.modules(), ran.modules(), strict=True))
    if any(len(module._forward_hooks) != len(source._forward_hooks) for module, source in pairs):
        for module, source in pairs:
            hooks = {name: table for name, table in vars(source).items() if name.startswith("_forward_")}
            flags = {name: value for name, value in vars(source).items() if isinstance(value, bool)}
            vars(module).update(hooks | flags | {"training": module.training})
    return code


def _refuse_nested(model: nn.Module, recording: Recording) -> None:
    """Refuse torch's encoder where it packs padded samples in evaluation, and calls its blocks without a mask."""
    for path, encoder in model.named_modules():
        if not (isinstance(encoder, nn.TransformerEncoder) and encoder.use_nested_tensor):
            continue
        start = f"{path}.layers." if path else "layers."
        for call in (call for call in recording.calls if call.path.startswith(start)):
            named = call.takes_tree.unflatten(call.takes)[1]
            if named.get("src_key_padding_mask") is not None and named.get("src_mask") is None:
                raise SpaceError(
                    f"'{path}' packs padded samples in evaluation, and calls its blocks without a mask then; build it "
                    "by nn.TransformerEncoder(..., enable_nested_tensor=False)"
                )


def _block_paths(model: nn.Module, blocks: str | Sequence[str]) -> list[str]:
    """Paths of the blocks, in the order of the model's modules."""
    modules = dict(model.named_modules())
    paths: dict[str, None] = {}
    for pattern in check_names("convert: blocks", blocks):
        matching = [
            path for path in modules if path and path.count(".") == pattern.count(".") and fnmatchcase(path, pattern)
        ]
        if not matching:
            listed = [path for path, module in modules.items() if path and _is_container(module)]
            outermost = sorted(listed or filter(None, modules), key=lambda path: path.count("."))[:12]
            raise SpaceError(f"blocks={pattern!r}: the model has no such module{did_you_mean(pattern, outermost)}")
        for path in matching:
            paths |= dict.fromkeys(_inside(path, modules[path]) if _is_container(modules[path]) else [path])
    if not paths:
        raise SpaceError(f"blocks={blocks!r} has no module in it; name those that may be replaced, such as 'layers'")
    for path in paths:
        outer = next((other for other in paths if path.startswith(f"{other}.")), None)
        if outer:
            raise SpaceError(f"blocks: '{path}' is part of '{outer}'; name one of them")
    return list(paths)


def _is_container(module: nn.Module) -> bool:
    """Whether it stands for the modules in it: a plain Sequential, or one without a forward, such as a ModuleDict."""
    return type(module) is nn.Sequential or type(module).forward is nn.Module.forward


def _inside(path: str, container: nn.Module) -> Iterator[str]:
    for name, module in container.named_children():
        inner = f"{path}.{name}"
        yield from _inside(inner, module) if type(module).forward is nn.Module.forward else [inner]


def _refuse_unfit_weights(model: nn.Module) -> None:
    for name, tensor in named_tensors(model):
        if is_lazy(tensor):
            raise SpaceError(
                f"the model's '{name}' gets its shape in the first forward; run the model once, then convert"
            )
        if tensor.is_meta:
            raise SpaceError(f"the model's '{name}' is on meta and has no values; load the weights first")
    for name, parameter in model.named_parameters():
        if parameter.dtype != torch.float32:
            dtype = f"'{name}' is {parameter.dtype}"
            raise SpaceError(f"the model's {dtype}, but masters are float32; write convert(model.float(), ...)")
        if not bool(parameter.detach().isfinite().all()):
            raise SpaceError(f"the model's '{name}' has NaN or inf among its numbers; load weights that are whole")


@torch.enable_grad()
def _record(
    model: nn.Module, paths: Sequence[str], arguments: tuple[Sequence[Any], Mapping[str, Any]], *, training: bool
) -> Recording:
    buffers = dict(model.named_buffers())
    try:
        with torch.random.fork_rng(devices=[]), masks_always_made():
            run = partial(Recording, model, paths, arguments, training=training)
            recording = drawing_nothing(run, whose="the model's")
    except Exception as error:
        if isinstance(error, SpaceError) or is_out_of_memory(error):
            raise
        text = one_line(str(error), most=300)
        raise SpaceError(f"the model raised {type(error).__name__} on the example: {text}") from error
    replaced = next((name for name, buffer in model.named_buffers() if buffers.get(name) is not buffer), None)
    if replaced is not None:
        leaf = replaced.rpartition(".")[2]
        raise SpaceError(
            f"the model's forward replaces the buffer '{replaced}'; change it in place: self.{leaf}.copy_(...)"
        )
    return recording


def _layer_of(part: Plan, model: nn.Module, choice: Choice) -> BlockLayer | ModelFragment:
    if isinstance(part, BlockPlan):
        return BlockLayer(model.get_submodule(part.path), part.called, path=part.path)
    return ModelFragment(model, part, choice)


def _ties(model: nn.Module, modules: Sequence[nn.Module]) -> list[dict[str, str]]:
    """For each part, the parameters that it shares with others: the part's name for each, and the model's."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    parts = [dict(module.named_parameters(remove_duplicate=False)) for module in modules]
    counts = Counter(number for parameters in parts for number in {id(p) for p in parameters.values()})
    return [{name: first[id(p)] for name, p in parameters.items() if counts[id(p)] > 1} for parameters in parts]


@torch.no_grad()
def _refuse_other_outputs(model: nn.Module, network: nn.Module, arguments: Arguments) -> None:
    """Refuse a restored model whose outputs differ from the network's."""
    training = network.training
    model.eval()
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    try:
        with same_draws():
            inputs = (tensor.to(device) for tensor in arguments.tensors_of(arguments.num_samples))
            expected = as_tuple(network.eval()(*inputs))
        with same_draws():
            got = arguments.outputs_of(model, arguments.num_samples)
    except Exception as error:
        raise SpaceError(
            f"the model's own code cannot run this network ({what_raised(error)}); use the network as it is"
        ) from error
    finally:
        network.train(training)
    if not all(is_same(one, other.to(one.device)) for one, other in zip(got, expected, strict=True)):
        raise SpaceError("the model's own code gives something else than this network; use the network as it is")
