"""One network trained by itself: looks and interruptions do not show in the weights."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from l2l_nas import AdamW, Classification, ParamServer, Relay
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import NonFiniteError, SettingError, StorageError
from l2l_nas.training.data import Batches, Data
from l2l_nas.training.export import build_network
from l2l_nas.training.fit import Trainer
from l2l_nas.training.retrain import Pace, Retraining, TrainingSaves, TrainingSteps, Validating, Validation
from l2l_nas.training.schedule import Cosine
from tests.nas.problems import data, pool_of

STEPS = 12
NORMED, PLAIN = ("linear", "normed", "tanh", "linear"), ("linear", "tanh", "tanh", "linear")


class Stop(Exception):
    pass


class Watcher:
    def __init__(self, stop_at: int = -1) -> None:
        self.stop_at = stop_at
        self.losses: list[float] = []
        self.validations: list[tuple[Validation, bool]] = []

    def step(self, done: int, loss: float) -> None:
        self.losses.append(loss)

    def validation(self, validation: Validation, *, is_best: bool) -> None:
        self.validations.append((validation, is_best))

    def poll(self) -> None:
        if len(self.losses) == self.stop_at:
            raise Stop


def trainer_of(pool, *, split: Data, **options) -> Trainer:
    relay = Relay(ParamServer(pool, optimizer=AdamW(), seed=0), device="cpu", seed=0, **options)
    return Trainer(relay, Classification(), Batches(split.train, batch_size=16, seed=0), 7)


def retraining(
    folder: Path,
    *,
    choices=NORMED,
    steps=STEPS,
    validation_steps=3,
    recalibrate=4,
    seconds=0.0,
    metric="accuracy",
    stop_at=-1,
    split: Data | None = None,
    **options,
) -> tuple[Retraining, Trainer, Watcher]:
    pool = pool_of("normed", "tanh", "poison")
    split = split or data()
    trainer = trainer_of(pool, split=split, **options)
    watch = Watcher(stop_at)
    made = Retraining(
        TrainingSteps(
            trainer,
            pool.architecture(choices),
            Pace(steps, validation_steps, recalibrate, seconds),
            Cosine(0.05, steps),
            Validating(trainer, split, metric),
        ),
        saves=TrainingSaves(
            Checkpoint(folder / "weights"),
            Checkpoint(folder / "best", keep=2),
            identity=lambda values: {"values": dict(values)},
        ),
        watch=watch,
    )
    return made, trainer, watch


def weights_of(server: ParamServer) -> dict[tuple[str, str], torch.Tensor]:
    return {(key, n): t.clone() for key in sorted(server.visited) for n, t in server.state(key).tensors().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def digests(folder: Path) -> dict[str, str]:
    entries = json.loads((folder / "manifest.json").read_text())["states"]
    return {key: entry["sha256"] for key, entry in entries.items()}


@pytest.mark.parametrize("choices", [NORMED, PLAIN], ids=["statistics", "none"])
def test_looks_change_nothing_of_the_training(tmp_path, choices):
    pool = pool_of("normed", "tanh", "poison")
    trainer = trainer_of(pool, split=data())
    path = pool.architecture(choices)
    losses: list[float] = []
    trainer.fit(
        lambda step: path,
        start=0,
        steps=STEPS,
        schedule=Cosine(0.05, STEPS),
        after_step=lambda step, loss: losses.append(loss),
    )
    expected = weights_of(trainer.executor.server)
    for validation_steps in (1, 5):
        made, other, watch = retraining(
            tmp_path / str(validation_steps), choices=choices, validation_steps=validation_steps
        )
        made.run()
        assert watch.losses == losses
        assert same(weights_of(other.executor.server), expected)
        steps = [validation.step for validation, _ in watch.validations]
        assert steps == [0, *range(validation_steps, STEPS, validation_steps), STEPS]
        assert made.validations == tuple(validation for validation, _ in watch.validations)


def test_a_look_tells_the_mean_loss_since_the_one_before_and_the_learning_rate(tmp_path):
    made, _, watch = retraining(tmp_path, validation_steps=5)
    made.run()
    means = [sum(watch.losses[a:b]) / (b - a) for a, b in ((0, 5), (5, 10), (10, 12))]
    assert [validation.train_loss for validation in made.validations] == [
        None,
        *(pytest.approx(mean) for mean in means),
    ]
    schedule = Cosine(0.05, STEPS)
    assert [validation.lr for validation in made.validations] == [None, *(schedule.at(step) for step in (4, 9, 11))]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_best_look_s_weights_are_kept_and_give_its_values(tmp_path, metric):
    made, trainer, watch = retraining(tmp_path, metric=metric, validation_steps=1)
    best = made.run()
    values = [validation.values[metric] for validation in made.validations]
    assert best.values[metric] == (max(values) if metric == "accuracy" else min(values))
    assert best.step == values.index(best.values[metric])
    assert [validation for validation, is_best in watch.validations if is_best][-1] == best
    server = ParamServer(trainer.executor.server.pool, optimizer=AdamW(), seed=0)
    assert Checkpoint(tmp_path / "best").load(server) == {"values": best.values}
    again = trainer_of(server.pool, split=data())
    again.executor.use(server)
    assert again.evaluate(server.pool.architecture(NORMED), data().validation) == best.values


def plainly_recalibrated(network: nn.Module, batches: list[torch.Tensor]) -> nn.Module:
    """BatchNorm's cumulative averages, as PyTorch documents them: momentum=None."""
    network.eval()
    for module in network.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
            module.train()
    with torch.no_grad():
        for batch in batches:
            network(batch)
    return network.eval()


