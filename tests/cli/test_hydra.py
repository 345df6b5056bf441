"""Our sweeper as a plugin that Hydra finds."""

from __future__ import annotations

import subprocess
import sys

from hydra.core.plugins import Plugins

from tests.cli.runs import environment


def test_hydra_finds_our_sweeper_by_itself_and_it_loads_nothing():
    assert "SamplerSweeper" in {plugin.__name__ for plugin in Plugins.instance().discover()}
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance();"
        "print([name for name in ('torch', 'optuna', 'l2l_nas.cli.sampled') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
