"""What all ranks do of a command that reads a run: `evaluate` and `generate`.

Rank 0 runs the command; to open a network, and to run it, takes all ranks. See [Note: who leads] in `parallel/lead.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from l2l_nas.runs.language import (
    LanguageModel,
    evaluate_text,
    executor_of,
    gathered,
    is_small,
    open_model,
    relay_of,
    write_on,
)
from l2l_nas.runs.locate import compare_published
from l2l_nas.runs.mesh import check_mesh
from l2l_nas.runs.ranks import RunRanks, compare_files
from l2l_nas.runs.saved import LoadedRun, load_found, original_of
from l2l_nas.runs.settings import EvaluateConf, GenerateConf
from l2l_nas.text.generate import Sampling
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.score import Score


class Reading:
    """A network of a run, opened by all ranks of a command.

    Rank 0 calls the public methods; others `follow`.

    Args:
        conf: of the command.
        ranks: of it; None: this process alone.

    Raises:
        SettingError: the ranks are no such mesh as the settings want.
    """

    def __init__(self, conf: EvaluateConf | GenerateConf, ranks: RunRanks | None = None) -> None:
        self.conf, self.ranks = conf, ranks or RunRanks()
        check_mesh(conf.parallel, self.ranks.size)

    def follow(self) -> None:
        """Do what rank 0 does, until its command is over.

        Raises:
            BaseException: what ended it, on rank 0 or here.
        """
        self.ranks.follow({name: getattr(self, f"_{name.replace(' ', '_')}") for name in _ACTIONS})

    def _do(self, name: str, *args: Any) -> Any:
        act: Callable[..., Any] = getattr(self, f"_{name.replace(' ', '_')}")
        return self.ranks.lead.do(name, args, act)

    def open_run(self, *, original: bool = False) -> LoadedRun:
        """The best network of the run, or what it began with. Raises L2LError: see `load_found`, `original_of`."""
        found: LoadedRun = self._do("open run", original)
        return found

    def _open_run(self, original: bool) -> LoadedRun:
        options: dict[str, Any] = {"ranks": self.ranks, "tensor": self.conf.parallel.tensor}
        with self.ranks.exchange.working("the reading of the run"):
            found = load_found(self.conf.run, pool=self.conf.space.pool, **options)
            self._run = found = original_of(found, **options) if original else found
        relay = relay_of(found)
        found.problem.check(relay.shapes)
        batches = Batches(found.problem.data.train, batch_size=found.batch_size, seed=found.server.seed)
        self.trainer = Trainer(relay, found.problem.measured_task, batches, found.micro_batch)
        return found

    def score(self, split: str) -> Score:
        """Its metrics on a part of the run's data: train, validation or test."""
        found: Score = self._do("score", split)
        return found

    def _score(self, split: str) -> Score:
        return self.trainer.score(self._run.architecture, getattr(self._run.problem.data, split))

    def recalibrate(self, batches: int) -> None:
        """Measure its BatchNorm statistics anew on so many batches; saved weights stay as they are."""
        self._do("recalibrate", batches)

    def _recalibrate(self, batches: int) -> None:
        self.trainer.recalibrate(self._run.architecture, batches=batches)

    def open_model(self, *, original: bool = False) -> LanguageModel:
        """The run's network as a language model, or a published one. Raises L2LError: see `open_model`."""
        model: LanguageModel = self._do("open model", original)
        if self.conf.run:
            return model
        return replace(model, compared=compare_published(model.server.whole_pool))

    def _open_model(self, original: bool) -> LanguageModel:
        conf = self.conf
        with self.ranks.exchange.working("the reading of the weights"):
            self._model = open_model(
                conf.run,
                pool=conf.space.pool,
                tokenizer=conf.tokenizer,
                original=original,
                ranks=self.ranks,
                tensor=conf.parallel.tensor,
            )
        return self._model

    def score_text(self, task: str, file: Path, *, stride: int = 0) -> tuple[Score, int]:
        """See `evaluate_text`."""
        found: tuple[Score, int] = self._do("score text", task, file, stride)
        return found

    def _score_text(self, task: str, file: Path, stride: int) -> tuple[Score, int]:
        compare_files(self.ranks, file)
        return evaluate_text(self._model, task, file, stride=stride)

    def write(self, prompt: str, *, tokens: int, sampling: Sampling, show: Callable[[Iterator[str]], None]) -> None:
        """Have the model go on with a text; see `write_on`. Of a small model, ranks would only wait for each other.

        Args:
            show: takes the pieces as they come.
        """
        if self.ranks.size > 1 and is_small(self._model):
            self._do("gather")
        elif self.ranks.size > 1:
            self.ranks.lead.do(
                "write", (prompt, tokens, sampling), lambda *_: show(self._pieces(prompt, tokens, sampling))
            )
            return
        show(self._pieces(prompt, tokens, sampling))

    def _gather(self) -> None:
        self._model = gathered(self._model)

    def _write(self, prompt: str, tokens: int, sampling: Sampling) -> None:
        for _ in self._pieces(prompt, tokens, sampling):
            pass

    def _pieces(self, prompt: str, tokens: int, sampling: Sampling) -> Iterator[str]:
        return write_on(self._model, prompt, tokens=tokens, sampling=sampling, executor=executor_of(self._model))


_ACTIONS = ("open run", "score", "recalibrate", "open model", "score text", "gather", "write")
