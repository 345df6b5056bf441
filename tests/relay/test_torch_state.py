"""What torch keeps for the whole process is behind a layer as it was before it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Classification, LayerPool, ParamServer, Position, ReferenceTrainer, Relay
from l2l_nas import TensorSpec as Spec
from l2l_nas.errors import SpaceError
from l2l_nas.space.shapes import check_shapes
from l2l_nas.space.torch_state import TorchState

CHANGES: dict[str, Callable[[], object]] = {
    "torch's default dtype \\(float32 to float64\\)": lambda: torch.set_default_dtype(torch.float64),
    "whether torch records gradients": lambda: torch.set_grad_enabled(False),
    "torch's number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "whether torch's algorithms are deterministic": lambda: torch.use_deterministic_algorithms(True),
    "torch's autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "torch's default device": lambda: torch.set_default_device("meta"),
}
changes = pytest.mark.parametrize("words", CHANGES)


class Own(BaseException):
    """No Exception, as those of some libraries."""


def raised(error: BaseException) -> None:
    raise error


class Does(nn.Linear):
    """Does something in its forward, from now on or from when it is on."""

    is_on = True

    def __init__(self, do: Callable[[], object]) -> None:
        super().__init__(2, 2)
        self.do = do

    def forward(self, x):
        if type(self).is_on:
            self.do()
        return super().forward(x)


class InBackward(Does):
    """Does it in its backward."""

    def forward(self, x):
        result = nn.Linear.forward(self, x)
        if result.requires_grad:
            result.register_hook(lambda gradient: self.do() and None)
        return result


def changed(words: str) -> None:
    CHANGES[words]()


def pool_of(factory: Callable[[], nn.Module]) -> LayerPool:
    positions = [Position("a", Candidate("bad", factory)), Position("b", Candidate("ok", partial(nn.Linear, 2, 2)))]
    return LayerPool(positions, inputs=Spec((2,)))


def refused(call: Callable[[], object], match: str) -> None:
    before = TorchState.now()
    with pytest.raises(SpaceError, match=match) as caught:
        call()
    now, where = TorchState.now(), (caught.value.position, caught.value.candidate)
    before.put_back()
    assert now == before
    assert where == ("a", "bad")


def in_factory(words: str) -> nn.Module:
    CHANGES[words]()
    return nn.Linear(2, 2)


@changes
def test_a_layer_that_changes_it_is_refused_when_a_pool_is_checked(words):
    refused(lambda: check_shapes(pool_of(partial(Does, partial(changed, words)))), f"its forward changes {words}")


# autograd itself puts back what is of a thread
@pytest.mark.parametrize("words", [words for words in CHANGES if "dtype" in words or "deterministic" in words])
def test_a_layer_whose_backward_changes_it_is_refused_when_a_pool_is_checked(words):
    pool = pool_of(partial(InBackward, partial(changed, words)))
    refused(lambda: check_shapes(pool), f"its backward changes {words}")


@pytest.mark.parametrize("words", [words for words in CHANGES if words != "torch's default device"])
def test_a_factory_that_changes_it_is_refused(words):
    refused(lambda: check_shapes(pool_of(partial(in_factory, words))), f"its factory changes {words}")


def executor_of(name: str, pool: LayerPool) -> Relay | ReferenceTrainer:
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    if name == "reference":
        return ReferenceTrainer(server, device="cpu")
    return Relay(server, device="cpu", lanes="threads" if name == "streamed" else "auto")


EXECUTORS = pytest.mark.parametrize("name", ["held", "streamed", "reference"])


@changes
@EXECUTORS
def test_a_layer_that_changes_it_in_training_alone_is_refused_by_name(words, name, monkeypatch):
    monkeypatch.setattr(Does, "is_on", False)
    executor = executor_of(name, pool := pool_of(partial(Does, partial(changed, words))))
    x, y = torch.rand(4, 2), torch.zeros(4, dtype=torch.int64)
    step = partial(executor.train_step, pool.original, x, y, objective=Classification(), micro_batch=2, lr=0.1, step=0)
    step()
    monkeypatch.setattr(Does, "is_on", True)
    refused(step, f"its forward changes {words}")
    if words != "whether torch records gradients":  # which evaluation leaves off in any case
        refused(partial(executor.predict, pool.original, x, micro_batch=2), f"its forward changes {words}")


@pytest.mark.parametrize("error", [Own("no"), GeneratorExit("no"), SystemExit(3)])
@pytest.mark.parametrize("name", ["held", "streamed"])
def test_whatever_a_layer_raises_is_one_line_that_names_it(error, name, monkeypatch):
    factory = partial(Does, partial(raised, error))
    refused(lambda: check_shapes(pool_of(factory)), "raised on input")
    monkeypatch.setattr(Does, "is_on", False)
    executor = executor_of(name, pool := pool_of(factory))
    monkeypatch.setattr(Does, "is_on", True)
    refused(lambda: executor.predict(pool.original, torch.rand(4, 2), micro_batch=2), "its layer (raised|called)")


def test_an_interrupt_stays_one(monkeypatch):
    monkeypatch.setattr(Does, "is_on", False)
    executor = executor_of("held", pool := pool_of(partial(Does, partial(raised, KeyboardInterrupt()))))
    monkeypatch.setattr(Does, "is_on", True)
    with pytest.raises(KeyboardInterrupt):
        executor.predict(pool.original, torch.rand(4, 2), micro_batch=2)
