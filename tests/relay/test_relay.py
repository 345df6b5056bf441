"""The relay: evaluation, recalibration, refusals, and layers of unusual habits."""

from __future__ import annotations

import copy
import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Candidate, Group, Groups, LayerPool, ParamServer, Position, Relay, TensorSpec, convert
from l2l_nas.errors import DataError, NonFiniteError, SettingError, SpaceError
from l2l_nas.relay.plan import UpdateOrder
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.stress import Stress
from tests.equivalence.plain import Plain
from tests.toys import Frozen, NextToken, SquaredError, dense_pool, language_pool, random_data, repeated_pool

PATH = ["normed", "dense", "normed", "partial", "mlp"]


def relay_of(pool, **options):
    return Relay(ParamServer(pool, optimizer=AdamW(), seed=0), **{"device": "cpu"} | options)


def train(relay, choices, *, step=0, batch=5, micro_batch=2, objective=None, lr=0.1):
    inputs, targets = random_data(relay.server.pool, batch, seed=step)
    return relay.train_step(
        relay.server.pool.architecture(choices), inputs, targets,
        objective=objective or SquaredError(), micro_batch=micro_batch, lr=lr, step=step,
    )  # fmt: skip


def tensors(server):
    return {
        (key, name): tensor.clone() for key in server.visited for name, tensor in server.state(key).tensors().items()
    }


def assert_same(server, before):
    assert all(torch.equal(tensor, before[name]) for name, tensor in tensors(server).items() if name in before)


def modules_of(server, choices):
    """Plain modules with a server's weights and buffers."""
    plain = Plain(server, seed=0)
    return [plain.module(layer) for layer in server.pool.path(server.pool.architecture(choices))]


def chain_pool(*factories):
    return LayerPool(
        [Position(f"p{index}", [Candidate("c", factory)]) for index, factory in enumerate(factories)],
        inputs=TensorSpec((3, 6)),
    )


def assert_trains_as_plain(pool):
    """A few steps equal the naive loop's, losses and weights."""
    relay = relay_of(pool)
    plain = Plain(ParamServer(pool, optimizer=AdamW(), seed=0), seed=0)
    architecture = pool.architecture(["c"] * len(pool))
    for step in range(3):
        inputs, targets = random_data(pool, 5, seed=step)
        options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.01, "step": step}
        loss = relay.train_step(architecture, inputs, targets, **options).loss
        assert loss == plain.step(architecture, inputs, targets, **options)
    for key, module in plain.modules.items():
        for name, value in relay.server.state(key).parameters().items():
            assert torch.equal(value, module.get_parameter(name)), f"{key} {name}"


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_predict_equals_plain_modules_in_evaluation_mode(slots):
    relay = relay_of(dense_pool(), slots=slots)
    train(relay, PATH)
    inputs, _ = random_data(dense_pool(), 7, seed=1)
    modules = modules_of(relay.server, PATH)
    before = tensors(relay.server)
    outputs = relay.predict(relay.server.pool.architecture(PATH), inputs, micro_batch=3)
    with torch.no_grad():
        parts = [nn.Sequential(*modules).eval()(part) for part in inputs[0].split(3)]
    assert torch.equal(outputs[0], torch.cat(parts))
    assert_same(relay.server, before)