def test_a_look_s_statistics_are_plain_pytorch_s_cumulative_ones(tmp_path):
    made, trainer, _ = retraining(tmp_path, recalibrate=3, validation_steps=100)
    made.run()
    network = build_network(trainer.executor.server, trainer.executor.server.pool.architecture(NORMED))
    x, y = data().validation.inputs[0], data().validation.targets

    def measured() -> dict[str, float]:
        with torch.no_grad():
            return Classification().measure((torch.cat([network(part) for part in x.split(7)]),), y)

    running = measured()
    plainly_recalibrated(network, [trainer.batches.at(step)[0][0] for step in range(3)])
    assert made.validations[-1].values == measured()
    assert made.validations[-1].values != running


def test_without_recalibration_the_running_statistics_are_scored(tmp_path):
    made, trainer, _ = retraining(tmp_path, recalibrate=0)
    made.run()
    path = trainer.executor.server.pool.architecture(NORMED)
    assert made.validations[-1].values == trainer.evaluate(path, data().validation)


OPTIONS = {
    "eager": {},
    "threads": {"update": "exact", "lanes": "threads"},
    "fp16": {"update": "exact", "precision": "fp16"},
}


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_a_training_stopped_after_any_step_goes_on_as_if_it_had_not_been(tmp_path, options):
    whole, trainer, watch = retraining(tmp_path / "whole", **options)
    best = whole.run()
    expected = weights_of(trainer.executor.server)
    for stop_at in (0, 1, 5, 6, 11):
        folder = tmp_path / f"cut{stop_at}"
        cut, _, seen = retraining(folder, stop_at=stop_at, seconds=3600, **options)
        with pytest.raises(Stop):
            cut.run()
        assert cut.step == stop_at
        other, resumed, rest = retraining(folder, seconds=3600, **options)
        assert other.restore()
        assert other.run() == best
        assert other.validations == whole.validations
        assert seen.losses + rest.losses == watch.losses
        assert same(weights_of(resumed.executor.server), expected)
        for name in ("weights", "best"):
            assert digests(folder / name) == digests(tmp_path / "whole" / name)


@pytest.mark.slow
def test_a_crash_between_the_best_weights_and_the_next_save_goes_on_with_the_best_before(tmp_path, monkeypatch):
    whole, _, _ = retraining(tmp_path / "whole", metric="loss", validation_steps=2)
    best = whole.run()
    real = Checkpoint.save
    crashes = 0

    def save(self, server, *, extra):
        nonlocal crashes
        real(self, server, extra=extra)
        if self.folder.name == "best":
            crashes += 1
            if crashes == 3:
                raise Stop

    monkeypatch.setattr(Checkpoint, "save", save)
    folder = tmp_path / "cut"
    cut, _, _ = retraining(folder, metric="loss", validation_steps=2, seconds=3600)
    with pytest.raises(Stop):
        cut.run()
    monkeypatch.undo()
    newest = json.loads((folder / "best" / "manifest.json").read_text())["extra"]
    other, _, _ = retraining(folder, metric="loss", validation_steps=2, seconds=3600)
    assert other.restore()
    before = json.loads((folder / "best" / "manifest.json").read_text())["extra"]
    assert before == {"values": dict(other.best.values)} != newest
    assert other.run() == best
    assert digests(folder / "best") == digests(tmp_path / "whole" / "best")


