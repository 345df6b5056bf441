"""A mixture of experts: each token is worked on by a few of many feed-forward networks, which a router chooses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.space.losses import add_loss


class MixtureOfExperts(nn.Module):
    """A pre-norm feed-forward block, of which each token takes the experts that its router gives most.

    The token gets the sum of what these give, each times its probability (arXiv 2101.03961, equation 2). In training
    the router's load-balancing loss is added to the step's (equation 4, over the assignments of all chosen experts):
    `balance * experts * sum(f * p)`, with f the part of the assignments that an expert gets, and p its mean
    probability. It is `balance` where all experts get the same. No token is left out.

    Args:
        hidden: width.
        experts: how many.
        feedforward: width of each expert.
        chosen: experts for each token.
        balance: weight of the load-balancing loss.
    """

    is_placewise = True

    def __init__(self, hidden: int, *, experts: int, feedforward: int, chosen: int = 2, balance: float = 0.01) -> None:
        super().__init__()
        self.chosen = chosen
        self.balance = balance
        self.norm = nn.LayerNorm(hidden)
        self.router = nn.Linear(hidden, experts)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(hidden, feedforward), nn.GELU(), nn.Linear(feedforward, hidden))
            for _ in range(experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ..., hidden], the same shape out."""
        tokens = self.norm(x).flatten(0, -2)
        # float32 also where weights are in low precision, as the article's section 2.4 asks for
        probabilities = self.router(tokens).float().softmax(dim=-1)
        weights, choices = probabilities.topk(self.chosen, dim=-1)
        total = torch.zeros_like(tokens)
        for index, expert in enumerate(self.experts):
            rows, ranks = torch.where(choices == index)
            # an expert without a token runs too: its gradient is zero, not missing, and nothing waits for a count
            given = expert(tokens[rows]) * weights[rows, ranks].unsqueeze(-1).to(tokens.dtype)
            total = total.index_add(0, rows, given)
        if self.training:
            add_loss(self.balance * self._imbalance(probabilities, choices))
        return x + total.view_as(x)

    def _imbalance(self, probabilities: Tensor, choices: Tensor) -> Tensor:
        """1 where all experts get the same, up to the number of experts where one gets all."""
        experts = len(self.experts)
        parts = torch.nn.functional.one_hot(choices.flatten(), experts).float().mean(dim=0)
        return experts * (parts * probabilities.mean(dim=0)).sum()