@pytest.mark.parametrize("pool", [dense_pool(), repeated_pool()], ids=["own", "repeated"])
def test_recalibrate_equals_plain_cumulative_averages(pool):
    path = PATH if len(pool) == 5 and not pool.shared else ["normed", "dense", "normed", "skip", "head"]
    relay = relay_of(pool)
    for step in range(3):
        train(relay, path, step=step)
    batches = [random_data(pool, size, seed=size)[0] for size in (4, 6, 3)]
    modules = modules_of(relay.server, path)
    for norm in {part for module in modules for part in module.eval().modules() if isinstance(part, nn.BatchNorm1d)}:
        norm.reset_running_stats()
        norm.momentum = None
        norm.train()
    with torch.no_grad():
        for batch in batches:
            nn.Sequential(*modules)(*batch)
    before = tensors(relay.server)
    relay.recalibrate(pool.architecture(path), batches)
    for layer, module in zip(pool.path(pool.architecture(path)), modules, strict=True):
        for name, value in relay.server.state(layer.key).named_buffers().items():
            assert torch.allclose(value, module.get_buffer(name), atol=1e-6), f"{layer.key} {name}"
            assert not torch.equal(value, before[layer.key, f"buffers.{name}"])
    assert_same(relay.server, {name: t for name, t in before.items() if not name[1].startswith("buffers")})
    momenta = {m.momentum for t in relay.bank._templates.values() for m in t.module.modules() if hasattr(m, "momentum")}
    assert momenta == {0.1}


def test_a_recalibration_within_a_budget_measures_the_same():
    found = []
    batches = [random_data(dense_pool(), size, seed=size)[0] for size in (4, 6, 3, 5)]
    for tight in (False, True):
        relay = relay_of(dense_pool())
        train(relay, PATH, step=0)
        if tight:
            relay._wanted.budget = relay.bank.num_bytes + 12 * relay.sample_bytes
        passes, real = [], relay._evaluation.recalibrate
        relay._evaluation.recalibrate = lambda server, path, some, started, passes=passes, real=real: (
            passes.append(len(some)),
            real(server, path, some, started),
        )
        relay.recalibrate(dense_pool().architecture(PATH), batches)
        assert passes == ([2, 2] if tight else [4])
        found.append(tensors(relay.server))
    assert all(torch.equal(value, found[1][name]) for name, value in found[0].items())


def test_recalibrate_needs_a_batch():
    with pytest.raises(DataError, match="at least one batch"):
        relay_of(dense_pool()).recalibrate(dense_pool().architecture(PATH), [])


class NotANumber(SquaredError):
    """A loss that is not finite."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) / 0


@pytest.mark.parametrize("update", ["eager", UpdateOrder.CHECKED, UpdateOrder.AHEAD])
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


def test_a_step_within_no_grad_trains_as_one_without():
    with_gradients, without = relay_of(dense_pool()), relay_of(dense_pool())
    expected = [train(with_gradients, PATH, step=step).loss for step in range(3)]
    with torch.no_grad():
        assert [train(without, PATH, step=step).loss for step in range(3)] == expected
        without.drain()
        assert not torch.is_grad_enabled()
    with_gradients.drain()
    assert_same(without.server, tensors(with_gradients.server))


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


def test_autocast_that_keeps_nothing_trains_as_plain():
    pool = chain_pool(*[partial(nn.Linear, 6, 6)] * 6, partial(nn.Linear, 6, 2))
    around = partial(torch.autocast, dtype=torch.bfloat16, cache_enabled=False)
    # the plain loop computes on the host
    with around(relay_of(pool).device.torch_device.type), around("cpu"):
        assert_trains_as_plain(pool)


@pytest.mark.parametrize("lr", [np.float32(0.1), np.float64(0.1), 1])
def test_a_rate_may_be_a_number_of_numpy(lr):
    found, plain = relay_of(dense_pool()), relay_of(dense_pool())
    assert train(found, PATH, lr=lr).loss == train(plain, PATH, lr=float(lr)).loss
    found.drain()
    plain.drain()
    assert_same(found.server, tensors(plain.server))


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -0.1, "0.1", True, None])
@pytest.mark.parametrize("kind", [Relay, ReferenceTrainer])
def test_what_is_no_learning_rate_is_refused(kind, lr):
    executor = kind(ParamServer(dense_pool(), optimizer=AdamW(), seed=0))
    with pytest.raises(SettingError, match="lr must be a number of at least 0, got"):
        train(executor, PATH, lr=lr)


@pytest.mark.parametrize("micro_batch", [0, -1])
def test_a_micro_batch_below_one_is_refused(micro_batch):
    with pytest.raises(SettingError, match="micro-batch"):
        train(relay_of(dense_pool()), PATH, micro_batch=micro_batch)


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


@pytest.mark.parametrize("options", [{"slots": 0}, {"update": "soon"}, {"device": "abacus"}], ids=str)
def test_settings_that_make_no_sense_are_refused(options):
    with pytest.raises(SettingError):
        Relay(ParamServer(dense_pool(), optimizer=AdamW(), seed=0), **({"device": "cpu"} | options))


def test_a_training_step_leaves_the_user_s_random_numbers_alone():
    relay = relay_of(dense_pool())
    torch.manual_seed(4)
    expected = torch.rand(3)
    torch.manual_seed(4)
    train(relay, PATH)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.slow
def test_the_number_of_slots_and_the_update_policy_do_not_change_the_result():
    results = []
    for slots in (1, 2, 5):
        for update in ("eager", "exact"):
            relay = relay_of(dense_pool(), slots=slots, update=update)
            results.append(([train(relay, PATH, step=step).loss for step in range(3)], tensors(relay.server)))
    for losses, weights in results[1:]:
        assert losses == results[0][0]
        assert all(torch.equal(weights[name], value) for name, value in results[0][1].items())


def test_a_mask_passes_through_every_layer_unchanged():
    pool = language_pool()
    relay = relay_of(pool)
    architecture = pool.architecture(["embed", "attention", "feed", "skip", "head"])
    inputs, _ = random_data(pool, 4, seed=0)
    hidden = inputs[0].clone()
    hidden[~inputs[1]] = 0  # what is masked is not looked at by the others
    one, other = (relay.predict(architecture, (tokens, inputs[1]), micro_batch=2)[0] for tokens in (inputs[0], hidden))
    assert torch.equal(one[inputs[1]], other[inputs[1]])
    assert not torch.equal(one, other)


class Recurrent(nn.Module):
    """An LSTM, which keeps lists of its own weights."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(6, 6, num_layers=2, batch_first=True, dropout=0.2)

    def forward(self, x):
        return self.lstm(x)[0]


