"""Published models become pools: weights layer by layer, logits as `transformers` gives them, damage named."""

from __future__ import annotations

import json
import re
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from l2l_nas import AdamW, ParamServer, plain_module
from l2l_nas.compress.folder import Folder
from l2l_nas.compress.imitation import BlockDistillation, BlockSettings
from l2l_nas.compress.pool import published_pool
from l2l_nas.compress.varied import model_of
from l2l_nas.errors import L2LError, SpaceError, StorageError
from l2l_nas.relay.relay import Relay
from l2l_nas.runs.locate import load_problem
from l2l_nas.text.tokenizer import Bytes
from tests.compress.test_families import MODELS, TOKENS, published


@pytest.fixture
def saved(tmp_path):
    def save(name, **how):
        model = published(name)
        model.save_pretrained(tmp_path / "model", **how)
        return model, tmp_path / "model"

    return save


def relay_of(pool):
    return Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("how", [{}, {"max_shard_size": "10KB"}], ids=["one file", "many files"])
def test_a_folder_s_model_is_the_first_candidate_of_each_position(saved, name, how):
    model, folder = saved(name, **how)
    assert len(list(folder.glob("*.safetensors"))) > (3 if how else 0)
    pool = published_pool(f"hf:{folder}", length=17)
    with torch.no_grad():
        expected = model(input_ids=TOKENS).logits
        got = relay_of(pool).predict(pool.original, (TOKENS,), micro_batch=2)[0]
        torch.testing.assert_close(got, expected, atol=2e-5, rtol=1e-5)
        network = plain_module(pool, pool.original)  # how many tokens an expert gets follows from the micro-batch
        assert torch.equal(torch.cat([network(part) for part in TOKENS.split(2)]), got)


def test_names_of_old_and_models_saved_without_a_head(saved):
    for name, base in (("gpt2", "transformer."), ("bert", "bert.")):
        model, folder = saved(name)
        tensors = load_file(folder / "model.safetensors")
        renamed = {
            key.removeprefix(base).replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): value
            for key, value in tensors.items()
            if name == "gpt2" or key.startswith(base)
        }
        save_file(renamed, folder / "model.safetensors")
        if name == "bert":
            with pytest.raises(L2LError, match="lacks tensors cls"):
                published_pool(f"hf:{folder}")
            continue
        pool = published_pool(f"hf:{folder}", length=17)
        got = relay_of(pool).predict(pool.original, (TOKENS,), micro_batch=3)[0]
        torch.testing.assert_close(got, model(input_ids=TOKENS).logits, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["gemma2", "gpt_neox", "gpt_neox, one after the other", "olmo2", "phi3"])
def test_layers_that_can_do_what_the_original_does_begin_by_doing_it(saved, name):
    _, folder = saved(name)
    pool = published_pool(f"hf:{folder}", length=17, ranks=[0.999], windows=[17], key_value=[1], widths=[0.5])
    found, x = set(), torch.randn(2, 17, 32)
    for position in pool.positions[1:-2]:
        original = position.candidates[0].factory()
        for candidate in position.candidates[1:-1]:
            layer = candidate.factory()
            with torch.no_grad():
                layer.begin_as(original, (x,))
                found.add(candidate.name)
                same = torch.allclose(layer(x), original(x), atol=1e-4)
            own = original.attention if hasattr(original, "attention") else original
            has_window = own.heads.window is not None if hasattr(own, "heads") else False
            assert same == (candidate.name in ("rank_32", "window_17") and not has_window), candidate.name
    # a window is smaller than that of the layer, which all of Phi-3's have
    assert found == {"rank_32", "key_value_1", "width_24"} | ({"window_17"} if name != "phi3" else set())


