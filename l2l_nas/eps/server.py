"""The eager param-server: layer states by key, created on first visit, updated as their gradients arrive.

[Note: what is drained] Updates may wait or run in another thread. Everything public but the relay's own calls first has
the relays finish them (`drain`), so that whoever examines a state sees the result of every step taken.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

import torch
from torch import Tensor, nn

from l2l_nas.arguments import check_kind, check_list, check_seed, refuse_class, shown
from l2l_nas.eps.exchange import Alone, Exchange
from l2l_nas.eps.inbox import GradientInbox
from l2l_nas.eps.layout import Layout, layout_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import PoolRules, freeze, rules_of
from l2l_nas.eps.state import LayerState, Part, first_state
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.eps.wire import WireMemory
from l2l_nas.errors import SettingError, SpaceError, did_you_mean, of_user
from l2l_nas.space.build import put_parameter
from l2l_nas.space.elastic import cell_states
from l2l_nas.space.pool import Layer, LayerPool, tied_key


class StateUser(Protocol):
    """A relay, which may have updates under way, or states on a device that are newer than the host's.

    `drain` finishes the updates, and brings the host's states up to date; after `release` it holds no copy of a state.
    """

    def drain(self) -> None: ...

    def release(self) -> None: ...


class ParamServer:
    """All layer states of a pool, on the host. With several ranks see `ShardedServer`.

    Host cost: 12 bytes a parameter with AdamW when updates are eager (weights and two moments; gradients pass through
    staging buffers). For the layers of a path 16 when gradients are held until they are checked (`exact`), up to 28
    when updates run ahead of the check. Weights that are stored in bf16 or fp16 take 2 more; see `wire.py`.

    Args:
        pool: of the states. Where `optimizer` freezes parameters, the server's attribute `pool` is another one.
        optimizer: the update rule of every state, or `Groups` of parameters.
        seed: decides the first weights of a state, together with the state's key.
        frozen: keys of states whose buffers stay as they are; their weights stay as long as nothing in them is
            trainable. Copies (`fork`) have none: there statistics may be measured.

    Raises:
        SettingError: a group of parameters that there is not, a parameter that the optimizer cannot update, or an
            argument of another kind.
    """

    exchange: Exchange = Alone()  # with ranks that share mini-batches
    world: Exchange = Alone()  # with all ranks of the training
    tensor: Exchange = Alone()  # with ranks that share layers

    def __init__(
        self,
        pool: LayerPool,
        *,
        optimizer: Optimizer,
        seed: int,
        storage: Storage | None = None,
        frozen: Iterable[str] = (),
    ) -> None:
        check_kind("pool", pool, LayerPool, wanted="a LayerPool")
        check_kind("optimizer", optimizer, Optimizer, wanted="an optimizer, such as AdamW()")
        refuse_class("optimizer", optimizer)
        if storage is not None:
            check_kind("storage", storage, Storage, wanted="a storage, such as FileStorage(folder)")
            refuse_class("storage", storage)
        self.optimizer = optimizer
        self.pool = self._frozen(pool)
        self.rules = self._make_rules()
        self._refuse_cells()
        self.seed = check_seed(seed)
        self.storage: Storage = RamStorage() if storage is None else storage
        self.frozen = frozenset(check_list("frozen", frozen, of=str, wanted="keys of states"))
        self.gradients = GradientInbox(self.pool, self.rules)
        self.at_work = threading.Lock()  # one relay and one thread at a time
        self._user: weakref.ref[StateUser] | None = None  # works on the states, and may hold copies of them
        self._busy: StateUser | None = None  # the user while it has updates under way
        self._masters: WireMemory | None = None  # where the weights of new states go, if a device copies from there

    def _frozen(self, pool: LayerPool) -> LayerPool:
        return freeze(pool, self.optimizer)

    def _make_rules(self) -> PoolRules:
        return rules_of(self.pool, self.optimizer)

    @property
    def whole_pool(self) -> LayerPool:
        """The pool as one process has it, where layers are divided among ranks; `pool` is of this rank's parts."""
        return self.pool

    def whole_layout(self, key: str) -> Layout:
        """The layout of a state as one process has it, with what the optimizer keeps."""
        return self.rules.of(key).layout

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
        return layout_of(self.pool, key)

    def held_layout(self, key: str) -> Layout:
        """What this process holds of a state, with its moments."""
        return self.rules.of(key).layout

    def is_sharded(self, key: str) -> bool:
        """Whether the weights of a state come from several ranks."""
        return False

    def all_gather_weights(self, key: str, state: LayerState, slot: Tensor, dtype: torch.dtype) -> None:
        """Have the weights of all ranks in a slot, in the dtype in which they cross the link; all ranks call it."""
        raise NotImplementedError("no rank but this one has a part of it")

    def put(self, key: str, state: LayerState) -> None:
        """Take over a state, or replace it."""
        self.storage.put(key, state)

    def all_gather(self, key: str, part: Part = Part.ALL) -> AbstractContextManager[LayerState]:
        """A state with the parts of all ranks, for reading; all of them call it. See `Storage.reading`."""
        return self.storage.reading(key, part)

    def writing(self, key: str) -> AbstractContextManager[LayerState]:
        """A state, to be changed; see `Storage.writing`."""
        return self.storage.writing(key)

    def _put_first(self, key: str, state: LayerState) -> None:
        self.storage.put(key, state)

    def serve(self, user: StateUser | None) -> None:
        """Have one relay work on the states from now on; another one finishes its updates, and holds no copies."""
        other = None if self._user is None else self._user()
        if other is not user:
            if other is not None:
                other.release()
            self._user = None if user is None else weakref.ref(user)

    def leave(self, user: StateUser) -> None:
        """End what `serve` began."""
        if self._user is not None and self._user() is user:
            self._user = None

    def begin_updates(self, user: StateUser) -> None:
        """Note that updates are under way, to be drained before anybody reads."""
        self._busy = user

    def end_updates(self) -> None:
        self._busy = None

    def drain(self) -> None:
        """Finish all updates under way.

        Raises:
            NonFiniteError: a gradient of the last step was not finite.
            StorageError: a state could not be written.
        """
        if self._busy is not None:
            self._busy.drain()

    def pin_masters(self, memory: WireMemory) -> None:
        """Have the weights of new states, and of forks, lie where a device copies from."""
        self._masters = memory

    def move_to(self, storage: Storage) -> None:
        """Have states live in another storage; present ones are copied."""
        self.serve(None)
        for key in self.storage.keys:
            with self.storage.reading(key, Part.ALL) as state:
                storage.put(key, state.clone())
        self.storage = storage

    def state(self, key: str) -> LayerState:
        """The state of a key, created now if this is its first visit. Of a state on disk, a copy.

        After weights were changed through it, call `LayerState.mark_changed`: relays may load a stored copy.

        Raises:
            SpaceError: its factory raised, or there is no such state.
        """
        check_kind("key", key, str, wanted="the key of a state")
        self.drain()
        self.prepare([key])
        with self.storage.reading(key, Part.ALL) as state:
            return state if self.storage.is_lasting else state.clone()

    @property
    def visited(self) -> tuple[str, ...]:
        """Keys of the states that exist."""
        return self.storage.keys

    def clear(self) -> None:
        self.serve(None)
        self.storage.clear()

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """A plain module with a copy of the weights and buffers of a layer of the whole pool, on the host.

        Parameters shared between modules are taken from `tied`, by name; missing ones are added, for the next module.
        """
        with torch.random.fork_rng(devices=[]):  # what a factory draws is replaced
            module = self.whole_pool.build_module(layer)
        state = self.state(layer.key)
        tensors = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in (state.parameters() | state.named_buffers()).items():
                tensors[name].copy_(value)
        for name, group in layer.candidate.tied.items():
            if group not in tied:
                key = tied_key(group)
                value = self.state(key).parameters()["weight"]
                tied[group] = nn.Parameter(value.clone(), requires_grad=self.whole_layout(key).parameters[0].trainable)
            put_parameter(module, name, tied[group])
        return module

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for key in self.visited for tensor in self.state(key).tensors().values())

    def fork(self, keys: Iterable[str]) -> ParamServer:
        """A server in memory with copies of these states; the others start from their seeds. This one stays as is."""
        keys = check_list("keys", keys, of=str, wanted="keys of states")
        self.drain()
        other = self.like()
        other._masters = self._masters
        if self.gradients.scale_state is not None:  # or the first steps with fp16 would overflow anew
            other.gradients.scale_losses(self.gradients.scale_state)
        present = set(self.visited)
        for key in keys:
            if key in present:
                with self.storage.reading(key, Part.ALL) as state:
                    other.storage.put(key, state.clone(self._masters))
        return other

    def another(self, pool: LayerPool | None = None, *, storage: Storage | None = None) -> ParamServer:
        """A server of this process alone, with the same optimizer, seed and frozen states.

        Args:
            pool: what it has; without one, what this one has, whole.
            storage: where its states are; without one, in memory, where each begins with its first weights.
        """
        pool = self.whole_pool if pool is None else pool
        return ParamServer(pool, optimizer=self.optimizer, seed=self.seed, storage=storage, frozen=self.frozen)

    def like(self, pool: LayerPool | None = None, *, storage: Storage | None = None) -> ParamServer:
        """The same as `another`; of a server of several ranks, one of these.

        Raises:
            SettingError: another pool, where ranks share layers.
        """
        return self.another(pool, storage=storage)

    def prepare(self, keys: Iterable[str]) -> None:
        """Create the states that do not exist yet.

        Raises:
            SpaceError: a factory raised.
            UserCodeError: a storage of the user's own raised.
        """
        if not isinstance(keys, Mapping):  # what is held of a path is one, by key
            keys = check_list("keys", keys, of=str, wanted="keys of states")
        with of_user(self.storage, "storage"):
            present = set(self.storage.keys)
            masters = self._masters if self.storage.is_lasting else None
            for key in keys:
                if key not in present:
                    if not self.pool.has_state(key):
                        raise SpaceError(
                            f"key {shown(key)} is none of the pool's keys{did_you_mean(key, self.pool.states)}"
                        )
                    layout = self.rules.of(key).layout
                    state = first_state(self.pool, key, layout=layout, seed=self.seed, masters=masters)
                    self._put_first(key, state)
                    present.add(key)  # a repeated layer stands in a path once per place
