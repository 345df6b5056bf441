"""Transformers that read a number in words and write it in digits: an encoder and a decoder, 15,625 networks.

Every layer of the decoder reads the encoder's output, and a mask of its letters. The data are the numbers from 0 to
9,999 in English, letter by letter. A fixed draw decides which of them are in which part.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from l2l_nas import Candidate, Data, LayerPool, Position, Problem, Split, TensorSpec, Tokens, skip
from l2l_nas.layers import Embedding

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

    letters = partial(Embedding, len(_LETTERS), hidden, places=_LENGTH)
    digits = partial(Embedding, _BEGIN + 1, hidden, places=_DIGITS)
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


class EncoderBlock(nn.Module):
    """A pre-norm transformer block: self-attention, then a feed-forward network (arXiv 2002.04745, figure 1b).

    Args:
        hidden: width, a multiple of `heads`.
        heads: attention heads.
        feedforward: width of the feed-forward network.
        dropout: probability after both parts.
        causal: whether a token sees only earlier ones.
    """

    def __init__(
        self, hidden: int, *, heads: int, feedforward: int, dropout: float = 0.0, causal: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm1 = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, feedforward)
        self.down = nn.Linear(feedforward, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """[batch, sequence, hidden], the same shape out.

        Args:
            present: bool [batch, sequence], the tokens to attend to, or [batch, sequence, sequence], by which;
                all of them by default.
        """
        batch, sequence, hidden = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mask = None if present is None else present.unsqueeze(1) if present.dim() == 3 else present[:, None, None, :]
        attended = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=self.causal)
        x = x + self.dropout(self.out(attended.transpose(1, 2).reshape(batch, sequence, hidden)))
        return x + self.dropout(self.down(functional.gelu(self.up(self.norm2(x)))))


class DecoderBlock(nn.Module):
    """A pre-norm block of a decoder: attention to a memory, then to earlier tokens, and a feed-forward network.

    Args:
        hidden: width, a multiple of `heads`.
        heads: attention heads.
        feedforward: width of the feed-forward network.
        dropout: probability after each part.
    """

    def __init__(self, hidden: int, *, heads: int, feedforward: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.own = EncoderBlock(hidden, heads=heads, feedforward=feedforward, dropout=dropout, causal=True)
        self.norm = nn.LayerNorm(hidden)
        self.query = nn.Linear(hidden, hidden)
        self.key_value = nn.Linear(hidden, 2 * hidden)
        self.out = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: Tensor, present: Tensor) -> Tensor:
        """[batch, sequence, hidden], the same shape out.

        Args:
            memory: [batch, length, hidden], of an encoder.
            present: bool [batch, length], what of it may be attended to.
        """
        query = self._heads(self.query(self.norm(x)))
        key, value = map(self._heads, self.key_value(memory).chunk(2, dim=-1))
        attended = functional.scaled_dot_product_attention(query, key, value, present[:, None, None, :])
        return self.own(x + self.dropout(self.out(attended.transpose(1, 2).flatten(2))))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


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
