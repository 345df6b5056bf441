"""`-m hydra/sweeper=l2l`: runs whose settings a sampler chooses; trial N of the study in `sweep.log` is run N.

Runs are launched in batches, as Hydra's own sweepers launch them. A launcher returns when all runs of a batch are over,
or raises when one of them took its process down: that ends the sweep, and what was running goes on with a resume.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

from l2l_nas.cli.sweep import SWEEP_FILE, SweepCallback, compose_all, outcome, values_of, words_of
from l2l_nas.cost.table import UNITS
from l2l_nas.errors import L2LError, SettingError, did_you_mean, without_passwords_in
from l2l_nas.files import write_atomically
from l2l_nas.nas.objectives import Goal, parse_goals
from l2l_nas.nas.samplers.registry import build_sampler
from l2l_nas.nas.sweep_study import SWEEP_SAMPLERS, SweepStudy, between, ends_of, listed
from l2l_nas.plugins import is_named
from l2l_nas.runs.fields import check_bounds, settings, value_of
from l2l_nas.runs.folder import SWEEP_CONFIG
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.settings import SearchConf, SweeperConf

# numbers that are decided where nobody says them
_WHOLE = {name for name, default, _ in settings(SearchConf) if default is None}


class SamplerSweeper(Sweeper):
    """Runs led by a sampler. A run that fails is recorded so and does not end the sweep.

    Args:
        conf: see `SweeperConf`.
    """

    def __init__(self, **conf: Any) -> None:
        self._conf = SweeperConf(**conf)
        self._config: DictConfig
        self._launcher: Launcher

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """See `Sweeper.setup`."""
        self._config = config
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> list[Sequence[JobReturn]]:
        """See `Sweeper.sweep`: of each batch what its launcher returned."""
        sweep = SweepCallback.current
        if sweep is None:  # Hydra offers it to any program
            raise SettingError("hydra/sweeper=l2l leads searches of l2l_nas alone; take another sweeper")
        study = self._begin(sweep)
        returned: list[Sequence[JobReturn]] = []
        while batch := study.ask(self._conf.jobs):
            sweep.take_runs({number: words_of(sweep.words, values) for number, values in study.runs.items()})
            # launchers count from a number on; a folder has the trial's own
            words = [[*sweep.runs[number], f"hydra.sweep.subdir={number}"] for number in batch]
            returned.append(self._launcher.launch(words, initial_job_idx=batch[0]))
            for number in batch:
                values, error = outcome(sweep.root / str(number), sweep.names)
                study.tell(number, None if error else [values[name] for name in sweep.names])
        sweep.best = study.best
        sweep.take_runs({number: words_of(sweep.words, values) for number, values in study.runs.items()})
        if len(sweep.runs) < self._conf.trials:
            print(f"fewer than the {self._conf.trials} runs asked for: the sampler proposes no others")
        return returned

    def _begin(self, sweep: SweepCallback) -> SweepStudy:
        """Refuse what makes no sense; then the folder and the study are there."""
        conf = self._conf
        check_bounds(conf, "hydra.sweeper.")
        if conf.sampler not in SWEEP_SAMPLERS and not is_named(conf.sampler):
            hint = did_you_mean(conf.sampler, SWEEP_SAMPLERS)
            raise SettingError(f"hydra.sweeper.sampler: no sampler '{conf.sampler}' for sweeps{hint}")
        shared = {name: one for name, one in sweep.words.items() if name not in sweep.swept}
        (base,) = compose_all(self._config, shared, {})
        distributions = {name: _distribution_of(override, base) for name, override in sweep.swept.items()}
        if not distributions:
            raise SettingError("nothing to sweep: give a setting values or a range, as seed=0,1 or seed=range(0,9)")
        ends = {name: ends_of(one) for name, one in distributions.items()}
        goals = _goals(compose_all(self._config, sweep.words, ends), conf.objectives)
        sweep.names = [goal.name for goal in goals]
        # refused before anything is written; the study makes its own, which depends on how many runs there were
        build_sampler(conf.sampler, seed=conf.seed, num_trials=conf.trials, num_finished=0)
        sweep.take_folder()
        content = without_passwords_in(OmegaConf.to_container(self._config, resolve=False))
        write_atomically(sweep.root / SWEEP_CONFIG, OmegaConf.to_yaml(OmegaConf.create(content)))
        path = sweep.root / SWEEP_FILE
        study = SweepStudy(path, distributions, goals, sampler=conf.sampler, seed=conf.seed, num_runs=conf.trials)
        print(f"{study.num_finished} of {conf.trials} runs are finished; study in {path}", flush=True)
        return study


def _distribution_of(override: Override, base: SearchConf) -> Any:
    """What a sampler draws a swept setting from.

    Raises:
        SettingError: something that cannot be swept, or not so.
    """
    name, value = override.key_or_group, override.value()
    if not isinstance(value, RangeSweep | IntervalSweep):
        return listed(values_of(override))
    if unknown := set(value.tags) - {"log"}:
        raise SettingError(f"{name}: no tag '{min(unknown)}'; there is only log")
    is_log = "log" in value.tags
    if isinstance(value, RangeSweep):
        numbers = sorted(map(float, values_of(override)))
        is_whole = all(isinstance(part, int) for part in (value.start, value.stop, value.step))
        return between(name, numbers[0], numbers[-1], is_whole=is_whole, is_log=is_log, step=abs(float(value.step)))
    is_whole = isinstance(value_of(asdict(base), name), int) or isinstance(value.start, int) or name in _WHOLE
    return between(name, float(value.start or 0), float(value.end or 0), is_whole=is_whole, is_log=is_log)


def _goals(confs: Sequence[SearchConf], names: Sequence[str]) -> tuple[Goal, ...]:
    """What is optimised, in the direction that the runs' own task gives it.

    Args:
        confs: settings of runs, of which one has a pool that can be built: runs may fail.
        names: of the objectives; by default the first one of the runs.
    """
    refused: list[L2LError] = []
    for conf in confs:
        try:
            metrics = load_problem(conf.space.pool, conf.space.args, **asdict(conf.data)).measured_task.metrics
        except L2LError as error:
            refused.append(error)
            continue
        if not names:
            return parse_goals(conf.objectives.names[:1], metrics)
        return parse_goals(names, {**metrics, "seconds": False}, tuple(UNITS), setting="hydra.sweeper.objectives")
    raise refused[0]
