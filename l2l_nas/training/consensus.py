"""What the ranks of a command decide alike.

[Note: ranks of a command] A search and a training are one program on rank 0, which the others follow: see
[Note: who leads] in `parallel/lead.py`. Of what reads a run, `evaluate`, `generate` and `export`, all ranks do the same
on the same data, so they call the same exchanges in the same order; rank 0 decides what may differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from l2l_nas.eps.agreement import all_gather_bytes
from l2l_nas.eps.exchange import Alone, Exchange

if TYPE_CHECKING:
    from l2l_nas.parallel.mesh import WorldMesh


class Consensus:
    """Agrees by an exchange; a process without other ranks decides by itself.

    Args:
        exchange: with the other ranks.
        mesh: the ranks as a grid, of which so many share each layer; all of them call it.
    """

    def __init__(self, exchange: Exchange | None = None, mesh: Callable[[int], WorldMesh] | None = None) -> None:
        self.exchange: Exchange = Alone() if exchange is None else exchange
        self._mesh = mesh
        self._is_alone = False

    def mesh(self, tensor: int) -> WorldMesh:
        """The ranks as a grid, of which so many share each layer; all of them call it."""
        assert self._mesh is not None
        return self._mesh(tensor)

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return 1 if self._is_alone else self.exchange.size

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which has the terminal; a single process is."""
        return self.exchange.rank == 0

    def every(self, value: Any) -> list[Any]:
        """The values of all ranks, as JSON gives them back; all ranks call it."""
        if self.size == 1:
            return [value]
        return [json.loads(data) for data in all_gather_bytes(self.exchange, json.dumps(value).encode())]

    def first(self, make: Callable[[], Any]) -> Any:
        """What rank 0 makes, as JSON gives it back; all ranks call it, and rank 0 alone calls `make`."""
        if self.size == 1:
            return make()
        value = None
        if self.is_first:
            with self.working("a decision for all ranks"):
                value = make()
        return self.every(value)[0]

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """While this rank does what takes long and exchanges nothing: the others wait patiently."""
        if self.size == 1:
            yield
            return
        with self.exchange.working(what):
            yield

    @contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """The same, of rank 0: what is decided meanwhile it decides by itself."""
        with self.working(what):
            self._is_alone = True
            try:
                yield
            finally:
                self._is_alone = False
