"""Mixed precision: the device copy is round(master), and training equals a plain loop's, bit for bit."""

from __future__ import annotations

import copy
from contextlib import closing
from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import (
    AdamW,
    Candidate,
    LayerPool,
    ParamServer,
    Position,
    ReferenceTrainer,
    Relay,
    TensorSpec,
    UniformPaths,
    convert,
)
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.scale import Clip, LossScale
from l2l_nas.errors import NonFiniteError, SettingError
from tests.equivalence.mixed import Mixed
from tests.relay.steps import PATH, chain_pool, is_same, relay_of, tensors, train
from tests.relay.stress import AHEAD, CHECKED, ORDERS, Stress, relay_under
from tests.toys import NextToken, SquaredError, dense_pool, language_pool, mixer_pool, random_data

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
POOLS = {"dense": dense_pool(), "language": language_pool(), "mixers": mixer_pool(documents=False)}


def assert_wire_is_rounded(server, dtype, keys=None):
    """The copy that crosses the link is the master rounded, BatchNorm's as it is."""
    for key in server.visited if keys is None else keys:
        state = server.state(key)
        assert state.wire is not None, key
        fixed = [entry.is_fixed for entry in server.layout(key).parameters]
        wire = server.layout(key).as_wire(dtype)
        for entry, master, is_fixed in zip(wire.parameters, state.parameters().values(), fixed, strict=True):
            own = entry.view(state.wire)
            assert own.dtype == (torch.float32 if is_fixed else dtype), f"{key} {entry.name}"
            assert torch.equal(own, master.to(own.dtype)), f"{key} {entry.name}"


def assert_slots_are_rounded(relay, choices):
    """What stands in the slots after a prediction is the master rounded."""
    pool = relay.pool
    layers = pool.path(pool.architecture(choices))
    relay.predict(pool.architecture(choices), random_data(pool, 2, seed=0)[0], micro_batch=2)
    found = 0
    for layer in layers:
        masters = relay.server.state(layer.key).parameters()
        for slot in range(len(relay.bank.slots)):
            relay.bank.build(layer, slot)  # in slots that the path did not need
            named = dict(relay.bank.template(layer, slot).module.named_parameters())
            same = [torch.equal(named[name].cpu(), value.to(named[name].dtype)) for name, value in masters.items()]
            found += bool(same) and all(same)
    assert found >= min(len(layers), len(relay.bank.slots))


def compared(name, precision, *, clip=None, scale=None, interval=2000, steps=8, optimizer=None, **options):
    """Losses and masters of a relay and of the plain loop."""
    pool, dtype = POOLS[name], DTYPES[precision]
    servers = [ParamServer(pool, optimizer=optimizer or AdamW(), seed=3) for _ in range(2)]
    if scale is not None:
        servers[0].gradients.loss_scale = LossScale(scale, interval)
    relay = relay_under(servers[0], device="cpu", seed=3, precision=precision, clip=clip and Clip(clip), **options)
    plain = Mixed(servers[1], dtype, seed=3, scale=scale, interval=interval, clip=clip)
    sampler = UniformPaths(pool, seed=1)
    objective = NextToken() if name == "language" else SquaredError()
    skipped = []
    for step in range(steps):
        inputs, targets = random_data(pool, 5 + step % 3, seed=step)
        given = {"objective": objective, "micro_batch": 2, "lr": 0.02, "step": step}
        result = relay.train_step(sampler.path_at(step), inputs, targets, upcoming=sampler.path_at(step + 1), **given)
        assert result.loss == plain.step(sampler.path_at(step), inputs, targets, **given), f"step {step}"
        assert result.is_skipped == plain.is_skipped
        skipped.append(result.is_skipped)
    for (key, parameter), master in plain.masters.items():
        assert torch.equal(servers[0].state(key).parameters()[parameter], master), f"{key} {parameter}"
    for (_, key), module in plain.modules.items():
        if name == "dense":
            for buffer, value in servers[0].state(key).named_buffers().items():
                assert torch.equal(value, module.get_buffer(buffer).to(value.dtype)), f"{key} {buffer}"
    loaded = [key for key in servers[0].visited if servers[0].state(key).wire is not None]
    crossed = {key for _, key in plain.modules if key not in (relay._device_states or ())}  # others live on the device
    assert crossed <= set(loaded)
    assert_wire_is_rounded(servers[0], dtype, loaded)
    relay.close()
    return skipped, servers[0].gradients.loss_scale, plain


