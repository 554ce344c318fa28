"""llama-cpp-python with the pool of this host: prompts that another process has computed are loaded, not computed again.

    import kvpool, llama_cpp
    from kvpool.llamacpp import PromptCache
    llm = llama_cpp.Llama("model.gguf", n_ctx=8192)
    cache = PromptCache(llm, kvpool.Client())   # from here on llm itself is used as ever

Chunks of 64 tokens are stored as llama.cpp writes the state of a sequence; each is loaded by one copy out of the pool.
Shared is between processes of the same libllama, model, cache types and RoPE settings, whatever their context size.  With no
daemon llm computes as if none of this were there.
"""
from __future__ import annotations

import ctypes as c
import hashlib
import os
from pathlib import Path
from typing import Any, Iterator, List, Optional, Union

import llama_cpp

from ._api import Client, Descriptor, Error, Namespace, PublishResult

CHUNK_TOKENS = 64  # a smaller one leaves less of a prompt to compute, and costs as often a look at all cells of the context
_TMP = 1  # the sequence through which chunks come and go; llama-cpp-python's own is 0
_ROOM = 0.2  # seconds to wait for room for a chunk
_AT_ONCE = 2048  # tokens of which the chunks are held at a time
_SAMPLES, _SAMPLE_BYTES = 256, 1 << 16


