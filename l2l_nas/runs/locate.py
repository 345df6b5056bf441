"""Finds configs, built-in spaces and the user's own pool files."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from l2l_nas.compress.pool import (
    LibraryPool,
    PublishedPool,
    is_published,
    open_published,
    published_pool,
    vocabulary_of,
)
from l2l_nas.errors import SettingError, SpaceError, user_code
from l2l_nas.layers import ParallelBlock, SelfAttention
from l2l_nas.plugins import imported
from l2l_nas.runs.groups import shipped
from l2l_nas.runs.section_settings import DataConf
from l2l_nas.space.pool import LayerPool
from l2l_nas.text.data import PYDOC, TextForm, text_data
from l2l_nas.text.documents import SUFFIXES, text_files
from l2l_nas.text.samples import Masking
from l2l_nas.text.tokenizer import Tokenizer, load_tokenizer
from l2l_nas.training.data import Data, cluttered_digits, digits, from_npz, has_arrays
from l2l_nas.training.folder import has_images
from l2l_nas.training.problem import Problem
from l2l_nas.training.task import Task, Tokens

_SOURCES = {"digits": digits, "cluttered_digits": cluttered_digits}

AUTO = "auto"  # as data.tokenizer
_CLASSES = 10  # outputs of a built-in space, unless it is reported another number


def builtin_spaces() -> tuple[str, ...]:
    """Names of the spaces that come with the package."""
    return tuple(sorted(path.stem for path in shipped("search_spaces").glob("[a-z]*.py")))


def is_builtin(pool: str) -> bool:
    """Whether nothing of the user's own is imported for a pool: it comes with the package, or is a published model."""
    return pool in builtin_spaces() or is_published(pool)


def load_problem(pool: str, args: Mapping[str, Any], *, source: str, **conf: Any) -> Problem:
    """Import and call a pool's function.

    Args:
        pool: what `space.pool` says.
        args: keyword arguments of the function.
        source, conf: the data to use if the function returns a bare pool, see `load_data`. A built-in space takes its
            images and classes from them, and so does a function with arguments `image` and `classes` that have no
            default; one that has an argument `vocabulary`, and a published model, take their tokens and the length of
            sequences.

    Raises:
        SettingError: no such space, file, module, function or argument.
        SpaceError: the function raised or returned something else.
        DataError, StorageError: the data cannot be used.
    """
    build = _find(pool)
    try:
        signature = inspect.signature(build)
    except ValueError:  # built-in functions have no signature
        raise SettingError(f"space.pool: {pool} is not a function written in Python") from None
    data, task, sizes = _sized_by_data(pool, signature, args, {"source": source, **conf})
    args = {**sizes, **args}
    if "length" in sizes and int(args["length"]) != sizes["length"]:
        raise SettingError(
            f"space.args.length={args['length']}, but data.length={sizes['length']}; say data.length alone"
        )
    try:
        signature.bind(**args)
    except TypeError as error:
        raise SettingError(f"space.args: {pool} takes {signature}: {error}") from None
    with user_code(f"space.pool={pool}", SpaceError):
        built = build(**args)
    if isinstance(built, Problem):
        return built
    if not isinstance(built, LayerPool):
        raise SpaceError(f"space.pool={pool} returned {type(built).__name__}; return a LayerPool or a Problem")
    tokenizer = str(conf.get("tokenizer", AUTO))
    if isinstance(built, PublishedPool) and tokenizer != AUTO:
        built.tokenizer = tokenizer_of(pool, tokenizer)
    if isinstance(task, Tokens):
        _refuse_objective(built, pool, str(conf.get("objective", "causal")))
    data = data or load_data(source, **conf)
    return Problem(built, data, task) if task else Problem(built, data)


def _sized_by_data(
    pool: str, signature: inspect.Signature, args: Mapping[str, Any], conf: dict[str, Any]
) -> tuple[Data | None, Task | None, dict[str, Any]]:
    """The data that arguments of a pool's function follow from, the task of texts, and these arguments."""
    source = conf["source"]
    if is_builtin(pool) and "image" in signature.parameters:  # others bring their own data
        data = load_data(**conf)
        return data, None, _shape_of(data, pool, source)
    if is_published(pool) or ("vocabulary" in signature.parameters and (is_builtin(pool) or is_text(source))):
        return _sized_by_text(pool, signature, conf)
    wanted = {name for name, one in signature.parameters.items() if one.default is inspect.Parameter.empty}
    wanted &= {"image", "classes"} - set(args)
    if not wanted:
        return None, None, {}
    data = load_data(**conf)
    sizes: dict[str, Any] = {"image": list(data.train.inputs_specs[0].shape)} if "image" in wanted else {}
    if "classes" in wanted:
        sizes["classes"] = _num_classes(data, pool, source)
    return data, None, sizes


