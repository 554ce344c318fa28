"""The C library as ctypes sees it: structs and prototypes of kvpool.h and kvattn.h, nothing more.

Inside the package only.  Names and order are those of the headers; ``Library`` checks the sizes that the library lets it
check, so that a header that moved on is an error here and not a wrong offset.
"""
from __future__ import annotations

import ctypes as c
import os
from pathlib import Path
from typing import Any, Dict, Tuple

NAME_MAX = 64
LAYERS_MAX = 128
UID_SELF = 0xFFFFFFFF
STOCK_NONE = 0xFFFFFFFF
PTR = c.c_void_p


class Key(c.Structure):
    _fields_ = [("w", c.c_uint64 * 2)]


class Layer(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in ("kind", "kv_heads", "dim_k", "dim_v", "window", "reserved")]


class Desc(c.Structure):
    _fields_ = [
        ("size", c.c_uint32), ("version", c.c_uint32), ("layout", c.c_uint32), ("block_tokens", c.c_uint32),
        ("block_bytes", c.c_uint64), ("n_layers", c.c_uint32), ("type_k", c.c_uint32), ("type_v", c.c_uint32),
        ("k_order", c.c_uint32), ("quant_block", c.c_uint32), ("scale_place", c.c_uint32),
        ("rope_pairing", c.c_uint32), ("rope_scaling", c.c_uint32), ("rope_base", c.c_double),
        ("rope_factor", c.c_double), ("rope_extra", c.c_double * 4), ("model", c.c_uint8 * 32),
        ("tokenizer", c.c_uint8 * 32), ("adapter", c.c_uint8 * 32), ("tp_size", c.c_uint32), ("tp_rank", c.c_uint32),
        ("pp_size", c.c_uint32), ("pp_rank", c.c_uint32), ("cp_size", c.c_uint32), ("cp_rank", c.c_uint32),
        ("kv_group", c.c_uint32), ("hash_scheme", c.c_uint32), ("salt_policy", c.c_uint32),
        ("endianness", c.c_uint32), ("hash_name", c.c_char * 32), ("engine", c.c_char * 128),
        ("layers", Layer * LAYERS_MAX),
    ]


class OpenOpts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("connect_timeout_ms", c.c_uint32), ("socket", c.c_char_p),
                ("comm", c.c_char_p), ("flags", c.c_uint32), ("stock_blocks", c.c_uint32)]


class Counts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32)] + [
        (name, c.c_uint64) for name in (
            "lookups", "hits_ram", "hits_spill", "misses", "tokens_ram", "tokens_spill", "copied_bytes",
            "private_blocks", "lost_holds", "round_trips")]


class NsOpts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("flags", c.c_uint32), ("name", c.c_char_p), ("desc", c.POINTER(Desc)),
                ("owner_uid", c.c_uint32), ("mode", c.c_uint32), ("base", PTR), ("cost_ns_per_token", c.c_uint64)]


class NsInfo(c.Structure):
    _fields_ = [("size", c.c_uint32), ("flags", c.c_uint32), ("ns_id", c.c_uint64), ("block_bytes", c.c_uint64),
                ("block_stride", c.c_uint64), ("block_tokens", c.c_uint32), ("n_siblings", c.c_uint32),
                ("differs", c.c_char * 32)]


class MatchPart(c.Structure):
    _fields_ = [("ns", PTR), ("keys", c.POINTER(Key)), ("rule", c.c_uint32), ("reserved", c.c_uint32)]


class View(c.Structure):
    _fields_ = [("data", PTR), ("used_bytes", c.c_uint64), ("used_tokens", c.c_uint32), ("layers_ready", c.c_uint32),
                ("hit", c.c_uint32), ("reason", c.c_uint32), ("ns", PTR), ("opaque", c.c_uint64 * 4)]


class BlockRef(c.Structure):
    _fields_ = [("data", PTR), ("is_private", c.c_uint32), ("reserved", c.c_uint32), ("ns", PTR),
                ("opaque", c.c_uint64 * 4)]


class PublishItem(c.Structure):
    _fields_ = [("key", Key), ("parent", Key), ("block", c.POINTER(BlockRef)), ("used_tokens", c.c_uint32),
                ("reserved", c.c_uint32), ("used_bytes", c.c_uint64), ("view", c.POINTER(View))]


class IoVec(c.Structure):
    _fields_ = [("iov_base", PTR), ("iov_len", c.c_size_t)]


class Io(c.Structure):
    _fields_ = [("key", Key), ("parent", Key), ("parts", c.POINTER(IoVec)), ("n_parts", c.c_uint32),
                ("used_tokens", c.c_uint32), ("used_bytes", c.c_uint64), ("status", c.c_uint32),
                ("reason", c.c_uint32)]


