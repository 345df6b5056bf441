"""A network that no family has goes out with its own code, which `transformers` runs and we only read."""

from __future__ import annotations

import json

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from l2l_nas import plain_module
from l2l_nas.compress.coded_family import model_of
from l2l_nas.compress.gguf_out import GGUFModel
from l2l_nas.compress.pool import published_pool
from l2l_nas.errors import SpaceError
from l2l_nas.training.export import ExportError
from tests.compress.code_cache import use_code_cache
from tests.compress.test_families import MODELS, TOKENS
from tests.compress.test_found import GROUPED, exported

MIXED = ["original", "original", "original", "skip", "linear_8", "width_24"]


@pytest.fixture(autouse=True, scope="module")
def _modules(tmp_path_factory):
    """Code of folders is copied to a place of its own."""
    with pytest.MonkeyPatch.context() as patch:
        use_code_cache(patch, tmp_path_factory.mktemp("modules"))
        yield


def coded(tmp_path, name):
    """A network as a folder, as `transformers` loads it, and what it should give for `TOKENS`."""
    if name == "gpt_neox":  # whose blocks are one position
        choices = ["linear_8", "width_24", "original"]
    else:
        choices = [choice.replace("width_24", "width_64") if name == "gpt2" else choice for choice in MIXED]
        choices[0] = "heads_2" if name in GROUPED else "original"
    export, expected = exported(tmp_path / "model", name, choices, tmp_path / "out", ["hugging_face"])
    assert not export.refused
    assert export.formats["hugging_face"].difference == 0
    auto = hf.AutoModelForMaskedLM if name == "bert" else hf.AutoModelForCausalLM
    model, about = auto.from_pretrained(tmp_path / "out", trust_remote_code=True, output_loading_info=True)
    assert not any(about.values())
    return model.eval(), expected


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_transformers_runs_it_and_it_is_read_again_without_its_code(tmp_path, name):
    model, expected = coded(tmp_path, name)
    with torch.no_grad():
        assert torch.equal(model(input_ids=TOKENS).logits, expected)
        pool = published_pool(f"hf:{tmp_path / 'out'}", length=17, widths=[0.5])
        assert torch.equal(plain_module(pool, pool.original)(TOKENS), expected)
    offered = [[one.name for one in place.candidates] for place in pool.positions]
    assert ["original", "width_16", "skip"] in offered or name in ("gpt2", "gpt_neox")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert"])
def test_padding_on_either_side_changes_no_logits_of_others(tmp_path, name):
    model, expected = coded(tmp_path, name)
    rows, mask = torch.zeros(3, 20, dtype=torch.int64), torch.zeros(3, 20, dtype=torch.int64)
    for row, start in enumerate((0, 3, 2)):
        rows[row, start : start + 17], mask[row, start : start + 17] = TOKENS[row], 1
    with torch.no_grad():
        got = model(input_ids=rows, attention_mask=mask).logits
    torch.testing.assert_close(got[mask.bool()], expected.flatten(0, 1), atol=2e-5, rtol=1e-5)


def test_a_masked_language_model_does_not_see_padding(tmp_path):
    model, expected = coded(tmp_path, "bert")
    rows = torch.cat((TOKENS, TOKENS[:, :3]), dim=1)
    mask = (torch.arange(20) < 17).long().expand(3, 20)
    labels = torch.where(torch.arange(20) == 4, rows, -100)
    with torch.no_grad():
        given = model(input_ids=rows, attention_mask=mask, labels=labels)
    torch.testing.assert_close(given.logits[:, :17], expected, atol=2e-5, rtol=1e-5)
    loss = torch.nn.functional.cross_entropy(expected[:, 4], TOKENS[:, 4])
    torch.testing.assert_close(given.loss, loss)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama, tied", "gpt2", "qwen3 with windows", "mixtral", "gemma2"])
def test_it_writes_the_same_with_and_without_a_cache(tmp_path, name):
    model, _ = coded(tmp_path, name)
    how = {"max_new_tokens": 9, "min_new_tokens": 9, "do_sample": False, "pad_token_id": 0}
    calls = []
    model.network[0].register_forward_pre_hook(lambda _, given: calls.append(given[0].shape[1]))
    for more in ({}, {"num_beams": 3}):
        with_cache = model.generate(TOKENS[:, :6], **how, **more)
        assert not (calls and model.config.has_cache)  # layers go on by `extend`
        assert torch.equal(model.generate(TOKENS[:, :6], use_cache=False, **how, **more), with_cache)
        calls.clear()
    whole = model.generate(TOKENS[:, :6], **how)
    assert torch.equal(model.generate(TOKENS[:, :6], prefill_chunk_size=4, **how), whole)  # a prompt piece by piece
    alone = model.generate(TOKENS[:1, :4], **how)
    rows = torch.stack((torch.cat((torch.zeros(2, dtype=torch.int64), TOKENS[0, :4])), TOKENS[1, :6]))
    padded = model.generate(rows, attention_mask=(rows != 0).long(), **how)
    assert torch.equal(padded[0, 2:], alone[0])
    assert torch.equal(padded[1], model.generate(TOKENS[1:2, :6], **how)[0])


