from __future__ import annotations

import math

import pytest
import torch

from l2l_nas.errors import DataError
from l2l_nas.training.fit import tested as on_test_part
from l2l_nas.training.metrics import MeasuredTask, Metric
from l2l_nas.training.score import Score
from l2l_nas.training.task import Classification, Regression
from tests.training.test_tally import tally_of


def predictions(samples: int, hits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of two classes of which so many are right, in random order."""
    targets = torch.randint(2, (samples,), generator=torch.Generator().manual_seed(0))
    order = torch.randperm(samples, generator=torch.Generator().manual_seed(1))
    wrong = torch.zeros(samples, dtype=torch.int64)
    wrong[order[hits:]] = 1
    return torch.eye(2)[(targets + wrong) % 2], targets


def errors(task, outputs, targets):
    return tally_of(task, outputs, targets).score().errors


@pytest.mark.parametrize(("samples", "hits"), [(40, 30), (50, 49)])
def test_sample_by_sample_the_error_of_accuracy_is_the_closed_form(samples, hits):
    logits, targets = predictions(samples, hits)
    p = hits / samples
    found = errors(Classification(), (logits,), targets)["accuracy"]
    assert found == pytest.approx(math.sqrt(p * (1 - p) / (samples - 1)), rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("samples", "hits"), [(360, 350), (997, 700), (5000, 2500)])
def test_by_groups_it_is_so_on_average_whatever_the_order_of_the_samples(samples, hits):
    logits, targets = predictions(samples, hits)
    p = hits / samples
    squares = []
    for seed in range(2, 62):
        order = torch.randperm(samples, generator=torch.Generator().manual_seed(seed))
        error = errors(Classification(), (logits[order],), targets[order])["accuracy"]
        squares.append(error**2)
        assert error == pytest.approx(math.sqrt(p * (1 - p) / samples), rel=0.4)  # 50 groups: a tenth, give or take
    assert sum(squares) / len(squares) == pytest.approx(p * (1 - p) / samples, rel=0.1)


def test_samples_in_order_have_the_error_of_samples_in_disorder():
    hits = torch.arange(1000) < 500
    logits, targets = torch.eye(2)[hits.long()], torch.ones(1000, dtype=torch.int64)
    found = errors(Classification(), (logits,), targets)["accuracy"]
    assert found == pytest.approx(math.sqrt(0.25 / 1000), rel=0.4)


def test_the_error_of_r2_is_what_other_samples_would_give():
    """Beside the spread of r2 over many samples of the same kind."""

    def drawn(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(400, 1, generator=generator)
        return x, x + 0.7 * torch.randn(400, 1, generator=generator)

    task = Regression()
    spread = torch.tensor([task.measure((x,), y)["r2"] for x, y in map(drawn, range(200))]).std()
    found = [errors(task, (x,), y)["r2"] for x, y in map(drawn, range(20))]
    assert sum(found) / len(found) == pytest.approx(float(spread), rel=0.2)


def test_one_sample_has_no_error_and_equal_ones_have_none_to_speak_of():
    logits, targets = predictions(1, 1)
    assert tally_of(Classification(), (logits,), targets).score().errors == {}
    logits, targets = predictions(60, 60)
    assert errors(Classification(), (logits,), targets)["accuracy"] == 0


def test_a_metric_of_ones_own_that_needs_all_samples_costs_its_error_bar_and_says_why():
    def whole(outputs, targets):
        assert len(targets) == 60, "all samples, please"
        return 1.0

    logits, targets = predictions(60, 30)
    score = tally_of(MeasuredTask(Classification(), {"whole": Metric(whole)}), (logits,), targets).score()
    assert score.values["accuracy"] == 0.5
    assert set(score.errors) == {"accuracy", "loss"}
    assert "metric 'whole' raised AssertionError: all samples, please" in score.problem
    assert Score.from_json(score.to_json()) == score

    def broken(outputs, targets):
        raise ValueError("no")

    with pytest.raises(DataError, match="metric 'broken' raised"):
        tally_of(MeasuredTask(Classification(), {"broken": Metric(broken)}), (logits,), targets).score()


def test_a_metric_that_is_not_finite_on_a_part_has_no_error_the_others_have_theirs():
    odd = Metric(lambda outputs, targets: float("nan") if len(targets) < 60 else 1.0)
    logits, targets = predictions(60, 30)
    score = tally_of(MeasuredTask(Classification(), {"odd": odd}), (logits,), targets).score()
    assert score.errors.keys() == {"accuracy", "loss"}


class Scored:
    """A trainer that measures this, whatever it is given."""

    def __init__(self, **values: float) -> None:
        self.values = values

    def score(self, architecture, split) -> Score:
        return Score(self.values, dict.fromkeys(self.values, 0.1))


def test_a_metric_that_is_not_finite_on_the_test_part_is_told_and_the_others_are_kept():
    score = on_test_part(Scored(accuracy=0.5, loss=0.7, mine=float("nan")), None, None)
    assert (score.values, score.errors) == ({"accuracy": 0.5, "loss": 0.7}, {"accuracy": 0.1, "loss": 0.1})
    assert score.problem == "on the test data, mine is nan"
    assert not on_test_part(Scored(accuracy=0.5, loss=float("nan")), None, None).values
