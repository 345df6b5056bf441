"""Models that `transformers` makes: in, trained, made smaller, and out, with the logits of its own class."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from l2l_nas import AdamW, Data, ParamServer, Problem, Relay
from l2l_nas.__main__ import main
from l2l_nas.compress.pool import LibraryPool, published_pool, vocabulary_of
from l2l_nas.errors import SettingError, SpaceError, StorageError
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.reading import open_model
from l2l_nas.runs.section_settings import DataConf
from l2l_nas.text.generate import Sampling
from l2l_nas.text.language import evaluate_text, write_on
from l2l_nas.training.export import export_network
from l2l_nas.training.task import Tokens
from tests.compress.library_models import TYPES, save_model

LENGTH = 12
IDS = torch.randint(3, 264, (4, LENGTH), generator=torch.Generator().manual_seed(0))
_QUICK = ("qwen3_moe", "lfm2")


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS, use_cache=False).logits


def smaller(pool, left_out):
    """The original without some of its blocks."""
    return pool.architecture(
        "skip" if position.name.endswith(tuple(f".{one}" for one in left_out)) else "original"
        for position in pool.positions
    )


def exported(server, architecture, out, *, formats=("hugging_face",)):
    problem = Problem(server.pool, Data.from_arrays(IDS.repeat(5, 1), IDS.repeat(5, 1)), Tokens())
    return export_network(server, architecture, out, problem=problem, micro_batch=2, formats=formats)


@pytest.mark.parametrize("kind", [pytest.param(one, marks=[] if one in _QUICK else pytest.mark.slow) for one in TYPES])
def test_a_model_is_read_trained_made_smaller_and_written(tmp_path, kind):
    model = save_model(tmp_path / "model", kind)
    pool = published_pool(f"hf:{tmp_path / 'model'}", length=LENGTH)
    assert isinstance(pool, LibraryPool)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    relay = Relay(server, device="cpu")
    torch.testing.assert_close(relay.predict(pool.original, (IDS,), micro_batch=2)[0], logits(model))
    network = smaller(pool, [1])
    losses = [
        relay.train_step(network, (IDS,), IDS, objective=Tokens(), micro_batch=2, lr=1e-2, step=step).loss
        for step in range(3)
    ]
    assert losses[2] < losses[0]
    relay.drain()
    exported(server, network, tmp_path / "out")
    written = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert written.config.num_hidden_layers == 3
    torch.testing.assert_close(logits(written), relay.predict(network, (IDS,), micro_batch=2)[0])


def test_steps_are_those_of_the_model_s_own_class(tmp_path):
    model = save_model(tmp_path, "smollm3")
    pool = published_pool(f"hf:{tmp_path}", length=LENGTH)
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    for step in range(3):
        relay.train_step(pool.original, (IDS,), IDS, objective=Tokens(), micro_batch=4, lr=1e-2, step=step)
        optimizer.zero_grad()
        Tokens().loss((model(input_ids=IDS, use_cache=False).logits,), IDS).div(IDS.numel()).backward()
        optimizer.step()
    torch.testing.assert_close(relay.predict(pool.original, (IDS,), micro_batch=4)[0], logits(model))


def test_a_type_whose_smaller_models_are_others_is_not_written_so(tmp_path):
    periods = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "use_mamba_kernels": False}
    save_model(tmp_path / "model", "jamba", num_experts=4, num_experts_per_tok=2, **periods)
    pool = published_pool(f"hf:{tmp_path / 'model'}", length=LENGTH)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    found = exported(server, smaller(pool, [0]), tmp_path / "out", formats=("hugging_face", "state_dict"))
    assert "a jamba model of fewer blocks has others than these" in str(found)
    assert not (tmp_path / "out" / "config.json").exists()


def test_what_the_folder_lacks_or_has_too_much_is_refused(tmp_path):
    save_model(tmp_path, "smollm3")
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if name.endswith("q_proj.weight"))
    save_file({key: tensor for key, tensor in tensors.items() if key != name}, path)
    with pytest.raises(StorageError, match=r"its config asks for .* parameters, and its files have"):
        published_pool(f"hf:{tmp_path}")
    save_file({f"{key}.old" if key == name else key: tensor for key, tensor in tensors.items()}, path)
    with pytest.raises(StorageError, match=f"missing for transformers .*{name}"):
        published_pool(f"hf:{tmp_path}")
    save_file({**tensors, "adapter.weight": torch.zeros(2)}, path)
    with pytest.raises(StorageError, match=r"unexpected for transformers .*adapter\.weight"):
        published_pool(f"hf:{tmp_path}")
    save_file({**tensors, name: torch.full_like(tensors[name], torch.nan)}, path)
    with pytest.raises((SettingError, SpaceError), match="NaN"):
        published_pool(f"hf:{tmp_path}")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"vocab_size": 1 << 40}, "its config asks for"),
        ({"num_hidden_layers": 1 << 40}, "num_hidden_layers"),
        ({"n_layer": 1 << 40}, "n_layer"),
        ({"attn_implementation": "evil/kernels"}, "an implementation that is code of others"),
        ({"hidden_size": 48}, "its config asks for|mismatched|does not load"),
        ({"model_type": "nobody"}, "transformers does not load it"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "quantised"),
        ({"auto_map": {"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.M"}, "model_type": "evil"}, "does not"),
    ],
)  # fmt: skip
def test_a_config_that_is_not_the_model_s_is_refused(tmp_path, fields, words):
    save_model(tmp_path, "smollm3")
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')\n")
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises((StorageError, SpaceError), match=words):
        published_pool(f"hf:{tmp_path}")


def test_the_config_of_fewer_blocks_differs_in_what_is_of_blocks_alone(tmp_path):
    more = {"mlp_only_layers": [0, 3], "eos_token_id": [1, 5, 6, 7]}
    save_model(tmp_path, "qwen3_moe", **more)
    pool = published_pool(f"hf:{tmp_path}", length=LENGTH)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    exported(server, smaller(pool, [1]), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["num_hidden_layers"], config["mlp_only_layers"]) == (3, [0, 2])
    assert config["eos_token_id"] == more["eos_token_id"]
    assert str(tmp_path) not in json.dumps(config)
    assert pool.library.smaller([0, 1, 2, 3]).to_dict() == pool.library.config.to_dict()


def test_such_a_model_guesses_no_masked_tokens(tmp_path):
    save_model(tmp_path / "model", "smollm3")
    (tmp_path / "text.txt").write_text("A line of text, and one more of the same kind in it.\n" * 60)
    conf = replace(DataConf(), source=str(tmp_path / "text.txt"), length=24, tokenizer="bytes", objective="masked")
    with pytest.raises(SettingError, match=r"sees no tokens behind one that data\.objective=masked"):
        load_problem(f"hf:{tmp_path / 'model'}", {}, **asdict(conf))


def test_what_such_a_model_cannot_have_is_refused(tmp_path):
    save_model(tmp_path, "smollm3")
    with pytest.raises(SpaceError, match=r"widths: .* smollm3 .*write space\.args\.widths=\[\]"):
        published_pool(f"hf:{tmp_path}", widths=[0.5])
    with pytest.raises(SpaceError, match="the model has places for 1 to 64"):
        published_pool(f"hf:{tmp_path}", length=65)
    pool = published_pool(f"hf:{tmp_path}", skips=False, length=LENGTH)
    assert all(len(position.candidates) == 1 for position in pool.positions)
    assert vocabulary_of(pool.published) == 264
    assert "its layers are those of transformers" in pool.compare()


@pytest.mark.slow
def test_a_search_leaves_blocks_out_and_what_it_exports_is_measured_and_writes_alike(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_model(tmp_path / "model", "granitemoeshared", initializer_range=0.3, max_position_embeddings=24)
    Path("text.txt").write_text("A line of text, and one more of the same kind in it.\n" * 60)
    words = [
        "space.pool=hf:model", "data=text", "data.source=text.txt", "data.length=24", "strategy=blockwise",
        "strategy.scores=divergence", "strategy.samples=8", "strategy.sizes=[0.2]", "objectives=[loss,parameters]",
        "search.trial_weights=fork", "search.steps_per_trial=0", "search.trials=3", "search.finalists=1",
        "search.finalist_steps=4", "train.batch_size=4", "train.micro_batch=2", "export=false", "folder=run",
    ]  # fmt: skip
    assert main(["search", *words]) == 0
    assert "its layers are those of transformers" in capsys.readouterr().out
    result = json.loads(Path("run/result.json").read_text())
    assert "skip" in result["best"]["architecture"]
    assert "cache_bytes" not in result["best"]["costs"]  # here all is computed anew, and there it is not known
    assert main(["search", "resume=run", "search.trials=4"]) == 0
    assert main(["export", "run=run", "formats=[hugging_face]", "out=out"]) == 0
    model = hf.AutoModelForCausalLM.from_pretrained("out").eval()
    values, written = [], []
    for made in (open_model("run"), open_model("", pool="hf:out")):
        values.append(evaluate_text(made, "text", Path("text.txt"))[0].values)
        written.append("".join(write_on(made, "A line", tokens=9, sampling=Sampling(temperature=0))))
    assert values[0]["token_perplexity"] == pytest.approx(values[1]["token_perplexity"])
    made = hf.AutoTokenizer.from_pretrained("out")
    prompt = torch.tensor([made("A line")["input_ids"]])
    tokens = model.generate(prompt, max_new_tokens=9, do_sample=False, pad_token_id=2)[0].tolist()
    expected = made.decode([one for one in tokens if one > 1])
    assert [f"A line{one.removeprefix('A line')}" for one in written] == [expected] * 2
