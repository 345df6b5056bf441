"""Writes docs/settings.md from the settings themselves: `python docs/settings_page.py`; `make docs` does it."""

import inspect
from pathlib import Path

from l2l_nas.runs.settings import COMMANDS, HYDRA, settings

PAGE = Path(__file__).with_name("settings.md")
HEAD = """\
# Settings

Every setting of every command, as `python -m l2l_nas COMMAND --help` tells it. This page is made of the program's own
settings, and a test compares the two. Write `name=value` behind the command. In Python those of `search.` are arguments
of `l2l_nas.search`, the other sections are dicts.
"""


def shown(default: object) -> str:
    """A default as it is typed."""
    if default is None:
        return "`null`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, list):
        return f"`[{','.join(map(str, default))}]`"
    return "" if default == "" else f"`{default}`"


def page() -> str:
    """The whole page."""
    lines = [HEAD]
    for command, schema in COMMANDS.items():
        rows = list(settings(schema))
        for section, more in HYDRA.get(command, {}).items():
            rows += settings(more, f"{section}.")
        lines += [
            f"## {command}",
            "",
            inspect.getdoc(schema) or "",
            "",
            "| setting | default | what |",
            "|---|---|---|",
        ]
        lines += [f"| `{name}` | {shown(default)} | {text} |" for name, default, text in rows]
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
