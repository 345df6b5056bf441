"""Tokenizers: bytes, which need nothing, and those that the `tokenizers` library reads from local files.

Nothing is downloaded, and nothing of a file is run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

from l2l_nas.contents.fields import Fields
from l2l_nas.errors import DataError, StorageError
from l2l_nas.files import parsing, read_bytes, read_json, refuse_other_than_file
from l2l_nas.plugins import optional

# tokens of the largest vocabularies
_LARGEST = 1 << 24
_MOST_GROWTH = 1000  # a space, the most common of what is replaced, becomes one letter
# what ends a document, where nothing else is known, in this order
_ENDS = ("<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "[SEP]")


# what a tokenizer.json and a tokenizer_config.json both say: of a step's part which field, and its name in the other
_SAID_TWICE = (
    ("pre_tokenizer", "ByteLevel", "add_prefix_space", "add_prefix_space"),
    ("normalizer", "BertNormalizer", "lowercase", "do_lower_case"),
)


def _parts(step: Any) -> list[dict[str, Any]]:
    """A step of a tokenizer, or those that it is a sequence of."""
    if not isinstance(step, dict):
        return []
    inner = [*step.get("pretokenizers", ()), *step.get("normalizers", ()), *step.get("decoders", ())]
    return [one for part in inner for one in _parts(part)] if step.get("type") == "Sequence" else [step]


def _growth(step: Any) -> float:
    """How many times as long a text may become: ten lines that double it each make a thousand of one letter."""
    replacements = [one for one in _parts(step) if one.get("type") == "Replace"]
    lengths = [(len(one["pattern"].get("String") or "?"), len(one["content"])) for one in replacements]
    return math.prod(max(1.0, behind / before) for before, behind in lengths)


class Tokenizer(ABC):
    """What makes numbers of text. Of special tokens, None stands for one that there is not."""

    size: int  # numbers are below it
    fingerprint: str  # 16 hex digits of all that decides which numbers a text gets
    end: int | None = None  # ends a document
    ends: frozenset[int] = frozenset()  # each of which ends what a model writes
    mask: int | None = None  # stands for a token that is to be guessed
    padding: int | None = None  # fills a batch
    begin: int | None = None  # stands before a text of a causal language model, where the tokenizer puts it there
    first: int | None = None  # stands before each sample of a masked language model
    last: int | None = None  # stands behind each sample of a masked language model

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Numbers of a text, without any that stand for no text. Raises DataError: see `within`."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """The text of numbers."""

    def begins_word(self, token: int) -> bool:
        """Whether a token is not the continuation of a word that the tokenizer took apart."""
        return True

    def num_lost(self, text: str) -> int:
        """Characters of a text, other than white space, that have no token: what is made of the text lacks them."""
        return 0

    def divides(self, before: str, behind: str) -> bool:
        """Whether a text that is cut between these has the same numbers in two parts."""
        return True

    @property
    def texts(self) -> Mapping[str, str]:
        """Its files by name, as `transformers` loads them; empty where it has none."""
        return {}

    def within(self, size: int) -> Self:
        """The tokenizer of a network that has only the first tokens: no weight belongs to those added behind them."""
        found = copy.copy(self)
        found.size = size
        found.fingerprint = hashlib.sha256(f"{self.fingerprint} below {size}".encode()).hexdigest()[:16]
        for name in ("end", "mask", "padding", "begin", "first", "last"):
            token = getattr(self, name)
            setattr(found, name, token if token is not None and token < size else None)
        found.ends = frozenset(token for token in self.ends if token < size)
        return found

    def _known(self, numbers: list[int]) -> list[int]:
        if max(numbers, default=0) >= self.size:
            number = next(number for number in numbers if number >= self.size)
            raise DataError(
                f"the token {self.decode([number])!r} has the number {number}, but the model's embedding has "
                f"{self.size} rows; leave it out of the text, or name the tokenizer that the model was trained with"
            )
        return numbers


class Bytes(Tokenizer):
    """UTF-8 bytes as tokens, and 256, which ends a document; 255, which UTF-8 has not, is a mask."""

    size = 257
    fingerprint = hashlib.sha256(b"l2l_nas bytes 1").hexdigest()[:16]
    end = 256
    ends = frozenset([256])
    mask = 255

    def encode(self, text: str) -> list[int]:
        return self._known(list(text.encode()))

    def decode(self, tokens: Sequence[int]) -> str:
        """The text; bytes that are no UTF-8 become U+FFFD."""
        return bytes(token for token in tokens if token < 256).decode(errors="replace")


class Library(Tokenizer):
    """A tokenizer of the `tokenizers` library.

    Args:
        tokenizer: a `tokenizers.Tokenizer`.
        about: what is said of it in `tokenizer_config.json`. Where that names no end of a document, it is the first
            known one that there is.
        place: the file it is from, for errors.

    Raises:
        StorageError: numbers of tokens that no network has, an end that is no token, several tokens before a text, or
            the library cannot use it.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        about: Mapping[str, Any] | None = None,
        place: Path | str = "the tokenizer",
    ) -> None:
        self._tokenizer, self._place, about = tokenizer, place, about or {}
        self._loses: dict[str, bool] = {}  # whether a character has no token
        end = _text_of(about.get("eos_token"))
        with self._guarded:
            tokenizer.no_padding()
            tokenizer.no_truncation()
            self.size = max(tokenizer.get_vocab().values(), default=-1) + 1  # numbers may have gaps
            if self.size > _LARGEST:
                raise ValueError(f"a token has the number {self.size - 1}, at most {_LARGEST} are known")
            content = tokenizer.to_str()  # which looks at every number below the last
            said = json.loads(content)
            if max(_growth(said.get("normalizer")), _growth(said.get("decoder"))) > _MOST_GROWTH:
                raise ValueError(f"its replacements may make a text more than {_MOST_GROWTH:,} times as long")
            self.fingerprint = hashlib.sha256(content.encode()).hexdigest()[:16]
            self.end = self._first_of(*((end,) if end else _ENDS))
            if end and self.end is None:
                raise StorageError(f"{place}: texts end with {end!r}, which is none of its tokens; get it again")
            self.ends = frozenset() if self.end is None else frozenset([self.end])
            self.mask = self._first_of("[MASK]", "<mask>")
            self.padding = self._first_of("[PAD]", "<pad>", "<|pad|>")
            self.first, self.last = self._first_of("[CLS]"), self._first_of("[SEP]")
            self.begin = self._begin(about)
            self._special = {"bos": self.begin, "eos": self.end, "mask": self.mask, "cls": self.first, "sep": self.last}
            self._special |= {"pad": self.padding, "unk": self._first_of("[UNK]", "<unk>")}
            self._refuse_contradiction(said, about)
            self._continues: str | None = (said.get("model") or {}).get("continuing_subword_prefix") or None

    def _refuse_contradiction(self, said: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        for step, kind, field, name in _SAID_TWICE:
            for one in _parts(said.get(step)):
                if one.get("type") == kind and about.get(name) is not None and one.get(field) != about[name]:
                    raise StorageError(
                        f"{self._place}: tokenizer.json has {kind} with {field}={json.dumps(one.get(field))}, and "
                        f"tokenizer_config.json {name}={json.dumps(about[name])}; have both say what the model was "
                        "trained with"
                    )

    def _begin(self, about: Mapping[str, Any]) -> int | None:
        """What stands before a text: as the config says, or as the library puts it there."""
        if about.get("add_bos_token") is not None:
            begin = _text_of(about.get("bos_token"))
            return self._first_of(begin) if begin and about["add_bos_token"] else None
        try:
            framed = self._tokenizer.encode("a")
        except Exception:  # it has neither this letter nor a token for what it does not know
            framed = self._tokenizer.encode("")
        is_added = framed.special_tokens_mask
        before = framed.ids[: is_added.index(0) if 0 in is_added else 1]
        if len(before) > 1:
            raise StorageError(f"{self._place}: puts {len(before)} tokens before a text; at most one is known here")
        # [CLS] has a field of its own, and where it has no token for the text, what stands first may be its end
        return (
            None
            if not before or before[0] == self.first or (0 not in is_added and before[0] == self.end)
            else before[0]
        )

    def num_lost(self, text: str) -> int:
        for one in set(text) - self._loses.keys():
            made = self.decode(self.encode(one)).strip()  # it may put a space before a text, which is none of it
            is_cut = "\ufffd" in made and one != "\ufffd"  # it lacks some of its bytes
            self._loses[one] = not one.isspace() and (not made or is_cut)
        return sum(text.count(one) for one in set(text) if self._loses[one])

    @property
    def _guarded(self) -> AbstractContextManager[None]:
        return parsing(self._place, "a tokenizer that can be used")

    def _first_of(self, *texts: str) -> int | None:
        return next((n for n in map(self._tokenizer.token_to_id, texts) if n is not None), None)

    def encode(self, text: str) -> list[int]:
        with self._guarded:
            numbers: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return self._known(numbers)

    def decode(self, tokens: Sequence[int]) -> str:
        with self._guarded:
            text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text

    def begins_word(self, token: int) -> bool:
        text = self._tokenizer.id_to_token(token)
        return self._continues is None or text is None or not text.startswith(self._continues)

    def divides(self, before: str, behind: str) -> bool:
        """See `Tokenizer`: no token goes beyond a word of its own, which a text's begin may change."""
        whole = before + behind
        return self._words(before) + self._words(behind) == self._words(whole) and self.encode(before) + self.encode(
            behind
        ) == self.encode(whole)

    def _words(self, text: str) -> list[str]:
        made = self._tokenizer
        text = text if made.normalizer is None else made.normalizer.normalize_str(text)
        return [text] if made.pre_tokenizer is None else [one for one, _ in made.pre_tokenizer.pre_tokenize_str(text)]

    @property
    def texts(self) -> Mapping[str, str]:
        made, special = self._tokenizer, self._special
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        about |= {f"{name}_token": made.id_to_token(number) for name, number in special.items() if number is not None}
        return {"tokenizer.json": made.to_str(), "tokenizer_config.json": json.dumps(about, indent=2)}


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name.

    Args:
        name: "bytes", a tokenizer.json, or a folder with a tokenizer.json, with GPT-2's vocab.json and merges.txt
            (encoder.json and vocab.bpe), or with BERT's vocab.txt. The config.json and generation_config.json of a
            folder may name further ends.

    Raises:
        SettingError: the package `tokenizers` is missing.
        StorageError: no such file or folder, or damaged.
    """
    made = _load(name)
    if isinstance(made, Library) and (folder := Path(name).expanduser()).is_dir():
        for path in (folder / "config.json", folder / "generation_config.json"):
            if path.exists():
                made.ends |= {*Fields(read_json(path), path).wholes("eos_token_id")}
    return made


def _load(name: str) -> Tokenizer:
    if name == "bytes":
        return Bytes()
    require_library(name)
    path = Path(name).expanduser()
    if path.is_file():
        return Library(_read(path), place=path)
    if not path.is_dir():
        raise StorageError(
            f"data.tokenizer: there is no file or folder {name}; name one, or write data.tokenizer=bytes"
        )
    about = _about(path)
    pairs = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
    pair = next((one for one in pairs if all((path / file).exists() for file in one)), None)
    if (path / "tokenizer.json").exists():
        made = _read(path / "tokenizer.json")
    elif pair is not None:
        made = _byte_level(path / pair[0], path / pair[1], about)
    elif (path / "vocab.txt").exists():
        made = _word_piece(path / "vocab.txt", about)
    else:
        raise StorageError(
            f"{path} has no tokenizer.json, no vocab.json with merges.txt, and no vocab.txt; name a folder that has one"
        )
    _add_tokens(made, about, path)
    return Library(made, about=about, place=path)


def require_library(name: str) -> None:
    """Raises SettingError: the `tokenizers` library is missing."""
    optional("tokenizers", f"the tokenizer {name} needs", extra="text")


def _read(path: Path) -> Any:
    from tokenizers import Tokenizer as Made

    content = read_bytes(path)
    with parsing(path, "a tokenizer"):
        return Made.from_str(content.decode())


def _byte_level(vocabulary: Path, merges: Path, about: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, pre_tokenizers

    _refuse_other_cuts(vocabulary.parent, about)
    refuse_other_than_file(merges)
    refuse_other_than_file(vocabulary)
    with parsing(merges, f"merges of {vocabulary.name}"):
        made = Made(models.BPE.from_file(str(vocabulary), str(merges)))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(about.get("add_prefix_space")))
    made.decoder = decoders.ByteLevel()
    end = made.token_to_id("<|endoftext|>")
    if end is not None:
        made.add_special_tokens(["<|endoftext|>"])
    return made


def _refuse_other_cuts(folder: Path, about: Mapping[str, Any]) -> None:
    """Refuse two files whose text is not cut as GPT-2's is: they do not say how."""
    config = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    kind, family = about.get("tokenizer_class"), str(config.get("model_type", "")).removeprefix("l2l_nas_")
    if kind not in (None, "GPT2Tokenizer", "GPT2TokenizerFast") or (kind is None and family not in ("", "gpt2")):
        raise StorageError(
            f"{folder} has no tokenizer.json, and how a {kind or family} cuts a text before its merges is said there "
            "alone; write it: AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )


def _word_piece(vocabulary: Path, about: Mapping[str, Any]) -> Any:
    from tokenizers import Tokenizer as Made
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    refuse_other_than_file(vocabulary)
    with parsing(vocabulary, "a vocabulary"):
        made = Made(models.WordPiece.from_file(str(vocabulary), unk_token="[UNK]"))
        made.normalizer = normalizers.BertNormalizer(
            lowercase=bool(about.get("do_lower_case", True)),
            strip_accents=about.get("strip_accents"),
            handle_chinese_chars=bool(about.get("tokenize_chinese_chars", True)),
        )
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    known = [name for name in ("[UNK]", "[PAD]", "[CLS]", "[SEP]", "[MASK]") if made.token_to_id(name) is not None]
    made.add_special_tokens(known)
    return made


def _add_tokens(made: Any, about: Mapping[str, Any], folder: Path) -> None:
    """Add the tokens that the files beside a vocabulary name; a StorageError where one has another number there."""
    from tokenizers import AddedToken

    place = folder / "tokenizer_config.json"
    with parsing(place, "one of a tokenizer"):
        wanted = {int(number): dict(token) for number, token in about.get("added_tokens_decoder", {}).items()}
        wanted |= {number: {"content": token} for token, number in about.get("added_tokens", {}).items()}
        is_known = {token.content for token in made.get_added_tokens_decoder().values()}
        for number, token in sorted(wanted.items()):
            if token["content"] not in is_known:
                made.add_tokens([AddedToken(**{name: token[name] for name in _OF_TOKENS & token.keys()})])
            if made.token_to_id(token["content"]) != number:
                raise ValueError(
                    f"{token['content']!r} has the number {number} there, and {made.token_to_id(token['content'])} "
                    "behind the tokens of its vocabulary"
                )


_OF_TOKENS = {"content", "single_word", "lstrip", "rstrip", "normalized", "special"}


def _about(folder: Path) -> dict[str, Any]:
    """What a folder says of its tokenizer beside its vocabulary."""
    about: dict[str, Any] = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):  # of which the second says more
        found = read_json(folder / name) if (folder / name).exists() else {}
        about |= {key: one for key, one in found.items() if one is not None} if isinstance(found, dict) else {}
    if (folder / "added_tokens.json").exists():
        about["added_tokens"] = read_json(folder / "added_tokens.json")
    return about


def _text_of(token: Any) -> str | None:
    """The text of a token, which may be said with more about it."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None