def _sized_by_text(pool: str, signature: inspect.Signature, conf: dict[str, Any]) -> tuple[Data, Task, dict[str, Any]]:
    source = conf["source"]
    if not is_text(source):
        raise SettingError(
            f"{pool} is of language models, and data.source={source} is no text; write data=text, or "
            "data.source=FILE.txt"
        )
    tokenizer = tokenizer_of(pool, str(conf.get("tokenizer", AUTO)))
    data = load_data(**{**conf, "tokenizer": tokenizer, "begin": begin_of(pool, tokenizer)})
    sizes: dict[str, Any] = {} if is_published(pool) else {"vocabulary": tokenizer.size}
    sizes["length"] = int(data.train.inputs_specs[0].shape[0])
    if "documents" in signature.parameters and len(data.train.inputs_specs) > 1:
        sizes["documents"] = True
    return data, Tokens(), sizes


def _refuse_objective(built: LayerPool, pool: str, objective: str) -> None:
    """Refuse to have tokens guessed that are seen, or that nothing tells of."""
    factories = [one.factory for position in built.positions for one in position.candidates]
    attention = [one for one in factories if isinstance(one, partial) and one.func in (SelfAttention, ParallelBlock)]
    sees_ahead = {not one.args[1].is_causal for one in attention}
    if isinstance(built, LibraryPool):
        sees_ahead = {False}
    if objective == "causal" and True in sees_ahead:
        raise SettingError(
            f"{pool} sees the tokens that data.objective=causal has it guess; write data.objective=masked, or take a "
            "space such as gpt2"
        )
    if objective == "masked" and False in sees_ahead:
        raise SettingError(
            f"{pool} sees no tokens behind one that data.objective=masked has it guess; write data.objective=causal, "
            "or take space=bert"
        )


def tokenizer_of(pool: str, name: str) -> Tokenizer:
    """The tokenizer of `data.tokenizer`: "auto" is the published model's own, and bytes for other pools.

    One with more tokens than the published model refuses texts in which these occur.

    Raises:
        SettingError: a package is missing.
        StorageError: it cannot be read.
    """
    if not is_published(pool):
        return load_tokenizer("bytes" if name == AUTO else name)
    published = open_published(pool)
    tokenizer = published.tokenizer() if name == AUTO else load_tokenizer(name)
    vocabulary = vocabulary_of(published)
    return tokenizer if tokenizer.size <= vocabulary else tokenizer.within(vocabulary)


def begin_of(pool: str, tokenizer: Tokenizer) -> int | None:
    """The token that texts begin with: a published model's, which is another model without; None for other pools."""
    return tokenizer.begin if is_published(pool) else None


def compare_published(pool: LayerPool) -> str:
    """What to tell of a published model beside `transformers`; empty for other pools.

    Raises:
        StorageError: see `PublishedPool.compare`.
    """
    return pool.compare() if isinstance(pool, PublishedPool) else ""


def _shape_of(data: Data, pool: str, source: str) -> dict[str, Any]:
    """The images that there are, as a built-in space takes them, and the classes, where they are more than its own."""
    image = data.train.inputs_specs[0].shape
    if len(image) != 3:
        raise SettingError(
            f"{pool} takes images [samples, channels, height, width], {source} has {[len(data.train), *image]}; name a "
            "space of your own: space.pool=FILE.py:FUNCTION"
        )
    classes = _num_classes(data, pool, source)
    # more classes than samples are none; and with fewer than the space's own number a folder of before keeps its head
    more = {"classes": classes} if _CLASSES < classes <= len(data.train.preview()[1]) else {}
    return {"image": list(image), **more}


def _num_classes(data: Data, pool: str, source: str) -> int:
    targets = data.train.preview()[1]
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.dim() != 1:
        raise SettingError(
            f"{pool} tells classes apart, and the targets of {source} are none: one integer a sample; name a space of "
            "your own: space.pool=FILE.py:FUNCTION"
        )
    return int(targets.max()) + 1 if len(targets) else 0


