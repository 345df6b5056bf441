"""Language models on the command line: `evaluate task=...` and `generate`."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from l2l_nas.__main__ import main
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.reading import open_model
from l2l_nas.runs.section_settings import DataConf
from l2l_nas.text.generate import Sampling, generate
from l2l_nas.text.language import evaluate_text, executor_of, write_on
from l2l_nas.text.wikitext import detokenized
from tests.cli.runs import TINY, environment, start
from tests.text.networks import log_likelihoods, plain

POOL = """\
import pydoc_data.topics
import torch
from l2l_nas import Candidate, Data, Problem, Tokens
from l2l_nas.compress.families import family_of

CONFIG = {"model_type": "llama", "vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 32}
CONFIG |= {"num_attention_heads": 2, "max_position_embeddings": 24, "hidden_act": "silu"}

def build():
    text = torch.tensor(list("".join(pydoc_data.topics.topics.values()).encode()[: 25 * 200])).view(200, 25)
    return Problem(family_of(CONFIG).pool(), Data.from_arrays(text[:, :-1], text[:, 1:]), task=Tokens())
"""
WIKI = " \n = Fox = \n \n It @-@ self jumped over 1 @,@ 000 dogs . \n"
PASSAGES = [{"text": "the value of the name"}, {"context": "an object of type", "target": "str"}]


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with a pool, a run, and texts."""
    place = tmp_path_factory.mktemp("language")
    (place / "small.py").write_text(POOL)
    (place / "wiki.txt").write_text(WIKI)
    (place / "cloze.jsonl").write_text("\n".join(map(json.dumps, PASSAGES)))
    words = [word for word in TINY if not word.startswith("objectives")]
    pool = f"space.pool={place / 'small.py'}:build"
    more = ("objectives=[loss]", "search.trials=2", "data.validation_fraction=0.2", f"folder={place / 'run'}")
    assert main(["search", pool, *words, *more]) == 0
    return place


@pytest.fixture
def words(place) -> list[str]:
    return [f"run={place / 'run'}", f"space.pool={place / 'small.py'}:build", "tokenizer=bytes"]


@pytest.fixture
def model(place):
    return open_model(str(place / "run"), pool=f"{place / 'small.py'}:build", tokenizer="bytes")


def figures(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines() if line.startswith("  ")]
    return {line[1]: float(line[2]) for line in lines}


@pytest.mark.slow
@pytest.mark.parametrize("stride", [0, 3])
def test_wikitext_is_measured_as_a_plain_loop_measures_it(place, words, model, stride, capsys):
    assert main(["evaluate", *words, "task=wikitext", f"file={place / 'wiki.txt'}", f"stride={stride}"]) == 0
    found = figures(capsys.readouterr().out)
    network, tokens, loss = plain(model.server, model.architecture), list(detokenized(WIKI).strip().encode()), 0.0
    for end in range(1, len(tokens)):
        start = max(0, math.ceil((end - 24) / (stride or 24))) * (stride or 24)
        loss -= float(log_likelihoods(network, tokens[start:end])[tokens[end]])
    assert found["word_perplexity"] == pytest.approx(math.exp(loss / 14), rel=1e-3)
    assert found["bits_per_byte"] == pytest.approx(loss / math.log(2) / (len(tokens) - 1), rel=1e-4)


def test_last_words_are_measured(place, words, capsys):
    assert main(["evaluate", *words, "task=lambada", f"file={place / 'cloze.jsonl'}"]) == 0
    printed = capsys.readouterr().out
    assert set(figures(printed)) == {"accuracy", "last_token_accuracy", "target_perplexity"}
    assert printed.endswith(f"2 passages of {place / 'cloze.jsonl'}\n")


@pytest.mark.parametrize(("task", "file"), [("text", "wiki.txt"), ("lambada", "cloze.jsonl")])
def test_a_mark_of_byte_order_is_not_measured(place, model, task, file):
    (place / "marked").write_bytes(b"\xef\xbb\xbf" + (place / file).read_bytes())
    found = [evaluate_text(model, task, place / name)[0].values for name in (file, "marked")]
    assert found[0] == found[1]


def test_it_writes_what_the_library_says(words, model, capsys):
    settings = ["tokens=20", "temperature=0.8", "top_k=40", "seed=3"]
    prompt = 'Say "the", or {a, b} = [é]: ${x} \\'
    assert main(["generate", *words, *settings, f"prompt={prompt}"]) == 0
    begun = list(prompt.encode())
    sampling = Sampling(temperature=0.8, top_k=40, seed=3)
    executor = executor_of(model)
    new = generate(executor, model.architecture, [begun], tokens=20, vocabulary=257, sampling=sampling, ends=[256])
    expected = bytes(token for _, token in new if token < 256).decode(errors="replace")
    assert capsys.readouterr().out == f"{prompt}{expected}\n"


@pytest.mark.slow
def test_a_terminal_gets_no_control_characters_and_none_that_it_cannot_show(words, tmp_path):
    code = (
        "import sys; from l2l_nas.cli import generate; from l2l_nas.__main__ import main;"
        "sys.stdout.isatty = lambda: True; main(sys.argv[1:])"
    )
    more = ["prompt=\x1b[31mn\xe9\t", "tokens=40", "temperature=3"]
    done = subprocess.run(
        [sys.executable, "-c", code, "generate", *words, *more],
        cwd=tmp_path,
        env={**environment(), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=True,
    )
    assert done.stdout.startswith(b"?[31mn?\t")
    assert set(done.stdout) <= {9, 10, *range(32, 127)}


def test_it_begins_a_text_where_there_is_no_prompt(words, capsys):
    assert main(["generate", *words, "tokens=5"]) == 0
    assert 0 < len(capsys.readouterr().out.encode()) <= 5 * 3 + 1


BAD = {
    ("evaluate", "task=wikitex", "file=x"): "task: no task 'wikitex'; did you mean 'wikitext'?",
    ("evaluate", "task=wikitext"): "name the text to measure on: task=wikitext file=FILE",
    ("evaluate", "original=true"): "its pool has no original with weights",
    ("evaluate", "file=x"): "file is of a task on text; add task=wikitext, text, lambada, recall or answers",
    ("evaluate", "task=text", "file=x", "split=test"): "split is of the run's own data; leave it out with task=text",
    ("evaluate", "task=lambada", "file={cloze}", "stride=3"): "stride is of a text's windows, which task=lambada has",
    ("evaluate", "task=lambada", "file={wiki}"): "line 2: no JSON",
    ("evaluate", "task=text", "file={wiki}", "stride=99"): "stride must be 1 to 24, the network's length, or 0",
    ("generate", "temperature=-1"): "temperature must be at least 0, got -1.0",
}


@pytest.mark.parametrize("wrong", BAD, ids=" ".join)
def test_bad_input_is_one_line(place, words, wrong, refused):
    files = {"cloze": place / "cloze.jsonl", "wiki": place / "wiki.txt"}
    own = [
        word for word in words if not ("tokenizer" in word and "task=" not in " ".join(wrong) and "evaluate" in wrong)
    ]
    given = [word.format(**files) if word.startswith("file={") else word for word in wrong[1:]]
    assert BAD[wrong] in refused(wrong[0], *own, *given)


def test_each_rank_has_the_scores_of_all_tokens(place):
    asked = []

    class Asked(RunRanks):
        def server(self, pool, *, tensor=1, gather_logits=True, **options):
            asked.append(gather_logits)
            return super().server(pool, gather_logits=gather_logits, **options)

    open_model(str(place / "run"), pool=f"{place / 'small.py'}:build", tokenizer="bytes", ranks=Asked())
    assert asked == [True]


def test_a_run_whose_tokenizer_is_not_known_is_refused(words, refused):
    assert "name the one that made its tokens: tokenizer=FILE, or bytes" in refused("generate", *words[:2])


@pytest.mark.slow
def test_ctrl_c_ends_it_at_once(words, tmp_path):
    process = start("generate", *words, "prompt=The", "tokens=1000000", cwd=tmp_path)
    assert process.stdout.read(8).startswith("The")
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert out.endswith("\n")
    assert errors == "stopped\n"


@pytest.mark.slow
def test_a_run_on_text_brings_its_tokenizer_and_its_documents(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    Path("text.txt").write_text("A line of text, and one more of the same kind.\n" * 200)
    Path("wiki.txt").write_text(WIKI)
    space = ["space=llama", "space.args.hidden=16", "space.args.depth=1", "space.args.documents=true"]
    data = ["data.source=text.txt", "data.length=24", "data.documents=apart"]
    steps = ["objectives=[loss]", "search.trials=2", "search.steps_per_trial=2", "search.finalist_steps=4"]
    assert main(["search", *space, *data, *steps, "search.finalists=1", "export=false", "folder=run"]) == 0
    model = open_model("run")
    assert model.tokenizer.size == 257
    capsys.readouterr()
    assert main(["evaluate", "run=run", "task=wikitext", "file=wiki.txt"]) == 0
    assert 0 < figures(capsys.readouterr().out)["bits_per_byte"] < 20
    assert main(["generate", "run=run", "prompt=A ", "tokens=5", "temperature=0"]) == 0
    network, tokens = plain(model.server, model.architecture), list(b"A ")
    for _ in range(5):
        tokens.append(int(log_likelihoods(network, tokens).argmax()))
    assert capsys.readouterr().out == bytes(t for t in tokens if t < 256).decode(errors="replace") + "\n"
    assert main(["evaluate", "run=run"]) == 0
    assert "as reported" in capsys.readouterr().out


@pytest.mark.slow
def test_a_published_model_is_measured_and_writes_as_transformers_has_it(tmp_path, capsys):
    torch.manual_seed(0)
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet)
    text = "It jumped over the dogs, and over the cats; it did not jump over the river.\n" * 3
    made.train_from_iterator([text], trainer)
    config = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 48, "vocab_size": made.get_vocab_size()}
    model = hf.GPT2LMHeadModel(hf.GPT2Config(**config, initializer_range=0.3)).eval()
    model.save_pretrained(tmp_path / "model")
    made.save(str(tmp_path / "model" / "tokenizer.json"))
    (tmp_path / "text.txt").write_text(text)
    pool = f"space.pool=hf:{tmp_path / 'model'}"
    assert main(["evaluate", pool, "task=text", f"file={tmp_path / 'text.txt'}", "stride=16"]) == 0
    tokens, loss = torch.tensor(made.encode(text).ids), 0.0
    for end in range(1, len(tokens)):
        start = max(0, math.ceil((end - 48) / 16)) * 16
        with torch.no_grad():
            logits = model(input_ids=tokens[None, start:end]).logits[0, -1]
        loss -= float(logits.double().log_softmax(dim=-1)[tokens[end]])
    found = figures(capsys.readouterr().out)
    assert found["token_perplexity"] == pytest.approx(math.exp(loss / (len(tokens) - 1)), rel=1e-4)
    assert main(["generate", pool, "prompt=It jumped", "tokens=12", "temperature=0"]) == 0
    prompt = torch.tensor([made.encode("It jumped").ids])
    expected = model.generate(prompt, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert capsys.readouterr().out == made.decode(expected[0].tolist(), skip_special_tokens=False) + "\n"


def byte_tokenizer(*special: str) -> Tokenizer:
    """Bytes as tokens behind these, the first of which stands before each text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    alphabet, size = pre_tokenizers.ByteLevel.alphabet(), 256 + len(special)
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(special), initial_alphabet=alphabet)
    made.train_from_iterator([], trainer)
    made.post_processor = processors.TemplateProcessing(single=f"{special[0]} $A", special_tokens=[(special[0], 0)])
    return made


@pytest.fixture
def llama(tmp_path, monkeypatch):
    """A small one in a folder "model", whose tokenizer begins texts; its tokenizer."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    torch.manual_seed(0)
    made = byte_tokenizer("<s>", "</s>")
    config = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config |= {"vocab_size": 258, "max_position_embeddings": 24, "initializer_range": 0.5}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**config)).eval()
    model.save_pretrained("model")
    made.save("model/tokenizer.json")
    return model, made


