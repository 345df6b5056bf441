"""Compiled templates: as many graphs as kinds, modes and sizes, however many architectures; the same results."""

from __future__ import annotations

import os
import shutil
import warnings
from collections import Counter

import pytest
import torch

from l2l_nas import AdamW, ParamServer, Relay, UniformPaths
from l2l_nas.errors import NonFiniteError
from tests.relay.steps import OTHER, PATH, relay_of, tensors, train
from tests.relay.stress import Stress
from tests.toys import SquaredError, dense_pool, language_pool, random_data


class Graphs:
    """A backend that runs graphs as they are; it suffices to count them and to show that code is traced right."""

    def __init__(self):
        self.count = 0

    def __call__(self, graph, examples):
        self.count += 1
        return graph.forward


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="torch")  # of torch's own deprecations
        yield
    torch._dynamo.reset()


def step(relay, architecture, number, *, batch=5, micro_batch=2):
    inputs, targets = random_data(relay.pool, batch, seed=number)
    return relay.train_step(
        architecture, inputs, targets, objective=SquaredError(), micro_batch=micro_batch, lr=0.01, step=number
    ).loss


@pytest.mark.slow
def test_graphs_do_not_grow_with_architectures_or_slots():
    """In training a kind has one for inputs that need a gradient and one for those that do not, for each of two sizes;
    in evaluation one. torch gives up at eight graphs of one code, so that each kind needs code of its own."""
    pool, graphs = dense_pool(width=4, depth=5), Graphs()
    relay = relay_of(pool, layers=graphs, slots=3, lanes="threads")
    kinds = len({relay.bank.kind(layer) for layer in pool.layers if not layer.candidate.is_skip})
    heads = len(pool.positions[-1].candidates)  # which never come first
    sampler = UniformPaths(pool, seed=0)
    inputs = random_data(pool, 4, seed=0)[0]
    counts = []
    for batch in (4, 5):
        for number in range(60):
            step(relay, sampler.path_at(number), number, batch=batch)
        counts.append(graphs.count)
        for number in range(60, 90):
            step(relay, sampler.path_at(number), number, batch=batch)
        assert graphs.count == counts[-1]
    for number in range(60):
        relay.predict(sampler.path_at(number), inputs, micro_batch=2)
    assert kinds > 4
    assert counts == [2 * kinds - heads, 2 * (2 * kinds - heads)]
    assert graphs.count == counts[-1] + kinds


@pytest.mark.slow
def test_a_call_takes_weights_and_buffers_where_they_lie():
    """Nothing is copied for it: the compiled code gets the memory of the slots itself."""
    taken = set()

    def backend(graph, examples):
        def run(*tensors):
            taken.update(one.data_ptr() for one in tensors if isinstance(one, torch.Tensor))
            return graph.forward(*tensors)

        return run

    relay = relay_of(dense_pool(), layers=backend)
    for number in range(2):
        train(relay, PATH, step=number)
    used = [t for template in relay.bank.templates for t in _used(template.module)]
    assert len(used) > 10
    assert {tensor.data_ptr() for tensor in used} <= taken


