"""The random numbers of samples. See [Note: keys]."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from l2l_nas.relay.device import stream_seed

# apart from the streams of layers, which count micro-batches here
_SAMPLES = 1 << 40
# objects of a data set that are searched for generators, and for files
MOST_HELD = 10_000
GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


@contextlib.contextmanager
def own_generators() -> Iterator[None]:
    """Leave the generators of Python, numpy and torch as they were."""
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])


def seed_generators(key: tuple[int, int], row: int, own: Sequence[Any] = ()) -> None:
    """Seed the generators of Python, numpy and torch, and those that a data set holds, for one sample."""
    seed = stream_seed(*key, row, _SAMPLES)
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.default_generator.manual_seed(seed)
    for generator in own:
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        elif isinstance(generator, np.random.Generator):
            state = generator.bit_generator
            state.state = type(state)(seed).state
        else:
            generator.seed(seed & 0xFFFFFFFF)
