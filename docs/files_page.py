"""Writes docs/files.md from the first sentence of each file: `python docs/files_page.py`; `make docs` does it."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("files.md")
HEAD = """\
# Files

Every file of the package, with its own first sentence, room by room. A room imports only from itself and from the rooms
above it on this page; a test proves it. The benchmarks at the end are not in the package.
This page is made by `docs/files_page.py`, and a test compares the two.
"""
# from the ground up
ROOMS = {
    "": "",
    "contents": "reading files that others may have made, checked before they are used",
    "space": "what may be built",
    "eps": "the host side",
    "relay": "the device side",
    "parallel": "one network on many devices; the only home of torch.distributed",
    "cost": "what an architecture costs, and what a machine makes of it",
    "layers": "layers",
    "training": "tasks, data, schedules, training and export",
    "text": "language models: text, figures, writing",
    "pretrained": "published models, in and out",
    "nas": "the search; the only home of Optuna",
    "report": "tables, charts and the page",
    "runs": "one run: its settings, its folder, the Python calls",
    "testing": "suites that every extension must pass",
    "cli": "the commands; the only home of Hydra",
}


def sentence(path: Path) -> str:
    """The first of a file's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return re.split(r"(?<=[.:])\s+(?=[A-Z\s])|\n\n", " ".join(text.split("\n\n")[0].split()))[0]


def page() -> str:
    """The whole page."""
    package = ROOT / "l2l_nas"
    assert {path.name for path in package.iterdir() if (path / "__init__.py").exists()} == set(ROOMS) - {""}
    lines = [HEAD]
    for room, about in ROOMS.items():
        files = sorted((package / room).rglob("*.py") if room else package.glob("*.py"))
        lines += [f"## {room}: {about}" if room else "## l2l_nas", *_table(package / room, files, with_init=not room)]
    place = ROOT / "benchmarks"
    lines += ["## benchmarks: the library measured", *_table(place, sorted(place.rglob("*.py")))]
    return "\n".join(lines)


def _table(place: Path, files: list[Path], *, with_init: bool = False) -> list[str]:
    rows = [path for path in files if path.name != "__init__.py" or with_init]
    named = [f"| `{path.relative_to(place).as_posix()}` | {sentence(path)} |" for path in rows]
    return ["", "| file | what |", "|---|---|", *named, ""]


if __name__ == "__main__":
    PAGE.write_text(page())