@pytest.mark.parametrize("update", ORDERS)
@pytest.mark.parametrize("name", POOLS)
def test_bf16_equals_plain_mixed_precision_bit_for_bit(name, update):
    compared(name, "bf16", update=update, lanes="threads", stress=Stress(1, 0.0003))


@pytest.mark.parametrize("options", [{"stash": "host"}, {"keep": 3}, {"device_budget": "all"}, {"slots": 4}], ids=str)
def test_bf16_equals_plain_mixed_precision_wherever_things_stay(options):
    compared("dense", "bf16", lanes="threads", stress=Stress(1, 0.0003), **options)


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("precision", DTYPES)
def test_clipping_by_the_global_norm_equals_torch_s_in_low_precision(precision, name):
    compared(name, precision, clip=0.1, update="exact", scale=1024.0 if precision == "fp16" else None)


@pytest.mark.parametrize("update", [CHECKED, AHEAD])
@pytest.mark.parametrize("name", POOLS)
def test_fp16_with_a_loss_scale_equals_a_plain_loop_by_the_same_rules(name, update):
    skipped, scale, plain = compared(
        name, "fp16", scale=2.0**21, interval=3, steps=14, update=update, lanes="threads"
    )  # fmt: skip
    assert any(skipped)
    assert not all(skipped)
    assert (scale.scale, scale.good_steps) == (plain.scale, plain.good)


@pytest.mark.parametrize("update", [CHECKED, AHEAD])
def test_a_step_that_overflows_changes_nothing_but_buffers_and_halves_the_scale(update):
    relay = relay_of(dense_pool(), precision="fp16", update=update)
    train(relay, PATH)
    before = tensors(relay.server)
    relay.server.gradients.loss_scale = LossScale(2.0**40)
    result = train(relay, PATH, step=1, upcoming=PATH)
    assert result.is_skipped
    assert result.gradient_norm == float("inf")
    assert relay.server.gradients.loss_scale == LossScale(2.0**39)
    after = tensors(relay.server)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(name.startswith("buffers.") for _, name in changed)
    assert relay.server.gradients.waiting == {}


@pytest.mark.parametrize("update", [CHECKED, AHEAD])
def test_after_a_step_that_overflows_training_goes_on_as_without_it(update):
    relay, other = (relay_of(dense_pool(), precision="fp16", update=update) for _ in range(2))
    for one in (relay, other):
        train(one, ["dense", "dense", "twice", "partial", "linear"], upcoming=PATH)
    path = ["dense", "dense", "twice", "partial", "linear"]  # no buffers: those of a skipped step are kept
    relay.server.gradients.loss_scale = LossScale(2.0**40)
    assert train(relay, path, step=1, upcoming=path).is_skipped
    relay.server.gradients.loss_scale = LossScale()
    for step in (2, 3):
        assert train(relay, path, step=step, upcoming=path) == train(other, path, step=step)
    assert is_same(relay.server, tensors(other.server))


def test_the_scale_grows_after_good_steps():
    relay = relay_of(dense_pool(), precision="fp16", update="exact")
    relay.server.gradients.loss_scale = LossScale(4.0, interval=3)
    scales = []
    for step in range(7):
        train(relay, PATH, step=step)
        scales.append(relay.server.gradients.loss_scale.scale)
    assert scales == [4.0, 4.0, 8.0, 8.0, 8.0, 16.0, 16.0]