@pytest.mark.slow
def test_smaller_layers_begin_as_the_original(saved):
    _, folder = saved("qwen3")
    pool = published_pool(f"hf:{folder}", length=17, widths=[0.5], key_value=[1], ranks=[0.999], windows=[17, 4])
    names = [candidate.name for candidate in pool.positions[1].candidates]
    assert names == ["original", "key_value_1", "window_17", "window_4", "skip"]
    assert [candidate.name for candidate in pool.positions[2].candidates] == ["original", "width_24", "rank_32", "skip"]
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    distillation = BlockDistillation(server, pool.original, lambda s: Relay(s, device="cpu"), BlockSettings(steps=0))
    errors = dict(distillation.run((TOKENS.repeat(4, 1),)))
    assert errors["attention_0/original"] == 0
    assert errors["attention_0/window_17"] < 1e-10  # copied, and as wide as the text is long
    assert errors["feedforward_1/rank_32"] < 1e-9  # of full rank
    assert 1e-6 < errors["attention_0/key_value_1"] < errors["attention_0/skip"]
    assert 1e-6 < errors["feedforward_1/width_24"] < errors["feedforward_1/skip"]


def test_keys_with_a_norm_that_are_merged_are_means(saved):
    _, folder = saved("qwen3")
    pool = published_pool(f"hf:{folder}", length=17, key_value=[1])
    modules = {layer.candidate.name: pool.build_module(layer) for layer in pool.layers if layer.position == 1}
    attention = plain_module(pool, pool.original).attention_0
    with torch.no_grad():
        modules["key_value_1"].begin_as(attention, (torch.randn(3, 17, 32),))
        means = (attention.key.weight[:12] + attention.key.weight[12:]) / 2
        torch.testing.assert_close(modules["key_value_1"].key.weight, means)


@pytest.mark.parametrize("name", MODELS)
def test_attention_of_fewer_heads_begins_as_those_that_are_left_in_every_family(saved, name):
    """Heads that the last layer does not use go first, and without them nothing changes."""
    _, folder = saved(name)
    position = published_pool(f"hf:{folder}", length=17).positions[1]
    heads = position.candidates[0].factory.args[1]
    each = heads.count // heads.shared
    options = {"heads": [heads.count - heads.shared]} if each > 1 else {}
    if heads.shared > 1:
        options["groups"] = [heads.shared - 1]
    pool = published_pool(f"hf:{folder}", length=17, skips=False, **options)
    original, *smaller = [candidate.factory().eval() for candidate in pool.positions[1].candidates]
    assert len(smaller) == len(options)
    x = torch.randn(8, 17, 32, generator=torch.Generator().manual_seed(1))
    for layer, setting in zip(smaller, options, strict=True):
        own, other = (getattr(one, "attention", one) for one in (layer, original))
        size, removed = own.size, range(each) if setting == "groups" else range(1, heads.count, each)
        with torch.no_grad():
            for one in original.parameters():
                one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) * 0.2)
            for head in removed:
                other.out.weight[:, head * size : head * size + size] = 0
            layer.begin_as(original, (x,))
            left = [head for head in range(heads.count) if head not in removed]
            rows = torch.tensor([head * size + number for head in left for number in range(size)])
            assert torch.equal(own.query.weight, other.query.weight[rows])
            if not heads.is_normed_whole:  # whose norm goes over the heads that are left alone
                torch.testing.assert_close(layer(x), original(x), atol=1e-5, rtol=1e-4)
            skipped = (original(x) - x).square().mean()
            assert (layer(x) - original(x)).square().mean() < 0.5 * skipped


