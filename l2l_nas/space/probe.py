"""The probe: each kind of layer runs once before anything trains, to see whether the relay can carry it.

[Note: what a layer may keep] The relay runs a layer in a template that many layers use, and runs it again in
the backward. A layer is right there if all it keeps from call to call is parameters and buffers, if only its forward
in training changes its buffers, in place, and if it draws random numbers from torch's own generator. What else would
train wrongly without a word, so it is refused here, with what to write instead.

Layers run on meta, which costs no memory and no arithmetic. Where meta cannot tell (`.item()`, `nonzero`, an operation
it does not know), the layer is built on the host and runs on a batch of 2. What the host cannot run either, such as a
Triton kernel, runs on the relay's device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from l2l_nas.errors import SpaceError, is_of_code
from l2l_nas.space.build import named_tensors
from l2l_nas.space.candidate import Specs, TensorSpec, describe
from l2l_nas.space.contents import MODULE_ATTRIBUTES, Snapshot, contents, storage_of
from l2l_nas.space.dry_run import BATCH, DryRun
from l2l_nas.space.operations import OperationLog, Phase, name_of, tensors_in, written_by
from l2l_nas.space.pool import Layer, LayerPool
from l2l_nas.space.randomness import drawing_nothing, preserved_generators

T = TypeVar("T")

_FROM_VALUES = {torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy, torch.frombuffer, Tensor.new_tensor}


@dataclass(frozen=True)
class ProbeResult:
    """What a layer gives, where it can be tried out, and whether its forward in training changed a buffer."""

    outputs: Specs
    device: str
    writes_buffers: bool


class _Raised(SpaceError):
    """A layer raised on a device; another may be able to run it."""


@torch.enable_grad()
def probe(pool: LayerPool, layer: Layer, inputs: Specs, *, device: torch.device | None = None) -> ProbeResult:
    """Run a layer once; see [Note: what a layer may keep].

    Args:
        device: of the relay, for a layer that the host cannot run; None: the accelerator, if there is one.

    Raises:
        SpaceError: it raised, or would train wrongly.
    """
    with contextlib.suppress(_Raised):
        return _probed_on("meta", pool, layer, inputs)
    try:
        return _probed_on("cpu", pool, layer, inputs)
    except _Raised as error:
        relay_device = device or torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
        # an index out of range is refused as it is: on a GPU it would end all further work of the process
        if relay_device.type in ("cpu", "meta") or isinstance(error.__cause__, IndexError):
            raise
    return _probed_on(str(relay_device), pool, layer, inputs)


def _probed_on(device: str, pool: LayerPool, layer: Layer, inputs: Specs) -> ProbeResult:
    with preserved_generators(device):
        torch.default_generator.manual_seed(0)
        recorder = _Recorder(on_meta=device == "meta")
        with contextlib.ExitStack() as recording:
            if device != "meta":  # a recorder holds tensors, which keeps torch from swapping them in a parametrization
                recording.enter_context(recorder)
                recording.enter_context(_Constants(recorder))
            module = pool.build_module(layer, device=device)
        _refuse_hidden_tensors(module)
        try:
            outputs = drawing_nothing(lambda: _run(module, recorder, inputs, device))
        except SpaceError:
            raise
        except BaseException as error:
            if not is_of_code(error):
                raise
            recorder.raise_refusal()
            text = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise _Raised(f"raised on input {describe(inputs)}: {text}") from error
        return ProbeResult(outputs, device, recorder.has_written)


def _run(module: nn.Module, recorder: _Recorder, inputs: Specs, device: str) -> Specs:
    dry_run = DryRun(module, inputs, device)
    recorder.know(module)
    module.train()
    before = Snapshot(module)

    def checked(run: Callable[..., T]) -> T:
        result = run(recorder, _Constants(recorder))
        _refuse_changes(before, module)
        recorder.raise_refusal()
        return result

    specs = _specs(checked(dry_run.forward))
    checked(dry_run.backward)
    evaluated = _specs(checked(dry_run.evaluate))
    if evaluated != specs:
        raise SpaceError(
            f"gives {describe(specs)} in training and {describe(evaluated)} in evaluation; the next layer must be "
            "able to take both, so let it give the same tensors in both"
        )
    return specs


def _specs(outputs: Sequence[Tensor]) -> Specs:
    for output in outputs:
        if output.dim() == 0 or output.shape[0] != BATCH:
            raise SpaceError(f"its output {tuple(output.shape)} does not begin with the batch dimension")
    return tuple(TensorSpec.of(output) for output in outputs)


def _refuse_hidden_tensors(module: nn.Module) -> None:
    """Refuse tensors that are neither parameter nor buffer: slots and checkpoints would lack them."""
    registered = {id(tensor) for _, tensor in named_tensors(module)} | {id(part) for part in module.modules()}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in MODULE_ATTRIBUTES:
                continue
            for expression, item in contents(value, f"{path}.{name}" if path else name):
                if id(item) in registered:
                    continue
                if isinstance(item, nn.Module) and any(True for _ in named_tensors(item)):
                    raise SpaceError(
                        f"keeps the layer '{expression}' where its weights are not found; "
                        "use nn.ModuleList or ModuleDict"
                    )
                if isinstance(item, Tensor):
                    advice = f"use register_buffer('{name}', ...)"
                    if f"{name}_g" in part._parameters or f"{name}_orig" in part._parameters:
                        advice = "use the function of this name in torch.nn.utils.parametrizations"
                    raise SpaceError(f"keeps the tensor '{expression}' as a plain attribute; {advice}")


def _refuse_changes(before: Snapshot, module: nn.Module) -> None:
    name = before.changed(Snapshot(module))
    if name is None:
        return
    # those that are None too, which `named_buffers` leaves out
    buffers = (f"{path}.{one}" if path else one for path, part in module.named_modules() for one in part._buffers)
    if name in buffers:
        raise SpaceError(
            f"its forward replaces the buffer '{name}'; make it in __init__ and change it in place: "
            f"self.{name}.copy_(...)"
        )
    raise SpaceError(
        f"its forward changes 'self.{name}'; what it keeps from call to call must be a buffer: "
        f"register_buffer('{name.rpartition('.')[2]}', ...) in __init__, changed in place"
    )


def _renew(module: nn.Module) -> list[tuple[str, Tensor]]:
    """Replace parameters and buffers by copies, as slots do. Returns the tensors that were there, by name.

    Weights of torch's recurrent layers stay: these layers hold each a second time, and notice in the next forward.
    """
    recurrent = {
        id(p) for part in module.modules() if isinstance(part, nn.RNNBase) for p in part.parameters(recurse=False)
    }
    before = [(name, tensor) for name, tensor in named_tensors(module) if id(tensor) not in recurrent]
    renewed: dict[int, Tensor] = {}
    for _, tensor in before:
        copy = tensor.detach().clone()
        renewed[id(tensor)] = nn.Parameter(copy, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else copy
    for part in module.modules():
        for table in (part._parameters, part._buffers):
            for name, number in [(name, id(tensor)) for name, tensor in table.items() if id(tensor) in renewed]:
                setattr(part, name, renewed[number])
    return before


# what an operation that indexes is called
_INDEXES = ("index", "index_put", "index_put_", "_index_put_impl_")


class _Recorder(OperationLog):
    """Sees every operation of a layer; keeps what would go wrong, and whether a forward in training writes buffers."""

    def __init__(self, *, on_meta: bool) -> None:
        super().__init__()
        self.has_written = False
        self._phase: Phase | None = None  # None: the factory runs
        self._on_meta = on_meta  # there a tensor that nothing made in the forward is the factory's
        self._named: dict[int, tuple[str, str]] = {}
        self._made: set[int] = set()
        self._built: set[int] = set()
        self._before: dict[int, str] = {}
        self._alive: list[object] = []  # a storage's number would be used again
        self.indexed: set[int] | None = None  # the arguments of the indexing that runs
        self._refusal = ""

    def know(self, module: nn.Module) -> None:
        """Tell the tensors of a module from what the factory made beside it."""
        self._built, self._made = self._made, set()
        before = _renew(module)
        self._alive.append(before)
        self._before = {storage_of(tensor): name for name, tensor in before}
        tables = (("parameter", module.named_parameters()), ("buffer", module.named_buffers()))
        self._named = {storage_of(tensor): (what, name) for what, table in tables for name, tensor in table}

    def begin(self, phase: Phase, tensors: Sequence[Tensor]) -> None:
        self._phase = phase
        for index, tensor in enumerate(tensors):
            self.know_made(tensor)
            if phase != "backward":
                self._named[storage_of(tensor)] = ("input", str(index))

    def raise_refusal(self) -> None:
        if self._refusal:
            raise SpaceError(self._refusal) from None

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._phase is not None and not self._refusal:
            self._inspect(func, args, kwargs)

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        for tensor in tensors_in(result):
            self.know_made(tensor)

    def know_made(self, tensor: Tensor) -> None:
        self._alive.append(tensor)
        self._made.add(storage_of(tensor))

    def _inspect(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = name_of(func)
        generator = kwargs.get("generator")
        if generator is not None and generator is not torch.default_generator:
            self._refusal = (
                f"its {self._place} draws from a torch.Generator of its own ({name}), which gives other numbers where "
                "the backward runs it again; leave the generator out"
            )
        for tensor in tensors_in((args, kwargs)):
            number = storage_of(tensor)
            if number in self._named or number in self._made or name.startswith("lift_fresh"):
                continue
            if self.indexed is not None and number not in self.indexed and name in _INDEXES:
                self.know_made(tensor)  # of a list of numbers, which is no operation either
                continue
            if number in self._before:
                self._refusal = (
                    f"its {self._place} uses '{self._before[number]}' ({name}) from a second place, such as a list or "
                    "a function, where no other tensor can take its place; take it from where it is registered"
                )
            elif tensor.is_meta if self._on_meta else number in self._built:
                self._refusal = (
                    f"its {self._place} uses a tensor {list(tensor.shape)} that its factory made ({name}) and that is "
                    "neither parameter nor buffer, such as one in a list or a function; use register_buffer"
                )
        for tensor in written_by(func, args, kwargs):
            self._inspect_write(*self._named.get(storage_of(tensor), ("", "")), name)

    def _inspect_write(self, what: str, name: str, operation: str) -> None:
        if what == "parameter":
            self._refusal = (
                f"its {self._place} changes the parameter '{name}' ({operation}), which would be lost; "
                "keep running values in a buffer, and scale what the forward uses instead of the weight (max_norm)"
            )
        elif what == "buffer" and self._phase == "forward":
            self.has_written = True
        elif what == "buffer" and self._phase == "backward":
            self._refusal = (
                f"its backward changes the buffer '{name}' ({operation}), by a hook or because torch.utils.checkpoint "
                "runs its forward again; change buffers in the forward, and leave checkpoint out: the relay recomputes "
                "anyway"
            )
        elif what == "buffer" and self._phase == "evaluation":
            self._refusal = (
                f"its forward changes the buffer '{name}' in evaluation ({operation}), which is lost; change it "
                "only `if self.training`"
            )
        elif what == "input":
            # the relay keeps a layer's input to run the layer again in the backward
            self._refusal = "changes its input in place; use inplace=False in its first operation"

    @property
    def _place(self) -> str:
        return "backward" if self._phase == "backward" else "forward"


class _Constants(TorchFunctionMode):
    """Tells a recorder of tensors made from Python values (`torch.tensor(...)`), which is no operation on meta."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.data_ptr and args[0].is_meta:
            # a Triton kernel would take the null that meta tensors have for an address, and end all work on the GPU
            raise RuntimeError("a meta tensor has no memory")
        if func in (Tensor.__getitem__, Tensor.__setitem__):
            self._recorder.indexed = set(map(storage_of, tensors_in(args)))
        try:
            result = func(*args, **(kwargs or {}))
        finally:
            self._recorder.indexed = None
        if func in _FROM_VALUES and (func is Tensor.new_tensor or not isinstance(args[0], Tensor)):
            self._recorder.know_made(result)
        return result
