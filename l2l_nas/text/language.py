"""Language models: measured on files of text, and writing on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from l2l_nas.cost.closed_form import num_parameters, path_states
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.relay.device import open_device
from l2l_nas.relay.interface import Executor
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture
from l2l_nas.text.answers import answers_of
from l2l_nas.text.cloze import lambada, read_passages
from l2l_nas.text.documents import read_text
from l2l_nas.text.generate import Sampling, generate
from l2l_nas.text.network import OfOneDocument, has_documents, length_of, refuse_foresight
from l2l_nas.text.perplexity import perplexity_of, wikitext
from l2l_nas.text.recall import joined, recall_passages
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.fit import score
from l2l_nas.training.samples import Samples
from l2l_nas.training.score import Score
from l2l_nas.training.task import Task

ANSWERS = "answers"
TASKS = ("wikitext", "text", "lambada", "recall", ANSWERS)
WINDOWS = ("wikitext", "text")  # of which a stride is
# of the device's free memory, what weights may take that stay there
_SHARE = 0.5


@dataclass(frozen=True)
class LanguageModel:
    """A network, and what it takes to use it.

    Args:
        server: has its weights.
        architecture: of the server's pool.
        tokenizer: that it was trained with.
        make_relay: makes what runs a network of a server.
        device: where it runs: "cpu", "cuda", "auto".
        micro_batch: texts at a time.
        begin: token that stands before what it goes on with, as a published model was trained; None: none.
        compared: what `compare_published` tells.

    Raises:
        DataError: no language model, or one of fewer tokens than the tokenizer has.
    """

    server: ParamServer
    architecture: Architecture
    tokenizer: Tokenizer
    make_relay: Callable[[ParamServer], Relay]
    device: str
    micro_batch: int = 8
    begin: int | None = None
    compared: str = ""

    def __post_init__(self) -> None:
        length_of(self.server.whole_pool, self.tokenizer.size)

    @cached_property
    def relay(self) -> Relay:
        """What runs it."""
        return self.make_relay(self.server)

    @property
    def length(self) -> int:
        """Of the network's input."""
        return length_of(self.server.whole_pool, self.tokenizer.size)


def evaluate_text(
    model: LanguageModel, task: str, file: Path, *, stride: int = 0, original: LanguageModel | None = None
) -> tuple[Score, int]:
    """Measure a language model on a file.

    Args:
        task: "wikitext" or "text" for perplexity, "lambada" for last words, "recall" for words that were read once,
            "answers" for what the original writes.
        stride: see `perplexity_of`.
        original: what it was found in; of "answers" alone.

    Returns:
        The figures, with their standard errors; and how many windows or passages there were.

    Raises:
        SettingError: no such task, or a stride that it does not take.
        DataError, StorageError: the file or the network cannot be used.
    """
    check_task(task, file, stride=stride)
    if (task == ANSWERS) != (original is not None):
        raise SettingError(f"original is what task={ANSWERS} compares with, and of no other task; got task={task}")
    tasks = _tasks(model, task, file, stride) if original is None else {0: _answers(original, file)}
    refuse_foresight(model.relay, model.architecture, model.length)
    scores = {name: _scored(model, *one) for name, one in tasks.items()}
    found, count = joined(scores) if task == "recall" else scores[0], sum(len(samples) for _, samples in tasks.values())
    text = read_text(file)
    if task in WINDOWS and (lost := model.tokenizer.num_lost(text)):
        why = (
            f"the tokenizer has no token for {lost:,} of {len(text):,} characters and leaves them out: bits_per_byte "
            "and word_perplexity are too low"
        )
        found = replace(found, problem="; ".join(filter(None, (found.problem, why))))
    return found, count


def check_task(task: str, file: Path, *, stride: int = 0) -> None:
    """Refuse what no model could be measured on, before one is opened.

    Raises:
        SettingError, DataError, StorageError: as `evaluate_text`.
    """
    if task not in TASKS:
        raise SettingError(f"task: no task '{task}'{did_you_mean(task, TASKS)}")
    if task not in WINDOWS and stride:
        raise SettingError(f"stride is of a text's windows, which task={task} has none of; leave it out")
    if task == "lambada":
        read_passages(file)
    else:
        read_text(file)


