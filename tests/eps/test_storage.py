"""What every storage does: all run the same tests."""

from __future__ import annotations

import contextlib

import pytest
import torch

from l2l_nas import AdamW, ParamServer
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.optimizers.groups import rules_of
from l2l_nas.eps.state import LayerState, Part, first_state
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.errors import StateLostError
from l2l_nas.plugins import imported
from tests.cli.runs import ROOT
from tests.toys import dense_pool

POOL = dense_pool()
OWN = f"{ROOT}/examples/extensions/storage.py:Packed"
KEYS = ["layer0/dense", "layer0/normed", "layer1/partial", "layer2/normed", "head/linear", "layer3/twice"]


@pytest.fixture(params=["ram", "own", "file", "one frame", "past the cache"])
def storage(request, tmp_path):
    if request.param in ("ram", "own"):
        yield RamStorage() if request.param == "ram" else imported(OWN, setting="relay.storage")()
        return
    cached = 0 if request.param == "past the cache" else None
    kept = FileStorage(tmp_path, frames=1 if request.param == "one frame" else 3, cached_bytes=cached)
    yield kept
    kept.close()


def state_of(key: str, seed: int = 0) -> LayerState:
    state = first_state(POOL, key, layout=rules_of(POOL, AdamW()).of(key).layout, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    for block in state.moments:
        block.random_(0, 255, generator=generator)
    state.steps.random_(0, 9, generator=generator)
    state.visits, state.version = seed + 3, seed + 5
    return state


def content(state: LayerState) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in state.tensors().items()}


def assert_same(state: LayerState, expected: dict[str, torch.Tensor]) -> None:
    found = state.tensors()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].view(-1).view(torch.uint8), tensor.view(-1).view(torch.uint8)), name


def test_what_is_put_is_read_whole_and_in_parts(storage: Storage):
    expected = {}
    for number, key in enumerate(KEYS):
        state = state_of(key, number)
        expected[key] = content(state)
        storage.put(key, state)
    assert storage.keys == tuple(KEYS)
    for key in (*KEYS, *reversed(KEYS)):
        with storage.reading(key) as state:
            for name, view in state.parameters().items():
                assert torch.equal(view, expected[key][f"weights.{name}"])
            for name, view in state.named_buffers().items():
                assert torch.equal(view, expected[key][f"buffers.{name}"])
        with storage.reading(key, Part.ALL) as state:
            assert_same(state, expected[key])
            assert (state.visits, state.version) == (KEYS.index(key) + 3, KEYS.index(key) + 5)


def test_what_is_changed_is_kept(storage: Storage):
    for key in KEYS:
        storage.put(key, state_of(key))
    expected, versions = {}, {}
    for number, key in enumerate(KEYS):
        with storage.writing(key) as state:
            state.load_tensors(content(state_of(key, 10 + number)))
            expected[key], versions[key] = content(state), state.version
    for key in KEYS:
        with storage.reading(key, Part.ALL) as state:
            assert_same(state, expected[key])
            assert state.version == versions[key]


def test_changed_buffers_are_kept_and_the_rest_stays(storage: Storage):
    for key in KEYS:
        storage.put(key, state_of(key))
    expected = content(state_of("layer2/normed"))
    with storage.writing("layer2/normed", Part.BUFFERS) as state:
        state.named_buffers()["before.running_mean"].fill_(7.0)
    expected["buffers.before.running_mean"].fill_(7.0)
    for key in KEYS[:3]:
        with storage.reading(key, Part.ALL):
            pass
    with storage.reading("layer2/normed", Part.ALL) as state:
        assert_same(state, expected)


class HalfWay(Exception):
    """What ends a change."""


def _by_hand(state):
    state.weights.zero_()
    raise HalfWay


def _as_loaded(state):
    state.load_tensors(content(state_of(KEYS[1], 7)))
    raise HalfWay


def _counted(state):
    state.visits += 1
    raise HalfWay


