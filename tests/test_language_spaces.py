"""The spaces of language models that come with the package."""

from __future__ import annotations

import importlib

import pytest
import torch
import yaml

import l2l_nas
from l2l_nas import (
    AdamW,
    Batches,
    Data,
    ParamServer,
    Problem,
    ReferenceTrainer,
    Relay,
    Split,
    Tokens,
    UniformPaths,
    plain_module,
)
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SpaceError
from l2l_nas.runs.locate import load_problem
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import build_network, export_network
from tests.cli.runs import ROOT
from tests.test_spaces import LANGUAGE

SMALL = {"vocabulary": 19, "length": 24, "hidden": 16, "depth": 2, "heads": 2}
# published sizes: arguments, parameters of the largest network, of those of a head that is not tied
PUBLISHED = {
    "gpt2": [
        ({"vocabulary": 50257, "length": 1024, "hidden": 768, "depth": 12, "heads": 12}, 124_439_808, 0),
        ({"vocabulary": 50257, "length": 1024, "hidden": 1600, "depth": 48, "heads": 25}, 1_557_611_200, 0),
    ],
    "bert": [({"vocabulary": 30522, "length": 512, "hidden": 768, "depth": 12, "heads": 12}, 109_514_298 - 2 * 768, 0)],
    "llama": [
        ({"vocabulary": 32000, "hidden": 4096, "depth": 32, "heads": 32, "width": 11008}, 6_738_415_616, 32000 * 4096),
        (
            {"vocabulary": 128256, "hidden": 4096, "depth": 32, "heads": 32, "key_value": 8, "width": 14336},
            8_030_261_248,
            128256 * 4096,
        ),
    ],
}


def pool_of(space, **args):
    return importlib.import_module(f"search_spaces.{space}").build(**{**SMALL, **args})


def problem_of(space, **args):
    """Tokens that repeat in each row, so that those before one tell what it is; two documents a row."""
    pool = pool_of(space, **args)
    generator = torch.Generator().manual_seed(0)
    parts = []
    for rows in (40, 20, 20):
        tokens = torch.randint(19, (rows, 6), generator=generator).repeat(1, 5)[:, :25]
        inputs = [tokens[:, :-1], torch.arange(24).ge(11).long().expand(rows, 24)][: len(pool.inputs)]
        parts.append(Split(tuple(inputs), tokens[:, 1:]))
    return Problem(pool, Data(*parts), Tokens())


@pytest.mark.parametrize("space", LANGUAGE)
def test_tokens_go_in_and_a_score_for_each_token_comes_out(space):
    build = importlib.import_module(f"search_spaces.{space}").build
    assert [spec.shape for spec in check_shapes(build()).outputs] == [(128, 257)]
    assert [spec.shape for spec in check_shapes(pool_of(space, documents=True)).outputs] == [(24, 19)]
    names = [position.name for position in build(depth=2).positions if position.name != "norm"]
    assert names == ["embedding", *(f"{part}_{i}" for i in range(2) for part in ("attention", "feedforward")), "head"]


@pytest.mark.parametrize("args", [{}, {"documents": True}, {"elastic": True}], ids=str)
@pytest.mark.parametrize("space", LANGUAGE)
def test_a_language_space_trains_as_plain_pytorch(space, args):
    problem = problem_of(space, **args)
    relay, resident = (
        kind(ParamServer(problem.pool, optimizer=AdamW(), seed=0), device="cpu") for kind in (Relay, ReferenceTrainer)
    )
    paths, batches = UniformPaths(problem.pool, seed=1), Batches(problem.data.train, batch_size=8, seed=0)
    for step in range(4):
        (inputs, targets), architecture = batches.at(step), paths.path_at(step)
        losses = {
            one.train_step(
                architecture, inputs, targets, objective=problem.task, micro_batch=8, lr=0.01, step=step
            ).loss
            for one in (relay, resident)
        }
        assert len(losses) == 1


@pytest.mark.slow
@pytest.mark.parametrize("space", LANGUAGE)
def test_a_language_space_is_searched(space, tmp_path):
    found = l2l_nas.search(
        problem_of(space),
        folder=tmp_path / "run",
        trials=3,
        steps_per_trial=4,
        finalists=1,
        finalist_steps=6,
    )
    assert found.content["trials"]["complete"] == 3


@pytest.mark.slow
def test_mixers_and_experts_leave_as_a_program(tmp_path):
    problem = problem_of("hybrid")
    server = ParamServer(problem.pool, optimizer=AdamW(), seed=0)
    architecture = problem.pool.architecture(["plain", "linear", "experts", "state_space", "width_48", "rms", "tied"])
    formats = ["program"]
    export = export_network(server, architecture, tmp_path, problem=problem, micro_batch=4, formats=formats)
    assert not export.refused
    assert {export.formats[name].difference for name in formats} == {0.0}


@pytest.mark.parametrize("how", ["across", "apart"])
def test_a_space_reads_documents_where_the_data_have_them(how, tmp_path):
    for index in range(4):
        (tmp_path / f"{index}.txt").write_text("many words stand here and there " * 20)
    data = {"source": str(tmp_path), "validation_fraction": 0.25, "test_fraction": 0.25, "length": 16, "documents": how}
    problem = load_problem("llama", {"hidden": 16}, **data)
    assert list(problem.pool.sources) == ["tokens", "documents"][: 1 + (how == "apart")]
    problem.check(check_shapes(problem.pool))


