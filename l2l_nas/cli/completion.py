"""Completion in a shell: commands, and the names of their settings. Nothing heavy is imported for it."""

from __future__ import annotations

from collections.abc import Sequence

from l2l_nas.runs.fields import settings
from l2l_nas.runs.groups import GROUPS, choices
from l2l_nas.runs.settings import COMMANDS

# file names where no setting fits, as behind run= and resume=; zsh: autoload -U bashcompinit && bashcompinit before it
BASH = """\
_l2l_nas() {
    local word="${COMP_WORDS[COMP_CWORD]}"
    COMPREPLY=($(compgen -W "$(l2l-nas --complete "${COMP_WORDS[@]:1:COMP_CWORD}")" -- "${word#=}"))
    if [[ "${COMPREPLY[0]}" == *= ]]; then compopt -o nospace 2>/dev/null; fi
}
complete -o default -F _l2l_nas l2l-nas
"""


def complete(words: Sequence[str]) -> list[str]:
    """What may stand where the last of these words is begun."""
    if len(words) <= 1:
        return [*COMMANDS, "--help", "--version"]
    command = words[0]
    if command not in COMMANDS:
        return []
    if "=" in words[-2:]:  # bash takes NAME=VALUE apart
        group = words[-3 if words[-2] == "=" else -2]
        return list(choices(group)) if group in GROUPS.get(command, ()) else []
    names = list(GROUPS.get(command, ()))
    names += [name for name, _, _ in settings(COMMANDS[command])]
    if "-m" in words or "--multirun" in words:
        names.append("hydra/launcher")
    return ["--help", "-m", *(f"{name}=" for name in dict.fromkeys(names))]
