"""The eager param-server: layer states by key, created on first visit, updated as their gradients arrive.

[Note: what is drained] Updates may wait or run in another thread. Everything public but the relay's own calls first has
the relays finish them (`drain`), so that whoever examines a state sees the result of every step taken.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_kind, check_list, check_seed, refuse_class, shown
from l2l_nas.eps.gradients import GradientQueue, Pending, Verdict
from l2l_nas.eps.layout import Layout, layout_of, wire_layout_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import freeze, rules_of
from l2l_nas.eps.scale import Clip, LossScale
from l2l_nas.eps.state import LayerState, Part, first_state
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import NonFiniteError, SettingError, SpaceError, did_you_mean, of_user
from l2l_nas.space.elastic import cell_states
from l2l_nas.space.pool import Layer, LayerPool


class Drained(Protocol):
    """Has updates under way, or states on a device that are newer than the host's."""

    def drain(self) -> None:
        """Finish them, and bring the host's states up to date."""


class ResidentStates(Protocol):
    """States that live on a device and are updated there; see `relay/residents.py`."""

    def get(self, key: str) -> LayerState | None:
        """A state, without its buffers, if it is there."""

    def updating(self, key: str) -> AbstractContextManager[LayerState]:
        """A state that is there, to be changed. What is done inside, or before on its stream, is over at the end.

        Where something is raised inside, it is there no more: see `Storage.writing`.
        """

    def note_buffers(self, key: str, version: int) -> None:
        """The buffers of a state were stored on the host, whose version is this one now."""

    def release(self) -> None:
        """Write everything back to the host, and hold nothing."""


