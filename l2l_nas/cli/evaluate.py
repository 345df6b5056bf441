"""`evaluate`: score the best network of a run again, from its saved weights, or a language model on a text."""

from __future__ import annotations

from pathlib import Path

from l2l_nas.eps.identity import fingerprint
from l2l_nas.errors import SettingError, StorageError, did_you_mean
from l2l_nas.report.text import with_error
from l2l_nas.runs.evaluated import note_evaluation
from l2l_nas.runs.page import write_again
from l2l_nas.runs.ranks import RunRanks
from l2l_nas.runs.reading import Reading
from l2l_nas.runs.saved import data_warning
from l2l_nas.runs.settings import EvaluateConf
from l2l_nas.runs.terminal import open_terminal, warn
from l2l_nas.text.language import ANSWERS, TASKS, WINDOWS, check_task
from l2l_nas.training.score import Score


def main(conf: EvaluateConf, ranks: RunRanks | None = None) -> None:
    """Print the metrics, and whether they are those that the search reported; ranks share the samples."""
    reading = Reading(conf, ranks)
    if not reading.ranks.is_first:
        reading.follow()
        return
    if conf.original and not conf.run:
        raise SettingError("original=true is of a run: name it by run=; a published model alone is measured as it is")
    if conf.task:
        _evaluate_text(conf, reading)
        return
    for name in ("file", "stride", "tokenizer"):
        if getattr(conf, name):
            raise SettingError(f"{name} is of a task on text; add task={', '.join(TASKS[:-1])} or {TASKS[-1]}")
    splits = ("validation", "test", "train")
    if conf.split not in splits:
        raise SettingError(f"split: no split '{conf.split}'{did_you_mean(conf.split, splits)}")
    found = reading.open_run(original=conf.original)
    if getattr(found.problem.data, conf.split) is None:
        raise SettingError(
            "split=test: the data of this run have no test part; data.test_fraction keeps one apart, or the pool's own "
            "Data, before a search begins"
        )
    score = reading.score(conf.split)
    console = open_terminal()
    if found.root != Path(conf.run):
        console.print(f"the best repeat: {found.root}", soft_wrap=True)
    console.print(str(found.architecture), soft_wrap=True)
    best = found.result["best"]
    reported = {"validation": best.get("values"), "test": best.get("test")}.get(conf.split) or {}
    reported = {} if conf.original else reported
    if others := data_warning(found.problem.data, found.result, Path(conf.run)):
        warn(console, others)
    for name, value in score.values.items():
        note = ""
        if name in reported:
            note = "as reported" if value == reported[name] else f"reported {reported[name]}"
        console.print(f"  {conf.split} {name:10} {_shown(score, name)}  {note}")
    if score.problem:
        warn(console, score.problem)
    if not conf.recalibrate:
        return
    if not reading.trainer.has_buffers(found.architecture):
        console.print("no layer has statistics such as BatchNorm's: there is nothing to recalibrate", soft_wrap=True)
        return
    reading.recalibrate(conf.recalibrate)
    console.print(
        f"BatchNorm measured anew on {conf.recalibrate} training batches; the saved weights stay as they are:",
        soft_wrap=True,
    )
    score = reading.score(conf.split)
    for name in score.values:
        console.print(f"  {conf.split} {name:10} {_shown(score, name)}")


def _evaluate_text(conf: EvaluateConf, reading: Reading) -> None:
    file = Path(conf.file)
    for name, value in (("split", "validation"), ("recalibrate", 0)):
        if getattr(conf, name) != value:
            raise SettingError(f"{name} is of the run's own data; leave it out with task={conf.task}")
    if not conf.file:
        raise SettingError(f"name the text to measure on: task={conf.task} file=FILE")
    if conf.task == ANSWERS and (not conf.run or conf.original):
        raise SettingError("task=answers compares a run's network with its original: name run=, without original=true")
    check_task(conf.task, file, stride=conf.stride)
    model = reading.open_model(original=conf.original)
    score, count = reading.score_text(conf.task, file, stride=conf.stride)
    console = open_terminal()
    console.print(str(model.architecture), soft_wrap=True)
    if model.compared:
        console.print(model.compared, soft_wrap=True)
    for name in score.values:
        console.print(f"  {conf.task} {name:19} {_shown(score, name)}")
    noun = "windows" if conf.task in WINDOWS else "answers" if conf.task == ANSWERS else "passages"
    console.print(f"{count:,} {noun} of {conf.file}", soft_wrap=True)
    if score.problem:
        warn(console, score.problem)
    if conf.run:
        try:
            task = f"{conf.task} stride={conf.stride}" if conf.stride else conf.task
            original = fingerprint(model.server.whole_pool) if conf.original else ""
            note_evaluation(conf.run, task, file, score, tokenizer=model.tokenizer.fingerprint, original=original)
            write_again(Path(conf.run))
        except StorageError as error:
            warn(console, f"not kept for the card of an export and for the page: {error}")


def _shown(score: Score, name: str) -> str:
    """A metric with its standard error, if that is known."""
    return with_error(name, score.values[name], score.errors.get(name))
