"""The first and the last layer of a language model: embeddings of tokens, and scores of tokens or classes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from l2l_nas.layers.style import ACTIVATIONS, NORMS, Cache, Style
from l2l_nas.space.split import Splits, Vocabulary


class Embedding(nn.Module):
    """Token embeddings, with learned places and kinds of segments where asked for.

    Args:
        places: longest sequence, of learned places; 0: none.
        kinds: of segments, such as the two sentences of a pair; 0: none.
        style: whose dropout it has, and whose norm where `is_normed`.
        is_normed: whether a norm follows (BERT).
        scale: what the embedding of a token is multiplied by, rounded to its dtype (Gemma).
    """

    def __init__(
        self,
        vocabulary: int,
        hidden: int,
        *,
        places: int = 0,
        kinds: int = 0,
        style: Style | None = None,
        is_normed: bool = False,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        style = style or Style()
        self.scale = scale
        self.token = nn.Embedding(vocabulary, hidden)
        self.kind = nn.Embedding(kinds, hidden) if kinds else None
        self.place = nn.Embedding(places, hidden) if places else None
        self.norm = NORMS[style.norm](hidden, eps=style.eps) if is_normed else nn.Identity()
        self.dropout = nn.Dropout(style.dropout)
        style.draw(self.token, self.kind, self.place)

    def forward(self, tokens: Tensor, kinds: Tensor | None = None) -> Tensor:
        """int64 [batch, length] in, [batch, length, hidden] out; all tokens are of the first kind by default."""
        return self._embedded(tokens, 0, kinds)

    def extend(self, tokens: Tensor, cache: Cache | None) -> tuple[Tensor, Cache]:
        """The next tokens of a sequence; see `SelfAttention.extend`. The cache counts tokens."""
        start = 0 if cache is None else int(cache[0])
        return self._embedded(tokens, start, None), (torch.tensor(start + tokens.shape[1]),)

    def splits(self) -> Splits:
        """By tokens; places and kinds are whole."""
        return {"token": Vocabulary()}

    def _embedded(self, tokens: Tensor, start: int, kinds: Tensor | None) -> Tensor:
        x = self.token(tokens)
        if self.scale != 1:
            x = x * float(torch.tensor(self.scale, dtype=x.dtype))
        if self.kind is not None:
            x = x + self.kind(torch.zeros_like(tokens) if kinds is None else kinds)
        if self.place is not None:
            x = x + self.place(torch.arange(start, start + tokens.shape[1], device=tokens.device))
        return self.dropout(self.norm(x))


class MaskedHead(nn.Module):
    """BERT's head: a layer with an activation of `ACTIVATIONS` and a norm, then a score for each token."""

    is_placewise = True

    def __init__(self, hidden: int, vocabulary: int, *, activation: str = "gelu", style: Style | None = None) -> None:
        super().__init__()
        style = style or Style()
        self.activation = ACTIVATIONS[activation]
        self.dense = nn.Linear(hidden, hidden)
        self.norm = NORMS[style.norm](hidden, eps=style.eps)
        self.out = nn.Linear(hidden, vocabulary)
        style.draw(self.dense, self.out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] in, [batch, length, vocabulary] out."""
        return self.out(self.norm(self.activation(self.dense(x))))

    def splits(self) -> Splits:
        """By tokens; the layer before the scores is whole."""
        return {"out": Vocabulary()}


class ClassHead(nn.Module):
    """BERT's head for whole sequences: what the first token has come to, then a score for each class."""

    takes_any_length = True

    def __init__(self, hidden: int, classes: int, *, style: Style | None = None) -> None:
        super().__init__()
        style = style or Style()
        self.dense = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(style.dropout)
        self.out = nn.Linear(hidden, classes)
        style.draw(self.dense, self.out)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, length, hidden] in, [batch, classes] out."""
        return self.out(self.dropout(torch.tanh(self.dense(x[:, 0]))))


class CappedHead(nn.Linear):
    """Scores of tokens, which are less than a cap: `cap * tanh(score / cap)` (arXiv 2408.00118, section 2)."""

    is_placewise = True

    def __init__(self, hidden: int, vocabulary: int, *, cap: float) -> None:
        super().__init__(hidden, vocabulary, bias=False)
        self.cap = cap

    def forward(self, input: Tensor) -> Tensor:
        """[batch, length, hidden] in, [batch, length, vocabulary] out."""
        return self.cap * torch.tanh(super().forward(input) / self.cap)

    def splits(self) -> Splits:
        """By tokens."""
        return {"": Vocabulary()}
