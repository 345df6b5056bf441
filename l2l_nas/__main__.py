"""`python -m l2l_nas COMMAND [overrides]`, also installed as `l2l-nas`.

Hydra has no subcommands. This takes the command off, answers help and typing errors in it at once, without importing
anything heavy, and leaves the rest to the command's own module.
"""

from __future__ import annotations

import gc
import os
import sys
import textwrap
from collections.abc import Sequence

from l2l_nas.errors import did_you_mean
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.fields import settings, titles
from l2l_nas.runs.groups import ABOUT, GROUPS, choices
from l2l_nas.runs.settings import COMMANDS

_COLUMN = 30  # where help texts begin
_WIDTH = 80
_EPILOG = """\
Settings are given as NAME=VALUE; `python -m l2l_nas COMMAND --help` lists them.
  -m, --multirun     run every combination: python -m l2l_nas search -m seed=0,1
  --cfg job          show the whole configuration and stop
  --version          show the version
"""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 2 bad input, 130 stopped, 1 a mistake of this program."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if words[0] == "--version":
        from l2l_nas import __version__

        print(f"l2l_nas {__version__}")
        return 0
    command = words.pop(0)
    if command not in COMMANDS:
        print(f"error: no command '{command}'{did_you_mean(command, COMMANDS)}", file=sys.stderr)
        return 2
    if "-h" in words or "--help" in words:
        wanted = [word for word in words if not word.startswith("-") and "=" not in word]
        sections = dict.fromkeys((*GROUPS.get(command, ()), *dict(titles(COMMANDS[command]))))
        for word in wanted:
            if word not in sections:
                print(f"error: {command} has no section '{word}'{did_you_mean(word, sections)}", file=sys.stderr)
                return 2
        print(_help(command, wanted))
        return 0
    is_program = arguments is None
    if is_program:
        gc.disable()  # nothing that imports make is garbage; `launch` switches it on again
    try:
        if is_program and os.environ.get("WORLD_SIZE", "1") != "1":  # torchrun sets it
            from l2l_nas.cli.ranked import launch_ranked

            launch_ranked(command, words)
        from l2l_nas.cli.launch import launch
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    return launch(command, words, is_program=is_program)


def _overview() -> str:
    lines = ["usage: python -m l2l_nas COMMAND [NAME=VALUE ...]", "", "commands:"]
    lines += [f"  {name:10} {(schema.__doc__ or '').rstrip('.')}" for name, schema in COMMANDS.items()]
    return "\n".join([*lines, "", _EPILOG.rstrip()])


def _help(command: str, wanted: Sequence[str]) -> str:
    """The settings of sections; without any, those of none, the groups, and names of sections."""
    schema, groups = COMMANDS[command], GROUPS.get(command, ())
    abouts = {**dict(titles(schema)), **{name: ABOUT[name][0] for name in groups}}
    lines = [f"usage: python -m l2l_nas {command} [NAME=VALUE ...]", "", schema.__doc__ or "", ""]
    every = list(settings(schema))
    if not wanted:
        lines += [_line(*one) for one in every if "." not in one[0] and one[0] not in groups]
        lines += ["", f"Groups, each with its choices, the default first; more: {command} --help GROUP"] * bool(groups)
        lines += [line for group in groups for line in _group(group)]
        sections = [name for name in abouts if name not in groups]
        lines += ["", *(f"  {f'{name}.NAME':{_COLUMN}} {abouts[name]}: --help {name}" for name in sections)]
    for name in wanted:
        lines += [f"{abouts[name]}.", "", *(_choices(name) if name in groups else [])]
        lines += [_line(*one) for one in every if name in (one[0], one[0].rpartition(".")[0])]
    return "\n".join(lines).rstrip()


def _group(group: str) -> list[str]:
    """A config group with its choices."""
    text = ", ".join(filter(None, (*choices(group), ABOUT[group][2])))
    return textwrap.wrap(f"  {group:12} {text}", _WIDTH, subsequent_indent=" " * 15)


def _choices(group: str) -> list[str]:
    """What a group offers, with the arguments of each."""
    if group not in CHOICES:
        return _group(group)
    lines = []
    kinds = list(dict.fromkeys(CHOICES[group].values()))
    each = [list(settings(kind, f"{group}.")) for kind in kinds]
    common = [one for one in each[0] if len(kinds) > 1 and all(one in own for own in each)]
    for kind, own in zip(kinds, each, strict=True):
        names = [name for name, one in CHOICES[group].items() if one is kind]
        lines.append(f"  {group}={'|'.join(names)}: {(kind.__doc__ or '').rstrip('.')}")
        lines += ["  " + _line(*one) for one in own if one not in common]
    if common:
        lines += ["  each of them:", *("  " + _line(*one) for one in common)]
    return [*lines, ""]


def _line(name: str, default: object, text: str) -> str:
    folder, is_timed, _ = str(default).partition("${now")
    shown = f"{folder.upper()}TIME" if is_timed else _shown(default)
    return f"  {f'{name}={shown}':{_COLUMN}} {text}"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, dict):
        return str(value.get("name", "{}"))
    return "null" if value is None else str(value)


if __name__ == "__main__":
    sys.exit(main())
