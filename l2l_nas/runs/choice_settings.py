"""Arguments of what is chosen by name: of samplers, strategies, optimizers and schedules that come with the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from l2l_nas.runs.fields import PLAIN, TEXT, setting


@dataclass(frozen=True)
class OptimizerConf:
    """What every optimizer takes."""

    moments: str = setting("fp32", "dtype of the moments: fp32 or bf16", PLAIN)
    no_decay: str = setting("none", "weights without decay: none, norms_and_biases", PLAIN)
    layer_decay: float = setting(1.0, "rate of a position over that of the next one", PLAIN)
    groups: dict[str, Any] = setting({}, "NAME: match, lr_scale, weight_decay, frozen", TEXT)


@dataclass(frozen=True)
class AdamWConf(OptimizerConf):
    """Adam with decoupled weight decay."""

    beta1: float = setting(0.9, "decay of the first moment", PLAIN)
    beta2: float = setting(0.98, "decay of the second moment", PLAIN)
    eps: float = setting(1e-8, "added to the denominator", PLAIN)
    weight_decay: float = setting(0.05, "decoupled weight decay", PLAIN)


@dataclass(frozen=True)
class SGDConf(OptimizerConf):
    """Stochastic gradient descent."""

    momentum: float = setting(0.9, "0 keeps no momentum", PLAIN)
    weight_decay: float = setting(0.0, "added to the gradient", PLAIN)
    nesterov: bool = setting(False, "use Nesterov's momentum", PLAIN)


@dataclass(frozen=True)
class LionConf(OptimizerConf):
    """The sign of a momentum."""

    beta1: float = setting(0.9, "weight of the momentum in the update", PLAIN)
    beta2: float = setting(0.99, "decay of the momentum", PLAIN)
    weight_decay: float = setting(0.0, "decoupled weight decay", PLAIN)


@dataclass(frozen=True)
class AdafactorConf(OptimizerConf):
    """Second moments as rows times columns."""

    clip: float = setting(1.0, "largest root mean square of an update", PLAIN)
    weight_decay: float = setting(0.0, "decoupled weight decay", PLAIN)


@dataclass(frozen=True)
class MuonConf(OptimizerConf):
    """Orthogonal momentum for hidden matrices, AdamW for the rest."""

    momentum: float = setting(0.95, "momentum of Muon", PLAIN)
    nesterov: bool = setting(True, "use Nesterov's momentum", PLAIN)
    beta1: float = setting(0.9, "AdamW: decay of the first moment", PLAIN)
    beta2: float = setting(0.98, "AdamW: decay of the second moment", PLAIN)
    eps: float = setting(1e-8, "AdamW: added to the denominator", PLAIN)
    weight_decay: float = setting(0.05, "decoupled weight decay of both", PLAIN)


@dataclass(frozen=True)
class CosineConf:
    """A rise, then half a cosine."""

    rise: float = setting(0.05, "share of the steps in which the rate rises", PLAIN)
    floor: float = setting(0.02, "last rate as a share of the peak", PLAIN)


@dataclass(frozen=True)
class LinearConf:
    """A rise, then a straight line."""

    rise: float = setting(0.05, "share of the steps in which the rate rises", PLAIN)
    floor: float = setting(0.0, "last rate as a share of the peak", PLAIN)


@dataclass(frozen=True)
class ConstantConf:
    """One rate."""

    rise: float = setting(0.0, "share of the steps in which the rate rises", PLAIN)
    fall: float = setting(0.0, "share of the rest in which it falls", PLAIN)
    floor: float = setting(0.0, "last rate as a share of the peak, if it falls", PLAIN)


@dataclass(frozen=True)
class InverseSqrtConf:
    """A rise, then one over the root of the step."""

    rise: float = setting(0.05, "share of the steps in which the rate rises", PLAIN)


@dataclass(frozen=True)
class RestartsConf:
    """Half cosines, one after the other."""

    rise: float = setting(0.0, "share of the steps in which the rate rises", PLAIN)
    floor: float = setting(0.0, "last rate of a cycle as a share of the peak", PLAIN)
    cycles: int = setting(3, "number of cycles", PLAIN, least=1)


@dataclass(frozen=True)
class NoArguments:
    """Takes no arguments."""


@dataclass(frozen=True)
class BlockwiseConf:
    """Other layers imitate those of a network."""

    samples: int = setting(64, "training samples to imitate on", PLAIN, least=2)
    steps: Optional[int] = setting(None, "steps of a block; null: 100, or search.time", PLAIN, least=0)
    learning_rate: float = setting(0.001, "peak learning rate of the blocks", PLAIN)
    scores: str = setting("exchange", "of a block: exchange, divergence, recall or error", PLAIN)
    rounds: Optional[int] = setting(None, "rounds of scores; null: 3, or 1 with error", PLAIN, least=1)
    pairs: int = setting(32, "pairs of blocks a round measures at most", PLAIN, least=0)
    sizes: list[float] = setting([], "for each, a network with this share removed", PLAIN)
    teacher: float = setting(0.5, "share of the teacher's outputs in the loss", PLAIN, least=0.0)
    lora: int = setting(0, "rank of pairs finalists train; 0: all weights", PLAIN, least=0)
    rates: list[float] = setting([1.0, 0.3, 0.1], "shares of the finalists' rate to try first", PLAIN)


@dataclass(frozen=True)
class TPEConf:
    """Tree-structured Parzen estimators."""

    n_startup_trials: Optional[int] = setting(None, "first random trials; null: a quarter, 5 to 20", PLAIN, least=1)


@dataclass(frozen=True)
class GenerationsConf:
    """Generations of architectures."""

    population_size: Optional[int] = setting(None, "size of a generation; null: a sixth, 8 to 50", PLAIN, least=2)


@dataclass(frozen=True)
class EvolutionConf:
    """Regularized evolution."""

    population_size: Optional[int] = setting(None, "members alive; null: a quarter, 5 to 20", PLAIN, least=2)


@dataclass(frozen=True)
class RayConf:
    """Ray Core: tasks of a cluster."""

    address: str = setting("", "of the cluster; '': found, or this machine")
    cpus: float = setting(1.0, "CPUs that a trial takes")
    gpus: float = setting(0.0, "GPUs that a trial takes")


@dataclass(frozen=True)
class DaskConf:
    """Workers of a Dask cluster."""

    address: str = setting("", "of the scheduler; '': start one here")


@dataclass(frozen=True)
class SubmititConf:
    """Jobs of a cluster such as Slurm, one for each segment."""

    folder: str = setting("submitit", "folder that all machines see")
    cluster: str = setting("", "slurm or local; '': submitit decides")
    parameters: dict[str, Any] = setting({}, "of a job, such as timeout_min, gpus_per_node")


CHOICES: Mapping[str, Mapping[str, type]] = {
    "sampler": {
        "gp_hamming": NoArguments,
        "random": NoArguments,
        "tpe": TPEConf,
        "nsga2": GenerationsConf,
        "evolution": EvolutionConf,
    },
    "executor": {
        "inline": NoArguments,
        "processes": NoArguments,
        "ray": RayConf,
        "dask": DaskConf,
        "submitit": SubmititConf,
    },
    "strategy": {"default": NoArguments, "blockwise": BlockwiseConf, "random_search": NoArguments},
    "optimizer": {
        "adamw": AdamWConf,
        "sgd": SGDConf,
        "lion": LionConf,
        "adafactor": AdafactorConf,
        "muon": MuonConf,
    },
    "schedule": {
        "cosine": CosineConf,
        "linear": LinearConf,
        "constant": ConstantConf,
        "inverse_sqrt": InverseSqrtConf,
        "restarts": RestartsConf,
    },
}
