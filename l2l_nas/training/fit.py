"""The training loop and evaluation, for any executor."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from l2l_nas.arguments import check_count, check_function, check_kind, check_methods, of_argument
from l2l_nas.errors import DataError
from l2l_nas.relay.interface import Batch, Executor, Reduce, Targets, bytes_of, cut_sizes, cut_targets, each, samples_of
from l2l_nas.relay.reference import ReferenceTrainer
from l2l_nas.relay.relay import Relay
from l2l_nas.space.architecture import Architecture, check_architectures
from l2l_nas.space.objective import learned_by, objective_layer
from l2l_nas.space.shapes import check_shapes, refuse_lone_sample
from l2l_nas.space.values import as_tuple
from l2l_nas.training.data import Batches
from l2l_nas.training.lengths import Texts, TrainingLengths
from l2l_nas.training.metrics import MeasuredTask, of_samples
from l2l_nas.training.samples import SCORING, Loaded, Samples, groups_of
from l2l_nas.training.schedule import Schedule
from l2l_nas.training.score import Score
from l2l_nas.training.shares import EvaluationShare, TrainingShare, rows_of
from l2l_nas.training.tally import Tally
from l2l_nas.training.task import SampleMetrics, Task

# evaluation keeps the activations of this many samples at once, and of fewer where these are more bytes
_CHUNK, _CHUNK_BYTES = 1024, 1 << 28


@dataclass(frozen=True)
class Trainer:
    """What all training of a run has in common.

    Raises:
        SettingError: one of these is something else.
    """

    executor: Executor
    task: Task
    batches: Batches  # the training data, by step
    micro_batch: int  # samples at a time
    counted: Callable[[float], None] = lambda steps: None  # called with each step that is done, as 1

    def __post_init__(self) -> None:
        check_methods("Trainer: executor", self.executor, ["train_step"], wanted="a Relay or ReferenceTrainer")
        check_methods("Trainer: task", self.task, ("loss", "count"), wanted="a task, such as Classification()")
        check_kind("Trainer: batches", self.batches, Batches, wanted="Batches")
        check_count("Trainer: micro_batch", self.micro_batch, least=1)
        check_function("Trainer: counted", self.counted, wanted="a function of a number of steps")

    def fit(
        self,
        path_at: Callable[[int], Architecture],
        *,
        start: int,
        steps: int,
        schedule: Schedule,
        offset: int = 0,
        after_step: Callable[[int, float], None] = lambda step, loss: None,
    ) -> None:
        """Train.

        Batches, paths, learning rates and the random numbers of dropout are functions of (seed, step). So a training
        goes on as if it had not been interrupted from a `Checkpoint` of the server, with `start` the step after it, and
        fewer `steps`.

        Args:
            path_at: the architecture of a step; asked for once, in order, one step ahead.
            start: first step: it decides the batch, the path and the random numbers.
            schedule: of the learning rate, over step - offset.
            after_step: called with each step and its loss.

        Raises:
            NonFiniteError: the loss or a gradient is not finite.
            SpaceError: a micro-batch of one sample comes up, and a layer cannot train on one.
            SettingError: an argument of another type.
        """
        check_count("fit: start", start)
        check_count("fit: steps", steps)
        check_function("fit: path_at", path_at, wanted="a function of the step")
        check_methods("fit: schedule", schedule, ["at"], wanted="a schedule, such as Cosine(peak, steps)")
        check_count("fit: offset", offset, most=start)
        check_function("fit: after_step", after_step, wanted="a function of the step and the loss")
        end = start + steps
        path = partial(self._path, path_at, refuses=self._leaves_one(start, steps))
        architecture = path(start) if steps > 0 else None
        share = self._training_share()
        loaded = self.batches.ahead(start, steps) if share is None else share.ahead(start, steps)
        texts = TrainingLengths(self.executor, self.batches.part) if type(self.batches) is Batches else None
        for step, (inputs, targets) in enumerate(loaded, start):
            assert architecture is not None
            upcoming = path(step + 1) if step + 1 < end else None
            more: dict[str, Any] = {} if share is None else {"samples": share.samples(step)}
            if texts is not None and (lengths := texts.of(architecture, inputs, self.micro_batch)) is not None:
                more["lengths"] = lengths
            result = self.executor.train_step(
                architecture,
                inputs,
                targets,
                objective=self.task,
                micro_batch=self.micro_batch,
                lr=schedule.at(step - offset),
                step=step,
                upcoming=upcoming,
                **more,
            )
            self.counted(1.0)
            after_step(step, result.loss)
            architecture = upcoming

    def _training_share(self) -> TrainingShare | None:
        """What ranks read of mini-batches; None: all of them."""
        relay, is_plain = self.executor, type(self.batches) is Batches
        if not isinstance(relay, Relay) or relay.server.exchange.size == 1 or not is_plain:
            return None
        is_apart = self.batches.part.is_by_row and not self.batches.part.is_sequential
        return TrainingShare(self.batches, partial(relay.own_rows, micro_batch=self.micro_batch)) if is_apart else None

    def check(self, architecture: Architecture | None, *, steps: int) -> None:
        """Refuse to train for so many steps where `fit` would refuse it at one of them.

        Args:
            architecture: what is trained; None for any of the pool.

        Raises:
            SpaceError: a micro-batch of one sample comes up, and a layer cannot train on one.
        """
        if architecture is not None:
            self.executor.server.pool.path(architecture)
        if self._leaves_one(0, steps):
            self._refuse_one_sample(architecture)

    def _leaves_one(self, start: int, steps: int) -> bool:
        """Whether a micro-batch of one sample comes up."""
        return any(1 in cut_sizes(samples, self.micro_batch) for samples in self.batches.sizes(start, steps))

    def _path(self, path_at: Callable[[int], Architecture], step: int, *, refuses: bool) -> Architecture:
        architecture = path_at(step)
        with of_argument("fit: path_at"):
            architecture = Architecture.from_choices(architecture)
        if refuses:  # before the micro-batch of one comes
            self._refuse_one_sample(architecture)
        return architecture

    def _refuse_one_sample(self, architecture: Architecture | None) -> None:
        refuse_lone_sample(
            self.executor.server.pool,
            architecture,
            advice=f"micro-batches of {self.micro_batch} leave one: choose train.batch_size and train.micro_batch that "
            "do not, or drop_last=True for a DataLoader whose last mini-batch does",
        )

    def has_buffers(self, architecture: Architecture) -> bool:
        """Whether a layer has any, such as BatchNorm's statistics."""
        server = self.executor.server
        return any(server.layout(layer.key).buffers for layer in server.pool.path(architecture))

    def recalibrate(self, architecture: Architecture, *, batches: int = 8) -> None:
        """Measure BatchNorm statistics of one architecture on the first batches; without buffers, do nothing."""
        check_count("recalibrate: batches", batches, least=1)
        if self.has_buffers(architecture):
            self.executor.recalibrate(architecture, [self.batches.at(step)[0] for step in range(batches)])

    def evaluate(self, architecture: Architecture, split: Samples) -> dict[str, float]:
        """All metrics of a split, in evaluation mode."""
        return evaluate(self.executor, architecture, split, task=self.task, micro_batch=self.micro_batch)

    def score(self, architecture: Architecture, split: Samples) -> Score:
        """All metrics of a split as `evaluate` finds them, and their standard errors."""
        return score(self.executor, architecture, split, task=self.task, micro_batch=self.micro_batch)

    def evaluate_population(
        self, architectures: Sequence[Architecture], split: Samples, *, max_bytes: int | None = None
    ) -> list[dict[str, float]]:
        """`evaluate` for each of these architectures, in one pass where it fits."""
        return evaluate_population(
            self.executor, architectures, split, task=self.task, micro_batch=self.micro_batch, max_bytes=max_bytes
        )

    def score_population(
        self, architectures: Sequence[Architecture], split: Samples, *, max_bytes: int | None = None
    ) -> list[Score]:
        """The same, with the standard errors that figures of each sample give; see [Note: error bars]."""
        return score_population(
            self.executor, architectures, split, task=self.task, micro_batch=self.micro_batch, max_bytes=max_bytes
        )


