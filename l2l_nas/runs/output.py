"""What a search tells before its first step, and what it leaves when it is done: files, tables and lines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from l2l_nas.cost.closed_form import path_states
from l2l_nas.cost.table import MEASURED, readable
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.eps.server import ParamServer
from l2l_nas.errors import L2LError, StorageError, counted, one_line
from l2l_nas.files import read_yaml, write_atomically, write_json, write_yaml
from l2l_nas.nas.objectives import State, counts, distinct, num_evaluated, pareto_front
from l2l_nas.nas.strategies.context import SearchContext
from l2l_nas.nas.strategies.division import described
from l2l_nas.nas.strategies.finalists import Finalist, FinalistCache, order
from l2l_nas.nas.strategies.phase import Phase
from l2l_nas.plugins import name_and_arguments
from l2l_nas.report.blocks import rates_line
from l2l_nas.report.card import space_summary
from l2l_nas.report.charts import tables
from l2l_nas.report.charts.chart import Sheet
from l2l_nas.report.charts.pareto import trade_off_charts
from l2l_nas.report.network import NOT_COUNTED, Network, RandomBaseline, front, in_order
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.resolved import Resolved, resolved
from l2l_nas.report.results import Results, only_finite
from l2l_nas.report.table import baseline_line, headline, terminal_table
from l2l_nas.report.text import format_value
from l2l_nas.runs.build import num_threads
from l2l_nas.runs.choice_settings import CHOICES, NoArguments
from l2l_nas.runs.command_line import spell
from l2l_nas.runs.fields import declared, settings, value_of
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.groups import flat
from l2l_nas.runs.locate import is_builtin, load_data
from l2l_nas.runs.log import line_of
from l2l_nas.runs.mesh import mesh_of
from l2l_nas.runs.numbers import is_from_scratch
from l2l_nas.runs.origin import (
    NO_TEST,
    describe_data,
    export_or_warn,
    identity,
    rows_chosen_by,
    sizes,
    versions,
    write_architecture,
)
from l2l_nas.runs.page import LivePage
from l2l_nas.runs.search_parts import SearchParts
from l2l_nas.runs.settings import SearchConf
from l2l_nas.runs.terminal import say, warn
from l2l_nas.space.architecture import format_choices
from l2l_nas.space.shapes import check_shapes
from l2l_nas.training.export import remove_export
from l2l_nas.training.problem import Problem
from l2l_nas.training.samples import num_groups
from l2l_nas.training.weights import in_one_process


def greet(console: Console, parts: SearchParts, *, sampler: Any, folder: Path) -> None:
    """Tell what is searched, where, with what, and which settings change nothing."""
    conf, problem, relay = parts.conf, parts.problem, parts.relay
    pool, bank = problem.pool, relay.bank
    count = f"{pool.size:,}" if pool.size < 10**9 else f"{pool.size:.1e}"
    say(console, conf.space.pool, f": {len(pool)} positions, {count} architectures; {sizes(problem.data)} samples")
    if problem.data.test is None:
        console.print(NO_TEST, soft_wrap=True)
    console.print(
        f"{relay.device.torch_device}: {len(bank.slots)} slots, {readable('device_bytes', bank.num_bytes)}; "
        f"sampler {_shown(sampler)}, seed {conf.seed}, into {folder}",
        soft_wrap=True,
    )
    for line in (*without_effect(conf, parts.phases), *data_without_effect(conf, problem)):
        warn(console, line)
    workers = conf.search.workers
    if workers > 1:
        threads = num_threads(conf.relay.threads, relay, workers=workers)
        console.print(f"{workers} workers, {threads} thread{'s' * (threads > 1)} each")
    if parts.division is not None:
        console.print(described(parts.division), soft_wrap=True)
    for line in parts.learned.lines() if parts.learned is not None else ():
        console.print(line, soft_wrap=True)
    if is_from_scratch(conf) and (conf.search.warmup_steps or conf.search.warmup_paths != "uniform"):
        console.print("no warm-up: search.trial_weights=scratch would not use its weights")


def _shown(sampler: Any) -> str:
    """Its name, and the arguments that are not as they come."""
    if not isinstance(sampler, Mapping):
        return str(sampler)
    name, arguments = name_and_arguments(sampler)
    known = {key: default for key, default, _ in settings(CHOICES["sampler"].get(name, NoArguments))}
    changed = ", ".join(f"{key}={value}" for key, value in arguments.items() if value != known.get(key))
    return f"{name} ({changed})" if changed else name


def without_effect(conf: SearchConf, phases: Sequence[Phase]) -> Iterator[str]:
    """A line for each explicit setting that changes nothing.

    Args:
        conf: all settings, the numbers of the search decided.
        phases: of the search.
    """
    explicit = conf.explicit
    kinds = {kind.__name__ for phase in phases for kind in type(phase).__mro__}
    for one in declared(SearchConf):
        named = ", ".join(sorted(name for name in explicit if name == one.name or name.startswith(f"{one.name}.")))
        if named and one.effect is not None and not one.effect.is_there(conf):
            reason = one.effect.setting
            value = value_of(conf, reason)
            value = value["name"] if reason in CHOICES else "cpu" if reason == "relay.device" else value
            yield f"{named} has no effect with {reason.removesuffix('.names')}={spell(value)}"
        if named and one.read_by and one.read_by not in kinds:
            yield f"{named} has no effect with strategy={conf.strategy['name']}, which has no {one.read_by}()"


def data_without_effect(conf: SearchConf, problem: Problem) -> Iterator[str]:
    """A line for settings of data that are explicit where the pool brings its own."""
    named = sorted(one for one in conf.explicit if one.partition(".")[0] == "data")
    if not named or is_builtin(conf.space.pool):
        return
    section = conf.data
    try:
        found = load_data(**asdict(section))
    except L2LError:
        found = None  # nobody needed them
    if found is None or found.digest != problem.data.digest:
        yield f"{', '.join(named)} has no effect with space.pool={conf.space.pool}, which brings its own data"


_LATENCY_SECONDS = 5.0  # into which finalists are measured, best first
_MOST_BUILT = 0.5  # of free memory, by a network that is measured


def _latencies(search: SearchContext) -> dict[str, Any]:
    """Latencies of finalists in ms, by their trials; they are measured when nothing may depend on them any more."""
    found: dict[str, dict[str, float]] = {name: {} for name in MEASURED if name in search.costs}
    problems: dict[str, str] = {}
    end = time.monotonic() + _LATENCY_SECONDS
    for one in order(search.finalists, search.goals):
        if time.monotonic() >= end:
            break
        # built with first weights and as a module: who is killed for it would be each time that the run goes on
        needs = 2 * 4 * search.costs.value("parameters", one.architecture)
        if needs > _MOST_BUILT * free_memory_bytes():
            problems.setdefault("memory", f"not measured, as {readable('file_bytes', needs)} of memory are too many")
            continue
        for name in [name for name in found if name not in problems]:
            try:
                found[name][str(one.record.number)] = search.costs.value(name, one.architecture)
            except L2LError as error:  # a network that does not fit on the device as a whole
                problems[name] = one_line(str(error))
    return {**found, **({"problem": "; ".join(problems.values())} if problems else {})}


def _measured(search: SearchContext, one: Finalist) -> dict[str, Any]:
    """The latencies that were measured of a network, for its result."""
    measured = search.costs.measured(one.architecture)
    return {"measured": measured} if measured else {}


@dataclass(frozen=True)
class Output:
    """Writes and shows what a search came to."""

    folder: RunFolder
    parts: SearchParts
    console: Console

    def write_weights(self, search: SearchContext, best: Finalist) -> None:
        """The weights of the best, and of the best of each size."""
        for folder, one in ((self.folder, best), *self._of_sizes(search)):
            if one is not None and one.server is not None:
                search.weights.save(Checkpoint(folder.best), one.server, extra=_identity(one))
            elif folder.best.exists():
                Checkpoint(folder.best).remove()  # of a run that went on: another network's

    def _of_sizes(self, search: SearchContext) -> list[tuple[RunFolder, Finalist | None]]:
        """The folder of each size, and what it is to hold; None where an earlier session had found what is gone."""
        return [(self.folder.size(size.name), search.of_sizes.get(size.name)) for size in search.sizes]

    def _write_sizes(self, search: SearchContext) -> None:
        """Of each size a folder that `export`, `evaluate` and `train` read as that of a run."""
        config = read_yaml(self.folder.config) if search.sizes else {}
        for folder, one in self._of_sizes(search):
            self._export(folder, one)
            if one is None:  # what a run before it went on wrote of another network
                for path in (folder.config, folder.architecture, folder.log, folder.result):
                    path.unlink(missing_ok=True)
                continue
            write_yaml(folder.config, config)
            write_architecture(folder, self.parts.problem.pool, one.architecture)
            data = describe_data(self.parts.problem.data) | rows_chosen_by(self.parts.problem.data)
            result = {"best": one.entry(), **_measured(search, one), "data": data, "versions": versions()}
            write_atomically(folder.log, line_of("result", content=result))
            write_json(folder.result, result)

    def write(self, search: SearchContext, best: Finalist, *, seconds: float) -> list[tuple[str, str]]:
        """Architecture of the best, the export, the result, the front; returns what to show of them."""
        log = search.study.log
        log.write("phase", name="export", total=0, done=0)
        records = search.allowed(search.study.records)
        write_architecture(self.folder, self.parts.problem.pool, best.record.architecture)
        exported = self._export(self.folder, best)
        trials = [Finalist(r, search.costs_of(r)).entry() for r in pareto_front(records, search.goals)]
        entries = {one.record.number: one.entry() for one in search.finalists}
        trained_front = [entries[one.trial] for one in front(map(Network.from_json, entries.values()), search.goals)]
        log.write("latency", **_latencies(search))  # behind all entries, which no time that was measured may be in
        self._write_sizes(search)
        results, learned = self._results(search, best), self.parts.learned
        content = {
            "best": best.entry(),
            **_measured(search, best),
            "finalists": list(entries.values()),
            "given_up": [{"trial": number, "reason": reason} for number, reason in search.abandoned.items()],
            "pareto": trained_front or trials,
            "trial_front": trials,
            "baseline": search.baseline.entry() if search.baseline else None,
            "trials": counts(records),
            "spent": search.ledger.entry(),
            "resolved": {what: found and found.to_json() for what, found in self._resolved(results).items()},
            "failed": [
                {"trial": one.number, "architecture": list(one.architecture.choices), "reason": one.reason}
                for one in records
                if one.state is State.FAILED and not one.cached
            ],
            "coverage": search.coverage.to_json(),
            "objectives": [{"name": goal.name, "maximize": goal.maximize} for goal in search.goals],
            "data": describe_data(self.parts.problem.data) | rows_chosen_by(self.parts.problem.data),
            "seconds": round(seconds, 2),
            "versions": versions(),
            **mesh_of(self.parts.server),
            **({} if learned is None else {"learned_from": learned.summary.to_json()}),
            **search.results(),
        }
        log.write("result", content=content)
        write_json(self.folder.result, content)
        log.write("phase", name="report", total=0, done=0)
        rows = [("result", str(self.folder.result))]
        rows += [("weights", str(self.folder.best))] if best.server is not None else []
        rows.append(("study", str(self.folder.study)))
        if exported:
            rows.append(("network", str(self.folder.export / "model.pt2")))
        rows += [("size", str(folder.root)) for folder, one in self._of_sizes(search) if one is not None]
        return rows + self._draw_front(results)

    def _draw_front(self, results: Results) -> list[tuple[str, str]]:
        """Of the first two goals, or of one and the number of parameters; nothing where matplotlib is not installed."""
        if not is_matplotlib_installed():
            return []
        charts = trade_off_charts(results, *results.trade_offs[0])
        write_atomically(self.folder.front, png_of(Sheet(charts, panel_in=(8.0, 4.2))))
        return [("picture", str(self.folder.front))]

    def _resolved(self, results: Results) -> dict[str, Resolved | None]:
        return resolved(results, num_groups(self.parts.problem.data.validation))

    def _results(self, search: SearchContext, best: Finalist) -> Results:
        found = Network.from_json(best.entry())
        trained = [Network.from_json(one.entry()) for one in search.finalists]
        return Results(
            space_summary(self.parts.problem.pool, check_shapes(self.parts.problem.pool)),
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
        """Tables, values of the best, and the places of files."""
        console, conf, problem = self.console, self.parts.conf, self.parts.problem
        results = self._results(search, best)
        trials = tables.best_table(results, metrics=problem.measured_task.metrics)
        complete = counted(len(distinct(results.records)), "complete trial")
        title = f"The best {len(trials.rows)} of {complete}" if trials.rows else "No complete trial"
        console.print(terminal_table(title, trials))
        if results.finalists:
            trained = tables.finalist_table(results, winner=best.record.number, is_narrow=True)
            networks = counted(len(results.finalists), "network")
            last = results.finalists[0].num_validations
            how = f", compared by the mean of their last {last} validations" if last > 1 else ""
            console.print(terminal_table(f"Finalists after their own training: {networks}{how}", trained))
        how = "trained further" if best.is_trained else "trial score, no weights: search.finalists=0"
        say(console, "best", f" (trial {best.record.number}, {how}): {headline(results.leaders(1)[0])}")
        for line in dict.fromkeys(score.problem for score in best.scores.values() if score.problem):
            warn(console, line)
        if best.is_trained and problem.data.test is None:
            console.print(NO_TEST, soft_wrap=True)
        if conf.search.baseline != "none":
            beside = RandomBaseline.from_json(search.baseline.entry()) if search.baseline else None
            count = num_groups(problem.data.test) if problem.data.test is not None else 0
            console.print(baseline_line(results.leaders(1)[0], beside, search.goals[0], count), soft_wrap=True)
            if self.parts.learned is not None:
                console.print(NOT_COUNTED, soft_wrap=True)
        costs = "  ".join(f"{name} {format_value(name, value)}" for name, value in best.costs.items())
        layers = format_choices(best.architecture)
        for label, path in [
            ("layers", layers),
            ("costs", costs),
            *files,
            *([] if page.problem else [("report", str(self.folder.report))]),
        ]:
            console.print(f"  {label:8} {path}", soft_wrap=True)
        if line := rates_line(search.results().get("rates")):
            console.print(line, soft_wrap=True)
        for line in shared_sizes(search.of_sizes):
            console.print(line, soft_wrap=True)
        if not any(label == "picture" for label, _ in files):
            console.print("  no picture: matplotlib is missing (pip install 'l2l-nas[plots]')", soft_wrap=True)
        self._show_counts(search, results, seconds=seconds)

    def _show_counts(self, search: SearchContext, results: Results, *, seconds: float) -> None:
        """How many trials there were, and how many are told apart."""
        console, records = self.console, search.study.records
        number = counts(records)
        console.print(
            f"{seconds:.0f} s, {len(distinct(records))} architectures"
            + (f", {number['stopped']} stopped early" if number["stopped"] else "")
            + (f", {number['pruned']} refused by constraints" if number["pruned"] else "")
            + (f", {number['failed']} failed" if number["failed"] else "")
        )
        for apart in self._resolved(results).values():
            if apart is not None:
                console.print(apart.sentence(), soft_wrap=True)
        asked = self.parts.conf.search.trials
        assert asked is not None  # decided before
        if num_evaluated(records) < asked:
            why = "the sampler proposed no more"
            if not search.study.is_exhausted:
                why = "the space has no other allowed architectures"
            console.print(f"fewer than the {asked} trials asked for: {why}")

    def _export(self, folder: RunFolder, best: Finalist | None) -> bool:
        """Export a network; one that cannot be traced costs a warning, not the run."""
        remove_export(folder.export)  # of a run that went on, it would be another network
        if not self.parts.conf.export or best is None or best.server is None:
            return False
        return export_or_warn(
            self.console,
            in_one_process(best.server, Checkpoint(folder.best)),
            best.record.architecture,
            folder.export,
            problem=self.parts.problem,
            micro_batch=self.parts.conf.train.micro_batch,
            reported=best.values,
        )


def shared_sizes(of_sizes: Mapping[str, Finalist]) -> Iterator[str]:
    """A line for each network that stands for several sizes, by their names."""
    names: dict[int, list[str]] = {}
    for name, one in of_sizes.items():
        names.setdefault(one.record.number, []).append(name)
    for number, shared in names.items():
        if len(shared) > 1:
            yield f"sizes {', '.join(shared)} are one network, trial {number}: no larger one that was trained is better"


def finalist_cache(parts: SearchParts, folder: RunFolder, console: Console) -> FinalistCache:
    """What finalists of an earlier session of a run are recognised by, and where their weights are.

    Args:
        console: where it is told that the weights cannot be read.
    """
    problem, shared = parts.problem, parts.weights

    def weights(finalist: Finalist, size: str) -> ParamServer | None:
        checkpoint = Checkpoint((folder.size(size) if size else folder).best)
        if not checkpoint.exists():
            return None
        try:
            needs = path_states(problem.pool, finalist.record.architecture)
            read, found = shared.read(checkpoint.folder, needs=needs)
        except StorageError as error:
            warn(console, str(error))
            console.print("finalists are trained again")
            return None
        return read if found == _identity(finalist) else None

    def save(finalist: Finalist) -> None:
        if finalist.server is not None:
            shared.save(Checkpoint(folder.best), finalist.server, extra=_identity(finalist))

    return FinalistCache(_settings(parts.conf, problem, parts.server), weights, save)


def _identity(finalist: Finalist) -> dict[str, Any]:
    return identity(finalist.record.architecture.choices, finalist.values)


def _settings(conf: SearchConf, problem: Problem, server: ParamServer) -> dict[str, Any]:
    """Settings that decide what comes of finalists, and are not in the budget."""
    train, relay = conf.train, conf.relay
    chosen = {
        name: value for name, value in flat(SearchConf, conf).items() if name.startswith(("optimizer", "schedule"))
    }
    return {
        "data": [problem.data.digest, problem.data.test_digest],
        "seed": conf.seed,
        "batch": [train.batch_size, train.micro_batch],
        **chosen,
        "relay": [relay.precision, relay.update, relay.clip, relay.clip_scope],
        "frozen": sorted(server.frozen),
    }
