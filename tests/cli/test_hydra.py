"""Our sweeper under Hydra's own conformance suite, as a plugin that another application of Hydra's names."""

from __future__ import annotations

import subprocess
import sys
import warnings

import pytest
from hydra import version
from hydra.core.plugins import Plugins
from hydra.test_utils.launcher_common_tests import LauncherTestSuite

from tests.cli.runs import environment

SWEEPER = "hydra/sweeper=combinations"


@pytest.fixture
def old_defaults():
    """A job changes into its folder, as Hydra's suite expects: so it was until a command asks for newer defaults."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        version.setbase("1.1")
        yield
    version.setbase("1.3")


# Hydra tests its own defaults of versions before 1.2 with it, and warns of them
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.usefixtures("old_defaults")
@pytest.mark.parametrize(("launcher_name", "overrides"), [("basic", [SWEEPER])])
class TestLauncherSuite(LauncherTestSuite):
    """What every launcher does under Hydra's sweeper it does under ours."""

    # ours refuses it as well, in words of its own
    test_not_sweeping_hydra_overrides = None


def test_hydra_finds_our_sweepers_by_itself_and_they_load_nothing():
    names = {plugin.__name__ for plugin in Plugins.instance().discover()}
    assert {"CombinationsSweeper", "SamplerSweeper"} <= names
    code = (
        "import sys; from hydra.core.plugins import Plugins; Plugins.instance();"
        "print([name for name in ('torch', 'optuna', 'l2l_nas.cli.combinations') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
