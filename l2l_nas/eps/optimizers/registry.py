"""Optimizers by name. A new one is one entry here, and its arguments in `runs/settings.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from l2l_nas.arguments import check_kind, check_word
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import MATCHES, Group, Groups, layer_decay, no_decay
from l2l_nas.eps.optimizers.precision import MOMENTS, LowPrecision
from l2l_nas.eps.optimizers.rules import SGD, Adafactor, AdamW, Lion, Muon
from l2l_nas.errors import SettingError, did_you_mean
from l2l_nas.plugins import is_named, made, name_and_arguments

NO_DECAY = ("none", "norms_and_biases")
# arguments of every optimizer, the user's own as well
COMMON = ("moments", "no_decay", "layer_decay", "groups")
_OF_A_GROUP = ("match", "weight_decay", "lr_scale", "frozen")


def muon_with_adamw(muon: Muon | None = None, adamw: AdamW | None = None) -> Groups:
    """Muon for hidden matrices and convolutions; AdamW for embeddings, output layers, norms, biases and the rest."""
    first, others = Muon() if muon is None else muon, AdamW() if adamw is None else adamw
    check_kind("muon_with_adamw: muon", first, Muon, wanted="None or a Muon")
    check_kind("muon_with_adamw: adamw", others, AdamW, wanted="None or an AdamW")
    return Groups(first, (Group("not_hidden_matrices", rule=others, name="not_hidden_matrices"),))


def _adamw(beta1: float = 0.9, beta2: float = 0.999, **more: Any) -> Optimizer:
    return AdamW(betas=(beta1, beta2), **more)


def _lion(beta1: float = 0.9, beta2: float = 0.99, **more: Any) -> Optimizer:
    return Lion(betas=(beta1, beta2), **more)


def _muon(
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, weight_decay: float = 0.1, **more: Any
) -> Optimizer:
    adamw = AdamW(betas=(beta1, beta2), eps=eps, weight_decay=weight_decay)
    return muon_with_adamw(Muon(weight_decay=weight_decay, **more), adamw)


OPTIMIZERS: Mapping[str, Callable[..., Optimizer]] = {
    "adamw": _adamw,
    "sgd": SGD,
    "lion": _lion,
    "adafactor": Adafactor,
    "muon": _muon,
}


def build_optimizer(chosen: str | Mapping[str, Any] | Optimizer) -> Optimizer:
    """An optimizer by name; one that is built already is returned.

    Args:
        chosen: a key of `OPTIMIZERS`, or `FILE.py:NAME` or `MODULE:NAME` of a class or function that makes one; or a
            dict of the name, as "name", and the arguments. Every optimizer takes those of `COMMON`: `moments`, "fp32"
            or "bf16"; `no_decay`, one of `NO_DECAY`; `layer_decay`, see there; `groups`, of arguments by name.

    Raises:
        SettingError: no such name, an argument that the optimizer does not take, or a value that makes no sense.
        L2LError: the user's class or function raised something.
    """
    if not isinstance(chosen, str | Mapping):
        if isinstance(chosen, type) or not isinstance(chosen, Optimizer):
            raise SettingError(f"optimizer: expected a name or an l2l_nas.Optimizer, got {chosen!r}")
        return chosen
    name, arguments = name_and_arguments(chosen)
    common = {key: arguments.pop(key) for key in COMMON if key in arguments}
    if is_named(name):
        optimizer: Optimizer = made(
            {"name": name, **arguments},
            setting="optimizer",
            offered={},
            is_right=lambda result: isinstance(result, Optimizer),
            kind="an optimizer as l2l_nas.eps.optimizers.base.Optimizer",
        )
    elif name in OPTIMIZERS:
        optimizer = OPTIMIZERS[name](**arguments)
    else:
        raise SettingError(f"no optimizer '{name}'{did_you_mean(name, OPTIMIZERS)}")
    return _with_common(optimizer, **common)


def _with_common(
    optimizer: Optimizer,
    *,
    moments: str = "fp32",
    no_decay: str = "none",
    layer_decay: float = 1.0,
    groups: Mapping[str, Any] | None = None,
) -> Optimizer:
    check_word("moments", moments, MOMENTS)
    if moments != "fp32":
        optimizer = in_low_precision(optimizer, moments)
    added = [*_decays(no_decay, layer_decay), *(_group(name, content) for name, content in (groups or {}).items())]
    if not added:
        return optimizer
    if isinstance(optimizer, Groups):
        return Groups(optimizer.rule, (*optimizer.groups, *added))
    return Groups(optimizer, tuple(added))


def _decays(undecayed: str, rate: float) -> list[Group]:
    if undecayed not in NO_DECAY:
        raise SettingError(f"optimizer.no_decay: no '{undecayed}'{did_you_mean(undecayed, NO_DECAY)}")
    groups = [no_decay()] if undecayed != "none" else []
    return groups if rate == 1.0 else [*groups, layer_decay(rate)]


def _group(name: str, content: object) -> Group:
    where = f"optimizer.groups.{name}"
    if not isinstance(content, Mapping):
        raise SettingError(f"{where}: expected {', '.join(_OF_A_GROUP)}, got {content!r}")
    for key in content:
        if key not in _OF_A_GROUP:
            raise SettingError(f"{where} takes no '{key}'{did_you_mean(str(key), _OF_A_GROUP)}")
    if not isinstance(content.get("match"), str):
        raise SettingError(f"{where}.match: write a pattern of POSITION/CANDIDATE/PARAMETER, or {', '.join(MATCHES)}")
    decay, frozen = content.get("weight_decay"), content.get("frozen", False)
    if not (decay is None or (isinstance(decay, int | float) and not isinstance(decay, bool))):
        raise SettingError(f"{where}.weight_decay must be a number, got {decay!r}")
    if not isinstance(frozen, bool):
        raise SettingError(f"{where}.frozen must be true or false, got {frozen!r}")
    if callable(content.get("lr_scale")):
        raise SettingError(f"{where}.lr_scale must be a number, got {content['lr_scale']!r}")
    return Group(**content, name=name)


def in_low_precision(optimizer: Optimizer, moments: str) -> Optimizer:
    """An optimizer with all its moments in bf16, those of its groups' rules as well."""
    if not isinstance(optimizer, Groups):
        return LowPrecision(optimizer, moments)
    groups = [
        group if group.rule is None else replace(group, rule=LowPrecision(group.rule, moments))
        for group in optimizer.groups
    ]
    return Groups(LowPrecision(optimizer.rule, moments), tuple(groups))


def moments_of(optimizer: Optimizer) -> str:
    """The precision of an optimizer's moments: "fp32" or "bf16"."""
    rule = optimizer.rule if isinstance(optimizer, Groups) else optimizer
    return rule.moments if isinstance(rule, LowPrecision) else "fp32"