@pytest.mark.parametrize("prompt", ["It", "<s>It", ""])
def test_a_prompt_begins_as_the_published_tokenizer_has_it(llama, capsys, prompt):
    model, made = llama
    assert main(["generate", "space.pool=hf:model", "tokens=8", "temperature=0", f"prompt={prompt}"]) == 0
    tokens = made.encode(prompt.removeprefix("<s>")).ids
    assert tokens[0] == 0
    found = model.generate(torch.tensor([tokens]), max_new_tokens=8, do_sample=False, eos_token_id=1, pad_token_id=1)
    new = [token for token in found[0].tolist()[len(tokens) :] if token != 1]
    assert capsys.readouterr().out.endswith(made.decode(new, skip_special_tokens=False) + "\n")


def test_what_a_published_model_learns_from_begins_as_its_tokenizer_has_it(llama):
    Path("text.txt").write_text("A line of text, and one more of the same kind.\n" * 40)
    conf = replace(DataConf(), source="text.txt", length=24)
    parts = load_problem("hf:model", {}, **asdict(conf)).data
    for part in (parts.train, parts.validation):
        (inputs,), targets = part.batch(torch.arange(2))
        assert inputs[:, 0].tolist() == [0, 0]
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        assert (targets > 1).all()


def exported(*words: str) -> None:
    """Train the model of the folder "model" for a step, and write it into the folder "out"."""
    Path("text.txt").write_text("A line of text, and one more of the same kind.\n" * 40)
    data = ["data=text", "data.source=text.txt", "data.length=24"]
    steps = ["train.steps=1", "train.batch_size=4", "folder=run"]
    assert main(["train", "space.pool=hf:model", "architecture=original", *data, *steps, *words]) == 0
    assert main(["export", "run=run", "formats=[hugging_face]", "out=out"]) == 0


