"""Checks config files of the user's before Hydra reads them: ten lines of aliases can stand for all memory."""

from __future__ import annotations

from pathlib import Path

from hydra._internal.core_plugins import file_config_source
from hydra._internal.sources_registry import SourcesRegistry
from hydra.plugins.config_source import ConfigResult

from l2l_nas.files import check_yaml


class FileConfigSource(file_config_source.FileConfigSource):
    """Hydra's reader of files; it has that one's name, as Hydra takes no other one for files."""

    def load_config(self, config_path: str) -> ConfigResult:
        """See `ConfigSource.load_config`.

        Raises:
            StorageError: see `check_yaml`.
        """
        path = Path(self.path, self._normalize_file_name(config_path))
        if path.exists():
            check_yaml(path)
        return super().load_config(config_path)


def read_checked_files() -> None:
    """From now on, Hydra reads files in this way."""
    SourcesRegistry.instance().types[FileConfigSource.scheme()] = FileConfigSource
