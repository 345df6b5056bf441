"""Tables of docs/scale.md: closed forms of memory beside what papers publish. Nothing was measured."""

from __future__ import annotations

from benchmarks.pages.writing import markdown
from l2l_nas.cost.hardware import GIB
from l2l_nas.relay.path import RING

HIDDEN, SEQUENCE, SLOTS, MICRO_BATCH = 1024, 512, 3, 4
LAYER = 12 * HIDDEN**2 + 13 * HIDDEN  # parameters of BERT-Large's
BYTES = {
    "fp32 master, two fp32 moments": 12,
    "fp32 master, two fp32 moments, 16-bit copy for the link": 14,
    "fp32 master, two fp32 moments, fp32 gradients that wait": 16,
    "fp32 master, two bf16 moments (`optimizer.moments=bf16`)": 8,
    "published: 50 B in 512 GB": 10.24,
}


def needs(depth: int, batch: int) -> int:
    """Device bytes: slots of 16-bit weights and fp32 gradients, the work of one layer, the inputs of so many.

    What a layer keeps for its backward is 34 bytes a token and unit of width (arXiv 2205.05198, attention in one
    kernel).
    """
    work = 34 * MICRO_BATCH * SEQUENCE * HIDDEN
    return SLOTS * 6 * LAYER + work + depth * 2 * SEQUENCE * batch * HIDDEN


def memory() -> str:
    """L2L's constant memory: slots and stash by depth."""
    rows = []
    for depth in (12, 24, 96, 384):
        totals = [needs(depth, batch) for batch in (32, 256)]
        cells = [f"{total / GIB:.2f} GiB" + (" (over 16)" if total > 16 * GIB else "") for total in totals]
        rows.append([f"{depth}", *cells, f"{needs(RING, 256) / GIB:.2f} GiB", f"{14 * depth * LAYER / 1e9:.0f} GB"])
    stash = ["stash on the device, batch 32", "batch 256", "stash on the host, any batch up to 256"]
    return markdown(["layers", *stash, "host memory, 14 bytes a parameter"], rows)


def fifty_billion() -> str:
    """With which bytes a parameter 50 B fit into 512 GB."""
    rows = [[name, f"{size:g}", f"{512 / size:.1f} B", "yes" if 512 / size >= 50 else "no"]
            for name, size in BYTES.items()]  # fmt: skip
    return markdown(["stored for each parameter", "bytes", "most parameters in 512 GB", "50 B fit"], rows)


BLOCKS = {"scale_memory": memory, "scale_host": fifty_billion}
