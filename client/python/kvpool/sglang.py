"""SGLang's HiCache on the pool of this host: a storage backend for its "dynamic" loader.

    python -m sglang.launch_server ... --enable-hierarchical-cache --hicache-storage-backend dynamic \\
        --hicache-storage-backend-extra-config '{"backend_name": "kvpool", "module_path": "kvpool.sglang",
            "class_name": "KvpoolHiCache", "interface_v1": 1, "model_id": "a hash of the weights"}'

Pages go straight between SGLang's host memory and the pool, each as one block.  Shared is between SGLang processes of the same
version, model, layout of host memory, page size, and place among the ranks.  Whatever happens is an answer (a page is not there,
was not stored), never an exception: one would end SGLang's prefetch or backup thread for good.

``extra_config``: ``model_id`` (else the model's name, and the sizes of its files where it is a folder), ``socket``, ``namespace``,
``timeout`` (seconds a batch may wait for the disk or for room), ``threads``.
"""
from __future__ import annotations

import ctypes as c
import functools
import hashlib
import logging
import os
import threading
from typing import Any, Callable, Dict, List, Optional

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

from ._api import Client, Descriptor, Namespace, Queue, Status

logger = logging.getLogger(__name__)
_BATCH = 512


def _never(failure: Callable[..., Any]) -> Callable:
    """Every error is ``failure(self, ...)``, logged once for each method."""

    def decorate(method: Callable) -> Callable:
        @functools.wraps(method)
        def guarded(self: "KvpoolHiCache", *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001: that is what this is for
                if method.__name__ not in self._said:
                    self._said.add(method.__name__)
                    logger.warning("kvpool: %s: %s: %s; taken as a miss, not said again", method.__name__,
                                   type(error).__name__, error)
                return failure(*args, **kwargs)

        return guarded

    return decorate


def _version() -> str:
    try:
        from importlib.metadata import version
        return version("sglang")
    except Exception:  # noqa: BLE001
        return "unknown"


def model_identity(name: Optional[str], given: Optional[str] = None) -> bytes:
    """32 bytes; a folder's files are told apart by name and size."""
    parts = [given or name or ""]
    if not given and name and os.path.isdir(name):
        parts += [f"{entry.name} {entry.stat().st_size}" for entry in sorted(os.scandir(name), key=lambda e: e.name)
                  if entry.is_file()]
    return hashlib.sha256("\0".join(parts).encode()).digest()


class KvpoolHiCache(HiCacheStorage):
    def __init__(self, storage_config: Any, kwargs: Optional[dict] = None):
        extra = dict(storage_config.extra_config or {}, **(kwargs or {}))
        self._config, self._said, self._spaces = storage_config, set(), {}
        self._interface = "v1" if extra.get("interface_v1") else "flat"
        self._name = extra.get("namespace", "sglang")
        self._timeout = float(extra.get("timeout", 2.0))
        self._model = model_identity(storage_config.model_name, extra.get("model_id"))
        self._client = Client(extra.get("socket"), name="sglang")
        self._threads, self._queues = int(extra.get("threads", 2)), threading.local()
        self.hits = self.misses = self.stored = self.rejected = 0  # pages
        self.mem_pool_host: Any = None
        self.registered_pools: Dict[Any, Any] = {}

    # ---- namespaces: one for each pool of host memory ----

    def _descriptor(self, pool: Any, label: str, page_bytes: int) -> Descriptor:
        config = self._config
        engine = f"sglang/{_version()}/{label}/{self._interface}/{getattr(pool, 'layout', '')}/{getattr(pool, 'dtype', '')}"
        descriptor = Descriptor.opaque(engine[:127], page_bytes, max(1, int(pool.page_size)), self._model)
        raw = descriptor.raw
        if not config.is_mla_model:  # MLA: the same on all tensor-parallel ranks
            raw.tp_size, raw.tp_rank = config.tp_size, config.tp_rank
        raw.pp_size, raw.pp_rank = config.pp_size, config.pp_rank
        if config.attn_cp_size > 1 or config.dcp_size > 1:
            raw.cp_size = config.attn_cp_size * config.dcp_size
            raw.cp_rank = config.attn_cp_rank * config.dcp_size + config.dcp_rank
        return descriptor

    def _space(self, pool: Any, label: str) -> Namespace:
        if label not in self._spaces:
            if self._interface == "v1":
                import torch
                page_bytes = sum(pool.get_page_buffer_meta(torch.arange(pool.page_size))[1])
            else:
                page = pool.get_dummy_flat_data_page()
                page_bytes = page.numel() * page.element_size()
            self._spaces[label] = self._client.namespace(self._name, self._descriptor(pool, label, page_bytes))
        return self._spaces[label]

    # ---- batches ----

    def _queue(self) -> Queue:
        """One for each of SGLang's threads: each waits for its own batch."""
        if not hasattr(self._queues, "queue"):
            self._queues.queue = self._client.queue(self._threads)
        return self._queues.queue

    def _run(self, op: str, space: Namespace, keys: List[str], buffers: List[Any]) -> List[bool]:
        names = [space.key(key) for key in keys]
        results: List[bool] = []
        queue = self._queue()
        for at in range(0, len(names), _BATCH):
            submit = queue.get if op == "get" else queue.put
            submit(space, names[at:at + _BATCH], buffers[at:at + _BATCH], timeout=self._timeout)
            done: List[Any] = []
            while not done:
                done = queue.poll(timeout=60)
            lengths = [sum(memoryview(part).nbytes for part in parts) for parts in buffers[at:at + _BATCH]]
            results += [status == Status.DONE and (op == "put" or used == length) for status, used, length in
                        zip(done[0].statuses, done[0].used_bytes, lengths)]
        good = sum(results)
        if op == "get":
            self.hits, self.misses = self.hits + good, self.misses + len(results) - good
        else:
            self.stored, self.rejected = self.stored + good, self.rejected + len(results) - good
        return results

    @staticmethod
    def _pages(pool: Any, keys: List[str], host_indices: Any) -> List[List[Any]]:
        """The parts of each page in host memory."""
        pointers, sizes = pool.get_page_buffer_meta(host_indices)
        if not keys or len(pointers) % len(keys):
            raise ValueError(f"{len(keys)} pages of {len(pointers)} parts")
        n = len(pointers) // len(keys)
        return [[(c.c_ubyte * sizes[i]).from_address(pointers[i]) for i in range(at, at + n)]
                for at in range(0, len(pointers), n)]

    @staticmethod
    def _bytes_of(tensor: Any) -> Any:
        """A tensor's memory as a buffer, whatever its type."""
        flat = tensor.contiguous()
        memory = (c.c_ubyte * (flat.numel() * flat.element_size())).from_address(flat.data_ptr())
        memory._tensor = flat
        return memory

    # ---- interface v1: pointers into host memory ----

    @_never(lambda keys, *_a, **_k: [False] * len(keys))
    def batch_get_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        pool = self.mem_pool_host
        return self._run("get", self._space(pool, "kv"), keys, self._pages(pool, keys, host_indices))

    @_never(lambda keys, *_a, **_k: [False] * len(keys))
    def batch_set_v1(self, keys: List[str], host_indices: Any, extra_info: Any = None) -> List[bool]:
        pool = self.mem_pool_host
        return self._run("put", self._space(pool, "kv"), keys, self._pages(pool, keys, host_indices))

    # ---- interface v2: several pools; a pool of which only the trailing pages, or groups, count is taken as not there ----

    @_never(lambda *_a, **_k: PoolTransferResult.empty())
    def batch_exists_v2(self, keys: List[str], pool_transfers: Any = None, extra_info: Any = None) -> Any:
        pages, extra = self.batch_exists(keys), {}
        for transfer in pool_transfers or []:
            pool = self.registered_pools.get(transfer.name)
            hits = 0
            if pool is not None and transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
                space = self._space(pool, str(transfer.name))
                hits = space.match([space.key(key) for key in keys[:pages]])
            extra[transfer.name] = hits
            if transfer.hit_policy != PoolHitPolicy.BLOCK_GROUPS:
                pages = min(pages, hits)
        return PoolTransferResult(pages, extra)

    def _transfer(self, op: str, transfers: Any) -> Dict[Any, List[bool]]:
        results = {}
        for transfer in transfers:
            keys = list(transfer.keys or [])
            pool = self.registered_pools.get(transfer.name)
            if pool is None or transfer.host_indices is None or not keys:
                results[transfer.name] = [False] * len(keys)
                continue
            results[transfer.name] = self._run(op, self._space(pool, str(transfer.name)), keys,
                                               self._pages(pool, keys, transfer.host_indices))
        return results

    @_never(lambda transfers, *_a, **_k: {t.name: [False] * len(t.keys or []) for t in transfers})
    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        return self._transfer("get", transfers)

    @_never(lambda transfers, *_a, **_k: {t.name: [False] * len(t.keys or []) for t in transfers})
    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> Dict[Any, List[bool]]:
        return self._transfer("put", transfers)

    # ---- the older interface: a page as a flat tensor ----

    @_never(lambda keys, *_a, **_k: [None] * len(keys))
    def batch_get(self, keys: List[str], target_locations: Any = None, target_sizes: Any = None) -> List[Any]:
        targets = list(target_locations)
        there = self._run("get", self._space(self.mem_pool_host, "kv"), keys, [[self._bytes_of(t)] for t in targets])
        return [target if good else None for target, good in zip(targets, there)]

    @_never(lambda *_a, **_k: False)
    def batch_set(self, keys: List[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        return all(self._run("put", self._space(self.mem_pool_host, "kv"), keys, [[self._bytes_of(v)] for v in values]))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    # ---- what is there ----

    @_never(lambda *_a, **_k: 0)
    def batch_exists(self, keys: List[str], extra_info: Any = None) -> int:
        space = self._space(self.mem_pool_host, "kv")
        return space.match([space.key(key) for key in keys])

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    @_never(lambda *_a, **_k: None)
    def clear(self) -> None:
        for space in self._spaces.values():
            space.clear()

    def get_stats(self) -> None:
        return None

    @_never(lambda *_a, **_k: None)
    def close(self) -> None:
        self._queues = threading.local()  # each closes with its last reference
        for space in self._spaces.values():
            space.close()
        self._client.close()
