"""Frames: which state gets which, by what is needed when."""

from __future__ import annotations

import torch

from l2l_nas import AdamW, ParamServer
from l2l_nas.eps.frames import NEVER, Agenda, FrameTable, Image
from l2l_nas.eps.state import Part
from tests.toys import dense_pool


def uses(text: str, part: Part = Part.WEIGHTS):
    return [(key, part) for key in text]


def ahead(agenda: Agenda) -> str:
    return "".join(key for _, (key, _) in agenda.ahead())


def test_uses_are_struck_off_as_they_are_met_whatever_their_order():
    agenda = Agenda()
    agenda.extend([*uses("abcb"), *uses("ba", Part.ALL)])
    assert [agenda.next_use(key) for key in "abcx"] == [0, 1, 2, NEVER]
    agenda.meet("b", Part.WEIGHTS)
    assert (ahead(agenda), agenda.next_use("b")) == ("acbba", 3)
    agenda.meet("b", Part.ALL)
    assert (ahead(agenda), agenda.next_use("b")) == ("acba", 3)
    agenda.meet("b", Part.BUFFERS)
    agenda.meet("x", Part.ALL)
    assert ahead(agenda) == "acba"
    for key in "acb":
        agenda.meet(key, Part.WEIGHTS)
    assert ahead(agenda) == "a"
    agenda.meet("a", Part.ALL)
    assert (ahead(agenda), agenda.next_use("a")) == ("", NEVER)


def test_what_was_not_met_is_expected_until_the_plan_after_the_next():
    agenda = Agenda()
    agenda.extend(uses("abc"))
    agenda.meet("b", Part.WEIGHTS)
    agenda.extend(uses("de"))
    assert ahead(agenda) == "acde"
    agenda.meet("d", Part.WEIGHTS)
    agenda.extend(uses("f"))
    assert ahead(agenda) == "ef"
    agenda.clear()
    assert ahead(agenda) == ""


def test_the_frame_whose_state_is_needed_latest_is_given_away():
    table = FrameTable(3)
    table.agenda.extend(uses("abcd"))
    frames = {key: table.assign(key) for key in "abc"}
    assert table.assign("d", later_than=3) is None  # all are needed sooner
    assert table.assign("d") is frames["c"]
    assert table.find("c") is None
    assert table.assign("e", later_than=2) is frames["c"]
    frames["a"].readers.append(1)
    frames["b"].holder = 1
    table.find("e").holder = 2
    assert table.assign("f") is None


def test_of_frames_that_are_not_needed_the_one_used_longest_ago_is_given_away():
    table = FrameTable(2)
    first, second = table.assign("a"), table.assign("b")
    table.touch(first)
    table.touch(second)
    table.touch(first)
    assert table.assign("c") is second


def test_an_image_holds_a_state_s_tensors_aligned_each_part_a_beginning_of_it():
    server = ParamServer(dense_pool(), optimizer=AdamW(), seed=0)
    state = server.state("layer0/normed")
    image = Image(state.layout)
    block = torch.zeros(image.end_bytes(Part.ALL) + 100, dtype=torch.uint8)
    for offset, piece in image.pieces(state):
        assert offset % 64 == 0
        block[offset : offset + piece.numel()] = piece
    copy = image.state(block)
    for name, tensor in state.tensors().items():
        if name != "visits":
            assert torch.equal(copy.tensors()[name], tensor), name
    block[image.end_bytes(Part.WEIGHTS) :] = 255
    assert torch.equal(copy.weights, state.weights)
    block[image.end_bytes(Part.BUFFERS) :] = 255
    assert torch.equal(copy.buffers, state.buffers)
    parameters = server.layout("layer0/normed").num_parameters
    assert image.end_bytes(Part.ALL) >= 12 * parameters
