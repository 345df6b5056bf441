"""Transformers that read a number in words and write it in digits: an encoder and a decoder, 15,625 networks.

Every layer of the decoder reads what the encoder wrote, and which of it is there. Data are the numbers from 0 to 9,999
in English, letter by letter. Which of them are in which part is drawn once and for all.
"""

from functools import partial

import torch
from torch import Tensor, nn

from l2l_nas import Candidate, Data, LayerPool, Position, Problem, Split, TensorSpec, Tokens, skip
from l2l_nas.layers import DecoderBlock, EncoderBlock, TokenEmbedding

_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *(f"{start}teen" for start in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
]
_TENS = [f"{start}ty" for start in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine")]
_LETTERS = "_ abcdefghijklmnopqrstuvwxyz"  # the first stands for nothing
_LENGTH, _DIGITS, _END, _BEGIN = 44, 5, 10, 11  # letters; digits and the end; their numbers


def build(hidden: int = 48, depth: int = 3, heads: int = 4) -> Problem:
    """Encoder, decoder, head.

    Args:
        hidden: width.
        depth: blocks of the encoder, and of the decoder.
        heads: attention heads.
    """

    def blocks(kind: type[nn.Module]) -> list[Candidate]:
        ways = ((heads, 4), (heads, 1), (1, 4), (1, 1))
        return [
            *(
                Candidate(f"heads{n}_wide{factor}", partial(kind, hidden, heads=n, feedforward=factor * hidden))
                for n, factor in ways
            ),
            skip(),
        ]

    letters = partial(TokenEmbedding, len(_LETTERS), hidden, sequence=_LENGTH)
    digits = partial(TokenEmbedding, _BEGIN + 1, hidden, sequence=_DIGITS)
    encoder = [Position("letters", Candidate("embedding", letters), reads="words")]
    for index in range(depth):
        before = f"encoder_{index - 1}" if index else "letters"
        encoder.append(Position(f"encoder_{index}", blocks(EncoderBlock), reads=(before, "present")))
    decoder = [Position("digits", Candidate("embedding", digits), reads="numbers")]
    for index in range(depth):
        before, memory = f"decoder_{index - 1}" if index else "digits", encoder[-1].name
        decoder.append(Position(f"decoder_{index}", blocks(DecoderBlock), reads=(before, memory, "present")))
    pool = LayerPool(
        [
            Position("present", Candidate("mask", Present), reads="words"),
            *encoder,
            *decoder,
            Position("head", Candidate("linear", partial(nn.Linear, hidden, _BEGIN))),
        ],
        inputs={"words": TensorSpec((_LENGTH,), torch.int64), "numbers": TensorSpec((_DIGITS,), torch.int64)},
    )
    return Problem(pool, data(), task=Tokens())


class Present(nn.Module):
    """Tells which letters are there."""

    def forward(self, words: Tensor) -> Tensor:
        """int64 [batch, length] in, bool [batch, length] out."""
        return words > 0


def in_words(number: int) -> str:
    """A number from 0 to 9,999 in English."""
    parts = []
    for size, name in ((1000, " thousand"), (100, " hundred")):
        if number >= size:
            parts.append(_ONES[number // size] + name)
            number %= size
    if number >= 20:
        parts.append(_TENS[number // 10 - 2])
        number %= 10
    if number or not parts:
        parts.append(_ONES[number])
    return " ".join(parts)


def data() -> Data:
    """6,000 numbers to train on, 2,000 each to select and to test on.

    Inputs are their words and their digits shifted by one, targets their digits.
    """
    order = torch.randperm(10_000, generator=torch.Generator().manual_seed(0)).tolist()
    return Data(*(_split(numbers) for numbers in (order[:6000], order[6000:8000], order[8000:])))


def _split(numbers: list[int]) -> Split:
    words = torch.zeros(len(numbers), _LENGTH, dtype=torch.int64)
    digits = torch.full((len(numbers), _DIGITS), -1)
    for row, number in enumerate(numbers):
        spelled = [_LETTERS.index(letter) for letter in in_words(number)]
        words[row, : len(spelled)] = torch.tensor(spelled)
        written = [*map(int, str(number)), _END]
        digits[row, : len(written)] = torch.tensor(written)
    before = torch.cat((torch.full((len(numbers), 1), _BEGIN), digits[:, :-1].clamp(min=0)), dim=1)
    return Split((words, before), digits)
