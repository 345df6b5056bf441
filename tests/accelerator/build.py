"""Compiles the simulated accelerator, once for each version of its source and of torch."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

import torch

NAME = "l2l_nas_simulated"
SOURCE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "l2l_nas" / "simulated_accelerator"
LIBRARIES = ("torch", "torch_cpu", "c10", "torch_python")


def compiler() -> str | None:
    """The C++ compiler, where there is one."""
    return shutil.which(os.environ.get("CXX", "c++"))


def key() -> str:
    """Names what is compiled: a library made of other source or for another torch is another one."""
    parts = [torch.__version__, sysconfig.get_config_var("SOABI") or ""]
    parts += [path.read_text() for path in sorted([*SOURCE.glob("*.h"), *SOURCE.glob("*.cpp")])]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def build() -> Path:
    """The compiled library; about two minutes the first time.

    Raises:
        RuntimeError: there is no compiler, or it refuses the source.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    library = CACHE / f"{NAME}-{key()}.so"
    with (CACHE / "lock").open("w") as lock:  # processes that test at once compile once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def _compile(library: Path) -> None:
    command = compiler()
    if command is None:
        raise RuntimeError("the simulated accelerator needs a C++ compiler: none is found as c++ or $CXX")
    home = Path(torch.__file__).parent
    includes = [home / "include", home / "include/torch/csrc/api/include", sysconfig.get_paths()["include"]]
    flags = ["-O1", "-std=c++20", "-shared", "-fPIC", "-w", f"-DTORCH_EXTENSION_NAME={NAME}"]
    # only Python's part of torch's extension header is needed, and the other one doubles the time
    flags.append("-DTORCH_API_INCLUDE_EXTENSION_H")
    links = [f"-L{home / 'lib'}", *(f"-l{name}" for name in LIBRARIES), f"-Wl,-rpath,{home / 'lib'}"]
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        made = Path(folder) / library.name
        arguments = [command, *flags, *(f"-I{path}" for path in includes), str(SOURCE / "backend.cpp")]
        done = subprocess.run([*arguments, "-o", str(made), *links], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"the simulated accelerator does not compile:\n{done.stderr[-4000:]}")
        with contextlib.suppress(FileExistsError):
            os.replace(made, library)
