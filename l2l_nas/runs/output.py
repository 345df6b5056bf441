"""What a search leaves when it is done: files in its folder, tables and lines on the terminal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.errors import L2LError, one_line
from l2l_nas.files import write_json
from l2l_nas.nas.objectives import State, counts, distinct, num_evaluated, pareto_front
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.finalists import Finalist, order, trained_front
from l2l_nas.nas.suspects import in_words, to_retire
from l2l_nas.report.card import card_of
from l2l_nas.report.charts import tables
from l2l_nas.report.network import Network, RandomBaseline, in_order
from l2l_nas.report.pictures import write_pictures
from l2l_nas.report.results import Results, only_finite
from l2l_nas.report.table import baseline_line, headline, terminal_table
from l2l_nas.report.text import counted, format_value
from l2l_nas.report.text_chart import charts_text
from l2l_nas.runs.components import Components
from l2l_nas.runs.export import export_or_warn
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.origin import NO_TEST, described, identity, versions, write_architecture
from l2l_nas.runs.page import LivePage
from l2l_nas.runs.progress import Log
from l2l_nas.runs.sweep_words import SWEEP_CONFIG
from l2l_nas.runs.terminal import say, warn
from l2l_nas.training.export import remove_export

_LATENCY_SECONDS = 5.0  # into which finalists are measured, best first


def _latencies(search: SearchContext) -> dict[str, Any]:
    """The latency of finalists in ms, by their trials; it is measured when nothing may depend on it any more."""
    found: dict[str, float] = {}
    end = time.monotonic() + _LATENCY_SECONDS
    for one in order(search.finalists, search.goals):
        if time.monotonic() >= end:
            break
        try:
            found[str(one.record.number)] = search.costs.value("latency_ms", one.record.architecture)
        except L2LError as error:  # a network that does not fit on the device as a whole
            return {"ms": found, "problem": one_line(str(error))}
    return {"ms": found}


@dataclass(frozen=True)
class Output:
    """Writes and shows what a search came to, whose study is at `place`."""

    folder: RunFolder
    components: Components
    console: Console
    place: str

    def write(self, search: SearchContext, best: Finalist, log: Log, *, seconds: float) -> list[tuple[str, str]]:
        """Weights and architecture of the best, the export, the result, the pictures; returns what to show of them."""
        log.write("phase", name="export", total=0, done=0)
        records, coverage = search.allowed(search.study.records), search.coverage
        architecture = best.record.architecture
        if best.server is not None:
            Checkpoint(self.folder.best).save(best.server, extra=identity(architecture.choices, best.values))
        else:
            Checkpoint(self.folder.best).remove()  # of a run that went on: another network's
        write_architecture(self.folder, self.components.problem.pool, architecture)
        exported = self._export(best)
        trials = [Finalist(r, search.costs_of(r)).entry() for r in pareto_front(records, search.goals)]
        front = [one.entry() for one in trained_front(search.finalists, search.goals)]
        write_json(
            self.folder.result,
            {
                "best": best.entry(),
                "finalists": [one.entry() for one in search.finalists],
                "given_up": [{"trial": number, "reason": reason} for number, reason in search.abandoned.items()],
                "pareto": front or trials,
                "trial_front": trials,
                "baseline": search.baseline.entry() if search.baseline else None,
                "trials": counts(records),
                "failed": [
                    {"trial": one.number, "architecture": list(one.architecture.choices), "reason": one.reason}
                    for one in records
                    if one.state is State.FAILED and not one.cached
                ],
                "coverage": coverage.to_json(),
                "objectives": [{"name": goal.name, "maximize": goal.maximize} for goal in search.goals],
                "data": described(self.components.problem.data),
                "seconds": round(seconds, 2),
                "versions": versions(),
                **search.results(),
            },
        )
        log.write("latency", **_latencies(search))
        log.write("phase", name="report", total=0, done=0)
        results = self._results(search, best)
        warmup = None if coverage.is_empty else {row: coverage.steps("warmup", row) for row in coverage.rows}
        pictures = write_pictures(self.folder.root, results, warmup=warmup)
        rows = [("result", str(self.folder.result))]
        rows += [("weights", str(self.folder.best))] if best.server is not None else []
        rows.append(("study", self.place))
        if exported:
            rows.append(("network", str(self.folder.export / "model.pt2")))
        return rows + [("picture", str(picture)) for picture in pictures]

    def _results(self, search: SearchContext, best: Finalist) -> Results:
        found = Network.from_json(best.entry())
        trained = [Network.from_json(one.entry()) for one in search.finalists]
        return Results(
            card_of(self.components.problem.pool, self.components.training.relay.shapes),
            tuple(search.goals),
            only_finite(search.allowed(search.study.records), search.goals),
            tuple([found, *in_order(trained, search.goals)] if found.is_trained else trained),
            found,
        )

    def show(
        self,
        search: SearchContext,
        best: Finalist,
        files: list[tuple[str, str]],
        page: LivePage,
        *,
        seconds: float,
    ) -> None:
        """Tables, charts, values of the best, and the places of files."""
        console, conf, problem = self.console, self.components.conf, self.components.problem
        records, results = search.study.records, self._results(search, best)
        trials = tables.best_table(results, metrics=problem.measured_task.metrics)
        shown = (
            f"{len(trials.rows)} of {len(distinct(results.records))} complete" if trials.rows else "no complete trial"
        )
        console.print(terminal_table(f"Best trials: {shown}", trials))
        if results.finalists:
            trained = tables.finalist_table(results, winner=best.record.number, is_narrow=True)
            networks = counted(len(results.finalists), "network")
            console.print(terminal_table(f"Finalists after their own training: {networks}", trained))
        if not (self.folder.root.parent / SWEEP_CONFIG).exists():  # a sweep has a table and a picture of its own
            for chart in charts_text(results, columns=console.width):
                console.print(chart, end="\n\n")
        how = "trained further" if best.is_trained else "trial score, no weights: search.finalists=0"
        say(console, "best", f" (trial {best.record.number}, {how}): {headline(results.leaders(1)[0])}")
        for line in dict.fromkeys(score.problem for score in best.scores.values() if score.problem):
            warn(console, line)
        if best.is_trained and problem.data.test is None:
            console.print(NO_TEST, soft_wrap=True)
        if conf.search.baseline != "none":
            beside = RandomBaseline.from_json(search.baseline.entry()) if search.baseline else None
            console.print(baseline_line(results.leaders(1)[0], beside, search.goals[0]), soft_wrap=True)
        costs = "  ".join(f"{name} {format_value(name, value)}" for name, value in best.costs.items())
        for label, path in [("costs", costs), *files, *([] if page.problem else [("report", str(self.folder.report))])]:
            console.print(f"  {label:8} {path}", soft_wrap=True)
        if not any(label == "picture" for label, _ in files):
            console.print("  no pictures: matplotlib is missing (pip install 'l2l-nas[plots]')", soft_wrap=True)
        number = counts(records)
        console.print(
            f"{seconds:.0f} s, {len(distinct(records))} architectures"
            + (f", {number['stopped']} stopped early" if number["stopped"] else "")
            + (f", {number['pruned']} refused by constraints" if number["pruned"] else "")
            + (f", {number['failed']} failed" if number["failed"] else "")
        )
        found = search.suspects()
        if found:
            retire = to_retire(one.pattern for one in found)
            console.print(
                f"failed trials have {in_words(found)} in common; leave that out with {retire}", soft_wrap=True
            )
        asked = conf.search.trials
        assert asked is not None  # decided before
        if num_evaluated(records) < asked:
            why = "the sampler proposed no more"
            if not search.study.is_exhausted:
                why = "the space has no other allowed architectures"
            console.print(f"fewer than the {asked} trials asked for: {why}")

    def _export(self, best: Finalist) -> bool:
        """Export the best network; one that cannot be traced costs a warning, not the run."""
        remove_export(self.folder.export)  # of a run that went on, it would be another network
        if not self.components.conf.export or best.server is None:
            return False
        return export_or_warn(
            self.console,
            best.server,
            best.record.architecture,
            self.folder.export,
            problem=self.components.problem,
            micro_batch=self.components.conf.train.micro_batch,
            reported=best.values,
        )
