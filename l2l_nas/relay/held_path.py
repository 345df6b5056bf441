"""What a step of one path needs to know where everything is held: see [Note: held]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.rules import updates_many
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.storage import RamStorage
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.refusals import refuse_changes, refuse_replaced_buffers
from l2l_nas.space.candidate import Specs
from l2l_nas.space.objective import ObjectiveLayer
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.values import Flow


class HeldLayer(NamedTuple):
    """One layer of a path; `dtype` is that of the one tensor that it gives, None where it gives another kind."""

    layer: Layer
    module: nn.Module
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    dtype: torch.dtype | None


class StateUse(NamedTuple):
    """A state that a path trains.

    Attributes:
        indices: of its trainable parameters, among all that it has.
        numbers: where their gradients are, among all gradients.
    """

    key: str
    indices: list[int]
    num_parameters: int
    numbers: range


@dataclass
class Joint:
    """Parameters of several states that one call of a rule updates; `gradients` tells where theirs are among all."""

    rule: Optimizer
    lr_scale: float
    moments: list[list[Tensor]]
    gradients: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


class HeldPath:
    """A path whose layers have templates of their own, which compute on the states.

    Args:
        flow: the values of the path; empty for layers that are evaluated one by one.
        specs: of values on the device.
        bank: makes the templates.

    Attributes:
        owners: the layers, each once, in the order of first places; `templates` are theirs.
        parameters: of all templates.
        with_buffers: numbers of the owners that have buffers.
        objective: the task with the weights that it has in this path, if it learns.
        uses: states that learn, in the order in which their gradients would leave: the last layer's first.
        order: of all gradients, as a plain model lists their parameters.
        joints: rules that update many states in one call, once bound.
        joint_states, joint_blocks: those that they update, and what they write, each with the key of its state.
        singles: numbers in `uses` of those that are updated one by one.
    """

    def __init__(self, layers: Sequence[Layer], flow: Flow, specs: Mapping[str, Specs], bank: SlotBank) -> None:
        self.layers, self.flow = tuple(layers), flow
        owners: dict[str, Layer] = {}
        for layer in layers:
            owners.setdefault(layer.key, layer)
        self.owners = list(owners.values())
        self.templates = [bank.separate(layer) for layer in self.owners]
        self.has_repeats = len(self.owners) < len(self.layers)
        modules = {layer.key: t.module for layer, t in zip(self.owners, self.templates, strict=True)}
        self.places = [
            HeldLayer(layer, modules[layer.key], reads, writes, _only_dtype(writes, specs))
            for layer, reads, writes in zip(layers, flow.reads, flow.writes, strict=False)
        ]
        learned = next((module for module in modules.values() if isinstance(module, ObjectiveLayer)), None)
        self.objective: Any = None if learned is None else learned.task
        self.parameters = [p for template in self.templates for own in template.parameters for p in own]
        self.with_buffers = [n for n, template in enumerate(self.templates) if template.buffers.numel()]
        # where modules have their parameters
        self._places = [(own._parameters, leaf, p) for template in self.templates for own, leaf, p in template.places]
        self._modules = [part for module in modules.values() for part in module.modules()]
        self._modes: list[bool] = []
        self._addresses: list[int] = []
        self._learned: list[nn.Parameter] = []  # by number of their gradients
        self._others: list[tuple[int, nn.Parameter]] = []  # whose gradients add to that of this number
        self._number_gradients()
        self._forget_states()

    def _number_gradients(self) -> None:
        uses: dict[str, StateUse] = {}
        numbers: dict[tuple[str, int], int] = {}
        for layer, template in zip(reversed(self.owners), reversed(self.templates), strict=True):
            for key, parameters in zip(layer.states, template.parameters, strict=True):
                trainable = {index: parameter for index, parameter in enumerate(parameters) if parameter.requires_grad}
                if key in uses:  # of a tied state, each layer has parameters of its own
                    self._others += zip(uses[key].numbers, trainable.values(), strict=True)
                elif trainable:
                    first = len(self._learned)
                    uses[key] = StateUse(key, [*trainable], len(parameters), range(first, first + len(trainable)))
                    numbers |= {(key, index): first + place for place, index in enumerate(trainable)}
                    self._learned += trainable.values()
        self.uses = list(uses.values())
        listed = (
            (layer.states[number], index)
            for layer, template in zip(self.owners, self.templates, strict=True)
            for number, index in template.parameter_order
        )
        order = dict.fromkeys(numbers[one] for one in listed if one in numbers)
        self.order = torch.tensor(list(order), dtype=torch.long)

    def release(self) -> None:
        """Refer to no state."""
        for template in self.templates:
            template.unbind()
        self._forget_states()

    def _forget_states(self) -> None:
        self.joints: list[Joint] = []
        self.joint_states: list[LayerState] = []
        self.joint_blocks: list[tuple[str, Tensor]] = []
        self.singles: list[int] = []
        self._views: list[list[Sequence[Tensor]]] = []
        self._bound: object = None

    @property
    def has_other_modes(self) -> bool:
        """Whether a module is in another mode than `bind` left it in."""
        return [part.training for part in self._modules] != self._modes

    def bind(self, server: ParamServer, states: object, *, is_training: bool) -> None:
        """Have the templates be in training or evaluation, on the states of a server.

        Args:
            states: another one wherever a key may have another state than before.
        """
        if self._bound != states:
            self._forget_states()
            keys = list(dict.fromkeys(state for layer in self.layers for state in layer.states))
            server.prepare(keys)
            views = self._on_states(server, keys)
            self._views = [[views[key] for key in layer.states] for layer in self.owners]
            self._bound = states
        for template, own in zip(self.templates, self._views, strict=True):
            template.bind(own)
            template.module.train(is_training)
        self._modes = [part.training for part in self._modules]  # `train` of a module may keep some as they are
        for parameter in self.parameters:
            parameter.grad = None
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]

    def _on_states(self, server: ParamServer, keys: Sequence[str]) -> dict[str, list[Tensor]]:
        storage = memory_of(server)
        states = {key: storage.open(key) for key in keys}
        joints: dict[object, Joint] = {}
        for number, use in enumerate(self.uses):
            state, calls = states[use.key], server.rules.of(use.key).calls
            if not all(updates_many(call.rule) for call in calls):
                self.singles.append(number)
                continue
            self.joint_states.append(state)
            self.joint_blocks += [(use.key, block) for block in state.updated_blocks]
            places = dict(zip(use.indices, use.numbers, strict=True))
            for call in calls:
                new = Joint(call.rule, call.lr_scale, [[] for _ in call.moments])
                joint = joints.setdefault((call.rule, call.lr_scale), new)
                weights, moments, steps = state.tensors_for(call, call.indices)
                joint.gradients += [places[index] for index in call.indices]
                joint.weights += weights
                joint.steps += steps
                for all_of_them, own in zip(joint.moments, moments, strict=True):
                    all_of_them += own
        self.joints = list(joints.values())
        return {key: state.views for key, state in states.items()}

    @property
    def versions(self) -> list[int]:
        """Of each parameter, another number after anything but an update wrote to it."""
        return [parameter._version for parameter in self.parameters]

    def refuse_changes(self, pool: LayerPool, versions: Sequence[int]) -> None:
        """Refuse what a forward may not change; the probe sees it before, unless a value decided it.

        Raises:
            SpaceError: parameters were changed since they had these versions, moved or replaced, or a buffer replaced.
        """
        for number in self.with_buffers:
            refuse_replaced_buffers(self.owners[number], self.templates[number], pool)
        is_same = all(own.get(leaf) is parameter for own, leaf, parameter in self._places)
        addresses = [parameter.data_ptr() for parameter in self.parameters]
        if is_same and addresses == self._addresses and self.versions == versions:
            return
        before = iter(versions)
        for layer, template in zip(self.owners, self.templates, strict=True):
            count = sum(map(len, template.parameters))
            refuse_changes(layer, template, sum(islice(before, count)), pool)

    def gradients(self) -> list[Tensor | None]:
        """Of the trainable parameters of all states in `uses`; None where autograd gave none."""
        found = [parameter.grad for parameter in self._learned]
        for number, parameter in self._others:
            own, other = found[number], parameter.grad
            found[number] = other if own is None else own if other is None else own + other
        if any(gradient is not None and gradient.layout is not torch.strided for gradient in found):
            found = [None if gradient is None else gradient.to_dense() for gradient in found]
        return found

    def own_gradients(self) -> None:
        """Have no two gradients share memory, as autograd's may, before more is added to them in place."""
        seen: set[int] = set()
        for parameter in self.parameters:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.layout is not torch.strided:
                parameter.grad = gradient.to_dense()
            elif gradient.data_ptr() in seen or gradient.untyped_storage().nbytes() != gradient.nbytes:
                parameter.grad = gradient.clone()
            else:
                seen.add(gradient.data_ptr())


def memory_of(server: ParamServer) -> RamStorage:
    """The states that a path is held on."""
    assert isinstance(server.storage, RamStorage)
    return server.storage


def _only_dtype(writes: Sequence[str], specs: Mapping[str, Specs]) -> torch.dtype | None:
    given = specs[writes[0]]
    return given[0].dtype if len(writes) == 1 and len(given) == 1 and not given[0].dtype.is_complex else None
