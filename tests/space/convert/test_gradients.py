"""What stops or changes gradients around the blocks of a model, and what keeps parts of it in another mode."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from l2l_nas import SGD, Classification, ParamServer, Relay, convert, plain_module
from l2l_nas.errors import SpaceError
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.training.export import build_network
from tests.space.convert.test_forwards import Chain, X, assert_trains_alike


class WithoutGradients(Chain):
    def forward(self, x):
        h = self.stem(x)
        with torch.no_grad():
            h = self.blocks[0](h)
        return self.head(self.blocks[1](h))


class WithoutGradientsOfOneUse(Chain):
    """What a block takes there, another takes with gradients."""

    def forward(self, x):
        h = self.stem(x)
        with torch.set_grad_enabled(False):
            aside = self.blocks[0](h)
        return self.head(self.blocks[1](h) + aside)


class Detached(Chain):
    def between(self, h):
        return h.detach()


class ByData(Chain):
    def between(self, h):
        return h.data


class DetachedOnce(Chain):
    """Its first block learns by the sum alone."""

    def forward(self, x):
        one = self.blocks[0](self.stem(x))
        return self.head(one + self.blocks[1](one.detach()))


class StraightThrough(Chain):
    def between(self, h):
        return h + (h.round() - h).detach()


class InInference(Chain):
    def between(self, h):
        with torch.inference_mode():
            h = h * 2
        return h.clone()


class Hooked(Chain):
    def between(self, h):
        if h.requires_grad:
            h.register_hook(lambda gradient: 0.1 * gradient)
        return h


class HookedThenViewed(Chain):
    def between(self, h):
        view = h.view_as(h)
        if h.requires_grad:
            h.register_hook(lambda gradient: 0.1 * gradient)
        return view


class BlockHooked(Chain):
    def __init__(self):
        super().__init__()
        self.blocks[0].register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 0.1,))


class Checkpointed(Chain):
    is_reentrant = False

    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=self.is_reentrant)
        return self.head(h)


class CheckpointedBetween(Chain):
    """What is checkpointed holds no block."""

    def __init__(self):
        super().__init__()
        self.mid = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def between(self, h):
        return checkpoint(self.mid, h, use_reentrant=False)


class CheckpointedReentrant(Checkpointed):
    is_reentrant = True


class CallsItselfCheckpointed(nn.Linear):
    """As the layers of `transformers`."""

    def __init__(self):
        super().__init__(4, 4)

    def __call__(self, x):
        return checkpoint(super().__call__, x, use_reentrant=True) if self.training else super().__call__(x)


class ByItself(Chain):
    def __init__(self):
        super().__init__(CallsItselfCheckpointed)

    def forward(self, x):
        h = one = self.blocks[0](self.stem(x))
        return self.head(self.blocks[1](h) + one)


class OtherwiseInEvaluation(Chain):
    def between(self, h):
        return h if self.training else h * 0.5


class Frozen(Chain):
    """Some of what has gradients is frozen."""

    def __init__(self):
        super().__init__()
        for parameter in (*self.stem.parameters(), *self.blocks[1].parameters()):
            parameter.requires_grad_(False)


def norms():
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


class KeptInEvaluation(Chain):
    """A frozen BatchNorm, as detectors have it."""

    def __init__(self):
        super().__init__(norms)

    def train(self, mode=True):
        super().train(mode)
        for module in self.blocks[0].modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


class AlwaysInEvaluation(Chain):
    """Its `train` forgets to return the model, too."""

    def __init__(self):
        super().__init__(norms)

    def train(self, mode=True):
        super().train(False)


class PutIntoEvaluation(Chain):
    def __init__(self):
        super().__init__(norms)

    def forward(self, x):
        h = self.blocks[0].eval()(self.stem(x))
        return self.head(self.blocks[1](h))


KEPT = [
    WithoutGradients,
    WithoutGradientsOfOneUse,
    Detached,
    ByData,
    DetachedOnce,
    StraightThrough,
    InInference,
    Hooked,
    HookedThenViewed,
    BlockHooked,
    Checkpointed,
    CheckpointedReentrant,
    CheckpointedBetween,
    ByItself,
    OtherwiseInEvaluation,
    Frozen,
    KeptInEvaluation,
    AlwaysInEvaluation,
    PutIntoEvaluation,
]


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("kind", KEPT)
def test_a_model_trains_as_it_does_itself_whatever_it_does_with_gradients_and_modes(kind):
    model = kind()
    pool = convert(model, X, blocks="blocks")
    assert_trains_alike(model, pool, (X,))
    model.eval()
    with torch.no_grad():
        assert torch.equal(plain_module(pool, pool.original)(X), model(X))


def test_a_gradient_that_is_scaled_is_scaled_in_the_pool():
    """AdamW would not show it."""
    model = Hooked()
    pool = convert(model, X, blocks="blocks")
    server = ParamServer(pool, optimizer=SGD(momentum=0.0), seed=0)
    relay, targets = Relay(server, device="cpu"), torch.tensor([0, 1, 0])
    relay.train_step(pool.original, (X,), targets, objective=Classification(), micro_batch=3, lr=1.0, step=0)
    relay.drain()
    restored = pool.restore(build_network(server, pool.original))
    nn.functional.cross_entropy(model.train()(X), targets).backward()
    assert torch.equal(restored.stem.weight, model.stem.weight - model.stem.weight.grad)


class Function(torch.autograd.Function):
    """Around a block."""

    @staticmethod
    def forward(ctx, x, block):
        return block(x)

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient, None


class InFunction(Chain):
    def forward(self, x):
        h = self.stem(x)
        for block in self.blocks:
            h = Function.apply(h, block)
        return self.head(h)


class ReentrantWithTwoReaders(Chain):
    def forward(self, x):
        h, total = self.stem(x), 0
        for block in self.blocks:
            h = checkpoint(block, h, use_reentrant=True)
            total = total + h
        return self.head(total)


class CheckpointedTogether(Chain):
    """What lies between two blocks is computed again in the backward."""

    def run(self, h):
        return self.blocks[1](self.blocks[0](h).tanh())

    def forward(self, x):
        return self.head(checkpoint(self.run, self.stem(x), use_reentrant=False))


class HookedLate(Chain):
    def forward(self, x):
        h = self.blocks[0](self.stem(x))
        out = self.head(self.blocks[1](h))
        if h.requires_grad:
            h.register_hook(lambda gradient: 0.1 * gradient)
        return out


class HookedNode(Chain):
    def between(self, h):
        if h.grad_fn is not None:
            h.grad_fn.register_prehook(lambda gradients: (gradients[0] * 0.1,))
        return h


class InAutocast(Chain):
    def forward(self, x):
        h = self.stem(x)
        with torch.autocast("cpu", torch.bfloat16):
            for block in self.blocks:
                h = block(h)
        return self.head(h.float())


class BlockInInference(Chain):
    def forward(self, x):
        with torch.inference_mode():
            h = self.blocks[0](self.stem(x))
        return self.head(self.blocks[1](h.clone()))


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (InFunction, r"the gradient of '.*' is another one .* 'blocks\.0' runs within the autograd function Function"),
        (ReentrantWithTwoReaders, r"is called again in the backward, by torch\.utils\.checkpoint .*; leave that out"),
        (CheckpointedTogether, r"is called again in the backward, by torch\.utils\.checkpoint .*; leave that out"),
        (HookedLate, r"the gradient of '.*' is another one .* a hook \(register_hook\) .* 'blocks\.0'"),
        (HookedNode, "the gradient of '.*' is another one in the parts of the model than in the model"),
        (InAutocast, r"the block 'blocks\.0' runs within torch\.autocast"),
        (BlockInInference, r"made in torch\.inference_mode\(\); write torch\.no_grad\(\)"),
    ],
)
def test_what_no_part_can_keep_is_refused_with_its_cause(kind, says):
    with pytest.raises(SpaceError, match=says) as caught:
        convert(kind(), X, blocks="blocks")
    assert "\n" not in str(caught.value)


class NothingToLearn(Chain):
    def __init__(self):
        super().__init__()
        self.requires_grad_(False)


class NotANumber(Chain):
    """Its gradients are NaN on the example."""

    def between(self, h):
        return h + (h - h).sqrt()


class Integers(Chain):
    def forward(self, x):
        return super().forward(x).argmax(-1)


@pytest.mark.parametrize("kind", [NothingToLearn, NotANumber, Integers])
def test_a_model_without_gradients_to_compare_is_converted(kind):
    model = kind()
    pool = convert(model, X, blocks="blocks")
    assert torch.equal(plain_module(pool, pool.original)(X), model.eval()(X))


@pytest.mark.parametrize("kind", [Hooked, HookedLate, KeptInEvaluation])
def test_converting_leaves_the_model_and_the_random_numbers_as_they_were(kind):
    model = kind()
    model.blocks[1].eval()
    model.stem.weight.grad = torch.ones(4, 4)
    modes = [module.training for module in model.modules()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    drawn = torch.get_rng_state()
    with contextlib.suppress(SpaceError):
        convert(model, X, blocks="blocks")
    assert [module.training for module in model.modules()] == modes
    assert all(map(torch.equal, model.buffers(), buffers))
    assert torch.equal(torch.get_rng_state(), drawn)
    assert [name for name, p in model.named_parameters() if p.grad is not None] == ["stem.weight"]
    assert all(p.requires_grad for p in model.parameters())


class AlwaysDropping(Chain):
    """Draws in evaluation, too."""

    def __init__(self):
        super().__init__(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)))

    def train(self, mode=True):
        super().train(mode)
        self.blocks[0][1].train()
        return self


def test_what_a_model_trains_in_evaluation_does_so_in_its_part():
    model = AlwaysDropping()
    pool = convert(model, X, blocks="blocks")
    network = plain_module(pool, pool.original)
    for mode in (True, False):
        network.train(mode)
        assert [block.block[1].training for block in (network.blocks_0, network.blocks_1)] == [True, mode]
    assert not torch.equal(network.eval()(X), network(X))
    pool.restore(network)


def test_a_candidate_is_in_the_modes_of_the_block_that_it_stands_for():
    dropping = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    pool = convert(KeptInEvaluation(), X, blocks="blocks", candidates={"norms": norms, "dropping": dropping})
    trains = {}
    for choice in ("norms", "dropping"):
        network = plain_module(pool, pool.architecture(["original", choice, choice, "original"])).train()
        trains[choice] = [layer.block[1].training for layer in list(network)[1:3]]
    assert trains == {"norms": [False, True], "dropping": [True, True]}


@pytest.mark.parametrize("executor", [Relay, ReferenceTrainer])
def test_a_norm_that_stays_in_evaluation_is_not_recalibrated(executor):
    pool = convert(KeptInEvaluation(), X, blocks="blocks")
    server = ParamServer(pool, optimizer=SGD(), seed=0)
    trains = executor(server, device="cpu")
    trains.recalibrate(pool.original, [(X,)])
    trains.write_back() if executor is ReferenceTrainer else trains.drain()
    means = [server.state(f"blocks.{block}/original").named_buffers()["block.1.running_mean"] for block in "01"]
    assert not means[0].any()
    assert means[1].any()