class Completion(c.Structure):
    _fields_ = [("tag", c.c_uint64), ("n", c.c_uint32), ("n_done", c.c_uint32)]


class QueueOpts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("n_threads", c.c_uint32)]


class StatsOf(c.Structure):
    _fields_ = [("size", c.c_uint32), ("reserved", c.c_uint32)] + [(name, c.c_uint64) for name in (
        "capacity_bytes", "ram_blocks", "ram_bytes", "spill_blocks", "spill_bytes", "lookups", "hits_ram", "hits_spill",
        "misses", "tokens_ram", "tokens_spill", "stored", "evicted", "dropped", "restored")]


class Event(c.Structure):
    _fields_ = [("seq", c.c_uint64), ("key", Key), ("parent", Key), ("kind", c.c_uint32), ("tier", c.c_uint32),
                ("used_tokens", c.c_uint32), ("reserved", c.c_uint32)]


class Table(c.Structure):
    """struct kvattn_table"""

    _fields_ = [("blocks", c.POINTER(PTR)), ("block_pos", c.POINTER(c.c_uint64)), ("n_blocks", c.c_uint64),
                ("n_tokens", c.c_uint64)]


class SeqOpts(c.Structure):
    _fields_ = [("size", c.c_uint32), ("n_salt", c.c_uint32), ("salt", c.c_char_p), ("extra", c.c_char_p),
                ("n_extra", c.c_uint32), ("window", c.c_uint32), ("sinks", c.c_uint32), ("hint", c.c_uint32),
                ("summaries", PTR), ("kernels", PTR), ("resident_blocks", c.c_uint64)]


class SeqStats(c.Structure):
    _fields_ = [("size", c.c_uint32), ("lost", c.c_uint32)] + [(name, c.c_uint64) for name in (
        "tokens", "reused_ram", "reused_spill", "published", "private_blocks", "copied_bytes", "restored")]


class Geom(c.Structure):
    _fields_ = [(name, c.c_uint32) for name in (
        "size", "layout", "type_k", "type_v", "n_kv_heads", "dim_k", "dim_v", "block_tokens")] + [
        (name, c.c_uint64) for name in (
            "k_off", "v_off", "k_token_stride", "k_head_stride", "v_token_stride", "v_head_stride")]


