from __future__ import annotations

import pytest

from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.report.network import Network, front, in_order, margin
from l2l_nas.training.score import Score
from tests.report.examples import ACCURACY, PARAMETERS, trial

CHOICES = ["stem", "linear", "wide", "skip", "head"]


def test_what_a_search_writes_of_a_finalist_is_read_back() -> None:
    record = trial(3, {"accuracy": 0.5, "parameters": 126.0})
    scores = {"validation": Score({"accuracy": 0.9}, {"accuracy": 0.01}), "test": Score({"accuracy": 0.8})}
    finalist = Finalist(record, {"parameters": 126.0}, scores, rungs={"5/10": {"accuracy": 0.7}})
    for content in (finalist.entry(), {"event": "finalist", "number": 3, **finalist.figures()}):
        network = Network.from_json(content)
        assert (network.trial, network.architecture, network.is_trained) == (3, record.architecture, True)
        assert network.trial_score == {"accuracy": 0.5}
        assert network.rungs == {5: {"accuracy": 0.7}}
        assert network.part("validation") == {"accuracy": 0.9}
        assert network.part("test") == {"accuracy": 0.8}
        assert (network.error("validation", "accuracy"), network.error("test", "accuracy")) == (0.01, None)
        assert network.values == {"accuracy": 0.9, "parameters": 126.0}
    untrained = Network.from_json(Finalist(record, {"parameters": 126.0}).entry())
    assert not untrained.is_trained
    assert untrained.values == {"accuracy": 0.5, "parameters": 126.0}


@pytest.mark.parametrize(
    "content",
    [
        {"trial": 1, "validation": {"accuracy": 0.5}},
        {"architecture": CHOICES, "validation": {"accuracy": 0.5}},
        {"trial": 1, "architecture": CHOICES, "values": {"accuracy": 0.5}},
        {"trial": 1, "architecture": CHOICES, "validation": {"accuracy": float("nan")}},
        {"trial": 1, "architecture": CHOICES, "validation": {"accuracy": 0.5}, "standard_error": [1]},
    ],
)
def test_something_else_is_refused(content) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        Network.from_json(content)


def test_networks_are_ranked_by_the_mean_of_their_last_validations_and_equals_by_the_loss() -> None:
    def network(trial: int, last: float, mean: float, loss: float) -> Network:
        compared = {
            "values": {"accuracy": mean, "loss": loss},
            "standard_error": {"accuracy": 0.02},
            "steps": [8, 9, 10],
        }
        return Network.from_json(
            {
                "trial": trial,
                "architecture": CHOICES,
                "validation": {"accuracy": last, "loss": 9.0},
                "standard_error": {"validation": {"accuracy": 0.01}},
                "compared_by": compared,
                "costs": {"parameters": 10.0},
            }
        )

    networks = [network(0, 0.9, 0.5, 1.0), network(1, 0.6, 0.7, 1.0), network(2, 0.6, 0.7, 0.5)]
    assert [one.trial for one in in_order(networks, (ACCURACY,))] == [2, 1, 0]
    assert [one.trial for one in front(networks, (ACCURACY, PARAMETERS))] == [2]
    assert networks[0].values["accuracy"] == 0.9
    assert networks[0].compared("accuracy") == "0.5000 ± 0.0200"
    assert networks[0].scored("validation", "accuracy") == "0.9000 ± 0.0100"
    assert networks[0].num_validations == 3


def test_the_front_of_networks_is_by_what_they_are_ranked_by() -> None:
    networks = [
        Network.from_json(
            {"trial": n, "architecture": CHOICES, "validation": {"accuracy": a}, "costs": {"parameters": p}}
        )
        for n, (a, p) in enumerate([(0.5, 10.0), (0.9, 30.0), (0.6, 40.0), (0.7, 20.0)])
    ]
    assert [network.trial for network in front(networks, (ACCURACY, PARAMETERS))] == [1, 3, 0]
    assert [network.trial for network in in_order(networks, (ACCURACY,))] == [1, 3, 2, 0]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (0.87, "0.0300 ± 0.0141 more accuracy than that of random search. One run says nothing of other seeds."),
        (0.95, "0.0500 ± 0.0141 less accuracy than that of random search. One run says nothing of other seeds."),
        (0.89, "0.0100 ± 0.0141 more accuracy than that of random search: its 95 % interval holds 0"),
    ],
)
def test_one_run_tells_of_two_networks_on_these_samples_and_claims_no_lead(other, said) -> None:
    def measured(accuracy: float) -> Network:
        content = {"trial": 1, "architecture": CHOICES, "validation": {}, "test": {"accuracy": accuracy}}
        return Network.from_json({**content, "standard_error": {"test": {"accuracy": 0.01}}})

    line = margin(measured(0.9), measured(other), ACCURACY, 360)
    assert said in line
    assert "ahead" not in line
    assert not margin(
        measured(0.9), Network.from_json({"trial": 1, "architecture": CHOICES, "validation": {}}), ACCURACY, 360
    )
