"""One thread for torch, and temporary folders in memory where there is space.

Tests run beside others, and idle OpenMP threads that spin slow all of them down. The tests of searches commit to SQLite
thousands of times, and each commit waits for the disk: 20 ms on a shared machine.
"""

import gc
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start, too

import torch

from tests.cli.runs import assert_pages_whole

torch.set_num_threads(1)

# what tests import from their folders is rewritten within a second, and the folders are compared file by file
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = True

_MEMORY = Path("/dev/shm")
if os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 2 * 1024**3:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# the collector would walk through what lives anyway a thousand times; a test that needs a collection asks for one
gc.set_threshold(20_000, 20, 20)

# a shell has its background jobs ignore Ctrl-C, and so would the processes that tests send it to
signal.signal(signal.SIGINT, signal.default_int_handler)


def _name_torchvision_operators():
    """The registry has no torchvision for a CPU build of torch; its compiled operators must exist by name to import it.

    Its models and transforms, which the tests use, are plain Python.
    """
    found = importlib.util.find_spec("torchvision")
    if found is None:
        return None
    try:
        torch.ops.load_library(str(next(Path(found.origin).parent.glob("_C*.so"))))
    except (OSError, StopIteration):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define("nms(Tensor boxes, Tensor scores, float limit) -> Tensor")
        library.define("qnms(Tensor boxes, Tensor scores, float limit) -> Tensor")
        return library
    return None


TORCHVISION = _name_torchvision_operators()


def pytest_addoption(parser):
    parser.addoption("--device", choices=("cpu", "simulated"), default="cpu", help="where relays run")


def pytest_configure(config):
    if config.getoption("--device") == "simulated":
        from tests.accelerator import pytest_plugin

        config.pluginmanager.register(pytest_plugin)


def pytest_collection_modifyitems(items):
    """The tests that take minutes begin first: beside the last of them one core would have nothing to do."""
    items.sort(key=lambda item: item.path.name != "test_simulated.py")


@pytest.fixture(scope="module", autouse=True)
def _libraries_are_not_collected():
    """What was imported for a module's tests lives on, and each collection would walk through all of it for a second.

    A test that collects finds what it made itself, as before.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def pages_are_whole(request):
    """Whatever search a test ran, in this process or another, its page was made without a mistake."""
    place = request.getfixturevalue("tmp_path") if "tmp_path" in request.fixturenames else None
    yield
    if place is not None and "page_may_fail" not in request.fixturenames:
        assert_pages_whole(place)


@pytest.fixture
def races_are_expected():
    """Of a test that breaks waits on purpose, where races are seen: see docs/simulated_accelerator.md."""


@pytest.fixture
def page_may_fail():
    """Of a test in which a page is meant to fail."""


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB; skips where it may not be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], capture_output=True)
    if mounted.returncode:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def real_disk():
    """A folder where files are on a disk, as far as that can be had: memory has no page cache to pass by."""
    with tempfile.TemporaryDirectory(prefix="l2l_nas-tests-") as folder:
        yield Path(folder)