class Steep(SquaredError):
    """Its gradient overflows in any scale; its loss does not."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * 1e30


def test_an_overflow_in_the_lowest_scale_is_an_error_that_names_the_layer():
    relay = relay_of(dense_pool(), precision="fp16", update="exact")
    relay.server.gradients.loss_scale = LossScale(2.0)
    before = relay.server.state("head/mlp").weights.clone()
    assert train(relay, PATH, objective=Steep()).is_skipped
    assert relay.server.gradients.loss_scale.scale == 1.0
    with pytest.raises(NonFiniteError, match="gradient of layer 'head/mlp' is not finite at step 1"):
        train(relay, PATH, step=1, objective=Steep())
    assert relay.server.gradients.waiting == {}
    assert torch.equal(relay.server.state("head/mlp").weights, before)
    assert not train(relay, PATH, step=2).is_skipped


def test_settings_that_cannot_work_together_are_refused_with_what_to_do():
    with pytest.raises(SettingError, match=r"fp16.*use update=exact"):
        relay_of(dense_pool(), precision="fp16", update="eager")
    with pytest.raises(SettingError, match=r"eager updates cannot wait for the norm.*update=exact, or clip per layer"):
        relay_of(dense_pool(), clip=Clip(1.0))
    with pytest.raises(SettingError, match=r"precision.*did you mean 'bf16'"):
        relay_of(dense_pool(), precision="bf61")


class Floats(nn.Linear):
    """Gives float32, whatever it takes."""

    def forward(self, x):
        return super().forward(x).float()


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_outputs_in_float32_are_rounded_on_their_way_to_the_next_layer(keep):
    pool = chain_pool(partial(Floats, 6, 6), partial(nn.Linear, 6, 6), partial(Floats, 6, 2))
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu", precision="bf16", keep=keep)
    plain = Mixed(ParamServer(pool, optimizer=AdamW(), seed=0), torch.bfloat16)
    inputs, targets = random_data(pool, 5, seed=0)
    architecture = pool.architecture(["c"] * 3)
    for step in range(3):
        given = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1, "step": step}
        loss = relay.train_step(architecture, inputs, targets, **given).loss
        assert loss == plain.step(architecture, inputs, targets, **given)
    output = relay.predict(architecture, inputs, micro_batch=5)[0]
    values = inputs[0].bfloat16()
    for layer in pool.path(architecture):
        values = plain._module(layer)(values).bfloat16()
    assert torch.equal(output, values.detach().float())
    relay.recalibrate(architecture, [inputs])


class Shifted(nn.Module):
    """Takes a float and an integer side input beside its own."""

    def __init__(self):
        super().__init__()
        self.linear, self.table = nn.Linear(6, 6), nn.Embedding(4, 6)

    def forward(self, x, weight, number):
        return self.linear(x) * weight[:, None, None] + self.table(number)[:, None, :], weight, number


class Last(nn.Linear):
    """A head that drops the side inputs."""

    def forward(self, x, weight, number):
        return super().forward(x)


def test_integers_cross_as_they_are_and_floats_are_rounded():
    inputs = (TensorSpec((3, 6)), TensorSpec(()), TensorSpec((), torch.int64))
    pool = LayerPool(
        [
            *(Position(f"p{i}", [Candidate("c", Shifted)]) for i in range(3)),
            Position("head", [Candidate("c", partial(Last, 6, 2))]),
        ],
        inputs=inputs,
    )
    generator = torch.Generator().manual_seed(0)
    batch = (
        torch.randn(5, 3, 6, generator=generator),
        torch.rand(5, generator=generator),
        torch.randint(0, 4, (5,), generator=generator),
    )
    targets = torch.randn(5, 3, 2, generator=generator)
    relay = relay_of(pool, precision="bf16", stash="host", lanes="threads")
    plain = Mixed(ParamServer(pool, optimizer=AdamW(), seed=0), torch.bfloat16)
    architecture = pool.architecture(["c"] * 4)
    for step in range(3):
        given = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1, "step": step}
        loss = relay.train_step(architecture, batch, targets, **given).loss
        assert loss == plain.step(architecture, batch, targets, **given)


@pytest.mark.parametrize("precision", DTYPES)
def test_the_copy_that_crosses_stays_rounded_through_checkpoint_fork_use_and_write_back(precision, tmp_path):
    pool, dtype = dense_pool(), DTYPES[precision]
    relay = relay_of(pool, precision=precision, update="exact")
    for step in range(3):
        train(relay, PATH, step=step, upcoming=PATH)
    keys = [layer.key for layer in pool.path(pool.architecture(PATH))]
    assert_wire_is_rounded(relay.server, dtype, keys)
    Checkpoint(tmp_path).save(relay.server, extra={})
    saved = tensors(relay.server)
    first = relay.server
    relay.use(first.fork(keys))
    train(relay, PATH, step=3)
    assert_wire_is_rounded(relay.server, dtype, keys)
    assert_slots_are_rounded(relay, PATH)
    relay.use(first)
    assert is_same(first, saved)
    train(relay, PATH, step=4, upcoming=PATH)
    assert_slots_are_rounded(relay, PATH)
    Checkpoint(tmp_path).load(first)
    assert is_same(first, saved)
    assert_slots_are_rounded(relay, PATH)
    assert_wire_is_rounded(first, dtype, keys)
    resident = ReferenceTrainer(first, device="cpu")
    train(resident, PATH, step=5)
    resident.write_back()
    assert_wire_is_rounded(first, dtype, keys)
    assert_slots_are_rounded(relay, PATH)


def test_a_server_serves_relays_of_every_precision_one_after_the_other():
    pool = dense_pool()
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relays = [
        Relay(server, device="cpu", precision=precision, update="exact") for precision in ("fp16", "fp32", "bf16")
    ]
    for step in range(9):
        relay = relays[step % 3]
        result = train(relay, PATH, step=step, upcoming=PATH)
        assert 0.01 < result.gradient_norm < 100  # no other relay's loss scale is in it
        assert_slots_are_rounded(relay, PATH)


def test_a_relay_without_a_loss_scale_leaves_the_server_s_alone():
    norms = []
    for scale in (None, LossScale(1024.0)):
        relay = relay_of(dense_pool(), update="exact")
        relay.server.gradients.loss_scale = scale
        norms.append(train(relay, PATH).gradient_norm)
    assert norms[0] == norms[1]
    assert scale == LossScale(1024.0)


class Overflowing(SquaredError):
    """Its loss is infinite."""

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) * float("inf")


@pytest.mark.parametrize("update", [CHECKED, AHEAD])
def test_a_layer_loaded_ahead_of_a_skipped_step_s_end_does_not_keep_its_buffers(update):
    choices = ["running", "dense", "running", "partial", "mlp"]
    found = []
    for upcoming in (choices, None):
        relay = relay_of(dense_pool(), precision="fp16", update=update)
        train(relay, choices, step=0, upcoming=upcoming)
        assert train(relay, choices, step=1, objective=Overflowing(), upcoming=upcoming).is_skipped
        found.append((train(relay, choices, step=2).loss, tensors(relay.server)))
    assert found[0][0] == found[1][0]
    assert is_same_tensors(found[0][1], found[1][1])


def is_same_tensors(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class Angles(nn.Module):
    """A table of rates that bf16 would round, as rotary positions have one, beside one that is rounded on request."""

    round_dtype = ("scale",)

    def __init__(self):
        super().__init__()
        self.register_buffer("rates", torch.linspace(1, 1.003, 6))
        self.register_buffer("scale", torch.linspace(1, 1.003, 6))

    def forward(self, x):
        return (torch.arange(x.shape[1], device=x.device)[:, None] * 500.0 * self.rates).sin().to(x.dtype) * self.scale


class Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, angles):
        return x + self.linear(x) * angles


class Turning(nn.Module):
    """Blocks that take what a table gives, with BatchNorm behind them."""

    def __init__(self):
        super().__init__()
        self.angles = Angles()
        self.blocks = nn.ModuleList([Turned(), Turned()])
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        angles = self.angles(x)
        for block in self.blocks:
            x = block(x, angles)
        return self.norm(x)


@pytest.mark.parametrize("asked", [(), ("rates",)])
def test_a_converted_model_keeps_its_tables_as_they_were_made(asked):
    torch.manual_seed(0)
    model, x = Turning(), torch.randn(3, 4, 6)
    model.norm.running_var.fill_(1.001)
    model.angles.keep_dtype = asked  # says what is so anyway, and does no harm
    pool = convert(model, x, blocks="blocks")
    plain = copy.deepcopy(model).eval()
    plain.blocks.bfloat16()
    plain.angles.scale = plain.angles.scale.bfloat16()
    with closing(Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", precision="bf16")) as relay:
        (found,) = relay.predict(pool.original, (x,), micro_batch=3)
    assert torch.equal(found, plain(x.bfloat16()).float())
