"""Checks that any candidate can follow any other, on meta tensors: no memory, no arithmetic, no product of paths.

Every candidate of a position reads the same values, so it is enough that all candidates of a position agree on what
they write: the cost is one meta forward for each candidate, not one for each architecture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from l2l_nas.errors import ShapeError, SpaceError, one_line
from l2l_nas.space.architecture import Architecture
from l2l_nas.space.candidate import Specs, TensorSpec, describe
from l2l_nas.space.dry_run import DryRun
from l2l_nas.space.parameters import parameters_of
from l2l_nas.space.pool import Layer, LayerPool, PerPool
from l2l_nas.space.probe import ProbeResult, probe
from l2l_nas.space.randomness import preserved_generators
from l2l_nas.space.values import by_value


@dataclass(frozen=True)
class Shapes:
    """The specs of all that flows in a pool; see [Note: values]."""

    values: Mapping[str, Specs]  # by name
    takes: tuple[Specs, ...]  # of all that the layers of each position take
    gives: tuple[Specs, ...]
    outputs: Specs  # of what the pool gives out
    probed: Mapping[object, list[ProbeResult]]  # by kind of layer, wherever one of it stands


_SHAPES: PerPool[Shapes] = PerPool()
_ALONE: PerPool[dict[object, str]] = PerPool()


def check_shapes(pool: LayerPool, *, device: torch.device | None = None) -> Shapes:
    """The specs of all values of a pool, remembered for as long as it lives. Every kind of layer is probed once.

    Args:
        device: of the relay, for layers that neither meta nor the host can run; None: the accelerator, if there is one.

    Raises:
        ShapeError: a candidate's output differs from that of its position's first candidate.
        SpaceError: a factory or a forward raised, a layer would train wrongly, or tied parameters differ in shape.
    """
    if pool in _SHAPES:
        results = [result for results in _SHAPES[pool].probed.values() for result in results]
        tried = {torch.device(result.device).type for result in results} - {"meta", "cpu"}
        if device is None or tried <= {device.type}:
            return _SHAPES[pool]
    shapes = _check_shapes(pool, device)
    _refuse_shared_parts(pool)
    _SHAPES[pool] = shapes
    return shapes


def _check_shapes(pool: LayerPool, device: torch.device | None) -> Shapes:
    if all(layer.candidate.is_skip for layer in pool.layers):
        raise SpaceError("every candidate of every position is a skip; give at least one position a layer")
    values: dict[str, Specs] = dict(pool.sources)
    takes: list[Specs] = []
    gives: list[Specs] = []
    ties: dict[str, list[int]] = {}
    probed: dict[object, list[ProbeResult]] = {}
    known: dict[tuple[object, ...], Specs] = {}
    for index, layers in itertools.groupby(pool.layers, key=lambda layer: layer.position):
        position, reads = pool.positions[index], pool.wiring.reads[index]
        inputs: Specs = sum((values[name] for name in reads), ())
        outputs: list[Specs] = []
        for layer in layers:
            candidate = layer.candidate
            if candidate.is_skip:
                handed_on = zip(reads, position.writes, strict=False)
                outputs.append(sum((values[name] for name, _ in handed_on), ()))
            else:
                key = (candidate.kind, tuple(sorted(candidate.tied.items())), inputs)
                if key not in known:
                    with pool.naming(layer):
                        result = probe(pool, layer, inputs, device=device)
                        _refuse_other_ties(pool, layer, ties)
                    probed.setdefault(candidate.kind, []).append(result)
                    known[key] = result.outputs
                outputs.append(known[key])
            if outputs[-1] != outputs[0]:
                raise ShapeError(
                    position=position.name,
                    candidate=candidate.name,
                    got=describe(outputs[-1]),
                    expected=describe(outputs[0]),
                    advice=f"'{position.candidates[0].name}' gives that, and all candidates of a position must agree",
                )
        takes.append(inputs)
        gives.append(outputs[0])
        if len(position.writes) not in (1, len(gives[-1])):
            raise SpaceError(
                f"writes {', '.join(position.writes)}, but its layers give {len(gives[-1])} tensors: "
                f"{describe(gives[-1])}",
                position=position.name,
            )
        values |= by_value(position.writes, gives[-1])
    ends: Specs = sum((values[name] for name in pool.wiring.outputs), ())
    return Shapes(values, tuple(takes), tuple(gives), ends, probed)


def values_at(
    pool: LayerPool, sources: Mapping[str, Specs], is_able: Callable[[LayerPool, Layer], bool]
) -> dict[str, Specs]:
    """The specs of all values where the pool's inputs are others than its own, of which `check_shapes` is.

    The first able candidate of a position tells for all; where none is, no path runs it, and any shape will do.
    """
    usual = check_shapes(pool).gives
    values, known = dict(sources), dict[tuple[object, Specs], Specs | None]()
    for index, layers in itertools.groupby(pool.layers, key=lambda layer: layer.position):
        position, reads = pool.positions[index], pool.wiring.reads[index]
        taken: Specs = sum((values[name] for name in reads), ())
        given = usual[index]
        for layer in layers:
            key = layer.candidate.kind, taken
            if layer.candidate.is_skip:
                given = sum((values[name] for name, _ in zip(reads, position.writes, strict=False)), ())
            if layer.candidate.is_skip or not is_able(pool, layer):
                continue
            if key not in known:
                known[key] = _given(pool, layer, taken)
            if (found := known[key]) is not None:
                given = found
                break
        values |= by_value(position.writes, given)
    return values


def _given(pool: LayerPool, layer: Layer, inputs: Specs) -> Specs | None:
    """What a layer gives for inputs of other shapes; None where it raises."""
    try:
        return tuple(map(TensorSpec.of, dry_run_of(pool, layer, inputs).forward()))
    except Exception:
        return None


def adds_losses(pool: LayerPool, layer: Layer) -> bool:
    """Whether a layer adds a loss in training; see `l2l_nas.add_loss`."""
    dry_run = dry_run_of(pool, layer, check_shapes(pool).takes[layer.position])
    dry_run.forward()
    return dry_run.adds_losses


def _refuse_other_ties(pool: LayerPool, layer: Layer, ties: dict[str, list[int]]) -> None:
    """Refuse a tied parameter whose shape is another than in an earlier layer; `ties` are the shapes by group."""
    for name, group in layer.candidate.tied.items():
        shape = list(parameters_of(pool, layer)[name].shape)
        if shape != ties.setdefault(group, shape):
            raise SpaceError(f"ties '{name}' {shape} to '{group}', which is {ties[group]} in an earlier layer")


def _refuse_shared_parts(pool: LayerPool) -> None:
    """Refuse a parameter that several layers share without a tie."""
    owners: dict[int, Layer] = {}
    for layer in pool.layers:
        for name, parameter in pool.borrowed(layer).items():
            owner = owners.setdefault(id(parameter), layer)
            if owner.key != layer.key and name not in layer.candidate.tied:
                with pool.naming(layer):
                    raise SpaceError(
                        f"its parameter '{name}' is part of '{owner.key}' too, but each layer has weights of its own; "
                        f"tie it in both, Candidate(..., tied={{'{name}': 'a_name'}}), or copy it in the factory"
                    )


def _probed(pool: LayerPool, layer: Layer) -> list[ProbeResult]:
    return _SHAPES[pool].probed.get(layer.candidate.kind, []) if pool in _SHAPES else []


def runs_on(pool: LayerPool, layer: Layer) -> str:
    """Where a layer can be tried out: meta, or where `check_shapes` saw it run, first on the host, then on a device."""
    return next((result.device for result in _probed(pool, layer) if result.device != "meta"), "meta")


def writes_buffers(pool: LayerPool, layer: Layer) -> bool:
    """Whether `check_shapes` saw a layer's forward in training change a buffer."""
    return any(result.writes_buffers for result in _probed(pool, layer))


