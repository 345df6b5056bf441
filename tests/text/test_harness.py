"""lm-evaluation-harness on our networks: the figures of its own models, and of our `evaluate`."""

from __future__ import annotations

import json
import math
import random
import re

import pytest
import torch
import transformers as hf
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

lm_eval = pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from l2l_nas.__main__ import main  # noqa: E402
from l2l_nas.errors import DataError, SettingError, StorageError  # noqa: E402
from l2l_nas.runs.harness import Harness, read_task  # noqa: E402
from l2l_nas.runs.language import evaluate_text, open_model  # noqa: E402
from tests.cli.runs import ROOT  # noqa: E402

TEXT = "it jumped over the dogs and cats did not jump river slowly again when night came"
WORDS = TEXT.split(" ")
TASK = """
task: last_word
dataset_path: json
dataset_kwargs:
  data_files:
    test: {file}
test_split: test
output_type: loglikelihood
doc_to_text: "{{{{context}}}}"
doc_to_target: " {{{{target}}}}"
metric_list:
  - metric: perplexity
  - metric: acc
"""


def texts(count, *, most=12, seed=0):
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, most))) for _ in range(count)]


@pytest.fixture(scope="module", params=["without a begin", "with a begin"])
def published(request, tmp_path_factory):
    """A small random llama in a folder, and its tokenizer."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("model")
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    made.train_from_iterator(texts(200), trainer)
    if request.param == "with a begin":
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = hf.LlamaConfig(
        **sizes, vocab_size=made.get_vocab_size(), max_position_embeddings=24, initializer_range=0.5, bos_token_id=0,
        eos_token_id=1,
    )  # fmt: skip
    model = hf.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    made.save(str(folder / "tokenizer.json"))
    begin = {"bos_token": "<s>"} if request.param == "with a begin" else {"bos_token": "</s>"}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>", **begin)
    return model, tokenizer, folder


@pytest.fixture(scope="module")
def both(published):
    """The harness's own model, and ours."""
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="it needs accelerate and peft")
    model, tokenizer, folder = published
    theirs = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, max_length=24, batch_size=1, device="cpu")
    return theirs, Harness(open_model("", pool=f"hf:{folder}"))


def asked(kind, *arguments):
    return [Instance(kind, {}, one, index) for index, one in enumerate(arguments)]


def test_likelihoods_are_those_of_the_harness_s_own_model(both):
    theirs, ours = both
    contexts = [*texts(20), *texts(4, most=60, seed=1), "it jumped  ", ""]
    continuations = [f" {text}" for text in texts(len(contexts), most=5, seed=2)]
    requests = asked("loglikelihood", *zip(contexts, continuations, strict=True))
    expected, found = theirs.loglikelihood(requests, disable_tqdm=True), ours.loglikelihood(requests)
    for (value, greedy), (our_value, our_greedy) in zip(expected, found, strict=True):
        assert our_value == pytest.approx(value, rel=1e-4)
        assert our_greedy == greedy
    # what is most likely is found to be so
    for context in contexts[:3]:
        (best,) = ours.generate_until(asked("generate_until", (context, {"until": ["</s>"], "max_gen_toks": 3})))
        ids = ours.tok_encode(context + best)
        if ids[: len(ours.tok_encode(context))] == ours.tok_encode(context) and best and not best.startswith("\ufffd"):
            assert (
                theirs.loglikelihood(asked("loglikelihood", (context, best)), disable_tqdm=True)[0][1]
                == (ours.loglikelihood(asked("loglikelihood", (context, best)))[0][1])
            )


def test_whole_texts_have_the_likelihood_of_the_harness_s_own_model(both):
    theirs, ours = both
    requests = asked("loglikelihood_rolling", *((text,) for text in [*texts(6), *texts(3, most=80, seed=3)]))
    expected = theirs.loglikelihood_rolling(requests, disable_tqdm=True)
    assert ours.loglikelihood_rolling(requests) == pytest.approx(expected, rel=1e-4)


def test_it_goes_on_as_the_harness_s_own_model_and_stops_at_the_task_s_words(both):
    theirs, ours = both
    options = {"until": [" the", "</s>"], "max_gen_toks": 6, "do_sample": False}
    requests = asked("generate_until", *((text, dict(options)) for text in texts(5, most=8)))
    assert ours.generate_until(requests) == theirs.generate_until(requests, disable_tqdm=True)


def test_a_task_of_local_files_gives_the_figures_of_evaluate(published, tmp_path):
    folder = published[2]
    passages = [text.rpartition(" ") for text in texts(25, seed=4)]
    file = tmp_path / "passages.jsonl"
    file.write_text("".join(json.dumps({"context": a, "target": b}) + "\n" for a, _, b in passages))
    (tmp_path / "last_word.yaml").write_text(TASK.format(file=file))
    model = open_model("", pool=f"hf:{folder}")
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(Harness(model), tasks=["last_word"], task_manager=manager, bootstrap_iters=0)
    figures = found["results"]["last_word"]
    score, count = evaluate_text(model, "lambada", file)
    assert count == len(passages)
    assert figures["perplexity,none"] == pytest.approx(score.values["target_perplexity"], rel=1e-5)
    assert figures["acc,none"] == score.values["accuracy"]


