"""Transformer layers for sequences [batch, sequence, hidden]."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class TokenEmbedding(nn.Module):
    """Token and learned position embeddings, added.

    Args:
        vocabulary: number of tokens.
        hidden: width.
        sequence: longest sequence.
    """

    def __init__(self, vocabulary: int, hidden: int, *, sequence: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, hidden)
        self.place = nn.Embedding(sequence, hidden)

    def forward(self, tokens: Tensor) -> Tensor:
        """[batch, sequence] int64 in, [batch, sequence, hidden] out."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.token(tokens) + self.place(places)


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