def test_a_head_computes_the_places_that_are_asked_for_alone(tmp_path):
    model, expected = coded(tmp_path, "llama, tied")
    places = []
    model.network.head.register_forward_hook(lambda _, given, made: places.append(made.shape[1]))
    with torch.no_grad():
        for kept in (2, torch.tensor([3, 16])):
            wanted = expected[:, -kept:] if isinstance(kept, int) else expected[:, kept]
            for more in ({}, {"use_cache": True}):
                got = model(input_ids=TOKENS, logits_to_keep=kept, **more).logits
                torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)
            assert places.pop() == 2
    places.clear()
    model.generate(TOKENS[:, :6], max_new_tokens=4, min_new_tokens=4, do_sample=False, pad_token_id=0)
    assert places == [1, 1, 1, 1]


def test_a_loss_of_the_places_that_are_asked_for_is_that_of_their_labels(tmp_path):
    model, expected = coded(tmp_path, "llama, tied")
    loss = torch.nn.functional.cross_entropy(expected[:, -4:-1].flatten(0, 1), TOKENS[:, -3:].flatten())
    for more in ({}, {"use_cache": True}):
        given = model(input_ids=TOKENS, labels=TOKENS[:, -4:], logits_to_keep=4, **more)
        torch.testing.assert_close(given.loss, loss)


def test_a_way_to_write_that_takes_tokens_back_is_refused(tmp_path):
    model, _ = coded(tmp_path, "llama, tied")
    with pytest.raises(ValueError, match="not supported with stateful models"):
        model.generate(TOKENS[:1, :6], max_new_tokens=5, prompt_lookup_num_tokens=2, do_sample=False)


def test_its_loss_is_that_of_the_next_token_and_it_can_be_trained(tmp_path):
    model, expected = coded(tmp_path, "llama, tied")
    given = model(input_ids=TOKENS, labels=TOKENS)
    loss = torch.nn.functional.cross_entropy(expected[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten())
    torch.testing.assert_close(given.loss, loss)
    given.loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert model.network.head.weight is model.network.embedding.token.weight


def test_transformers_saves_it_as_it_is(tmp_path):
    model, expected = coded(tmp_path, "llama, tied")
    model.save_pretrained(tmp_path / "again")
    again = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "again", trust_remote_code=True).eval()
    with torch.no_grad():
        assert torch.equal(again(input_ids=TOKENS).logits, expected)
    pool = published_pool(f"hf:{tmp_path / 'again'}", length=17)
    assert torch.equal(plain_module(pool, pool.original)(TOKENS), expected)


def test_what_was_read_again_may_lose_more(tmp_path):
    coded(tmp_path, "llama, tied")
    pool = published_pool(f"hf:{tmp_path / 'out'}", length=17)
    choices = ["skip" if place.name == "attention_1" else "original" for place in pool.positions]
    assert pool.architecture(choices)
    names = {name.split(".")[1] for name in load_file(tmp_path / "out" / "model.safetensors")}
    assert "head" not in names  # it is tied
    assert names < {place.name for place in pool.positions}


BASE = {"model_type": "l2l_nas", "max_position_embeddings": 9, "tied": {}}
OWN = {"embedding": "Embedding(7, 4)", "head": "Linear(4, 7, bias=False)"}
BASE["layers"] = [*map(list, OWN.items())]


def _layers(**changed):
    return {"layers": [*map(list, {**OWN, **changed}.items())]}


