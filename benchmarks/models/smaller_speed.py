"""How fast smaller networks are: beside the original, and beside what they do less promises.

    python -m benchmarks smaller_speed --model hf:FOLDER [--rounds 10] [--prompt 256] [--tokens 16] [--threads 1]
        [--sides transformers l2l_nas] [--out FILE.json]

The networks are made of the pool's candidates, without a search: their weights are not trained, which changes no time.
Each goes out as a Hugging Face folder that `transformers` loads, and is generated from by this library, too. A prompt
is read, then tokens are written one by one. Networks take turns, and the original does so twice, as a control.

What is promised: the time of a prompt is in proportion to its operations of matrix products, with the head of the last
token alone; that of a token to the bytes of weights, keys and values that are read for it. `kept` is the speed that was
gained over the one that was promised: the ratio of times promised over the ratio measured.
"""

from __future__ import annotations

import argparse
import copy
import gc
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from benchmarks.options import at_least
from benchmarks.paired import Seconds, ratios, shown, timed
from benchmarks.timing import machine
from l2l_nas import AdamW, Architecture, ParamServer, Relay
from l2l_nas.eps.layout import layout_of
from l2l_nas.errors import SettingError
from l2l_nas.files import write_json
from l2l_nas.layers import FeedForward, SelfAttention
from l2l_nas.pretrained.pool import PublishedPool, published_pool
from l2l_nas.text.generate import Sampling, generate
from l2l_nas.training.export import build_network
from l2l_nas.training.formats import ExportSource, write_tensors

ORIGINAL, CONTROL = "original", "original again"
SIDES = ("transformers", "l2l_nas")
PROMPT, TOKEN = "prompt", "token"
# by name: the candidates of attention and of feed-forward networks, one block after the other
NETWORKS = {
    "half as wide": (["original"], ["width_half"]),
    "one group of heads less": (["fewer_groups"], ["original"]),
    "both": (["fewer_groups"], ["width_half"]),
    "every second block half as wide": (["original"], ["original", "width_half"]),
}


@dataclass(frozen=True)
class Network:
    """One of the networks that are compared.

    Args:
        flops: of matrix products, for the prompt.
        read_bytes: weights, keys and values that a token reads behind the prompt and half of the tokens.
    """

    architecture: Architecture
    flops: int
    read_bytes: int


class Sides:
    """All networks, by the side that runs them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.pool = pool_of(args.model, args.prompt + args.tokens + 1)
        self.vocabulary = self.pool.family.vocabulary
        draw = torch.Generator().manual_seed(0)
        self.prompt = torch.randint(self.vocabulary, (1, args.prompt), generator=draw)
        self.server = ParamServer(self.pool, optimizer=AdamW(), seed=0)
        self.networks = {name: self._network(*candidates) for name, candidates in NETWORKS.items()}
        self.networks = {ORIGINAL: self._network(["original"], ["original"]), **self.networks}

    def _network(self, attention: Sequence[str], feed_forward: Sequence[str]) -> Network:
        choices, counts = [], {"attention": 0, "feedforward": 0}
        for position in self.pool.positions:
            kind, wanted = position.name.partition("_")[0], {"attention": attention, "feedforward": feed_forward}
            name = "original"
            if kind in wanted:
                own = wanted[kind]
                name = own[counts[kind] % len(own)]
                counts[kind] += 1
            choices.append(_candidate(position.candidates, name))
        architecture = self.pool.architecture(choices)
        places, half = self.args.prompt, self.args.tokens // 2
        flops, num_bytes = flops_of(self.pool, architecture, places), read_bytes(self.pool, architecture, places + half)
        return Network(architecture, flops, num_bytes)

    def transformers(self, folder: Path, name: str) -> Callable[[], Iterator[None]]:
        """By `transformers`, from a folder that is written first."""
        import transformers

        self._write(folder, self.networks[name].architecture)
        network = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=True
        ).eval()

        def written() -> Iterator[None]:
            tokens, past = self.prompt, None
            while True:
                with torch.no_grad():
                    made = network(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)
                tokens, past = made.logits[:, -1:].argmax(dim=-1), made.past_key_values
                yield

        return written

    def _write(self, folder: Path, architecture: Architecture) -> None:
        """As `export formats=[hugging_face]` does, which checks in addition that both compute the same."""
        network = build_network(self.server, architecture)
        source = ExportSource(network, (self.prompt,), self.pool, architecture, partial(copy.deepcopy, network))
        files = self.pool.hugging_face(source)
        folder.mkdir(parents=True)
        for name, content in files.files.items():
            (folder / name).write_bytes(content)
        with torch.no_grad():
            tensors = files.give(dict(network.named_parameters(remove_duplicate=False)))
        write_tensors(folder / "model.safetensors", tensors, format="pt")

    def l2l_nas(self, folder: Path, name: str) -> Callable[[], Iterator[None]]:
        """By this library's own generation."""
        relay = Relay(self.server, device="cpu", device_budget="all")
        prompt, count = self.prompt[0].tolist(), self.args.tokens + 1

        def written() -> Iterator[None]:
            words = generate(
                relay,
                self.networks[name].architecture,
                [prompt],
                tokens=count,
                vocabulary=self.vocabulary,
                sampling=Sampling(temperature=0),
            )
            return (None for _ in words)

        return written


