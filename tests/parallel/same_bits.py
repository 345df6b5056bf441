"""One rank of several that train the same: prints what came of it. Started by `test_sharded.py`.

    python -m tests.parallel.same_bits FOLDER CASE[,CASE...] [FIRST LAST WEIGHTS]

With a folder of weights it goes on from there, trains the steps from FIRST to before LAST, and saves its weights.
Without torchrun's variables it is the one process to compare with. SAME_BITS_DEVICE is where layers run, for all ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from l2l_nas import SGD, AdamW, Candidate, Classification, Clip, LayerPool, Position, TensorSpec, skip
from l2l_nas.eps import cut
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.exchange import Alone
from l2l_nas.eps.file_storage import FileStorage
from l2l_nas.eps.optimizers.precision import LowPrecision
from l2l_nas.eps.optimizers.registry import muon_with_adamw
from l2l_nas.eps.optimizers.rules import Adafactor
from l2l_nas.eps.sharded import server_of
from l2l_nas.layers.experts import MixtureOfExperts, Routing
from l2l_nas.parallel.entry import run_ranked
from l2l_nas.parallel.world import WorldConfig
from search_spaces import bert, digits_conv, elastic_conv, gpt2, hybrid, image_blocks, llama, mobilenet, nas_bench_201
from tests.relay.exchanges import ExchangeChecker
from tests.relay.stress import AHEAD, CHECKED, Stress, relay_under
from tests.toys import (
    BothHeads,
    NextToken,
    cell_pool,
    decoder_pool,
    dense_pool,
    elastic_pool,
    language_pool,
    mixer_pool,
    random_data,
    repeated_pool,
    unet_pool,
)

DEVICE = os.environ.get("SAME_BITS_DEVICE", "cpu")
VOCABULARY, WIDTH, LENGTH, BATCH, STEPS, CHUNKS = 61, 128, 8, 9, 20, 4


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        return self.linear(self.norm(x))


def block(feedforward: int) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, 2, feedforward, dropout=0.1, batch_first=True, norm_first=True)


def language() -> LayerPool:
    blocks = [Candidate("wide", lambda: block(4 * WIDTH)), Candidate("thin", lambda: block(WIDTH)), skip()]
    return LayerPool(
        [
            Position("embed", Candidate("embed", lambda: nn.Embedding(VOCABULARY, WIDTH))),
            *(Position(f"block_{n}", blocks) for n in range(3)),
            Position("head", Candidate("head", Head)),
        ],
        inputs=(TensorSpec((LENGTH,), torch.int64),),
    )


# of the language model
CASES = {
    "eager": {},
    "eager_layer": {"clip": Clip(0.05, "layer")},
    "exact": {"update": CHECKED, "clip": Clip(0.5)},
    "ahead": {"update": AHEAD, "clip": Clip(1.5)},
    "threads": {"update": AHEAD, "clip": Clip(1.5), "lanes": "threads"},
    "eager_threads": {"lanes": "threads", "slots": 3},
    "host": {"stash": "host", "lanes": "threads"},
    "all": {"device_budget": "all"},
    "stress": {"update": AHEAD, "clip": Clip(1.5), "lanes": "threads", "stress": Stress(7, 0.0005)},
    "bf16": {"precision": "bf16", "update": "exact", "clip": Clip(0.5)},
    "fp16": {"precision": "fp16", "update": "exact"},
    "files": {"files": True, "lanes": "threads", "update": "exact", "clip": Clip(0.5)},
    "sgd": {"optimizer": SGD(momentum=0.9)},
    "muon": {"optimizer": muon_with_adamw()},
    "adafactor": {"optimizer": Adafactor()},
    "low_precision": {"optimizer": LowPrecision(AdamW(), "bf16")},
}
# of pools with one of each kind of difficulty, whose states are cut however small they are
POOLS = {
    "dense": lambda: dense_pool(48),
    "tied": lambda: language_pool(64),
    "repeated": lambda: repeated_pool(48),
    "unet": lambda: unet_pool(48),
    "cell": lambda: cell_pool(48),
    "decoder": lambda: decoder_pool(48),
    "elastic": lambda: elastic_pool(48),
    "mixers": lambda: mixer_pool(48),
    "losses": lambda: losing_pool(48),
}
POOL_CASES = {
    f"{pool}_{update}": {"pool": make, "update": order, "clip": clip}
    for pool, make in POOLS.items()
    for update, order, clip in [("eager", "eager", None), ("ahead", AHEAD, Clip(2.0))]
}

# spaces that are built in
_TEXT = {"vocabulary": VOCABULARY, "length": LENGTH, "hidden": 32, "depth": 2}
_IMAGES = {"channels": 4, "depth": 3}
SPACES: dict[str, Callable[[], LayerPool]] = {
    "gpt2": partial(gpt2.build, **_TEXT),
    "bert": partial(bert.build, **_TEXT),
    "llama": partial(llama.build, **_TEXT),
    "hybrid": partial(hybrid.build, **_TEXT),
    "digits_conv": partial(digits_conv.build, **_IMAGES),
    "mobilenet": partial(mobilenet.build, channels=4, depth=1),
    "nas_bench_201": partial(nas_bench_201.build, channels=4),
    "elastic_conv": partial(elastic_conv.build, **_IMAGES),
    "image_blocks": partial(image_blocks.build, **_IMAGES),
}
POOL_CASES |= {
    f"{space}_space": {
        "pool": build,
        "update": CHECKED,
        "clip": Clip(0.5),
        "lanes": "threads",
        "task": Classification(),
    }
    for space, build in SPACES.items()
}


def losing_pool(width: int) -> LayerPool:
    """Experts whose imbalance is a loss of its own."""
    routing = Routing(4, balance=0.5, is_normalised=True)
    experts = Candidate("experts", partial(MixtureOfExperts, width, 32, routing=routing, is_gated=True))
    return LayerPool(
        [*(Position(f"layer_{n}", [experts, skip()]) for n in range(3)), Position("head", Candidate("head", Linear))],
        inputs=TensorSpec((3, width)),
    )


class Linear(nn.Linear):
    def __init__(self) -> None:
        super().__init__(48, 2)


def mini_batch(pool, step, *, is_image=False):
    """Inputs and targets; the last micro-batch is of one sample, and every fifth mini-batch is one micro-batch."""
    batch = 2 if step % 5 == 3 else BATCH
    data = torch.Generator().manual_seed(step)
    if is_image:
        return (torch.randn(batch, *pool.inputs[0].shape, generator=data),), torch.randint(
            0, 10, (batch,), generator=data
        )
    if pool.inputs[0].shape != (LENGTH,):
        return random_data(pool, batch, seed=step)
    targets = torch.randint(-1, VOCABULARY, (batch, LENGTH), generator=data)
    return (torch.randint(0, VOCABULARY, (batch, LENGTH), generator=data),), targets


def run(name: str, exchange, first=0, last=STEPS, weights=None) -> dict:
    options = {"lanes": "inline", **(CASES | POOL_CASES)[name]}
    cut.SMALL_BYTES = 0 if name in POOL_CASES else 64 * 1024
    optimizer = options.pop("optimizer", AdamW(weight_decay=0.1))
    pool, task = options.pop("pool", language)(), options.pop("task", BothHeads())
    folder = tempfile.TemporaryDirectory()
    storage = FileStorage(Path(folder.name)) if options.pop("files", False) else None
    server = server_of(pool, exchange, optimizer=optimizer, seed=5, storage=storage)
    relay = relay_under(server, device=DEVICE, seed=3, chunks=CHUNKS, **options)
    if relay.precision == "fp16":
        server.gradients.loss_scale.scale = 2.0**26  # so that some steps overflow
    checkpoint = None if weights is None else Checkpoint(weights)
    if checkpoint is not None and first:
        assert checkpoint.load(server) == {"step": first}
    rng = random.Random(0)
    # buffers that are no running statistics are refused, and running statistics of a layer that is used twice
    left_out = {"running", "normed"} if name.startswith("repeated") else {"running"}
    names = [[c.name for c in position.candidates if c.name not in left_out] for position in pool.positions]
    architectures = [pool.architecture([rng.choice(one) for one in names]) for _ in range(STEPS + 1)]
    objective = NextToken() if pool.inputs[0].dtype == torch.int64 else task
    results = []
    # ranks exchange what their plans say, in that order, and nothing else
    checker = ExchangeChecker(relay) if server.exchange.size > 1 else contextlib.nullcontext()
    with checker:
        for step in range(first, min(last, 8 if name in POOL_CASES and weights is None else STEPS)):
            inputs, targets = mini_batch(pool, step, is_image=isinstance(objective, Classification))
            result = relay.train_step(
                architectures[step], inputs, targets, objective=objective, micro_batch=2, lr=1e-2, step=step,
                upcoming=architectures[step + 1],
            )  # fmt: skip
            results.append([result.loss, result.gradient_norm, result.is_skipped, result.auxiliary])
    if server.exchange.size > 1:
        checker.check()
    if checkpoint is not None:
        checkpoint.save(server, extra={"step": last})
    outputs = relay.predict(architectures[0], inputs, micro_batch=4)
    host_bytes = server.num_bytes
    tensors = {}
    for key in sorted(server.visited):
        for tensor_name, tensor in server.state(key).tensors().items():
            tensors[f"{key}/{tensor_name}"] = hashlib.sha256(
                tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            ).hexdigest()
    relay.close()
    if storage is not None:
        storage.close()
    folder.cleanup()
    digest = hashlib.sha256(outputs[0].cpu().contiguous().numpy().tobytes()).hexdigest()
    return {
        "results": results, "tensors": tensors, "outputs": digest, "put_back": relay.put_back, "host_bytes": host_bytes,
        "races": races(),
    }  # fmt: skip


def races() -> dict[str, int]:
    """Accesses that raced since the last call, which the simulated accelerator alone sees."""
    if DEVICE != "simulated":
        return {}
    from tests.accelerator.simulated import library

    return library.races()


def main(exchange) -> None:
    folder, names = Path(sys.argv[1]), sys.argv[2].split(",")
    torch.set_num_threads(1)
    if DEVICE == "simulated":
        from tests.accelerator import simulated

        simulated.use()
    elif DEVICE == "cuda":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)
    steps = [int(word) for word in sys.argv[3:5]] + [Path(word) for word in sys.argv[5:]]
    found = {name: run(name, exchange, *steps) for name in names}
    (folder / f"{exchange.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    if "RANK" in os.environ:
        run_ranked(lambda world: main(world.exchange), WorldConfig(has_checks=True, patience_s=60))
    main(Alone())
