"""Writes docs/scale.md: published figures of large models beside what the simulator and closed forms predict.

    python -m benchmarks scale

Predictions come from the profiles of `l2l_nas.cost.profiles`, with one stated change: where a paper reports the rate of
its own baseline, that rate is taken. Nothing was measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmarks import ROOT
from benchmarks.machines import tensor_parallel
from benchmarks.machines.sharing import Parallelism
from benchmarks.machines.tensor_parallel import TILE, TensorParallel
from benchmarks.machines.transformers import Transformer, host_parameters, least_tokens, relay_step, resident_step_s
from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.hardware import GIB, Hardware
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.relay.path import RING

PAGE = ROOT / "docs" / "scale.md"
V100 = PROFILES["v100"]
PROCESSORS, H100_PROCESSORS = 80, 132  # of the makers' data sheets
SLOTS, MICRO_BATCH = 3, 4
# hidden, layers, devices of a model, devices in all, efficiency with and without data parallelism (table 1, figure 5)
MEGATRON = (
    (1536, 40, 1, 64, 1.00, 0.96),
    (1920, 54, 2, 128, 0.95, 0.83),
    (2304, 64, 4, 256, 0.82, 0.79),
    (3072, 72, 8, 512, 0.77, 0.74),
)
BYTES = {
    "fp32 master, two fp32 moments": 12,
    "fp32 master, two fp32 moments, 16-bit copy for the link": 14,
    "fp32 master, two fp32 moments, fp32 gradients that wait": 16,
    "fp32 master, two bf16 moments (`optimizer.moments=bf16`)": 8,
    "fp32 master, two bf16 moments, 16-bit copy for the link": 10,
    "published: 50 B in 512 GB": 10.24,
}
SEQUENCE_VERDICT = (
    "It gains up to 3 % where layers are wide and micro-batches long, and loses time where sums are so small that their latency counts. So it does not "
    "pay at the sizes that this library trains, and the library has none. It would also divide 10 of the 34 bytes a token and unit of width of "
    "activations; but in the relay these live for one visit of one layer, and what waits for the backward can wait on the host. The assumption that "
    "matters most: the latency of an exchange."
)
HEAD = """\
# Scale: what is published, and what is predicted

`python -m benchmarks scale` writes this page. **Every figure that is not marked as published is simulated or a closed form; none was
measured.** Rates are those of the [profiles](tutorials/plan.md).
"""


def needs(depth: int, batch: int) -> int:
    """Device bytes: slots of 16-bit weights and fp32 gradients, the work of one layer, the inputs of so many."""
    model = Transformer(1024, depth, sequence=512)
    work = 34 * MICRO_BATCH * model.sequence * model.hidden
    return SLOTS * 6 * model.layer_parameters + work + depth * model.stash_bytes(model.sequence * batch, 2)


def memory_by_depth() -> str:
    """L2L's constant memory: slots and stash by depth."""
    lines = [
        "## L2L: device memory by depth and batch",
        "",
        "The paper (arXiv 2002.05645) trains up to 384 of BERT-Large's layers on a V100 with 16 GB, and claims constant memory. The table "
        "predicts three things together, in fp16 with sequences of 512 tokens: 3 slots (16-bit weights, fp32 gradients), the inputs of all "
        "layers, and what one layer keeps for its backward. The last is 34 bytes a token and unit of width (arXiv 2205.05198), for a "
        "micro-batch of 4. With the stash on the device, memory grows with depth x batch; with `relay.stash=host` it does not.",
        "",
        "| layers | parameters | device memory, stash on the device, batch 32 | the same, batch 256 | device memory, stash on the host, any batch up to 256 | host memory, 14 bytes a parameter |",
        "|---|---|---|---|---|---|",
    ]
    for depth in (12, 24, 48, 96, 192, 384):
        model = Transformer(1024, depth, sequence=512)
        cells = [f"{depth}", f"{depth * model.layer_parameters / 1e9:.2f} B"]
        for batch in (32, 256):
            total = needs(depth, batch)
            cells.append(f"{total / GIB:.2f} GiB" + (" (over 16)" if total > 16 * GIB else ""))
        cells.append(f"{needs(RING, 256) / GIB:.2f} GiB")
        cells.append(f"{14 * depth * model.layer_parameters / 1e9:.0f} GB")
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "| published | predicted, for 24 layers if nothing else is said | does it hold? |",
        "|---|---|---|",
        f"| batch 32 in less than 8 GB (first abstract) | {needs(24, 32) / 1e9:.1f} GB | holds |",
        f"| batch up to 256 on 16 GB (later abstract) | {needs(24, 256) / 1e9:.1f} GB | holds |",
        f"| up to 384 layers on 16 GB, batch not stated | {needs(384, 32) / 1e9:.1f} GB with batch 32 | holds |",
        f"| memory that does not depend on depth | {needs(12, 32) / 1e9:.1f} to {needs(384, 32) / 1e9:.1f} GB by depth | "
        "holds only with the stash on the host, which the paper calls a variation |",
        "",
        "The assumption that matters most: attention is one kernel. Otherwise a layer keeps 34 + 5 x heads x sequence / hidden bytes instead of 34.",
    ]
    return "\n".join(lines)


