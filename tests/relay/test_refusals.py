"""What a relay refuses, and that nothing changes then."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import Candidate, LayerPool, Position, TensorSpec
from l2l_nas.errors import DataError, NonFiniteError, SettingError, SpaceError
from l2l_nas.relay.reference import ReferenceTrainer
from tests.relay.steps import assert_same, chain_pool, tensors, train
from tests.relay.steps import relay_on_host as relay_of
from tests.relay.stress import ORDERS, Stress
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, random_data, repeated_pool

PATH = ["normed", "dense", "normed", "partial", "mlp"]


class NotANumber(SquaredError):
    """A loss that is not finite."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) / 0


@pytest.mark.parametrize("update", ORDERS)
def test_a_loss_that_is_not_finite_is_refused_and_nothing_changes(update):
    relay = relay_of(dense_pool(), update=update)
    train(relay, PATH)
    before = tensors(relay.server)
    with pytest.raises(NonFiniteError, match="loss is not finite at step 1") as caught:
        train(relay, PATH, step=1, objective=NotANumber())
    assert (caught.value.what, caught.value.layer) == ("loss", None)
    assert_same(relay.server, before)
    other = relay_of(dense_pool(), update=update)
    train(other, PATH)
    assert train(relay, PATH, step=2) == train(other, PATH, step=2)
    assert_same(relay.server, tensors(other.server))


def test_a_repeated_layer_s_buffers_are_put_back_to_where_the_step_found_them():
    relay = relay_of(repeated_pool())
    train(relay, ["normed"] * 4 + ["head"])
    before = tensors(relay.server)
    with pytest.raises(NonFiniteError):
        train(relay, ["normed"] * 4 + ["head"], step=1, objective=NotANumber())
    assert_same(relay.server, before)


class Explode(nn.Module):
    """Finite forward, infinite gradient."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        return x + self.scale.sqrt() * x


def test_a_gradient_that_is_not_finite_never_reaches_a_weight_and_names_its_layer():
    relay = relay_of(chain_pool(Explode, partial(nn.Linear, 6, 2)), update="exact")
    architecture = ["c", "c"]
    with pytest.raises(NonFiniteError, match="gradient of layer 'p0/c'"):
        train(relay, architecture)
    assert relay.server.state("p0/c").parameters()["scale"] == 0
    assert relay.server.state("p0/c").visits == 0


def test_with_serial_updates_a_gradient_that_is_not_finite_refuses_the_whole_step():
    relay = relay_of(chain_pool(Explode, partial(nn.Linear, 6, 2)), update="exact")
    before = {key: {n: t.clone() for n, t in relay.server.state(key).tensors().items()} for key in ("p0/c", "p1/c")}
    with pytest.raises(NonFiniteError):
        train(relay, ["c", "c"])
    for key, named in before.items():
        for name, tensor in relay.server.state(key).tensors().items():
            assert torch.equal(tensor, named[name]), f"{key} {name}"


AROUND = {
    "autocast": (lambda device: torch.autocast(device, torch.bfloat16), "cache_enabled=False"),
    "inference": (lambda device: torch.inference_mode(), "inference_mode"),
}


@pytest.mark.parametrize("name", AROUND)
def test_what_a_relay_cannot_run_within_is_refused_and_changes_nothing(name):
    around, text = AROUND[name]
    relay = relay_of(dense_pool())
    train(relay, PATH)
    relay.drain()
    before = tensors(relay.server)
    inputs, _ = random_data(relay.server.pool, 4, seed=0)
    architecture = relay.server.pool.architecture(PATH)
    for call in (
        lambda: train(relay, PATH, step=1),
        lambda: relay.predict(architecture, inputs, micro_batch=2),
        lambda: relay.recalibrate(architecture, [inputs]),
    ):
        with pytest.raises(SettingError, match=text), around(relay.device.torch_device.type):
            call()
    relay.drain()
    assert_same(relay.server, before)


def test_a_relay_that_is_at_work_is_refused_to_another_thread():
    relay, refusals = relay_of(dense_pool()), []
    inputs, _ = random_data(relay.server.pool, 4, seed=0)
    architecture = relay.server.pool.architecture(PATH)

    class Meddling(SquaredError):
        def loss(self, outputs, targets):
            calls = (lambda: train(relay, PATH), lambda: relay.predict(architecture, inputs, micro_batch=2))
            for call in calls:
                with ThreadPoolExecutor() as others, pytest.raises(SettingError, match="at work already") as caught:
                    others.submit(call).result()
                refusals.append(caught)
            return super().loss(outputs, targets)

    losses = [train(relay, PATH, step=step, objective=Meddling()).loss for step in range(2)]
    assert len(refusals) == 2 * 2 * 3
    quiet = relay_of(dense_pool())
    assert losses == [train(quiet, PATH, step=step).loss for step in range(2)]
    with ThreadPoolExecutor() as others:  # one after the other, any thread may
        assert others.submit(train, relay, PATH, step=2).result().loss == train(quiet, PATH, step=2).loss


@pytest.mark.parametrize(
    "inputs",
    [(torch.zeros(4, 3, 5),), (torch.zeros(4, 6),), (torch.zeros(4, 3, 6, dtype=torch.float64),),
     (torch.zeros(4, 3, 6),) * 2],
    ids=["width", "rank", "dtype", "two"],
)  # fmt: skip
def test_inputs_of_another_shape_are_refused_with_got_and_expected(inputs):
    relay = relay_of(dense_pool())
    architecture = relay.server.pool.architecture(PATH)
    with pytest.raises(DataError, match=r"takes \[batch, 3, 6\] float32"):
        relay.predict(architecture, inputs, micro_batch=2)
    with pytest.raises(DataError, match=r"takes \[batch, 3, 6\] float32"):
        relay.train_step(
            architecture, inputs, torch.zeros(4, 3, 2), objective=SquaredError(), micro_batch=2, lr=0.1, step=0
        )


def test_targets_of_another_number_are_refused():
    relay = relay_of(dense_pool())
    with pytest.raises(DataError, match=r"number of samples: \[4, 5\]"):
        relay.train_step(
            relay.server.pool.architecture(PATH), (torch.zeros(4, 3, 6),), torch.zeros(5, 3, 2),
            objective=SquaredError(), micro_batch=2, lr=0.1, step=0,
        )  # fmt: skip


def test_a_batch_without_targets_is_refused():
    relay = relay_of(language_pool())
    inputs, targets = random_data(language_pool(), 3, seed=0)
    with pytest.raises(DataError, match="no targets"):
        relay.train_step(
            language_pool().architecture(["embed", "feed", "skip", "skip", "head"]), inputs, targets * 0 - 1,
            objective=NextToken(), micro_batch=2, lr=0.1, step=0,
        )  # fmt: skip


class Replaces(nn.Module):
    """Gives its buffer another tensor."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.training and bool(x.eq(0).all()):  # which no probe sees
            self.count = self.count + 1
        return x


