"""Language models of runs, and published ones, as lm-evaluation-harness measures them; needs the package `lm_eval`.

    import lm_eval
    from l2l_nas.runs.harness import Harness
    from l2l_nas.runs.language import open_model

    lm_eval.simple_evaluate(Harness(open_model("RUN")), tasks=["NAME"], task_manager=...)

or `evaluate_task(open_model("RUN"), read_task(Path("TASK.yaml")))`, which is what `evaluate task=lm_eval` does.

Texts become tokens as the harness's own models have them: a context and what follows are encoded together, and the
tokens beyond the context's are those of what follows.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from l2l_nas.errors import DataError, SettingError, user_code
from l2l_nas.relay.interface import Executor
from l2l_nas.runs import harness_task
from l2l_nas.runs.language import LanguageModel, executor_of, relay_of, write_on
from l2l_nas.text.cloze import Cloze, continuations
from l2l_nas.text.generate import Sampling
from l2l_nas.text.network import OfOneDocument, has_documents, refuse_foresight
from l2l_nas.training.fit import sample_figures
from l2l_nas.training.samples import Samples
from l2l_nas.training.score import Score

try:
    import lm_eval
    import lm_eval.api.metrics
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import METRIC_REGISTRY
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
except ImportError as error:
    raise SettingError("lm-evaluation-harness is not installed: pip install 'l2l-nas[lm-eval]'") from error

# what the harness's own models give where a task says nothing
_TOKENS = 256

_RESAMPLED = 1000  # times, for the standard error of what is no mean

Pair = tuple[tuple[str, str] | None, list[int], list[int]]


class Harness(TemplateLM):  # type: ignore[misc]
    """A language model, as tasks of the harness ask it.

    Args:
        model: the network with its weights and tokenizer.

    Raises:
        DataError: the network sees later tokens than it predicts.
        SettingError: the tokenizer has no token that a text can begin with.
    """

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model
        self._relay: Executor = relay_of(model)
        refuse_foresight(self._relay, model.architecture, model.length)
        self._writer: Executor | None = None
        found = next(
            (token for token in (model.begin, model.tokenizer.begin, model.tokenizer.end) if token is not None), None
        )
        if found is None:
            raise SettingError("this tokenizer has no token that a text can begin with")
        self._prefix = found

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self._prefix if self.model.tokenizer.end is None else self.model.tokenizer.end

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text of which all is to be predicted."""
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """What decides which tokens a text has, for the harness's caches."""
        return self.model.tokenizer.fingerprint

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **others: Any) -> list[int]:
        """Tokens of a text, behind the one that this model's texts begin with, if there is one."""
        del others
        tokens, begin = self.model.tokenizer.encode(string), self.model.begin
        return tokens if begin is None or add_special_tokens is False or tokens[:1] == [begin] else [begin, *tokens]

    def _loglikelihood_tokens(self, requests: Sequence[Pair], **others: Any) -> list[tuple[float, bool]]:
        """Log likelihood of each continuation, and whether each of its tokens is the most likely one.

        Raises:
            DataError: a continuation of more tokens than the network takes, or of none.
        """
        del others
        named = [(context, more, "" if texts is None else repr(texts[1])) for texts, context, more in requests]
        samples: Samples = continuations(named, self.model.length)
        if has_documents(self.model.server.pool):
            samples = OfOneDocument(samples)
        task = Cloze()
        figures = sample_figures(
            self._relay, self.model.architecture, samples, task=task, micro_batch=self.model.micro_batch
        )
        hits, losses = (figures[:, task.names.index(name)].tolist() for name in ("hits", "loss"))
        found = [(-loss, hit == 1.0) for loss, hit in zip(losses, hits, strict=True)]
        for (texts, _, _), answer in zip(requests, found, strict=True):
            if texts is not None:
                self.cache_hook.add_partial("loglikelihood", texts, answer)
        return found

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log likelihood of whole texts, each token predicted once in windows of the network's length.

        As with the harness's own models, the token that a text begins with is one of those that are predicted.
        """
        del disable_tqdm
        pairs: list[Pair] = []
        counts = []
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text)
            windows = get_rolling_token_windows(
                token_list=tokens, prefix_token=self._prefix, max_seq_len=self.model.length, context_len=1
            )
            mine = [(None, *make_disjoint_window(window)) for window in windows]
            pairs += mine
            counts.append(len(mine))
        found = iter(self._loglikelihood_tokens(pairs)) if pairs else iter(())
        sums = [sum(next(found)[0] for _ in range(count)) for count in counts]
        for request, value in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, value)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model goes on with, up to one of a task's words or its number of tokens."""
        del disable_tqdm
        if self._writer is None:
            self._writer = executor_of(self.model)
        found = []
        for context, options in (request.args for request in requests):
            until = options.get("until", [])
            ends = [end for end in ([until] if isinstance(until, str) else until) if end]
            draws = options.get("do_sample", options.get("temperature", 0) > 0)
            sampling = Sampling(
                temperature=float(options.get("temperature", 1.0)) if draws else 0.0,
                top_k=int(options.get("top_k", 0)),
                top_p=float(options.get("top_p", 1.0)),
            )
            tokens = int(options.get("max_gen_toks", _TOKENS))
            text = ""
            for piece in write_on(self.model, context, tokens=tokens, sampling=sampling, executor=self._writer):
                text += piece
                if any(end in text for end in ends):
                    break
            found.append(text[: min((text.find(end) for end in ends if end in text), default=len(text))])
            self.cache_hook.add_partial("generate_until", (context, options), found[-1])
        return found


def read_task(file: Path) -> dict[str, Any]:
    """A task of the harness on local files, as a YAML file tells it.

    Raises:
        StorageError, SettingError: see `harness_task.read_task`.
    """
    return harness_task.read_task(file, metrics=set(METRIC_REGISTRY.keys()))


def evaluate_task(model: LanguageModel, task: Mapping[str, Any]) -> tuple[Score, int]:
    """Measure a language model on a task, as `read_task` gives it.

    Returns:
        The figures, with their standard errors; and how many samples there were.

    Raises:
        SettingError, DataError: as `Harness`; or the harness does not take the task or its data.
    """
    name = str(task["task"])
    harness, manager = Harness(model), TaskManager(include_defaults=False)
    with user_code(f"task '{name}' of lm-evaluation-harness", DataError), _one_process():
        found = lm_eval.simple_evaluate(
            harness, tasks=[dict(task)], task_manager=manager, bootstrap_iters=_RESAMPLED, log_samples=False
        )
    values: dict[str, float] = {}
    errors: dict[str, float] = {}
    for key, value in found["results"][name].items():
        metric, comma, how = key.partition(",")
        if comma and isinstance(value, int | float):
            shown = metric.removesuffix("_stderr") + ("" if how == "none" else f" {how}")
            (errors if metric.endswith("_stderr") else values)[shown] = float(value)
    return Score(values, errors), int(found["n-samples"][name]["effective"])


@contextlib.contextmanager
def _one_process() -> Iterator[None]:
    """Standard errors without processes: a fork of one whose threads hold locks may never end."""
    name = "DISABLE_MULTIPROC"  # which the harness reads
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        yield
    finally:
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
