"""Answers that are the original's, token by token."""

from __future__ import annotations

import pytest
import torch

from l2l_nas.errors import DataError, SettingError
from l2l_nas.text.answers import Answers
from l2l_nas.text.language import evaluate_text
from tests.text.test_recall import model_of


def test_a_network_answers_as_itself_and_one_that_sees_less_does_not(tmp_path):
    text, original = tmp_path / "text.txt", model_of(320)
    text.write_text("one two three four, " * 200)
    same, count = evaluate_text(model_of(320), "answers", text, original=original)
    assert same.values == {"same_answers": 1.0, "same_tokens": 1.0}
    assert count == 64
    other, _ = evaluate_text(model_of(14), "answers", text, original=original)
    assert other.values["same_answers"] <= other.values["same_tokens"] < 1


def test_tokens_behind_the_first_other_one_do_not_count():
    targets = torch.tensor([[-1, 3, 1, 2, 0], [-1, -1, 2, 2, -1], [1, 1, 1, 1, 1]])
    written = torch.tensor([[0, 3, 0, 2, 0], [0, 0, 2, 2, 3], [0, 1, 1, 1, 1]])
    logits = torch.nn.functional.one_hot(written, 4).float()
    task = Answers()
    assert task.figures((logits,), targets).tolist() == [[1, 0, 0.25], [1, 1, 1], [1, 0, 0]]
    assert task.measure((logits,), targets) == {
        "same_answers": pytest.approx(1 / 3),
        "same_tokens": pytest.approx(5 / 12),
    }


def test_an_original_goes_with_this_task_alone(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("many words " * 40)
    for task, original in (("answers", None), ("text", model_of(64))):
        with pytest.raises(SettingError, match=f"compares with, and of no other task; got task={task}"):
            evaluate_text(model_of(64), task, path, original=original)


def test_what_cannot_be_asked_is_refused(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("few words")
    with pytest.raises(DataError, match="the text has 9 tokens, and a prompt 48"):
        evaluate_text(model_of(9), "answers", path, original=model_of(9))