@pytest.mark.parametrize("name", MODELS)
def test_linear_maps_are_fitted_to_the_sub_layers_of_every_family(saved, name):
    """A map of nearly full rank is as near as least squares on what the sub-layer takes; a low rank is between."""
    _, folder = saved(name)
    pool = published_pool(f"hf:{folder}", length=17, linear=[0.99, 0.25])
    x = torch.randn(48, 17, 32, generator=torch.Generator().manual_seed(1))
    for position in [one for one in pool.positions if one.name.endswith("_1")]:
        original, whole, low = (candidate.factory().eval() for candidate in position.candidates[:3])
        assert [one.name for one in position.candidates[1:]] == ["linear_32", "linear_8", "skip"]
        part = getattr(original, "attention", original)
        with torch.no_grad():
            for one in original.parameters():
                one.add_(torch.randn(one.shape, generator=torch.Generator().manual_seed(2)) * 0.2)
            for layer in (whole, low):
                layer.begin_as(original, (x,))
            taken, given = part.before(x).flatten(0, 1).double(), original.adds(x).flatten(0, 1).double()
            torch.testing.assert_close(whole.behind(x, original.adds(x)), original(x), atol=1e-5, rtol=1e-4)
            if whole.map[1].bias is not None:
                taken = torch.cat((taken, torch.ones(len(taken), 1)), dim=1)
            best = (taken @ torch.linalg.lstsq(taken, given).solution - given).square().sum()
            found, less = ((one.adds(x).flatten(0, 1) - given).square().sum() for one in (whole, low))
            assert best * 0.999 < found < best * 1.02
            assert found < less < given.square().sum()


def _config(folder, **change):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))


def _tensors(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("name", "copy", "of"),
    [
        ("gpt2", "lm_head.weight", "transformer.wte.weight"),
        ("llama, tied", "lm_head.weight", "model.embed_tokens.weight"),
        ("bert", "cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.decoder.bias", "cls.predictions.bias"),
    ],
)
def test_a_copy_of_a_tied_weight_may_be_there_and_another_one_not(saved, name, copy, of):
    _, folder = saved(name)
    _tensors(folder, lambda tensors: tensors.update({copy: tensors[of].clone()}))
    published_pool(f"hf:{folder}")
    _tensors(folder, lambda tensors: tensors.update({copy: tensors[of] * 2}))
    refused = pytest.raises(L2LError, match=f"{copy} is tied to {of}, but their values differ; save the model anew")
    with refused:
        published_pool(f"hf:{folder}")
    _tensors(folder, lambda tensors: tensors.update({copy: torch.cat([tensors[of][:-1], tensors[of][-1:] + 1])}))
    with refused:
        published_pool(f"hf:{folder}")


def test_a_function_of_one_s_own_may_give_a_published_pool_and_data_another_tokenizer(saved, tmp_path, monkeypatch):
    _, folder = saved("gpt2")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    text = f"import l2l_nas.compress.pool as pool\n\ndef build():\n    return pool.published_pool('hf:{folder}')\n"
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "mine.txt").write_text("What a text says.\n\n" * 40)
    more = {"validation_fraction": 0.2, "length": 17, "tokenizer": "bytes"}
    assert isinstance(load_problem("mine.py:build", {}, source="mine.txt", **more).pool.tokenizer, Bytes)


def _cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _no_file(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


NORM = "model.norm.weight"
DAMAGE = {
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json; is it a Hugging Face model folder"),
    "no model_type": (lambda f: (f / "config.json").write_text("{}"), "has no model_type"),
    "a config that is no JSON": (lambda f: (f / "config.json").write_text("{"), "config.json"),
    "another family": (lambda f: _config(f, model_type="mamba"), "missing for transformers|its config asks for"),
    "unknown family": (lambda f: _config(f, model_type="mambo"), "transformers does not load it"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "its weights are missing"),
    "pickled": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        "is pickled, which could",
    ),
    "missing": (lambda f: _tensors(f, lambda t: t.pop(NORM)), "lacks tensor model.norm.weight, which its config"),
    "extra": (lambda f: _tensors(f, lambda t: t.update(x=torch.zeros(2))), "has tensor x, which a llama model"),
    "shape": (lambda f: _tensors(f, lambda t: t.update({NORM: torch.zeros(31)})), r"norm.weight is \[31\], .*\[32\]"),
    "integers": (lambda f: _tensors(f, lambda t: t.update({NORM: torch.zeros(32).int()})), "is I32; weights are BF16"),
    "cut": (_cut, "damaged, not a safetensors file"),
    "no safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 64), "damaged, not a safetensors"),
    "a directory": (
        lambda f: [(f / "model.safetensors").unlink(), (f / "model.safetensors").mkdir()],
        "no file|damaged",
    ),
    "an adapter": (
        lambda f: (f / "adapter_model.safetensors").write_bytes((f / "model.safetensors").read_bytes()),
        "has adapter_model.safetensors: an adapter beside the model",
    ),
    "heads that do not fit": (lambda f: _config(f, num_attention_heads=5, head_dim=None), "5 attention heads of 6"),
}