def _used(module):
    """All but what a forward does not touch."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return [tensor for name, tensor in named if name not in ("never", "sometimes")]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"slots": 4, "keep": 3, "stash": "host"}, {"precision": "bf16"}], ids=str)
def test_results_equal_those_without_it(options):
    relay, other = relay_of(dense_pool(), layers=Graphs(), **options), relay_of(dense_pool(), **options)
    for number, path in enumerate([PATH, OTHER, PATH, OTHER]):
        assert train(relay, path, step=number).loss == pytest.approx(train(other, path, step=number).loss, rel=1e-5)
    expected = tensors(other.server)
    assert all(torch.allclose(value, expected[name], atol=1e-5) for name, value in tensors(relay.server).items())
    inputs = random_data(relay.pool, 5, seed=0)[0]
    for path in (PATH, OTHER):
        architecture = relay.pool.architecture(path)
        outputs = [one.predict(architecture, inputs, micro_batch=3)[0] for one in (relay, other)]
        assert torch.allclose(*outputs, atol=1e-2 if "precision" in options else 1e-5)


@pytest.mark.slow
def test_each_template_runs_in_its_own_mode_whichever_slot_was_compiled():
    """Dropout and BatchNorm tell; the slots hold a kind in training and in evaluation by turns."""
    relay, other = relay_of(dense_pool(), layers=Graphs(), slots=3), relay_of(dense_pool(), slots=3)
    inputs = random_data(relay.pool, 6, seed=0)[0]
    for number in range(6):
        path = ["normed"] * number + ["dense"] * (4 - number) if number < 5 else ["dense"] * 4
        architecture = relay.pool.architecture([*path, "mlp"])
        outputs = [one.predict(architecture, inputs, micro_batch=2)[0] for one in (relay, other)]
        assert torch.allclose(*outputs, atol=1e-5)
        losses = [train(one, [*path, "mlp"], step=number).loss for one in (relay, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_tied_weights_and_side_inputs_compile():
    relay, other = relay_of(language_pool(), layers=Graphs()), relay_of(language_pool())
    path = ["embed", "attention", "feed", "attention", "head"]
    for number in range(3):
        assert train(relay, path, step=number).loss == pytest.approx(train(other, path, step=number).loss, rel=1e-5)


@pytest.mark.slow
def test_recalibration_works_on_compiled_templates():
    relay, other = relay_of(dense_pool(), layers=Graphs()), relay_of(dense_pool())
    batches = [random_data(relay.pool, 4, seed=n)[0] for n in range(3)]
    for one in (relay, other):
        train(one, PATH)
        one.recalibrate(one.pool.architecture(PATH), batches)
    expected = tensors(other.server)
    assert all(torch.allclose(value, expected[name], atol=1e-5) for name, value in tensors(relay.server).items())


@pytest.mark.slow
def test_a_refused_step_leaves_compiled_templates_as_they_were():
    class Bad(SquaredError):
        """Not finite."""

        def loss(self, outputs, targets):
            return super().loss(outputs, targets) / 0

    relay, other = (relay_of(dense_pool(), layers=Graphs(), update="exact") for _ in range(2))
    train(relay, PATH)
    train(other, PATH)
    with pytest.raises(NonFiniteError):
        train(relay, PATH, step=1, objective=Bad())
    assert train(relay, PATH, step=2) == train(other, PATH, step=2)


def test_without_a_compiler_there_is_a_warning_and_the_same_result(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.warns(UserWarning, match=r"relay.layers=compile has no effect: torch.compile needs a C\+\+ compiler"):
        relay = relay_of(dense_pool(), layers="compile")
    assert train(relay, PATH) == train(relay_of(dense_pool()), PATH)


@pytest.mark.slow
def test_a_backend_of_one_s_own_needs_no_compiler(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    graphs = Graphs()
    train(relay_of(dense_pool(), layers=graphs), PATH)
    assert graphs.count


@pytest.mark.slow
@pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "g++", "clang++")), reason="no C++ compiler"
)
def test_inductor_s_results_are_close(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    pool = dense_pool(width=4, depth=1)
    relays = [
        Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", layers=layers)
        for layers in ("compile", "eager")
    ]
    path = pool.architecture(["normed", "linear"])
    losses = Counter()
    for index, relay in enumerate(relays):
        for number in range(2):
            losses[index] += step(relay, path, number, batch=4)
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    inputs = random_data(pool, 4, seed=0)[0]
    outputs = [relay.predict(path, inputs, micro_batch=2)[0] for relay in relays]
    assert torch.allclose(*outputs, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_lane_that_saves_buffers_does_not_see_those_of_another_slot(seed):
    """A kind's graph is shared by its slots, of which one may be saved while it runs on another."""
    relay = relay_of(dense_pool(), layers=Graphs(), slots=3, lanes="threads", stress=Stress(seed, 0.0, {"save": 0.002}))
    other = relay_of(dense_pool(), lanes="inline")
    for number in range(6):
        losses = [train(one, ["normed"] * 4 + ["mlp"], step=number, batch=8).loss for one in (relay, other)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
