"""The eager param-server: layer states by key, created on first visit, updated as their gradients arrive.

[Note: what is drained] Updates may wait or run in another thread. Everything public but the relay's own calls first has
the relays finish them (`drain`), so that whoever examines a state sees the result of every step taken.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from l2l_nas.eps.layout import Layout, layout_of, wire_layout_of
from l2l_nas.eps.optimizers.base import Optimizer
from l2l_nas.eps.optimizers.groups import freeze, rules_of
from l2l_nas.eps.scale import Clip, LossScale, total_norm
from l2l_nas.eps.state import LayerState, Part, Saved, first_state
from l2l_nas.eps.storage import RamStorage, Storage
from l2l_nas.errors import NonFiniteError, SettingError
from l2l_nas.space.elastic import cell_states
from l2l_nas.space.pool import Layer, LayerPool

Allocate = Callable[[int], Tensor]


class Drained(Protocol):
    """Has updates under way."""

    def drain(self) -> None:
        """Finish them."""


@dataclass
class _Pending:
    """Gradients on the host that wait for their update.

    Attributes:
        parts: one block for each place of the path that used the state; summed into the first one.
        norms: of each parameter's gradient.
        touched: for each parameter, whether it got a gradient.
        coefficient: what they are multiplied by when they are applied.
        saved: the state before they were applied ahead of the check, if they were.
    """

    lr: float
    step: int
    parts: list[Tensor] = field(default_factory=list)
    norms: Tensor | None = None
    touched: list[bool] = field(default_factory=list)
    coefficient: float = 1.0
    saved: Saved | None = None

    def touched_norms(self, factor: float = 1.0) -> list[Tensor]:
        """Norms of the gradients there are."""
        assert self.norms is not None
        return [norm * factor for norm, touched in zip(self.norms, self.touched, strict=True) if touched]


@dataclass(frozen=True)
class Verdict:
    """What all gradients of a step together say.

    Args:
        norm: their Euclidean norm, before clipping.
        is_refused: they overflowed, and the loss scale was lowered; nothing of the step is applied.
        is_clipped: they are scaled down.
    """

    norm: float
    is_refused: bool = False
    is_clipped: bool = False


class ParamServer:
    """All layer states of a pool, on the host.

    Host cost: 12 bytes a parameter with AdamW when updates are eager (weights and two moments; gradients pass through
    staging buffers, as many as updates lag behind). For the layers of a path 16 when gradients are held until they are
    checked (`exact`, `serial`), 28 when updates run ahead of the check (`ahead`). Beside those the weights as they
    cross the link: 2 more with bf16 or fp16, 4 in fp32 on CUDA.

    Args:
        pool: what the states belong to. Where `optimizer` freezes parameters, the server's own `pool` is another one.
        optimizer: the update rule of every state, or `Groups` of parameters.
        seed: with a state's key, it decides the state's first weights.
        storage: where states live; host memory if nothing is said.

    Raises:
        SettingError: a group of parameters that there is not, or a parameter that the optimizer cannot update.
    """

    def __init__(self, pool: LayerPool, *, optimizer: Optimizer, seed: int, storage: Storage | None = None) -> None:
        self.pool = freeze(pool, optimizer)
        self.optimizer = optimizer
        self.rules = rules_of(self.pool, optimizer)
        self._refuse_cells()
        self.seed = seed
        self.storage: Storage = RamStorage() if storage is None else storage
        self.loss_scale: LossScale | None = None
        # states whose buffers stay as they are; what keeps their weights is that nothing in them is trainable. Copies
        # (`fork`) have none: there statistics may be measured
        self.frozen: frozenset[str] = frozenset()
        self._pending: dict[str, _Pending] = {}
        self._staging: list[Tensor] = []
        self._spares: list[tuple[Tensor, ...]] = []  # blocks for what states were before an update ahead
        self._lock = threading.Lock()
        self._users: list[Drained] = []

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
            SpaceError: its factory raised.
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
        self.storage.clear()
        for key, state in states.items():
            self.storage.put(key, state)

    def build_module(self, layer: Layer, tied: dict[str, nn.Parameter]) -> nn.Module:
        """A plain module with a copy of a layer's weights and buffers, on the host.

        Args:
            tied: parameters shared between modules, by name; what is missing is added, for the next module.
        """
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
        self.drain()
        other = ParamServer(self.pool, optimizer=self.optimizer, seed=self.seed)
        other.loss_scale = replace(self.loss_scale) if self.loss_scale is not None else None
        known = set(self.visited)
        for key in keys:
            if key in known:
                with self.storage.reading(key, Part.ALL) as state:
                    other.storage.put(key, state.clone())
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
        """
        known = set(self.storage.keys)
        for key in keys:
            if key not in known:
                self.storage.put_new(key, first_state(self.pool, key, optimizer=self.optimizer, seed=self.seed))

    def lend(self, key: str) -> LayerState | None:
        """A state whose masters a layer may compute on where they lie; None if it must be loaded.

        The plan's order is what keeps updates from weights in use: an update waits for all visits that read them.
        """
        if not self.storage.is_lasting or self.storage.is_shared:
            return None
        with self.storage.reading(key) as state:
            return state

    def load(self, key: str, weights: Tensor, *, dtype: torch.dtype, allocate: Allocate | None) -> int:
        """Copy a state's weights to a block laid out as they cross the link; returns how many updates they have had.

        Args:
            allocate: makes the block for the copy that is stored beside the masters; None if masters of that dtype need
                no such copy. States on disk are never stored so: they are rounded when they are read.
        """
        with self.storage.reading(key) as state:
            source = state.weights
            if not self.storage.is_lasting:
                if dtype != torch.float32:
                    state.copy_to_wire(wire_layout_of(self.pool, key, dtype), weights)
                    return state.visits
            elif dtype != torch.float32 or allocate is not None:
                layout = wire_layout_of(self.pool, key, dtype)
                if state.wire is None or state.wire.numel() != layout.parameter_bytes or state.wire_dtype != dtype:
                    state.keep_wire(layout, (allocate or _host_block)(layout.parameter_bytes), dtype)
                assert state.wire is not None
                source = state.wire
            weights.copy_(source, non_blocking=self.storage.is_lasting)
            return state.visits

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

    def contribute(
        self,
        key: str,
        gradients: Tensor,
        touched: Sequence[bool],
        norms: Tensor | None = None,
        *,
        lr: float,
        step: int,
        allocate: Allocate | None = None,
        own: Tensor | None = None,
    ) -> None:
        """Take a gradient from the device; a state used twice in a path contributes twice.

        Args:
            gradients: a block laid out as the state's masters, on any device. It is copied on the current stream.
            touched: for each parameter, whether it got a gradient.
            norms: for each parameter, the norm of its gradient; None to find it here.
            lr: learning rate of the update that will apply it.
            step: the training step, for messages.
            own: the block of `take_block` that gradients lie in, with norms behind them; nothing is copied then.
        """
        size = gradients.numel()
        behind = norms.nbytes if norms is not None else 0
        buffer = self._stage(size + behind, allocate or _host_block) if own is None else own
        if own is None:
            buffer[:size].copy_(gradients, non_blocking=True)
        pending = self._pending.setdefault(key, _Pending(lr, step))
        pending.parts.append(buffer)
        pending.touched = [a or b for a, b in zip(pending.touched or touched, touched, strict=True)]
        pending.norms = None
        if norms is not None:
            # behind the gradients, so that no thread waits for them here
            found = buffer[size : size + behind].view(norms.dtype)
            if own is None:
                found.copy_(norms, non_blocking=True)
            pending.norms = found if len(pending.parts) == 1 else None

    def take_block(self, num_bytes: int) -> Tensor:
        """A block for gradients and norms that a device on the host writes; `contribute` takes it back."""
        return self._stage(num_bytes, _host_block)

    def check_gradients(
        self,
        order: Sequence[tuple[str, int]],
        *,
        clip: Clip | None,
        is_scaled: bool = False,
        is_loss_finite: bool = True,
    ) -> Verdict:
        """Check all gradients of a step, before any of them is applied.

        Args:
            order: state and index of each parameter, in the order in which a plain model lists them.
            clip: scales them down.
            is_scaled: whether they are those of the loss times `loss_scale`.
            is_loss_finite: an overflow in the forward counts as one of the gradients.

        Raises:
            NonFiniteError: one has a NaN or inf; it names the first such state. Nothing is applied.
        """
        bad = [key for key, pending in self._pending.items() if not self._gather(key, pending)]
        scale = self.loss_scale if is_scaled else None
        if scale is not None:
            overflowed = bool(bad) or not is_loss_finite
            is_hopeless = overflowed and scale.is_lowest
            inverse = 1.0 / scale.scale
            scale.update(overflowed=overflowed)
            if overflowed and not is_hopeless:
                self.discard_pending()
                return Verdict(float("inf"), is_refused=True)
        else:
            inverse = 1.0
        if bad:
            raise NonFiniteError("gradient", layer=bad[0], step=self._pending[bad[0]].step)
        norms = [self._norm(key, index) * inverse for key, index in order if self._touched(key, index)]
        norm = float(total_norm(norms))
        shared = clip.coefficient(norms) if clip is not None and clip.scope == "global" else 1.0
        is_clipped = False
        for pending in self._pending.values():
            own = (
                clip.coefficient(pending.touched_norms(inverse))
                if clip is not None and clip.scope == "layer"
                else shared
            )
            # what was applied ahead has been multiplied by the inverse
            pending.coefficient = own if pending.saved is not None else own * inverse
            is_clipped = is_clipped or own != 1.0
        return Verdict(norm, is_clipped=is_clipped)

    def update(self, key: str, *, checked: bool, clip: Clip | None = None) -> None:
        """Apply a state's contributions, then forget them.

        Args:
            checked: whether `check_gradients` has seen them; if not, they are examined now.
            clip: scales gradients that were not checked down, by the norm of this state alone.

        Raises:
            NonFiniteError: the gradient has a NaN or inf; the state is as it was.
        """
        pending = self._pending.pop(key)
        try:
            if not checked:
                if not self._gather(key, pending):
                    raise NonFiniteError("gradient", layer=key, step=pending.step)
                if clip is not None:
                    pending.coefficient = clip.coefficient(pending.touched_norms())
            size = self.layout(key).parameter_bytes
            gradients = pending.parts[0][:size]
            if pending.coefficient != 1.0:
                gradients.view(torch.float32).mul_(pending.coefficient)
            with self.storage.writing(key) as state:
                state.update(self.rules.of(key).calls, gradients, pending.touched, lr=pending.lr)
        finally:
            self._release(pending)

    def update_ahead(self, key: str, *, scale: float = 1.0) -> None:
        """Apply a state's contributions before they are checked, as if nothing were to be clipped; `settle` follows.

        What the state was is copied: 12 bytes a parameter with AdamW, beside 4 for the gradient, until then. A gradient
        that is not finite is left to the check.

        Args:
            scale: what the loss was multiplied by.
        """
        pending = self._pending[key]
        if not self._gather(key, pending):
            return
        gradients = pending.parts[0][: self.layout(key).parameter_bytes]
        if scale != 1.0:
            gradients.view(torch.float32).mul_(1.0 / scale)
        with self.storage.writing(key) as state:
            sizes = [block.numel() for block in state.updated_blocks]
            fitting = (i for i, blocks in enumerate(self._spares) if [block.numel() for block in blocks] == sizes)
            found = next(fitting, None)
            pending.saved = state.save(None if found is None else self._spares.pop(found))
            state.update(self.rules.of(key).calls, gradients, pending.touched, lr=pending.lr)

    def settle(self) -> None:
        """After the check: let updates ahead stand, or put them back and apply what is clipped."""
        clipped = [key for key, pending in self._pending.items() if pending.saved is None or pending.coefficient != 1.0]
        blocks = [pending.saved.blocks for pending in self._pending.values() if pending.saved is not None]
        for key in clipped:
            self._put_back(key, self._pending[key])
            self.update(key, checked=True)
        for pending in self._pending.values():
            self._release(pending)
        self._pending.clear()
        self._spares = blocks  # those of this step alone: paths of other sizes need others

    def _put_back(self, key: str, pending: _Pending) -> None:
        if pending.saved is not None:
            with self.storage.writing(key) as state:
                state.put_back(pending.saved)
            pending.saved = None

    @property
    def pending(self) -> tuple[str, ...]:
        """States whose gradients wait for their update."""
        return tuple(self._pending)

    def discard_pending(self) -> None:
        """Forget gradients that were not applied, or only ahead of the check, after a refused step."""
        for key, pending in self._pending.items():
            self._put_back(key, pending)
            self._release(pending)
        self._pending.clear()

    def _gather(self, key: str, pending: _Pending) -> bool:
        """Sum the contributions, know their norms; whether they are finite."""
        layout = self.layout(key)
        total = pending.parts[0][: layout.parameter_bytes].view(torch.float32)
        for part in pending.parts[1:]:
            total.add_(part[: layout.parameter_bytes].view(torch.float32))
        with self._lock:
            self._staging += pending.parts[1:]
        del pending.parts[1:]
        if pending.norms is None:
            views = [entry.view(pending.parts[0]) for entry in layout.parameters]
            pending.norms = torch.stack([torch.linalg.vector_norm(view) for view in views])
        # a norm that overflows on finite numbers is examined again
        return bool(pending.norms.isfinite().all()) or bool(total.isfinite().all())

    def _norm(self, key: str, index: int) -> Tensor:
        norms = self._pending[key].norms
        assert norms is not None
        return norms[index]

    def _touched(self, key: str, index: int) -> bool:
        return key in self._pending and self._pending[key].touched[index]

    def _stage(self, num_bytes: int, allocate: Allocate) -> Tensor:
        """The smallest free staging buffer that is large enough; a new one if there is none."""
        with self._lock:
            fitting = [index for index, buffer in enumerate(self._staging) if buffer.numel() >= num_bytes]
            if fitting:
                return self._staging.pop(min(fitting, key=lambda index: self._staging[index].numel()))
            if self._staging:  # a larger one takes the place of one that is free: their number stays what a step needs
                self._staging.pop()
        return allocate(num_bytes)

    def _release(self, pending: _Pending) -> None:
        with self._lock:
            self._staging += pending.parts


def _host_block(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)
