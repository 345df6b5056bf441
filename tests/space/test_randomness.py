"""Random numbers: a layer draws from torch's generator alone, and a probe leaves those of the process as they were."""

from __future__ import annotations

import random
import sys
import threading
import time
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas.errors import SpaceError
from l2l_nas.space.randomness import preserved_generators
from tests.space.probing import Nonzero, W, check, layer

ORTHOGONAL = lambda: nn.utils.parametrizations.orthogonal(nn.Linear(W, W))  # noqa: E731


def test_random_numbers_of_the_process_are_not_used_up():
    before = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    check(partial(Nonzero, W, W), ORTHOGONAL, partial(nn.Dropout, 0.5))
    after = random.getstate(), np.random.get_state()[1].tobytes(), torch.get_rng_state()
    assert before[:2] == after[:2]
    assert torch.equal(before[2], after[2])


class Noise:
    """Another thread that draws from every generator of the process, all the time."""

    def __enter__(self):
        self.ends = threading.Event()
        self.drawn = threading.Barrier(2)
        self.thread = threading.Thread(target=self._draw)
        self.thread.start()
        self.drawn.wait()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()

    def _draw(self):
        own = random.getstate(), np.random.get_state()
        np.random.normal()
        self.drawn.wait()
        while not self.ends.is_set():
            random.random()
            np.random.rand()
            time.sleep(0)
        random.setstate(own[0])
        np.random.set_state(own[1])


def test_numbers_that_other_threads_draw_are_no_fault_of_a_layer_and_are_not_drawn_again():
    generator = np.random.get_bit_generator()
    with Noise():
        check(partial(nn.Linear, W, W), partial(nn.Dropout, 0.5), partial(Nonzero, W, W))
        for draws in (random.random, np.random.rand):
            with pytest.raises(SpaceError, match="draws from"):
                check(layer(run=lambda self, x, draws=draws: self.linear(x) * float(draws())))
    assert np.random.get_bit_generator() is generator
    assert sys.getprofile() is None


def test_what_another_thread_drew_meanwhile_stays_drawn():
    states = []

    def another():
        np.random.rand()
        states.append((random.random(), random.getstate(), np.random.get_state()[2]))

    class Layer(nn.Linear):
        def forward(self, x):
            if not states:
                begin.set()
                thread.join()
            return super().forward(x)

    begin = threading.Event()
    thread = threading.Thread(target=lambda: (begin.wait(), another()))
    thread.start()
    check(partial(Layer, W, W))
    assert (random.getstate(), np.random.get_state()[2]) == states[0][1:]


@pytest.mark.parametrize(("name", "number"), [("cuda:0", 0), ("cuda:2", 2), ("cuda", 1)])
def test_the_random_numbers_that_are_preserved_are_those_of_the_named_device(name, number, monkeypatch):
    class Module:
        current_device = staticmethod(lambda: 1)
        default_generators = tuple(torch.Generator().manual_seed(seed) for seed in range(3))

    def draw():
        return [torch.rand((), generator=one).item() for one in (torch.default_generator, *Module.default_generators)]

    monkeypatch.setattr(torch, "get_device_module", lambda kind: Module)
    with preserved_generators(name):
        first = draw()
    again = draw()
    assert [index for index in range(4) if first[index] == again[index]] == [0, number + 1]