def pool_of(model: str, length: int) -> PublishedPool:
    """The model's pool with feed-forward networks of half the width, and attention with a group of heads less.

    Raises:
        SettingError: its blocks are others than attention and one feed-forward network: what they promise is not known.
    """
    whole = published_pool(model, length=length)
    factories: list[Any] = [one.candidates[0].factory for one in whole.positions]
    if not {SelfAttention, FeedForward} <= {factory.func for factory in factories}:
        raise SettingError(f"--model {model}: its blocks are not attention and one feed-forward network")
    heads = next(factory.args[1] for factory in factories if factory.func is SelfAttention)
    fewer = heads.shared - 1
    pool = published_pool(
        model, length=length, widths=[0.5], groups=[fewer] if fewer else [], heads=[] if fewer else [heads.count - 1]
    )
    assert isinstance(pool, PublishedPool)
    return pool


def _candidate(candidates: Sequence[Any], name: str) -> str:
    beginning = {"width_half": "width_", "fewer_groups": ("groups_", "heads_")}.get(name, name)
    return next(one.name for one in candidates if one.name.startswith(beginning))


def read_bytes(pool: PublishedPool, architecture: Architecture, places: int) -> int:
    """Bytes in float32 that a token reads which has so many before it: one row of the table alone, all else whole."""
    path = pool.path(architecture)
    states = {state for layer in path[1:] for state in layer.states}
    numbers = sum(layout_of(pool, state).num_parameters for state in states)
    for layer in path:
        factory: Any = layer.candidate.factory
        if factory.func is SelfAttention:
            hidden, heads = factory.args[:2]
            numbers += 2 * heads.shared * (heads.size or hidden // heads.count) * places
    return 4 * numbers


def seconds_of(
    works: Mapping[str, Callable[[], Iterator[None]]], *, rounds: int, tokens: int
) -> dict[str, dict[str, Seconds]]:
    """Seconds of a prompt and of the tokens behind it, by network; the order changes from round to round."""
    draw = random.Random(0)
    found: dict[str, dict[str, Seconds]] = {
        part: {name: {"cpu": [], "wall": []} for name in works} for part in (PROMPT, TOKEN)
    }
    gc.disable()
    try:
        for number in range(rounds + 1):
            gc.collect()
            for name in draw.sample(list(works), len(works)):
                words = works[name]()
                parts = {
                    PROMPT: timed(partial(next, words)),
                    TOKEN: timed(partial(list, islice(words, tokens))),
                }
                for part, seconds in parts.items() if number else ():  # the first round is not counted
                    for clock, one in seconds.items():
                        found[part][name][clock].append(one)
    finally:
        gc.enable()
    return found


def flops_of(pool: PublishedPool, architecture: Architecture, places: int) -> int:
    """Operations of matrix products for a prompt of so many tokens, of which the last alone goes through the head.

    A token sees those before it and itself, half of all on average.
    """
    *path, head = pool.path(architecture)[1:]
    numbers = sum(layout_of(pool, state).num_parameters for state in head.states)
    for layer in path:
        numbers += places * sum(layout_of(pool, state).num_parameters for state in layer.states)
        factory: Any = layer.candidate.factory
        if factory.func is SelfAttention:
            hidden, heads = factory.args[:2]
            numbers += heads.count * (heads.size or hidden // heads.count) * places * places
    return 2 * numbers


def compared(sides: Sides, side: str, folder: Path) -> dict[str, Any]:
    """Of each network the ratios of its times to the original's, promised and measured, and what is kept."""
    works = {name: getattr(sides, side)(folder / str(number), name) for number, name in enumerate(sides.networks)}
    promised = {
        PROMPT: {name: float(network.flops) for name, network in sides.networks.items()},
        TOKEN: {name: float(network.read_bytes) for name, network in sides.networks.items()},
    }
    seconds = seconds_of({**works, CONTROL: works[ORIGINAL]}, rounds=sides.args.rounds, tokens=sides.args.tokens)
    found: dict[str, Any] = {}
    for part, own in seconds.items():
        measured = ratios(own, over=ORIGINAL)
        for name, clocks in measured.items():
            share = promised[part].get(name, promised[part][ORIGINAL]) / promised[part][ORIGINAL]
            kept = {clock: round(share / one["median"], 3) for clock, one in clocks.items()}
            found.setdefault(part, {})[name] = {"promised": round(share, 4), **clocks, "kept": kept}
            told = f"promised {share:.3f}, measured {shown(clocks['cpu'])}, kept {kept['cpu']:.2f}"
            print(f"{side:12} {part:6} {name:32} {told}", flush=True)
    found["seconds"] = seconds
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True)
    parser.add_argument("--rounds", type=at_least(1), default=10)
    parser.add_argument("--prompt", type=at_least(1), default=256)
    parser.add_argument("--tokens", type=at_least(1), default=16)
    parser.add_argument("--threads", type=at_least(1), default=1)
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--out", type=Path)


def main(args: argparse.Namespace) -> None:
    """The script."""
    torch.set_num_threads(args.threads)
    sides = Sides(args)
    found: dict[str, Any] = {"machine": machine(), "prompt": args.prompt, "tokens": args.tokens}
    with tempfile.TemporaryDirectory() as scratch:
        for side in args.sides:
            found[side] = compared(sides, side, Path(scratch, side))
    if args.out:
        write_json(args.out, found)
