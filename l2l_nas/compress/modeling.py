"""A network that l2l_nas found, whose layers differ: from_pretrained(FOLDER, trust_remote_code=True).

The model is transformers' own; `per_layer_config` says what each layer has other than the rest, and what it skips.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, Cache
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.pytorch_utils import Conv1D

FAMILY = "llama"
BaseConfig: Any = CONFIG_MAPPING[FAMILY]
Base: Any = MODEL_FOR_CAUSAL_LM_MAPPING[BaseConfig]
for known in (FAMILY, Base.__name__):  # names of tensors that are other ones in files
    if renamed := get_checkpoint_conversion_mapping(known):
        register_checkpoint_conversion_mapping(f"l2l_nas_{FAMILY}", renamed, overwrite=True)


class Block(dict):  # type: ignore[type-arg]
    """A layer as programs ask for it that know `block_configs`: block.attention.no_op."""

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(name)
        return Block(self[name]) if isinstance(self[name], dict) else self[name]


class FoundConfig(BaseConfig):
    """The config of the model, and of layers that differ."""

    model_type = f"l2l_nas_{FAMILY}"
    # of a layer: ranks of linear maps in place of a part; of products that matrices are; tokens that attention sees;
    # the width of all its heads, where no field of the family tells their size
    attention_map = mlp_map = mlp_rank = attention_window = attention_width = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if blocks := getattr(self, "block_configs", None):
            self.block_configs = [Block(block) for block in blocks]


class LayerConfig:
    """The config of a layer; what attention is computed by is that of the model, which may change."""

    def __init__(self, model: Any, own: Any) -> None:
        self.__dict__.update(model=model, own=own)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["model" if "attn_implementation" in name else "own"], name)


class Products(nn.Module):
    """A linear layer whose matrices are products of two, one behind the other where it holds several."""

    def __init__(self, old: Any, rank: int, count: int) -> None:
        super().__init__()
        taken, given = sizes(old)
        sized = (taken, rank, False), (rank, given // count, old.bias is not None)
        self.products = nn.ModuleList(nn.Sequential(*(nn.Linear(*one) for one in sized)) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        """[..., in] to [..., out]."""
        return torch.cat([product(x) for product in self.products], dim=-1)


class Instead(nn.Module):
    """Stands in for a part of a layer: gives "zeros", the "same" as it takes, or a linear "map" of it."""

    def __init__(self, kind: str, number: int, width: int = 0, rank: int = 0, bias: bool = False) -> None:
        super().__init__()
        self.kind, _, attention = kind.partition("_")
        self.number = number if attention else None
        if self.kind == "map":
            self.map = nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=bias))

    def forward(self, hidden_states: Tensor, *args: Any, past_key_values: Cache | None = None, **kwargs: Any) -> Any:
        """[batch, length, width], or that and no attention weights."""
        given = hidden_states if self.kind == "same" else hidden_states * 0
        given = self.map(hidden_states) if self.kind == "map" else given
        if self.number is None:
            return given
        if past_key_values is not None:  # which counts tokens
            counted = hidden_states.new_zeros(len(hidden_states), 1, hidden_states.shape[1], 1)
            past_key_values.update(counted, counted, self.number)
        return given, None


def windowed(config: Any, number: int, window: int) -> Any:
    """What is called before attention, so that a token sees so many, itself among them."""

    def hook(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if config._attn_implementation not in ("eager", "sdpa"):
            raise ValueError("layers with windows of their own need attn_implementation='sdpa' or 'eager'")
        x, past = args[0] if args else kwargs["hidden_states"], kwargs.get("past_key_values")
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        new, seen = x.shape[1], 0 if past is None else past.get_seq_length(number)
        length, start = (new, 0) if past is None else past.get_mask_sizes(new, number)
        places = torch.arange(seen, seen + new, device=x.device)[:, None]
        far = (places - torch.arange(start, start + length, device=x.device))[None, None]
        sees = (far.abs() < window) & (far >= 0 if getattr(attention, "is_causal", True) else True)
        if mask is None:
            mask = sees if config._attn_implementation == "sdpa" else x.new_zeros(1, 1, new, length)
        sees = mask & sees if mask.dtype == torch.bool else mask.masked_fill(~sees, torch.finfo(mask.dtype).min)
        return ((x, sees, *args[2:]), kwargs) if len(args) > 1 else (args, {**kwargs, "attention_mask": sees})

    return hook


def sizes(linear: Any) -> tuple[int, int]:
    """Of what a linear layer takes and gives."""
    return (linear.nx, linear.nf) if isinstance(linear, Conv1D) else (linear.in_features, linear.out_features)


class FoundForCausalLM(Base):
    """The model, with layers of their own."""

    config_class = FoundConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        layers = self.get_submodule(config.modules["layers"])
        for number, own in enumerate(config.per_layer_config):
            layers[number] = self._changed(type(layers[number])(LayerConfig(config, own), number), own, number)
        self.post_init()

    def _changed(self, layer: Any, own: Any, number: int) -> Any:
        modules, width, inner = self.config.modules, self.config.hidden_size, own.attention_width
        instead: Any = [(modules["skips"][part], ()) for part in getattr(own, "skip", ())]
        for part, rank in (("attention", own.attention_map), ("mlp", own.mlp_map)):
            instead += [(modules["maps"][part], (width, rank, modules["map_bias"]))] if rank else []
        for names, sized in instead:
            for name, kind in names.items():
                layer.set_submodule(name, Instead(kind, number, *sized))
        for name, count in modules["products"].items() if own.mlp_rank else ():
            layer.set_submodule(name, Products(layer.get_submodule(name), own.mlp_rank, count))
        for name, count in modules["heads"].items() if inner else ():
            old = layer.get_submodule(name)
            taken, given = (sizes(old)[0], count * inner) if count else (inner, sizes(old)[1])
            new = Conv1D(given, taken) if isinstance(old, Conv1D) else nn.Linear(taken, given, old.bias is not None)
            layer.set_submodule(name, new)
        if inner and hasattr(layer, "attn"):  # of GPT-2
            layer.attn.split_size = inner
        if own.attention_window:
            attention = layer.get_submodule(next(iter(modules["maps"]["attention"])))
            attention.register_forward_pre_hook(windowed(self.config, number, own.attention_window), with_kwargs=True)
        return layer