def test_an_lstm_trains_as_plain():
    # under no_grad torch would run it by another kernel, which differs in the last bit
    pool = chain_pool(Recurrent, partial(nn.Linear, 6, 6), Recurrent, partial(nn.Linear, 6, 2))
    assert_trains_as_plain(pool)


class Reversed(nn.Module):
    """A view of its input."""

    def forward(self, x):
        return x.transpose(1, 2).transpose(1, 2)


def test_layers_that_return_a_view_of_their_input_train_as_plain():
    assert_trains_as_plain(chain_pool(Reversed, partial(nn.Linear, 6, 2), Reversed))
    assert_trains_as_plain(chain_pool(nn.Identity, partial(nn.Linear, 6, 2), nn.Identity))


def test_frozen_layers_below_between_and_above_train_as_plain():
    linear = partial(nn.Linear, 6, 6)
    head = partial(nn.Linear, 6, 2)
    for chain in ((partial(Frozen, 6), head), (linear, partial(Frozen, 6), head), (head, _frozen_head)):
        pool = chain_pool(*chain)
        assert_trains_as_plain(pool)
        relay = relay_of(pool)
        train(relay, ["c"] * len(pool))
        for key in relay.server.visited:
            first = ParamServer(pool, optimizer=AdamW(), seed=0).state(key)
            assert torch.equal(relay.server.state(key).weights, first.weights) == (
                not any(entry.trainable for entry in first.layout.parameters)
            )


def _frozen_head():
    return nn.Linear(2, 2).requires_grad_(False)


def test_a_path_where_everything_is_frozen_has_a_loss_and_changes_nothing():
    pool = chain_pool(partial(Frozen, 6), partial(Frozen, 6), lambda: nn.Linear(6, 2).requires_grad_(False))
    relay = relay_of(pool)
    first = train(relay, ["c"] * 3, step=0)
    before = tensors(relay.server)
    assert train(relay, ["c"] * 3, step=0) == first
    assert_same(relay.server, before)


