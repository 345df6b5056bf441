"""`convert`: a pool of an existing model, whose blocks become positions; see [Note: recording] and [Note: parts]."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from l2l_nas.errors import SpaceError, did_you_mean, is_out_of_memory, one_line
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.build import Existing
from l2l_nas.space.candidate import Candidate, Position, TensorSpec, skip
from l2l_nas.space.dataflow import BATCHES, BlockPart, Dataflow, Part, SegmentPart
from l2l_nas.space.parts import Block, Segment, Tape, choose, chosen_output, trimmed
from l2l_nas.space.pool import LayerPool
from l2l_nas.space.recording import Recording, shadow
from l2l_nas.space.shapes import check_shapes

Factory = Callable[..., nn.Module]
Example = Tensor | Sequence[Tensor] | Mapping[str, Any]
Offer = Candidate | nn.Module | Factory
Candidates = Mapping[str, Offer | Mapping[str, Offer]]

ORIGINAL = "original"
_CONTAINERS = (nn.ModuleList, nn.Sequential)


class ConvertedPool(LayerPool):
    """A pool of a model's parts.

    Attributes:
        original: the architecture that is the model itself.
    """

    def __init__(self, positions: Sequence[Position], *, inputs: Mapping[str, TensorSpec], model: nn.Module) -> None:
        super().__init__(positions, inputs=inputs)
        self._model = model
        self.original: Architecture = self.architecture(position.candidates[0].name for position in self.positions)

    def restore(self, network: nn.Module) -> nn.Module:
        """The model with the weights of a network of this pool: a copy, of the model's own class.

        Blocks that a candidate replaced are replaced; a block that is skipped becomes `nn.Identity` where the model can
        call that.

        Args:
            network: such as `SearchResult.network()` and `plain_module` give.

        Raises:
            SpaceError: it is no network of this pool, or the model's code cannot leave out a block that is skipped.
        """
        model = shadow(self._model)
        known = {id(tensor): tensor.clone() for tensor in model.buffers()}
        known |= {id(p): nn.Parameter(p.detach().clone(), p.requires_grad) for p in model.parameters()}
        model = copy.deepcopy(model, known)
        parts = [part for part in network.children() if isinstance(part, Block | Segment)]
        if len(parts) != len(list(network.children())) or not parts:
            raise SpaceError("expected a network of this pool, as SearchResult.network() gives it")
        found = {part.path for part in parts if isinstance(part, Block)}
        for position in self.positions:
            original = position.candidates[0].factory
            block = getattr(original, "module", None)
            if isinstance(block, Block) and block.path not in found:
                if not block.is_chain:
                    raise SpaceError(
                        "it is skipped, which this model's own code cannot do; use the network as it is, or leave the "
                        "skip out of the candidates",
                        position=position.name,
                    )
                model.set_submodule(block.path, nn.Identity())
        with torch.no_grad():
            for part in parts:
                self._take_over(model, part)
        return model.train(self._model.training)

    @staticmethod
    def _take_over(model: nn.Module, part: Block | Segment) -> None:
        if isinstance(part, Block) and not part.is_original:
            model.set_submodule(part.path, copy.deepcopy(part.block))
            return
        own, found = (part.block, model.get_submodule(part.path)) if isinstance(part, Block) else (part.model, model)
        names = {**dict(found.named_parameters(remove_duplicate=False)), **dict(found.named_buffers())}
        for name, tensor in (*own.named_parameters(remove_duplicate=False), *own.named_buffers()):
            if name not in names:
                raise SpaceError(f"the network has '{name}', which this model has not; is it of this pool?")
            names[name].copy_(tensor)


def convert(
    model: nn.Module,
    example: Example,
    *,
    blocks: str | Sequence[str],
    candidates: Candidates | None = None,
    output: str | int | None = None,
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
            `block` gets the model's block. Or by path (`*` allowed), such dicts for some blocks only. A skip for all
            blocks is offered where a block gives what it takes.
        output: which of the model's outputs the pool gives: a key, or a number; "logits" if there are any, or the only one.

    Raises:
        SpaceError: no such blocks; a model whose blocks depend on more than what they take; candidates that do not fit.
    """
    paths = _block_paths(model, blocks)
    given = _Arguments(model, example)
    own = shadow(model, own_buffers=True)
    recordings = tuple(_record(own.train(training), paths, given.of(batch)) for batch, training in zip(BATCHES, (False, True)))
    flow = Dataflow(own, recordings, given.names, output)
    offers = _Offers(candidates or {}, [part for part in flow.parts if isinstance(part, BlockPart)])
    modules = _build(shadow(model), flow.parts, paths, output)
    positions = [
        Position(
            part.name,
            [Candidate(ORIGINAL if isinstance(part, BlockPart) else "part", module, tied), *offers.of(part, module)],
            reads=part.reads,
            writes=part.writes,
        )
        for part, module, tied in zip(flow.parts, modules, _ties(model, modules), strict=True)
    ]
    read = {name for part in flow.parts for name in part.reads}
    unused = [name for name in given.tensors if name not in read]
    if unused:
        raise SpaceError(f"the model's '{output or 'output'}' does not depend on '{unused[0]}'; leave it out of the example")
    inputs = {name: TensorSpec.of(tensor) for name, tensor in given.tensors.items()}
    pool = ConvertedPool(positions, inputs=inputs, model=model)
    check_shapes(pool)
    _refuse_others(pool, modules, shadow(model).eval(), given, output)
    return pool