@pytest.mark.parametrize("part", [Part.BUFFERS, Part.ALL], ids=["buffers", "all"])
@pytest.mark.parametrize("change", [_by_hand, _as_loaded, _counted])
def test_a_change_that_raises_leaves_a_state_as_it_was_or_refused_by_name_until_it_is_put(
    storage: Storage, change, part
):
    if part is Part.BUFFERS and change is not _counted:
        change = _in_buffers
    key = KEYS[1]
    for one in KEYS[:3]:
        storage.put(one, state_of(one))
    expected = content(state_of(key))
    with pytest.raises(HalfWay), storage.writing(key, part) as state:
        change(state)
    if isinstance(storage, RamStorage):
        for opened in (storage.reading, storage.writing):
            with pytest.raises(StateLostError, match=key), opened(key):
                pass
    else:
        with storage.reading(key, Part.ALL) as state:
            assert_same(state, expected)
    storage.put(key, state_of(key, 3))
    for one in KEYS[:3]:
        with storage.reading(one, Part.ALL) as state:
            assert_same(state, content(state_of(one, 3 if one == key else 0)))


@pytest.mark.parametrize("kind", ["ram", "file"])
def test_a_state_that_is_said_to_be_lost_is_refused_as_lost_until_it_is_put(kind, tmp_path):
    key = KEYS[0]
    with contextlib.ExitStack() as stack:
        storage = RamStorage() if kind == "ram" else stack.enter_context(contextlib.closing(FileStorage(tmp_path)))
        storage.put(key, state_of(key))
        with pytest.raises(StateLostError), storage.writing(key):
            raise StateLostError(key, "the device is gone")
        for opened in (storage.reading, storage.writing):
            with pytest.raises(StateLostError, match="the device is gone") as caught, opened(key):
                pass
            assert (caught.value.key, caught.value.reason) == (key, "the device is gone")
        storage.put(key, state_of(key, 3))
        with storage.reading(key, Part.ALL) as state:
            assert_same(state, content(state_of(key, 3)))


def _in_buffers(state):
    state.buffers.zero_()
    raise HalfWay


def test_a_change_that_raises_before_it_begins_costs_nothing(storage: Storage):
    storage.put(KEYS[0], state_of(KEYS[0]))
    with pytest.raises(HalfWay), storage.writing(KEYS[0]):
        raise HalfWay
    with storage.reading(KEYS[0], Part.ALL) as state:
        assert_same(state, content(state_of(KEYS[0])))


def test_a_state_that_is_put_again_replaces_the_one_before_at_its_place(storage: Storage):
    for key in KEYS[:3]:
        storage.put(key, state_of(key))
    storage.expect([(KEYS[1], Part.ALL)])
    expected = content(state_of(KEYS[1], 1))
    storage.put(KEYS[1], state_of(KEYS[1], 1))
    assert storage.keys == tuple(KEYS[:3])
    with storage.reading(KEYS[1], Part.ALL) as state:
        assert_same(state, expected)


def test_what_is_expected_need_not_come_and_need_not_exist(storage: Storage):
    for key in KEYS:
        storage.put(key, state_of(key))
    for _ in range(3):
        storage.expect([*((key, Part.WEIGHTS) for key in KEYS), ("unknown", Part.ALL), (KEYS[0], Part.ALL)])
        for key in (KEYS[4], KEYS[0]):
            with storage.reading(key, Part.ALL) as state:
                assert_same(state, content(state_of(key)))


def test_nothing_is_left_after_clear(storage: Storage):
    for key in KEYS:
        storage.put(key, state_of(key))
    storage.expect([(key, Part.ALL) for key in KEYS])
    storage.clear()
    assert storage.keys == ()
    with pytest.raises(KeyError), storage.reading(KEYS[0]):
        pass
    storage.put(KEYS[1], state_of(KEYS[1], 2))
    with storage.writing(KEYS[1]) as state:
        assert_same(state, content(state_of(KEYS[1], 2)))


def test_a_state_the_server_gives_out_does_not_change_with_what_comes_after(storage: Storage):
    server = ParamServer(POOL, optimizer=AdamW(), seed=0, storage=storage)
    first = server.state(KEYS[0])
    expected = content(first)
    for key in KEYS[1:]:
        server.state(key)
    assert_same(first, expected)
    assert_same(server.state(KEYS[0]), expected)
    fork = server.fork(KEYS[:2])
    assert_same(fork.state(KEYS[0]), expected)
    fork.state(KEYS[0]).weights.zero_()
    assert_same(server.state(KEYS[0]), expected)
