"""Values: what flows between the positions of a pool.

[Note: values] A position reads values that were written before it, and writes one, or several. The pool's inputs are
values too. In a chain each position reads what the position before it wrote; with names it may read anything: a mask, a
skip connection, the memory of an encoder, the edges of a cell. A value is written once and may be read often.

A position that is skipped passes on what it reads: its first value is the first that it reads, and so on. A layer whose
values reach no output is left out of the path: nothing that it computes would be used, and nothing would train it.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from l2l_nas.errors import SpaceError, did_you_mean, located
from l2l_nas.space.candidate import Position

T = TypeVar("T")


def as_tuple(outputs: object) -> tuple[Tensor, ...]:
    """What a layer returned, as a tuple of contiguous tensors: of a dict and of a dataclass its values but None.

    Raises:
        TypeError: it is nothing of the kind, or holds something else than tensors.
    """
    if isinstance(outputs, Mapping):
        items = tuple(item for item in outputs.values() if item is not None)
    elif dataclasses.is_dataclass(outputs):
        fields = (getattr(outputs, field.name) for field in dataclasses.fields(outputs))
        items = tuple(item for item in fields if item is not None)
    else:
        items = tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)
    if not items or not all(isinstance(item, Tensor) for item in items):
        others = ", ".join(dict.fromkeys(type(item).__name__ for item in items if not isinstance(item, Tensor)))
        inside = f" of {others}" if items != (outputs,) and others else ""
        raise TypeError(
            f"a layer returns a tensor, or a tuple, dict or dataclass of tensors, got {type(outputs).__name__}{inside}"
        )
    plain = (item.resolve_conj().resolve_neg() if item.is_complex() or item.is_neg() else item for item in items)
    return tuple(item.contiguous() for item in plain)


def learns(tensor: Tensor) -> bool:
    """Whether a value can have a gradient."""
    return tensor.is_floating_point() or tensor.is_complex()


def by_value(names: Sequence[str], items: Sequence[T]) -> dict[str, tuple[T, ...]]:
    """The outputs of a layer by value: one name stands for all of them, several names for one tensor each."""
    if len(names) == 1:
        return {names[0]: tuple(items)}
    return {name: (item,) for name, item in zip(names, items, strict=True)}


@dataclass(frozen=True)
class Flow:
    """The values of a path. A value that skips pass on bears the name under which it was written."""

    inputs: Mapping[str, int]  # by input of the pool, how many tensors it is
    reads: tuple[tuple[str, ...], ...]  # the values that each layer takes, in order
    writes: tuple[tuple[str, ...], ...]
    outputs: tuple[str, ...]  # what the path gives out

    def run(self, inputs: Sequence[Tensor], call: Callable[..., object]) -> tuple[Tensor, ...]:
        """Run a path as plain PyTorch does, all of it at once; its outputs.

        Args:
            inputs: all tensors of all inputs, in order.
            call: runs a layer: gets its index in the path and the tensors that it takes.
        """
        values = self.by_input(inputs)
        last = self.last_reads()
        for index, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            outputs = as_tuple(call(index, *(tensor for name in reads for tensor in values[name])))
            values |= by_value(writes, outputs)
            for name in (*reads, *writes):
                if last.get(name, -1) <= index:  # one that two reads name is gone by the second
                    values.pop(name, None)
            del outputs
        return tuple(tensor for name in self.outputs for tensor in values[name])

    def by_input(self, inputs: Sequence[Tensor]) -> dict[str, tuple[Tensor, ...]]:
        """Tensors of all inputs by the value that they are part of."""
        rest = iter(inputs)
        return {name: tuple(itertools.islice(rest, count)) for name, count in self.inputs.items()}

    def last_reads(self) -> dict[str, int]:
        """The index of the last layer that reads each value; for an output, the number of layers."""
        last = {name: index for index, names in enumerate(self.reads) for name in names}
        return {**last, **dict.fromkeys(self.outputs, len(self.reads))}


class Wiring:
    """Which values the positions of a pool read and write.

    Args:
        inputs: by input of the pool, how many tensors it is.
        outputs: values that the pool gives out; None for what the last position writes.

    Raises:
        SpaceError: a value that is read before it is written, written twice, or of no use.
    """

    def __init__(self, positions: Sequence[Position], inputs: Mapping[str, int], outputs: Iterable[str] | None) -> None:
        self.inputs = dict(inputs)
        self.reads: list[tuple[str, ...]] = []
        self.writes = [position.writes for position in positions]
        written = dict.fromkeys(inputs)
        before = tuple(inputs)
        for position in positions:
            self.reads.append(before if position.reads is None else position.reads)
            with located(position.name):
                for name in self.reads[-1]:
                    if name not in written:
                        raise SpaceError(f"reads '{name}', which nothing before it writes{did_you_mean(name, written)}")
                for name in position.writes:
                    if name in written:
                        raise SpaceError(f"writes '{name}', which is written before; rename one")
                    written[name] = None
                skips = [candidate.name for candidate in position.candidates if candidate.is_skip]
                if skips and len(self.reads[-1]) < len(position.writes):
                    raise SpaceError(
                        f"a skip passes on what it reads, but this position writes {len(position.writes)} values and "
                        f"reads {len(self.reads[-1])}; read as many, or leave the skip out",
                        position=position.name,
                        candidate=skips[0],
                    )
            before = position.writes
        self.names = tuple(written)
        self.outputs = before if outputs is None else tuple(outputs)
        for name in self.outputs:
            if name not in written:
                raise SpaceError(
                    f"LayerPool: outputs names '{name}', which nothing writes{did_you_mean(name, written)}"
                )
        used = {*self.outputs, *(name for names in self.reads for name in names)}
        for name in inputs:
            if name not in used:
                raise SpaceError(f"nothing reads the input '{name}'; leave it out, or name it in some position's reads")
        for position in positions:
            for name in position.writes:
                if name not in used:
                    raise SpaceError(
                        f"nothing reads '{name}', which it writes; leave it out, or name it in the pool's outputs",
                        position=position.name,
                    )
        self.may_drop = self._may_drop([any(one.is_skip for one in position.candidates) for position in positions])
        readers = {name: [index for index, names in enumerate(self.reads) if name in names] for name in written}
        # whether each position reads what the one before it wrote, and nobody else does
        self.is_chain = self.outputs == self.writes[-1] and all(
            self.reads[index] == wrote and all(readers[name] == [index] for name in wrote)
            for index, wrote in enumerate([tuple(inputs), *self.writes[:-1]])
        )

    def _may_drop(self, may_skip: Sequence[bool]) -> bool:
        """Whether skips may leave a layer before them without a reader: none of what it writes is read for sure."""
        read = {*self.outputs}
        for reads, writes, skips in reversed([*zip(self.reads, self.writes, may_skip, strict=True)]):
            passed = [number for number, name in enumerate(writes) if name in read]
            if not passed:
                return True
            read.update((reads[number] for number in passed) if skips else reads)
        return False

    def live(self, chosen: Iterable[int]) -> list[int]:
        """The chosen positions whose layers reach an output, in order."""
        chosen = set(chosen)
        values, reads_of = self._resolved(chosen)
        needed = {values[name] for name in self.outputs}
        live = []
        for index in sorted(chosen, reverse=True):
            if needed & set(self.writes[index]):
                live.append(index)
                needed.update(reads_of[index])
        return live[::-1]

    def flow(self, live: Sequence[int]) -> Flow:
        """The values of a path of these positions; all others are skipped, or reach no output."""
        values, reads_of = self._resolved(set(live))
        return Flow(
            self.inputs,
            tuple(tuple(map(str, reads_of[index])) for index in live),
            tuple(self.writes[index] for index in live),
            tuple(str(values[name]) for name in self.outputs),
        )

    def _resolved(self, chosen: set[int]) -> tuple[Mapping[str, str | None], Mapping[int, tuple[str | None, ...]]]:
        """Each name's value, and what each chosen position takes."""
        values: dict[str, str | None] = {name: name for name in self.inputs}
        reads_of = {}
        for index, (reads, writes) in enumerate(zip(self.reads, self.writes, strict=True)):
            inputs = tuple(values[name] for name in reads)
            if index in chosen:
                reads_of[index] = inputs
                values.update(zip(writes, writes, strict=True))
            else:
                # a layer that reaches no output may write more than it reads: nobody asks for the rest
                values.update(itertools.zip_longest(writes, inputs[: len(writes)]))
        return values, reads_of