class ParamServer:
    """All layer states of a pool, on the host.

    Host cost: 12 bytes a parameter with AdamW when updates are eager (weights and two moments; gradients pass through
    staging buffers, as many as updates lag behind). For the layers of a path 16 when gradients are held until they are
    checked (`exact`, `serial`), up to 28 when updates run ahead of the check (`ahead`). Beside those the weights as
    they cross the link, where they are stored: 2 more with bf16 or fp16; see `wire.py`.

    Args:
        pool: what the states belong to. Where `optimizer` freezes parameters, the server's own `pool` is another one.
        optimizer: the update rule of every state, or `Groups` of parameters.
        seed: with a state's key, it decides the state's first weights.
        storage: where states live; host memory if nothing is said.

    Raises:
        SettingError: a group of parameters that there is not, a parameter that the optimizer cannot update, or an
            argument of another kind.
    """

    def __init__(self, pool: LayerPool, *, optimizer: Optimizer, seed: int, storage: Storage | None = None) -> None:
        check_kind("pool", pool, LayerPool, wanted="a LayerPool")
        check_kind("optimizer", optimizer, Optimizer, wanted="an optimizer, such as AdamW()")
        refuse_class("optimizer", optimizer)
        if storage is not None:
            check_kind("storage", storage, Storage, wanted="a storage, such as FileStorage(folder)")
            refuse_class("storage", storage)
        self.pool = freeze(pool, optimizer)
        self.optimizer = optimizer
        self.rules = rules_of(self.pool, optimizer)
        self._refuse_cells()
        self.seed = check_seed(seed)
        self.storage: Storage = RamStorage() if storage is None else storage
        self.loss_scale: LossScale | None = None
        # states whose buffers stay as they are; what keeps their weights is that nothing in them is trainable. Copies
        # (`fork`) have none: there statistics may be measured
        self.frozen: frozenset[str] = frozenset()
        # a bound method would have server and queue hold each other until the collector comes
        self.gradients = GradientQueue(partial(layout_of, self.pool))
        self._spares: list[tuple[Tensor, ...]] = []  # blocks for what states were before an update ahead
        self._users: list[Drained] = []
        self.residents: ResidentStates | None = None
        self.masters: WireMemory | None = None  # where the weights of new states go, if a device copies from there

    def _refuse_cells(self) -> None:
        for key, layer in cell_states(self.pool).items():
            for call in self.rules.of(key).calls:
                if not getattr(call.rule, "is_elementwise", True):
                    raise SettingError(
                        f"optimizer {call.rule.name} updates whole matrices, but candidates of "
                        f"'{self.pool.positions[layer.position].name}' are regions of one; take adamw, sgd or lion, or "
                        "leave its parameters to them by a group"
                    )

    def layout(self, key: str) -> Layout:
        """Where the tensors of a state lie."""
        return layout_of(self.pool, key)

    def attach(self, user: Drained) -> None:
        """Know that a relay has updates under way, to be drained before anybody reads."""
        if user not in self._users:
            self._users.append(user)

    def detach(self, user: Drained) -> None:
        """Its updates are done."""
        if user in self._users:
            self._users.remove(user)

    def drain(self, *, but: Drained | None = None) -> None:
        """Finish all updates under way, but those of one relay.

        Raises:
            NonFiniteError: a gradient of the last step was not finite.
            StorageError: a state could not be written.
        """
        for user in list(self._users):
            if user is not but:
                user.drain()

    def state(self, key: str) -> LayerState:
        """The state of a key, created now if this is its first visit. Of a state on disk, a copy.

        Who changes weights through it calls `LayerState.mark_changed` then: relays in bf16, in fp16 or on CUDA load the
        copy that is stored for the link.

        Raises:
            SpaceError: its factory raised, or there is no such state.
        """
        self.drain()
        self.prepare([key])
        with self.storage.reading(key, Part.ALL) as state:
            return state if self.storage.is_lasting else state.clone()

    @property
    def visited(self) -> tuple[str, ...]:
        """Keys of the states that exist."""
        return self.storage.keys

    def adopt(self, states: dict[str, LayerState]) -> None:
        """Replace all states, as a checkpoint does."""
        self.drain()
        if self.residents is not None:
            self.residents.release()
        self.storage.clear()
        for key, state in states.items():
            self.storage.put(key, state)

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """A plain module with a copy of a layer's weights and buffers, on the host.

        Args:
            tied: parameters shared between modules, by name; what is missing is added, for the next module.
        """
        with torch.random.fork_rng(devices=[]):  # what a factory draws is replaced
            module = self.pool.build_module(layer)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        buffers = dict(module.named_buffers())
        state = self.state(layer.key)
        with torch.no_grad():
            for name, value in state.parameters().items():
                parameters[name].copy_(value)
            for name, value in state.named_buffers().items():
                buffers[name].copy_(value)
        for name, group in layer.candidate.tied.items():
            if group not in tied:
                key = f"tied/{group}"
                value = self.state(key).parameters()["weight"]
                tied[group] = nn.Parameter(value.clone(), requires_grad=self.layout(key).parameters[0].trainable)
            path, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(path), leaf, tied[group])
        return module

    @property
    def num_bytes(self) -> int:
        """Of all states that there are: weights, moments and buffers."""
        tensors = (tensor for key in self.visited for tensor in self.state(key).tensors().values())
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def fork(self, keys: Iterable[str]) -> ParamServer:
        """A server in memory with copies of these states; the others start from their seeds. This one stays as is."""
        keys = check_list("keys", keys, of=str, wanted="keys of states")
        self.drain()
        other = ParamServer(self.pool, optimizer=self.optimizer, seed=self.seed)
        other.masters = self.masters
        other.loss_scale = replace(self.loss_scale) if self.loss_scale is not None else None
        known = set(self.visited)
        for key in keys:
            if key in known:
                with self.storage.reading(key, Part.ALL) as state:
                    other.storage.put(key, state.clone(self.masters))
        return other

    def snapshot(self, keys: Iterable[str]) -> ParamServer:
        """A server in memory with the weights and buffers of these states as they are now, to be examined only."""
        self.drain()
        other = ParamServer(self.pool, optimizer=self.optimizer, seed=self.seed)
        other.loss_scale = self.loss_scale
        known = set(self.visited)
        for key in keys:
            if key in known:
                with self.storage.reading(key) as state:
                    weights, buffers = state.weights.clone(), state.buffers.clone()
                    copy = LayerState(state.layout, weights, (), state.steps.clone(), buffers)
                    copy.visits, copy.version = state.visits, state.version
                other.storage.put(key, copy)
        return other

    # What follows is the relay's: it sees states as they are, in whichever lane.

    def prepare(self, keys: Iterable[str]) -> None:
        """Create the states that do not exist yet.

        Raises:
            SpaceError: a factory raised.
            UserCodeError: a storage of the user's own raised.
        """
        with of_user(self.storage, "storage"):
            known = set(self.storage.keys)
            masters = self.masters if self.storage.is_lasting else None
            for key in keys:
                if key not in known:
                    if not isinstance(key, str) or not self.pool.has_state(key):
                        raise SpaceError(f"no state {shown(key)}{did_you_mean(str(key), self.pool.states)}")
                    state = first_state(self.pool, key, optimizer=self.optimizer, seed=self.seed, masters=masters)
                    self.storage.put_new(key, state)

    def in_place(self, key: str) -> LayerState | None:
        """A state whose masters a layer may compute on where they lie; None if it must be loaded.

        The plan's order is what keeps updates from weights in use: an update waits for all visits that read them.
        """
        if not self.storage.is_lasting or self.storage.is_shared:
            return None
        with self.storage.reading(key) as state:
            return state

    def load(self, key: str, weights: Tensor, *, dtype: torch.dtype, wire: WireMemory) -> int:
        """Copy a state's weights to a block laid out as they cross the link; returns how many updates they have had.

        Args:
            wire: see [Note: what crosses]. States on disk are rounded when they are read.
        """
        layout = wire_layout_of(self.pool, key, dtype)
        with self.storage.reading(key) as state:
            source = self._source(state, layout, dtype, wire)
            if source is not None:
                weights.copy_(source, non_blocking=self.storage.is_lasting)
            elif wire.is_pinned:
                block = wire.stage(layout.parameter_bytes)
                state.copy_to_wire(layout, block)
                weights.copy_(block, non_blocking=True)
            else:
                state.copy_to_wire(layout, weights)
            return state.visits

    def _source(self, state: LayerState, layout: Layout, dtype: torch.dtype, wire: WireMemory) -> Tensor | None:
        """What a load copies from; None if it must round first."""
        if dtype == torch.float32 and (state.is_pinned or not wire.is_pinned):
            return state.weights
        if not self.storage.is_lasting:
            return None
        if state.wire is None or state.wire.numel() != layout.parameter_bytes or state.wire_dtype != dtype:
            block = wire.take(layout.parameter_bytes)
            if block is None:
                return None
            state.keep_wire(layout, block, dtype)
        return state.wire

    @contextlib.contextmanager
    def buffers(self, key: str) -> Iterator[LayerState]:
        """A state, to read its buffers."""
        with self.storage.reading(key, Part.BUFFERS) as state:
            yield state

    def store_buffers(self, key: str, buffers: Tensor, layout: Layout | None = None) -> None:
        """Take over buffers that a forward changed; see `LayerState.store_buffers`. Frozen ones stay."""
        if key in self.frozen:
            return
        with self.storage.writing(key, Part.BUFFERS) as state:
            state.store_buffers(buffers, layout)
            if self.residents is not None:
                self.residents.note_buffers(key, state.version)

    def check_gradients(
        self,
        order: Sequence[tuple[str, int]],
        *,
        clip: Clip | None,
        is_scaled: bool = False,
        is_loss_finite: bool = True,
    ) -> Verdict:
        """Check all gradients of a step; where they overflowed, forget them. See `GradientQueue.check`.

        Args:
            is_scaled: whether they are those of the loss times `loss_scale`.
        """
        scale = self.loss_scale if is_scaled else None
        verdict = self.gradients.check(order, clip=clip, scale=scale, is_loss_finite=is_loss_finite)
        if verdict.is_refused:
            self._discard(self.gradients.unchecked)
        return verdict

    def update(self, key: str, *, checked: bool, clip: Clip | None = None) -> None:
        """Apply a state's contributions, then forget them.

        Args:
            checked: whether `check_gradients` has seen them; if not, they are examined now.
            clip: scales gradients that were not checked down, by the norm of this state alone.

        Raises:
            NonFiniteError: the gradient has a NaN or inf; the state is as it was.
            BaseException: what the rule raised; the state is as it was, or refused from then on (StateLostError).
        """
        pending = self.gradients.waiting.pop(key)
        try:
            if not checked:
                if not self.gradients.gather(key, pending):
                    raise NonFiniteError("gradient", layer=key, step=pending.step)
                if clip is not None:
                    pending.coefficient = clip.coefficient(pending.touched_norms())
            size = self.layout(key).parameter_bytes
            gradients = pending.parts[0][:size]
            if pending.coefficient != 1.0:
                gradients.view(torch.float32).mul_(pending.coefficient)
            with self._updating(key) as state:
                state.update(self.rules.of(key).calls, gradients, pending.touched, lr=pending.lr)
        finally:
            self.gradients.release(pending)

    def resident(self, key: str) -> LayerState | None:
        """A state on the device, without its buffers; None if it lives on the host."""
        return None if self.residents is None else self.residents.get(key)

    def _updating(self, key: str) -> AbstractContextManager[LayerState]:
        """A state where it is updated: on a device, or in the storage."""
        if self.residents is not None and self.residents.get(key) is not None:
            return self.residents.updating(key)
        return self.storage.writing(key)

    def update_ahead(self, key: str, *, scale: float = 1.0) -> None:
        """Apply a state's contributions before they are checked, as if nothing were to be clipped; `confirm` follows.

        What the state was is copied: 12 bytes a parameter with AdamW, beside 4 for the gradient, until then. A gradient
        that is not finite is left to the check.

        Args:
            scale: what the loss was multiplied by.
        """
        pending = self.gradients.waiting[key]
        if not self.gradients.gather(key, pending):
            return
        gradients = pending.parts[0][: self.layout(key).parameter_bytes]
        if scale != 1.0:
            gradients.view(torch.float32).mul_(1.0 / scale)
        failure: BaseException | None = None
        with self._updating(key) as state:
            sizes = [(block.numel(), block.device) for block in state.updated_blocks]
            spares = ([(block.numel(), block.device) for block in blocks] for blocks in self._spares)
            found = next((index for index, spare in enumerate(spares) if spare == sizes), None)
            pending.saved = state.save(None if found is None else self._spares.pop(found))
            try:
                state.update(self.rules.of(key).calls, gradients, pending.touched, lr=pending.lr)
            except BaseException as error:
                state.put_back(pending.saved)
                pending.saved, failure = None, error
        if failure is not None:
            raise failure

    def confirm(self) -> None:
        """After the check: let updates ahead of it stand, or put them back and apply what is clipped.

        What was not updated by then is updated as usual.
        """
        ahead = {key: pending for key, pending in self.gradients.waiting.items() if pending.saved is not None}
        self._spares = [pending.saved.blocks for pending in ahead.values() if pending.saved is not None]
        for key, pending in ahead.items():
            if pending.coefficient != 1.0:
                self._put_back(key, pending)
                self.update(key, checked=True)
        self.gradients.forget(key for key in ahead if key in self.gradients.waiting)

    def _put_back(self, key: str, pending: Pending) -> None:
        if pending.saved is not None:
            with self._updating(key) as state:
                state.put_back(pending.saved)
            pending.saved = None

    def discard_pending(self, *, but: Collection[str] = ()) -> None:
        """Forget gradients that were not applied, or only ahead of the check, after a refused step.

        Args:
            but: states whose gradients passed the check of an earlier step.
        """
        self._discard({key: pending for key, pending in self.gradients.waiting.items() if key not in but})

    def _discard(self, refused: Mapping[str, Pending]) -> None:
        failure: BaseException | None = None
        for key, pending in refused.items():
            try:
                self._put_back(key, pending)
            except BaseException as error:  # the others are to be put back all the same
                failure = failure or error
        self.gradients.forget(refused)
        if failure is not None:
            raise failure
