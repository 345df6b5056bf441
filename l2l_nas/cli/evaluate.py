"""`evaluate`: score the best network of a run again, from its saved weights."""

from __future__ import annotations

import hydra
from omegaconf import DictConfig, OmegaConf

from l2l_nas.cli.bounds import check_bounds
from l2l_nas.cli.launch import told
from l2l_nas.cli.locate import shipped
from l2l_nas.cli.runs import build_relay, load_found, set_threads
from l2l_nas.cli.schema import EvaluateConf
from l2l_nas.cli.terminal import open_terminal
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer


@hydra.main(version_base="1.3", config_path=str(shipped("conf")), config_name="evaluate")
def main(config: DictConfig) -> None:
    """Print the metrics, and whether they are those that the search reported."""
    conf: EvaluateConf = OmegaConf.to_object(config)  # type: ignore[assignment]
    with told():
        _evaluate(conf)


def _evaluate(conf: EvaluateConf) -> None:
    check_bounds(conf)
    splits = ("validation", "train")
    if conf.split not in splits:
        raise SettingError(f"split: no split '{conf.split}'{did_you_mean(conf.split, splits)}")
    if conf.recalibrate < 0:
        raise SettingError(f"recalibrate must be at least 0, got {conf.recalibrate}")
    found = load_found(conf.run, pool=conf.pool)
    data = found.problem.data
    split = data.validation if conf.split == "validation" else data.train
    relay = build_relay(found.server, found.relay, seed=0)
    set_threads(found.relay.threads, relay)
    found.problem.check(relay.boundaries)
    batches = Batches(data.train, batch_size=found.batch_size, seed=found.server.seed)
    trainer = Trainer(relay, found.problem.measured_task, batches, found.micro_batch)
    metrics = trainer.evaluate(found.architecture, split)
    console = open_terminal()
    console.print(str(found.architecture), soft_wrap=True)
    reported = found.result["best"].get("values", {})
    for name, value in metrics.items():
        note = ""
        if conf.split == "validation" and name in reported:
            note = "as reported" if value == reported[name] else f"reported {reported[name]}"
        console.print(f"  {conf.split} {name:10} {value:.6f}  {note}")
    if not conf.recalibrate:
        return
    if not trainer.has_buffers(found.architecture):
        console.print("no layer has statistics such as BatchNorm's: there is nothing to recalibrate", soft_wrap=True)
        return
    trainer.recalibrate(found.architecture, batches=conf.recalibrate)
    console.print(
        f"BatchNorm measured anew on {conf.recalibrate} training batches; the saved weights stay as they are:",
        soft_wrap=True,
    )
    for name, value in trainer.evaluate(found.architecture, split).items():
        console.print(f"  {conf.split} {name:10} {value:.6f}")
