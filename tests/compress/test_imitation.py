"""Candidates imitate the original layer of their position, on the inputs that it has in the original network."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Architecture, Candidate, Groups, LayerPool, ParamServer, Position, Relay, TensorSpec, skip
from l2l_nas.compress.imitation import BlockDistillation, BlockSettings
from l2l_nas.errors import SettingError, SpaceError
from l2l_nas.layers.least_squares import once
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.schedule import Cosine

WIDTH, SEED = 6, 2


class Mlp(nn.Module):
    """A residual block, which begins as the first units of a wider one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))

    def begin_as(self, original, inputs):
        width = len(self.up.weight)
        self.up.weight.copy_(original.up.weight[:width])
        self.up.bias.copy_(original.up.bias[:width])
        self.down.weight.copy_(original.down.weight[:, :width])
        self.down.bias.copy_(original.down.bias)


class Plain(nn.Module):
    """Another kind of layer, with one parameter of the name and shape of the original's."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(x)


def pool(depth=3):
    blocks = [
        Candidate("whole", partial(Mlp, 16)),
        Candidate("half", partial(Mlp, 8)),
        Candidate("linear", Plain),
        skip(),
    ]
    return LayerPool(
        [
            Position("stem", Candidate("linear", partial(nn.Linear, WIDTH, WIDTH))),
            *(Position(f"block_{index}", blocks) for index in range(depth)),
            Position("head", Candidate("linear", partial(nn.Linear, WIDTH, 2))),
        ],
        inputs=TensorSpec((WIDTH,)),
    )


ORIGINAL = Architecture(("linear", "whole", "whole", "whole", "linear"))
INPUTS = (torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(0)),)


def distillation(server=None, **settings):
    server = server or ParamServer(pool(), optimizer=AdamW(), seed=SEED)
    given = {"steps": 30, "learning_rate": 0.01, "batch_size": 8, "micro_batch": 4, **settings}
    return BlockDistillation(
        server, ORIGINAL, partial(Relay, device="cpu", seed=SEED), BlockSettings(**given), seed=SEED
    )


def weights(server, key):
    return {name: value.clone() for name, value in server.state(key).parameters().items()}


def plain(server, index, name):
    """The candidate of a block trained by a plain loop, and the error that it comes to."""
    modules = {layer.key: server.build_module(layer, {}) for layer in server.pool.layers if not layer.candidate.is_skip}
    with torch.no_grad():
        x = modules["stem/linear"](INPUTS[0])
        for before in range(index):
            x = torch.cat([modules[f"block_{before}/whole"](part) for part in x.split(4)])
        y = torch.cat([modules[f"block_{index}/whole"](part) for part in x.split(4)])
        module = modules[f"block_{index}/{name}"]
        if name == "half":
            module.begin_as(modules[f"block_{index}/whole"], None)
        else:  # what has the name and the shape of one of the original's
            module.down.bias.copy_(modules[f"block_{index}/whole"].down.bias)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True, **vars(server.optimizer))
    schedule, generator = Cosine(0.01, steps=30), torch.Generator().manual_seed(SEED + index + 1)
    scale = float(y.double().square().mean())
    for step in range(30):
        rows = torch.randperm(24, generator=generator)[:8]
        for inputs, targets in zip(x[rows].split(4), y[rows].split(4), strict=True):
            ((module(inputs) - targets).square().flatten(1).mean(dim=1).sum() / scale / 8).backward()
        optimizer.param_groups[0]["lr"] = schedule.at(step)
        optimizer.step()
        optimizer.zero_grad()
    return module


@pytest.mark.slow
@pytest.mark.parametrize(("index", "name"), [(0, "half"), (2, "half"), (1, "linear")])
def test_a_candidate_trains_as_a_plain_loop_on_the_originals_values_does(index, name):
    expected = plain(ParamServer(pool(), optimizer=AdamW(), seed=SEED), index, name)
    running = distillation()
    dict(running.run(INPUTS))
    found = weights(running.server, f"block_{index}/{name}")
    for key, value in expected.named_parameters():
        assert torch.equal(found[key], value), key


@pytest.mark.slow
def test_originals_stay_as_they_are_and_errors_fall():
    running = distillation()
    before = {key: weights(running.server, key) for key in ("stem/linear", "block_1/whole", "head/linear")}
    errors = dict(running.run(INPUTS))
    for key, values in before.items():
        assert all(torch.equal(values[name], value) for name, value in weights(running.server, key).items())
    assert [errors[f"block_{index}/whole"] for index in range(3)] == [0.0] * 3
    untrained = dict(distillation(steps=0).run(INPUTS))
    for index in range(3):
        assert 0 < errors[f"block_{index}/half"] < untrained[f"block_{index}/half"] < untrained[f"block_{index}/skip"]
    assert list(errors) == [
        f"{position.name}/{candidate.name}" for position in pool().positions for candidate in position.candidates
    ]


@pytest.mark.slow
def test_what_is_done_is_not_done_again_and_the_rest_comes_to_the_same():
    whole = distillation()
    errors = dict(whole.run(INPUTS))
    cut = distillation()
    done = {}
    for key, error in cut.run(INPUTS):
        done[key] = error
        if key == "block_1/half":
            break
    again = dict(distillation(cut.server).run(INPUTS, done=done))
    assert {**done, **again} == errors
    assert not set(done) & set(again)
    for key in ("block_1/half", "block_1/linear", "block_2/half"):
        assert all(torch.equal(v, weights(cut.server, key)[n]) for n, v in weights(whole.server, key).items())


@pytest.mark.slow
@pytest.mark.parametrize(("left", "positions"), [([], 0), (["block_1/half", "stem/linear"], 3), (["head/linear"], 4)])
def test_nothing_runs_behind_the_last_position_with_anything_left(left, positions):
    running, made = distillation(), []
    done = dict(running.run(INPUTS))
    again = distillation(running.server)
    again.relay_of = lambda server: made.append(server) or Relay(server, device="cpu", seed=SEED)
    found = dict(again.run(INPUTS, done={key: error for key, error in done.items() if key not in left}))
    assert found == {key: done[key] for key in left}
    assert len(made) == positions


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [0, 1, 17, 29, 30, 31, 45])
def test_a_candidate_that_was_interrupted_comes_to_the_same(stop_after):
    whole, cut = distillation(), distillation()
    errors, done, polls = dict(whole.run(INPUTS)), {}, iter(range(stop_after))

    def after_step(key, samples):
        if next(polls, None) is None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        done.update(cut.run(INPUTS, after_step=after_step))
    again = dict(distillation(cut.server).run(INPUTS, done=done))
    assert {**done, **again} == errors
    for key in whole.server.visited:
        found, expected = cut.server.state(key).tensors(), whole.server.state(key).tensors()
        assert all(torch.equal(found[name], value) for name, value in expected.items()), key


def test_a_network_of_trained_blocks_runs_in_the_whole_pool():
    running = distillation()
    dict(running.run(INPUTS))
    relay = Relay(running.server, device="cpu", seed=SEED)
    outputs = {
        name: relay.predict(Architecture(("linear", name, "whole", name, "linear")), INPUTS, micro_batch=8)[0]
        for name in ("whole", "half", "skip")
    }
    assert (outputs["half"] - outputs["whole"]).norm() < (outputs["skip"] - outputs["whole"]).norm()


def test_first_weights_see_no_sample_that_is_held_out(monkeypatch):
    seen = []

    def begin_as(self, original, inputs):
        assert not self.training
        assert not original.training
        seen.append(inputs[0].shape)

    monkeypatch.setattr(Mlp, "begin_as", begin_as)
    dict(distillation(steps=0).run(INPUTS))
    assert seen == [(24, WIDTH)] * 3


def test_candidates_of_a_position_share_what_follows_from_its_original(monkeypatch):
    made = []

    def begin_as(self, original, inputs):
        once("sums", (original, *inputs), lambda: made.append(original))

    monkeypatch.setattr(Mlp, "begin_as", begin_as)
    layers = [Candidate(name, partial(Mlp, width)) for name, width in (("whole", 16), ("half", 8), ("less", 4))]
    blocks = LayerPool([Position(f"block_{index}", layers) for index in range(2)], inputs=TensorSpec((WIDTH,)))
    server = ParamServer(blocks, optimizer=AdamW(), seed=SEED)
    running = BlockDistillation(server, Architecture(("whole",) * 2), partial(Relay, device="cpu"), BlockSettings(0))
    dict(running.run(INPUTS))
    assert len(made) == len(set(map(id, made))) == 2


def test_what_cannot_be_taken_apart_is_refused():
    layers = [Candidate("a", partial(Mlp, 4)), skip()]
    for given, original, words in (
        (LayerPool.repeated(layers, depth=2, inputs=TensorSpec((WIDTH,))), ("a", "a"), "this pool shares them"),
        (
            LayerPool([Position("one", layers)], inputs=TensorSpec((WIDTH,))),
            ("skip",),
            "its candidates have nothing",
        ),
    ):
        check_shapes(given)
        with pytest.raises(SpaceError, match=words):
            BlockDistillation(ParamServer(given, optimizer=AdamW(), seed=0), Architecture(original), Relay)
    with pytest.raises(SettingError, match="leave out groups of the optimizer"):
        distillation(ParamServer(pool(), optimizer=Groups(AdamW(), []), seed=0))
    tied = [
        Candidate("b", partial(nn.Linear, WIDTH, WIDTH), tied={"weight": "w"}),
        Candidate("c", partial(Tied), tied={"weight": "w"}),
    ]
    server = ParamServer(LayerPool([Position("one", tied)], inputs=TensorSpec((WIDTH,))), optimizer=AdamW(), seed=0)
    with pytest.raises(SpaceError, match="shares 'tied/w' with the original, which its training would change"):
        dict(BlockDistillation(server, Architecture(("b",)), partial(Relay, device="cpu")).run(INPUTS))


class Tied(nn.Linear):
    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, bias=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": -1}, "steps must be at least 0"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings, words):
    with pytest.raises(SettingError, match=words):
        BlockSettings(**settings)