def _tasks(model: LanguageModel, task: str, file: Path, stride: int) -> dict[int, tuple[Task, Samples]]:
    """What is measured on which samples: of recall by distance, else one by 0."""
    tokenizer, length, begin = model.tokenizer, model.length, model.begin
    if task == "lambada":
        return {0: lambada(read_passages(file), tokenizer, length=length, begin=begin)}
    text = read_text(file)
    if task == "recall":
        passages = recall_passages(text, tokenizer, length=length)
        return {far: lambada(some, tokenizer, length=length, begin=begin) for far, some in passages.items()}
    if task == "wikitext":
        return {0: wikitext(text, tokenizer, length=length, stride=stride, begin=begin)}
    words = len(text.split())
    return {0: perplexity_of(text, tokenizer, words=words, length=length, stride=stride, begin=begin)}


def _answers(original: LanguageModel, file: Path) -> tuple[Task, Samples]:
    given, text = (executor_of(original), original.architecture, original.tokenizer), read_text(file)
    return answers_of(*given, text, length=original.length, begin=original.begin)


def _scored(model: LanguageModel, measured: Task, samples: Samples) -> Score:
    if has_documents(model.server.whole_pool):
        samples = OfOneDocument(samples)
    return score(model.relay, model.architecture, samples, task=measured, micro_batch=model.micro_batch)


def is_small(model: LanguageModel) -> bool:
    """Whether the weights of a model take at most half of the device's free memory."""
    free = open_device(model.device).free_bytes()
    return 4 * num_parameters(model.server.whole_pool, model.architecture) <= _SHARE * free


def executor_of(model: LanguageModel) -> Executor:
    """What runs a model token by token: resident where it is small, or a relay, as with several ranks."""
    if model.server.world.size == 1 and is_small(model):
        return ReferenceTrainer(model.server, device=model.device)
    return model.relay


def gathered(model: LanguageModel) -> LanguageModel:
    """A small model of several ranks with all its weights on rank 0, and none elsewhere; all ranks call it."""
    server = model.server.another()
    for key in path_states(server.pool, model.architecture):
        state = model.server.state(key)
        if model.server.world.rank == 0:
            server.put(key, state)
    return replace(model, server=server)


def write_on(
    model: LanguageModel, prompt: str, *, tokens: int, sampling: Sampling, executor: Executor | None = None
) -> Iterator[str]:
    """What a language model goes on with, piece by piece.

    Args:
        prompt: empty for a text from its begin, where the tokenizer has a token between texts.
        tokens: at most so many.

    Raises:
        SettingError, DataError: as `generate`.
    """
    end, ends = model.tokenizer.end, model.tokenizer.ends
    begun = model.tokenizer.encode(prompt)
    if model.begin is not None and begun[:1] != [model.begin]:
        begun = [model.begin, *begun]
    begun = begun or ([] if end is None else [end])
    if not begun:
        raise SettingError("prompt: this tokenizer has no token that begins a text; give a prompt")
    new = generate(
        executor or executor_of(model),
        model.architecture,
        [begun],
        tokens=tokens,
        vocabulary=model.tokenizer.size,
        sampling=sampling,
        ends=ends,
    )
    return _pieces(model.tokenizer, begun, (token for _, token in new if token not in ends))


def _pieces(tokenizer: Tokenizer, begun: list[int], new: Iterator[int]) -> Iterator[str]:
    """What each token adds to the text. A character of several tokens comes with the last of them."""
    tokens = list(begun)
    shown = text = tokenizer.decode(tokens)
    for token in new:
        tokens.append(token)
        text = tokenizer.decode(tokens)
        if not text.endswith("\ufffd"):
            yield text[len(shown) :]
            shown = text
    yield text[len(shown) :]