@pytest.mark.slow
def test_a_run_of_a_published_model_is_measured_and_writes_as_what_it_exports(llama, capsys):
    exported()
    assert "; from the weights that hf:model brings, seed 0" in capsys.readouterr().out.replace("\n", " ")
    measured, written = [], []
    for model in (open_model("run"), open_model("", pool="hf:out")):
        measured.append(evaluate_text(model, "text", Path("text.txt"))[0].values)
        written.append("".join(write_on(model, "A line", tokens=9, sampling=Sampling(temperature=0))))
    assert measured[0] == pytest.approx(measured[1])
    assert written[0] == written[1]


@pytest.mark.slow
def test_what_is_exported_has_the_tokenizer_that_it_was_trained_with(llama):
    made = byte_tokenizer("<|endoftext|>")
    Path("other").mkdir()
    made.save("other/tokenizer.json")
    exported("data.tokenizer=other")
    found, config = hf.AutoTokenizer.from_pretrained("out"), hf.AutoConfig.from_pretrained("out")
    assert found("A line, naïve").input_ids == made.encode("A line, naïve").ids != llama[1].encode("A line, naïve").ids
    assert found.eos_token_id == config.eos_token_id == made.token_to_id("<|endoftext|>") == 0
    assert hf.AutoModelForCausalLM.from_pretrained("out")
    assert open_model("", pool="hf:out").tokenizer.fingerprint == open_model("run").tokenizer.fingerprint


@pytest.mark.slow
def test_what_was_trained_on_bytes_is_exported_without_a_tokenizer(llama):
    exported("data.tokenizer=bytes")
    assert {path.name for path in Path("out").iterdir()} >= {"config.json", "model.safetensors"}
    assert not list(Path("out").glob("*token*"))
    assert json.loads(Path("out/config.json").read_text())["eos_token_id"] == 256
