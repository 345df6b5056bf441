"""Addresses with passwords that a space was given are not shown where a page or a line is handed on."""

from __future__ import annotations

import yaml

from l2l_nas.__main__ import main
from l2l_nas.errors import one_line, without_passwords_in

SECRET = "t0psecret"
ADDRESS = f"postgresql://me:{SECRET}@127.0.0.1:1/studies"


def test_the_page_of_a_run_shows_no_password_of_a_space(finished):
    config = yaml.safe_load((finished / "config.yaml").read_text())
    config["space"]["args"] = {"source": f"postgresql://me:{SECRET} 2@db/x", "depth": 4}
    (finished / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["report", "run=run"]) == 0
    page = (finished / "report.html").read_text()
    assert page.count("postgresql://me:***@db/x") == 2  # among the settings that differ, and among all
    assert SECRET not in page


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