def fifty_billion() -> str:
    """With which bytes a parameter 50 B fit into 512 GB."""
    lines = [
        "## L2L: 50 B parameters on one 16 GB V100 with 512 GB of host memory",
        "",
        "| stored for each parameter | bytes | most parameters in 512 GB | 50 B fit |",
        "|---|---|---|---|",
    ]
    for name, size in BYTES.items():
        most = host_parameters(512e9, size)
        lines.append(f"| {name} | {size:g} | {most / 1e9:.1f} B | {'yes' if most >= 50e9 else 'no'} |")
    model = Transformer(8192, 62, sequence=512)
    slot = 6 * model.layer_parameters
    lines += [
        "",
        f"The published figure leaves 10.24 bytes for each parameter: not enough for fp32 AdamW, enough with moments in bf16. Nothing of this size was "
        f"trained. The device is large enough: a layer of width 8,192 has {model.layer_parameters / 1e6:.0f} M parameters, and two slots take "
        f"{2 * slot / GIB:.1f} GiB of 16. The assumption that matters most: which moments are stored. The published text does not say it.",
    ]
    return "\n".join(lines)


def megatron_hardware() -> Hardware:
    """V100 with 32 GB, at the rate of products at which a step of the smallest model has 39 TFLOP/s, as published."""
    one = megatron_model(0)
    v100 = replace(V100, efficiency=1.0, device_bytes=32 * GIB)
    others_s = one.step_s(replace(v100, peak_flops={"fp32": 1e30}), Parallelism())  # without products
    products_s = one.step_s(v100, Parallelism()) - others_s
    return replace(v100, efficiency=products_s / (one.flops / 39e12 - others_s))


def megatron_model(row: int, *, by_sequence: bool = False) -> TensorParallel:
    """A row of the table: a batch of 8 sequences for each group of devices."""
    hidden, layers, devices, *_ = MEGATRON[row]
    return TensorParallel(Transformer(hidden, layers, vocabulary=51_200), devices, 8 * 1024, PROCESSORS, by_sequence)


