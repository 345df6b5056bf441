"""States in files: frames shared by threads, reading ahead, errors, deletion, and memory that does not grow."""

from __future__ import annotations

import errno
import gc
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.frames import Image
from l2l_nas.eps.layout import ALIGNMENT_BYTES
from l2l_nas.eps.state import Part
from l2l_nas.errors import SettingError, StorageError
from tests.eps.disks import make_rough
from tests.eps.test_storage import KEYS, state_of
from tests.toys import SquaredError, dense_pool, random_data

ROOT = Path(__file__).parents[2]


@pytest.fixture
def storage(tmp_path):
    kept = FileStorage(tmp_path, frames=3)
    for key in KEYS:
        kept.put(key, state_of(key))
    yield kept
    kept.close()


def wait_until(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def file_of(storage: FileStorage, key: str) -> Path:
    return storage._records[key].path


def frame_bytes(storage: FileStorage) -> int:
    return sum(frame.block.numel() for frame in storage._table)


def filled(storage: FileStorage, key: str) -> int:
    frame = storage._table.find(key)
    return frame.filled_bytes if frame is not None and frame.holder is None else 0


def test_what_is_expected_is_read_ahead_as_far_as_frames_go(storage):
    storage.expect([(KEYS[0], Part.WEIGHTS), (KEYS[1], Part.ALL), (KEYS[2], Part.WEIGHTS), (KEYS[3], Part.WEIGHTS)])
    wait_until(lambda: all(filled(storage, key) for key in KEYS[:3]))
    read = storage.bytes_read
    for key, opened, then in ((0, storage.reading, 3), (1, storage.writing, None), (2, storage.reading, None)):
        with opened(KEYS[key]):
            pass
        if then is not None:
            wait_until(lambda: filled(storage, KEYS[3]))  # in the frame that is not needed any more
    assert storage.misses == 0
    with storage.reading(KEYS[3]):
        pass
    assert storage.misses == 0
    assert storage.bytes_read - read == storage._records[KEYS[3]].image.end_bytes(Part.WEIGHTS)


def test_a_state_that_is_still_in_a_frame_is_not_read_again(storage):
    with storage.reading(KEYS[0]) as state:
        size = state.weights.numel() + state.buffers.numel()
    assert storage.bytes_read == size
    with storage.reading(KEYS[0]):
        pass
    assert storage.bytes_read == size
    with storage.writing(KEYS[0]) as state:
        rest = sum(block.numel() for block in state.moments)
    assert size + rest < storage.bytes_read <= size + rest + ALIGNMENT_BYTES  # and the step counts


def test_frames_are_as_large_as_the_largest_state_and_grow_with_it(tmp_path):
    pool = dense_pool(width=64)
    server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=(storage := FileStorage(tmp_path, frames=2)))
    keys = sorted(pool.states, key=lambda key: server.layout(key).parameter_bytes)
    for key in keys:
        server.state(key)
        assert frame_bytes(storage) <= 2 * (3 * server.layout(key).parameter_bytes + 4096)
    before = frame_bytes(storage)
    for key in keys:
        server.state(key)
    largest = server.layout(keys[-1]).parameter_bytes
    assert before <= frame_bytes(storage) == pytest.approx(2 * 3 * largest, rel=0.1)
    storage.close()


@pytest.mark.parametrize(("frames", "cached_bytes"), [(1, None), (2, None), (3, None), (2, 0)])
def test_threads_that_read_and_change_states_see_every_change(real_disk, monkeypatch, frames, cached_bytes):
    make_rough(monkeypatch, seed=frames, longest_delay_s=0.001)
    storage = FileStorage(real_disk, frames=frames, cached_bytes=cached_bytes)
    for key in KEYS:
        state = state_of(key)
        state.weights.zero_()
        storage.put(key, state)
    counts = dict.fromkeys(KEYS, 0)
    errors = []

    def work(seed: int) -> None:
        generator = random.Random(seed)
        mine = KEYS[seed::3]  # a state is used by one thread only; frames are shared
        try:
            for _ in range(60):
                key = generator.choice(mine)
                if generator.random() < 0.5:
                    with storage.writing(key) as state:
                        assert (state.weights == counts[key]).all()
                        counts[key] += 1
                        state.weights.fill_(counts[key])
                        state.moments[1].fill_(counts[key])
                elif generator.random() < 0.3:
                    with storage.writing(key, Part.BUFFERS) as state:
                        state.buffers.fill_(counts[key])
                else:
                    part = generator.choice([Part.WEIGHTS, Part.ALL])
                    with storage.reading(key, part) as state:
                        assert (state.weights == counts[key]).all()
                        if part is Part.ALL and counts[key]:
                            assert (state.moments[1] == counts[key]).all()
                if generator.random() < 0.2:
                    storage.expect((generator.choice(KEYS), generator.choice(list(Part)[1:])) for _ in range(6))
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    storage.close()


