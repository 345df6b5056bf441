"""Steps a second of ranks that share a step, over one process with the same mini-batch; beside PyTorch's own ways.

    python -m benchmarks scaling [--ranks 2 4] [--rounds 12] [--keep] [--patience 20] [--out FILE]

A stack of encoder blocks of width 256, AdamW, processes of this machine joined by gloo, each with one thread of torch.
The relay with one process and with several ranks; DDP; FSDP2, with and without offload; tensor-parallel styles; GPipe
and 1F1B of `torch.distributed.pipelining`, over plain modules of the same layers and weights. Layers but the last are
recomputed in the backward by all of them, or by none with --keep. All take turns, in an order that changes from round
to round, and a control is the same once more. Losses must agree; those of the relay are equal to the bit for any number
of ranks.

Besides: the share of a step in which a rank exchanges something and computes nothing; the bytes that a rank receives
over the fewest possible; and the bytes of its states over those of one process.

Ranks that share processors with other work wait for each other. So each turn also counts what others used of the
processors meanwhile, and there are ratios of those pairs alone where that was next to nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import RESULTS
from benchmarks.options import at_least
from benchmarks.paired import shown

ONE, CONTROL = "relay", "control"
# what one process does beside the relay, and what its time is compared with
ALONE = ("relay", "relay_chunks", "plain")
TORCH = ("ddp", "fsdp2", "fsdp2_offload", "fsdp2_offload_whole", "tensor", "gpipe", "1f1b")
SHARED = ("relay_chunks", "relay_inline", *TORCH)
QUIET = 0.1  # of one processor, used by others
_LOOK_S = 0.3
_TOLERANCE = 1e-4  # of losses, relative


@dataclass
class Side:
    """One way with a number of ranks, and what was measured.

    Args:
        way: see `benchmarks.relay.ways`.
        size: ranks.
        label: of this one; a control has another.
    """

    way: str
    size: int
    label: str
    losses: list[float] = field(default_factory=list)
    turns: list[dict[str, Any]] = field(default_factory=list)  # by round
    left_out: str = ""

    def take(self, answers: Sequence[dict[str, Any]]) -> None:
        """Note what ranks answered."""
        self.left_out = next((one["left_out"] for one in answers if "left_out" in one), "")
        if not self.left_out:
            self.losses += [sum(shares) for shares in zip(*(one["losses"] for one in answers), strict=True)]


def sides_of(sizes: Sequence[int], ways: Sequence[str]) -> list[Side]:
    """One process and its controls, then each number of ranks."""
    sides = [Side(way, 1, f"{way}, 1 process") for way in ALONE]
    sides += [Side(way, 1, f"{way}, 1 process, {CONTROL}") for way in (ONE, "plain")]
    for size in sizes:
        sides += [Side(way, size, f"{way}, {size} ranks") for way in ways]
        if "relay_chunks" in ways:
            sides.append(Side("relay_chunks", size, f"relay_chunks, {size} ranks, {CONTROL}"))
    return sides


def busy_s() -> float:
    """Seconds that all processors have worked since the machine started; 0 where nobody counts them."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, *_ = map(int, stat.read_text().split("\n", 1)[0].split()[1:])
    return float((user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK"))


def wait_for_quiet(patience_s: float) -> None:
    """Wait until nothing else works, but not longer."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        before, begun = busy_s(), time.monotonic()
        time.sleep(_LOOK_S)
        if busy_s() - before <= QUIET * (time.monotonic() - begun):
            return


def measure(sides: Sequence[Side], worlds: Mapping[int, Any], options: argparse.Namespace) -> None:
    """Rounds in which each side has a turn."""
    draw = random.Random(0)
    for side in sides:
        side.take(worlds[side.size].ask("open", side.label, side.way))
    present = [side for side in sides if not side.left_out]
    end = time.monotonic() + 60 * options.minutes
    for number in range(options.rounds):
        if number and time.monotonic() > end:
            break
        for side in draw.sample(present, len(present)):
            wait_for_quiet(options.patience)
            before, begun = busy_s(), time.perf_counter()
            answers = worlds[side.size].ask("train", side.label, options.steps)
            wall, used = time.perf_counter() - begun, sum(one["cpu"] for one in answers)
            side.take(answers)
            side.turns.append(
                {
                    "wall": max(one["wall"] for one in answers),
                    "cpu": max(one["cpu"] for one in answers),
                    "all_cpu": used,
                    "others": max(0.0, busy_s() - before - used) / wall,
                    "facts": _together([one["facts"] for one in answers]),
                }
            )
        print(f"round {number + 1} of {options.rounds}", flush=True)


def _together(facts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of all ranks: the most."""
    return {name: max(one[name] for one in facts) for name in facts[0]}


def compare(side: Side, other: Side, clock: str, *, is_quiet: bool = False) -> dict[str, float] | None:
    """The time of the other one over a side's: how many times as fast the side is. None: there are no such rounds."""
    from benchmarks.timing import ratio

    pairs = [
        (theirs[clock], own[clock])
        for own, theirs in zip(side.turns, other.turns, strict=True)
        if not is_quiet or max(own["others"], theirs["others"]) <= QUIET
    ]
    return ratio(*zip(*pairs, strict=True)) if pairs else None


def least(side: Side, clock: str) -> float:
    """Its shortest turn."""
    return min(float(turn[clock]) for turn in side.turns)


def summary(side: Side, by_label: Mapping[str, Side]) -> dict[str, Any]:
    """A side's figures beside the relay of one process, and beside its own way in one process."""
    from benchmarks.relay.training import agreement

    row: dict[str, Any] = {"side": side.label, "way": side.way, "ranks": side.size}
    if side.left_out:
        return row | {"left_out": side.left_out}
    one = by_label[f"{ONE}, 1 process"]
    is_relay = side.way.startswith("relay")
    own = one if is_relay else by_label["plain, 1 process"]
    # with chunks the relay's losses do not depend on how many ranks there are
    exact = is_relay and side.way != ONE
    reference = by_label["relay_chunks, 1 process"] if exact else one
    row["losses"] = agreement(side.losses, reference.losses, 0.0 if exact else _TOLERANCE)
    for name, other in {"relay": one, "own": own}.items():
        row[f"speed_over_{name}"] = {
            "wall": compare(side, other, "wall"),
            "quiet": compare(side, other, "wall", is_quiet=True),
            "cpu": compare(side, other, "cpu"),
            "all_cpu": compare(side, other, "all_cpu"),
            # of all rounds the least of each, which other work disturbs least
            "least": {clock: round(least(other, clock) / least(side, clock), 3) for clock in ("wall", "cpu")},
        }
    row["others_use"] = round(statistics.median(turn["others"] for turn in side.turns), 2)
    if is_relay and side.size > 1:
        row |= _exchanged(side, one)
    return row


def _exchanged(side: Side, one: Side) -> dict[str, Any]:
    """What ranks exchange, as shares."""
    found: dict[str, Any] = {}
    for name, turns in {
        "all": side.turns,
        "quiet": [turn for turn in side.turns if turn["others"] <= QUIET],
    }.items():
        shares = {
            what: [turn["facts"][f"{what}_s"] / turn["wall"] for turn in turns] for what in ("exchanged", "exposed")
        }
        found[name] = {what: round(statistics.median(values), 4) if values else None for what, values in shares.items()}
    facts = side.turns[-1]["facts"]
    return {
        "share_of_step": found,
        "received_over_least": round(facts["received_bytes"] / facts["least_bytes"], 4)
        if facts["least_bytes"]
        else None,
        "states_over_one_process": round(facts["state_bytes"] / one.turns[-1]["facts"]["state_bytes"], 4),
    }


def tell(row: Mapping[str, Any]) -> None:
    """Print it."""
    if "left_out" in row:
        print(f"{row['side']:34}left out: {row['left_out']}")
        return
    over, quiet = row["speed_over_relay"], row["speed_over_relay"]["quiet"]
    line = f"{row['side']:34}{shown(over['wall'])} times as fast, processor {shown(over['cpu'])}"
    line += f", least {over['least']['wall']:.2f} and {over['least']['cpu']:.2f}"
    line += f", quiet {shown(quiet)} of {quiet['pairs']}" if quiet else ""
    if "share_of_step" in row:
        line += f", exposed {row['share_of_step']['all']['exposed']:.1%}"
    print(line + ("" if row["losses"]["agrees"] else f"; LOSSES DIFFER by {row['losses']['largest_difference']:.1e}"))


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=at_least(2), nargs="+", default=[2])
    parser.add_argument("--ways", nargs="+", choices=SHARED, default=list(SHARED))
    parser.add_argument("--keep", action="store_true", help="nothing is recomputed; the relay keeps everything")
    parser.add_argument("--rounds", type=at_least(1), default=12)
    parser.add_argument("--minutes", type=at_least(1), default=60, help="after which no further round begins")
    parser.add_argument("--steps", type=at_least(1), default=1, help="of a turn")
    parser.add_argument("--patience", type=at_least(0), default=0, help="seconds a turn waits for a quiet machine")
    for name, default in {"depth": 6, "hidden": 256, "sequence": 128, "batch": 16, "micro-batch": 4}.items():
        parser.add_argument(f"--{name}", type=at_least(1), default=default)
    parser.add_argument("--out", type=Path, default=RESULTS / "scaling.json")


def main(options: argparse.Namespace) -> int:
    """Measure and write; 1 if losses do not agree."""
    from benchmarks.timing import machine
    from l2l_nas.files import write_json

    names = ("depth", "hidden", "sequence", "batch", "micro_batch")
    sizes = {name: getattr(options, name) for name in names}
    sides = sides_of(options.ranks, options.ways)
    with opened([1, *options.ranks], sizes, is_recomputed=not options.keep) as worlds:
        measure(sides, worlds, options)
    by_label = {side.label: side for side in sides}
    rows = [summary(side, by_label) for side in sides]
    for row in rows:
        tell(row)
    about = {"benchmark": "scaling", "machine": {**machine(), "threads": 1, "processors": os.cpu_count()}}
    told = {
        "is_recomputed": not options.keep,
        "rounds": max(len(side.turns) for side in sides),
        "steps": options.steps,
        "quiet": QUIET,
    }
    write_json(options.out, {**about, "stack": sizes, **told, "rows": rows})
    return int(not all(row.get("losses", {}).get("agrees", True) for row in rows))


@contextlib.contextmanager
def opened(ranks: Sequence[int], sizes: Mapping[str, int], *, is_recomputed: bool) -> Iterator[dict[int, Any]]:
    """Processes by number of ranks."""
    from benchmarks.relay.ranks import Ranks
    from benchmarks.relay.work import StackSizes
    from l2l_nas.errors import SettingError

    work = StackSizes(device="cpu", feedforward=4 * sizes["hidden"], **sizes)
    for size in ranks:
        if work.batch % (size * work.micro_batch):
            raise SettingError(f"{size} ranks must divide the micro-batches of {work.batch} samples, all of one size")
    with contextlib.ExitStack() as stack:
        yield {size: stack.enter_context(Ranks(size, work, is_recomputed=is_recomputed)) for size in ranks}
