"""What the host has."""

from __future__ import annotations

import os
from pathlib import Path


def free_memory_bytes() -> int:
    """Host memory that may be used without pushing anything out but files."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