_POOL: Dict[str, Tuple[Any, Any]] = {
    "kvp_desc_init": (None, [c.POINTER(Desc)] + [c.c_uint32] * 6),
    "kvp_desc_check": (c.c_int, [c.POINTER(Desc), c.POINTER(c.c_char_p), c.POINTER(c.c_uint64)]),
    "kvp_desc_differs": (c.c_char_p, [c.POINTER(Desc), c.POINTER(Desc)]),
    "kvp_open": (c.c_int, [c.POINTER(OpenOpts), c.POINTER(PTR)]),
    "kvp_close": (None, [PTR]),
    "kvp_state": (c.c_int, [PTR, c.POINTER(c.c_uint64)]),
    "kvp_error": (c.c_char_p, [PTR]),
    "kvp_differs": (c.c_char_p, [PTR]),
    "kvp_ping": (c.c_int, [PTR, c.c_uint64]),
    "kvp_deadline_ms": (c.c_uint64, [c.c_uint32]),
    "kvp_counts": (c.c_int, [PTR, c.POINTER(Counts)]),
    "kvp_ns_open": (c.c_int, [PTR, c.POINTER(NsOpts), c.POINTER(PTR)]),
    "kvp_ns_close": (None, [PTR]),
    "kvp_ns_info": (c.c_int, [PTR, c.POINTER(NsInfo)]),
    "kvp_geom": (c.c_int, [PTR, c.c_uint32, c.c_int] + [c.POINTER(c.c_uint64)] * 3 + [c.POINTER(c.c_uint32)]),
    "kvp_attn_geom": (c.c_int, [PTR, c.c_uint32, c.POINTER(Geom)]),
    "kvp_hash_chain": (c.c_int64, [PTR, c.POINTER(Key), PTR, c.c_uint64, c.c_char_p, c.c_uint32, c.POINTER(Key)]),
    "kvp_hash_block": (c.c_int, [PTR, c.POINTER(Key), PTR, c.c_uint32, c.c_char_p, c.c_uint32, c.POINTER(Key)]),
    "kvp_hash_bytes": (c.c_int, [PTR, c.c_char_p, c.c_uint32, c.POINTER(Key)]),
    "kvp_match": (c.c_int64, [c.POINTER(MatchPart), c.c_uint32, c.c_uint32, c.c_uint32, c.POINTER(c.c_uint8)]),
    "kvp_acquire": (c.c_int64, [PTR, c.POINTER(Key), c.c_uint32, c.c_uint32, c.c_uint64, c.POINTER(View)]),
    "kvp_prefetch": (c.c_int64, [PTR, c.POINTER(Key), c.c_uint32]),
    "kvp_request": (c.c_int, [PTR, c.POINTER(Key), c.c_uint32, c.c_uint32]),
    "kvp_release": (c.c_int, [c.POINTER(View), c.c_uint32]),
    "kvp_lost": (c.c_int, [c.POINTER(View), c.c_uint32]),
    "kvp_view_node": (c.c_int, [c.POINTER(View)]),
    "kvp_view_wait_layer": (c.c_int, [c.POINTER(View), c.c_uint32, c.c_uint64]),
    "kvp_reserve": (c.c_int64, [PTR, c.c_uint32, c.c_uint32, c.c_uint64, c.POINTER(BlockRef)]),
    "kvp_publish": (c.c_int64, [PTR, c.POINTER(PublishItem), c.c_uint32, c.POINTER(c.c_uint8)]),
    "kvp_abandon": (None, [c.POINTER(BlockRef), c.c_uint32]),
    "kvp_delete": (c.c_int64, [PTR, c.POINTER(Key), c.c_uint32, c.c_uint64]),
    "kvp_clear": (c.c_int64, [PTR, c.c_uint64]),
    "kvp_touch": (c.c_int64, [PTR, c.POINTER(Key), c.c_uint32]),
    "kvp_stats": (c.c_int, [PTR, c.POINTER(StatsOf), c.c_uint64]),
    "kvp_events": (c.c_int64, [PTR, c.POINTER(c.c_uint64), c.POINTER(Event), c.c_uint32, c.c_uint64]),
    "kvp_seq_open": (c.c_int, [PTR, c.POINTER(SeqOpts), c.POINTER(PTR)]),
    "kvp_seq_match": (c.c_int64, [PTR, PTR, c.c_uint64, c.c_uint64]),
    "kvp_seq_append": (c.c_int64, [PTR, PTR, c.c_uint64]),
    "kvp_seq_length": (c.c_uint64, [PTR]),
    "kvp_seq_block": (PTR, [PTR, c.c_uint64, c.POINTER(c.c_uint32)]),
    "kvp_seq_table": (c.c_int, [PTR, c.POINTER(Table)]),
    "kvp_seq_commit": (c.c_int64, [PTR, c.c_uint64]),
    "kvp_seq_truncate": (c.c_int, [PTR, c.c_uint64]),
    "kvp_seq_stats": (c.c_int, [PTR, c.POINTER(SeqStats)]),
    "kvp_seq_close": (c.c_int, [PTR]),
    "kvp_queue_open": (c.c_int, [PTR, c.POINTER(QueueOpts), c.POINTER(PTR)]),
    "kvp_queue_close": (None, [PTR]),
    "kvp_queue_fd": (c.c_int, [PTR]),
    "kvp_submit": (c.c_int, [PTR, PTR, c.c_uint32, c.POINTER(Io), c.c_uint32, c.c_uint64, c.c_uint64]),
    "kvp_queue_poll": (c.c_int64, [PTR, c.POINTER(Completion), c.c_uint32, c.c_uint64]),
}


def _find(stem: str) -> str:
    """KVPOOL_LIBRARY_PATH (a folder), then the package's own lib/, then the system's."""
    folders = [os.environ.get("KVPOOL_LIBRARY_PATH"), str(Path(__file__).parent / "lib")]
    for folder in filter(None, folders):
        path = Path(folder) / f"lib{stem}.so.0"
        if path.exists():
            return str(path)
    return f"lib{stem}.so.0"


def _load(stem: str, prototypes: Dict[str, Tuple[Any, Any]]) -> c.CDLL:
    path = _find(stem)
    try:
        library = c.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"lib{stem}: {error}; install libkvpool on this host, or set KVPOOL_LIBRARY_PATH to its folder") from None
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


pool = _load("kvpool", _POOL)

# a header that moved on shows here: the library refuses a descriptor of another size, and fills in its own
_desc = Desc()
pool.kvp_desc_init(_desc, 1, 16, 1, 1, 64, 1)
if _desc.size != c.sizeof(Desc):
    raise ImportError(f"libkvpool has descriptors of {_desc.size} bytes, this package of {c.sizeof(Desc)}: "
                      "install the package of the library's version")
del _desc
