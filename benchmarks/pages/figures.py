"""Figures of README and docs, made again of the raw results; it fails where a page tells others.

    python -m benchmarks figures            compare
    python -m benchmarks figures --write    write them into the pages

A page has blocks, `<!-- figures: NAME -->` to `<!-- figures: end -->`; what stands between is made by the function of
that name in `benchmarks/pages/`.
"""

from __future__ import annotations

import argparse
import difflib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import ROOT
from benchmarks.pages import faults, gpu, headline, models, relay, scale, searches
from l2l_nas.errors import SettingError, did_you_mean

BLOCKS: dict[str, Callable[[], str]] = {
    name: make
    for page in (headline, gpu, relay, models, searches, faults, scale)
    for name, make in page.BLOCKS.items()  # type: ignore[attr-defined]
}
_BLOCK = re.compile(r"(<!-- figures: (?!end)(?P<name>\S+) -->\n)(?P<text>.*?)(<!-- figures: end -->)", re.DOTALL)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """Name and text of each block of a page."""
    yield from ((one["name"], one["text"]) for one in _BLOCK.finditer(page))


def remade(page: str) -> str:
    """A page with all its blocks made again."""

    def made(block: re.Match[str]) -> str:
        name = block["name"]
        if name not in BLOCKS:
            raise SettingError(f"no figures of the name '{name}'{did_you_mean(name, list(BLOCKS))}")
        return f"{block[1]}{BLOCKS[name]()}\n{block[4]}"

    return _BLOCK.sub(made, page)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="write what differs into the pages")


def main(options: argparse.Namespace) -> int:
    found, differing = 0, 0
    for path in pages():
        text = path.read_text()
        made = remade(text)
        found += sum(1 for _ in blocks(text))
        if made == text:
            continue
        differing += 1
        if options.write:
            path.write_text(made)
        name = str(path.relative_to(ROOT))
        print("\n".join(difflib.unified_diff(text.splitlines(), made.splitlines(), name, "raw results", "", "", 0, "")))
    verb = "written" if options.write else "that tell other figures"
    print(f"{found} blocks of figures; pages {verb}: {differing}")
    return 1 if differing and not options.write else 0
