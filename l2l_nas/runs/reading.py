"""What all ranks do of a command that reads a run: `evaluate` and `generate`.

Rank 0 runs the command; to open a network, and to run it, takes all ranks. See [Note: who leads] in `parallel/lead.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from l2l_nas.compress.pool import is_published, published_pool
from l2l_nas.eps.identity import fingerprint
from l2l_nas.eps.optimizers.rules import SGD
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import SettingError
from l2l_nas.relay.relay import Relay
from l2l_nas.runs.build import build_relay, set_threads
from l2l_nas.runs.fields import value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.locate import AUTO, begin_of, compare_published, is_text, tokenizer_of
from l2l_nas.runs.mesh import check_mesh, refuse_undivided
from l2l_nas.runs.ranks import RunRanks, compare, compare_files
from l2l_nas.runs.saved import LoadedRun, SavedRun, load_found, original_of
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.runs.settings import EvaluateConf, GenerateConf
from l2l_nas.text.generate import Sampling
from l2l_nas.text.language import ANSWERS, LanguageModel, evaluate_text, executor_of, gathered, is_small, write_on
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
        if self.ranks.is_first:  # the others raise what it raises
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
        relay = relay_on(found.server, found.relay)
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
        options: dict[str, Any] = {"pool": conf.space.pool, "tokenizer": conf.tokenizer, "ranks": self.ranks}
        opened = partial(open_model, conf.run, **options, tensor=conf.parallel.tensor)
        with self.ranks.exchange.working("the reading of the weights"):
            self._model = opened(original=original)
            is_asked = getattr(conf, "task", "") == ANSWERS
            self._original = opened(original=True) if is_asked else None
        return self._model

    def score_text(self, task: str, file: Path, *, stride: int = 0) -> tuple[Score, int]:
        """See `evaluate_text`."""
        found: tuple[Score, int] = self._do("score text", task, file, stride)
        return found

    def _score_text(self, task: str, file: Path, stride: int) -> tuple[Score, int]:
        compare_files(self.ranks, file)
        return evaluate_text(self._model, task, file, stride=stride, original=self._original)

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


def open_model(
    run: str,
    *,
    pool: str = "",
    tokenizer: str = "",
    original: bool = False,
    ranks: RunRanks | None = None,
    tensor: int = 1,
) -> LanguageModel:
    """The best network of a run, its original, or a published model.

    Args:
        run: the run's folder; empty for a published model.
        pool: the pool again, if it is the user's own; of a published model, `hf:FOLDER`.
        tokenizer: what it was trained with, as `load_tokenizer` takes it; empty: what the run's settings say, or the
            model's own.
        original: whether it is the network that the run began with; see `original_of`.
        ranks, tensor: see `load_found`; each rank has the scores of all tokens.

    Raises:
        SettingError, StorageError: as `load_found`, `original_of` and `published_pool`; or no tokenizer is known.
        DataError: as `LanguageModel`.
    """
    if not run and is_published(pool):
        made = published_pool(pool)
        ranks = ranks or RunRanks()
        if ranks.size > 1:
            compare(ranks, {"the search space's fingerprint": fingerprint(made)})
        server = ranks.server(made, tensor=tensor, optimizer=SGD(momentum=0.0), seed=0)
        refuse_undivided(server, made.original)
        chosen = tokenizer_of(pool, tokenizer or AUTO)
        if tokenizer:
            made.tokenizer = chosen
        conf = RelayConf()
        return LanguageModel(
            server, made.original, chosen, partial(relay_on, conf=conf), conf.device, begin=begin_of(pool, chosen)
        )
    found = load_found(run, pool=pool, ranks=ranks, tensor=tensor, gather_logits=True)
    if original:
        found = original_of(found, ranks=ranks, tensor=tensor, gather_logits=True)
    config = SavedRun(RunFolder(Path(run))).config
    is_of_text = is_text(str(value_of(config, "data.source")))
    named = tokenizer or (value_of(config, "data.tokenizer") if is_of_text else None)
    if not named:
        raise SettingError(
            f"{run}: that run's data have no tokenizer; name the one that made its tokens: tokenizer=FILE, or bytes"
        )
    pool = pool or str(value_of(config, "space.pool"))
    chosen = tokenizer_of(pool, str(named))
    begin = begin_of(pool, chosen)
    made_by, device = partial(relay_on, conf=found.relay), found.relay.device
    return LanguageModel(found.server, found.architecture, chosen, made_by, device, found.micro_batch, begin)


def relay_on(server: ParamServer, conf: RelayConf) -> Relay:
    """What runs a network of a run: the relay of its settings."""
    relay = build_relay(server, conf, seed=0)
    set_threads(conf.threads, relay)
    return relay
