from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from benchmarks.search.simulated import peers
from benchmarks.search.simulated.peer_process import SEARCHES, answer
from benchmarks.search.simulated.peers import PeerError, PeerProcess
from benchmarks.search.simulated.search import searched
from l2l_nas.errors import SettingError
from tests.benchmarks.search.simulated.test_search import Line

# a process that speaks as `peer_process.py` does, and whose search asks for 0, 11, 22, ... and fails or ends as told
FAKE = """
import json, sys
print(json.dumps({"versions": {"fake": "1.0"}}), flush=True)
number = 0
for line in sys.stdin:
    told = json.loads(line)
    number = 0 if "play" in told else number + 1
    if "play" in told:
        name = told["play"]
    if name == "ends" and number == 2:
        reply = {"done": True}
    elif name == "fails" and number == 2:
        reply = {"error": "ValueError: a package's own"}
    elif name == "dies" and number == 2:
        sys.exit("no memory")
    else:
        reply = {"ask": [str(number), str(number)], "share": 1.0, "seconds": number}
    print(json.dumps(reply), flush=True)
"""


@pytest.fixture
def process(tmp_path, monkeypatch):
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setattr(peers, "_SCRIPT", tmp_path / "fake.py")
    process = PeerProcess(Path(sys.executable))
    yield process
    process.close()


def test_a_search_of_another_process_is_charged_as_any(process):
    assert process.versions == {"fake": "1.0"}
    found, ledger = searched(process.method("asks", Line(), 0), Line(), 3.5)
    assert found == ("2", "2")
    assert list(ledger.trained) == [("0", "0"), ("1", "1"), ("2", "2")]
    assert process.seconds == 3
    # the next one begins anew
    assert searched(process.method("ends", Line(), 0), Line(), 9.0)[0] == ("1", "1")


def test_positions_without_a_choice_are_not_asked_of_a_package(process):
    class Fixed(Line):
        space = {"stem": ("only",), **Line.space}

        def truth(self, genotype):
            return super().truth(genotype[1:])

    found, _ = searched(process.method("asks", Fixed(), 0), Fixed(), 2.0)
    assert found == ("only", "1", "1")


def test_what_a_package_raises_is_told(process):
    with pytest.raises(PeerError, match="a package's own"):
        searched(process.method("fails", Line(), 0), Line(), 9.0)


def test_a_process_that_ends_is_told_with_its_last_words(process):
    with pytest.raises(PeerError, match="no memory"):
        searched(process.method("dies", Line(), 0), Line(), 9.0)


def test_an_environment_that_is_missing_is_refused_with_how_to_make_one(tmp_path):
    with pytest.raises(SettingError, match=r"No such file.*as benchmarks/search/simulated/requirements"):
        PeerProcess(tmp_path / "python")


def test_an_environment_without_the_packages_is_refused(tmp_path, monkeypatch):
    (tmp_path / "empty.py").write_text("import a_package_that_nobody_has")
    monkeypatch.setattr(peers, "_SCRIPT", tmp_path / "empty.py")
    with pytest.raises(SettingError, match=r"a_package_that_nobody_has.*as benchmarks.search.simulated.requirements"):
        PeerProcess(Path(sys.executable))


def test_optuna_is_stopped_at_rungs_and_goes_on_with_another_network():
    search = SEARCHES["optuna_hyperband"](Line.space, 0)
    reply, shares = answer(search, None), []
    for _ in range(200):
        shares.append(reply["share"])
        reply = answer(search, int("".join(reply["ask"])) / 100)
    search.close()
    ends = {a for a, b in itertools.pairwise(shares) if b < a}
    assert ends <= {3 / 27, 9 / 27, 1.0}
    assert len(ends) > 1
