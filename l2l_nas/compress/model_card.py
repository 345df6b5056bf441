"""The README.md beside an exported model: what was replaced, on what text, sizes, figures that there are, licence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from l2l_nas.compress.folder import Folder
from l2l_nas.eps.layout import layout_of
from l2l_nas.layers import MaskedHead
from l2l_nas.training.formats import ExportSource

# in a card's head
_LICENCE = re.compile(r"""^license:[ \t]*(["']?)(\w[\w.-]*)\1(?:[ \t]+#.*)?[ \t]*\r?$""", re.MULTILINE)
LICENCES = re.compile(r"(?i)licen[cs]e|notice|copying")  # names of files begin so


def model_card(published: Folder, source: ExportSource, *, files: Mapping[str, bytes], why: str) -> str:
    """The card of a network of a published model, with these files beside it; `why` it has its own code, if it has."""
    name, licence = published.path.resolve().name, _licence(published)
    is_masked = any(isinstance(one, MaskedHead) for one in source.network.modules())
    task, kind = ("fill-mask", "AutoModelForMaskedLM") if is_masked else ("text-generation", "AutoModelForCausalLM")
    head = [f"pipeline_tag: {task}", *([f"license: {licence}"] if licence else [])]
    trust, code = (", trust_remote_code=True", f" It comes with its own code: {why}.") if why else ("", "")
    named = f"`{licence}`, that of the original." if licence else "Which one the original has is not known here."
    texts = ", ".join(f"`{file}`" for file in sorted(files) if LICENCES.match(file))
    lines = ["---", "library_name: transformers", *head, "---", "", f"# A smaller {name}", ""]
    lines += [f"A network that l2l_nas found in `{name}`.", "", *_sizes(source), "", *_figures(source.about), ""]
    lines += [f'Load it by `transformers.{kind}.from_pretrained("FOLDER"{trust})`.{code}', ""]
    return "\n".join([*lines, f"Licence: {named}{f' See {texts} beside this file.' if texts else ''}", ""])


def _licence(published: Folder) -> str:
    """What the original's own card names; empty if it names nothing, or something that is no plain name."""
    text = published.beside.get("README.md", b"").decode(errors="replace")
    found = _LICENCE.search(text.split("\n---", 1)[0]) if text.startswith("---") else None
    return found[2] if found else ""


def _sizes(source: ExportSource) -> Iterator[str]:
    """Each layer that is another, and the size of both networks."""
    pool, both = source.pool, (source.pool.original, source.architecture)
    old, new = ({pool.positions[one.position].name: one.states for one in pool.path(path)} for path in both)
    rows: list[tuple[Any, ...]] = [
        (place.name, now if place.name in new else "left out", *(one.get(place.name, ()) for one in (old, new)))
        for place, before, now in zip(pool.positions, *(path.choices for path in both), strict=True)
        if before != now
    ]
    yield f"{len(rows)} of {len(pool.positions)} layers were replaced or left out."
    yield from ("", "| layer | now | its parameters | now |", "|---|---|---:|---:|")
    rows.append(("all", "", *({key for keys in one.values() for key in keys} for one in (old, new))))
    for name, now, *states in rows:
        counts = (sum(layout_of(pool, key).num_parameters for key in some) for some in states)
        yield f"| {name} | {now} | {' | '.join(f'{count:,}' for count in counts)} |"


def _figures(about: Mapping[str, Any]) -> Iterator[str]:
    """The data, and what was measured of both networks."""
    data, steps = about.get("data") or {}, about.get("steps")
    counts = ", ".join(f"{count:,} {part}" for part, count in (data.get("samples") or {}).items())
    yield f"Data: `{data.get('source')}`; samples: {counts or 'not counted'}; steps: {steps or 'not counted'}."
    yield from ("", "| | original | this network |", "|---|---:|---:|")
    for what, one in (about.get("figures") or {}).items():
        for name in dict.fromkeys(name for side in one.values() for name in side["values"]):
            yield f"| {what} {name} | {' | '.join(_figure(one.get(side), name) for side in ('original', 'network'))} |"


def _figure(one: Mapping[str, Any] | None, name: str) -> str:
    """With its standard error; empty where it was not measured."""
    value, error = (one["values"].get(name), one["errors"].get(name)) if one else (None, None)
    shown = f"{value:.4g}" if isinstance(value, int | float) else ""
    return shown + (f" ± {error:.2g}" if isinstance(error, int | float) else "")