def test_a_layer_that_replaces_its_buffer_is_told_to_change_it_in_place():
    relay = relay_of(chain_pool(Replaces, partial(nn.Linear, 6, 2)))
    for _ in range(2):
        with pytest.raises(SpaceError, match=r"position 'p0'.*self\.count\.copy_"):
            relay.train_step(
                relay.pool.architecture(["c", "c"]), (torch.zeros(4, 3, 6),), torch.zeros(4, 3, 2),
                objective=SquaredError(), micro_batch=2, lr=0.1, step=0,
            )  # fmt: skip


class ReplacesInEvaluation(Replaces):
    """Does so where nothing is trained."""

    def forward(self, x):
        if not self.training and bool(x.eq(0).all()):  # which no probe sees
            self.count = self.count + 1
        return x + self.count


def test_a_layer_that_replaces_its_buffer_in_evaluation_is_told_so_too():
    pool = chain_pool(ReplacesInEvaluation, partial(nn.Linear, 6, 2))
    relay = relay_of(pool)
    for _ in range(2):
        with pytest.raises(SpaceError, match=r"position 'p0'.*self\.count\.copy_"):
            relay.predict(pool.architecture(["c", "c"]), (torch.zeros(4, 3, 6),), micro_batch=2)


@pytest.mark.parametrize("execute", [relay_of, lambda pool: ReferenceTrainer(relay_of(pool).server, device="cpu")])
def test_a_layer_that_cannot_train_on_a_rest_of_one_sample_is_refused_before_anything_runs(execute):
    pool = LayerPool(
        [
            Position("first", [Candidate("c", partial(nn.Linear, 6, 6))]),
            Position("second", [Candidate("c", lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 6)))]),
        ],
        inputs=TensorSpec((6,)),
    )
    executor, ran = execute(pool), []

    def step(batch):
        path = pool.architecture(["c", "c"])
        x = torch.randn(batch, 6)
        executor.train_step(path, (x,), x, objective=Noted(ran), micro_batch=2, lr=0.1, step=0)

    with pytest.raises(SpaceError) as refused:
        step(3)
    assert (refused.value.position, refused.value.candidate) == ("second", "c")
    assert not ran
    assert int(executor.server.state("second/c").named_buffers()["0.num_batches_tracked"]) == 0
    step(4)
    assert len(ran) == 2


class Noted(SquaredError):
    """Notes what it was asked for."""

    def __init__(self, ran):
        super().__init__()
        self.ran = ran

    def loss(self, outputs, targets):
        self.ran.append(len(targets))
        return super().loss(outputs, targets)


class Breaking(nn.Linear):
    """Its gradient is not finite, though its output is."""

    def forward(self, x):
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * float("nan"))
        return y


@pytest.mark.parametrize(
    ("update", "settings"),
    [
        ("eager", {}),
        ("exact", {}),
        # the next step has begun when the gradient is found
        ("eager", {"lanes": "threads", "stress": Stress(slow={"update": 0.05}, is_poisoning=False)}),
    ],
    ids=["eager", "exact", "late"],
)
def test_a_gradient_that_is_not_finite_tells_which_layers_are_updated_already(update, settings):
    kinds = [partial(nn.Linear, 6, 6), partial(Breaking, 6, 6), partial(nn.Linear, 6, 6), partial(nn.Linear, 6, 2)]
    relay = relay_of(chain_pool(*kinds), update=update, **settings)

    def two_steps():  # where updates run beside, the second one tells
        for step in range(2):
            train(relay, ["c"] * 4, step=step)

    with pytest.raises(NonFiniteError, match=r"layer 'p[01]/c'") as caught:
        two_steps()
    changed = {key for key in relay.server.visited if relay.server.state(key).visits}
    assert set(caught.value.updated) == changed
    # where updates run beside, one of them may still wait
    assert changed <= {"p2/c", "p3/c"}
    assert bool(changed) == (update == "eager")