def evaluate(
    executor: Executor, architecture: Architecture, split: Samples, *, task: Task, micro_batch: int
) -> dict[str, float]:
    """All metrics of a split, in evaluation mode."""
    return evaluate_population(executor, [architecture], split, task=task, micro_batch=micro_batch)[0]


def score(executor: Executor, architecture: Architecture, split: Samples, *, task: Task, micro_batch: int) -> Score:
    """All metrics of a split, in evaluation mode, and their standard errors. See [Note: error bars]."""
    check_kind("score: split", split, Samples, wanted="samples, such as Data.validation")
    return score_population(executor, [architecture], split, task=task, micro_batch=micro_batch, with_errors=True)[0]


def tested(trainer: Trainer, architecture: Architecture, test: Samples) -> Score:
    """The score on a part of the data that decides nothing: what is wrong with it is reported, and refuses nothing."""
    try:
        score = trainer.score(architecture, test)
    except DataError as error:
        return Score({}, problem=f"not measured on the test data: {error}")
    bad = {name: f"{name} is {value}" for name, value in score.values.items() if not math.isfinite(value)}
    if not bad:
        return score
    # outputs without a loss are no numbers, whatever other metrics make of them
    left = {} if "loss" in bad else {name: value for name, value in score.values.items() if name not in bad}
    errors = {name: error for name, error in score.errors.items() if name in left}
    return Score(left, errors, f"on the test data, {', '.join(bad.values())}")


