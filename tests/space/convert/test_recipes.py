"""The recipes of `docs/tutorials/convert.md`, as they stand; and the errors of a first try."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from l2l_nas import AdamW, Classification, Data, ParamServer, Problem, Relay, Tokens, convert
from l2l_nas.errors import DataError, SpaceError
from l2l_nas.space.convert.convert import ConvertedPool
from l2l_nas.space.shapes import check_shapes
from tests.cli.runs import ROOT
from tests.converted import CASES, ManyClasses

PAGE = (ROOT / "docs" / "tutorials" / "convert.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.S | re.M)
RECIPES = dict(re.findall(r"^### (\S+)\n\n```python\n(.*?)^```", PAGE, re.S | re.M))


def run(code):
    names = {}
    exec(compile(code, "convert.md", "exec"), names)
    return names


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_at_most_ten_lines_and_its_pool_trains(name):
    assert len([line for line in RECIPES[name].splitlines() if line]) <= 10
    pool = run(RECIPES[name])["pool"]
    assert isinstance(pool, ConvertedPool)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    inputs = tuple(pool._arguments.tensors_of(2))
    (logits,) = relay.predict(pool.original, inputs, micro_batch=2)
    last = pool.architecture(position.candidates[-1].name for position in pool.positions)
    assert last != pool.original
    targets = torch.zeros(logits.shape[:-1], dtype=torch.int64)
    for step, architecture in enumerate((last, pool.original)):
        done = relay.train_step(
            architecture, inputs, targets, objective=ManyClasses(), micro_batch=2, lr=1e-3, step=step
        )
        assert 0 < done.loss < 100


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", [code for code in BLOCKS if code not in RECIPES.values()], ids=["search", "grouped", "losses", "restore"]
)
def test_an_example_of_the_page_runs_as_it_stands(code, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len([line for line in code.splitlines() if line]) <= 10
    names = run(code)
    if "result" in names:
        pool, network = names["pool"], names["network"]
        assert network(names["x"][:2]).shape == (2, 16, 64)
        if "skip" not in names["result"].best.architecture.choices:
            assert type(pool.restore(network)) is type(names["model"])


class Narrower(nn.Module):
    """Called as any block; the last number of each place is missing."""

    def forward(self, *args, **kwargs):
        first = args[0] if args else kwargs["hidden_states"]
        return first[..., :-1]


FIRST_ERRORS = {
    "resnet": ("layers[1-4]", "layer4"),
    "efficientnet": ("feature.1", "features.1"),
    "vit": ("encoder.layer", "encoder.layers"),
    "swin": ("feature.1", "features.1"),
    "gpt2": ("transformer.layers", "transformer.h"),
    "bert": ("encoder.layer", "bert.encoder.layer"),
    "llama": ("layers", "model.layers"),
    "qwen3": ("model.layer", "model.layers"),
    "modernbert": ("layers", "model.layers"),
    "t5": ("encoder.blocks", "encoder.block"),
    "mixtral": ("model.layer", "model.layers"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_users_first_error_is_one_line_that_says_what_to_write(name):
    case = CASES[name]()
    blocks, right = FIRST_ERRORS[name]
    with pytest.raises(SpaceError) as caught:
        convert(case.model, case.example, blocks=blocks)
    assert "\n" not in str(caught.value)
    assert f"blocks={blocks!r}: the model has no such module; " in str(caught.value)
    assert re.search(rf"did you mean '{right}'|choose from .*{right}", str(caught.value))
    with pytest.raises(SpaceError) as caught:
        convert(case.model, case.example, blocks=case.blocks, candidates={"narrower": Narrower})
    assert "\n" not in str(caught.value)
    assert caught.value.candidate == "narrower"
    assert "'original' gives that" in str(caught.value) or "return the same" in str(caught.value)


class Dicts(Dataset):
    """Gives dicts, as data sets of tokens and of images do."""

    def __init__(self, example):
        given = {"image": example} if isinstance(example, torch.Tensor) else example
        self.rows = {name: tensor for name, tensor in given.items() if isinstance(tensor, torch.Tensor)}

    def __len__(self):
        return 40

    def __getitem__(self, index):
        rows = {name: tensor[index % 4] for name, tensor in self.rows.items()}
        if "image" in rows:
            return {**rows, "labels": index % 5}
        return {**rows, "labels": torch.arange(5 if "decoder_input_ids" in self.rows else 7)}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the DataLoader's")
@pytest.mark.parametrize("name", CASES)
def test_a_loader_that_gives_dicts_is_refused_with_what_to_write_which_works_then(name):
    case = CASES[name]()
    pool = convert(case.model, case.example, blocks=case.blocks)
    words = Dicts(case.example)
    task = Classification() if "image" in words.rows else Tokens()
    with pytest.raises(DataError) as caught:
        Problem(pool, DataLoader(words, batch_size=4), task)
    columns = (next(iter(words.rows)) if len(words.rows) == 1 else tuple(words.rows), "labels")
    assert str(caught.value).endswith(
        f"which of them are inputs and which are targets: Data.from_dataset(..., columns={columns!r})"
    )
    assert "\n" not in str(caught.value)
    problem = Problem(pool, Data.from_dataset(DataLoader(words, batch_size=4), columns=columns), task)
    problem.check(check_shapes(pool))


@pytest.mark.parametrize("name", [name for name in CASES if isinstance(CASES[name]().example, torch.Tensor)])
def test_images_of_another_size_than_the_example_are_refused_in_one_line(name):
    case = CASES[name]()
    pool = convert(case.model, case.example, blocks=case.blocks)
    images = Data.from_arrays(torch.zeros(20, 3, 20, 24), torch.zeros(20).long())
    with pytest.raises(DataError, match=r"3, 20, 24\] float32, the pool takes \[batch, 3, 16, 16\]") as caught:
        Problem(pool, images).check(check_shapes(pool))
    assert "\n" not in str(caught.value)
