"""What a training leaves when it is done: files in its folder, lines on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from rich.console import Console

from l2l_nas.cost.closed_form import num_parameters
from l2l_nas.eps.checkpoint import Checkpoint
from l2l_nas.eps.server import ParamServer
from l2l_nas.files import write_atomically, write_json
from l2l_nas.report.charts.curve import curve_sheet
from l2l_nas.report.network import Network
from l2l_nas.report.png import is_matplotlib_installed, png_of
from l2l_nas.report.table import headline
from l2l_nas.runs.components import TrainingComponents
from l2l_nas.runs.export import export_or_warn
from l2l_nas.runs.folder import RunFolder
from l2l_nas.runs.origin import NO_TEST, described, identity, versions, write_trace
from l2l_nas.runs.settings import RetrainConf
from l2l_nas.runs.terminal import say, warn
from l2l_nas.space.architecture import Architecture
from l2l_nas.training.fit import tested
from l2l_nas.training.retrain import Validation
from l2l_nas.training.score import Score, by_part


@dataclass(frozen=True)
class TrainingOutput:
    """Writes and shows what a training of one architecture came to."""

    folder: RunFolder
    conf: RetrainConf
    components: TrainingComponents
    architecture: Architecture
    console: Console

    def identity(self, values: Mapping[str, float]) -> dict[str, Any]:
        """See `build.identity`."""
        return identity(self.architecture.choices, self._figures(values))

    def _figures(self, values: Mapping[str, float]) -> dict[str, float]:
        parameters = num_parameters(self.components.problem.pool, self.architecture)
        return {**values, "parameters": float(parameters)}

    def write(self, best: Validation, validations: Sequence[Validation], *, seconds: float) -> None:
        """The result, the export, the pictures; then what was reached."""
        conf = self.conf
        server = ParamServer(
            self.components.problem.pool, optimizer=self.components.relay.server.optimizer, seed=conf.seed
        )
        checkpoint = Checkpoint(self.folder.best)
        checkpoint.load(server)
        checkpoint.save(server, extra=self.identity(best.values))  # the save before is not needed any more
        scores = self._scores(server, best)
        write_json(self.folder.result, self._result(best, validations, scores, seconds=seconds))
        rows = [("result", self.folder.result), ("weights", self.folder.best)]
        if conf.export and export_or_warn(
            self.console,
            server,
            self.architecture,
            self.folder.export,
            problem=self.components.problem,
            micro_batch=conf.train.micro_batch,
            reported=best.values,
        ):
            rows.append(("network", self.folder.export / "model.pt2"))
        if is_matplotlib_installed():
            write_atomically(self.folder.curve, png_of(curve_sheet(validations, best, metric=conf.metric)))
            rows.append(("picture", self.folder.curve))
        if self.components.trace is not None:
            write_trace(self.folder, self.components.trace, self.console)
        last = "; ".join(f"{name} {value:.4f} validation" for name, value in validations[-1].values.items())
        network = Network.from_json({"trial": -1, "architecture": self.architecture.choices, **by_part(scores)})
        for word, validation, line in (("last", validations[-1], last), ("best", best, headline(network))):
            say(self.console, word, f" (step {validation.step}): {line}")
        for score in scores.values():
            if score.problem:
                warn(self.console, score.problem)
        if self.components.problem.data.test is None:
            self.console.print(NO_TEST, soft_wrap=True)
        for label, path in rows:
            self.console.print(f"  {label:8} {path}", soft_wrap=True)

    def _scores(self, server: ParamServer, best: Validation) -> dict[str, Score]:
        """What the best weights score on the part that chose them, and, this once, on the test part."""
        parts = {"validation": self.components.problem.data.validation, "test": self.components.problem.data.test}
        executor = self.components.scorer.executor
        before = executor.server
        executor.use(server)
        try:
            scores = {
                name: tested(self.components.scorer, self.architecture, part)
                for name, part in parts.items()
                if part is not None
            }
        finally:
            executor.use(before)
        return {**scores, "validation": replace(scores["validation"], values=best.values)}

    def _result(
        self, best: Validation, validations: Sequence[Validation], scores: Mapping[str, Score], *, seconds: float
    ) -> dict[str, Any]:
        """What a search's result has, of one architecture; and all validations."""
        conf = self.conf
        found = {
            "architecture": list(self.architecture.choices),
            **by_part(scores),
            "costs": {"parameters": float(num_parameters(self.components.problem.pool, self.architecture))},
            "values": self._figures(best.values),
            "step": best.step,
        }
        return {
            "best": found,
            "last": {"values": self._figures(validations[-1].values), "step": validations[-1].step},
            "pareto": [found],
            "trials": {"complete": 1, "pruned": 0, "failed": 0, "cached": 0},
            "objectives": [{"name": conf.metric, "maximize": self.components.problem.task.metrics[conf.metric]}],
            "weights": conf.weights,
            "data": described(self.components.problem.data),
            "validations": [asdict(validation) for validation in validations],
            "seconds": round(seconds, 2),
            "versions": versions(),
        }