def test_two_may_read_one_state_and_who_writes_waits_for_them(storage):
    steps = []

    def write():
        with storage.writing(KEYS[0]):
            steps.append("written")

    with storage.reading(KEYS[0]) as one, storage.reading(KEYS[0], Part.ALL) as other:
        assert one is other
        thread = threading.Thread(target=write)
        thread.start()
        time.sleep(0.05)
        steps.append("read")
    thread.join()
    assert steps == ["read", "written"]


def test_a_thread_that_would_wait_for_itself_is_told(storage):
    with pytest.raises(AssertionError, match="has open itself"), storage.reading(KEYS[0]), storage.writing(KEYS[0]):
        pass
    with (
        pytest.raises(AssertionError, match="has open itself"),
        storage.reading(KEYS[0]),
        storage.reading(KEYS[1]),
        storage.reading(KEYS[2]),
        storage.reading(KEYS[3]),
    ):
        pass
    with storage.writing(KEYS[0]):
        pass


@pytest.mark.parametrize(
    ("harm", "said"), [(os.unlink, "was deleted while in use"), (lambda path: os.truncate(path, 10), "was cut short")]
)
@pytest.mark.parametrize("is_expected", [False, True])
def test_a_file_in_foreign_hands_is_refused_where_it_is_opened_also_after_reading_ahead(
    storage, harm, said, is_expected
):
    harm(file_of(storage, KEYS[1]))
    if is_expected:
        storage.expect([(KEYS[1], Part.WEIGHTS), (KEYS[2], Part.WEIGHTS)])
        wait_until(lambda: filled(storage, KEYS[2]))  # the thread goes on with the next
    for _ in range(2):
        with pytest.raises(StorageError, match=f"layer0-normed: {said}") as caught, storage.reading(KEYS[1]):
            pass
        assert "\n" not in str(caught.value)
    for key in (KEYS[0], *KEYS[2:]):
        with storage.writing(key):
            pass
    storage.put(KEYS[1], state_of(KEYS[1]))
    with storage.reading(KEYS[1]):
        pass


