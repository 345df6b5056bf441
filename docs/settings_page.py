"""Writes docs/settings.md from the settings themselves: `python docs/settings_page.py`; `make docs` does it."""

import inspect
from pathlib import Path

from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import ABOUT, GROUPS, choices
from l2l_nas.runs.settings import COMMANDS, rule_of

PAGE = Path(__file__).with_name("settings.md")
# commands whose runs go on
GO_ON = {"search", "train"}
HEAD = """\
# Settings

Every setting of every command, as in `python -m l2l_nas COMMAND --help`. This page is generated from the settings of
the program. On the command line write `name=value` behind the command. In Python the settings of `search.` are
arguments of `l2l_nas.search`; the other sections are dicts.

The column "on resume" says what happens if you give another value when you resume a run. `stays`: the value is refused.
`may change`: it is used from then on. `depends`: it is used or refused, as the run is; an error says why.
`free`: it may change, and changes no result.

## Groups

A group has choices, the default first: `sampler=tpe`. A choice has arguments: `sampler.n_startup_trials=20`.
In Python: `sampler={"name": "tpe", "n_startup_trials": 20}`.

"""


def shown(default: object) -> str:
    """A default as it is typed."""
    if default is None:
        return "`null`"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, dict) and "name" in default:
        return f"`{default['name']}`"
    if isinstance(default, list):
        return f"`[{','.join(map(str, default))}]`"
    return "" if default == "" else f"`{default}`"


def groups() -> list[str]:
    """Two tables: choices, and their arguments."""
    lines = ["| group | choices | what | commands |", "|---|---|---|---|"]
    for group, (what, _, own) in ABOUT.items():
        offered = ", ".join(f"`{one}`" for one in (*choices(group), *own.split(" or ")) if one)
        lines.append(f"| `{group}` | {offered} | {what} | {', '.join(one for one in GROUPS if group in GROUPS[one])} |")
    lines += ["", "| argument | of | default | what |", "|---|---|---|---|"]
    for group, known in CHOICES.items():
        rows: dict[tuple[str, str, str], list[str]] = {}
        for choice, kind in known.items():
            for name, default, text in settings(kind, f"{group}."):
                rows.setdefault((name, shown(default), text), []).append(f"`{choice}`")
        lines += [f"| `{name}` | {', '.join(of)} | {default} | {text} |" for (name, default, text), of in rows.items()]
    return [*lines, ""]


def on_resume(name: str) -> str:
    """What happens to another value when a run goes on."""
    rule = rule_of(name)
    if rule.unless is not None:
        return "depends"
    return "stays" if rule.stays else "free" if rule.is_free else "may change"


def page() -> str:
    """The whole page: what several commands take is told once."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for command, schema in COMMANDS.items():
        for name, default, text in settings(schema):
            rows.setdefault((name, shown(default), text), []).append(command)
    lines = [HEAD + "\n".join(groups()), "## Several commands", ""]
    lines += ["| setting | default | what | on resume | commands |", "|---|---|---|---|---|"]
    for (name, default, text), commands in rows.items():
        if len(commands) > 1:
            resumed = on_resume(name) if GO_ON & {*commands} else ""
            lines.append(f"| `{name}` | {default} | {text} | {resumed} | {', '.join(commands)} |")
    for command, schema in COMMANDS.items():
        goes_on = command in GO_ON
        lines += ["", f"## {command}", "", inspect.getdoc(schema) or "", ""]
        lines += ["| setting | default | what | on resume |", "|---|---|---|---|"] if goes_on else []
        lines += ["| setting | default | what |", "|---|---|---|"] if not goes_on else []
        for (name, default, text), commands in rows.items():
            if commands == [command]:
                lines.append(f"| `{name}` | {default} | {text} |" + (f" {on_resume(name)} |" if goes_on else ""))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page())