def test_evaluate_measures_on_a_task_of_the_docs(published, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "tutorials" / "evaluate_text.md").read_text()
    (shown,) = re.findall(r"<!-- last_word.yaml -->\n```yaml\n(.*?)```", page, re.S)
    (tmp_path / "last_word.yaml").write_text(shown)
    passages = [text.rpartition(" ") for text in texts(12, seed=6)]
    lines = [json.dumps({"context": a, "target": b}) for a, _, b in passages]
    (tmp_path / "words.jsonl").write_text("\n".join(lines))
    model = [f"space.pool=hf:{published[2]}"]
    assert main(["evaluate", *model, "task=lambada", "file=words.jsonl"]) == 0
    ours = dict(re.findall(r"lambada (\w+) +(\S+ ± \S+)", capsys.readouterr().out))
    assert main(["evaluate", *model, "task=lm_eval", "file=last_word.yaml"]) == 0
    said = capsys.readouterr().out
    assert f"lm_eval acc                 {ours['accuracy'].split()[0]} ±" in said
    assert f"lm_eval perplexity          {ours['target_perplexity'].split()[0]} ±" in said
    assert "12 samples of last_word.yaml" in said
    (tmp_path / "words.jsonl").write_text('{"other": 1}\n')
    assert main(["evaluate", *model, "task=lm_eval", "file=last_word.yaml"]) == 2
    assert "task 'last_word' of lm-evaluation-harness raised" in capsys.readouterr().err.splitlines()[-1]


LOCAL = "task: a\ndataset_path: json\ndataset_kwargs: {data_files: b.jsonl"
PLAIN = """{% for one in options %}{{loop.index}}. {{one.strip()|upper}} {% endfor %}
{{ names[label] if label is defined else words[0:2] ~ "a" }}{% set b = 1 + 2 %}{{ b > 2 and not c }}"""


def test_templates_that_only_read_are_taken(tmp_path):
    task = {"task": "a", "dataset_path": "json", "dataset_kwargs": {"data_files": "b.jsonl"}}
    task |= {"doc_to_text": PLAIN, "doc_to_choice": "{{choices}}", "metric_list": [{"metric": "acc"}]}
    (tmp_path / "task.yaml").write_text(yaml.safe_dump(task))
    assert read_task(tmp_path / "task.yaml") == task


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("task: [a]\ngroup: b", "it needs a name"),
        ("task: a\ninclude: b.yaml", "'include' is not taken"),
        ("task: a\nclass: b.C", "'class' is not taken"),
        (f"{LOCAL}, download_mode: x}}", "its data must be files of this machine"),
        ("task: a\ndataset_path: json\ndataset_kwargs: {data_files: 'https://a/b'}", "files of this machine"),
        (f"{LOCAL}}}\nmetric_list: [{{metric: mine.py}}]", "expected a metric of the harness"),
        (f"{LOCAL}}}\nmetric_list: [{{metric: acc, hf_evaluate: true}}]", "'hf_evaluate' is not taken"),
        (f"{LOCAL}}}\ndoc_to_text: '{{{{a.__class__}}}}'", "may not have the name '__class__'"),
        (f"{LOCAL}}}\ndoc_to_text: '{{{{a[\"__class__\"]}}}}'", "may not have the name '__class__'"),
        (f"{LOCAL}}}\ndoc_to_choice: ['{{{{a.b()}}}}']", "may not have calls but of"),
        (f"{LOCAL}}}\ndoc_to_text: '{{{{lipsum()}}}}'", "may not have calls but of"),
        (f"{LOCAL}}}\ndoc_to_text: '{{{{a|attr(b)}}}}'", "may not have the filter 'attr'"),
        (f"{LOCAL}}}\ndoc_to_text: '{{% include a %}}'", "may not have a include"),
        (f"{LOCAL}}}\ndoc_to_text: '{{{{a'", "may not have this syntax"),
        ("task: a\ndataset_path: lambada", "its data must be files of this machine"),
        ("task: a\ndataset_path: json", "its data must be files of this machine"),
    ],
)
def test_a_task_that_is_not_of_local_files_is_refused(tmp_path, text, says):
    (tmp_path / "task.yaml").write_text(text)
    with pytest.raises(SettingError, match=says):
        read_task(tmp_path / "task.yaml")


def test_a_task_that_names_code_is_refused_unread(tmp_path):
    (tmp_path / "task.yaml").write_text("task: a\ndoc_to_text: !function utils.text")
    (tmp_path / "utils.py").write_text("raise SystemExit")
    with pytest.raises(StorageError, match=r"task\.yaml"):
        read_task(tmp_path / "task.yaml")


def test_evaluate_puts_the_begin_before_a_text_as_the_model_was_trained(published, tmp_path):
    model, tokenizer, folder = published
    text = " ".join(texts(10, seed=5))
    (tmp_path / "text.txt").write_text(text)
    opened = open_model("", pool=f"hf:{folder}")
    score, _ = evaluate_text(opened, "text", tmp_path / "text.txt", stride=8)
    tokens = tokenizer.encode(text)
    assert (tokens[0] == 0) == (opened.begin is not None)
    loss = 0.0
    for end in range(1, len(tokens)):
        start = max(0, -(-(end - 24) // 8)) * 8
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([tokens[start:end]])).logits[0, -1]
        loss -= float(logits.double().log_softmax(dim=-1)[tokens[end]])
    assert score.values["token_perplexity"] == pytest.approx(math.exp(loss / (len(tokens) - 1)), rel=1e-4)
    first = 0 if opened.begin is not None else len(tokenizer.decode(tokens[:1]).encode())
    assert score.values["bits_per_byte"] == pytest.approx(loss / math.log(2) / (len(text.encode()) - first), rel=1e-4)


def test_a_continuation_that_is_too_long_is_refused(both):
    with pytest.raises(DataError, match="the network takes 24"):
        both[1].loglikelihood(asked("loglikelihood", ("it", " jumped over the dogs" * 30)))
