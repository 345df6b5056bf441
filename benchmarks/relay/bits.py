"""Whether two checkouts compute the same, bit for bit: weights, moments, counts, buffers, losses, norms, predictions.

    python -m benchmarks bits BEFORE [--only TEXT]

A fixed set of small configurations is trained and scored through the public API, in one process a checkout, on one
thread. What differs is named: the configuration, and which of its parts.

What has another name in the other checkout is found by `relay_of` and `reference_of`.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import ROOT
from benchmarks.paired import check_library, command_of
from benchmarks.relay.bits_cases import OPTIMIZERS, SPACES, TEXT, Case, cases

STEPS = 4


@cache
def pool_of(name: str) -> Any:
    """A pool of this checkout's own toys or spaces."""
    if name == "auxiliary":
        return _auxiliary_pool()
    if name in SPACES:
        return importlib.import_module(f"search_spaces.{name}").build(**SPACES[name])
    return getattr(importlib.import_module("tests.toys"), f"{name}_pool")()


def _auxiliary_pool() -> Any:
    """Layers that add losses, BatchNorm and dropout, a frozen layer, and one that is used twice."""
    from torch import nn

    from l2l_nas import Candidate, LayerPool, TensorSpec, add_loss, skip

    class Added(nn.Module):
        def __init__(self, share: float, frozen: bool = False) -> None:
            super().__init__()
            self.linear, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(3), nn.Dropout(0.2)
            self.share = share
            self.requires_grad_(not frozen)

        def forward(self, x: Any) -> Any:
            y = x * self.dropout(self.linear(self.norm(x)).sigmoid())
            add_loss(self.share * y.square().mean())
            return y + x

    kinds = [Candidate("small", lambda: Added(0.1)), Candidate("large", lambda: Added(1.0))]
    kinds.append(Candidate("frozen", lambda: Added(0.1, frozen=True)))
    last = Candidate("head", lambda: nn.Linear(6, 2))
    return LayerPool.repeated([*kinds, skip()], depth=4, inputs=TensorSpec((3, 6)), last=last)


def data_of(case: Case, pool: Any, step: int) -> tuple[tuple[Any, ...], Any]:
    import torch

    generator = torch.Generator().manual_seed(step)
    if case.pool not in SPACES:
        inputs, targets = importlib.import_module("tests.toys").random_data(pool, case.batch, seed=step)
        return inputs, targets * case.scale if step % 2 and targets.is_floating_point() else targets
    if pool.inputs[0].dtype == torch.int64:
        tokens = torch.randint(0, 31, (2, case.batch, *pool.inputs[0].shape), generator=generator)
        return (tokens[0],), tokens[1]
    inputs = torch.randn(case.batch, *pool.inputs[0].shape, generator=generator)
    return (inputs,), torch.randint(0, 10, (case.batch,), generator=generator)


def objective_of(case: Case) -> Any:
    import l2l_nas

    toys = importlib.import_module("tests.toys")
    if case.pool in SPACES:
        return getattr(l2l_nas, "Tokens" if SPACES[case.pool] is TEXT else "Classification")()
    return {"language": toys.NextToken, "decoder": toys.BothHeads}.get(case.pool, toys.SquaredError)()


def path_of(case: Case, pool: Any, step: int) -> Any:
    """The path of a step: a new one each, but every third is that of the step before."""
    draw = random.Random(f"{case.pool} {step - (step % 3 == 2)}")
    while True:
        choices = [draw.choice(position.candidates).name for position in pool.positions]
        if sum(name != "skip" for name in choices) > 1:
            return pool.architecture(choices)


def server_of(case: Case, pool: Any, folder: str) -> Any:
    import l2l_nas
    from l2l_nas.eps.file_storage import FileStorage

    optimizer = l2l_nas.AdamW() if case.optimizer == "adamw" else OPTIMIZERS[case.optimizer]()
    storage = {
        "ram": lambda: None,
        "file": lambda: FileStorage(Path(tempfile.mkdtemp(dir=folder))),
    }[case.storage]()
    return l2l_nas.ParamServer(pool, optimizer=optimizer, seed=3, storage=storage)