def sample_figures(
    executor: Executor, architecture: Architecture, split: Samples, *, task: Task, micro_batch: int
) -> torch.Tensor:
    """Each sample's figures, [samples, figures], in evaluation mode; the task's metrics follow from them."""
    chunks = _predicted(executor, [architecture], split, task=task, micro_batch=micro_batch)
    return torch.cat([outputs[0] for _, (outputs,) in chunks])


def evaluate_population(
    executor: Executor,
    architectures: Sequence[Architecture],
    split: Samples,
    *,
    task: Task,
    micro_batch: int,
    max_bytes: int | None = None,
) -> list[dict[str, float]]:
    """All metrics of a split for each of these architectures, in evaluation mode. See [Note: outputs].

    Args:
        max_bytes: of activations that wait on the device.

    Raises:
        SettingError, SpaceError: an argument of another type, or an architecture that is none of the pool.
    """
    found = score_population(executor, architectures, split, task=task, micro_batch=micro_batch, max_bytes=max_bytes)
    return [dict(one.values) for one in found]


def score_population(
    executor: Executor,
    architectures: Sequence[Architecture],
    split: Samples,
    *,
    task: Task,
    micro_batch: int,
    max_bytes: int | None = None,
    with_errors: bool = False,
) -> list[Score]:
    """All metrics of a split for each of these architectures, and the standard errors that cost next to nothing.

    Args:
        with_errors: whether the others are wanted, too. See [Note: error bars].

    Raises:
        SettingError, SpaceError: an argument of another type, or an architecture that is none of the pool.
    """
    check_kind("evaluate: split", split, Samples, wanted="samples, such as Data.validation")
    if max_bytes is not None:
        check_count("evaluate: max_bytes", max_bytes)
    architectures = check_architectures("evaluate: architectures", architectures)
    task = learned(task, executor)
    groups, reduced, exchange = groups_of(split), of_samples(task), executor.server.world
    tallies = [Tally(task, groups, with_errors=with_errors, reduced=reduced, exchange=exchange) for _ in architectures]
    for targets, outputs in _predicted(
        executor, architectures, split, task=task, micro_batch=micro_batch, max_bytes=max_bytes
    ):
        for tally, batch in zip(tallies, outputs, strict=True):
            tally.add(batch, targets)
    return [tally.score() for tally in tallies]


def learned(task: Task, executor: Executor) -> Task:
    """The task, with the parameters that it has learned if it has any; see [Note: objectives that learn]."""
    layer = objective_layer(executor.server.pool)
    if layer is None:
        return task
    if isinstance(executor, ReferenceTrainer):
        module = copy.deepcopy(executor.module(layer)).cpu()  # where outputs are measured
    else:
        module = executor.server.build_module(layer, {})
    found: Task = learned_by([module.eval()], task)
    return MeasuredTask(found, task.own) if isinstance(task, MeasuredTask) else found


def _predicted(
    executor: Executor,
    architectures: Sequence[Architecture],
    split: Samples,
    *,
    task: Task,
    micro_batch: int,
    max_bytes: int | None = None,
) -> Iterator[tuple[Targets, list[Batch]]]:
    """Chunk after chunk of the samples: targets, and the outputs of each of these architectures on the host.

    Where figures of each sample are enough for the task, they come in the place of outputs. See [Note: outputs].
    """
    reduced = of_samples(task)
    if (texts := Texts.of(executor, architectures, split, task)) is not None:
        yield from _predicted_texts(texts, split, reduced=reduced, micro_batch=micro_batch, max_bytes=max_bytes)
        return
    size = chunk_size(executor, micro_batch)
    if reduced is not None:
        size, micro_batch = _reduced_sizes(executor, micro_batch)
    size = min(size, split.at_once or size)
    micro_batch = min(micro_batch, size)
    predict = partial(executor.predict_population, micro_batch=micro_batch, max_bytes=max_bytes)
    exchange = executor.server.exchange
    share = EvaluationShare(exchange, split, micro_batch) if exchange.size > 1 else None
    loaded = chunks(split, size) if share is None else share.chunks(size)
    for start, (inputs, targets) in zip(range(0, len(split), size), loaded, strict=True):
        parts = cut_targets(targets, cut_sizes(len(inputs[0]), micro_batch))
        reduce = None if reduced is None else partial(_figures, reduced, parts)
        if share is None:
            yield targets, predict(architectures, inputs, reduce=reduce)
            continue
        own = predict(architectures, inputs, reduce=None if reduce is None else share.guarded(reduce))
        sizes = cut_sizes(min(size, len(split) - start), micro_batch)
        (whole,) = share.joined(sizes, [as_tuple(targets)])
        yield whole[0] if isinstance(targets, torch.Tensor) else whole, share.joined(sizes, own)


