"""`evaluate`: score the best network of a run again, from its saved weights."""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from l2l_nas.cli.launch import report
from l2l_nas.cli.locate import shipped
from l2l_nas.cli.runs import build_relay, load_found, set_threads
from l2l_nas.cli.schema import EvaluateConf
from l2l_nas.errors import L2LError, SettingError, did_you_mean
from l2l_nas.training.fit import evaluate


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="evaluate")
def main(config: DictConfig) -> None:
    """Print the metrics, and whether they are those that the search reported."""
    conf: EvaluateConf = OmegaConf.to_object(config)  # type: ignore[assignment]
    try:
        _evaluate(conf)
    except L2LError as error:
        sys.exit(report(str(error)))


def _evaluate(conf: EvaluateConf) -> None:
    splits = ("validation", "train")
    if conf.split not in splits:
        raise SettingError(f"split: no split '{conf.split}'{did_you_mean(conf.split, splits)}")
    found = load_found(conf.run, pool=conf.pool)
    split = found.problem.data.validation if conf.split == "validation" else found.problem.data.train
    relay = build_relay(found.server, found.relay, seed=0)
    set_threads(found.relay.threads, relay)
    found.problem.check(relay.boundaries)
    metrics = evaluate(
        relay, found.architecture, split, task=found.problem.measured_task, micro_batch=found.micro_batch
    )
    console = Console(highlight=False)
    console.print(str(found.architecture), soft_wrap=True)
    reported = found.result["best"].get("values", {})
    for name, value in metrics.items():
        note = ""
        if conf.split == "validation" and name in reported:
            note = "as reported" if value == reported[name] else f"reported {reported[name]}"
        console.print(f"  {conf.split} {name:10} {value:.6f}  {note}")