def _block_paths(model: nn.Module, blocks: str | Sequence[str]) -> list[str]:
    """Paths of the blocks, in the order of the model's modules.

    Raises:
        SpaceError: there is no such module, or one is part of another.
    """
    modules = dict(model.named_modules())
    found: dict[str, None] = {}
    for pattern in (blocks,) if isinstance(blocks, str) else blocks:
        matching = [path for path in modules if path and path.count(".") == pattern.count(".") and fnmatchcase(path, pattern)]
        if not matching:
            holders = [path for path, module in modules.items() if path and isinstance(module, _CONTAINERS)]
            raise SpaceError(f"blocks={pattern!r}: the model has no such module{did_you_mean(pattern, holders or modules)}")
        for path in matching:
            inner = modules[path] if type(modules[path]) in _CONTAINERS else None
            found |= dict.fromkeys([path] if inner is None else [f"{path}.{name}" for name, _ in inner.named_children()])
    for path in found:
        outer = next((other for other in found if path.startswith(f"{other}.")), None)
        if outer:
            raise SpaceError(f"blocks: '{path}' is part of '{outer}'; name one of them")
    return list(found)


def _record(model: nn.Module, paths: Sequence[str], arguments: tuple[Sequence[Any], Mapping[str, Any]]) -> Recording:
    try:
        with torch.random.fork_rng(devices=[]):
            return Recording(model, paths, arguments)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        text = one_line(str(error), most=300)
        raise SpaceError(f"the model raised {type(error).__name__} on the example: {text}") from error


class _Arguments:
    """The example, for any number of samples.

    Attributes:
        names: by leaf, the name of the argument if it is a tensor.
        tensors: by name.
    """

    def __init__(self, model: nn.Module, example: Example) -> None:
        if isinstance(example, Mapping):
            self._arguments: tuple[Sequence[Any], Mapping[str, Any]] = (), dict(example)
        else:
            self._arguments = (example,) if isinstance(example, Tensor) else tuple(example), {}
        positional = list(inspect.signature(model.forward).parameters)
        listed = [*zip(positional, self._arguments[0], strict=False), *self._arguments[1].items()]
        self.tensors = {name: item for name, item in listed if isinstance(item, Tensor)}
        self.names = [name if isinstance(item, Tensor) else None for name, item in listed]
        rows = {len(tensor) if tensor.dim() else 0 for tensor in self.tensors.values()}
        if len(rows) != 1 or 0 in rows or any(tree_leaves(item) != [item] for _, item in listed if not isinstance(item, Tensor)):
            shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in self.tensors.items())
            raise SpaceError(
                "the example must be a tensor, several, or a dict of arguments, and all tensors have as many samples, "
                f"[samples, ...]; got {shapes or type(example).__name__}"
            )
        self.num_samples = rows.pop()

    def of(self, batch: int) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments with so many samples: those of the example, repeated."""
        rows = torch.arange(batch) % self.num_samples
        return tree_map(lambda leaf: leaf[rows.to(leaf.device)] if isinstance(leaf, Tensor) else leaf, self._arguments)


def _build(
    model: nn.Module, parts: Sequence[Part], blocks: Sequence[str], output: str | int | None
) -> list[Block | Segment]:
    """The parts as layers; their tensors are the model's."""
    modules: list[Block | Segment] = []
    for part in parts:
        if isinstance(part, BlockPart):
            block = model.get_submodule(part.path)
            modules.append(Block(block, path=part.path, takes=part.takes, gives=part.gives, is_original=True))
            continue
        assert isinstance(part, SegmentPart)
        tape = Tape(part.calls, part.others)
        code = trimmed(model, tape, blocks=blocks, skipped=list(part.others), needed=part.needed)
        result = choose(output) if part.is_head else None
        modules.append(Segment(code, tape, arguments=part.arguments, wanted=part.wanted, result=result))
    return modules


