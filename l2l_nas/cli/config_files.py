"""Reads config files for Hydra: one that cannot be read is told by its place, as ten lines may stand for all memory."""

from __future__ import annotations

from pathlib import Path

import yaml
from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from l2l_nas.errors import StorageError, described
from l2l_nas.files import check_yaml


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's reader of files; it has that one's name, as Hydra takes no other one for files."""

    def load_config(self, config_path: str) -> ConfigResult:
        """See `ConfigSource.load_config`.

        Raises:
            StorageError: it is no YAML, or see `check_yaml`.
        """
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.exists():
            check_yaml(path)
        try:
            return super().load_config(config_path)
        except UnicodeDecodeError as error:
            raise StorageError(f"{path}: not a text in UTF-8 ({error.reason})") from None
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
            place = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
            reason = getattr(error, "problem", None) or getattr(error, "reason", None) or described(error)
            raise StorageError(f"{path}{place}: not YAML: {reason}") from None


def read_checked_files() -> None:
    """From now on, Hydra reads files in this way."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
