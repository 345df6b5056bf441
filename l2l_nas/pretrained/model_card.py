"""The README.md beside an exported model: what was removed from which model, what it costs, what it lost."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.cost.generation import KeptBytes, text_length
from l2l_nas.cost.latency import token_seconds, typical_seconds
from l2l_nas.eps.layout import layout_of
from l2l_nas.layers import MaskedHead
from l2l_nas.pretrained.folder import Folder
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.export import plain_module
from l2l_nas.training.formats import ExportSource

_LICENCE = re.compile(
    r"""^license:[ \t]*(["']?)(\w[\w.-]*)\1(?:[ \t]+#.*)?[ \t]*\r?$""", re.MULTILINE
)  # in a card's head
LICENCES = re.compile(r"(?i)licen[cs]e|notice|copying")  # names of files begin so


def model_card(published: Folder, source: ExportSource, *, files: Mapping[str, bytes], why: str) -> str:
    """The card of a network of a published model, as Markdown.

    Args:
        published: the model that it was found in.
        source: the network; what is known of its run is in `about`.
        files: that lie beside it, by name, config.json among them.
        why: why it comes with its own code; empty if it does not.
    """
    pool, chosen = source.pool, source.architecture
    is_causal = not any(isinstance(one, MaskedHead) for one in source.network.modules())
    has_cache = bool(json.loads(files["config.json"]).get("has_cache"))
    licence = _licence(published)
    head = ["---", "library_name: transformers", f"pipeline_tag: {'text-generation' if is_causal else 'fill-mask'}"]
    head += [f"license: {licence}"] if licence else []
    name = published.path.resolve().name
    lines = [*head, "---", "", f"# A smaller {name}", ""]
    lines += [f"A network that l2l_nas found in `{name}`."]
    lines += ["", *_removed(pool, chosen)]
    rows = [*_costs(pool, chosen, is_causal=is_causal), *(_times(source) if is_causal else ())]
    lines += ["", "## What it costs", "", *_table(["", "original", "this network"], rows)]
    lines += ["", "## What it lost", "", *_lost(source)]
    lines += ["", "## How to load it", "", *_loading(is_causal=is_causal, has_cache=has_cache, why=why)]
    named = f"It is `{licence}`, that of the original." if licence else "Which one the original has is not known here."
    texts = sorted(name for name in files if LICENCES.match(name))
    beside = f" See {', '.join(f'`{name}`' for name in texts)} beside this file." if texts else ""
    lines += ["", "## Licence", "", named + beside]
    return "\n".join(lines) + "\n"


def _licence(published: Folder) -> str:
    """What the original's own card names; empty if it names nothing, or something that is no plain name."""
    text = published.beside.get("README.md", b"").decode(errors="replace")
    found = _LICENCE.search(text.split("\n---", 1)[0]) if text.startswith("---") else None
    return found[2] if found else ""


def _removed(pool: LayerPool, chosen: Architecture) -> Iterator[str]:
    original = pool.original
    counts = _by_position(pool, original), _by_position(pool, chosen)
    rows = [
        (place.name, new if place.name in counts[1] else "left out")
        for place, new, old in zip(pool.positions, chosen.choices, original.choices, strict=True)
        if new != old
    ]
    if not rows:
        yield "All of its layers are the original's."
        return
    yield f"{len(rows)} of {len(pool.positions)} layers were replaced or left out:"
    yield ""
    yield from _table(
        ["layer", "now", "its parameters", "now"],
        [[name, new, f"{counts[0].get(name, 0):,}", f"{counts[1].get(name, 0):,}"] for name, new in rows],
    )


def _by_position(pool: LayerPool, architecture: Architecture) -> dict[str, int]:
    """Parameters of the layers of an architecture; a position that is skipped is missing."""
    return {
        pool.positions[layer.position].name: sum(layout_of(pool, key).num_parameters for key in layer.states)
        for layer in pool.path(architecture)
    }


def _costs(pool: LayerPool, chosen: Architecture, *, is_causal: bool) -> list[list[str]]:
    both = (pool.original, chosen)
    parameters = [num_parameters(pool, one) for one in both]
    rows = [["parameters", *(f"{count:,}" for count in parameters)]]
    rows.append(["bytes of its weights, in float32", *(f"{4 * count:,}" for count in parameters)])
    length = text_length(pool)
    if is_causal and length:
        kept = KeptBytes(pool, length)
        means = (sum(map(kept.of_token, pool.path(one))) for one in both)
        what = f"bytes that writing keeps of a token, in a text of {length:,}, in float32"
        rows.append([what, *(f"{mean:,.0f}" for mean in means)])
    return rows


def _times(source: ExportSource) -> Iterator[list[str]]:
    """What a text and a token of it take on this machine."""
    pool, row = source.pool, [tensor[:1] for tensor in source.example]
    if text_length(pool) is None or (length := row[0].shape[1]) < 2:
        return
    networks = {pool.original: plain_module(pool, pool.original), source.architecture: source.network}
    both = [networks[one] for one in (pool.original, source.architecture)]
    flows = [pool.flow(pool.path(one)) for one in (pool.original, source.architecture)]
    behind, here = f"behind {length - 1:,} others", "measured here on one thread"
    read = [typical_seconds(network, row) for network in both]
    yield [f"ms to read a text of {length:,} tokens, {here}", *map(_milliseconds, read)]
    more = [token_seconds(network, flow, row) for network, flow in zip(both, flows, strict=True)]
    yield [f"ms of a token {behind}, {here}", *map(_milliseconds, more)]


def _milliseconds(seconds: float) -> str:
    """With three digits, which is more than such a measurement is good for."""
    return f"{float(f'{1000 * seconds:.3g}'):,g}"


def _lost(source: ExportSource) -> Iterator[str]:
    about, before = source.about, source.original()
    data = about.get("data") or {}
    text, samples = data.get("source"), data.get("samples") or {}
    if text or samples:
        counts = ", ".join(f"{count:,} {part}" for part, count in samples.items())
        steps = f" It was trained for {about['steps']:,} steps." if about.get("steps") else ""
        length = text_length(source.pool)
        cut = f" Texts are read in windows of {length:,} tokens at most." if length else ""
        yield f"Data: {f'`{text}`' if text else 'of its own'}; samples: {counts or 'not counted'}.{steps}{cut}"
        yield ""
    known = about.get("standard_error") or {}
    now = {"values": source.values, "errors": known.get("validation") or {}}
    test = {"values": about.get("test") or {}, "errors": known.get("test") or {}}
    rows = [[f"validation {name}", _measured(before.to_json(), name), _measured(now, name)] for name in source.values]
    rows += [[f"test {name}", "", _measured(test, name)] for name in test["values"]]
    for one in about.get("evaluated") or ():
        stride = f", stride {one['stride']}" if one["stride"] else ""
        what = f"`{one['file']}`, {one['task']}{stride}"
        names = dict.fromkeys([*one["original"]["values"], *one["values"]])
        rows += [[f"{what} {name}", _measured(one["original"], name), _measured(one, name)] for name in names]
    yield from _table(["", "original", "this network"], rows)


def _loading(*, is_causal: bool, has_cache: bool, why: str) -> Iterator[str]:
    kind = "AutoModelForCausalLM" if is_causal else "AutoModelForMaskedLM"
    trust = ", trust_remote_code=True" if why else ""
    yield from ("```python", f"from transformers import {kind}", "")
    yield from (f'model = {kind}.from_pretrained("FOLDER"{trust})', "```", "")
    if why:
        yield f"It comes with its own code, `modeling_l2l_nas.py` and the files that this imports: {why}."
    if why and is_causal:
        kept = "has a cache for prompts without padding; otherwise" if has_cache else "has no cache:"
        yield f"`generate` {kept} each token computes the text anew."
    yield "In l2l_nas it is `space.pool=hf:FOLDER`; its logits were compared with those of the search."


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _measured(one: Mapping[str, Any], name: str) -> str:
    """A figure and its standard error, as `Score.to_json` has them; empty where it was not measured."""
    value, error = one["values"].get(name), one["errors"].get(name)
    return _number(value) + (f" ± {error:.2g}" if isinstance(error, int | float) else "")


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else ""