class WithMask(nn.Module):
    """Gives out a view of its own buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.tensor([1.0, 0.0, 1.0]))

    def forward(self, x):
        return x, self.mask.expand(len(x), 3)


class Scale(nn.Module):
    """Has a buffer of its own, which takes the place of the mask in the slot."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((3,), 7.0))

    def forward(self, x, mask):
        return x * self.scale[None, :, None], mask


class Masked(nn.Module):
    """Uses the mask."""

    def forward(self, x, mask):
        return x * mask[:, :, None]


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


@pytest.mark.parametrize("slots", [1, 2])
def test_an_output_that_is_a_view_of_a_buffer_outlives_its_slot(slots):
    pool = chain_pool(WithMask, Scale, Scale, Masked)
    inputs = (torch.ones(4, 3, 6),)
    output = relay_of(pool, slots=slots).predict(pool.architecture(["c"] * 4), inputs, micro_batch=2)[0]
    assert output[0, :, 0].tolist() == [49.0, 0.0, 49.0]
    assert_trains_as_plain(chain_pool(partial(nn.Linear, 6, 2), WithMask, Scale, Scale, Masked))


def test_the_inputs_are_never_changed():
    relay = relay_of(dense_pool())
    inputs, targets = random_data(dense_pool(), 5, seed=0)
    expected = copy.deepcopy((inputs, targets))
    architecture = dense_pool().architecture(PATH)
    relay.train_step(architecture, inputs, targets, objective=SquaredError(), micro_batch=2, lr=0.1, step=0)
    relay.predict(architecture, inputs, micro_batch=2)
    assert torch.equal(inputs[0], expected[0][0])
    assert torch.equal(targets, expected[1])


def test_a_relay_that_is_dropped_is_gone_at_once():
    """Its slots are the device's memory: they may not wait for the collector of cycles."""
    relay = relay_of(dense_pool())
    train(relay, PATH)
    relay.close()
    slots = [weakref.ref(slot) for slot in relay.bank.slots]
    gc.disable()
    try:
        del relay
        assert all(slot() is None for slot in slots)
    finally:
        gc.enable()


class Owner:
    """Has a pool whose factory is a method of its own, so that every layer leads back to the pool."""

    def __init__(self):
        self.pool = LayerPool([Position("only", [Candidate("linear", self.linear)])], inputs=TensorSpec((4,)))

    def linear(self):
        return nn.Linear(4, 4)


def _owned():
    return Owner().pool


def _converted():
    return convert(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4), blocks="*")


@pytest.mark.parametrize("make", [_owned, _converted])
def test_a_pool_that_was_trained_and_is_forgotten_is_freed(make):
    pool = make()
    optimizer = Groups(AdamW(), [Group("all", lr_scale=0.5)])
    relay = Relay(ParamServer(pool, optimizer=optimizer, seed=0), device="cpu", device_budget=1 << 20)
    targets, objective = torch.zeros(2, 4), SquaredError()
    relay.train_step(pool.original, (torch.ones(2, 4),), targets, objective=objective, micro_batch=1, lr=0.1, step=0)
    relay.close()
    alive = weakref.ref(pool)
    del pool, relay
    gc.collect()
    assert alive() is None


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


def test_weights_in_a_memory_format_that_is_not_kept_are_told_once():
    def convolution():
        return nn.Sequential(nn.Unflatten(1, (3, 1)), nn.Conv2d(3, 3, (1, 3), padding=(0, 1)), nn.Flatten(1, 2))

    def last():
        return convolution().to(memory_format=torch.channels_last)

    relay = relay_of(chain_pool(convolution, last, last, partial(nn.Linear, 6, 2)))
    with pytest.warns(UserWarning, match="'p1/c' are channels_last") as told:
        train(relay, ["c"] * 4)
    train(relay, ["c"] * 4, step=1)
    assert len(told) == 1
