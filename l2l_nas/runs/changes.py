"""Which settings of a run may be said anew when it goes on, and which must stay: the one table of all commands.

A run that goes on takes all settings of its folder over. Of what is said again, that counts which may change; what must
stay is refused, since one study would hold two kinds of scores.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLACES = frozenset({"folder", "resume"})
# sections that a study compares by what they come to: digests of its samples, and its goals
COMPARED = frozenset({"data", "objectives"})


@dataclass(frozen=True)
class Rule:
    """What holds for a setting, or for all of a section.

    Args:
        stays: it must be what it was.
        why: it must, or may not matter.
        is_free: it says where and how fast, and changes a result in the last bits at most; runs of one sweep may
            differ in it.
    """

    stays: bool
    why: str
    is_free: bool = False


def _stays(why: str) -> Rule:
    return Rule(True, why)


def _may(why: str) -> Rule:
    return Rule(False, why)


def _free(why: str = "where and how fast") -> Rule:
    return Rule(False, why, is_free=True)


_PATHS = "warm-up would have trained other paths than the trials so far are scored with"
_TRAINED = "earlier trials are scored with layers trained otherwise"
_COMPARED = "what is scored otherwise cannot be compared with the trials so far"
_SAMPLES = "scores on other samples cannot be compared"
_ONE = "from first weights, trials are the first steps of the finalists' training"
_RIVALS = "some trials would have been stopped early by it and others not"

RULES: Mapping[str, Rule] = {
    "seed": _stays("first weights, paths and batches follow from it"),
    "folder": _free(),
    "resume": _free(),
    "export": _free("what is written beside the result"),
    "space": _may("layers and data are compared by what they are, and a pool may grow"),
    "data": _stays(_SAMPLES),
    "data.workers": _free("who reads them"),
    "data.cache": _free("where token files are"),
    "objectives": _stays("a study has its objectives for good"),
    "sampler": _may("it proposes and chooses finalists, and does not score"),
    "strategy": _stays("phases of another strategy train and score otherwise"),
    "optimizer": _stays(_TRAINED),
    "schedule": _stays(_TRAINED),
    "callbacks": _free("they observe"),
    "search.time": _stays("it was divided when the run began; search.trials says a new total"),
    "search.trials": _may("the new total"),
    "search.warmup_steps": _stays(_TRAINED),
    "search.warmup_paths": _stays(_PATHS),
    "search.steps_per_trial": _stays(_COMPARED),
    "search.trial_weights": _stays(_COMPARED),
    "search.finalists": _may("finalists are chosen at the end, from all trials"),
    "search.finalist_steps": _may("finalists are trained at the end, all of them by one rule"),
    "search.finalist_rounds": _may("finalists are trained at the end, all of them by one rule"),
    "search.finalist_learning_rate": _may("finalists are trained at the end, all of them alike"),
    "search.baseline": _may("it is played at the end, beside the search"),
    "search.limits": _may("trials that break a new limit are left out of the result"),
    "search.costs": _may("objectives and limits name them"),
    "search.latency_batch": _stays("latencies of other batches cannot be compared"),
    "search.hardware": _stays("predictions for other machines cannot be compared"),
    "search.early_stop": _stays(_RIVALS),
    "search.keep_fraction": _may("it says how many go on; a score is always that of all steps"),
    "search.population": _may("a score does not depend on its neighbours in a pass"),
    "search.workers": _may("who does the work"),
    "search.checkpoint_seconds": _free("how much a crash may cost"),
    "search.failures": _free("when it gives up"),
    "search.enqueue": _may("what has a trial is not tried again"),
    "search.retire": _may("candidates come and go; their trials stay"),
    "search.freeze": _may("candidates are trained no further from here on"),
    "search.introduce": _may("it concerns candidates that join later"),
    "search.storage": _may("the study is searched for there, and compared"),
    "search.study": _may("the study is searched for by this name, and compared"),
    "search.lost_after_seconds": _may("how patient it is"),
    "search.storage_retry_seconds": _may("how patient it is"),
    "train.batch_size": _stays(_TRAINED),
    "train.micro_batch": _stays("BatchNorm sees other samples at a time"),
    "train.learning_rate": _stays(_TRAINED),
    "train.steps": _may("the new total"),
    "train.validation_steps": _may("how often, not how, it is scored"),
    "train.recalibrate": _stays("validations with other statistics cannot be compared"),
    "train.checkpoint_seconds": _free("how much a crash may cost"),
    "relay.device": _free(),
    "relay.slots": _free(),
    "relay.update": _may("the weights are the same whichever it is"),
    "relay.clip": _stays(_TRAINED),
    "relay.clip_scope": _stays(_TRAINED),
    "relay.precision": _stays(_TRAINED),
    "relay.stash": _free(),
    "relay.keep": _free(),
    "relay.budget": _free(),
    "relay.resident": _free(),
    "relay.pinned": _free(),
    "relay.lanes": _free(),
    "relay.storage": _free(),
    "relay.layers": _free(),
    "relay.trace": _free(),
    "relay.threads": _free("how fast; sums of other threads differ in the last bits"),
    # of a training; what it trains is compared by the architecture named, see `l2l_nas.cli.train`
    "run": _may("what it names must be the architecture that is trained"),
    "architecture": _may("what it names must be the architecture that is trained"),
    "trial": _may("what it names must be the architecture that is trained"),
    "weights": _stays("the training began with those"),
    "metric": _stays("the best so far was chosen by it"),
}


_RACED = {"search.finalist_steps", "search.finalist_learning_rate"}


def why_stays(name: str, config: Mapping[str, Any]) -> str:
    """Why a setting must stay what it was; empty if it may change.

    Args:
        name: of the setting.
        config: all settings of the run.
    """
    rule = rule_of(name)
    if rule.stays:
        return rule.why
    search = config.get("search")
    is_raced = isinstance(search, Mapping) and search.get("trial_weights") == "scratch"
    return _ONE if is_raced and name in _RACED else ""


def rule_of(name: str) -> Rule:
    """The rule of a setting: its own, or its section's.

    Raises:
        KeyError: there is none.
    """
    while name not in RULES:
        name, dot, _ = name.rpartition(".")
        if not dot:
            raise KeyError(name)
    return RULES[name]
