"""Population evaluation: as one by one, bit for bit, with each layer loaded once and each prefix computed once."""

from __future__ import annotations

import random
import weakref
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from l2l_nas import Candidate, LayerPool, Position, TensorSpec, skip
from l2l_nas.errors import DataError, SettingError
from l2l_nas.relay.population import alive, group, prefixes
from l2l_nas.relay.relay import Relay
from tests.relay.steps import PATH, is_same, relay_of, tensors, train
from tests.relay.stress import Stress
from tests.text.networks import WHOLE, pool_of, server_of
from tests.toys import Dense, cell_pool, decoder_pool, dense_pool, language_pool, random_data, repeated_pool, unet_pool

POOLS = {"dense": dense_pool(), "language": language_pool(), "repeated": repeated_pool()}
GRAPHS = {"unet": unet_pool(), "cell": cell_pool(), "decoder": decoder_pool()}


def drawn(pool, count, seed=0):
    """Architectures at random, duplicates and skips among them."""
    chooser = random.Random(seed)
    found = []
    while len(found) < count:
        names = [chooser.choice([c.name for c in position.candidates]) for position in pool.positions]
        found.append(pool.architecture(names))
    return found


def trained(pool, **options):
    relay = relay_of(pool, **options)
    for step, architecture in enumerate(drawn(pool, 4, seed=9)):
        train(relay, list(architecture.choices), step=step)
    return relay


class Counted:
    """Stands for a method and keeps the first argument of each call."""

    def __init__(self, owner, name):
        self.real, self.seen = getattr(owner, name), []
        setattr(owner, name, self)

    def __call__(self, first, *args, **kwargs):
        self.seen.append(first)
        return self.real(first, *args, **kwargs)


def distinct(pool, architectures):
    """Layers at their places, and prefixes of paths."""
    paths = [pool.path(architecture) for architecture in architectures]
    layers = {(layer.position, layer.key) for path in paths for layer in path}
    heads = {
        tuple((layer.position, layer.key) for layer in path[:n]) for path in paths for n in range(1, len(path) + 1)
    }
    return layers, heads


@pytest.mark.parametrize(
    "options",
    [{}, {"lanes": "threads", "stress": Stress(0, 0.0003)}, {"slots": 1}, {"slots": 4}, {"precision": "bf16"}],
    ids=["plain", "stress", "one slot", "four slots", "bf16"],
)  # fmt: skip
@pytest.mark.parametrize("name", [*POOLS, *GRAPHS])
def test_it_equals_one_by_one_bit_for_bit(name, options):
    pool = (POOLS | GRAPHS)[name]
    relay = trained(pool, **options)
    before = tensors(relay.server)
    inputs, _ = random_data(pool, 7, seed=1)
    architectures = drawn(pool, 12)
    expected = [relay.predict(architecture, inputs, micro_batch=3) for architecture in architectures]
    found = relay.predict_population(architectures, inputs, micro_batch=3)
    assert len({tuple(e[0].flatten().tolist()) for e in expected}) > 3
    for one, other in zip(expected, found, strict=True):
        assert len(one) == len(other)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert is_same(relay.server, before | {k: v for k, v in tensors(relay.server).items() if k not in before})


@pytest.mark.parametrize("name", POOLS)
def test_each_layer_is_loaded_once_and_each_prefix_computed_once(name):
    pool = POOLS[name]
    relay = trained(pool, lanes="inline", slots=2)
    architectures = drawn(pool, 20)
    layers, heads = distinct(pool, architectures)
    relay.predict(architectures[0], random_data(pool, 3, seed=1)[0], micro_batch=3)
    loads = Counted(relay._training.states, "open")
    calls = 0
    for layer in (layer for layer in pool.layers if not layer.candidate.is_skip):
        for slot in range(2):
            relay.bank.build(layer, slot)
    for template in relay.bank.templates:

        def called(*inputs, real=template.call):
            nonlocal calls
            calls += 1
            return real(*inputs)

        template.call = called
    relay.predict_population(architectures, random_data(pool, 3, seed=1)[0], micro_batch=3)
    assert calls == len(heads)
    keys = Counter(key for key in loads.seen if not key.startswith("tied/"))
    assert sum(keys.values()) <= len(layers)  # fewer where a repeated layer stays in its slot
    if not pool.shared:
        assert set(keys.values()) == {1}
        assert len(keys) == len(layers)


class Alive:
    """Counts the outputs that wait: each is one tensor that `_stored` gives."""

    def __init__(self, relay):
        self.now = self.most = 0
        real = relay._evaluation._stored

        def kept(*args):
            values = real(*args)
            self.now += 1
            self.most = max(self.most, self.now)
            weakref.finalize(values[0][0].untyped_storage(), self._over)
            return values

        relay._evaluation._stored = kept

    def _over(self):
        self.now -= 1


@pytest.mark.parametrize("most", [2, 3, 5, 10])
def test_a_limit_bounds_the_activations_that_wait(most):
    pool = LayerPool(
        [Position(f"p{i}", [*(Candidate(f"c{k}", _dense) for k in range(4)), skip()]) for i in range(4)],
        inputs=TensorSpec((3, 6)),
    )
    relay = relay_of(pool)
    architectures = [a for a in drawn(pool, 30) if pool.path(a)]
    inputs, _ = random_data(pool, 4, seed=1)
    expected = [relay.predict(architecture, inputs, micro_batch=4)[0] for architecture in architectures]
    size = relay.stash.size_bytes("", (4,))
    counter = Alive(relay)
    found = relay.predict_population(architectures, inputs, micro_batch=4, max_bytes=most * size)
    assert counter.most <= most
    assert counter.now == 0
    assert all(torch.equal(one, other[0]) for one, other in zip(expected, found, strict=True))


