"""A network learns from targets and from what a teacher gives, as a plain loop does."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from l2l_nas import Classification, Data, Regression, Tokens
from l2l_nas.errors import DataError, SettingError
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import chunks
from l2l_nas.training.metrics import MeasuredTask
from l2l_nas.training.teach import Divergence, TaughtBatches, TaughtSamples, TaughtTask


def batches():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    return Batches(Data.from_arrays(x, x.argmax(dim=1)).train, batch_size=5, seed=1)


def test_batches_bring_what_the_teacher_gives():
    plain, taught = batches(), TaughtBatches(batches(), lambda inputs: (inputs[0] * 2, inputs[0]))
    for step, (inputs, (targets, given, state)) in enumerate(taught.ahead(0, 5)):
        assert torch.equal(inputs[0], plain.at(step)[0][0])
        assert torch.equal(targets, plain.at(step)[1])
        assert torch.equal(given, inputs[0] * 2)
        assert torch.equal(state, inputs[0])
    assert torch.equal(taught.at(3)[1][1], plain.at(3)[0][0] * 2)


def test_the_loss_is_a_mixture():
    logits, teacher = torch.randn(6, 3), torch.randn(6, 3)
    targets = torch.tensor([0, 1, 2, 0, 1, 2])
    task = TaughtTask(MeasuredTask(Classification(), {}), share=0.25)
    expected = (
        0.75 * functional.cross_entropy(logits, targets, reduction="sum")
        + 0.25 * (teacher.softmax(-1) * (teacher.log_softmax(-1) - logits.log_softmax(-1))).sum()
    )
    torch.testing.assert_close(task.loss((logits,), (targets, teacher)), expected)
    assert task.count((targets, teacher)) == 6
    assert task.measure((logits,), targets) == Classification().measure((logits,), targets)


def test_tokens_that_do_not_count_are_left_out():
    logits, teacher = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    targets = torch.tensor([[0, 1, -1, 2], [-1, -1, 0, 1]])
    task = TaughtTask(MeasuredTask(Tokens(), {}), share=1.0)
    some = targets >= 0
    expected = (teacher[some].softmax(-1) * (teacher[some].log_softmax(-1) - logits[some].log_softmax(-1))).sum()
    torch.testing.assert_close(task.loss((logits,), (targets, teacher)), expected)
    assert task.count((targets, teacher)) == 5


def test_what_cannot_be_taught_is_refused():
    with pytest.raises(DataError, match="a teacher gives probabilities of classes, which Regression has not"):
        TaughtTask(MeasuredTask(Regression(), {}), share=0.5)
    with pytest.raises(SettingError, match="the share of a teacher must be above 0 and at most 1, got 2"):
        TaughtTask(MeasuredTask(Classification(), {}), share=2)


@pytest.mark.parametrize("task", [Classification(), Tokens()])
def test_divergence_is_that_of_kullback_and_leibler_over_targets_that_count(task):
    places = (5,) if isinstance(task, Tokens) else ()
    logits, teacher = torch.randn(4, *places, 3), torch.randn(4, *places, 3)
    targets = torch.arange(logits[..., 0].numel()).view(logits.shape[:-1]) % 3
    targets.view(-1)[1] = -100
    some = targets >= 0
    each = teacher.softmax(-1) * (teacher.log_softmax(-1) - logits.log_softmax(-1))
    measure = Divergence(MeasuredTask(task, {})).measure
    assert measure((logits,), (targets, teacher)) == {"divergence": pytest.approx(float(each.sum(-1)[some].mean()))}
    assert measure((teacher,), (targets, teacher)) == {"divergence": 0.0}
    assert measure((logits + 1,), (targets, teacher)) == {"divergence": pytest.approx(float(each.sum(-1)[some].mean()))}


def test_samples_bring_what_the_teacher_gives_and_few_are_read_at_once():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    whole = Data.from_arrays(x, x.argmax(dim=1)).train
    taught = TaughtSamples(whole, lambda inputs: (inputs[0] * 2,), sample_bytes=1 << 28)
    assert taught.at_once == 4
    assert [len(inputs[0]) for (inputs, _) in chunks(taught, taught.at_once)] == [4] * (len(whole) // 4)
    (inputs,), (targets, given) = taught.batch(torch.tensor([3, 1]))
    assert torch.equal(targets, whole.batch(torch.tensor([3, 1]))[1])
    assert torch.equal(given, inputs * 2)
    assert TaughtSamples(whole, taught.batch, sample_bytes=1 << 40).at_once == 1
