"""Logits that are divided by tokens: the loss is torch's, and nothing ever has all of them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from l2l_nas.layers import CappedHead, Embedding, MaskedHead, Style
from l2l_nas.parallel.collectives import GroupReducer, Ranks
from l2l_nas.parallel.split import split_module
from l2l_nas.parallel.vocabulary import vocabulary_argmax, vocabulary_cross_entropy
from l2l_nas.space.split import SplitPlan, Vocabulary
from tests.parallel.processes import on_ranks

TOKENS, WIDTH, BATCH, LENGTH = 1001, 8, 2, 5  # which neither 2 nor 4 ranks divide
HEADS = {
    "linear": (lambda: nn.Linear(WIDTH, TOKENS, bias=False), {"": Vocabulary()}),
    "biased": (lambda: nn.Linear(WIDTH, TOKENS), {"": Vocabulary()}),
    "capped": (lambda: CappedHead(WIDTH, TOKENS, cap=3.0), None),
    "masked": (lambda: MaskedHead(WIDTH, TOKENS), None),
}
LOSSES = {"plain": {}, "smoothed": {"smoothing": 0.1}}


class Meeting(GroupReducer):
    def __init__(self):
        super().__init__()
        self.calls = []

    def sum(self, tensor):
        self.calls.append(("sum", tuple(tensor.shape)))
        super().sum(tensor)

    def maximum(self, tensor):
        self.calls.append(("maximum", tuple(tensor.shape)))
        super().maximum(tensor)


class Largest(TorchDispatchMode):
    """Sees how many numbers the largest tensor of floating numbers has that any operation gives."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, list | tuple) else (result,):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                self.numel = max(self.numel, one.numel())
        return result


def whole_head(name, dtype=torch.float64):
    factory, splits = HEADS[name]
    torch.manual_seed(2)
    head = factory().to(dtype)
    return head, head.splits() if splits is None else splits


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, LENGTH, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    targets = torch.randint(0, TOKENS, (BATCH, LENGTH), generator=generator)
    targets[0, 1] = -100
    targets[1, 0], targets[1, 1] = 0, TOKENS - 1
    return x, targets, torch.rand(BATCH, LENGTH, generator=generator, dtype=dtype)


def heads_on_ranks():
    results = {}
    for name in HEADS:
        for loss, options in LOSSES.items():
            reducer = Meeting()
            ranks = Ranks(reducer)
            head, splits = whole_head(name)
            part = split_module(head, splits, ranks, gather_logits=False)
            x, targets, weights = data()
            with Largest() as seen:
                logits = part(x)
                losses = vocabulary_cross_entropy(logits, targets, ranks, vocabulary=TOKENS, **options)
                forward = list(reducer.calls)
                (losses * weights).sum().backward()
            results[f"{name} {loss}"] = {
                "losses": losses.detach(),
                "forward": [kind for kind, _ in forward],
                "sent": max(torch.Size(shape).numel() for _, shape in reducer.calls),
                "backward": [list(shape) for _, shape in reducer.calls[len(forward) :]],
                "largest": seen.numel,
                "x": x.grad,
                "best": vocabulary_argmax(logits, ranks, vocabulary=TOKENS),
                **{f"gradient {key}": p.grad for key, p in part.named_parameters()},
            }
            whole = split_module(*whole_head(name), ranks)  # which gathers the logits
            results[f"{name} {loss}"]["gathered"] = whole(x).detach()
    return results


@pytest.fixture(scope="module", params=(2, pytest.param(4, marks=pytest.mark.long)))
def ran(request):
    return on_ranks(heads_on_ranks, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", HEADS)
def test_the_loss_is_that_of_whole_logits_without_gathering_them(ran, name, loss):
    head, splits = whole_head(name)
    x, targets, weights = data()
    logits = head(x)
    smoothing = LOSSES[loss].get("smoothing", 0.0)
    expected = functional.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), reduction="none", label_smoothing=smoothing
    ).view(BATCH, LENGTH)
    (expected * weights).sum().backward()
    parts = [results[f"{name} {loss}"] for results in ran]
    plan = SplitPlan(splits, len(ran))
    for rank, part in enumerate(parts):
        torch.testing.assert_close(part["losses"], expected.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(part["x"], x.grad, rtol=1e-10, atol=1e-12)
        assert part["losses"][0, 1] == 0
        assert torch.equal(part["losses"], parts[0]["losses"])
        assert torch.equal(part["best"], logits.argmax(dim=-1))
        torch.testing.assert_close(part["gathered"], logits.detach(), rtol=1e-12, atol=1e-12)
        # two messages of a few numbers a place, and in the backward that of the input's gradient
        assert part["forward"] == ["maximum", "sum"]
        assert part["backward"] == [[BATCH * LENGTH * WIDTH]]
        assert part["sent"] == BATCH * LENGTH * WIDTH
        begin, end = Vocabulary().piece(TOKENS, rank, len(ran))
        assert part["largest"] == BATCH * LENGTH * (end - begin)
    for key, parameter in head.named_parameters():
        got = plan.join([part[f"gradient {key}"] for part in parts], key)
        torch.testing.assert_close(got, parameter.grad, rtol=1e-10, atol=1e-12)


def low_precision():
    ranks = Ranks(GroupReducer())
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(6, TOKENS, generator=generator) * 30).bfloat16()
    logits[0, 7], logits[1, 900] = 3e38, -3e38
    begin, end = Vocabulary().piece(TOKENS, ranks.rank, ranks.size)
    targets = torch.tensor([7, 0, 500, 501, 1000, -100])
    mine = logits[:, begin:end].clone().requires_grad_()
    losses = vocabulary_cross_entropy(mine, targets, ranks, vocabulary=TOKENS)
    losses.sum().backward()
    return {"losses": losses.detach(), "gradient": mine.grad}


