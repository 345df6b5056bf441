"""What a step of one path needs to know where everything is held: see [Note: held]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.rules import updates_many
from l2l_nas.eps.server import ParamServer
from l2l_nas.eps.state import LayerState
from l2l_nas.eps.storage import RamStorage
from l2l_nas.relay.bank import SlotBank
from l2l_nas.relay.refusals import refuse_changed_parameters, refuse_moved_parameters, refuse_replaced_buffers
from l2l_nas.space.candidate import Specs
from l2l_nas.space.objective import ObjectiveLayer
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.values import Flow


class HeldLayer(NamedTuple):
    """One layer of a path.

    Attributes:
        dtype: of the one tensor that it gives; None where it gives several, or a complex one.
    """

    layer: Layer
    module: nn.Module
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    dtype: torch.dtype | None


@dataclass
class StateUse:
    """A state that a path trains.

    Attributes:
        indices: of its trainable parameters, among all that it has.
        num_parameters: that it has.
        numbers: where the gradients of the trainable ones are, among all gradients.
        parameters: by layer that uses it, the last one first, the trainable parameters that are bound to it.
    """

    key: str
    indices: list[int]
    num_parameters: int
    numbers: range
    parameters: list[list[nn.Parameter]] = field(default_factory=list)


@dataclass
class Joint:
    """Parameters of several states that one call of a rule updates.

    Attributes:
        gradients: where theirs are, among all gradients.
    """

    rule: Optimizer
    lr_scale: float
    moments: list[list[Tensor]]
    gradients: list[int] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


class HeldLayers:
    """Layers with templates of their own, which compute on the states themselves.

    Args:
        layers: in order; one may be there twice.
        bank: makes the templates.

    Attributes:
        owners: the layers, each once, in the order of first places; `templates` are theirs.
        parameters: of all templates.
        states: keys of all states.
        with_buffers: numbers of the owners that have buffers.
    """

    def __init__(self, layers: Sequence[Layer], bank: SlotBank) -> None:
        self.layers = tuple(layers)
        owners: dict[str, Layer] = {}
        for layer in layers:
            owners.setdefault(layer.key, layer)
        self.owners = list(owners.values())
        self.templates = [bank.separate(layer) for layer in self.owners]
        self.parameters = [p for template in self.templates for own in template.parameters for p in own]
        self.states = tuple(dict.fromkeys(state for layer in layers for state in layer.states))
        self.with_buffers = [n for n, template in enumerate(self.templates) if template.buffers.numel()]
        # where modules have their parameters
        self._places = [(own._parameters, leaf, p) for template in self.templates for own, leaf, p in template.places]
        self._modules = [part for template in self.templates for part in template.module.modules()]
        self._modes: list[bool] = []
        self._addresses: list[int] = []
        self._views: list[list[Sequence[Tensor]]] = []
        self._bound: tuple[RamStorage, int] | None = None

    @property
    def has_other_modes(self) -> bool:
        """Whether a module is in another mode than `bind` left it in."""
        return [part.training for part in self._modules] != self._modes

    @property
    def num_gradients(self) -> int:
        """How many parameters have a gradient."""
        return sum(parameter.grad is not None for parameter in self.parameters)

    def shares(self, other: HeldLayers) -> bool:
        """Whether both have a template."""
        return not {id(template) for template in self.templates}.isdisjoint(map(id, other.templates))

    def bind(self, server: ParamServer, storage: RamStorage, *, is_training: bool) -> None:
        """Have the templates be in training or evaluation, on the states of a server."""
        if self._bound is None or self._bound[0] is not storage or self._bound[1] != storage.changes:
            server.prepare(self.states)
            self._views = [[storage.open(key).views for key in layer.states] for layer in self.owners]
            self._open(server, storage)
            self._bound = storage, storage.changes
        for template, views in zip(self.templates, self._views, strict=True):
            template.bind(views)
            template.module.train(is_training)
        self._modes = [part.training for part in self._modules]  # `train` of a module may keep some as they are
        for parameter in self.parameters:
            parameter.grad = None
        self._addresses = [parameter.data_ptr() for parameter in self.parameters]

    def _open(self, server: ParamServer, storage: RamStorage) -> None:
        """Find what else is to be known of states that were not used before."""

    def release(self) -> None:
        """Refer to no state."""
        self._bound, self._views = None, []
        for template in self.templates:
            template.unbind()

    @property
    def versions(self) -> list[int]:
        """Of each parameter, another number after anything but an update wrote to it."""
        return [parameter._version for parameter in self.parameters]

    def refuse_changes(self, pool: LayerPool, versions: Sequence[int]) -> None:
        """Refuse what a forward may not change; the probe sees it before, unless a value decided it.

        Args:
            versions: what they were before.

        Raises:
            SpaceError: parameters were changed, moved or replaced, or a buffer was replaced.
        """
        for number in self.with_buffers:
            refuse_replaced_buffers(self.owners[number], self.templates[number], pool)
        if self.versions != versions:
            changed = {id(p) for p, old in zip(self.parameters, versions, strict=True) if p._version != old}
            for layer, template in zip(self.owners, self.templates, strict=True):
                if any(id(p) in changed for own in template.parameters for p in own):
                    refuse_changed_parameters(layer, pool)
        is_same = all(own.get(leaf) is parameter for own, leaf, parameter in self._places)
        if not is_same or [parameter.data_ptr() for parameter in self.parameters] != self._addresses:
            for layer, template in zip(self.owners, self.templates, strict=True):
                refuse_moved_parameters(layer, template, pool)


class HeldPath(HeldLayers):
    """What a step of one path needs to know, found once.

    Args:
        layers: the path.
        flow: its values.
        specs: of values on the device.
        bank: makes the templates.

    Attributes:
        uses: states that learn, in the order in which their gradients would leave: the last layer's first.
        order: of all gradients, as a plain model lists their parameters.
        objective: the task with the weights that it has in this path, if it learns.
        held: the states of `uses`, once bound.
        joints: rules that update many states in one call, once bound.
        joint_uses, singles: which states they update, and which are updated one by one.
    """

    def __init__(self, layers: Sequence[Layer], flow: Flow, specs: Mapping[str, Specs], bank: SlotBank) -> None:
        super().__init__(layers, bank)
        self.flow = flow
        self.has_repeats = len(self.owners) < len(self.layers)
        modules = {layer.key: t.module for layer, t in zip(self.owners, self.templates, strict=True)}
        self.places = [
            HeldLayer(layer, modules[layer.key], reads, writes, _only_dtype(writes, specs))
            for layer, reads, writes in zip(layers, flow.reads, flow.writes, strict=True)
        ]
        held = next((module for module in modules.values() if isinstance(module, ObjectiveLayer)), None)
        self.objective: Any = None if held is None else held.task
        self.uses = self._find_uses()
        self.order = torch.tensor(self._find_order(), dtype=torch.long)
        self._primary = [parameter for use in self.uses for parameter in use.parameters[0]]
        self._tied = [use for use in self.uses if len(use.parameters) > 1]
        self.held: list[LayerState] = []
        self.joints: list[Joint] = []
        self.joint_uses: list[int] = []
        self.singles: list[int] = []
        self._blocks: list[tuple[int, Tensor]] = []

    def _find_uses(self) -> list[StateUse]:
        uses: dict[str, StateUse] = {}
        count = 0
        for layer, template in zip(reversed(self.owners), reversed(self.templates), strict=True):
            for key, parameters in zip(layer.states, template.parameters, strict=True):
                indices = [index for index, parameter in enumerate(parameters) if parameter.requires_grad]
                if not indices:
                    continue
                if key not in uses:
                    uses[key] = StateUse(key, indices, len(parameters), range(count, count + len(indices)))
                    count += len(indices)
                uses[key].parameters.append([parameters[index] for index in indices])
        return list(uses.values())

    def _find_order(self) -> list[int]:
        numbers = {
            (use.key, index): number
            for use in self.uses
            for index, number in zip(use.indices, use.numbers, strict=True)
        }
        listed = (
            (layer.states[number], index)
            for layer, template in zip(self.owners, self.templates, strict=True)
            for number, index in template.parameter_order
        )
        return list(dict.fromkeys(numbers[one] for one in listed if one in numbers))

    def _open(self, server: ParamServer, storage: RamStorage) -> None:
        self.held = [storage.open(use.key) for use in self.uses]
        joints: dict[object, Joint] = {}
        self.joint_uses, self.singles = [], []
        for number, (use, state) in enumerate(zip(self.uses, self.held, strict=True)):
            calls = server.rules.of(use.key).calls
            has_moments = len(state.moments) == len(state.layout.moments)  # a snapshot, to be scored only, has none
            if not has_moments or not all(updates_many(call.rule) for call in calls):
                self.singles.append(number)
                continue
            self.joint_uses.append(number)
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
        self._blocks = [(number, block) for number in self.joint_uses for block in self.held[number].updated_blocks]

    def release(self) -> None:
        """Refer to no state."""
        super().release()
        self.held, self.joints, self._blocks = [], [], []

    def gradients(self) -> list[Tensor | None]:
        """Of the trainable parameters of all states in `uses`; None where autograd gave none."""
        found = [parameter.grad for parameter in self._primary]
        for use in self._tied:
            for parameters in use.parameters[1:]:
                for number, parameter in zip(use.numbers, parameters, strict=True):
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

    @property
    def block_versions(self) -> list[int]:
        """Of each block that a joint update writes."""
        return [block._version for _, block in self._blocks]

    def changed_since(self, versions: Sequence[int]) -> list[int]:
        """Which states in `uses` have a block that was written since it had this version."""
        pairs = zip(self._blocks, versions, strict=True)
        return list(dict.fromkeys(number for (number, block), old in pairs if block._version != old))


def _only_dtype(writes: Sequence[str], specs: Mapping[str, Specs]) -> torch.dtype | None:
    given = specs[writes[0]]
    return given[0].dtype if len(writes) == 1 and len(given) == 1 and not given[0].dtype.is_complex else None