DAMAGED = {
    "code": (_layers(head="__import__('os').system('true')"), "is no layer that is known here"),
    "another's": (_layers(head="Path('x')"), "Path is no layer that is known here"),
    "a name": (_layers(head="Linear(size, 7)"), "head"),
    "a list": (_layers(head="Linear([4], 7)"), "neither a number nor a word"),
    "arguments": (_layers(head="Linear(4, 7, 8, 9, 10, 11)"), "too many positional arguments"),
    "a word for a number": (_layers(head="Linear('a', 7)"), "cannot be made"),
    "a device": (_layers(head="Linear(4, 7, device='cpu')"), "is not for a config to say"),
    "experts": (_layers(a="MixtureOfExperts(4, 7, routing=Routing(1025))"), "1025 experts are more than 1024"),
    "no expert": (_layers(a="MixtureOfExperts(4, 7, routing=Routing(2, 3))"), "takes 3 of 2 experts"),
    "many layers": ({"layers": [[f"a{n}", "Zero()"] for n in range(10_001)]}, "10001 layers; expected at most 10000"),
    "no number": (_layers(a="FeedForward(4, 7, style=Style(eps=1e999))"), "inf is no finite number"),
    "below zero": (_layers(a="FeedForward(4, 7, style=Style(eps=-1.0))"), "-1.0 is no finite number"),
    "no base": (_layers(a="SelfAttention(4, Heads(2, rotary=Rotary(0.0)))"), "a finite number above 0, got 0.0"),
    "no plain base": (_layers(a="SelfAttention(4, Heads(2, rotary=0.0))"), "a finite number above 0, got 0.0"),
    "a yarn of one": (_layers(a="SelfAttention(4, Heads(2, rotary=Rotary(1, kind='yarn')))"), "above 1, got 1"),
    "turns": (_layers(a="SelfAttention(4, Heads(2, rotary=Rotary(9.0, low=4.0)))"), "in order"),
    "a stretch": (_layers(a="SelfAttention(4, Heads(2, rotary=Rotary(9.0, kind='x')))"), "known are default"),
    "a factor": (_layers(a="SelfAttention(4, Heads(2, rotary=Rotary(9.0, factor=0.0)))"), "factor above 0"),
    "no window": (_layers(a="SelfAttention(4, Heads(2, window=0))"), "are at least 1, got 0"),
    "no heads": (_layers(a="SelfAttention(4, Heads(-1))"), "are at least 1, got -1"),
    "too many heads": (_layers(a="SelfAttention(4, Heads(8))"), "8 heads for a width of 4"),
    "a dropout": (_layers(a="SelfAttention(4, Heads(2, dropout=5.0))"), "a probability, got 5.0"),
    "a cap": (_layers(a="SelfAttention(4, Heads(2, cap=0.0))"), "a cap is a finite number above 0, got 0.0"),
    "a tie of two sizes": (
        {**_layers(norm="RMSNorm(4)"), "tied": {"embedding.token.weight": "x", "norm.weight": "x"}},
        "which are [4] and [7, 4]",
    ),
    "a dataclass": (_layers(head="Style()"), "no layer"),
    "half": (_layers(head="Linear(4,"), "'head'"),
    "no text": (_layers(head=3), "no text"),
    "deep": (_layers(head="(" * 1500), "'head'"),
    "huge": (_layers(head="Linear(4, 99999999999)"), "99999999999 is more than"),
    "a long": (_layers(head="Linear(4, 7" + " " * 3000 + ")"), "no text of at most"),
    "a place": ({"layers": [["a.b", "Embedding(7, 4)"]]}, "layers"),
    "no layers": ({"layers": None}, "layers"),
    "no embedding": ({"layers": [["head", "Linear(4, 7)"]]}, "begin with an Embedding"),
    "one twice": ({"layers": [["a", "Embedding(7, 4)"]] * 2}, "layers"),
    "a table": ({"layers": OWN}, "layers"),
    "a tie": ({"tied": {"head.bias": "x"}}, "tied"),
    "heads": (_layers(attention_0="SelfAttention(4, Heads(3, key_value=2))"), "do not divide"),
    "no length": ({"max_position_embeddings": None}, "max_position_embeddings"),
}


def test_experts_of_all_layers_are_not_too_many_together(monkeypatch):
    monkeypatch.setattr("l2l_nas.compress.coded_family.MOST_PARAMETERS", 50)
    layer = "MixtureOfExperts(4, 7, routing=Routing(4))"
    assert model_of({**BASE, **_layers(a=layer, b=layer)}).vocabulary == 7
    with pytest.raises(SpaceError, match="more than 50 parameters"):
        model_of({**BASE, **_layers(a=layer, b=layer, c=layer)})


def test_layers_may_be_written_with_names_or_without(tmp_path):
    """And what is made of them is the same."""
    layers = {
        "embedding": "Embedding(hidden=16, vocabulary=7)",
        "attention_0": "SelfAttention(style=Style(norm='rms'), heads=Heads(2), hidden=16)",
        "feedforward_0": "FeedForward(width=32, hidden=16)",
        "norm": "RMSNorm(16)",
        "head": "Linear(16, 7, False)",
    }
    config = {**BASE, "layers": [*map(list, layers.items())]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file(
        {name: torch.ones(shape) for name, shape in model_of(config).shapes.items()}, tmp_path / "model.safetensors"
    )
    pool = published_pool(f"hf:{tmp_path}", length=9, widths=[0.5], ranks=[0.5], heads=[1])
    names = [[one.name for one in place.candidates[1:]] for place in pool.positions]
    assert names == [[], ["heads_1", "skip"], ["width_16", "rank_8", "skip"], [], []]
    for part in (slice(None), slice(2), slice(1), slice(0)):
        found = [(place.name, place.candidates[0]) for place in pool.positions[part]]
        with pytest.raises(ExportError, match="its embedding, last norm or head"):
            GGUFModel(found, length=9)


@pytest.mark.parametrize("how", DAMAGED)
def test_a_config_with_something_else_is_refused_in_one_line(how):
    change, words = DAMAGED[how]
    assert model_of(BASE).vocabulary == 7
    with pytest.raises(SpaceError) as caught:
        model_of(json.loads(json.dumps({**BASE, **change})))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
