"""A search, composed of its settings: everything about it is written into a folder, and it goes on after a stop."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import SettingError
from l2l_nas.nas.callback import Callbacks
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
from l2l_nas.runs.earlier_runs import write_tasks
from l2l_nas.runs.locate import compare_published
from l2l_nas.runs.log import Log
from l2l_nas.runs.numbers import budget_of, check_total
from l2l_nas.runs.origin import describe_data, hardware, versions, write_trace
from l2l_nas.runs.output import Output, finalist_cache, greet
from l2l_nas.runs.page import LivePage
from l2l_nas.runs.progress import Display
from l2l_nas.runs.ranks import RunRanks, refuse_on_ranks
from l2l_nas.runs.resume import finished_search, search_start
from l2l_nas.runs.run import Run
from l2l_nas.runs.search_parts import SearchParts, build_search_parts
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.workers import check_workers, engine_name, worker_executor
from l2l_nas.space.shapes import check_shapes

# phases that keep nothing when they are stopped
_ANEW: Mapping[type[Phase], str] = {Finalists: "the finalists begin anew", RandomSearch: "random search begins anew"}


class SearchRun(Run):
    """Everything that can be refused is built here, before anything is written.

    Args:
        conf: the settings that were given; those of a folder that it goes on in are taken over.
        console: where it tells how far it is.
        files: of whoever started it, written beside the settings.
        resume_command: the command, or the call, that resumes this run.
        ranks: that do it together; None: this process alone.
    """

    conf: SearchConf
    parts: SearchParts
    _study: Study
    _page: LivePage
    _best: Finalist

    def __init__(
        self,
        conf: SearchConf,
        console: Console,
        *,
        resume_command: str,
        files: Mapping[str, str] | None = None,
        ranks: RunRanks | None = None,
    ) -> None:
        super().__init__(search_start(conf, files=files), console, resume_command=resume_command, ranks=ranks)
        conf = self.start.conf  # type: ignore[assignment]
        budget_of(conf)
        check_total(conf)
        check_sampler(conf.chosen("sampler"))
        refuse_on_ranks(conf, self.ranks.size)
        check_workers(conf)
        self.parts = build_search_parts(conf, self.ranks)
        self.conf = self.parts.conf
        self._compared = compare_published(self.parts.problem.pool)
        self._output = Output(self.folder, self.parts, console)
        self._workers: FuturesExecutor | None = None
        self._search: Search | None = None
        self._goes_on = False  # with a study that there is

    def _take_on(self, opened: contextlib.ExitStack) -> None:
        quiet_optuna()
        if engine_name(self.conf) != "inline":  # a cluster may refuse
            self._workers = opened.enter_context(worker_executor(self.parts))

    def _open(self) -> tuple[Log, float]:
        # one killed before it had a study is started
        self._goes_on = bool(self.conf.resume) and self.folder.is_begun
        if not self._goes_on:
            self._write_settings()  # a folder knows its settings from the first moment on
            if self.parts.learned is not None:  # before there is a trial that follows from it
                write_tasks(self.folder, self.parts.learned)
        self._study = study = Study(
            StudyFile(self.folder.study, resume=self._goes_on),
            pool=self.parts.problem.pool,
            goals=self.goals,
            sampler=self.sampler,
            seed=self.conf.seed,
            num_trials=self.parts.budget.trials,
            data=self.parts.problem.data.digest,
        )
        done, asked = study.num_evaluated, self.parts.budget.trials
        if done > asked and "search.trials" in self.conf.explicit:
            raise SettingError(f"search.trials={asked}: {done} trials are already evaluated; ask for at least {done}")
        if self.conf.resume and self.start.is_new:
            line = f"{self.folder.root} holds no settings: those of this command count"
            self.console.print(line, soft_wrap=True)
        self._page = LivePage(self.folder.root, study, self.console)
        return study.log, seconds_of(study.log.events)

    def _display(self) -> Display:
        return Display(
            self.console,
            self._study.log,
            goals=self.goals,
            budget=self.parts.budget,
            workers=self.conf.search.workers,
            page=self._page,
            lead=self.ranks.lead,
            ledger=self._study.ledger,
        )

    def _restore(self, seen: Callbacks, display: Display) -> tuple[float, str] | None:
        self._search = Search(self._context(seen, display), self.parts.phases)
        if not self._goes_on:
            return None
        self._search.restore()
        study = self._study
        finished = finished_search(self.folder, self.conf, goal=self.goals[0].name, evaluated=study.num_evaluated)
        if finished is not None and study.log.events[-1]["event"] == "done":  # killed before it had its last page
            self._page.write(is_running=False)
        return finished

    def _context(self, seen: Callbacks, display: Display) -> SearchContext:
        parts, workers, study = self.parts, self._workers, self._study
        executor: SegmentExecutor
        if workers is None:
            executor = InlineExecutor(parts.evaluator, size=population_size(parts.server, parts.budget), poll=seen.poll)
        else:
            executor = workers
            workers.poll, workers.waiting, workers.lost = seen.poll, display.waiting, display.lost
            workers.counted = study.ledger.add
        return SearchContext(
            evaluator=parts.evaluator,
            weights=parts.weights,
            budget=parts.budget,
            goals=parts.goals,
            constraints=parts.constraints,
            costs=parts.costs,
            early_stop=parts.early_stop,
            paths=parts.paths,
            seed=parts.conf.seed,
            enqueued=parts.enqueued,
            earlier_tasks=() if parts.learned is None else parts.learned.tasks,
            executor=executor,
            study=study,
            checkpoint=Checkpoint(self.folder.weights),
            callback=seen,
            cache=finalist_cache(parts, self.folder, self.console),
        )

    def _begin(self, log: Log) -> None:
        parts, study = self.parts, self._study
        self.search.refuse_uncounted()
        self._write_settings()
        about = {"versions": versions(), "device": hardware(parts.relay.device.torch_device)}
        about["data"] = describe_data(parts.problem.data)
        log.write("start", resume=self._goes_on, trials=len(study.records), **about)
        log.write("space", **space_summary(parts.problem.pool, check_shapes(parts.problem.pool)).to_json())
        if parts.learned is not None:
            log.write("learned_from", **parts.learned.summary.to_json())
        greet(self.console, parts, sampler=self.sampler, folder=self.folder.root)
        self._greet_ranks(self._compared)
        if self._goes_on:
            done, asked = study.num_evaluated, self.conf.search.trials
            self.console.print(f"resumed with {done} of {asked} trials evaluated")
        if self.start.left_out:
            self.console.print(self.start.left_out, soft_wrap=True)

    def _work(self, seen: Callbacks) -> None:
        self._best = self.search.run()
        if (baseline := self.search.context.baseline) is not None:
            self._study.log.write("baseline", **baseline.entry())

    def _end(self, log: Log) -> float:
        best, context = self._best, self.search.context
        self._output.write_weights(context, best)
        files = self._output.write(context, best, seconds=self.seconds)
        if self.parts.trace is not None:
            write_trace(self.folder, self.parts.trace, self.console)
        log.write("done", best=best.record.number)
        self._page.write(is_running=False)
        self._output.show(context, best, files, self._page, seconds=self.seconds - self._before_s)
        return best.values[self.goals[0].name]

    def _tell_stop(self, log: Log, *, at_once: bool) -> None:
        """See `Run`; if a callback asked, what was found so far is written."""
        best, records, search = None, self._study.records, self._search
        if search is not None and self.stopped_by is not None:
            best = search.context.best_so_far()
            if best is not None:
                self._output.write_weights(search.context, best)
                self._output.write(search.context, best, seconds=self.seconds)
        by = {"by": type(self.stopped_by).__name__} if self.stopped_by is not None else {}
        log.write("stopped", **counts(records), **by)
        self._page.write(is_running=False)
        at = f" after {num_evaluated(records)} of {self.parts.budget.trials} trials, all saved"
        if search is not None:
            before = self._shown.how_far_before_trials if self._shown is not None else ""
            at = f" after {before}" if before else at
            at += next((f"; {words}" for kind, words in _ANEW.items() if isinstance(search.phase, kind)), "")
        at += f"; the best of them is in {self.folder.result}" if best is not None else ""
        self._say_stopped(at)

    def _tell_failure(self, log: Log, reason: str) -> None:
        super()._tell_failure(log, reason)
        self._page.write(is_running=False)

    @property
    def search(self) -> Search:
        """What runs the phases, once the study is open."""
        assert self._search is not None
        return self._search

    @property
    def sampler(self) -> Any:
        """The caller's own, or the name of one with its arguments."""
        if self.conf.strategy["name"] == RANDOM and "strategy" not in self.conf.objects:
            return "random"
        return self.conf.chosen("sampler")

    @property
    def goals(self) -> tuple[Goal, ...]:
        """What is searched for."""
        return self.parts.goals
