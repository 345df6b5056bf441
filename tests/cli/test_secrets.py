"""A database's password is never written to a file of a run or sweep, and never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from l2l_nas.__main__ import main
from l2l_nas.errors import one_line, without_passwords_in
from l2l_nas.nas.study.database import parse_address
from tests.cli.runs import TINY

SECRET = "t0psecret"
ADDRESS = f"postgresql://me:{SECRET}@127.0.0.1:1/studies"
CONFIG = """\
defaults:
  - /search
  - _self_
search:
  storage: {}
  trial_weights: fork
  storage_retry_seconds: 0
"""


def written(folder: Path) -> bytes:
    """All that lies in files below a folder, but for the user's own settings."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file() and "conf" not in path.parts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("address", "sweep"),
    [
        (ADDRESS, ["-m", "seed=0,1"]),
        (ADDRESS, ["-m", "hydra/sweeper=l2l", "hydra.sweeper.trials=2", "seed=choice(0,1)"]),
        (ADDRESS, []),
        (f"postgresql://me@127.0.0.1:1/studies?password={SECRET}", ["-m", "seed=0,1"]),
        (f"mysql://me@127.0.0.1:1/studies?passwd={SECRET}", []),
        (f"grpc://me:{SECRET}@127.0.0.1:1", []),
    ],
)
@pytest.mark.parametrize("given", [pytest.param("config", marks=pytest.mark.long), "words"])
def test_a_password_is_neither_written_nor_shown(pool, tmp_path, capsys, address, sweep, given):
    pytest.importorskip("psycopg")
    words = ["search", *sweep, f"space.pool={pool}", *TINY, "folder=out"]
    if given == "config":
        (tmp_path / "conf").mkdir()
        (tmp_path / "conf" / "mine.yaml").write_text(CONFIG.format(address))
        words += ["--config-dir", "conf", "--config-name", "mine"]
    else:
        words += [f"search.storage='{address}'", "search.trial_weights=fork", "search.storage_retry_seconds=0"]
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.err.count("error: ") >= 1
    assert SECRET not in said.out + said.err
    assert SECRET.encode() not in written(tmp_path)


def test_the_settings_are_shown_without_a_password(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(CONFIG.format(ADDRESS))
    assert main(["search", "--config-dir", ".", "--config-name", "mine", "--cfg", "job"]) == 0
    said = capsys.readouterr().out
    assert "postgresql://me:***@127.0.0.1:1/studies" in said
    assert SECRET not in said


def test_the_page_of_a_run_shows_no_password_of_a_space(finished):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    config["space"]["args"] = {"source": f"postgresql://me:{SECRET} 2@db/x", "depth": 4}
    (finished / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["report", "run=run"]) == 0
    page = (finished / "report.html").read_text()
    assert page.count("postgresql://me:***@db/x") == 2  # among the settings that differ, and among all
    assert SECRET not in page


def test_what_a_driver_says_of_a_password_is_blotted_out():
    pytest.importorskip("psycopg")
    address = parse_address("postgresql://me:a%2Fb%20c@db/x")
    said = address.explain(ValueError("no 'a/b c', a%2Fb%20c or a%2Fb+c here"))
    assert said == "no '***', *** or *** here"


def test_one_line_is_short_plain_and_without_passwords():
    text = f"first\n{ADDRESS} x?Password={SECRET}&sslmode=1 \x1b[31m " + "y" * 100_000 + " last"
    line = one_line(text)
    assert line.startswith("first postgresql://me:***@127.0.0.1:1/studies x?Password=***&sslmode=1 ?[31m yyy")
    assert line.endswith("yyy last")
    assert len(line) <= 1205
    assert without_passwords_in({"a": [f"postgresql://me:p w{SECRET}@h/x"], "b": 7}) == {
        "a": ["postgresql://me:***@h/x"],
        "b": 7,
    }
