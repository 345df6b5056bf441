"""Published folders beside `transformers`: whether it gives the same logits, and the same tokens.

A folder may say what our readers do not know, so where `transformers` can be imported, the two are compared on one
short text. It never runs code of a folder, nor connects.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib.machinery import ModuleSpec
from itertools import zip_longest
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from l2l_nas.compress.families import Family
from l2l_nas.compress.rows import FAMILIES
from l2l_nas.compress.varied import is_varied, kind_of
from l2l_nas.eps.host import free_memory_bytes
from l2l_nas.errors import SettingError, StorageError, described, one_line
from l2l_nas.plugins import optional
from l2l_nas.text.tokenizer import Tokenizer
from l2l_nas.training.formats import largest_difference, silence
from l2l_nas.training.published_format import MODELING
from l2l_nas.training.samples import own_generators

TOLERANCE = 1e-3  # of the largest logit: sums in float32 in another order differ by a hundredth of it
_TOKENS = 48
# larger models in float32 are not compared, nor those that take more than this share of the free memory
_MOST_BYTES, _SHARE = 8 << 30, 0.5
OFFLINE = {"local_files_only": True, "trust_remote_code": False}
_TEXT = (
    'The 3 quick foxes aren\'t 2,015 m away:\n\n  na\u00efve \u6771\u4eac \u2013 they\tjump  again! x_y = {"a": [1]}'
)


class Uncompared(Exception):
    """Why two could not be compared."""


def compare_logits(
    folder: Path, family: Family, config: Mapping[str, Any], ours: Callable[[Tensor], Tensor], *, is_ours: bool = False
) -> str:
    """Compare logits of a folder's model with those that `transformers` gives.

    Args:
        folder: with config.json and model.safetensors.
        family, config: of the model.
        ours: logits [batch, length, vocabulary] of tokens, int64 [batch, length].
        is_ours: whether an export wrote the folder right now, so that its own code may run.

    Returns:
        What was found, in a few words.

    Raises:
        Uncompared: `transformers` is missing, or does not load the folder, or the model is too large.
        StorageError: the logits differ.
    """
    kind = kind_of(config)
    if is_varied(config) and not is_ours:
        raise Uncompared("it has its own code, which is not run")
    num_bytes = 4 * sum(torch.Size(shape).numel() for shape in family.shapes.values())
    most = min(_MOST_BYTES, int(_SHARE * free_memory_bytes()))
    if num_bytes > most:
        raise Uncompared(f"{num_bytes >> 20:,} MiB in float32 are more than the {most >> 20:,} that are spent on it")
    length = min(_TOKENS, family.length)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(min(1, family.vocabulary - 1), family.vocabulary, (1, length), generator=generator)
    auto = "AutoModelForMaskedLM" if FAMILIES[kind].is_masked else "AutoModelForCausalLM"
    own = config["architectures"][0] if is_varied(config) else ""
    version, theirs = _run(folder, own or auto, tokens, has_code=bool(own))
    with torch.no_grad():
        logits = ours(tokens).float()
    difference, scale = largest_difference((logits,), (theirs,)), float(theirs.abs().max())
    if difference > TOLERANCE * scale:
        raise StorageError(
            f"{folder}: transformers {version} gives other logits for this {kind} model than the layers here: they "
            f"differ by up to {difference:.3g}, and the largest is {scale:.3g}; config.json says something that is not "
            "known here, or the files are of two models"
        )
    return f"logits of {length} tokens are those of transformers {version} (they differ by {difference:.1e} at most)"


@own_generators()
def _run(folder: Path, name: str, tokens: Tensor, *, has_code: bool) -> tuple[str, Tensor]:
    """The version of `transformers`, and its logits, by a class of it, or of the folder's own code."""
    library = _library()
    # attention that is written out: the others leave out caps
    how = {**OFFLINE, "use_safetensors": True, "dtype": torch.float32, "attn_implementation": "eager"}
    try:
        with silence(), torch.no_grad(), _imported(folder) if has_code else contextlib.nullcontext(library) as classes:
            model = getattr(classes, name).from_pretrained(folder, **how).eval()
            return library.__version__, model(input_ids=tokens).logits.float()
    except Exception as error:  # of anybody's
        if has_code:
            raise StorageError(f"{folder}: what was written does not load: {_reason(error)}") from error
        raise Uncompared(f"it does not run in transformers: {_reason(error)}") from error


@contextlib.contextmanager
def _imported(folder: Path) -> Iterator[ModuleType]:
    """The code of a folder, which is forgotten afterwards."""
    name = "l2l_nas_written"
    spec = ModuleSpec(name, None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    sys.modules[name] = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()
    try:
        yield importlib.import_module(f"{name}.{MODELING}")
    finally:
        sys.dont_write_bytecode = writes
        for one in [one for one in sys.modules if one == name or one.startswith(f"{name}.")]:
            del sys.modules[one]


def compare_tokens(folder: Path, tokenizer: Tokenizer) -> str:
    """Compare a folder's tokenizer with the one that `transformers` makes of it; see `compare_logits`."""
    library = _library()
    try:
        with silence():
            made = library.AutoTokenizer.from_pretrained(folder, **OFFLINE)
            theirs: list[int] = made(_TEXT, add_special_tokens=False)["input_ids"]
            whole: list[int] = made(_TEXT)["input_ids"]
            end, names = made.eos_token_id, made.convert_ids_to_tokens
    except Exception as error:  # of anybody's
        raise Uncompared(f"its tokenizer does not load in transformers: {_reason(error)}") from error
    ours = tokenizer.encode(_TEXT)
    place = next((n for n, pair in enumerate(zip_longest(ours, theirs)) if pair[0] != pair[1]), None)
    starts = range(len(whole) - len(theirs) + 1)
    before = next((whole[:n] for n in starts if whole[n : n + len(theirs)] == theirs), whole)
    # [CLS] has a field of its own
    begins: list[list[Any]] = [[] if tokenizer.begin is None else [tokenizer.begin], [tokenizer.first]]
    what, numbers = "", (theirs, list(ours))
    if place is not None:
        what, numbers = f"token {place + 1} of a text", (theirs[place : place + 1], list(ours[place : place + 1]))
    elif before not in begins:
        what, numbers = "a text begins with what", (before, begins[0])
    elif end is not None and end not in tokenizer.ends:
        what, numbers = "a text ends with what", ([end], sorted(tokenizer.ends))
    if what:
        there, here = (names(some) or "nothing" for some in numbers)
        raise StorageError(
            f"{folder}: its tokenizer is another one in transformers {library.__version__}: {what}: {there} there, "
            f"{here} here; name the file that the model was trained with: data.tokenizer=FOLDER/tokenizer.json"
        )
    return f"tokens of a text are those of transformers {library.__version__}"


def _library() -> Any:
    try:
        return optional("transformers", "it needs", extra="transformers")
    except SettingError as error:
        raise Uncompared(str(error)) from None


def _reason(error: Exception) -> str:
    return one_line(described(error), most=200)
