"""Mixers with a state: equal to transformers' Mamba2, to a recurrence and a quadratic form in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from transformers import Mamba2Config
from transformers.models.mamba2.modeling_mamba2 import Mamba2Block

from l2l_nas.layers import LinearAttention, StateHeads, StateSpace, Style
from l2l_nas.layers.state_space import scan

RMS = Style(norm="rms", bias=False)
HEADS = [
    StateHeads(4, size=6, state=5, groups=2, kernel=4, chunk=8),
    StateHeads(2, size=12, state=3, groups=1, kernel=2, chunk=16),
    StateHeads(6, size=4, state=4, groups=3, kernel=3, chunk=256),
]
MIXERS = {
    **{f"state space {number}": lambda heads=heads: StateSpace(12, heads) for number, heads in enumerate(HEADS)},
    "linear attention": lambda: LinearAttention(12, 3, chunk=8),
}
DOCUMENTS = torch.tensor([[0] * 5 + [1] * 9 + [2] + [3] * 8, [7] * 20 + [-1] * 3])


def made(name):
    torch.manual_seed(3)
    module = MIXERS[name]().double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return module, torch.randn(2, 23, 12, dtype=torch.float64)


@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("bias", [False, True])
def test_it_is_the_mixer_of_transformers(heads, bias):
    torch.manual_seed(1)
    config = Mamba2Config(
        hidden_size=12, num_heads=heads.count, head_dim=heads.size, expand=heads.count * heads.size // 12,
        state_size=heads.state, n_groups=heads.groups, conv_kernel=heads.kernel, chunk_size=heads.chunk,
        num_hidden_layers=1, use_bias=bias, residual_in_fp32=False,
    )  # fmt: skip
    theirs = Mamba2Block(config, layer_idx=0)
    theirs.mixer.init_mamba2_weights()
    ours = StateSpace(12, heads, Style(norm="rms", eps=config.layer_norm_epsilon, bias=bias))
    names = {
        "norm": "norm", "mixer.in_proj": "into", "mixer.conv1d": "conv", "mixer.dt_bias": "step",
        "mixer.A_log": "decay", "mixer.D": "direct", "mixer.norm.weight": "scale", "mixer.out_proj": "out",
    }  # fmt: skip
    pairs = {}
    for name, parameter in theirs.named_parameters():
        path = name if name in names else name.rpartition(".")[0]
        pairs[names[path] + name.removeprefix(path)] = parameter
    with torch.no_grad():
        for name, parameter in ours.named_parameters():
            pairs[name].add_(torch.randn_like(parameter) * 0.1)
            parameter.copy_(pairs.pop(name))
    assert not pairs
    x = torch.randn(2, 23, 12)
    weights, results = torch.randn_like(x), []
    for module in (ours, theirs):
        taken = x.clone().requires_grad_()
        given = module(taken)
        (given * weights).sum().backward()
        results.append((given, taken.grad, [parameter.grad for parameter in module.parameters()]))
    (given, own, _), (expected, other, _) = results
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(own, other, atol=2e-5, rtol=1e-4)
    for name, parameter in theirs.named_parameters():
        path = name if name in names else name.rpartition(".")[0]
        mine = ours.get_parameter(names[path] + name.removeprefix(path)).grad
        scale = parameter.grad.abs().max()
        torch.testing.assert_close(mine / scale, parameter.grad / scale, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 4, 64])
@pytest.mark.parametrize("starts", [[], [6, 7, 15]])
def test_a_scan_is_its_recurrence(chunk, starts):
    torch.manual_seed(0)
    batch, length, heads, size, groups, states = 2, 19, 4, 3, 2, 5
    shapes = [(heads, size), (heads,), (groups, states), (groups, states)]
    value, decay, written, read = (torch.randn(batch, length, *shape, dtype=torch.float64) for shape in shapes)
    decay, state = -decay.exp(), torch.randn(batch, heads, size, states, dtype=torch.float64)
    decay[:, starts] = -torch.inf
    tensors = [tensor.requires_grad_() for tensor in (value, decay, written, read, state)]
    given, last = scan(value, decay, written, read, states=state, chunk=chunk)
    current, places = state, []
    for place in range(length):
        write, take = (part[:, place].repeat_interleave(heads // groups, dim=1) for part in (written, read))
        current = decay[:, place, :, None, None].exp() * current + value[:, place, :, :, None] * write[:, :, None]
        places.append((current * take[:, :, None]).sum(-1))
    torch.testing.assert_close(given, torch.stack(places, dim=1))
    torch.testing.assert_close(last, current)
    weights = torch.randn_like(given)
    own, other = (
        torch.autograd.grad((y * weights).sum() + end.square().sum(), tensors)
        for y, end in ((given, last), (torch.stack(places, dim=1), current))
    )
    for one, expected in zip(own, other, strict=True):
        torch.testing.assert_close(one, expected)


def quadratic(module, x, documents=None):
    """Linear attention by all pairs of tokens."""
    query, key, value = (
        part(module.norm(x)).unflatten(-1, (3, 4)) for part in (module.query, module.key, module.value)
    )
    query, key = (torch.where(part > 0, part + 1, part.exp()) for part in (query, key))
    weights = torch.einsum("blhd,bshd->bhls", query, key).tril()
    if documents is not None:
        weights = weights * (documents[:, None, :, None] == documents[:, None, None])
    weights = weights / weights.sum(-1, keepdim=True)
    return x + module.out(torch.einsum("bhls,bshd->blhd", weights, value).flatten(2))


@pytest.mark.parametrize("documents", [None, DOCUMENTS])
def test_linear_attention_is_its_quadratic_form(documents):
    module, x = made("linear attention")
    given, expected = module(x, documents), quadratic(module, x, documents)
    torch.testing.assert_close(given, expected, atol=1e-5, rtol=1e-5)
    for one, other in zip(
        *(torch.autograd.grad(y.square().sum(), list(module.parameters())) for y in (given, expected)), strict=True
    ):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("cuts", [[23], [1] * 23, [9, 1, 1, 12]])
def test_token_by_token_gives_what_the_whole_gives(name, cuts):
    module, x = made(name)
    cache, found = None, []
    for part in x.split(cuts, dim=1):
        y, cache = module.extend(part, cache)
        found.append(y)
    torch.testing.assert_close(torch.cat(found, dim=1), module(x))
    assert sum(tensor.numel() for tensor in cache) == sum(t.numel() for t in module.extend(x[:, :1], None)[1])


@pytest.mark.parametrize("name", MIXERS)
def test_documents_do_not_see_each_other(name):
    module, x = made(name)
    given = module(x, DOCUMENTS)
    assert not torch.allclose(given, module(x))
    for row, documents in enumerate(DOCUMENTS):
        for number in documents.unique():
            alone = x[row : row + 1, documents == number]
            torch.testing.assert_close(given[row : row + 1, documents == number], module(alone))
    given.square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("name", MIXERS)
def test_low_precision_is_near(name):
    module, x = made(name)
    expected = module(x)
    given = module.bfloat16()(x.bfloat16())
    assert given.dtype == torch.bfloat16
    assert functional.mse_loss(given.double(), expected) < 0.01 * expected.var()


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="a width of 12 is not divided by 5 heads"):
        LinearAttention(12, 5)