def test_a_state_that_could_not_be_written_is_refused_until_it_is_put_again(storage, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(StorageError, match="layer0-dense: the disk is full"), storage.writing(KEYS[0]):
            pass
    for opened in (storage.reading, storage.writing):
        with pytest.raises(StorageError, match="layer0-dense: the disk is full"), opened(KEYS[0]):
            pass
    storage.put(KEYS[0], state_of(KEYS[0]))
    with storage.reading(KEYS[0]):
        pass


def test_a_frame_for_which_there_is_no_memory_is_tried_again_the_next_time(storage, monkeypatch):
    def none_left(*_, **__):
        raise RuntimeError("not enough memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", none_left)
        storage.expect([(KEYS[1], Part.ALL)])
        for _ in range(5):
            with pytest.raises(RuntimeError, match="not enough memory"), storage.reading(KEYS[0]):
                pass
    for key in KEYS:
        with storage.writing(key) as state:
            assert state.visits == 3


def test_training_stops_with_the_cause_when_a_file_vanishes_and_a_full_disk_shows_at_the_first_visit(small_disk):
    pool = dense_pool(width=80)  # 80 kB a state
    server = ParamServer(pool, optimizer=AdamW(), seed=0, storage=(storage := FileStorage(small_disk)))
    relay = Relay(server, device="cpu", lanes="threads")
    inputs, targets = random_data(pool, 4, seed=0)

    def train(*names):
        options = {"objective": SquaredError(), "micro_batch": 2, "lr": 0.1}
        for name in names:
            relay.train_step(pool.architecture([*([name] * 4), "mlp"]), inputs, targets, step=0, **options)
            relay.drain()

    train("dense")
    with pytest.raises(StorageError, match="disk is full: free some space") as caught:
        train("running", "partial", "twice", "normed")
    assert str(small_disk) in str(caught.value)
    train("dense")  # what was there goes on
    file_of(storage, "layer1/dense").unlink()
    with pytest.raises(StorageError, match="layer1-dense: was deleted while in use"):
        train("dense", "dense", "dense")
    relay.close()
    storage.close()


def test_files_are_deleted_with_the_storage_and_its_thread_ends(tmp_path):
    for way in ("close", "forget"):
        storage = FileStorage(tmp_path)
        for key in KEYS:
            storage.put(key, state_of(key))
        storage.expect([(key, Part.ALL) for key in KEYS])
        thread = storage._reader.thread
        assert len(list(storage.folder.iterdir())) == len(KEYS) + 1
        if way == "close":
            storage.close()
            storage.close()
            with pytest.raises(StorageError, match="was closed"), storage.reading(KEYS[0]):
                pass
            with pytest.raises(StorageError, match="was closed"):
                storage.put(KEYS[0], state_of(KEYS[0]))
        del storage
        gc.collect()
        assert list(tmp_path.iterdir()) == []
        assert not thread.is_alive()


@pytest.mark.slow
def test_files_are_deleted_when_the_process_ends_without_closing(tmp_path):
    code = (
        "import sys; from tests.eps.test_file_storage import *; storage = FileStorage(Path(sys.argv[1]));"
        "storage.put(KEYS[0], state_of(KEYS[0])); storage.expect([(KEYS[0], Part.ALL)]); print(storage.keys)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, check=True, timeout=60)
    assert list(tmp_path.iterdir()) == []


def test_no_frames_are_refused(tmp_path):
    with pytest.raises(SettingError, match="frames must "):
        FileStorage(tmp_path, frames=0)


def test_a_pool_s_open_files_do_not_grow(storage):
    before = len(os.listdir("/proc/self/fd"))
    for key in KEYS * 3:
        with storage.writing(key):
            pass
    storage.expect([(key, Part.ALL) for key in KEYS])
    wait_until(lambda: filled(storage, KEYS[0]))
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="there is no way to pass the page cache by")
def test_states_beyond_what_may_be_cached_are_read_and_written_past_the_page_cache(real_disk, monkeypatch):
    real, opened = os.open, []

    def noted(path, flags, *others, **named):
        opened.append((Path(path).name, bool(flags & os.O_DIRECT)))
        return real(path, flags, *others, **named)

    size = Image(state_of(KEYS[0]).layout).end_bytes(Part.ALL)
    storage = FileStorage(real_disk, frames=1, cached_bytes=size)
    monkeypatch.setattr(os, "open", noted)
    for key in KEYS[:2]:
        storage.put(key, state_of(key))
    for key in (*KEYS[:2], *KEYS[:2]):
        with storage.writing(key) as state:
            state.weights.add_(1)
    is_direct = {name: {direct for other, direct in opened if other == name} for name, _ in opened}
    assert is_direct[file_of(storage, KEYS[0]).name] == {False}
    # its space is set aside by way of the system; from then on nothing is
    later = [direct for name, direct in opened if name == file_of(storage, KEYS[1]).name][1:]
    assert len(later) > 6
    assert all(later)
    storage.put(KEYS[0], state_of(KEYS[0]))  # takes the place it had
    assert not storage._records[KEYS[0]].is_direct
    storage.clear()
    storage.put(KEYS[0], state_of(KEYS[0]))
    assert not storage._records[KEYS[0]].is_direct
    storage.close()


def test_a_file_system_that_cannot_pass_the_page_cache_by_is_used_without(tmp_path, monkeypatch):
    real = os.open

    def refusing(path, flags, *others, **named):
        if flags & getattr(os, "O_DIRECT", 0):
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(path, flags, *others, **named)

    monkeypatch.setattr(os, "open", refusing)
    storage = FileStorage(tmp_path, frames=1, cached_bytes=0)
    for number, key in enumerate(KEYS):
        state = state_of(key)
        state.weights.fill_(number)
        storage.put(key, state)
    for number, key in enumerate(KEYS):
        with storage.reading(key, Part.ALL) as state:
            assert (state.weights == number).all()
    storage.close()