def test_lost_best_weights_are_said_and_looked_for_anew(tmp_path):
    cut, _, _ = retraining(tmp_path, stop_at=7, validation_steps=1)
    with pytest.raises(Stop):
        cut.run()
    for path in (tmp_path / "best").iterdir():
        path.unlink()
    other, _, watch = retraining(tmp_path, validation_steps=1)
    assert not other.restore()
    best = other.run()
    assert best.values["accuracy"] == max(validation.values["accuracy"] for validation, _ in watch.validations)
    assert [validation.step for validation, _ in watch.validations][:2] == [7, 8]
    assert Checkpoint(tmp_path / "best").exists()


def test_no_steps_recalibrate_score_and_save(tmp_path):
    made, _, watch = retraining(tmp_path, steps=0)
    best = made.run()
    assert (best.step, best.train_loss, watch.losses) == (0, None, [])
    assert len(made.validations) == 1
    assert digests(tmp_path / "best").keys() == {"stem/linear", "p0/normed", "p1/tanh", "head/linear"}
    assert digests(tmp_path / "best") != digests(tmp_path / "weights")  # the statistics of the best alone


def test_a_finished_training_can_be_prolonged(tmp_path):
    retraining(tmp_path, steps=4)[0].run()
    longer, _, watch = retraining(tmp_path, steps=8)
    assert longer.restore()
    longer.run()
    assert len(watch.losses) == 4
    assert [validation.step for validation in longer.validations] == [0, 3, 4, 6, 8]


def test_what_is_not_finite_is_refused(tmp_path):
    made, _, _ = retraining(tmp_path, choices=("linear", "poison", "tanh", "linear"))
    with pytest.raises(NonFiniteError, match="the loss on the validation data is not finite at step 0"):
        made.run()
    assert not (tmp_path / "best").exists()


def test_only_a_training_of_the_same_data_is_gone_on_with(tmp_path):
    retraining(tmp_path)[0].run()
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(1))
    other = retraining(tmp_path, split=Data.from_arrays(x, (x[:, 0] > x[:, 1]).long()))[0]
    with pytest.raises(StorageError, match="weights: trained with other validation data"):
        other.restore()
    server = ParamServer(pool_of("normed", "tanh", "poison"), optimizer=AdamW(), seed=0)
    server.prepare(server.pool.states)
    Checkpoint(tmp_path / "weights").save(server, extra={"warm_steps": 3})
    with pytest.raises(StorageError, match="weights: holds weights, but not of a training"):
        retraining(tmp_path)[0].restore()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("validations", 0, "values", "loss"), "xxx"),
        (("validations", 0, "train_loss"), []),
        (("validations", 0), 3),
        (("best",), 99),
        (("best",), -2),
        (("step",), -1),
        (("num_losses",), -1),
    ],
)
def test_what_a_training_kept_is_read_with_care(tmp_path, path, value):
    made = retraining(tmp_path)[0]
    made.run()
    place = extra = Checkpoint(tmp_path / "weights").load(made._server)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    Checkpoint(tmp_path / "weights").save(made._server, extra=extra)
    with pytest.raises(StorageError, match="weights: holds weights, but not of a training"):
        retraining(tmp_path)[0].restore()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"steps": -1}, "train.steps must be at least 0, got -1"),
        ({"validation_steps": 0}, "train.validation_steps must be at least 1, got 0"),
        ({"recalibrate": -2}, "train.recalibrate must be at least 0, got -2"),
        ({"checkpoint_seconds": float("nan")}, "train.checkpoint_seconds must be at least 0, got nan"),
    ],
)
def test_a_pace_out_of_range_is_refused(changes, says):
    values = {"steps": 1, "validation_steps": 1, "recalibrate": 0, "checkpoint_seconds": 0.0}
    with pytest.raises(SettingError, match=says):
        Pace(**{**values, **changes})