def load_data(
    source: str,
    validation_fraction: float,
    test_fraction: float = 0.2,
    size: Sequence[int] = (),
    workers: int = 0,
    **text: Any,
) -> Data:
    """The data set of `data.source`.

    Args:
        source: a name, an .npz file, a file of text, or a folder.
        validation_fraction, test_fraction: shares of the samples.
        size, workers: of a folder of images, see `Data.from_folder`.
        text: the other settings of `data`, which are of text; `tokenizer` may be one, and `begin` is a token that
            each sequence begins with.

    Raises:
        SettingError: no such source, or a setting that it does not take.
        DataError, StorageError: the file cannot be used.
    """
    fractions: dict[str, Any] = {"validation_fraction": validation_fraction, "test_fraction": test_fraction}
    if is_text(source):
        _refuse_said({"size": (size, ()), "workers": (workers, 0)}, source, "a folder of images")
        return _load_text(source, fractions, text)
    defaults = asdict(DataConf())
    _refuse_said({name: (value, defaults[name]) for name, value in text.items()}, source, "text")
    is_folder = source not in _SOURCES and Path(source).is_dir()
    if is_folder and not has_arrays(Path(source)):
        if size and (len(size) != 2 or min(size) < 1):
            raise SettingError(f"data.size must be [HEIGHT,WIDTH] in pixels, got {list(size)}")
        if workers < 0:
            raise SettingError(f"data.workers must be at least 0, got {workers}")
        pair = (size[0], size[1]) if size else None
        return Data.from_folder(source, size=pair, workers=workers, **fractions)
    _refuse_said({"size": (size, ()), "workers": (workers, 0)}, source, "a folder of images")
    if is_folder:
        return Data.from_folder(source, **fractions)
    if source in _SOURCES:
        return _SOURCES[source](**fractions)
    if source.endswith(".npz"):
        return from_npz(Path(source), **fractions)
    known = ", ".join([*_SOURCES, PYDOC])
    raise SettingError(
        f"data.source must be {known} or the path of an .npz file, of text ({', '.join(SUFFIXES)}) or of a folder, got "
        f"'{source}'"
    )


def is_text(source: str) -> bool:
    """Whether a source is text: a file of it, or a folder that has such files and neither images nor arrays."""
    if source in _SOURCES:
        return False
    if source == PYDOC or not Path(source).is_dir():
        return source == PYDOC or bool(text_files(source))
    return not has_arrays(Path(source)) and not has_images(Path(source)) and bool(text_files(source))


def _load_text(source: str, fractions: Mapping[str, float], text: Mapping[str, Any]) -> Data:
    conf = DataConf(**{name: value for name, value in text.items() if name not in ("tokenizer", "begin")})
    tokenizer = text.get("tokenizer", AUTO)
    if isinstance(tokenizer, str):
        tokenizer = load_tokenizer("bytes" if tokenizer == AUTO else tokenizer)
    if conf.documents not in ("across", "apart"):
        raise SettingError(f"data.documents must be across or apart, got '{conf.documents}'")
    form = TextForm(
        length=conf.length,
        objective=conf.objective,
        **fractions,
        is_apart=conf.documents == "apart",
        masking=Masking(conf.masked, conf.predictions or None),
        text_key=conf.text_key,
        begin=text.get("begin"),
    )
    return text_data(source, tokenizer, form)


def _refuse_said(values: Mapping[str, tuple[Any, Any]], source: str, what: str) -> None:
    for name, (value, default) in values.items():
        if value != default and (value or default):
            raise SettingError(f"data.{name} is of {what}, which data.source={source} is not; leave it out")


def check_space(name: str, pool: str) -> None:
    """Refuse the name of a space that does not exist.

    Args:
        name: of the argument or setting.

    Raises:
        SettingError: no such space is built in, and it names no file.
    """
    if ":" not in pool and not is_builtin(pool):
        close = difflib.get_close_matches(pool, builtin_spaces(), n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"built in: {', '.join(builtin_spaces())};"
        raise SettingError(f"{name}: no space '{pool}'; {hint} your own is FILE.py:FUNCTION")


def _find(pool: str) -> Callable[..., object]:
    check_space("space.pool", pool)
    if is_published(pool):
        return partial(published_pool, pool)
    path = pool if ":" in pool else f"{shipped('search_spaces') / pool}.py:build"
    return imported(path, setting="space.pool")
