"""A network that l2l_nas found, for transformers: from_pretrained(FOLDER, trust_remote_code=True).

Layers of a causal network treat what lies behind a token as if it was not there, and so padding is put there.
"""

import inspect
from typing import Any

from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast, MaskedLMOutput


def build() -> nn.Sequential:
    """The layers, with weights that are drawn."""
    raise NotImplementedError  # an export has those of a network here


class FoundConfig(PreTrainedConfig):
    """Numbers that other programs ask for; the layers are those of `build`."""

    model_type = "l2l_nas"


class Past(DynamicCache):
    """What layers know of earlier tokens, as their method `extend` returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0  # how many tokens there were
        self.caches: dict[int, tuple[Tensor, ...]] = {}  # by number of the layer

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """How many tokens there were."""
        return self.seen

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Take other rows of the batch, in this order."""
        for number, cache in self.caches.items():
            rows = (part.index_select(0, beam_idx.to(part.device)) if part.dim() else part for part in cache)
            self.caches[number] = tuple(rows)


class FoundNetwork(PreTrainedModel):
    """The layers, in order."""

    config_class = FoundConfig
    _supports_sdpa = True

    def __init__(self, config: FoundConfig) -> None:
        super().__init__(config)
        self.network = build()
        owners: dict[int, str] = {}
        self._tied_weights_keys = {}
        for name, parameter in self.named_parameters(remove_duplicate=False):
            owner = owners.setdefault(id(parameter), name)
            if owner != name:
                self._tied_weights_keys[name] = owner
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The embedding of tokens."""
        return next(part for part in self.network.modules() if isinstance(part, nn.Embedding))


class FoundForCausalLM(FoundNetwork, GenerationMixin):
    """A network that says of each token which one comes next."""

    _is_stateful = True  # what layers know of tokens cannot be taken back: `generate` refuses what would need that

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: DynamicCache | None = None,
        use_cache: bool | None = None,
        position_ids: None = None,
        inputs_embeds: None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits [batch, length, vocabulary] of what follows each token, and their loss where there are labels.

        Args:
            input_ids: int64 [batch, length]; where there were tokens before, those that are new.
            attention_mask: [batch, all tokens], 0 for padding, on either side.
            labels: int64 [batch, length], -100 for those that do not count; each is compared with the logits before it.
            past_key_values: what was returned for the tokens before.
            use_cache: whether to return what is needed to go on; without padding alone.
            logits_to_keep: of so many last tokens, or of these places, logits are returned; 0: of all.
        """
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        if position_ids is not None or inputs_embeds is not None:
            raise ValueError("this network takes input_ids and attention_mask; it has no position_ids or inputs_embeds")
        is_padded = attention_mask is not None and not bool(attention_mask.all())
        past = None
        if past_key_values is not None and past_key_values.get_seq_length():
            if is_padded or not isinstance(past_key_values, Past):
                raise ValueError("this network goes on with what it returned itself, and without padding")
            past = past_key_values
        elif use_cache and self.config.has_cache and not is_padded:
            past = Past()
        if past is not None:
            logits = self._extended(input_ids, past, kept)
        elif attention_mask is not None and is_padded:
            logits = self._padded(input_ids, attention_mask)[:, kept]
        else:
            logits = self.network(input_ids)[:, kept]
        loss = None
        if labels is not None:
            some = logits.contiguous()  # of which it makes another view
            loss = self.loss_function(logits=some, labels=labels, vocab_size=logits.shape[-1], **kwargs)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: DynamicCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """All tokens so far, or those that are new where there is something to go on with."""
        seen = 0 if past_key_values is None else past_key_values.get_seq_length()
        is_piece = input_ids.shape[1] <= seen  # of a prompt, which comes without the tokens before
        return {
            "input_ids": input_ids if is_piece else input_ids[:, seen:],
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": kwargs.get("logits_to_keep", 0),
        }

    def _padded(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """With padding behind the tokens of each row, and back where they were."""
        order = (mask == 0).long().argsort(dim=1, stable=True)
        logits = self.network(tokens.gather(1, order))
        return logits.gather(1, order.argsort(dim=1)[..., None].expand_as(logits))

    def _extended(self, tokens: Tensor, past: Past, kept: slice | Tensor) -> Tensor:
        x = tokens
        layer: Any
        # a Sequential means something else by `extend`
        extends = [hasattr(layer, "extend") and not isinstance(layer, nn.Sequential) for layer in self.network]
        last = max((number for number, does in enumerate(extends) if does), default=-1)
        for number, layer in enumerate(self.network):
            if number == last + 1:  # all behind it treat every token alike
                x = x[:, kept]
            if extends[number]:
                x, past.caches[number] = layer.extend(x, past.caches.get(number))
            else:
                x = layer(x)
        past.seen += tokens.shape[1]
        return x if last + 1 < len(extends) else x[:, kept]


class FoundForMaskedLM(FoundNetwork):
    """A network that says which tokens are masked."""

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput:
        """Logits [batch, length, vocabulary] of each token, and their loss where there are labels.

        Args:
            input_ids, token_type_ids: int64 [batch, length].
            attention_mask: [batch, length], 0 for padding.
            labels: int64 [batch, length], -100 for those that do not count.
        """
        is_padded = attention_mask is not None and not bool(attention_mask.all())
        more = {"documents": attention_mask} if is_padded else {}  # tokens see those of their own number
        embedding, *layers = self.network
        x = embedding(input_ids, token_type_ids)
        for layer in layers:
            takes = inspect.signature(layer.forward).parameters
            x = layer(x, **{name: value for name, value in more.items() if name in takes})
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=x, labels=labels, vocab_size=x.shape[-1], **kwargs)
        return MaskedLMOutput(loss=loss, logits=x)
