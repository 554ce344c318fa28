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
from ._api import Error, Namespace, Sequence, View, _fits
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
_HEADS_MAX = 4096


def isa() -> str:
    """The instruction set the kernels use, as kvattn_isa_name() in kvattn.h has it: "scalar", "avx2", "avx512" and so on."""
    name: bytes = _attn.kvattn_isa_name()
    return name.decode()


def geometry(ns: Namespace, layer: int) -> _lib.Geom:
    """Where a layer's K and V lie in a block of ``ns``; where it stores no V: all of K, see :func:`attend`."""
    geom = _lib.Geom()
    result = _lib.pool.kvp_attn_geom(ns._raw, _fits("layer", layer), geom)
    if result < 0:
        raise Error(-result, _lib.pool.kvp_error(None).decode())
    return geom


def _floats(memory: Memory, n: int, name: str, at_least: bool = False) -> int:
    if memory.length != 4 * n and not (at_least and memory.length > 4 * n):
        raise ValueError(f"{name}: {memory.length} bytes, {n} float32 ({4 * n} bytes) are needed")
    return int(memory.address)


def _float_memory(name: str, source: Any, writable: bool = False) -> Memory:
    """Of numbers as the kernels read them; plain bytes are taken for such."""
    kind = str(source.dtype) if hasattr(source, "data_ptr") else memoryview(source).format
    if kind not in ("f", "<f", "=f", "B", "b", "c", "torch.float32"):
        raise ValueError(f"{name}: its elements are {kind}, float32 is needed")
    return Memory(source, writable)


def _same_namespace(what: str, ns: Namespace, theirs: Any) -> None:
    """Blocks of another one may be shorter: with the geometry of ``ns`` bytes behind them would be read, and written."""
    if theirs is ns._held:
        return
    mine, other = ns._info(), _lib.NsInfo(size=c.sizeof(_lib.NsInfo))
    _lib.pool.kvp_ns_info(theirs.value, other)
    if (mine.ns_id, mine.block_bytes, mine.block_tokens) != (other.ns_id, other.block_bytes, other.block_tokens):
        raise ValueError(f"{what}: of another namespace than {ns.name}")


class _Rows:
    """Rows of K and V that are to be stored; V's address is None where the layer stores no V."""

    def __init__(self, geom: _lib.Geom, k: Any, v: Any):
        stored = geom.v_off != geom.k_off
        if stored != (v is not None):
            raise ValueError("v: the layer stores V" if stored else "v: the layer stores none, it must be None")
        self.k = _float_memory("k", k)  # held as long as its address
        self.v = _float_memory("v", v) if stored else None
        self.row_k, self.row_v = 4 * geom.n_kv_heads * geom.dim_k, 4 * geom.n_kv_heads * geom.dim_v
        self.n = self.k.length // self.row_k
        self.at_k = _floats(self.k, self.n * self.row_k // 4, "k")
        self.at_v = _floats(self.v, self.n * self.row_v // 4, "v") if self.v else None

    def put(self, geom: _lib.Geom, block: Any, token: int, first: int, n: int) -> int:
        at_v = None if self.at_v is None else self.at_v + first * self.row_v
        return int(_attn.kvattn_put(geom, block, token, n, self.at_k + first * self.row_k, 0, at_v, 0))


def put(ns: Namespace, layer: int, block: Any, first_token: int, k: Any, v: Any = None) -> None:
    """Store float32 rows [tokens][kv_heads][dim] of K and V into a writable block, in the namespace's layout and type.

    ``v`` is None where the layer stores no V (``dim_v`` 0 in the descriptor: V is the first dims of K).
    """
    geom = geometry(ns, layer)
    rows = _Rows(geom, k, v)
    _same_namespace("block", ns, block._grant._ns)
    n, result = rows.n, rows.put(geom, block._ref.data, _fits("first_token", first_token), 0, rows.n)
    if result < 0:
        raise Error(-result, f"put of {n} tokens at {first_token}: {os.strerror(-result)}")


def put_sequence(seq: Sequence, layer: int, first: int, k: Any, v: Any = None) -> None:
    """Store rows as :func:`put` does, of a sequence's tokens from position ``first`` on."""
    geom = geometry(seq.ns, layer)
    rows = _Rows(geom, k, v)
    n, done, index, first = rows.n, 0, c.c_uint32(), _fits("first", first, 62)
    while done < n:
        block = _lib.pool.kvp_seq_block(seq._raw, first + done, index)
        if not block:
            raise ValueError(f"token {first + done} cannot be stored into: append it first, and before it is committed")
        some = min(n - done, geom.block_tokens - index.value)
        result = rows.put(geom, block, index.value, done, some)
        if result < 0:
            raise Error(-result, f"put of {some} tokens at {first + done}: {os.strerror(-result)}")
        done += some


def attend(ns: Namespace, layer: int, q: Any, blocks: Union[Sequence, SequenceOf[View]], n_tokens: int, out: Any, *,
           n_q_heads: int, causal: bool = True, scale: Optional[float] = None, window: int = 0, sink_tokens: int = 0,
           softcap: float = 0, threads: int = 0, dim_v: Optional[int] = None) -> None:
    """Attention of query rows over the first ``n_tokens`` of ``blocks``: views in order, or a sequence.

    ``q``: float32 [rows][n_q_heads][dim_k]; ``out``: writable float32 [rows][n_q_heads][dim_v].  Causal rows are the last
    keys.  ``threads``: 0: the caller's, -1: one for each CPU.  ``dim_v``: where the layer stores no V, how many of K's
    first dims are V; None: all.
    """
    geom, q, out = geometry(ns, layer), _float_memory("q", q), _float_memory("out", out, True)
    if not 0 < n_q_heads <= _HEADS_MAX:
        raise ValueError(f"n_q_heads: {n_q_heads}, it must be 1 to {_HEADS_MAX}")
    for name, tokens in (("n_tokens", n_tokens), ("window", window), ("sink_tokens", sink_tokens)):
        _fits(name, tokens, 62)
    if dim_v is not None and (geom.v_off != geom.k_off or not 0 < dim_v <= geom.dim_k):
        raise ValueError(f"dim_v: {dim_v}, of {geom.dim_k} dims of K, and only where the layer stores no V")
    geom.dim_v = geom.dim_v if dim_v is None else dim_v
    rows = q.length // (4 * n_q_heads * geom.dim_k)
    if isinstance(blocks, Sequence):
        _same_namespace("blocks", ns, blocks.ns._held)
        table = _lib.Table()
        if _lib.pool.kvp_seq_table(blocks._raw, table) < 0 or n_tokens > table.n_tokens:
            raise ValueError(f"n_tokens: {n_tokens}, the sequence has {table.n_tokens}")
        table.n_tokens = n_tokens
    else:
        for block in blocks:
            _same_namespace("blocks", ns, block._held()._ns)
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
