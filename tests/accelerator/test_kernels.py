"""Operators of the simulated accelerator are the CPU's: the same bits, laid out in the same way."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

from l2l_nas.eps.scale import norms_of

DEVICE = "simulated"


def spread(shape, *, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


LAYOUTS = {
    "whole": lambda x: x,
    "transposed": lambda x: x.transpose(0, 1),
    "every other": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(9, -1, -1),
    "overlapping": lambda x: x.flatten().unfold(0, 70, 3),
    "from the middle": lambda x: x[1:, 1:, 1:],
}
OPERATORS = {
    "sum": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(-1),
    "mean of columns": lambda x: x.mean(0),
    "softmax": lambda x: x.softmax(-1),
    "product": lambda x: x @ x.transpose(-1, -2),
    "norm": lambda x: torch.linalg.vector_norm(x),
    "norms": lambda x: norms_of([x, x[:1], x[:0]]),
    "copy": lambda x: x.clone(),
    "sums so far": lambda x: x.cumsum(0),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "pairs as complex": lambda x: torch.view_as_complex(torch.stack([x, x], -1)).conj() * 2,
}


@pytest.mark.parametrize("operator", OPERATORS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_the_bits_and_the_strides_of_the_cpu(layout, operator):
    own = spread((7, 10, 33))
    expected = OPERATORS[operator](LAYOUTS[layout](own))
    found = OPERATORS[operator](LAYOUTS[layout](own.to(DEVICE)))
    assert found.stride() == expected.stride()
    assert torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("kind", ["convolution", "transposed convolution", "lstm", "batch norm", "dropout"])
def test_layers_and_their_gradients_have_the_bits_of_the_cpu(kind):
    def computed(device):
        torch.manual_seed(0)
        layer, shape = {
            "convolution": lambda: (nn.Conv2d(4, 6, 3, padding=1), (2, 4, 9, 9)),
            "transposed convolution": lambda: (nn.ConvTranspose1d(4, 6, 3, stride=2), (2, 4, 9)),
            "lstm": lambda: (nn.LSTM(4, 5, num_layers=2, bidirectional=True, dropout=0.2), (6, 2, 4)),
            "batch norm": lambda: (nn.BatchNorm1d(4), (6, 4)),
            "dropout": lambda: (nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3)).bfloat16(), (6, 4)),
        }[kind]()
        layer.to(device)
        x = spread(shape).to(device, next(layer.parameters()).dtype).requires_grad_()
        torch.manual_seed(1)
        outputs = layer(x)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        outputs.square().sum().backward()
        return [outputs.detach(), x.grad, *(one.grad for one in layer.parameters()), *layer.buffers()]

    for found, expected in zip(computed(DEVICE), computed("cpu"), strict=True):
        assert torch.equal(found.cpu(), expected)


def test_a_target_takes_the_size_of_the_result():
    one, target = torch.ones(3, 5, device=DEVICE), torch.empty(0, device=DEVICE)
    torch.add(one, one, out=target)
    assert torch.equal(target.cpu(), torch.full((3, 5), 2.0))


def test_views_share_the_memory_that_they_view():
    one = torch.zeros(4, 2, device=DEVICE)
    torch.view_as_complex(one).add_(1j)
    one.unfold(0, 2, 2)[1].add_(1)
    assert one.cpu().tolist() == [[0, 1], [0, 1], [1, 2], [1, 2]]


def test_a_tensor_of_the_host_does_not_meet_one_of_the_device():
    one = torch.ones(3, device=DEVICE)
    with pytest.raises(RuntimeError, match="a tensor of the host beside tensors of the device"):
        one + torch.ones(3)
    assert (one + torch.tensor(1.0)).sum().item() == 6
    assert one[torch.tensor([0, 2])].sum().item() == 2


def test_memory_that_nothing_was_written_to_holds_nans():
    assert torch.empty(64, device=DEVICE).isnan().all()