def relay_of(case: Case, server: Any, **more: Any) -> Any:
    """A relay, whatever its arguments are called in this checkout."""
    import l2l_nas

    clip = None
    if case.clip is not None:
        clip = l2l_nas.Clip(case.clip, "layer" if case.update == "eager" else "global")
    options = {"update": case.update, "clip": clip, "device": "cpu", "seed": 5, **case.options, **more}
    return l2l_nas.Relay(server, **_as_known(l2l_nas.Relay, options))


def _ordered(wanted: Any) -> Any:
    """Updates in this order; a relay would choose one."""
    from l2l_nas.relay.config import UpdateConfig

    class Ordered(UpdateConfig):
        def order(self, *, overlaps: bool) -> Any:
            del overlaps
            return wanted

    return Ordered("exact")


def _as_known(relay: Any, options: dict[str, Any]) -> dict[str, Any]:
    from l2l_nas.relay import plan

    order = getattr(plan, "UpdateOrder", None)  # there are two policies since, and orders in which one is carried out
    if order is not None and options["update"] != "eager":
        options["update"] = _ordered(order.AHEAD if options["update"] == "ahead" else order.CHECKED)
    parameters = inspect.signature(relay).parameters
    unknown = set(options) - set(parameters)
    if unknown and "settings" not in parameters:
        raise TypeError(f"teach _as_known where Relay takes {', '.join(sorted(unknown))} now")
    return options


def reference_of(server: Any) -> Any:
    import l2l_nas

    kind = getattr(l2l_nas, "ReferenceTrainer", None) or l2l_nas.Resident
    return kind(server, device="cpu", seed=5)


class Digest:
    """Hashes of what a configuration gave, by part."""

    def __init__(self) -> None:
        self.parts: dict[str, Any] = {}

    def add(self, part: str, *values: Any) -> None:
        """Tensors, or what has a `repr` that tells all of it."""
        import torch

        own = self.parts.setdefault(part, hashlib.sha256())
        for value in values:
            if isinstance(value, torch.Tensor):
                value = value.detach().cpu().contiguous()
                own.update(f"{value.dtype} {tuple(value.shape)}".encode())
                own.update(value.reshape(-1).view(torch.uint8).numpy().tobytes())
            else:
                own.update(repr(value).encode())

    def add_result(self, result: Any) -> None:
        self.add("losses", result.loss, result.count, result.auxiliary)
        self.add("norms", result.gradient_norm, result.is_skipped)

    def add_states(self, server: Any) -> None:
        for key in sorted(server.visited):
            for name, tensor in server.state(key).tensors().items():
                kind = name.partition(".")[0]
                self.add("moments" if kind.startswith("moment") else kind, key, name, tensor)

    def result(self) -> dict[str, str]:
        return {part: own.hexdigest()[:16] for part, own in self.parts.items()}


def train(case: Case, runner: Any, pool: Any, digest: Digest, *, steps: int = STEPS, first: int = 0) -> None:
    for step in range(first, first + steps):
        inputs, targets = data_of(case, pool, step)
        # up to a390fca a frozen BatchNorm that begins the next path was loaded ahead of its buffers' being saved
        is_told = case.has_upcoming and case.pool != "auxiliary" and step + 1 < first + steps
        upcoming = path_of(case, pool, step + 1) if is_told else None
        result = runner.train_step(
            path_of(case, pool, step), inputs, targets,
            objective=objective_of(case), micro_batch=case.micro_batch, lr=0.01 + 0.001 * step, step=step,
            upcoming=upcoming,
        )  # fmt: skip
        digest.add_result(result)


def predict(case: Case, runner: Any, pool: Any, digest: Digest) -> None:
    """Of a path that was trained, and of one that may be new."""
    inputs, _ = data_of(case, pool, 50)
    for step in (0, 9):
        digest.add("predictions", *runner.predict(path_of(case, pool, step), inputs, micro_batch=2))


