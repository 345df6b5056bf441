"""Figures of published language models."""

from __future__ import annotations

from typing import Any

from benchmarks.models.pruning_table import differences, table
from benchmarks.pages.writing import in_errors, markdown, raw

_GEMMA = {"": "rate 3e-5", "_3e-4": "rate 3e-4", "_untuned": "no fine-tuning"}


def published() -> str:
    found = raw("published")
    lines = [
        [words, f"{one['token_perplexity']:.5f}", f"{100 * one['accuracy']:.1f} %", f"{one['target_perplexity']:.4f}"]
        for words, one in (("this library", found["l2l_nas"]), ("transformers", found["transformers"]))
    ]
    return markdown(["", "token perplexity", "accuracy of last words", "perplexity of last words"], lines)


def smollm() -> str:
    """SmolLM2 made smaller."""
    return table({"": raw("pruning_512")})


def gemma() -> str:
    """Gemma 3 270M made smaller: with the rate that was chosen for it, with SmolLM2's, and without fine-tuning."""
    return table({words: raw(f"pruning_512_gemma{end}") for end, words in _GEMMA.items()})


def headline(name: str) -> str:
    """How many rows of a table the search is ahead of, and how many ahead of it."""
    rows: dict[str, Any] = raw(name)["rows"]
    others = [one for one in rows if not one.startswith(("search", "original"))]
    ahead, behind = [], []
    for index in range(2):
        told = [in_errors(*differences(rows[f"search_{o.rpartition('_')[2]}"], rows[o])[index]) for o in others]
        ahead.append(sum(one.startswith("+") for one in told))
        behind.append(sum(one.startswith("-") for one in told))
    return (
        f"ahead of {ahead[0]} of {len(others)} rows in perplexity and {ahead[1]} in last words, behind {behind[0]} "
        f"and {behind[1]}"
    )


def search_time() -> str:
    """How much longer a search of one size takes than other ways to that size."""
    of = _seconds("pruning_512_gemma", "_25")
    beside = {**_seconds("pruning_512", "_15"), **_seconds("pruning_512_hour", "_15")}
    ratios = [
        rows[search] / seconds
        for rows, search in ((of, "search_25"), (beside, "search_15"))
        for name, seconds in rows.items()
        if name != search
    ]
    return f"{min(ratios):.0f} to {max(ratios):.0f}"


def _seconds(name: str, share: str) -> dict[str, float]:
    """Processor time of all rows of a share."""
    stages = [f"{one}_processor_seconds" for one in ("search", "prune", "tune")]
    rows = raw(name)["rows"]
    return {arm: sum(row.get(one, 0) for one in stages) for arm, row in rows.items() if arm.endswith(share)}


def own_layers() -> str:
    """Steps on `transformers`' own modules over steps on this package's layers."""
    lines = []
    for model, rows in raw("own_layers")["models"].items():
        for what, sides in rows.items():
            shown = (f"{one['median']:.2f} ({one['low']:.2f} to {one['high']:.2f})" for one in sides.values())
            lines.append([model, what, *shown])
    return markdown(["", "", "control", "whole blocks", "sub-layers taken apart"], lines)


BLOCKS = {"published": published, "own_layers": own_layers, "pruning_smollm": smollm, "pruning_gemma": gemma}