def test_a_name_that_a_gguf_file_gave_is_no_unknown_field(saved):
    _, folder = saved("llama")
    _config(folder, _model_name_or_path="SmolLM2 135M")
    assert published_pool(f"hf:{folder}").original


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_folder_is_refused_in_one_line(saved, how):
    _, folder = saved("llama")
    damage, words = DAMAGE[how]
    damage(folder)
    with pytest.raises(L2LError) as caught:
        published_pool(f"hf:{folder}")
    assert re.search(words, str(caught.value))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"length": 41}, "sequences of 41 tokens, but the model has places for 1 to 40"),
        ({"widths": [1.0]}, "'feedforward_0': widths are shares between 0 and 1, got 1.0"),
        ({"key_value": [2]}, "'attention_0': key_value heads must divide the model's 2 and be fewer, got 2"),
        ({"heads": [3]}, "heads must be fewer than the model's 4 and multiples of its 2 of keys and values, got 3"),
        ({"groups": [2]}, "'attention_0': groups must be fewer than the model's 2, got 2"),
        ({"windows": [0]}, "'attention_0': windows are of at least 1 token, got 0"),
    ],
)
def test_candidates_that_cannot_be_are_refused(saved, options, words):
    _, folder = saved("llama")
    with pytest.raises(L2LError) as caught:
        published_pool(f"hf:{folder}", **options)
    assert str(caught.value).endswith(words)