def population(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    """Several paths in one pass, and in several."""
    inputs, _ = data_of(case, pool, 50)
    paths = [path_of(case, pool, step) for step in range(6)]
    summed = {"reduce": lambda number, outputs: (outputs[0].sum().reshape(1) + number,)}
    for more in ({}, {"max_bytes": 5_000}, summed):
        for outputs in relay.predict_population(paths, inputs, micro_batch=3, **more):
            digest.add("predictions", *outputs)


def recalibrate(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    relay.recalibrate(path_of(case, pool, 0), [data_of(case, pool, 60 + number)[0] for number in range(3)])
    predict(case, relay, pool, digest)


def fork(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    """A fork goes on, then the first server."""
    first = relay.server
    other = first.fork(first.visited)
    relay.use(other)
    train(case, relay, pool, digest, first=4, steps=2)
    predict(case, relay, pool, digest)
    digest.add_states(other)
    relay.use(first)
    train(case, relay, pool, digest, first=6, steps=2)


def two_relays(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    other = relay_of(case, relay.server, slots=3)
    for step in range(4, 8):
        train(case, other if step % 2 else relay, pool, digest, first=step, steps=1)
    other.close()


def reference(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    """The reference trainer goes on from the relay's weights, without its moments."""
    runner = reference_of(relay.server)
    train(case, runner, pool, digest, first=4)
    predict(case, runner, pool, digest)
    runner.write_back()


def not_finite(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    """A step that is refused, and two after it."""
    from l2l_nas.errors import NonFiniteError

    class Broken:
        def loss(self, outputs: Any, targets: Any) -> Any:
            return outputs[0].sum() * float("nan")

        def count(self, targets: Any) -> int:
            return len(targets)

    inputs, targets = data_of(case, pool, 4)
    try:
        relay.train_step(
            path_of(case, pool, 4), inputs, targets, objective=Broken(), micro_batch=3, lr=0.01, step=4
        )  # fmt: skip
    except NonFiniteError:
        digest.add("losses", "refused")
    train(case, relay, pool, digest, first=5, steps=2)


def extend(case: Case, relay: Any, pool: Any, digest: Digest) -> None:
    from l2l_nas.relay.extend import Caches

    path, caches = path_of(case, pool, 0), Caches()
    (tokens,), _ = data_of(case, pool, 70)
    for start, end in ((0, 4), (4, 5), (5, 6)):
        digest.add("predictions", *relay.extend(path, (tokens[:, start:end],), caches, micro_batch=3))


def digest_of(case: Case, folder: str) -> dict[str, str]:
    """Digests of a configuration by part; an error is one too."""
    import torch

    torch.manual_seed(0)
    digest = Digest()
    pool = pool_of(case.pool)
    server = server_of(case, pool, folder)
    relay = relay_of(case, server)
    pool = server.pool  # another one where the optimizer freezes parameters
    train(case, relay, pool, digest)
    if case.kind == "train":
        predict(case, relay, pool, digest)
    else:
        globals()[case.kind](case, relay, pool, digest)
    relay.close()
    digest.add_states(server)
    digest.add("generator", torch.get_rng_state())
    return digest.result()


def work(only: str) -> None:
    """What a process does: print the digests of all configurations."""
    import torch

    check_library()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for case in cases():
            if only in case.name:
                try:
                    results[case.name] = digest_of(case, folder)
                except Exception as error:  # what is refused is a result to compare as well
                    results[case.name] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(results, sys.stdout)


def digests(checkout: Path, only: str) -> dict[str, dict[str, str]]:
    places = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    output = subprocess.run(
        command_of(work, only), cwd=checkout, env={**os.environ, **places}, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, dict[str, str]] = json.loads(output.stdout)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("before", type=Path, help="the checkout to compare with")
    parser.add_argument("--only", default="", help="a text in the names of the configurations to compare")


def main(options: argparse.Namespace) -> int:
    """1 if something differs."""
    started = time.monotonic()
    before, now = digests(options.before.resolve(), options.only), digests(ROOT, options.only)
    differ = {name: parts for name, parts in now.items() if parts != before.get(name)}
    for name, parts in differ.items():
        others = before.get(name, {})
        wrong = [part for part in (*parts, *others) if parts.get(part) != others.get(part)]
        print(f"DIFFERS {name}: {', '.join(dict.fromkeys(wrong))}", parts.get("error", ""))
    errors = sum("error" in parts for parts in before.values())
    seconds = time.monotonic() - started
    print(f"{len(now) - len(differ)} of {len(now)} configurations are equal ({errors} refused), {seconds:.0f} s")
    return bool(differ)