def _dense():
    return Dense(6)


def test_without_a_limit_it_is_one_pass_and_with_one_as_few_as_fit():
    pool = dense_pool()
    paths = [pool.path(a) for a in drawn(pool, 40)]
    assert group(pool, paths, most=None) == [list(range(40))]
    counts = [len(group(pool, paths, most=most)) for most in (2, 4, 8, 1000)]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


@settings(derandomize=True, deadline=None, database=None, max_examples=60)
@given(st.integers(0, 999), st.integers(1, 15), st.integers(1, 12), st.sampled_from(sorted(POOLS)))
def test_groups_hold_everyone_once_and_keep_to_the_limit(seed, count, most, name):
    pool = POOLS[name]
    paths = [pool.path(a) for a in drawn(pool, count, seed)]
    groups = group(pool, paths, most=most)
    assert sorted(index for members in groups for index in members) == list(range(count))
    for members in groups:
        tree = prefixes(pool, [paths[index] for index in members])
        assert len(members) == 1 or alive(tree) <= most
        assert sum(map(len, tree.visits)) == len(
            distinct(pool, [pool.architecture(_names(pool, paths[i])) for i in members])[1]
        )
        waiting = set(pool.sources)
        for visits, over in zip(tree.visits, tree.over, strict=True):
            assert {name for reads, _ in visits for name in reads} <= waiting
            waiting = (waiting | {name for _, writes in visits for name in writes}) - set(over)
        assert waiting == set()


def _names(pool, path):
    chosen = {layer.position: layer.candidate.name for layer in path}
    return [chosen.get(index, "skip") for index in range(len(pool))]


def test_a_population_of_one_or_of_nobody_or_of_twins():
    relay = trained(dense_pool())
    inputs, _ = random_data(relay.pool, 5, seed=0)
    architecture = relay.pool.architecture(PATH)
    expected = relay.predict(architecture, inputs, micro_batch=2)[0]
    assert relay.predict_population([], inputs, micro_batch=2) == []
    for count in (1, 3):
        found = relay.predict_population([architecture] * count, inputs, micro_batch=2)
        assert all(torch.equal(output, expected) for (output,) in found)
        assert len({output.data_ptr() for (output,) in found}) == count  # nobody's output is another's


def test_what_reads_the_same_values_is_computed_once_whatever_came_between():
    pool = GRAPHS["cell"]
    chosen = {position.name: position.candidates[0].name for position in pool.positions}
    # the last edge of the first cell differs: all before it is shared, and all that reads it is not
    one, other = (pool.architecture({**chosen, "c0_2_3": name}.values()) for name in ("dense", "normed"))
    tree = prefixes(pool, [pool.path(one), pool.path(other)])
    names = [position.name for position in pool.positions]
    assert sum(map(len, tree.visits)) == len(names) + len(names[names.index("c0_2_3") :])
    assert alive(tree) >= 4


def test_a_path_without_layers_is_refused():
    pool = LayerPool([Position(f"p{i}", [Candidate("c", _dense), skip()]) for i in range(2)], inputs=TensorSpec((3, 6)))
    relay = relay_of(pool)
    architectures = [pool.architecture(["c", "skip"]), pool.architecture(["skip", "skip"])]
    with pytest.raises(SettingError, match="no layers: every position is skipped"):
        relay.predict_population(architectures, (torch.ones(2, 3, 6),), micro_batch=2)


def test_one_path_may_be_the_beginning_of_another():
    pool = LayerPool([Position(f"p{i}", [Candidate("c", _dense), skip()]) for i in range(4)], inputs=TensorSpec((3, 6)))
    relay = relay_of(pool)
    architectures = [pool.architecture(["c"] * n + ["skip"] * (4 - n)) for n in (4, 1, 3, 2)]
    inputs = (torch.randn(3, 3, 6, generator=torch.Generator().manual_seed(0)),)
    expected = [relay.predict(architecture, inputs, micro_batch=2)[0] for architecture in architectures]
    found = relay.predict_population(architectures, inputs, micro_batch=2)
    assert all(torch.equal(one, other) for one, (other,) in zip(expected, found, strict=True))


def test_inputs_that_do_not_fit_are_refused():
    relay = relay_of(dense_pool())
    with pytest.raises(DataError, match="takes"):
        relay.predict_population([relay.pool.architecture(PATH)], (torch.ones(2, 5),), micro_batch=2)


def test_a_population_of_short_texts_keeps_more_of_them_on_the_device(monkeypatch):
    relay, inputs = Relay(server_of(pool_of(length=48)), device="cpu"), (torch.zeros(4, 48, dtype=torch.int64),)
    seen, groups = [], relay._evaluation.groups
    monkeypatch.setattr(relay._evaluation, "groups", lambda *a, most: seen.append(most) or groups(*a, most=most))
    for cuts in (None, [(4, 48)], [(4, 8)]):
        relay.predict_population([WHOLE], inputs, micro_batch=4, max_bytes=1 << 20, cuts=cuts)
    assert seen[1] == seen[0]
    assert seen[2] == pytest.approx(6 * seen[0], rel=0.1)
