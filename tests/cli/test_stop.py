"""Ctrl-C and SIGTERM end a search with exit code 130 and one line saying how to go on."""

from __future__ import annotations

import signal
import time
from pathlib import Path

from l2l_nas.__main__ import main
from l2l_nas.nas.callback import Stopped
from tests.cli.runs import TINY, start

WORDS = ("space.pool=tiny.py:build", *TINY, "search.trials=16", "folder=run")


def test_a_search_that_is_stopped_among_its_finalists_says_that_they_begin_anew(pool, tmp_path, capsys, monkeypatch):
    def stop_at(*_, **__):
        raise Stopped

    monkeypatch.setattr("l2l_nas.nas.strategies.finalist_phase.Rounds._further", stop_at)
    assert main(["search", *WORDS, "search.trials=3", "search.warmup_steps=2"]) == 130
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("stopped after 3 of 3 trials, all saved; the finalists begin anew. Go on with: python")


def test_ctrl_c_while_the_program_starts_is_one_line_and_leaves_nothing(pool, tmp_path):
    process = start("search", *WORDS, cwd=tmp_path)
    end = time.monotonic() + 60
    while "libtorch" not in Path(f"/proc/{process.pid}/maps").read_text():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "stopped\n")
    assert not (tmp_path / "run").exists()


def test_a_search_that_is_interrupted_while_it_writes_its_result_says_how_to_go_on(pool, tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("l2l_nas.runs.output.Output._draw_front", interrupt)
    assert main(["search", *WORDS, "search.trials=5"]) == 130
    said = capsys.readouterr()
    assert said.out.splitlines()[-1].startswith("stopped after 5 of 5 trials, all saved. Go on with: python")
    assert not said.err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
