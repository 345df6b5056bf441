"""Closed forms against modules that are really built."""

from __future__ import annotations

from l2l_nas.cost.closed_form import num_parameters, path_states
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
