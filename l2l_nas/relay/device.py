"""All that differs between devices, in one place: memory, copies, random generators."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

from l2l_nas.eps.layout import align
from l2l_nas.errors import SettingError


class Device:
    """A compute device.

    Args:
        name: "auto" (CUDA where there is one), "cpu", "cuda" or "cuda:N".

    Raises:
        SettingError: torch cannot use that device.
    """

    def __init__(self, name: str = "auto") -> None:
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            self.torch_device = torch.device(name)
        except RuntimeError:
            raise SettingError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}") from None
        kind = self.torch_device.type
        if kind not in ("cpu", "cuda"):
            raise SettingError(f"device must be auto, cpu, cuda or cuda:N, got {name!r}")
        if kind == "cuda":
            if not torch.cuda.is_available():
                raise SettingError("device=cuda, but torch sees no CUDA device; use device=cpu")
            if (self.torch_device.index or 0) >= torch.cuda.device_count():
                raise SettingError(f"device={name}, but there are {torch.cuda.device_count()} CUDA devices")

    def allocate(self, num_bytes: int) -> Tensor:
        """A block of device memory, as uint8, zeroed."""
        return torch.zeros(align(num_bytes), dtype=torch.uint8, device=self.torch_device)

    def put(self, tensor: Tensor) -> Tensor:
        """A host tensor on the device; the very same one where the device is the host."""
        return tensor.to(self.torch_device)

    def seed(self, seed: int) -> None:
        """Seed the generators that layers draw from."""
        # the generator's own method: a hundred times faster than `torch.manual_seed`, which asks every backend
        torch.default_generator.manual_seed(seed)
        if self.torch_device.type == "cuda":
            self._cuda_generator().manual_seed(seed)

    @contextlib.contextmanager
    def preserved_generators(self) -> Iterator[None]:
        """Leave the caller's random numbers as they were."""
        host = torch.default_generator.get_state()
        cuda = self._cuda_generator().get_state() if self.torch_device.type == "cuda" else None
        try:
            yield
        finally:
            torch.default_generator.set_state(host)
            if cuda is not None:
                self._cuda_generator().set_state(cuda)

    def _cuda_generator(self) -> torch.Generator:
        index = self.torch_device.index
        return torch.cuda.default_generators[torch.cuda.current_device() if index is None else index]


_MASK = (1 << 64) - 1


def stream_seed(seed: int, step: int, position: int, micro_batch: int) -> int:
    """The seed of the random numbers of one layer on one micro-batch.

    It depends on nothing else, so a recompute replays them and results do not depend on the schedule. Each value is
    folded in by splitmix64's finalizer (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
    """
    state = 0
    for value in (seed, step, position, micro_batch):
        state = (state + 0x9E3779B97F4A7C15 + (value & _MASK)) & _MASK
        state = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ state >> 27) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1
