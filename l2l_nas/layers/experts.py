"""A mixture of experts: each token is worked on by a few of many feed-forward networks, which a router chooses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from l2l_nas.layers.feed_forward import FeedForward
from l2l_nas.layers.least_squares import once
from l2l_nas.layers.style import Residual, Style
from l2l_nas.space.losses import add_loss
from l2l_nas.space.split import Experts, Splits


@dataclass(frozen=True)
class Routing:
    """How tokens get to experts.

    Raises:
        ValueError: a token takes none, or more than there are.
    """

    experts: int  # how many there are
    chosen: int = 2  # for each token
    balance: float = 0.01  # weight of the load-balancing loss; 0: without
    # whether the probabilities of a token's chosen experts are divided by their sum (arXiv 2401.04088, section 2.1)
    is_normalised: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.chosen <= self.experts:
            raise ValueError(f"a token takes {self.chosen} of {self.experts} experts")


class ExpertList(nn.ModuleList):
    """Feed-forward networks by number. One that is missing, as another rank has it, adds nothing."""

    def forward(self, tokens: Tensor, weights: Tensor, choices: Tensor) -> Tensor:
        """The sum of what each token's experts give, times their weights: [count, hidden] of tokens in and out.

        Args:
            weights, choices: [count, chosen], of the experts that each token takes, and their numbers.
        """
        total = torch.zeros_like(tokens)
        for name, expert in self.named_children():
            assert isinstance(expert, FeedForward)
            rows, ranks = torch.where(choices == int(name))
            # an expert without a token runs too: its gradient is zero, not missing, and nothing waits for a count
            outputs = expert.added(tokens[rows]) * weights[rows, ranks].unsqueeze(-1).to(tokens.dtype)
            total = total.index_add(0, rows, outputs)
        return total


class MixtureOfExperts(Residual):
    """A residual sub-layer, of which each token takes the experts that its router gives most.

    The token gets the sum of what these give, each times its probability (arXiv 2101.03961, equation 2). In training
    the router's load-balancing loss is added to the step's (equation 4, over the assignments of all chosen experts):
    `balance * experts * sum(f * p)`, with f the part of the assignments that an expert gets, and p its mean
    probability. It is `balance` where all experts get the same. No token is left out.

    transformers' loss of Mixtral counts each token's assignments instead of dividing by them, so that its weight is
    `balance / chosen`, and takes f and p over all layers at once, where ours is a sum over layers.

    Args:
        hidden, width: of the outer layers and of each expert's inner one.
        activation: a name in `ACTIVATIONS`.
        is_gated: whether experts have a gate; see `FeedForward`.
        style: of the model; its `bias` is the router's too.
    """

    is_placewise = True

    def __init__(
        self,
        hidden: int,
        width: int,
        *,
        routing: Routing,
        activation: str = "gelu",
        is_gated: bool = False,
        style: Style | None = None,
    ) -> None:
        style = style or Style()
        super().__init__(hidden, style)
        self.routing = routing
        self.router = nn.Linear(hidden, routing.experts, bias=style.bias)
        bare = replace(style, norm="none", dropout=0.0)
        self.experts = ExpertList(
            FeedForward(hidden, width, activation=activation, is_gated=is_gated, style=bare)
            for _ in range(routing.experts)
        )
        style.draw(self.router)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, ..., hidden], the same shape out."""
        return self.behind(x, self.added(self.before(x)))

    def added(self, x: Tensor) -> Tensor:
        """The sum that is added to the input, of input that is normed: [batch, ..., hidden]."""
        tokens = x.flatten(0, -2)
        probabilities, weights, choices = self.routed(tokens)
        total: Tensor = self.experts(tokens, weights, choices)
        if self.training and self.routing.balance:
            add_loss(self.routing.balance * self._imbalance(probabilities, choices))
        return total.view_as(x)

    def routed(self, tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Route tokens [count, hidden]: all probabilities, and the weights and numbers of the chosen experts."""
        # float32 also where weights are in low precision, as the article's section 2.4 asks for
        probabilities = self.router(tokens).float().softmax(dim=-1)
        weights, choices = probabilities.topk(self.routing.chosen, dim=-1)
        if self.routing.is_normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        return probabilities, weights, choices

    def begin_as(self, original: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Take over the router, and of each expert what a narrower one has of it, by the tokens that it gets."""
        assert isinstance(original, MixtureOfExperts)
        self.take_norms(original)
        self.router.load_state_dict(original.router.state_dict())
        assigned = once("experts", (original, inputs[0]), lambda: [*original.assigned(inputs[0])])
        for expert, other, tokens in zip(self.experts, original.experts, assigned, strict=True):
            assert isinstance(expert, FeedForward)
            expert.begin_as(other, (tokens,))

    def assigned(self, x: Tensor) -> Iterator[Tensor]:
        """The tokens [count, hidden] of an input that each expert gets; all of them if it gets none."""
        tokens = self.before(x).flatten(0, -2)
        choices = self.routed(tokens)[2]
        for index in range(self.routing.experts):
            is_assigned = (choices == index).any(-1)
            yield tokens[is_assigned] if is_assigned.any() else tokens

    def splits(self) -> Splits:
        """By experts; the router is whole."""
        return {"experts": Experts(self.routing.experts, self.routing.chosen)}

    def _imbalance(self, probabilities: Tensor, choices: Tensor) -> Tensor:
        """1 where all experts get the same, up to the number of experts where one gets all."""
        experts = self.routing.experts
        parts = torch.nn.functional.one_hot(choices.flatten(), experts).float().mean(dim=0)
        return experts * (parts * probabilities.mean(dim=0)).sum()
