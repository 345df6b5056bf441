"""Gradients as layers send them."""

from __future__ import annotations

from torch import Tensor

from l2l_nas.eps.gradients import GradientBlock
from l2l_nas.eps.layout import Layout
from l2l_nas.eps.scale import norms_of


def with_norms(gradients: Tensor, layout: Layout) -> GradientBlock:
    """Gradients with their norms behind them."""
    block = GradientBlock(gradients)
    views = block.views(layout)
    norms_of(views.gradients, out=views.norms)
    return block
