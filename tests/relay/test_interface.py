"""Mini-batches are tensors, cut into micro-batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.interface import as_samples, cut_sizes
from l2l_nas.training.task import Classification, Tokens
from tests.text.networks import WHOLE, pool_of, server_of
from tests.training.test_lengths import EXECUTORS, PATHS, L, classifier, relay_of, sentences


@pytest.mark.parametrize(("samples", "micro_batch", "sizes"), [(6, 2, (2, 2, 2)), (5, 2, (2, 2, 1)), (3, 9, (3,))])
def test_the_last_micro_batch_may_be_short(samples, micro_batch, sizes):
    assert cut_sizes(samples, micro_batch) == sizes


def test_no_samples_and_no_micro_batch_are_refused():
    with pytest.raises(SettingError, match="micro_batch must be at least 1, got 0"):
        cut_sizes(5, 0)
    with pytest.raises(DataError, match="at least 1 sample"):
        cut_sizes(0, 5)


def test_arrays_are_samples_in_whatever_order_they_lie():
    x = np.arange(12.0).reshape(3, 4)
    for array in (x, x[::-1], x[:, ::-1], x.T, x[::2, 1:], x[:1][::-1], x.astype(">f4")):
        assert torch.equal(as_samples("inputs", array).double(), torch.tensor(array.tolist(), dtype=torch.float64))


@pytest.mark.parametrize("cuts", [[(2, 8)], [(3, 0)], [(3, L + 1)], [(3, 8), (0, 8)], []])
@pytest.mark.parametrize("kind", ["held", "resident"])
def test_cuts_that_do_not_fit_are_refused(cuts, kind):
    executor = EXECUTORS[kind](server_of(pool_of(length=L)))
    with pytest.raises(DataError, match="do not cut 3 samples of at most 48 places"):
        executor.predict_population([WHOLE], (torch.zeros(3, L, dtype=torch.int64),), micro_batch=3, cuts=cuts)


@pytest.mark.parametrize("kind", ["held", "resident"])
def test_cuts_that_are_no_numbers_or_too_large_are_refused(kind):
    executor = EXECUTORS[kind](server_of(pool_of(length=L)))
    predict = partial(executor.predict_population, [WHOLE], (torch.zeros(3, L, dtype=torch.int64),), micro_batch=2)
    with pytest.raises(DataError, match="one has 3 samples, a micro-batch at most micro_batch=2"):
        predict(cuts=[(3, 8)])
    with pytest.raises(SettingError, match="cuts: samples takes a whole number, got True"):
        predict(cuts=[(2, 8), (True, 8)])
    with pytest.raises(SettingError, match="cuts: places takes a whole number, got 8"):
        predict(cuts=[(2, 8), (1, 8.0)])


def test_layers_that_are_made_for_one_length_are_given_no_other():
    relay = relay_of(classifier(), layers=lambda graph, inputs: graph)
    inputs, targets = sentences().batch(torch.arange(6))
    with pytest.raises(SettingError, match="cuts: layers that are compiled or captured take one length"):
        relay.predict_population([PATHS[0]], inputs, micro_batch=6, cuts=[(6, 40)])
    about = {"objective": Classification(), "micro_batch": 6, "lr": 0.1, "step": 0}
    with pytest.raises(SettingError, match="lengths: layers that are compiled or captured take one length"):
        relay.train_step(PATHS[0], inputs, targets, **about, lengths=[40])


@pytest.mark.parametrize("kind", ["held", "resident"])
def test_targets_of_places_are_refused_with_lengths(kind):
    executor = EXECUTORS[kind](server_of(pool_of(length=L)))
    tokens = torch.zeros(3, L, dtype=torch.int64)
    about = {"objective": Tokens(), "micro_batch": 3, "lr": 0.1, "step": 0}
    with pytest.raises(DataError, match="lengths: outputs and targets are of 48 places each"):
        executor.train_step(WHOLE, (tokens,), tokens, **about, lengths=[8])
    with pytest.raises(SettingError, match="lengths takes a whole number, got True"):
        executor.train_step(WHOLE, (tokens,), tokens, **about, lengths=[True])


@pytest.mark.parametrize("lengths", [(8,), (8, 8, 8), (8, 0), (8, L + 1)])
@pytest.mark.parametrize("kind", ["held", "resident"])
def test_lengths_that_do_not_fit_are_refused(lengths, kind):
    executor = EXECUTORS[kind](relay_of(classifier()).server)
    inputs, targets = sentences().batch(torch.arange(6))
    about = {"objective": Classification(), "micro_batch": 4, "lr": 0.1, "step": 0}
    with pytest.raises(DataError, match=f"lengths of 2 micro-batches are 1 to {L}"):
        executor.train_step(PATHS[0], inputs, targets, **about, lengths=lengths)