def _ties(model: nn.Module, modules: Sequence[nn.Module]) -> list[dict[str, str]]:
    """Of each part, the parameters that another one has as well, by what they are called in the model."""
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    owned = [dict(module.named_parameters(remove_duplicate=False)) for module in modules]
    counts = Counter(number for parameters in owned for number in {id(p) for p in parameters.values()})
    return [{name: first[id(p)] for name, p in parameters.items() if counts[id(p)] > 1} for parameters in owned]


class _Offers:
    """What a user offers for blocks.

    Args:
        candidates: of `convert`.

    Raises:
        SpaceError: for no block, or of a name that is taken.
    """

    def __init__(self, candidates: Candidates, parts: Sequence[BlockPart]) -> None:
        everywhere = {name: offer for name, offer in candidates.items() if not isinstance(offer, Mapping)}
        self._groups: list[tuple[str | None, Mapping[str, Offer]]] = [(None, everywhere)] if everywhere else []
        self._groups += [(path, offer) for path, offer in candidates.items() if isinstance(offer, Mapping)]
        self._known: dict[object, Callable[[], nn.Module]] = {}
        for path, _ in self._groups:
            if path is not None and not any(fnmatchcase(part.path, path) for part in parts):
                paths = [part.path for part in parts]
                raise SpaceError(f"candidates: no block is called {path!r}{did_you_mean(path, paths)}")
        if any(_is_skip(offer) for offer in everywhere.values()) and not any(part.can_skip for part in parts):
            raise SpaceError("candidates: no block gives what it takes, so none can be skipped; leave skip() out")

    def of(self, part: Part, original: nn.Module) -> Iterator[Candidate]:
        """The candidates beside the original."""
        for path, group in self._groups if isinstance(part, BlockPart) else ():
            assert isinstance(part, BlockPart)
            if path is not None and not fnmatchcase(part.path, path):
                continue
            for name, offer in group.items():
                if _is_skip(offer):
                    if part.can_skip or path is not None:
                        yield skip(name)
                    continue
                tied = offer.tied if isinstance(offer, Candidate) else {}
                yield Candidate(
                    name, self._factory(part, offer, original), {f"block.{own}": group for own, group in tied.items()}
                )

    def _factory(self, part: BlockPart, offer: Offer, original: nn.Module) -> Callable[[], nn.Module]:
        """One for all blocks that are called alike, so that its layers share their templates."""
        assert isinstance(original, Block)
        build = offer.factory if isinstance(offer, Candidate) else offer
        if not callable(build):
            raise SpaceError(
                f"expected a module, a function that builds one, or a Candidate, got {type(offer).__name__}",
                position=part.name,
                candidate=str(offer),
            )
        wants_block = _wants_block(build)
        key = id(build), part.path if wants_block or isinstance(build, nn.Module) else repr((part.takes, part.gives))
        if key not in self._known:
            given = (lambda: build(block=original.block)) if wants_block else build
            self._known[key] = _Offered(given, part)
        return self._known[key]


def _is_skip(offer: object) -> bool:
    return isinstance(offer, Candidate) and offer.is_skip


def _wants_block(build: object) -> bool:
    if isinstance(build, nn.Module | type | Existing):
        return False
    try:
        return "block" in inspect.signature(build).parameters  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return False


class _Offered:
    """The factory of a candidate that is called as a block is."""

    def __init__(self, build: nn.Module | Callable[[], nn.Module], part: BlockPart) -> None:
        self._build = build
        self._part = part

    def __call__(self) -> nn.Module:
        """A new layer; a `Builder` copies one whose module existed."""
        module = self._build if isinstance(self._build, nn.Module) else self._build()
        if not isinstance(module, nn.Module):
            raise TypeError(f"returned {type(module).__name__}, expected an nn.Module")
        part = self._part
        return Block(module, path=part.path, takes=part.takes, gives=part.gives)


@torch.no_grad()
def _refuse_others(
    pool: LayerPool, modules: Sequence[nn.Module], model: nn.Module, given: _Arguments, output: str | int | None
) -> None:
    """The parts one after the other must give what the model gives."""
    arguments = given.of(given.num_samples)
    expected = chosen_output(model(*arguments[0], **arguments[1]), output)
    path = pool.path(pool.original)
    inputs = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    for module in modules:
        module.eval()
    (got,) = pool.flow(path).run(inputs, lambda place, *taken: modules[path[place].position](*taken))
    if not torch.equal(got, expected) and not torch.equal(got.nan_to_num(), expected.nan_to_num()):
        raise SpaceError(
            "the parts of the model give something else than the model: between its blocks it uses what is neither "
            "argument nor output of a block; choose blocks further outside"
        )
