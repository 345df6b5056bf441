"""What the sweepers of `-m` share: they hand jobs to whichever launcher is chosen, and tell how far they are."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from l2l_nas.cli.jobs import Ask, Job, Outcome, policy_of
from l2l_nas.cli.names import no_effect
from l2l_nas.errors import SettingError, StorageError, one_line, without_passwords_in
from l2l_nas.files import make_folder, remove_leftovers, write_atomically
from l2l_nas.runs.build import locked
from l2l_nas.runs.inherit import SWEEP_CONFIG, resume_sweep
from l2l_nas.runs.progress import time_to_go
from l2l_nas.runs.settings import COMMANDS
from l2l_nas.runs.terminal import open_terminal

# the study of a sweep that a sampler leads, in the sweep's folder
SWEEP_FILE = "sweep.db"
_WAIT_SECONDS = 0.2


class BaseSweeper(Sweeper):
    """A sweeper for any launcher.

    Args:
        jobs: runs at once, where the launcher can; 0 for all.
        params: what is swept, if a config file says it; the command line comes after it.
    """

    def __init__(self, *, jobs: int, params: Mapping[str, Any]) -> None:
        self.jobs = jobs
        self.params = dict(params)
        self.console = open_terminal()
        self.hydra_context: HydraContext
        self.config: DictConfig
        self.launcher: Launcher

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        self.hydra_context = hydra_context
        self.config = config
        self.launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    @property
    def root(self) -> Path:
        """The sweep's folder; each run has one below it."""
        return Path(self.config.hydra.sweep.dir)

    def parse(self, arguments: Sequence[str]) -> list[Override]:
        """Overrides by setting; of several for one, the last."""
        subdir = OmegaConf.to_container(self.config.hydra.sweep, resolve=False)["subdir"]  # type: ignore[index,call-overload]
        if subdir not in ("${hydra.job.num}", "${hydra:job.num}"):
            raise no_effect("hydra.sweep.subdir")
        if self.jobs < 0:
            raise SettingError(f"hydra.sweeper.jobs must be at least 0, got {self.jobs}")
        words = [*(f"{name}={value}" for name, value in self.params.items()), *arguments]
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        return list({override.key_or_group: override for override in parser.parse_overrides(words)}.values())

    def compose(self, overrides: Sequence[str]) -> DictConfig:
        """The configuration of a run; one that cannot be composed is refused before anything is written."""
        return self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))

    def begin(self) -> None:
        """Make the folder, and write what Hydra's own sweeper writes, without passwords."""
        make_folder(self.root)
        remove_leftovers(self.root)
        content = without_passwords_in(OmegaConf.to_container(self.config, resolve=False))
        write_atomically(self.root / SWEEP_CONFIG, OmegaConf.to_yaml(OmegaConf.create(content)))

    def launch(self, ask: Ask, done: Callable[[Job, str], None], meter: Meter) -> list[list[JobReturn]]:
        """Run all jobs; exits with 130 when stopped.

        Args:
            ask: gives the next job.
            done: told of each that is over: with what went wrong, or with nothing.
            meter: counts them.

        Returns:
            What Hydra's own sweeper returns: of each batch, what each job returned. All jobs are one batch.
        """
        returned: dict[int, JobReturn] = {}

        def over(job: Job, outcome: Outcome) -> None:
            if outcome.returned is not None:
                returned[job.number] = outcome.returned
            done(job, outcome.error)

        try:
            policy_of(str(self.config.hydra.launcher._target_), jobs=self.jobs).run(self.launcher, ask, over)
        except KeyboardInterrupt:
            said = f"stopped after {meter.done} of {meter.total} runs"
            command = str(self.config.hydra.job.name)
            again = f". Go on with: {resume_sweep(command, self.root)}" if command in COMMANDS else ""
            self.console.print(said + again, soft_wrap=True)
            sys.exit(130)
        return [[returned[number] for number in sorted(returned)]]

    def wait_for(self, folder: Path) -> None:
        """Until no process is at work in a run's folder: one of its own outlives a sweep that is killed."""
        said = False
        while True:
            try:
                with locked(folder):
                    return
            except StorageError as error:
                if error.__cause__ is not None:
                    return  # it cannot be looked into, as the run will say
                if not said:
                    self.console.print(
                        f"{folder}: still running in a process of its own; waiting for it", soft_wrap=True
                    )
                said = True
                time.sleep(_WAIT_SECONDS)

    def resume_word(self) -> str:
        """Makes a run go on in its own folder; one that has none is started."""
        escaped = str(self.root).replace("\\", "\\\\").replace("'", "\\'")
        return f"resume='{escaped}'"

    def remove_empty(self) -> None:
        """A sweep of which every run was refused leaves nothing of what Hydra wrote."""
        with contextlib.suppress(OSError):
            if [path.name for path in self.root.iterdir()] == [SWEEP_CONFIG]:
                (self.root / SWEEP_CONFIG).unlink()
                self.root.rmdir()


class Meter:
    """How many runs are done, and how long the others will take.

    Args:
        total: runs in all.
        done: those of before.
    """

    def __init__(self, total: int, *, done: int = 0) -> None:
        self.total = total
        self.done = done
        self._begun = self._before = done
        self._started = time.monotonic()

    def begin(self) -> str:
        """A run begins: which of how many, and when all will be done."""
        self._begun += 1
        return f"{self._begun} of {self.total}, {self._eta()}"

    def _eta(self) -> str:
        done = self.done - self._before
        return time_to_go((time.monotonic() - self._started) / done * (self.total - self.done) if done else None)


def report_failure(folder: Path, error: str) -> None:
    """One line about a run that failed."""
    if error:
        print(f"error: {one_line(f'{folder}: {error}')}", file=sys.stderr)