def _predicted_texts(
    texts: Texts, split: Samples, *, reduced: SampleMetrics | None, micro_batch: int, max_bytes: int | None
) -> Iterator[tuple[Targets, list[Batch]]]:
    """`_predicted` of texts that end before their tensors do, at their own lengths; all ranks read all of a chunk."""
    executor = texts.executor
    predict = partial(executor.predict_population, texts.architectures, micro_batch=micro_batch, max_bytes=max_bytes)
    most = _most_bytes(executor)
    places = waiting = most * texts.length // max(1, executor.sample_bytes)
    if reduced is not None:
        places = most // 2 * texts.length // _output_bytes(executor)
        waiting = most // 2 * texts.length // max(1, executor.reduced_bytes)
    exchange = executor.server.exchange
    share = EvaluationShare(exchange, split, micro_batch) if exchange.size > 1 else None
    size = max(micro_batch, min(_CHUNK, _CHUNK_BYTES // (64 * texts.length)))  # tokens are few bytes
    for inputs, targets in chunks(split, size) if share is None else share.chunks(size, is_whole=True):
        lengths = texts.own_lengths(inputs, targets)
        chunk = texts.cut(lengths, micro_batch, places=places, waiting=waiting)
        done: list[list[Batch]] = [[] for _ in texts.architectures]
        start = 0
        for cuts in chunk.passes:
            sizes = [size for size, _ in cuts]
            own = range(len(cuts)) if share is None else share.own(sizes)
            rows = chunk.order[start:][samples_of(sizes, own)]
            start += sum(sizes)
            own_cuts = cuts[own.start : own.stop]
            own_inputs, own_targets = rows_of((inputs, targets), rows)
            reduce: Reduce | None = None
            if reduced is not None:
                reduce = partial(_figures, reduced, texts.targets(own_targets, own_cuts))
                reduce = reduce if share is None else share.guarded(reduce)
            outputs = predict(own_inputs, reduce=reduce, cuts=own_cuts)
            for batches, batch in zip(done, outputs if share is None else share.joined(sizes, outputs), strict=True):
                batches.append(batch)
        yield targets, [tuple(map(chunk.restored, zip(*batches, strict=True))) for batches in done]


def _figures(task: SampleMetrics, parts: Sequence[Targets], number: int, outputs: Batch) -> Batch:
    return (task.figures(outputs, each(parts[number], lambda tensor: tensor.to(outputs[0].device))),)


def _reduced_sizes(executor: Executor, micro_batch: int) -> tuple[int, int]:
    """Samples of a chunk, and of a micro-batch, whose outputs are reduced: half of the memory for each."""
    most = _most_bytes(executor) // 2
    micro_batch = max(1, min(micro_batch, most // _output_bytes(executor)))
    return _fitting(most, executor.reduced_bytes, micro_batch), micro_batch


def _output_bytes(executor: Executor) -> int:
    """Of one sample, and of log likelihoods of it."""
    return 2 * bytes_of(check_shapes(executor.server.whole_pool).outputs)


def chunks(split: Samples, size: int) -> Iterator[Loaded]:
    """All samples in order, so many at a time."""
    starts = range(0, len(split), size)
    return split.batches((torch.arange(start, min(start + size, len(split))), SCORING) for start in starts)


def chunk_size(executor: Executor, micro_batch: int) -> int:
    """Samples that an executor is given at once in an evaluation; where they are wide, few whole micro-batches."""
    most = _most_bytes(executor)
    if executor.sample_bytes * _CHUNK <= most:
        return _CHUNK
    return _fitting(most, executor.sample_bytes, micro_batch)


def _fitting(most_bytes: int, sample_bytes: int, micro_batch: int) -> int:
    fits = max(1, most_bytes // max(1, sample_bytes))
    return min(_CHUNK, fits // micro_batch * micro_batch or fits)


def _most_bytes(executor: Executor) -> int:
    return _CHUNK_BYTES if executor.evaluation_bytes is None else min(_CHUNK_BYTES, executor.evaluation_bytes)


def in_micro_batches(call: Callable[[Batch], Batch], inputs: Batch, micro_batch: int) -> Batch:
    """Outputs of any function of a batch, in the very micro-batches in which an executor computes a chunk.

    The order of a sum may depend on the number of samples: only so can outputs be compared bit for bit.
    """
    sizes = cut_sizes(len(inputs[0]), micro_batch)
    done = [call(batch) for batch in zip(*(tensor.split(list(sizes)) for tensor in inputs), strict=True)]
    return tuple(torch.cat(parts) for parts in zip(*done, strict=True))
