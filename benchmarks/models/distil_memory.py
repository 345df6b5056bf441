"""Device memory of taking a published model apart, on the simulated accelerator of the tests.

    python -m benchmarks distil_memory --model gguf:FILE [--blocks 4] [--length 256] [--batch 4] [--precision fp32]
        [--out FILE.json]

All candidates of the first blocks, which are all of one size, imitate their originals for one step each. The peak is
that of the simulated device's allocator: layers, their gradients, and all that autograd keeps.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from benchmarks.options import at_least
from l2l_nas import AdamW, ParamServer, Relay
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.files import write_json
from l2l_nas.pretrained.pool import published_pool
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.training.blockwise import BlockDistillation, BlockSettings


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=at_least(1), default=256)
    parser.add_argument("--batch", type=at_least(1), default=4)
    parser.add_argument("--blocks", type=at_least(1), default=4)
    parser.add_argument("--precision", default="fp32", choices=list(PRECISIONS))
    parser.add_argument("--widths", type=float, nargs="*", default=[0.85, 0.7, 0.5])
    parser.add_argument("--out", type=Path)


def main(args: argparse.Namespace) -> None:
    """The script."""
    from tests.accelerator.simulated import DEVICE, library  # registers the device for the whole process

    began = time.monotonic()
    pool = published_pool(args.model, length=args.length, widths=args.widths)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    imported = library.device_memory()[1]
    distillation = BlockDistillation(
        server,
        pool.original,
        lambda own: Relay(own, slots=1, update="exact", precision=args.precision, device=DEVICE),
        BlockSettings(steps=1, batch_size=args.batch, micro_batch=args.batch),
    )
    inputs = (torch.randint(1000, (2 * args.batch, args.length), generator=torch.Generator().manual_seed(0)),)
    peaks: dict[str, int] = {}
    for key, error in distillation.run(inputs):
        if key.split("/")[0].endswith(f"_{args.blocks}"):
            break
        peaks[key] = library.device_memory()[1]
        print(f"{key:40} error {error:.3f}, peak so far {peaks[key] / 1e6:7.1f} MB", flush=True)
    parameters = num_parameters(pool, pool.original)
    model_bytes = parameters * PRECISIONS[args.precision].itemsize
    found = {
        "hardware": "simulated accelerator",
        "precision": args.precision,
        "blocks": args.blocks,
        "length": args.length,
        "batch": args.batch,
        "parameters": parameters,
        "model_bytes": model_bytes,
        "peak_bytes_importing": imported,
        "peak_bytes_distilling": max(peaks.values()),
        "share": max(peaks.values()) / model_bytes,
        "seconds": time.monotonic() - began,
    }
    print(found)
    if args.out:
        write_json(args.out, found)
