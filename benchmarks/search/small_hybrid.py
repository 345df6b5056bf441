"""The space `hybrid` made small, on real text of one's own: for rankings and searches that take minutes.

python -m benchmarks ranking --space benchmarks/search/small_hybrid.py:build --space-args text=FILE --architectures 40
python -m l2l_nas search space.pool=benchmarks/search/small_hybrid.py:build space.args.text=FILE
"""

from __future__ import annotations

from l2l_nas import Problem
from l2l_nas.text.data import TextForm, text_data
from l2l_nas.text.tokenizer import Bytes
from l2l_nas.training.task import Tokens
from search_spaces import hybrid


class Text(Tokens):
    """Tokens, ranked by their loss first."""

    metrics = dict(reversed([*Tokens.metrics.items()]))


def build(text: str, hidden: int = 32, depth: int = 3, length: int = 64, test: float = 5.0) -> Problem:
    """Bytes of a text, of which validation and test part are `test` percent each."""
    form = TextForm(length=length, splits=(100 - 2 * test, test, test))
    pool = hybrid.build(length=length, hidden=hidden, depth=depth)
    return Problem(pool, text_data(text, Bytes(), form), Text())
