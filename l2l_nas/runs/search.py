"""A search, composed of its settings: everything about it is written into a folder, and it goes on after a stop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict
from typing import Any

from rich.console import Console

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import SettingError, StorageError, one_line
from l2l_nas.files import make_folder, write_yaml
from l2l_nas.nas.callback import Callback, Callbacks, Stopped, build_callbacks
from l2l_nas.nas.evaluation.futures import FuturesExecutor
from l2l_nas.nas.evaluation.inline import InlineExecutor, population_size
from l2l_nas.nas.evaluation.segment import SegmentExecutor
from l2l_nas.nas.objectives import Goal, counts, num_evaluated
from l2l_nas.nas.samplers.registry import check_sampler
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.default import RANDOM, Search
from l2l_nas.nas.strategies.finalist_phase import Finalists
from l2l_nas.nas.strategies.finalists import Finalist
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.nas.strategies.random_search import RandomSearch
from l2l_nas.nas.study.journal import StudyFile
from l2l_nas.nas.study.study import Study, quiet_optuna
from l2l_nas.report.card import space_summary
from l2l_nas.report.history import seconds_of
from l2l_nas.runs.build import at_work
from l2l_nas.runs.components import build_components
from l2l_nas.runs.learn_from import write_tasks
from l2l_nas.runs.locate import compare_published
from l2l_nas.runs.mesh import left_whole
from l2l_nas.runs.numbers import budget_of, check_total
from l2l_nas.runs.origin import describe_data, hardware, versions, write_trace
from l2l_nas.runs.output import Output, finalist_cache, greet
from l2l_nas.runs.page import LivePage
from l2l_nas.runs.progress import Display
from l2l_nas.runs.ranks import RunRanks, greet_ranks, refuse_on_ranks
from l2l_nas.runs.resume import finished_search, search_start
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.shared import Objects
from l2l_nas.runs.terminal import explain
from l2l_nas.runs.workers import check_workers, engine_name, worker_executor
from l2l_nas.space.shapes import check_shapes

# phases that keep nothing when they are stopped
_ANEW: Mapping[type[Phase], str] = {Finalists: "the finalists begin anew", RandomSearch: "random search begins anew"}


class SearchRun:
    """Everything that can be refused is built here, before anything is written.

    Args:
        conf: the settings that were given; those of a folder that it goes on in are taken over.
        console: where it tells how far it is.
        explicit: names of settings that somebody named; one without effect produces a warning.
        objects: in place of what the settings name.
        files: of whoever started it, written beside the settings.
        resume_command: the command, or the call, that resumes this run.
        ranks: that do it together; None: this process alone.
    """

    def __init__(
        self,
        conf: SearchConf,
        console: Console,
        *,
        explicit: Collection[str],
        resume_command: str,
        objects: Objects | None = None,
        files: Mapping[str, str] | None = None,
        ranks: RunRanks | None = None,
    ) -> None:
        self.ranks = ranks or RunRanks()
        self.console, self.explicit, self.resume_command = console, explicit, resume_command
        self.objects = objects = objects or Objects()
        self.start = search_start(conf, explicit=explicit, files=files)
        conf, self.folder = self.start.conf, self.start.folder
        self.callbacks = build_callbacks([*conf.callbacks.values(), *objects.callbacks])
        budget_of(conf)
        check_total(conf)
        check_sampler(conf.sampler if objects.sampler is None else objects.sampler)
        refuse_on_ranks(conf, self.ranks.consensus.size)
        check_workers(conf, objects, explicit=explicit)
        self.components = build_components(conf, objects, explicit=explicit, ranks=self.ranks)
        self.conf = self.components.conf
        self.compared = compare_published(self.components.problem.pool)
        self.output = Output(self.folder, self.components, console)
        self._seen: Callbacks | None = None
        self._display: Display | None = None

    def go(self) -> float:
        """Search, and write what was found; returns the best value of the first goal."""
        started = time.monotonic()
        self.start.refuse_begun(self.resume_command)
        quiet_optuna()
        with contextlib.ExitStack() as opened:
            workers = None
            if engine_name(self.conf, self.objects) != "inline":  # a cluster may refuse: before anything is written
                workers = opened.enter_context(worker_executor(self.components, self.objects))
            make_folder(self.folder.root)
            server, lead = self.components.server, self.ranks.lead
            opened.enter_context(at_work(self.folder, server, self.conf.relay, lead=lead))
            self.start.refuse_begun(self.resume_command)
            # one killed before it had a study is started
            resume = bool(self.conf.resume) and self.folder.is_begun
            return self._go(started, resume=resume, workers=workers)

    def _go(self, started: float, *, resume: bool, workers: FuturesExecutor | None) -> float:
        study: Study | None = None
        search: Search | None = None
        page: LivePage | None = None
        before = 0.0
        try:
            is_bare = self.conf.resume and self.start.is_new
            if not resume:
                self._write_settings()  # a folder knows its settings from the first moment on
            if not resume and self.components.learned is not None:  # before there is a trial that follows from it
                write_tasks(self.folder, self.components.learned)
            study = self._study(resume=resume)
            before = seconds_of(study.log.events)
            page = LivePage(self.folder.root, study, self.console)
            self._refuse_fewer_trials(study)
            if is_bare:
                self.console.print(f"{self.folder.root} holds no settings: those of this command count", soft_wrap=True)
            with Display(
                self.console,
                study.log,
                goals=self.goals,
                budget=self.components.search.budget,
                workers=self.conf.search.workers,
                page=page,
                lead=self.ranks.lead,
                ledger=study.ledger,
            ) as self._display:
                search = self._search(study, self._display, workers)
                if resume:
                    search.restore()
                value = self._finished(study) if resume else None
                if value is not None:
                    return value
                search.refuse_uncounted()
                self._write_settings()
                self._begin(study, resume=resume)
                best = search.run()
                if search.context.baseline is not None:
                    study.log.write("baseline", **search.context.baseline.entry())
            self._end(search.context, best, page, before=before, seconds=time.monotonic() - started)
        except (Stopped, KeyboardInterrupt):  # the latter by a second Ctrl-C, or before or after the search
            self._stop(study, search, page, seconds=before + time.monotonic() - started)
            # a sweep goes on after a run that a callback stopped
            by = self.stopped_by
            raise Stopped(*([] if by is None else [f"by callback {type(by).__name__}"])) from None
        except Exception as error:
            # what is refused before leaves the folder as it is
            if study is not None and page is not None and study.log.is_begun:
                with contextlib.suppress(StorageError):
                    study.log.write("failed", reason=one_line(explain(error)))
                    page.write(is_running=False)
            raise
        finally:
            if self._seen is not None:
                self._seen.end()
            self.components.problem.data.close()
        return best.values[self.goals[0].name]

    def _finished(self, study: Study) -> float | None:
        """The best value of a run that is over, which is told; None of another."""
        over = finished_search(self.folder, self.conf, goal=self.goals[0].name, evaluated=study.num_evaluated)
        if over is None:
            return None
        value, line = over
        self.console.print(line, markup=False, soft_wrap=True)
        return value

    def _refuse_fewer_trials(self, study: Study) -> None:
        """Refuse fewer trials than there are. Raises SettingError."""
        done, asked = study.num_evaluated, self.components.search.budget.trials
        if done > asked and "search.trials" in self.explicit:
            raise SettingError(f"search.trials={asked}: {done} trials are already evaluated; ask for at least {done}")

    def _begin(self, study: Study, *, resume: bool) -> None:
        """Write what a search is of, and tell it."""
        components, training, log = self.components, self.components.training, study.log
        about = {"versions": versions(), "device": hardware(training.relay.device.torch_device)}
        about["data"] = describe_data(training.problem.data)
        log.write("start", resume=resume, trials=len(study.records), **about)
        log.write("space", **space_summary(training.problem.pool, check_shapes(training.problem.pool)).to_json())
        if components.learned is not None:
            log.write("learned_from", **components.learned.summary.to_json())
        greet(self.console, components, sampler=self.sampler, folder=self.folder.root, explicit=self.explicit)
        if self.compared:
            self.console.print(self.compared, soft_wrap=True)
        greet_ranks(self.console, components.server, self.conf, samples=len(training.problem.data.train))
        if whole := left_whole(components.server):
            self.console.print(f"whole on every rank: {', '.join(whole)}", soft_wrap=True)
        evaluated = study.num_evaluated
        if resume:
            self.console.print(f"resumed with {evaluated} of {self.conf.search.trials} trials evaluated")
        if self.start.left_out:
            self.console.print(self.start.left_out, soft_wrap=True)

    def _end(self, search: SearchContext, best: Finalist, page: LivePage, *, before: float, seconds: float) -> None:
        """Write what was found, and show it.

        Args:
            before: seconds of earlier sessions.
            seconds: of this one.
        """
        self.output.write_weights(search, best)
        files = self.output.write(search, best, seconds=before + seconds)
        if self.components.training.trace is not None:
            write_trace(self.folder, self.components.training.trace, self.console)
        search.study.log.write("done", best=best.record.number)
        page.write(is_running=False)
        self.output.show(search, best, files, page, seconds=seconds)

    def _stop(self, study: Study | None, search: Search | None, page: LivePage | None, *, seconds: float) -> None:
        """Tell how far a search came that was asked to stop; if a callback asked, write what it has found so far."""
        best, by = None, type(self.stopped_by).__name__ if self.stopped_by is not None else ""
        if search is not None and by:
            best = search.context.best_so_far()
            if best is not None:
                self.output.write_weights(search.context, best)
                self.output.write(search.context, best, seconds=seconds)
        if study is not None and page is not None:
            study.log.write("stopped", **counts(study.records), **({"by": by} if by else {}))
            page.write(is_running=False)
        trials = self.components.search.budget.trials
        at, phase = f" after {num_evaluated(study.records)} of {trials} trials, all saved" if study else "", None
        if search is not None:
            phase, before = search.phase, self._display.how_far_before_trials if self._display is not None else ""
            at = f" after {before}" if before else at
        at += next((f"; {words}" for kind, words in _ANEW.items() if isinstance(phase, kind)), "")
        at += f"; the best of them is in {self.folder.result}" if best is not None else ""
        who = f" by callback {by}" if by else ""
        self.console.print(f"stopped{who}{at}. Go on with: {self.resume_command}", soft_wrap=True, markup=False)

    @property
    def stopped_by(self) -> Callback | None:
        """The user's callback that asked the search to stop; None if none did."""
        return self._seen.stopped_by if self._seen is not None else None

    def _write_settings(self) -> None:
        if self.start.files:  # first, as a sweep knows its runs by them
            self.folder.write_hydra(self.start.files)
        write_yaml(self.folder.config, asdict(self.conf))

    @property
    def sampler(self) -> Any:
        """The caller's own, or the name of one with its arguments."""
        if self.conf.strategy["name"] == RANDOM and self.objects.strategy is None:
            return "random"
        if self.objects.sampler is not None:
            return self.objects.sampler
        return self.conf.sampler

    def _study(self, *, resume: bool) -> Study:
        problem = self.components.problem
        return Study(
            StudyFile(self.folder.study, resume=resume),
            pool=problem.pool,
            goals=self.goals,
            sampler=self.sampler,
            seed=self.conf.seed,
            num_trials=self.components.search.budget.trials,
            data=problem.data.digest,
        )

    def _search(self, study: Study, display: Display, workers: FuturesExecutor | None) -> Search:
        self._seen = seen = display.beside(self.callbacks)
        components = self.components
        server, parts = components.server, components.search
        executor: SegmentExecutor
        if workers is None:
            executor = InlineExecutor(parts.evaluator, size=population_size(server, parts.budget), poll=seen.poll)
        else:
            executor = workers
            workers.poll, workers.waiting, workers.lost = seen.poll, display.waiting, display.lost
            workers.counted = study.ledger.add
        cache = finalist_cache(self.conf, components, self.folder, self.console)
        context = SearchContext(
            **vars(parts),
            executor=executor,
            study=study,
            checkpoint=Checkpoint(self.folder.weights),
            callback=seen,
            cache=cache,
        )
        return Search(context, components.phases)

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What is searched for."""
        return self.components.search.goals
