"""Closed forms against modules that are really built."""

from __future__ import annotations

import pytest

from l2l_nas.cost.closed_form import MaxParameters, num_parameters, path_states
from l2l_nas.errors import SettingError
from tests.toys import dense_pool, language_pool


def test_parameters_are_those_of_the_modules():
    pool = dense_pool()
    architecture = pool.architecture(["dense", "twice", "skip", "partial", "mlp"])
    modules = [layer.candidate.factory() for layer in pool.path(architecture)]
    assert num_parameters(pool, architecture) == sum(p.numel() for module in modules for p in module.parameters())


def test_tied_and_repeated_layers_count_once():
    pool = language_pool(width=8, vocabulary=11)
    architecture = pool.architecture(["embed", "feed", "feed", "skip", "head"])
    feed = pool.owner("shared/feed").candidate.factory()
    assert num_parameters(pool, architecture) == 11 * 8 + 11 + sum(p.numel() for p in feed.parameters())
    assert path_states(pool, architecture) == ("shared/embed", "tied/tokens", "shared/feed", "shared/head")


def test_a_limit_tells_got_and_allowed():
    pool = dense_pool()
    architecture = pool.architecture(["skip"] * 4 + ["linear"])
    assert MaxParameters(pool, 14).violation(architecture) is None
    assert MaxParameters(pool, 13).violation(architecture) == "14 parameters, allowed 13"
    with pytest.raises(SettingError):
        MaxParameters(pool, 0)