def megatron_rates(row: int, *, by_sequence: bool = False) -> tuple[float, float]:
    """Operations a second of a device: of one group, and with data parallelism."""
    model, (*_, devices, total, _, _) = megatron_model(row, by_sequence=by_sequence), MEGATRON[row]
    hardware = megatron_hardware()
    ways = Parallelism(tensor=devices), Parallelism(tensor=devices, data=total // devices, overlapped=0.5)
    alone, together = (model.flops / devices / model.step_s(hardware, one) for one in ways)
    return alone, together


def megatron() -> str:
    """Efficiency of tensor and data parallelism, published and predicted."""
    high, wide = TILE
    lines = [
        "## Megatron-LM: weak scaling on V100",
        "",
        "This is section 5.1 of arXiv 1909.08053. A model has a batch of 8 sequences of 1,024 tokens; with data parallelism the batch is 512 in "
        "all. Every layer is run again in the backward.",
        "",
        "| parameters | devices | efficiency, published | predicted | error | devices with data parallelism | efficiency, published | predicted | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rates = [megatron_rates(row) for row in range(len(MEGATRON))]
    for (hidden, layers, ways, total, own, both), found in zip(MEGATRON, rates, strict=True):
        model = Transformer(hidden, layers, vocabulary=51_200)
        alone, together = (rate / rates[0][0] for rate in found)
        lines.append(
            f"| {model.num_parameters / 1e9:.1f} B | {ways} | {own:.0%} | {alone:.0%} | {100 * (alone - own):+.0f} points | {total} | "
            f"{both:.0%} | {together:.0%} | {100 * (together - both):+.0f} points |"
        )
    lines += [
        "",
        "The model (`benchmarks/machines/tensor_parallel.py`) has no figure that is fitted to a row:",
        "",
        "- **Collectives**: two all-reduces forward, two where the layer is run again, two backward, each a ring over NVLink with 150 GB/s each way "
        f"that takes at least {1e6 * V100.rank_latency_s:.0f} us (assumed). Between servers there are 100 GB/s each way, which the rings of a model's "
        "ranks share; half of the sum of gradients is hidden behind the backward (assumed).",
        f"- **Narrower products**: the device forms a product in tiles of {high} x {wide} numbers, {PROCESSORS} at a time, as many as it has processors. A "
        "product costs as much as all tiles of whole waves. Shared by 8 devices, products of the largest model have 1,152, 384 and 1,536 columns, or sums of "
        f"so many. {_wave_line()}",
        "- **What is not divided**: norms, dropout and residuals, 10 of the 34 bytes a token and unit of width that lie between products, are computed "
        "by each device in full (arXiv 2205.05198).",
        f"- **Rate**: products run at {megatron_hardware().flops('fp16') / 1e12:.0f} TFLOP/s where waves are full, so that the smallest model on one device "
        "has the 39 TFLOP/s that the paper gives for it.",
        "",
        "All figures but one are within 5 points. The exception is 2.5 B parameters on 128 devices: there the paper loses 12 points by data parallelism, "
        "and 3 or 4 points in each of the other rows. What is known of the setup does not set this row apart: by rows a device sums "
        f"{', '.join(f'{size / 1e9:.1f}' for size in _gradient_bytes())} GB of gradients in a step, and the second row's share of the network is four "
        "times that of the last one. A model of bytes and widths that gave that figure would miss the rows below it.",
        "",
        f"The shape of the tiles matters most. {_tile_line()} The library that Megatron-LM used chooses a shape for each product, which is not published.",
    ]
    return "\n".join(lines)


def _gradient_bytes() -> list[float]:
    """That a device of each row sums with other groups: in 16 bits."""
    models = map(megatron_model, range(len(MEGATRON)))
    return [2 * one.model.num_parameters / one.devices for one in models]


def _wave_line() -> str:
    """How much of the tiles' work is of use."""
    shares = []
    for row in (0, 3):
        model = megatron_model(row)
        products = [one for product in model.layer_products() for one in (product, product, *product.backward())]
        shares.append(sum(one.flops for one in products) / sum(one.in_waves(PROCESSORS) for one in products))
    return f"Of the work of a layer's waves {shares[0]:.0%} is of use on one device, and {shares[1]:.0%} on one of 8."


def _tile_line() -> str:
    """The largest error of all rows but that one, by shape."""
    worst = []
    for shape in ((128, 256), (128, 128), (256, 64), (128, 64), (64, 64)):
        with _tiles(shape):
            rates = [megatron_rates(row) for row in range(len(MEGATRON))]
        errors = [
            abs(rate / rates[0][0] - published)
            for row, (found, known) in enumerate(zip(rates, MEGATRON, strict=True))
            for rate, published in zip(found, known[4:], strict=True)
            if not (row == 1 and published == known[5])
        ]
        worst.append(f"{100 * max(errors):.0f} points with {shape[0]} x {shape[1]}")
    return f"The largest error, without that exception, is {', '.join(worst)}."


@contextmanager
def _tiles(shape: tuple[int, int]) -> Iterator[None]:
    before, tensor_parallel.TILE = tensor_parallel.TILE, shape
    try:
        yield
    finally:
        tensor_parallel.TILE = before


def sequence_parallel() -> str:
    """Whether it pays to divide what lies between products."""
    lines = [
        "## Sequence parallelism",
        "",
        "It divides what tensor parallelism leaves whole: norms, dropout and residuals (arXiv 2205.05198). Each sum becomes a reduce-scatter and an "
        "all-gather with the same bytes in all, and the backward gathers once more. The simulator compares a step with and without it:",
        "",
        "| model | devices that share a layer | profile | tokens of a micro-batch | time of a step over that without |",
        "|---|---|---|---|---|",
    ]
    for row in (1, 2, 3):
        model = megatron_model(row).model
        plain, divided = (megatron_rates(row, by_sequence=one)[0] for one in (False, True))
        lines.append(
            f"| {model.num_parameters / 1e9:.1f} B | {MEGATRON[row][2]} | v100 | 8,192 | {plain / divided:.2f} |"
        )
    for hidden, layers, devices in ((1536, 40, 4), (7680, 40, 8)):
        for tokens in (1024, 8192):
            model = Transformer(hidden, layers, vocabulary=51_200)
            plain_s, divided_s = (
                TensorParallel(model, devices, tokens, H100_PROCESSORS, one).step_s(
                    PROFILES["h100"], Parallelism(tensor=devices)
                )
                for one in (False, True)
            )
            lines.append(
                f"| {model.num_parameters / 1e9:.1f} B | {devices} | h100 | {tokens:,} | {divided_s / plain_s:.2f} |"
            )
    lines += [
        "",
        SEQUENCE_VERDICT,
    ]
    return "\n".join(lines)


def trillion() -> str:
    """What 1 T parameters need."""
    model = Transformer(25_600, 128, sequence=2048)
    lines = [
        "## 1 T parameters",
        "",
        f"{model.layers} layers of width {model.hidden:,} ({model.num_parameters / 1e12:.2f} T parameters; {model.layer_parameters / 1e9:.1f} B a layer), bf16, 3 slots.",
        "",
        "| device | 3 slots | fit | host or disk, 14 bytes a parameter | tokens a step from which compute binds | time of such a step |",
        "|---|---|---|---|---|---|",
    ]
    for name in ("h100", "h200", "gh200"):
        hardware = PROFILES[name]
        slots = 3 * 6 * model.layer_parameters
        tokens = least_tokens(model, hardware, precision="bf16")
        step = relay_step(model, hardware, RelayShape(slots=3), tokens=tokens, precision="bf16")
        lines.append(
            f"| {name} | {slots / GIB:.0f} GiB | {'yes' if slots < hardware.device_bytes else 'no: split a layer'} | "
            f"{14 * model.num_parameters / 1e12:.1f} TB | {tokens:,} | {step.step_s / 60:.0f} min |"
        )
    lines += [
        "",
        "On a device where the 3 slots do not fit, a layer of this width needs tensor parallelism, or a slot without a block for gradients. The states "
        "need a disk. At the profile's 3.2 GB/s one disk takes "
        f"{(4 + 24) * model.num_parameters / 3.2e9 / 3600:.1f} hours to read all masters and write all states once, in each step. The assumption that "
        "matters most: the host's rate of updates.",
    ]
    return "\n".join(lines)


def tokens_to_compute() -> str:
    """From how many tokens a step compute binds."""
    model = Transformer(1024, 24)
    lines = [
        "## From how many tokens a step compute binds",
        "",
        "24 layers of 12.6 M parameters are streamed with 3 slots; weights of 16 bits cross the link up, fp32 gradients cross it down. With fewer tokens "
        "than the table says, another lane is the busiest one, and more tokens a step cost no time. The width hardly matters, because it cancels.",
        "",
        "| profile | precision | tokens a step | busiest lane with half as many tokens | time of a step over plain training on the device |",
        "|---|---|---|---|---|",
    ]
    for name, hardware in PROFILES.items():
        precision = {"v100": "fp16", "laptop": "fp32"}.get(name, "bf16")
        tokens = least_tokens(model, hardware, precision=precision)
        shape = RelayShape(slots=3)
        below = relay_step(model, hardware, shape, tokens=max(1, tokens // 2), precision=precision)
        step = relay_step(model, hardware, shape, tokens=tokens, precision=precision)
        plain = resident_step_s(model, hardware, tokens=tokens, precision=precision)
        lines.append(f"| {name} | {precision} | {tokens:,} | {below.binds} | {step.step_s / plain:.2f} |")
    lines += [
        "",
        "The assumptions that matter most: the host's rate of updates, and the share of the peak that layers reach.",
    ]
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    parts = [HEAD, memory_by_depth(), fifty_billion(), megatron(), sequence_parallel(), trillion(), tokens_to_compute()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def main(options: argparse.Namespace) -> None:
    """Write it."""
    PAGE.write_text(page())
    print(f"written {PAGE}")
