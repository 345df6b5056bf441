"""Writes docs/scale.md: published figures of large models beside what the simulator and closed forms predict.

    python -m benchmarks scale

Predictions come from the profiles of `l2l_nas.cost.profiles`, with one stated change: where a paper reports the rate of
its own baseline, that rate is taken. Nothing was measured.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from benchmarks import ROOT
from benchmarks.machines.transformers import Transformer, host_parameters, least_tokens, relay_step, resident_step_s
from l2l_nas.cost.chain import RelayShape
from l2l_nas.cost.hardware import GIB, Hardware
from l2l_nas.cost.parallel import Parallelism
from l2l_nas.cost.profiles import PROFILES
from l2l_nas.relay.path import RING

PAGE = ROOT / "docs" / "scale.md"
V100 = PROFILES["v100"]
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
    "16-bit master and 8-bit moments": 4,
    "fp32 master, 8-bit moments, 16-bit copy": 8,
    "published: 50 B in 512 GB": 10.24,
}
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
        f"The published figure leaves 10.24 bytes for each parameter, so it does not hold with fp32 AdamW. The device is large enough: a layer of width "
        f"8,192 has {model.layer_parameters / 1e6:.0f} M parameters, and two slots take {2 * slot / GIB:.1f} GiB of 16. The assumption that matters most: "
        "which moments are stored. The published text does not say it.",
    ]
    return "\n".join(lines)


def megatron_hardware() -> Hardware:
    """V100 with 32 GB at the rate of Megatron-LM's own baseline: 39 TFLOP/s a device, 30 % of its peak."""
    return replace(V100, efficiency=39 / 125, device_bytes=32 * GIB)


def megatron() -> str:
    """Efficiency of tensor and data parallelism, published and predicted."""
    lines = [
        "## Megatron-LM: weak scaling on V100",
        "",
        "This is section 5.1 of arXiv 1909.08053. A model has a batch of 8 sequences of 1,024 tokens; with data parallelism the batch is 512 in "
        "all. Every layer is run again in the backward. The rate of a device is that of the paper's own baseline, 39 TFLOP/s. All-reduces are "
        "rings over NVLink with 150 GB/s each way. Between servers there are 100 GB/s each way, which the rings of a model's ranks share.",
        "",
        "| parameters | devices | efficiency, published | predicted | error | devices with data parallelism | efficiency, published | predicted | error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    base: list[float] = []
    for hidden, layers, ways, total, own, both in MEGATRON:
        model = Transformer(hidden, layers, vocabulary=51_200)
        alone, together = megatron_rates(model, ways, total)
        base = base or [alone, alone]
        found = (alone / base[0], together / base[0])
        lines.append(
            f"| {model.num_parameters / 1e9:.1f} B | {ways} | {own:.0%} | {found[0]:.0%} | {100 * (found[0] - own):+.0f} points | {total} | "
            f"{both:.0%} | {found[1]:.0%} | {100 * (found[1] - both):+.0f} points |"
        )
    lines += [
        "",
        "Two assumptions matter most. Smaller matrix products run at the rate of the baseline: in the paper the products become narrower when more "
        "devices share a layer, so its tensor-parallel efficiency falls further than the exchange alone explains. With data parallelism, half of "
        "the sum of gradients is hidden behind the backward.",
    ]
    return "\n".join(lines)


def megatron_rates(model: Transformer, ways: int, total: int) -> tuple[float, float]:
    """Operations a second of a device, over those it would need without any exchange: alone, and with the others."""
    hardware = megatron_hardware()
    groups = total // ways
    rates = []
    for tokens, how in (
        (8 * 1024, Parallelism(tensor=ways)),
        (512 // groups * 1024, Parallelism(tensor=ways, data=groups, overlapped=0.5)),
    ):
        step_s = resident_step_s(
            model,
            hardware,
            tokens=tokens,
            precision="fp16",
            recompute=True,
            micro_batches=max(1, tokens // 8192),
            ways=how,
        )
        flops = 4 * model.layers * model.forward(tokens).flops + 3 * model.output(tokens).flops
        rates.append(flops / ways / step_s)
    return rates[0], rates[1]


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
    parts = [HEAD, memory_by_depth(), fifty_billion(), megatron(), trillion(), tokens_to_compute()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def add_options(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def main(options: argparse.Namespace) -> None:
    """Write it."""
    PAGE.write_text(page())
    print(f"written {PAGE}")