def _of(folder, **layers):
    """A small llama whose layers differ, by their numbers, with weights that are drawn."""
    config = {"model_type": "l2l_nas_llama", "vocab_size": 7, "hidden_size": 16, "num_hidden_layers": len(layers)}
    config |= {"num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 9, "hidden_act": "silu"}
    config["per_layer_config"] = {name.removeprefix("layer_"): entry for name, entry in layers.items()}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = model_of(config).shapes
    save_file({name: torch.randn(shape) for name, shape in shapes.items()}, folder / "model.safetensors")
    return f"hf:{folder}"


def _offered(pool):
    return [[one.name for one in place.candidates[1:]] for place in pool.positions[1:-2]]


def test_layers_that_are_unlike_have_what_fits_and_nothing_else_is_refused(tmp_path):
    fewer, shared = {"num_attention_heads": 2, "head_dim": 4}, {"num_key_value_heads": 2}
    name = _of(tmp_path, layer_0={"skip": ["mlp"], **fewer}, layer_1={"skip": ["mlp"], **shared})
    pool = published_pool(name, skips=False, heads=[2, 1], groups=[1], key_value=[1])
    assert _offered(pool) == [["heads_1", "groups_1", "key_value_1"], ["heads_2", "groups_1", "key_value_1"]]
    for wanted in ({"heads": [2, 3]}, {"groups": [1, 2]}, {"key_value": [2]}):
        with pytest.raises(SpaceError, match=r"'attention_0': .* the model's 2.*, got"):
            published_pool(name, **wanted)


def test_shares_that_come_to_the_same_are_offered_once(tmp_path):
    name = _of(tmp_path, layer_0={"skip": ["attention"]})
    pool = published_pool(name, skips=False, widths=[0.5, 0.51], ranks=[0.25, 0.26])
    assert _offered(pool) == [["width_16", "rank_4"]]


def test_matrices_that_are_products_already_have_no_smaller_ones(tmp_path):
    name = _of(tmp_path, layer_0={"skip": ["attention"], "mlp_rank": 4}, layer_1={"skip": ["attention"]})
    pool = published_pool(name, skips=False, widths=[0.5], ranks=[0.25])
    assert _offered(pool) == [[], ["width_16", "rank_4"]]


def test_a_window_is_smaller_than_that_of_the_layer(tmp_path):
    name = _of(tmp_path, layer_0={"skip": ["mlp"], "attention_window": 4}, layer_1={"skip": ["mlp"]})
    pool = published_pool(name, skips=False, windows=[6, 4, 2])
    assert _offered(pool) == [["window_2"], ["window_6", "window_4", "window_2"]]


@pytest.mark.parametrize("name", ["llama", "gemma3", "bert", "olmo2"])
def test_layers_with_states_stand_in_for_causal_attention(saved, name):
    _, folder = saved(name)
    pool = published_pool(f"hf:{folder}", length=17, mixers=["delta", "state_space"])
    names = [one.name for one in pool.positions[1].candidates]
    assert names == (["original", "skip"] if name == "bert" else ["original", "delta", "state_space", "skip"])
    x = torch.randn(8, 17, 32)
    original, *others = [candidate.factory().eval() for candidate in pool.positions[1].candidates[:-1]]
    for layer in others:
        with torch.no_grad():
            layer.begin_as(original, (x,))
            assert layer(x).isfinite().all()
            # a norm of what is added hides from least squares how much that is
            is_near = (layer(x) - original(x)).square().mean() < (x - original(x)).square().mean()
            assert is_near or name != "llama"
    with pytest.raises(SpaceError, match="mixers: no 'deltas'; did you mean 'delta'"):
        published_pool(f"hf:{folder}", mixers=["deltas"])


def test_a_linear_map_has_those_of_lower_ranks(tmp_path):
    name = _of(tmp_path, layer_0={"attention_map": 8})
    pool = published_pool(name, linear=[0.25, 0.26, 0.5])
    assert _offered(pool) == [["linear_4", "skip"], ["linear_4", "linear_8", "skip"]]
    original, smaller = (candidate.factory().eval() for candidate in pool.positions[1].candidates[:2])
    x = torch.randn(1, 9, 16)  # fewer rows than numbers
    with torch.no_grad():
        original.map[0].weight[4:] = 0
        smaller.begin_as(original, (x,))
        torch.testing.assert_close(smaller(x), original(x), atol=2e-4, rtol=1e-4)


def test_a_rank_is_no_larger_than_a_matrix_has(tmp_path):
    name = _of(tmp_path, layer_0={"skip": ["attention"], "intermediate_size": 8})
    pool = published_pool(name, skips=False, ranks=[0.9])
    assert _offered(pool) == [["rank_8"]]
    original, smaller = (candidate.factory() for candidate in pool.positions[1].candidates)
    x = torch.randn(2, 17, 16)
    with torch.no_grad():
        smaller.begin_as(original, (x,))
        torch.testing.assert_close(smaller(x), original(x), atol=1e-4, rtol=1e-4)


def test_tensors_at_other_places_of_a_folder_s_file_are_refused(saved):
    _, folder = saved("llama")
    path = folder / "model.safetensors"
    content = path.read_bytes()
    (size,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + size])
    for name in [name for name in header if name != "__metadata__"]:
        for begin, end in ((4, 4), (-4, -4), (0, 4), (-4, 0), (4, 0)):
            places = header[name]["data_offsets"]
            changed = {**header, name: {**header[name], "data_offsets": [places[0] + begin, places[1] + end]}}
            head = json.dumps(changed).encode()
            path.write_bytes(struct.pack("<Q", len(head)) + head + content[8 + size :])
            with pytest.raises(StorageError, match="damaged, not a safetensors file"):
                Folder(folder)
    for other in (content[:-4], content + bytes(4)):
        path.write_bytes(other)
        with pytest.raises(StorageError, match="damaged, not a safetensors file"):
            Folder(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_weight_of_a_folder_that_is_no_number_is_refused_by_name(saved, value):
    _, folder = saved("llama")
    _tensors(folder, lambda tensors: tensors[NORM].fill_(value))
    pool = published_pool(f"hf:{folder}", length=8)
    with pytest.raises(StorageError, match=r"model\.norm\.weight holds NaN or infinity"):
        plain_module(pool, pool.original)
