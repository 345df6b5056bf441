"""WikiText's text, without the marks of its tokenization, and back.

WikiText (arXiv 1609.07843) is cut into words: " , ", " @-@ ", " 's ", "= = Heading = =". Language models learn text as
it is written, so they are measured on that (arXiv 1909.08053, section 4.2). Nothing is lost: every token can be read
back (`tokens_of`). Where written text would be ambiguous, its tokens stay apart, and two spaces stand behind a token
that would be cut, such as "Bros.".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_OPENING = ("(", "[")
_CLOSING = (",", ".", ";", ":", "!", "?", ")", "]", "%")
_MARKED = re.compile(r"@[-,.]@")  # within a word
_ENDING = re.compile(r"'[a-z]+")
_WHOLE = re.compile(r"\.{2,}|[A-Z]\.|([A-Za-z]\.){2,}|(Mr|Mrs|Ms|Dr|St|Jr|Sr|No|Lt|Gen|vs|Inc|Co|Ltd|Corp)\.")
_INNER = re.compile(r"(?<=[\w>])(-)(?=[\w<])|(?<=[\d>])([.,])(?=[\d<])")
_LAST = re.compile(r"(?<=.)('[a-z]+|[,.;:!?)\]\"%])$")


def detokenized(text: str) -> str:
    """WikiText's text as it is written; spaces at the ends of its lines are layout, and are left out."""
    return "\n".join(" ".join(_written(line.split())) for line in text.split("\n"))


def count_words(text: str) -> int:
    """The number of words of WikiText's text, ends of lines among them: what word perplexity is normalised by."""
    return len(text.strip().split(" "))


def _written(tokens: Sequence[str]) -> Iterator[str]:
    for group in _groups(tokens):
        word = "".join(token[1] if _MARKED.fullmatch(token) else token for token in group)
        if tokens_of(word) == group:
            yield word
        else:
            yield from (token if tokens_of(token) == [token] else f"{token} " for token in group)


def _groups(tokens: Sequence[str]) -> list[list[str]]:
    """Tokens that are written without a space between them."""
    groups: list[list[str]] = []
    is_glued, is_quoted = False, False
    for token in tokens:
        is_inner = _MARKED.fullmatch(token) is not None
        is_quoted ^= token == '"'
        is_opening = token in _OPENING or (token == '"' and is_quoted)
        joins = is_glued or is_inner or token in _CLOSING or (token == '"' and not is_quoted)
        joins = joins or _ENDING.fullmatch(token) is not None
        if groups and (joins or (token == "=" and groups[-1][-1] == "=")):
            groups[-1].append(token)
        else:
            groups.append([token])
        is_glued = is_inner or is_opening
    return groups


def tokens_of(word: str) -> list[str]:
    """The tokens of what is written without a space."""
    if set(word) == {"="}:
        return list(word)
    front: list[str] = []
    back: list[str] = []
    while len(word) > 1 and word[0] in (*_OPENING, '"'):
        front.append(word[0])
        word = word[1:]
    while not _WHOLE.fullmatch(word) and (last := _LAST.search(word)):
        back.insert(0, last[0])
        word = word[: last.start()]
    inner = [f"@{part}@" if index % 3 else part for index, part in enumerate(_INNER.split(word)) if part]
    return [*front, *inner, *back]
