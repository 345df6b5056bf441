"""Hydra's configs that are made of the settings: a schema for each command, and a config group for each choice.

Something of the user's own (`sampler=FILE.py:NAME`, `data=FILE.npz`) becomes a choice of its group for the time of the
command, so that it is written, swept and overridden as every other choice is.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, ValueType
from hydra.plugins.config_source import ConfigResult
from omegaconf import DictConfig, OmegaConf

from l2l_nas.errors import SettingError, StorageError
from l2l_nas.files import check_yaml
from l2l_nas.plugins import is_named
from l2l_nas.runs.choice_settings import CHOICES
from l2l_nas.runs.groups import GROUPS, NAMES, arguments
from l2l_nas.runs.settings import COMMANDS


@functools.cache
def register(command: str) -> None:
    """Store the schema of a command, and the choices of its groups, once: no command line changes them."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
    store = ConfigStore.instance()
    store.store(name=f"{command}_schema", node=node_of(COMMANDS[command]))
    for group, known in CHOICES.items():
        for name in known:
            store.store(group=group, name=name, node={"name": name, **arguments(group, name)})
    store.store(group="callbacks", name="none", node={})


def node_of(schema: type) -> DictConfig:
    """A dataclass as a config that overrides may change: Hydra takes frozen ones for constants.

    Names below a dict, such as arguments of a pool, no schema knows: they are open.
    """
    node: DictConfig = OmegaConf.structured(schema)
    _open(node)
    return node


def _open(node: DictConfig) -> None:
    OmegaConf.set_readonly(node, False)
    if OmegaConf.get_type(node) is dict:
        OmegaConf.set_struct(node, False)
    for name in node:
        if not OmegaConf.is_interpolation(node, str(name)) and isinstance(node[name], DictConfig):
            _open(node[name])


def with_own_choices(command: str, words: Sequence[str]) -> list[str]:
    """Words that Hydra understands, with what is the user's own in them stored as choices of its groups."""
    found = []
    for word in words:
        name, _, value = word.lstrip("+").partition("=")
        if name == "objectives" and "[" in value:
            word = word.replace("objectives=", "objectives.names=", 1)  # Hydra takes a list for that of choices
        elif name in GROUPS.get(command, ()):
            word = word.lstrip("+")  # `experiment` and the others are in the defaults list, as few know
            labels: dict[str, str] = {}
            for own in named_choices(*OverridesParser.create().parse_overrides([word])):
                if not isinstance(own, str):
                    raise SettingError(f"'{word}': {name} is chosen by a name; --help lists them")
                if is_named(own) or (name == "data" and own.endswith(".npz")):
                    _store(name, own, labels)
        found.append(word)
    return found


def named_choices(override: Override) -> Iterator[Any]:
    """What an override chooses, or sweeps over: texts, unless somebody wrote something else."""
    if not override.is_sweep_override():
        value = override.value()
        yield from value if isinstance(value, list) else [value]
    elif override.value_type != ValueType.GLOB_CHOICE_SWEEP and override.is_choice_sweep():
        for one in override.sweep_iterator():
            yield from (getattr(each, "text", each) for each in (one if isinstance(one, list) else [one]))  # quoted


def _store(group: str, own: str, labels: dict[str, str]) -> None:
    """Make it a choice; of callbacks each has a label, the name behind the colon."""
    node: dict[str, Any] = {}
    if group in NAMES:
        node = {NAMES[group]: own}
    elif group == "callbacks":
        label = re.sub(r"\W", "_", own.rpartition(":")[2])
        while labels.setdefault(label, own) != own:
            label += "_"
        node = {label: {"name": own}}
    folder, _, name = own.rpartition("/")
    place = "/".join([group, *(part for part in folder.split("/") if part)])
    ConfigStore.instance().store(group=place, name=name, node=node, package=group)


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's reader of files; it has that one's name, as Hydra takes no other one for files."""

    def load_config(self, config_path: str) -> ConfigResult:
        """See `ConfigSource.load_config`.

        Raises:
            StorageError: it is no text, or see `check_yaml`.
        """
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.exists():
            check_yaml(path)
        try:
            return super().load_config(config_path)
        except UnicodeDecodeError as error:
            raise StorageError(f"{path}: not a text in UTF-8 ({error.reason})") from None
