from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from l2l_nas import collect_losses
from l2l_nas.layers import MixtureOfExperts, Routing


def mixture(**options) -> MixtureOfExperts:
    torch.manual_seed(0)
    return MixtureOfExperts(6, 5, routing=Routing(4, **options))


def naive(block: MixtureOfExperts, x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Token by token, and the load-balancing loss by its definition."""
    experts, out, assigned, probable = len(block.experts), x.clone(), [0] * 4, [0.0] * 4
    tokens = x.view(-1, x.shape[-1])
    for number, token in enumerate(tokens):
        normed = functional.layer_norm(token, token.shape, block.norm.weight, block.norm.bias)
        scores = torch.exp(block.router(normed))
        chances = scores / scores.sum()
        for expert in sorted(range(experts), key=lambda e: -float(chances[e]))[: block.routing.chosen]:
            out.view_as(tokens)[number] += chances[expert] * block.experts[expert].added(normed)
            assigned[expert] += 1
        probable = [have + float(chance) for have, chance in zip(probable, chances, strict=True)]
    fractions = [have / sum(assigned) for have in assigned]
    means = [have / len(tokens) for have in probable]
    return out, block.routing.balance * experts * sum(f * p for f, p in zip(fractions, means, strict=True))


@pytest.mark.parametrize("chosen", [1, 2, 4])
@pytest.mark.parametrize("shape", [(5, 6), (3, 7, 6)])
def test_a_mixture_equals_a_loop_over_tokens(chosen, shape):
    block = mixture(chosen=chosen, balance=0.3)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), collect_losses() as losses:
        got, (expected, loss) = block(x), naive(block, x)
    torch.testing.assert_close(got, expected)
    assert [float(value) for value in losses] == [pytest.approx(loss, rel=1e-5)]


def test_the_loss_is_least_where_all_experts_get_the_same():
    block = mixture(chosen=1, balance=1.0)
    x = torch.eye(6)[:4].repeat(5, 1)
    with torch.no_grad():
        block.router.bias.zero_()
        block.router.weight.copy_(torch.eye(4, 6) * 3)  # a token to each expert
        with collect_losses() as even:
            block(x)
        block.router.weight.zero_()
        block.router.bias.copy_(torch.tensor([9.0, 0, 0, 0]))  # all to the first
        with collect_losses() as uneven:
            block(x)
    assert float(even[0]) == pytest.approx(1.0, abs=1e-5)
    assert float(uneven[0]) == pytest.approx(4.0, abs=0.01)


def test_training_by_its_own_loss_balances_the_experts():
    block = mixture(chosen=1, balance=1.0)
    with torch.no_grad():
        block.router.bias.copy_(torch.tensor([2.0, 0, 0, 0]))
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.Adam(block.router.parameters(), lr=0.05)
    values = []
    for _ in range(60):
        with collect_losses() as losses:
            block(x)
        values.append(float(losses[0].detach()))
        losses[0].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert values[0] > 1.5
    assert values[-1] < 1.1


def test_an_expert_without_tokens_has_a_gradient_of_zero():
    block = mixture(chosen=1)
    with torch.no_grad():
        block.router.weight.zero_()
        block.router.bias.copy_(torch.tensor([9.0, 0, 0, 0]))
    block(torch.randn(3, 6, generator=torch.Generator().manual_seed(1))).square().sum().backward()
    assert block.experts[0].up.weight.grad.abs().sum() > 0
    assert all(torch.count_nonzero(p.grad) == 0 for e in block.experts[1:] for p in e.parameters())


def test_evaluation_adds_no_loss():
    with torch.no_grad(), collect_losses() as losses:
        mixture().eval()(torch.ones(3, 6))
    assert losses == []


def test_a_narrower_mixture_begins_with_what_does_most():
    wide = mixture(is_normalised=True)
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for expert in wide.experts:
            expert.up.weight[1] = expert.up.bias[1] = 0  # gives nothing
        for width, is_equal in ((4, True), (3, False)):
            block = MixtureOfExperts(6, width, routing=wide.routing)
            block.begin_as(wide, (x,))
            torch.testing.assert_close(block.router.weight, wide.router.weight)
            assert torch.allclose(block(x), wide(x), atol=1e-6) is is_equal
