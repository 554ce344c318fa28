"""Hugging Face transformers on the pool: a cache whose K and V never leave it.

    model = AutoModelForCausalLM.from_pretrained(...)
    kvpool.hf.use(model)                                        # once: attention reads blocks in place
    with kvpool.Client() as client:
        ns = kvpool.hf.namespace(client, "my-model", model)
        cache = kvpool.hf.PoolCache(ns, model, input_ids, timeout=0.1)
        out = model.generate(input_ids, past_key_values=cache)   # computes from cache.reused on
        cache.close()                                            # full blocks, the answer's too, stay in the pool

One sequence a cache, on the CPU, inference only.  K and V of tokens that others computed are neither computed nor copied:
new rows are stored into blocks, and attention runs over the blocks (libkvattn), whatever process wrote them.
"""
from __future__ import annotations

import hashlib
from typing import Any, Optional

import torch
import transformers
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import attention
from ._api import Client, Descriptor, Layout, Namespace, Type

NAME = "kvpool"
_TYPES = {torch.float32: Type.F32, torch.float16: Type.F16, torch.bfloat16: Type.BF16}


def _text(model: Any) -> Any:
    config = model.config
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def fingerprint(model: Any) -> bytes:
    """32 bytes of the weights and the configuration: computed from all of them, so give it once for a model."""
    digest = hashlib.blake2b(digest_size=32)
    digest.update(repr(sorted((key, repr(value)) for key, value in model.config.to_dict().items()
                              if not key.startswith("_") and key != "transformers_version")).encode())
    for name, parameter in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(parameter.detach().contiguous().view(torch.uint8).numpy())
    return digest.digest()


def descriptor(model: Any, block_tokens: int = 32, type: Optional[Type] = None, model_id: bytes = b"") -> Descriptor:
    """What this model's blocks are; sliding-window layers and K or V of differing shapes are refused."""
    config = _text(model)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
        raise ValueError(f"layers of {sorted(kinds)}: this version serves full attention in every layer")
    heads = config.num_attention_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    result = Descriptor.model(Layout.TILED, block_tokens, config.num_hidden_layers,
                              getattr(config, "num_key_value_heads", None) or heads, dim,
                              type or _TYPES[model.dtype], model_id or fingerprint(model))
    result.raw.rope_pairing = 2
    result.raw.engine = f"transformers/{transformers.__version__}"[:127].encode()
    result.block_bytes  # refuses what is out of bounds
    return result


def namespace(client: Client, name: str, model: Any, **options: Any) -> Namespace:
    """The namespace of this model's blocks; ``options`` of descriptor()."""
    return client.namespace(name, descriptor(model, **options))


class _Rows:
    """What attention gets in place of K and V: where they are."""

    def __init__(self, layer: "_PoolLayer", n: int):
        self.layer, self.n = layer, n


def _attend(module: Any, query: torch.Tensor, key: Any, value: Any, attention_mask: Any, scaling: Optional[float] = None,
            softcap: Optional[float] = None, dropout: float = 0.0, **_: Any) -> tuple:
    """The attention function "kvpool": over blocks for a PoolCache, PyTorch's own for any other."""
    if not isinstance(key, _Rows):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, scaling=scaling, dropout=dropout)
    if dropout:
        raise ValueError("dropout: a PoolCache is for inference")
    layer, (_batch, heads, rows, _dim) = key.layer, query.shape
    q = query[0].transpose(0, 1).float().contiguous()
    out = torch.empty((rows, heads, layer.dim_v), dtype=torch.float32)
    attention.attend(layer.cache.ns, layer.index, q, layer.cache.sequence, key.n, out, n_q_heads=heads, scale=scaling,
                     softcap=softcap or 0, threads=-1)
    return out.to(query.dtype).unsqueeze(0), None


def use(model: Any) -> None:
    """Let this model's attention read a PoolCache's blocks; with another cache it computes as before."""
    ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
    model.set_attn_implementation(NAME)


class _PoolLayer(CacheLayerMixin):
    is_sliding = False
    is_croppable = False
    supports_early_init = False

    def __init__(self, cache: "PoolCache", index: int, dim_v: int):
        super().__init__()
        self.cache, self.index, self.dim_v, self.stored = cache, index, dim_v, cache.reused
        self.is_initialized = True

    def lazy_initialization(self, key_states: Any, value_states: Any) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any) -> tuple:
        if key_states.shape[0] != 1:
            raise ValueError(f"a batch of {key_states.shape[0]}: a PoolCache holds one sequence")
        n = key_states.shape[2]
        k, v = (states[0].transpose(0, 1).float().contiguous() for states in (key_states, value_states))
        attention.put_sequence(self.cache.sequence, self.index, self.stored, k, v)
        self.stored += n
        rows = _Rows(self, self.stored)
        return rows, rows

    def get_seq_length(self) -> int:
        return self.stored

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length

    def get_mask_sizes(self, query_length: Any) -> tuple:
        n = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.stored + n, 0

    def reset(self) -> None:
        raise ValueError("a PoolCache is not emptied: close it and make another one")


class PoolCache(Cache):
    """The K and V of one sequence, in the pool.

    ``reused``: leading tokens of ``input_ids`` that others have computed; ``computed``: tokens this model was run on.
    Token ids are seen as the model gets them, so full blocks of the answer are published as well.
    """

    def __init__(self, ns: Namespace, model: Any, input_ids: Any, timeout: float = 0):
        ids = [int(i) for i in (input_ids[0] if getattr(input_ids, "ndim", 1) == 2 else input_ids)]
        if getattr(input_ids, "ndim", 1) == 2 and input_ids.shape[0] != 1:
            raise ValueError(f"a batch of {input_ids.shape[0]}: a PoolCache holds one sequence")
        if _text(model)._attn_implementation != NAME:
            raise ValueError("this model's attention does not read the pool: kvpool.hf.use(model) first")
        self.ns, self.sequence, self.computed = ns, ns.sequence(), 0
        self.reused = self.sequence.match(ids, timeout)
        geom = attention.geometry(ns, 0)
        super().__init__(layers=[_PoolLayer(self, i, geom.dim_v) for i in range(_text(model).num_hidden_layers)])
        self._hook = model.register_forward_pre_hook(self._before, with_kwargs=True)
        self._after_hook = model.register_forward_hook(self._after, with_kwargs=True)

    def _is_mine(self, kwargs: dict) -> bool:
        return kwargs.get("past_key_values") is self or kwargs.get("cache") is self

    def _before(self, _model: Any, args: tuple, kwargs: dict) -> None:
        if not self._is_mine(kwargs):
            return
        ids = kwargs.get("input_ids", args[0] if args else None)
        if ids is None:
            raise ValueError("inputs_embeds: blocks are named by token ids, so call the model with input_ids")
        mask = kwargs.get("attention_mask")
        if mask is not None and mask.ndim == 2 and not bool(mask.all()):
            raise ValueError("padding: a PoolCache holds one sequence without any")
        self.sequence.append(ids[0].tolist())

    def _after(self, _model: Any, args: tuple, kwargs: dict, _output: Any) -> None:
        if self._is_mine(kwargs):
            self.computed = len(self.sequence) - self.reused
            self.sequence.commit(len(self.sequence))

    def close(self) -> None:
        """Let go of all; published blocks stay in the pool."""
        self._hook.remove()
        self._after_hook.remove()
        self.sequence.close()

    def __enter__(self) -> "PoolCache":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
