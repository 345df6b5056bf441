"""The losses of a step that several ranks share."""

from __future__ import annotations

import math

import pytest
import torch

from l2l_nas.eps.exchange import Alone
from l2l_nas.errors import NonFiniteError
from l2l_nas.relay.losses import LossSums


class Four(Alone):
    """Rank 0 of four, whose losses are known."""

    size = 4

    def __init__(self, *losses):
        self.losses = losses

    def all_gather(self, part, whole, channel, of=""):
        whole.copy_(part)
        for rank, loss in enumerate(self.losses):
            whole[rank, 1] *= loss


@pytest.mark.parametrize(
    ("losses", "is_own"),
    [((1, 1, math.nan, 1), False), ((math.inf, 1, 1, 1), True), ((1, math.nan, 1, math.nan), None)],
)
def test_a_loss_that_is_not_finite_is_known_to_be_of_one_rank(losses, is_own):
    sums = LossSums()
    sums.add_task(torch.tensor(2.0))
    with pytest.raises(NonFiniteError, match="loss is not finite at step 7") as caught:
        sums.read([], Four(*losses)).require_finite(7)
    assert caught.value.is_own is is_own


def test_losses_of_ranks_in_float64_are_read_as_they_are():
    sums, loss = LossSums(), 1 + 2.0**-40  # which float32 rounds to 1
    sums.add_task(torch.tensor(loss, dtype=torch.float64))
    assert sums.read([], Four(1, 1, 1, 1)).task == 4 * loss
