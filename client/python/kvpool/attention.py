"""Attention over blocks in place: libkvattn on views, numpy arrays and CPU tensors, without a copy.

    out = kvpool.attention.attend(ns, layer=0, q=q, blocks=views, n_tokens=1000, causal=True)
"""
from __future__ import annotations

import ctypes as c
import math
import os
from typing import Any, Optional, Union
from typing import Sequence as SequenceOf

from . import _lib
from ._api import Error, Namespace, Sequence, View
from ._buffer import Memory


class _Seq(c.Structure):
    _fields_ = [("table", _lib.Table), ("q", c.c_void_p), ("out", c.c_void_p), ("lse", c.c_void_p),
                ("q_stride", c.c_uint64), ("out_stride", c.c_uint64), ("n_q", c.c_uint64), ("q_end", c.c_uint64),
                ("scale", c.c_void_p), ("causal", c.c_uint32), ("reserved0", c.c_uint32), ("tree", c.c_void_p),
                ("mass", c.c_void_p), ("mass_stride", c.c_uint64), ("reserved", c.c_uint64 * 1)]


class _Opts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("n_q_heads", c.c_uint32), ("scale", c.c_float), ("softcap", c.c_float),
                ("window", c.c_uint64), ("sink_tokens", c.c_uint64), ("sink_logits", c.c_void_p),
                ("alibi_slopes", c.c_void_p), ("n_threads", c.c_uint32), ("flags", c.c_uint32)]


_attn = _lib._load("kvattn", {
    "kvattn_opts_init": (None, [c.POINTER(_Opts), c.c_uint32]),
    "kvattn_attend": (c.c_int, [c.POINTER(_lib.Geom), c.POINTER(_Seq), c.c_uint64, c.POINTER(_Opts)]),
    "kvattn_put": (c.c_int, [c.POINTER(_lib.Geom), c.c_void_p, c.c_uint32, c.c_uint32, c.c_void_p, c.c_size_t,
                             c.c_void_p, c.c_size_t]),
    "kvattn_isa_name": (c.c_char_p, []),
})
_AUTO = 0xFFFFFFFF


def isa() -> str:
    """The instruction set the kernels use, as kvattn_isa_name() in kvattn.h has it: "scalar", "avx2", "avx512" and so on."""
    name: bytes = _attn.kvattn_isa_name()
    return name.decode()


def geometry(ns: Namespace, layer: int) -> _lib.Geom:
    """Where a layer's K and V lie in a block of ``ns``."""
    geom = _lib.Geom()
    result = _lib.pool.kvp_attn_geom(ns._raw, layer, geom)
    if result < 0:
        raise Error(-result, _lib.pool.kvp_error(None).decode())
    return geom


def _floats(memory: Memory, n: int, name: str, at_least: bool = False) -> int:
    if memory.length != 4 * n and not (at_least and memory.length > 4 * n):
        raise ValueError(f"{name}: {memory.length} bytes, {n} float32 ({4 * n} bytes) are needed")
    return int(memory.address)


def put(ns: Namespace, layer: int, block: Any, first_token: int, k: Any, v: Any) -> None:
    """Store float32 rows [tokens][kv_heads][dim] of K and V into a writable block, in the namespace's layout and type."""
    geom, k, v = geometry(ns, layer), Memory(k, False), Memory(v, False)
    n = k.length // (4 * geom.n_kv_heads * geom.dim_k)
    result = _attn.kvattn_put(geom, block._ref.data, first_token, n, _floats(k, n * geom.n_kv_heads * geom.dim_k, "k"), 0,
                              _floats(v, n * geom.n_kv_heads * geom.dim_v, "v"), 0)
    if result < 0:
        raise Error(-result, f"put of {n} tokens at {first_token}: {os.strerror(-result)}")


def put_sequence(seq: Sequence, layer: int, first: int, k: Any, v: Any) -> None:
    """Store float32 rows [tokens][kv_heads][dim] of K and V of a sequence's tokens from position ``first`` on."""
    geom, k, v = geometry(seq.ns, layer), Memory(k, False), Memory(v, False)
    row_k, row_v = geom.n_kv_heads * geom.dim_k, geom.n_kv_heads * geom.dim_v
    n = k.length // (4 * row_k)
    at_k, at_v = _floats(k, n * row_k, "k"), _floats(v, n * row_v, "v")
    done, index = 0, c.c_uint32()
    while done < n:
        block = _lib.pool.kvp_seq_block(seq._raw, first + done, index)
        if not block:
            raise ValueError(f"token {first + done} cannot be stored into: append it first, and before it is committed")
        some = min(n - done, geom.block_tokens - index.value)
        result = _attn.kvattn_put(geom, block, index.value, some, at_k + 4 * done * row_k, 0, at_v + 4 * done * row_v, 0)
        if result < 0:
            raise Error(-result, f"put of {some} tokens at {first + done}: {os.strerror(-result)}")
        done += some


def attend(ns: Namespace, layer: int, q: Any, blocks: Union[Sequence, SequenceOf[View]], n_tokens: int, out: Any, *,
           n_q_heads: int, causal: bool = True, scale: Optional[float] = None, window: int = 0, sink_tokens: int = 0,
           softcap: float = 0, threads: int = 0) -> None:
    """Attention of query rows over the first ``n_tokens`` of ``blocks``: views in order, or a sequence.

    ``q``: float32 [rows][n_q_heads][dim_k]; ``out``: writable float32 [rows][n_q_heads][dim_v].  Causal rows are the last
    keys.  ``threads``: 0: the caller's, -1: one for each CPU.
    """
    geom, q, out = geometry(ns, layer), Memory(q, False), Memory(out, True)
    rows = q.length // (4 * n_q_heads * geom.dim_k)
    if isinstance(blocks, Sequence):
        table = _lib.Table()
        if _lib.pool.kvp_seq_table(blocks._raw, table) < 0 or n_tokens > table.n_tokens:
            raise ValueError(f"n_tokens: {n_tokens}, the sequence has {table.n_tokens}")
        table.n_tokens = n_tokens
    else:
        pointers = (c.c_void_p * max(1, len(blocks)))(*(block.address for block in blocks))
        table = _lib.Table(blocks=pointers, n_blocks=len(blocks), n_tokens=n_tokens)
    seq = _Seq(table=table, q=_floats(q, rows * n_q_heads * geom.dim_k, "q"),
               out=_floats(out, rows * n_q_heads * geom.dim_v, "out"), n_q=rows, causal=causal)
    opts = _Opts()
    _attn.kvattn_opts_init(opts, n_q_heads)
    opts.scale = math.nan if scale is None else scale
    opts.window, opts.sink_tokens, opts.softcap = window, sink_tokens, softcap
    opts.n_threads = _AUTO if threads < 0 else threads
    result = _attn.kvattn_attend(geom, seq, 1, opts)
    if result < 0:
        raise Error(-result, f"attention of {rows} rows over {n_tokens} tokens: {os.strerror(-result)}")
