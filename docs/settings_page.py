"""Writes docs/settings.md from the settings themselves: `python docs/settings_page.py`; `make docs` does it."""

import inspect
from pathlib import Path

from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import ABOUT, GROUPS, choices
from l2l_nas.runs.settings import COMMANDS, rule_of

PAGE = Path(__file__).with_name("settings.md")
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
        for kind in dict.fromkeys(known.values()):
            of = ", ".join(f"`{group}={name}`" for name, one in known.items() if one is kind)
            lines += [f"| `{name}` | {of} | {shown(one)} | {text} |" for name, one, text in settings(kind, f"{group}.")]
    return [*lines, ""]


def on_resume(name: str) -> str:
    """What happens to another value when a run goes on."""
    rule = rule_of(name)
    if rule.unless is not None:
        return "depends"
    return "stays" if rule.stays else "free" if rule.is_free else "may change"


def page() -> str:
    """The whole page."""
    lines = [HEAD + "\n".join(groups())]
    for command, schema in COMMANDS.items():
        rows = list(settings(schema))
        goes_on = any(name == "resume" for name, _, _ in rows)
        lines += [f"## {command}", "", inspect.getdoc(schema) or "", ""]
        lines += ["| setting | default | what | on resume |", "|---|---|---|---|"] if goes_on else []
        lines += ["| setting | default | what |", "|---|---|---|"] if not goes_on else []
        for name, default, text in rows:
            lines.append(f"| `{name}` | {shown(default)} | {text} |" + (f" {on_resume(name)} |" if goes_on else ""))
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
