"""Finds configs, built-in spaces and the user's own pool files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from l2l_nas.errors import SettingError, SpaceError, user_code
from l2l_nas.plugins import imported
from l2l_nas.pretrained.pool import is_published, published_pool
from l2l_nas.runs.groups import shipped
from l2l_nas.space.pool import LayerPool
from l2l_nas.training.data import Data, cluttered_digits, digits, from_npz
from l2l_nas.training.folder import has_arrays
from l2l_nas.training.problem import Problem

_SOURCES = {"digits": digits, "cluttered_digits": cluttered_digits}

_CLASSES = 10  # outputs of a built-in space, unless it is reported another number


def builtin_spaces() -> tuple[str, ...]:
    """Names of the spaces that come with the package."""
    return tuple(sorted(path.stem for path in shipped("search_spaces").glob("[a-z]*.py")))


def is_builtin(pool: str) -> bool:
    """Whether nothing of the user's own is imported for a pool: it comes with the package, or is a published model."""
    return pool in builtin_spaces() or is_published(pool)


def load_problem(
    pool: str, args: Mapping[str, Any], *, source: str, validation_fraction: float, **more: Any
) -> Problem:
    """Import and call a pool's function.

    Args:
        pool: what `space.pool` says.
        args: keyword arguments of the function.
        source, validation_fraction, more: the data to use if the function returns a bare pool, see `load_data`. A
            built-in space takes its images and classes from them.

    Raises:
        SettingError: no such space, file, module, function or argument.
        SpaceError: the function raised or returned something else.
        DataError, StorageError: the data cannot be used.
    """
    data = None
    build = _find(pool)
    if is_builtin(pool) and "image" in inspect.signature(build).parameters:  # others bring their own data
        data = load_data(source, validation_fraction, **more)
        args = {**_shape_of(data, pool, source), **args}
    try:
        signature = inspect.signature(build)
        signature.bind(**args)
    except TypeError as error:
        raise SettingError(f"space.args: {pool} takes {signature}: {error}") from None
    except ValueError:  # built-in functions have no signature
        raise SettingError(f"space.pool: {pool} is not a function written in Python") from None
    with user_code(f"space.pool={pool}", SpaceError):
        built = build(**args)
    if isinstance(built, Problem):
        return built
    if isinstance(built, LayerPool):
        return Problem(built, data or load_data(source, validation_fraction, **more))
    raise SpaceError(f"space.pool={pool} returned {type(built).__name__}; return a LayerPool or a Problem")


def _shape_of(data: Data, pool: str, source: str) -> dict[str, Any]:
    """The images that there are, as a built-in space takes them, and the classes, where they are more than its own."""
    image = data.train.inputs_specs[0].shape
    if len(image) != 3:
        raise SettingError(
            f"{pool} takes images [samples, channels, height, width], {source} has {[len(data.train), *image]}; name a "
            "space of your own: space.pool=FILE.py:FUNCTION"
        )
    targets = data.train.preview()[1]
    if targets.is_floating_point() or targets.dim() != 1:
        raise SettingError(
            f"{pool} tells classes apart, and the targets of {source} are none: one integer a sample; name a space of "
            "your own: space.pool=FILE.py:FUNCTION"
        )
    classes = int(targets.max()) + 1 if len(targets) else 0
    # more classes than samples are none; and with fewer than the space's own number a folder of before keeps its head
    more = {"classes": classes} if _CLASSES < classes <= len(targets) else {}
    return {"image": list(image), **more}


def load_data(
    source: str, validation_fraction: float, test_fraction: float = 0.2, size: Sequence[int] = (), workers: int = 0
) -> Data:
    """The data set of `data.source`.

    Args:
        source: a name, an .npz file, or a folder.
        validation_fraction, test_fraction: shares of the samples.
        size, workers: of a folder of images, see `Data.from_folder`.

    Raises:
        SettingError: no such source, or a setting that it does not take.
        DataError, StorageError: the file cannot be used.
    """
    fractions: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    is_folder = source not in _SOURCES and Path(source).is_dir()
    if is_folder and not has_arrays(Path(source)):
        if size and (len(size) != 2 or min(size) < 1):
            raise SettingError(f"data.size must be [HEIGHT,WIDTH] in pixels, got {list(size)}")
        if workers < 0:
            raise SettingError(f"data.workers must be at least 0, got {workers}")
        pair = (size[0], size[1]) if size else None
        return Data.from_folder(source, size=pair, workers=workers, **fractions)
    for name, value in (("size", size), ("workers", workers)):
        if value:
            raise SettingError(f"data.{name} is of a folder of images, which data.source={source} is not; leave it out")
    if is_folder:
        return Data.from_folder(source, **fractions)
    if source in _SOURCES:
        return _SOURCES[source](**fractions)
    if source.endswith(".npz"):
        return from_npz(Path(source), **fractions)
    known = ", ".join(_SOURCES)
    raise SettingError(f"data.source must be {known} or the path of an .npz file or of a folder, got '{source}'")


def _find(pool: str) -> Callable[..., object]:
    if is_published(pool):
        return partial(published_pool, pool)
    if ":" in pool:
        found = imported(pool, setting="space.pool")
    elif is_builtin(pool):
        found = imported(f"{shipped('search_spaces') / pool}.py:build", setting="space.pool")
    else:
        close = difflib.get_close_matches(pool, builtin_spaces(), n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"built in: {', '.join(builtin_spaces())};"
        raise SettingError(f"space.pool: no space '{pool}'; {hint} your own is FILE.py:FUNCTION")
    return found