def dry_run_of(pool: LayerPool, layer: Layer, inputs: Specs, **options: Any) -> DryRun:
    """A dry run of a new module of a layer, where it runs; the options are those of `DryRun`."""
    device = runs_on(pool, layer)
    with preserved_generators(device):
        module = pool.build_module(layer, device=device)
    return DryRun(module, inputs, device, **options)


def refuse_lone_sample(pool: LayerPool, architecture: Architecture | None, *, advice: str) -> None:
    """Refuse layers that cannot train on one sample, such as a BatchNorm over features: one value has no variance.

    Each kind of layer runs once; what came of it is remembered for as long as the pool lives.

    Args:
        architecture: whose layers; None for all layers of the pool.
        advice: where the one sample comes from, and what to do.

    Raises:
        SpaceError: with what the layer raised.
    """
    shapes, errors = check_shapes(pool), _ALONE.setdefault(pool, {})
    for layer in pool.layers if architecture is None else pool.path(architecture):
        inputs = shapes.takes[layer.position]
        if layer.candidate.is_skip:
            continue
        key = layer.candidate.kind, inputs
        if key not in errors:
            errors[key] = _raised_alone(pool, layer, inputs)
        if errors[key]:
            with pool.naming(layer):
                raise SpaceError(f"cannot train on one sample alone ({errors[key]}); {advice}")


@torch.no_grad()
def _raised_alone(pool: LayerPool, layer: Layer, inputs: Specs) -> str:
    """The error of a layer in training on one sample; empty where it trains."""
    dry_run = dry_run_of(pool, layer, inputs, samples=1)
    try:
        dry_run.forward()
    except Exception as error:  # any that it raises, it would raise in training
        return one_line(str(error) or type(error).__name__)
    return ""