@pytest.mark.parametrize("space", LANGUAGE)
def test_no_token_sees_another_document_or_what_comes_later(space):
    pool = pool_of(space, documents=True)
    documents = torch.arange(24).ge(11).long().expand(2, 24)
    tokens = torch.randint(19, (2, 24), generator=torch.Generator().manual_seed(1))
    changed = torch.where(documents == 0, (tokens + 1) % 19, tokens)
    later = torch.where(torch.arange(24) >= 20, (tokens + 1) % 19, tokens)
    for candidate in (c.name for c in pool.positions[1].candidates if not c.is_skip):
        first = ["attention" if p.name[:9] == "attention" else p.candidates[0].name for p in pool.positions]
        choices = [
            candidate if p.name.startswith("attention") else own for p, own in zip(pool.positions, first, strict=True)
        ]
        network = plain_module(pool, pool.architecture(choices)).eval()
        with torch.no_grad():
            given = network(tokens, documents)
            torch.testing.assert_close(network(changed, documents)[:, 11:], given[:, 11:])
            assert not torch.allclose(network(changed, documents * 0)[:, 11:], network(tokens, documents * 0)[:, 11:])
            if space != "bert":
                torch.testing.assert_close(network(later, documents)[:, :20], given[:, :20])


@pytest.mark.slow
@pytest.mark.parametrize("space", PUBLISHED)
def test_the_largest_network_has_the_size_of_the_published_one(space):
    for args, published, head in PUBLISHED[space]:
        pool, total, groups = pool_of(space, **{"length": 128, **args}), 0, set()
        for position in pool.positions:
            sizes = []
            for candidate in position.candidates:
                with torch.device("meta"):
                    parameters = dict(candidate.factory().named_parameters())
                sizes.append(sum(p.numel() for name, p in parameters.items() if candidate.tied.get(name) not in groups))
            groups |= {group for candidate in position.candidates for group in candidate.tied.values()}
            total += max(sizes)
        assert total + head == published


def test_what_sub_layers_add_is_scaled_down_at_first():
    for depth in (1, 16):
        pool = pool_of("gpt2", depth=depth, hidden=64, heads=4)
        network = plain_module(pool, pool.architecture([p.candidates[0].name for p in pool.positions]))
        for layer in (network.attention_0.out, network.feedforward_0.down):
            assert float(layer.weight.detach().std()) == pytest.approx(0.02 / (2 * depth) ** 0.5, rel=0.05)
        assert float(network.attention_0.query.weight.detach().std()) == pytest.approx(0.02, rel=0.05)
        assert network.head.weight is network.embedding.token.weight


@pytest.mark.parametrize(
    ("space", "args", "words"),
    [
        ("llama", {"heads": 16}, "rotary positions need heads of an even size, got 1"),
        ("llama", {"heads": 2, "key_value": 3}, "3 heads of keys and values do not divide 2 of queries"),
        ("hybrid", {"hidden": 40, "heads": 6}, "a width of 40 is not divided by 6 heads"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(space, args, words):
    with pytest.raises(SpaceError, match=words):
        check_shapes(pool_of(space, **args))


PRESETS = {
    "bert_large": 335_172_410,
    "gpt2_345m": 354_823_168,
    "gpt2_775m": 774_030_080,
    "gpt2_2.5b": 2_488_598_400,
    "gpt2_8.3b": 8_314_143_744,
}


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_a_published_network(name):
    config = yaml.safe_load((ROOT / "conf" / "space" / f"{name}.yaml").read_text())
    space, data = config["space"], config["data"]
    vocabulary = 30522 if space["pool"] == "bert" else 50257
    build = importlib.import_module(f"search_spaces.{space['pool']}").build
    pool = build(vocabulary=vocabulary, length=data["length"], **space["args"])
    assert num_parameters(pool, pool.original) == PRESETS[name]
    assert (data.get("objective") == "masked") == (space["pool"] == "bert")


@pytest.mark.parametrize("space", LANGUAGE)
def test_elastic_networks_are_those_of_the_same_choices_and_share_what_they_have_in_common(space):
    own, shared = pool_of(space), pool_of(space, elastic=True)
    for seed in range(6):
        choices = UniformPaths(own, seed=seed).path_at(0).choices
        networks = [pool.architecture(list(choices)) for pool in (own, shared)]
        assert num_parameters(own, networks[0]) == num_parameters(shared, networks[1])
    sizes = [sum(layout_of(pool, key).num_parameters for key in pool.states) for pool in (own, shared)]
    assert sizes[1] < 0.9 * sizes[0]
    # a narrow network's weights are the first rows and columns of the wide one's
    server = ParamServer(shared, optimizer=AdamW(), seed=0)
    place = next(i for i, position in enumerate(shared.positions) if position.name == "feedforward_0")
    names = [one.name for one in shared.positions[place].candidates if one.name.startswith("width_")]
    first = [position.candidates[0].name for position in shared.positions]
    paths = [shared.architecture([*first[:place], name, *first[place + 1 :]]) for name in names]
    wide, narrow = (build_network(server, path).state_dict() for path in paths[:2])
    ups = [next(v for key, v in state.items() if key.endswith("feedforward_0.up.weight")) for state in (wide, narrow)]
    assert len(ups[1]) < len(ups[0])
    assert torch.equal(ups[1], ups[0][: len(ups[1])])
