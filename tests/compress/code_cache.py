"""Where `transformers` keeps the code that comes with folders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import transformers


def use_code_cache(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Keep it there, and forget the package and the path of another folder, where its modules would be looked for."""
    patch.setattr(sys, "path", [one for one in sys.path if not Path(one, "transformers_modules").exists()])
    for name in [name for name in sys.modules if name.split(".")[0] == "transformers_modules"]:
        patch.delitem(sys.modules, name)
    patch.setattr(transformers.dynamic_module_utils, "HF_MODULES_CACHE", str(folder))