@pytest.mark.slow
def test_large_logits_of_low_precision_overflow_nowhere():
    ran = on_ranks(low_precision, 2)
    generator = torch.Generator().manual_seed(4)
    logits = (torch.randn(6, TOKENS, generator=generator) * 30).bfloat16()
    logits[0, 7], logits[1, 900] = 3e38, -3e38
    wide = logits.float().requires_grad_()
    targets = torch.tensor([7, 0, 500, 501, 1000, -100])
    expected = functional.cross_entropy(wide, targets, reduction="none")
    expected.sum().backward()
    assert ran[0]["losses"].dtype == torch.float32
    torch.testing.assert_close(ran[0]["losses"], expected.detach(), rtol=1e-6, atol=1e-6)
    gradient = SplitPlan({"": Vocabulary()}, 2).join([part["gradient"].T for part in ran], "weight").T
    torch.testing.assert_close(gradient, wide.grad.bfloat16(), rtol=1e-2, atol=1e-6)


def embeddings():
    ranks = Ranks(GroupReducer())
    results = {}
    for name, padding in (("plain", None), ("padded", 3)):
        module, tokens = embedding(padding)
        split_module(module, module.splits(), ranks)
        output = module(tokens)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        results[name] = {"output": output.detach(), **{key: p.grad for key, p in module.named_parameters()}}
    return results


def embedding(padding):
    torch.manual_seed(6)
    module = Embedding(13, WIDTH, places=LENGTH, kinds=2, style=Style(dropout=0.1), is_normed=True, scale=2.0)
    module.token.padding_idx = padding
    return module, torch.tensor([[0, 12, 3, 3, 6], [7, 1, 12, 9, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 4])
def test_an_embedding_divided_by_tokens_gives_the_same_bits(size):
    ran = on_ranks(embeddings, size)
    for name, padding in (("plain", None), ("padded", 3)):
        module, tokens = embedding(padding)
        plan = SplitPlan(module.splits(), size)
        output = module(tokens)
        (output * torch.linspace(-1, 1, output.numel()).view_as(output)).sum().backward()
        assert all(torch.equal(part[name]["output"], output) for part in ran)
        for key, parameter in module.named_parameters():
            assert torch.equal(plan.join([part[name][key] for part in ran], key), parameter.grad), key
        assert [len(part[name]["token.weight"]) for part in ran] == {2: [7, 6], 4: [4, 3, 3, 3]}[size]


class InThreads:
    """Ranks of one process, a thread each."""

    def __init__(self, rank, size, slots, barrier):
        self.rank, self.size, self._slots, self._barrier = rank, size, slots, barrier

    def maximum(self, tensor):
        self._slots[self.rank] = tensor.clone()
        self._barrier.wait(60)
        tensor.copy_(torch.stack(list(self._slots.values())).amax(0))
        self._barrier.wait(60)


@pytest.mark.parametrize("size", [2, 4])
def test_of_equal_logits_the_first_token_is_the_best_whichever_ranks_have_them(size):
    logits = torch.zeros(4, 10)
    logits[0, [3, 8]] = 1.0  # on two ranks
    logits[1, [7, 8]] = 1.0
    logits[2, [0, 9]] = 1.0  # and all alike in the last row
    slots, barrier = {}, threading.Barrier(size)

    def best(rank):
        begin, end = Vocabulary().piece(10, rank, size)
        ranks = Ranks(InThreads(rank, size, slots, barrier))
        return vocabulary_argmax(logits[:, begin:end], ranks, vocabulary=10)

    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(best, range(size)))
    assert [one.tolist() for one in found] == [[3, 7, 0, 0]] * size
