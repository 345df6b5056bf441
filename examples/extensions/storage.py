"""A storage of your own: `relay.storage=examples/extensions/storage.py:Packed` keeps layers compressed in memory."""

import io
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

from l2l_nas.eps.state import LayerState, Part


class Packed:
    """States as compressed bytes; each is unpacked while it is used."""

    is_lasting = False  # a state's memory is freed when it is closed

    def __init__(self) -> None:
        self.packed: dict[str, tuple[object, bytes]] = {}

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(self.packed)

    def put(self, key: str, state: LayerState) -> None:
        parts = (state.weights, state.moments, state.steps, state.buffers, state.visits, state.version)
        torch.save(parts, file := io.BytesIO())
        self.packed[key] = state.layout, zlib.compress(file.getvalue(), level=1)

    def clear(self) -> None:
        self.packed = {}

    @contextmanager
    def reading(self, key: str, part: Part = Part.WEIGHTS) -> Iterator[LayerState]:
        layout, content = self.packed[key]
        yield LayerState(layout, *torch.load(io.BytesIO(zlib.decompress(content)), weights_only=True))

    @contextmanager
    def writing(self, key: str, part: Part = Part.ALL) -> Iterator[LayerState]:
        with self.reading(key) as state:
            yield state
            self.put(key, state)  # not after an error: the state stays as it was

    def expect(self, uses: Iterable[tuple[str, Part]]) -> None:
        """Nothing is read ahead."""
