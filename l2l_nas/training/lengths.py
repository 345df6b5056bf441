"""Texts at their own length: no layer computes what is padding in all of a micro-batch.

The rows of a chunk are ordered by their length, and cut into micro-batches that are as long as their longest row,
rounded up. What is computed of a row is what is computed of it with all its padding, but for rounding; see [Note: any
length]. What layers say of that decides, and is tried out before it is relied on: in each evaluation and each training,
once for each kind of layer, one row of the data goes through the network with more padding and with less. Where outputs
differ, or a layer does not say that it takes any length, all are as long as the pool's inputs; so they are where few
texts are shorter, and trying it out would cost more than it saves. What passed is not remembered for longer: a layer
that adds nothing yet shows nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from l2l_nas.eps.agreement import all_reduce_min
from l2l_nas.errors import L2LError, SpaceError, is_out_of_memory
from l2l_nas.relay.extend import fixed_at
from l2l_nas.relay.interface import Batch, Cuts, Executor, Targets, cut_targets, each
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import TensorSpec
from l2l_nas.space.pool import PerPool
from l2l_nas.space.shapes import adds_losses, check_shapes, writes_buffers
from l2l_nas.training.metrics import of_samples
from l2l_nas.training.samples import Samples, read
from l2l_nas.training.task import Task, counting

_DOCUMENTS = "documents"  # the name of a pool's input that is another number where a text has ended
# lengths are multiples of it
_STEP = 8
# how much longer a row is made to see whether that changes anything
_MORE = 32
# of the largest output of a place: what may come of sums in another order, in float32 and in low precision
_ROUNDING, _LOW_ROUNDING = 1e-4, 3e-2
# of the median of a place's outputs: larger ones are no measure of the others
_FAR = 16

# kinds of layers among which some do not give the same at any length, so many sets of them at most
_OTHER: PerPool[list[frozenset[object]]] = PerPool()
_MOST_OTHER = 64
_IS_PLAIN: PerPool[dict[object, bool]] = PerPool()
# training at few lengths, so that few shapes are to be known, and samples by which it is seen whether it can be
_LENGTHS, _LOOKS = 16, 32


@dataclass(frozen=True)
class Chunk:
    """Samples in the order of their lengths.

    Args:
        order: which of the chunk's samples comes where.
        passes: the micro-batches that go through the network at once.
    """

    order: Tensor
    passes: Sequence[Cuts]

    def restored(self, parts: Sequence[Tensor]) -> Tensor:
        """What is in this order, in the order that the samples had."""
        whole = torch.cat(list(parts))
        return torch.empty_like(whole).index_copy_(0, self.order, whole)


@dataclass(frozen=True)
class Texts:
    """How samples of a network are cut.

    Args:
        executor, architectures: what runs which networks.
        length: of the pool's inputs.
        has_places: whether outputs and targets are of each place, and not of the whole text: targets that count say
            how long it is.
        documents: which of the inputs says so where outputs are of the whole text: places of the first one's document.
        same: kinds of layers that gave the same at any length, with the weights that they have now.
    """

    executor: Executor
    architectures: Sequence[Architecture]
    length: int
    has_places: bool
    documents: int
    same: set[object] = field(default_factory=set, compare=False)

    @classmethod
    def of(
        cls, executor: Executor, architectures: Sequence[Architecture], samples: Samples, task: Task
    ) -> Texts | None:
        """How samples are cut for a task; None where each must be as long as the pool's inputs."""
        found = cls.taken_by(executor, architectures) if samples.is_padded else None
        return found if found is None or not found.has_places or _reads_what_counts(task) else None

    @classmethod
    def taken_by(cls, executor: Executor, architectures: Sequence[Architecture]) -> Texts | None:
        """How texts are cut for networks whose layers say that they take any length; None for others."""
        pool = executor.server.whole_pool
        specs, names = pool.inputs, tuple(pool.sources)
        is_of_texts = bool(specs) and set(specs) == {TensorSpec(specs[0].shape[:1], torch.int64)}
        if not is_of_texts or len(names) != len(specs) or not getattr(executor, "takes_cuts", False):
            return None
        (length,), outputs = specs[0].shape, check_shapes(pool).outputs
        documents = names.index(_DOCUMENTS) if _DOCUMENTS in names else 0
        has_places = len(outputs) == 1 and len(outputs[0].shape) == 2 and outputs[0].shape[0] == length
        if not (has_places or documents) or any(fixed_at(pool, one) for one in architectures):
            return None
        return cls(executor, architectures, length, has_places, documents)

    def lengths(self, inputs: Batch, targets: Targets) -> Tensor:
        """How many places of each sample are to be computed, int64 [batch]."""
        documents = inputs[self.documents]
        is_there = counting(targets) if self.has_places else documents == documents[:, :1]
        ends = (is_there * torch.arange(1, is_there.shape[1] + 1)).amax(dim=1)
        return self._rounded(ends.clamp(min=1)).clamp(max=self.length)

    def cut(self, lengths: Tensor, micro_batch: int, *, places: int, waiting: int) -> Chunk:
        """Put samples of these lengths in order, and cut them.

        Args:
            micro_batch: samples at most.
            places: of a micro-batch at most.
            waiting: places of a pass at most.
        """
        order = lengths.argsort(stable=True, descending=True)
        cuts: list[tuple[int, int]] = []
        for length in lengths[order].tolist():
            size, longest = (cuts[-1][0] + 1, cuts[-1][1]) if cuts else (0, 0)
            # what would be padding for the most part begins a micro-batch of its own
            if cuts and size <= micro_batch and size * longest <= places and longest <= 2 * length:
                cuts[-1] = (size, longest)
            else:
                cuts.append((1, length))
        passes: list[list[tuple[int, int]]] = []
        used = 0
        for size, length in cuts:
            used += size * length
            if passes and used <= waiting:
                passes[-1].append((size, length))
            else:
                passes.append([(size, length)])
                used = size * length
        return Chunk(order, passes)

    def targets(self, targets: Targets, cuts: Cuts) -> list[Targets]:
        """Targets of each micro-batch, as long as its outputs."""
        parts = cut_targets(targets, [size for size, _ in cuts])
        if not self.has_places:
            return parts
        return [
            each(part, itemgetter((slice(None), slice(length)))) for part, (_, length) in zip(parts, cuts, strict=True)
        ]

    def own_lengths(self, inputs: Batch, targets: Targets) -> Tensor:
        """`lengths`, or the pool's, where a network does not give the same at them, or to see that would cost more."""
        lengths = self.lengths(inputs, targets)
        shortest = int(lengths.argmin())
        row = tuple(tensor[shortest, None] for tensor in inputs)
        saved = int((self.length - lengths).sum())
        is_worth = bool(self.same) or saved > sum(self._tried_at(int(lengths[shortest])))
        if is_worth and self.are_same(row, int(lengths[shortest])):
            return lengths
        return torch.full_like(lengths, self.length)

    def length_for(self, row: Batch, places: int) -> int:
        """As how long a text [1, length] is computed of which so many places are wanted."""
        length = min(self.length, self._rounded(places))
        return length if self.are_same(row, length) else self.length

    def are_same(self, row: Batch, length: int) -> bool:
        """Whether each network gives the same for a text [1, ...] of this length with more padding and with less.

        What was found is remembered by the kinds of their layers: that they give the same by this object alone.
        """
        pool = self.executor.server.whole_pool
        other = _OTHER.setdefault(pool, [])
        for architecture in self.architectures if length < self.length else ():  # else nothing is cut
            kinds = frozenset(layer.candidate.kind for layer in pool.path(architecture))
            if any(bad <= kinds for bad in other):
                return False
            if kinds <= self.same:
                continue
            if not self._is_same(architecture, row, length):
                del other[: len(other) - _MOST_OTHER + 1]
                other.append(kinds - self.same)
                return False
            self.same.update(kinds)
        return True

    @staticmethod
    def _rounded(places: Any) -> Any:
        return -(-places // _STEP) * _STEP

    def _tried_at(self, length: int) -> list[int]:
        # about twice as long, as texts of a micro-batch are, and as long as any
        return sorted({length, min(self.length, 2 * length + _MORE), self.length})

    def _is_same(self, architecture: Architecture, row: Batch, length: int) -> bool:
        # other tokens behind, among them two that there surely are: what sees them shows it
        behind = torch.cat((torch.arange(2), row[0][0, :length])).repeat(self.length)[: self.length - length]
        row = (torch.cat((row[0][:, :length], behind[None]), dim=1), *row[1:])
        places = self._tried_at(length)
        shapes: list[list[torch.Size]] = []

        def kept(number: int, outputs: Batch) -> Batch:
            parts = tuple(tensor[:, :length] if self.has_places else tensor for tensor in outputs)
            shapes.append([part.shape for part in parts])
            if shapes[0] != shapes[-1]:
                raise SpaceError("outputs of another shape")
            return parts

        rows = tuple(tensor.expand(len(places), *tensor.shape[1:]) for tensor in row)
        predict = self.executor.predict_population
        try:
            found = predict([architecture], rows, micro_batch=1, reduce=kept, cuts=[(1, one) for one in places])[0]
        except Exception as error:
            # one that holds all layers raises what they raise
            is_layer_s = isinstance(self.executor, ReferenceTrainer) and not isinstance(error, L2LError)
            if not isinstance(error, SpaceError) and (not is_layer_s or is_out_of_memory(error)):
                raise
            found = ()
        rounding = _ROUNDING if getattr(self.executor, "precision", "fp32") == "fp32" else _LOW_ROUNDING
        is_same = bool(found) and all(are_near(one, tensor[0], rounding) for tensor in found for one in tensor[1:])
        return bool(all_reduce_min(self.executor.server.world, int(is_same), "whether outputs are the same"))


def are_near(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether outputs [..., outputs] of each place are the same but for rounding, a share of the place's largest."""
    other = other.float()
    sizes = other.abs().where(other.isfinite() & (other != 0), torch.nan)
    # a score of -1e9, which rules a token out, would let everything pass
    usual = sizes.where(sizes <= _FAR * sizes.nanmedian(dim=-1, keepdim=True).values, 0).amax(-1, keepdim=True)
    is_near = (one.float() - other).abs() <= rounding * (usual + other.abs())
    return bool(other.isfinite().any()) and bool((is_near & other.isfinite() | (one == other)).all())


class TrainingLengths:
    """Lengths of the texts of a training's steps.

    A mini-batch is cut by its samples, not by their lengths: each micro-batch is as long as its longest text.

    Args:
        executor: what trains.
        samples: the training part.
    """

    def __init__(self, executor: Executor, samples: Samples) -> None:
        self._executor = executor
        self._row: tuple[Batch, int] | None = None  # a short text, the same on all ranks
        self._same: set[object] = set()
        if samples.is_padded and len(samples):
            inputs, _ = read(samples, torch.arange(min(len(samples), _LOOKS)))
            texts = Texts.taken_by(executor, ())
            if texts is not None and not texts.has_places:
                lengths = texts.lengths(inputs, ())
                shortest = int(lengths.argmin())
                self._row = tuple(tensor[shortest, None] for tensor in inputs), int(lengths[shortest])

    def of(self, architecture: Architecture, inputs: Batch, micro_batch: int) -> tuple[int, ...] | None:
        """Of each micro-batch; None where all are as long as the pool's inputs."""
        if self._row is None:
            return None
        row, length = self._row
        texts = Texts.taken_by(self._executor, [architecture])
        if texts is None or length == texts.length or not _are_plain(self._executor, architecture):
            return None
        # frames are laid out by what a rank's parts of layers say
        if fixed_at(self._executor.server.pool, architecture):
            return None
        if not replace(texts, same=self._same).are_same(row, length):
            return None
        step = max(_STEP, -(-texts.length // _LENGTHS // _STEP) * _STEP)
        longest = [int(part.max()) for part in texts.lengths(inputs, ()).split(micro_batch)]
        return tuple(min(texts.length, -(-one // step) * step) for one in longest)


def _are_plain(executor: Executor, architecture: Architecture) -> bool:
    """Whether no layer adds a loss or changes a buffer in training, which would see padding or not see it."""
    pool = executor.server.whole_pool
    known = _IS_PLAIN.setdefault(pool, {})
    for layer in pool.path(architecture):
        kind = layer.candidate.kind
        if kind not in known:
            known[kind] = not writes_buffers(pool, layer) and not adds_losses(pool, layer)
        if not known[kind]:
            return False
    return True


def _reads_what_counts(task: Task) -> bool:
    """Whether of outputs only those are measured whose targets count; a class says so of itself alone."""
    figures = of_samples(task)
    return figures is not None and vars(type(figures)).get("reads_what_counts") is True
