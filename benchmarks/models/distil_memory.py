"""Device memory of taking a published model apart, on the simulated accelerator of the tests.

    python -m benchmarks distil_memory --model gguf:FILE [--blocks 4] [--length 256] [--batch 4] [--precision fp32]
        [--slots 1] [--micro-batch 1] [--phases imitation scores recovery] [--out FILE.json]

Each phase does a few steps. The peak is that of the simulated device's allocator: layers, their gradients, and all that
autograd keeps.

    imitation   all candidates of the first blocks, which are all of one size, imitate their originals for one step each
    scores      the whole network, and the same without its first feed-forward network, on four sequences
    recovery    a step of the whole network on targets and the original's probabilities
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.options import at_least
from l2l_nas import AdamW, Architecture, ParamServer, Relay, Tokens
from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.files import write_json
from l2l_nas.pretrained.pool import published_pool
from l2l_nas.relay.config import PRECISIONS
from l2l_nas.training.blockwise import BlockDistillation, BlockSettings
from l2l_nas.training.fit import evaluate_population
from l2l_nas.training.metrics import measured as measured_task
from l2l_nas.training.samples import Split
from l2l_nas.training.teach import TaughtTask

RelayOf = Callable[[ParamServer], Relay]


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--length", type=at_least(1), default=256)
    parser.add_argument("--batch", type=at_least(1), default=4)
    parser.add_argument("--blocks", type=at_least(1), default=4)
    parser.add_argument("--precision", default="fp32", choices=list(PRECISIONS))
    parser.add_argument("--widths", type=float, nargs="*", default=[0.85, 0.7, 0.5])
    parser.add_argument("--slots", type=at_least(1), default=1)
    parser.add_argument("--micro-batch", type=at_least(1), default=1)
    parser.add_argument("--phases", nargs="+", choices=list(_PHASES), default=list(_PHASES))
    parser.add_argument("--out", type=Path)


def main(args: argparse.Namespace) -> None:
    """The script."""
    from tests.accelerator.simulated import DEVICE, library  # registers the device for the whole process

    began = time.monotonic()
    pool = published_pool(args.model, length=args.length, widths=args.widths)
    server = ParamServer(pool, optimizer=AdamW(), seed=0)
    imported = library.device_memory()[1]
    parameters = num_parameters(pool, pool.original)
    model_bytes = parameters * PRECISIONS[args.precision].itemsize

    def relay_of(own: ParamServer) -> Relay:
        return Relay(own, slots=args.slots, update="exact", precision=args.precision, device=DEVICE)

    def measured(phase: str) -> dict[str, float]:
        before = library.device_memory()[0]
        torch.accelerator.reset_peak_memory_stats()
        _PHASES[phase](args, server, relay_of)
        peak = torch.accelerator.max_memory_allocated() - before
        print(f"{phase:10} {peak / 1e6:7.1f} MB, {peak / model_bytes:.1%}, of float32 {peak / parameters / 4:.1%}")
        return {"peak_bytes": peak, "share": peak / model_bytes, "share_of_fp32": peak / parameters / 4}

    found = {
        "hardware": "simulated accelerator",
        "precision": args.precision,
        "blocks": args.blocks,
        "length": args.length,
        "batch": args.batch,
        "micro_batch": args.micro_batch,
        "slots": args.slots,
        "parameters": parameters,
        "model_bytes": model_bytes,
        "peak_bytes_importing": imported,
        "phases": {phase: measured(phase) for phase in args.phases},
        "seconds": time.monotonic() - began,
    }
    print(found)
    if args.out:
        write_json(args.out, found)


def _tokens(args: argparse.Namespace, count: int) -> Tensor:
    return torch.randint(200, (count, args.length), generator=torch.Generator().manual_seed(0))


def _imitate(args: argparse.Namespace, server: ParamServer, relay_of: RelayOf) -> None:
    settings = BlockSettings(steps=1, batch_size=args.batch, micro_batch=args.micro_batch)
    distillation = BlockDistillation(server, server.pool.original, relay_of, settings)
    for key, _ in distillation.run((_tokens(args, 2 * args.batch),)):
        if key.split("/")[0].endswith(f"_{args.blocks}"):
            break


def _score(args: argparse.Namespace, server: ParamServer, relay_of: RelayOf) -> None:
    tokens, pool = _tokens(args, 4), server.pool
    choices = list(pool.original.choices)
    choices[next(index for index, one in enumerate(pool.positions) if one.name.startswith("feedforward_"))] = "skip"
    networks = [pool.original, Architecture(tuple(choices))]
    with contextlib.closing(relay_of(server)) as relay:
        evaluate_population(relay, networks, Split((tokens,), tokens), task=Tokens(), micro_batch=args.micro_batch)


def _recover(args: argparse.Namespace, server: ParamServer, relay_of: RelayOf) -> None:
    tokens, pool = _tokens(args, args.batch), server.pool
    with contextlib.closing(relay_of(server)) as relay:
        (taught,) = relay.predict(pool.original, (tokens,), micro_batch=args.micro_batch)
        task = TaughtTask(measured_task(Tokens()), share=0.5)
        relay.train_step(
            pool.original,
            (tokens,),
            (tokens, taught),
            objective=task,
            micro_batch=args.micro_batch,
            lr=1e-4,
            step=0,
        )
        relay.drain()


_PHASES = {"imitation": _imitate, "scores": _score, "recovery": _recover}
