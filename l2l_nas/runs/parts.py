"""What trains in a run: the part that all ranks of it build alike."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

from l2l_nas.eps.optimizers.groups import freeze, without_retired
from l2l_nas.eps.optimizers.registry import build_optimizer
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.storage import own_storage
from l2l_nas.nas.evaluation.evaluator import Evaluator
from l2l_nas.nas.strategies.budget import Budget
from l2l_nas.relay.relay import Relay
from l2l_nas.relay.trace import Trace
from l2l_nas.runs.build import build_relay, build_scorer, decide_memory, set_threads
from l2l_nas.runs.locate import load_problem
from l2l_nas.runs.mesh import check_mesh, gathers_logits, problem_on, sharers_of
from l2l_nas.runs.ranks import RunRanks, compare_problems, with_chunks
from l2l_nas.runs.section_settings import RelayConf
from l2l_nas.runs.settings import RetrainConf, SearchConf
from l2l_nas.space.growth import frozen, retired
from l2l_nas.training.data import Batches
from l2l_nas.training.fit import Trainer
from l2l_nas.training.lead import Lead
from l2l_nas.training.problem import Problem


@dataclass(frozen=True)
class Parts:
    """What trains and measures architectures.

    Args:
        conf: all settings, memory decided.
        problem: with its pool as it is trained.
        scorer: measures the metrics that are reported; see `build_scorer`.
        trace: of what the lanes do, if that is asked for.
    """

    conf: SearchConf | RetrainConf
    problem: Problem
    relay: Relay
    trainer: Trainer
    scorer: Trainer
    trace: Trace | None

    @property
    def server(self) -> ParamServer:
        """The shared weights; the relay itself may be at a copy."""
        return self.relay.server


def evaluator_of(parts: Parts, budget: Budget, lead: Lead) -> Evaluator:
    """What trains and scores networks of a search on the relay."""
    data = parts.problem.data
    return Evaluator(
        parts.relay,
        parts.trainer,
        validation=data.validation,
        budget=budget,
        scorer=parts.scorer,
        test=data.test,
        lead=lead,
    )


def led_parts(conf: SearchConf | RetrainConf, ranks: RunRanks) -> Parts:
    """Build them on all ranks of a run; its own objects stay where they are. Raises L2LError: see `build_parts`."""
    return ranks.lead.do("build", (replace(conf, objects={}),), lambda _: build_parts(conf, ranks))


def build_parts(conf: SearchConf | RetrainConf, ranks: RunRanks) -> Parts:
    """What all ranks of a search or a training build alike.

    Raises:
        L2LError: whatever is wrong with the settings or the problem.
    """
    check_mesh(conf.parallel, ranks.size)
    conf = with_chunks(conf, ranks.size)
    problem, server = _problem_and_server(conf, ranks)
    compare_problems(ranks, problem)
    sharers = sharers_of(conf) if isinstance(conf, SearchConf) else 1
    relay, memory = training_relay(problem, server, conf, sharers=sharers)
    conf = replace(conf, relay=memory)
    trained = problem_on(problem, server) if conf.parallel.tensor > 1 else problem
    task = trained.measured_task if isinstance(conf, SearchConf) else trained.task
    batches = Batches(problem.data.train, batch_size=conf.train.batch_size, seed=conf.seed)
    trainer = Trainer(relay, task, batches, conf.train.micro_batch)
    scorer = build_scorer(trainer, conf.relay, seed=conf.seed)
    return Parts(conf, problem, relay, trainer, scorer, relay.trace)


def training_relay(
    problem: Problem, server: ParamServer, conf: SearchConf | RetrainConf, *, sharers: int = 1
) -> tuple[Relay, RelayConf]:
    """The relay that a problem is trained on; and its settings with what stays on the device decided.

    Args:
        sharers: see `build_relay`.

    Raises:
        SettingError: a setting that makes no sense, or too small a device budget.
        DataError: data that does not fit the pool or the task.
    """
    relay = build_relay(
        server,
        conf.relay,
        seed=conf.seed,
        trace=Trace() if conf.relay.trace else None,
        sharers=sharers,
        chunks=conf.parallel.chunks,
    )
    set_threads(conf.relay.threads, relay)
    (problem_on(problem, server) if conf.parallel.tensor > 1 else problem).check(relay.shapes)
    samples = min(conf.train.batch_size, len(problem.data.train))
    return relay, decide_memory(relay, conf.relay, samples=samples, micro_batch=conf.train.micro_batch)


def problem_of(conf: SearchConf | RetrainConf) -> Problem:
    """What is searched, or trained. Raises SettingError, DataError: see `load_problem`."""
    given: Problem | None = conf.objects.get("problem")
    return given or load_problem(conf.space.pool, conf.space.args, **asdict(conf.data))


def _problem_and_server(conf: SearchConf | RetrainConf, ranks: RunRanks) -> tuple[Problem, ParamServer]:
    """What is trained, without candidates that are retired; and the weights of its pool, some of them frozen.

    Raises:
        SettingError: a group of the optimizer, or the storage, does not go with the pool.
        SpaceError: layers that the ranks which share them do not divide.
    """
    optimizer = build_optimizer(conf.chosen("optimizer"))
    problem = problem_of(conf)
    pool, keys = problem.pool, frozenset[str]()
    if isinstance(conf, SearchConf):
        left = retired(pool, conf.search.retire)
        optimizer = without_retired(optimizer, pool, left)
        pool, keys = frozen(left, conf.search.freeze)
    pool = freeze(pool, optimizer)
    opened = own_storage(conf.chosen("relay.storage"), pool=pool, optimizer=optimizer)
    problem = replace(problem, pool=pool)
    server = ranks.server(
        pool,
        tensor=conf.parallel.tensor,
        gather_logits=gathers_logits(problem),
        optimizer=optimizer,
        seed=conf.seed,
        storage=opened,
        frozen=keys,
    )
    return problem, server