def fingerprint(path: Union[str, Path]) -> bytes:
    """32 bytes of a GGUF file: all of one below 64 MiB, else its size, its first 4 MiB, and 256 pieces spread over the rest."""
    size = os.path.getsize(path)
    digest = hashlib.blake2b(str(size).encode(), digest_size=32)
    with open(path, "rb") as file:
        if size < 64 << 20:
            while data := file.read(1 << 20):
                digest.update(data)
            return digest.digest()
        digest.update(file.read(4 << 20))
        for i in range(1, _SAMPLES + 1):
            file.seek((size - _SAMPLE_BYTES) * i // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def _version() -> str:
    """Of libllama, and of the package it came with: what a chunk's bytes mean may change with either."""
    return f"{llama_cpp.llama_version().decode()}-{llama_cpp.__version__}"


class ChunkCache:
    """The chunks of one llama_context, for those who drive libllama themselves; ``PromptCache`` is made of it.

    The context has ``n_seq_max`` >= 2, ``kv_unified``, and for a model with sliding windows ``swa_full``.  It must be empty
    now: the size of a chunk is measured in it.  Tokens are those of sequence 0, at positions from 0 on.
    """

    def __init__(self, client: Client, ctx: Any, model: Any, params: Any, model_id: bytes, *, namespace: str = "llama.cpp",
                 salt: bytes = b"", chunk_tokens: int = CHUNK_TOKENS):
        if params.n_seq_max < 2 or not params.kv_unified:
            raise ValueError("the context needs n_seq_max >= 2 and kv_unified: chunks go through a second sequence")
        if llama_cpp.llama_model_n_swa(model) > 0 and not params.swa_full:
            raise ValueError("a model with sliding windows needs swa_full: without it what left the window cannot be stored")
        if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
            raise ValueError("a recurrent model: its state is not made of tokens' K and V")
        self._ctx, self._memory = ctx, llama_cpp.llama_get_memory(ctx)
        self._salt, self.chunk_tokens = salt, chunk_tokens
        rope = [params.rope_scaling_type, params.rope_freq_base, params.rope_freq_scale, params.yarn_ext_factor,
                params.yarn_attn_factor, params.yarn_beta_fast, params.yarn_beta_slow, params.yarn_orig_ctx]
        identity = hashlib.blake2b(repr((model_id, rope, params.attention_type)).encode(), digest_size=32).digest()
        engine = f"llama.cpp-state/{_version()}/k{params.type_k}-v{params.type_v}/fa{params.flash_attn_type}"
        descriptor = Descriptor.opaque(engine, self._measure(model), chunk_tokens, identity)
        self.ns: Namespace = client.namespace(namespace, descriptor)
        self.restored = self.published = self.failed = 0  # chunks; failed: the engine refused what was stored

    def _measure(self, model: Any) -> int:
        """Bytes of a chunk: they grow evenly with its tokens, so two of them tell."""
        token = max(0, llama_cpp.llama_vocab_bos(llama_cpp.llama_model_get_vocab(model)))
        sizes = []
        for position in range(2):
            batch = llama_cpp.llama_batch_get_one((llama_cpp.llama_token * 1)(token), 1)
            if llama_cpp.llama_decode(self._ctx, batch) != 0:
                raise ValueError("the context does not decode a token")
            sizes.append(llama_cpp.llama_state_seq_get_size(self._ctx, 0))
        llama_cpp.llama_memory_clear(self._memory, False)
        return sizes[0] + (sizes[1] - sizes[0]) * (self.chunk_tokens - 1)

    def _keys(self, tokens: Any) -> List[bytes]:
        return self.ns.hash_chain(tokens, extra=self._salt)

    def restore(self, tokens: Any, have: int = 0, timeout: float = 1.0) -> int:
        """Load what is there of ``tokens`` behind the first ``have``, which the context holds.

        At least one token is left to compute.  Return: tokens the context holds now; what it held beyond is gone then.
        """
        keys = self._keys(tokens[:len(tokens) - 1])
        at = have // self.chunk_tokens
        if at >= len(keys) or not self.ns.match(keys[at:at + 1]):
            return have
        while at < len(keys):
            views = self.ns.acquire(keys[at:at + max(1, _AT_ONCE // self.chunk_tokens)], timeout)
            for view in views:
                if not self._load(view, at * self.chunk_tokens):
                    self.failed += 1
                    return max(have, at * self.chunk_tokens)
                self.restored += 1
                at += 1
            if not views:
                break
        return max(have, at * self.chunk_tokens)

    def _load(self, view: Any, start: int) -> bool:
        """A chunk at position ``start``. What was in that place is replaced only by a whole chunk."""
        end = start + self.chunk_tokens
        lib, memory = llama_cpp, self._memory
        source = c.cast(view.address, c.POINTER(c.c_uint8))
        good = (lib.llama_state_seq_set_data(self._ctx, source, view.used_bytes, _TMP) == view.used_bytes
                and lib.llama_memory_seq_pos_min(memory, _TMP) == start
                and lib.llama_memory_seq_pos_max(memory, _TMP) == end - 1 and not view.lost)
        if good:
            lib.llama_memory_seq_rm(memory, 0, start, -1)
            lib.llama_memory_seq_cp(memory, _TMP, 0, start, end)
        lib.llama_memory_seq_rm(memory, _TMP, -1, -1)
        return good

    def publish(self, tokens: Any) -> int:
        """Store the full chunks of ``tokens``, which the context holds. Return: chunks stored by this call."""
        keys = self._keys(tokens)
        there = self.ns.match(keys)
        new = 0
        for i in range(there, len(keys)):
            if not self._store(keys[i], keys[i - 1] if i else None, i * self.chunk_tokens):
                break
            new += 1
        self.published += new
        return new

    def _store(self, key: bytes, parent: Optional[bytes], start: int) -> bool:
        blocks = self.ns.reserve(1, timeout=_ROOM)
        if not blocks:
            return False
        lib, block = llama_cpp, blocks[0]
        lib.llama_memory_seq_cp(self._memory, 0, _TMP, start, start + self.chunk_tokens)
        size = lib.llama_state_seq_get_size(self._ctx, _TMP)
        written = 0
        if size <= self.ns.block_bytes:
            target = (c.c_uint8 * self.ns.block_bytes).from_buffer(block.data)
            written = lib.llama_state_seq_get_data(self._ctx, target, size, _TMP)
            del target
        lib.llama_memory_seq_rm(self._memory, _TMP, -1, -1)
        if not written or written != size:
            self.failed += 1
            return False
        return self.ns.publish([(key, block, written, parent)])[0] in (PublishResult.STORED, PublishResult.EXISTS)

    def close(self) -> None:
        self.ns.close()


class PromptCache:
    """Makes ``llm`` (a fresh ``llama_cpp.Llama``) use the pool in every call.

    Its context is made anew with a second sequence, all else as ``llm`` was given it.  ``salt``: prompts are shared only among
    those of the same salt (a tenant, from your own authentication).  ``model_id``: instead of ``fingerprint()`` of the file.
    ``reused`` and ``computed``: tokens of the last prompt.
    """

    def __init__(self, llm: Any, client: Optional[Client] = None, *, namespace: str = "llama.cpp", salt: bytes = b"",
                 model_id: Optional[bytes] = None, chunk_tokens: int = CHUNK_TOKENS, timeout: float = 1.0):
        if llm.n_tokens:
            raise ValueError("this Llama has been used: attach the cache when it is made")
        self.llm, self._timeout = llm, timeout
        self._own_client = Client(name="llama.cpp") if client is None else None
        identity = model_id or fingerprint(llm.model_path)
        if llm.lora_path:
            identity += fingerprint(llm.lora_path) + repr(llm.lora_scale).encode()
        self._renew_context()
        self.chunks = ChunkCache(client or self._own_client, llm._ctx.ctx, llm._model.model, llm.context_params, identity,
                                 namespace=namespace, salt=salt, chunk_tokens=chunk_tokens)
        self.reused = self.computed = 0
        self._generate = llm.generate
        llm.generate = self._generate_shared

    def _renew_context(self) -> None:
        llm, params = self.llm, self.llm.context_params
        if params.n_seq_max >= 2 and params.kv_unified and params.swa_full:
            return
        params.n_seq_max, params.kv_unified, params.swa_full = max(2, params.n_seq_max), True, True
        llm._ctx.close()
        llm._ctx = type(llm._ctx)(model=llm._model, params=params, verbose=llm.verbose)
        if llm._lora_adapter is not None:
            adapters = (llama_cpp.llama_adapter_lora_p_ctypes * 1)(llm._lora_adapter)
            scales = (c.c_float * 1)(llm.lora_scale)
            if llama_cpp.llama_set_adapters_lora(llm._ctx.ctx, adapters, 1, scales):
                raise ValueError("the LoRA adapter cannot be set in the new context")

    def _restore(self, tokens: List[int]) -> None:
        llm, have = self.llm, 0
        for known, wanted in zip(llm._input_ids.tolist(), tokens):
            if known != wanted:
                break
            have += 1
        now = self.chunks.restore(tokens, have, self._timeout)
        if now > have:
            llm.input_ids[have:now] = tokens[have:now]
            llm.n_tokens = now
            llm._requires_eval = True
        self.reused = min(now, len(tokens) - 1)
        self.computed = len(tokens) - self.reused

    def _generate_shared(self, tokens: Any, *args: Any, **kwargs: Any) -> Iterator[int]:
        tokens = list(tokens)
        reset = kwargs.get("reset", args[6] if len(args) > 6 else True)
        if reset and len(tokens) > 1:
            try:
                self._restore(tokens)
            except Error:  # the pool has nothing for us: it is computed
                pass
        inner, sent, first = self._generate(tokens, *args, **kwargs), None, True
        try:
            while True:
                try:
                    token = inner.send(sent)
                except StopIteration:
                    return
                sent = yield token
                if first:  # the caller has its first token: now the others may have the prompt
                    first = False
                    self.publish()
        finally:
            inner.close()
            self.publish()

    def publish(self) -> int:
        """Store the full chunks of what llm holds; done by itself after a prompt and at the end of an answer."""
        try:
            return self.chunks.publish(self.llm._input_ids.tolist())
        except Error:
            return 0

    def close(self) -> None:
        """llm computes for itself again."""
        self.llm.generate = self._generate
        self.chunks.close()
        if self._own_client is not None:
            self._own_client.close()
