"""LMCache's L2 storage in the pool of this host: a client for its ``native_plugin`` adapter.

In LMCache's configuration, as one of its L2 adapters:

    {"type": "native_plugin", "module_path": "kvpool.lmcache", "class_name": "NativeClient",
     "adapter_params": {"chunk_bytes": 33554432}}

``chunk_bytes`` is the size of one stored object (of a chunk of tokens, all layers): the room each block takes.  LMCache's keys
name model, rank, group and chunk; the bytes are LMCache's own, so only LMCache processes of the same version share them.
"""
from __future__ import annotations

import hashlib
import threading
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Dict, List, Optional, Tuple

from ._api import Client, Descriptor, Status

Answer = Tuple[int, bool, str, Optional[List[bool]]]


def _version() -> str:
    try:
        return version("lmcache")
    except PackageNotFoundError:
        return "unknown"


class NativeClient:
    """What LMCache asks of a native connector.  Keys are strings, buffers memoryviews; nothing of it waits or raises for a miss."""

    def __init__(self, chunk_bytes: int, namespace: str = "lmcache", socket: Optional[str] = None, threads: int = 2,
                 timeout: float = 10.0, format: Optional[str] = None, model: str = ""):
        """``timeout``: seconds a batch may wait for the disk or for room.  ``format``: what the bytes of a chunk depend on, LMCache's
        version if it is not given; ``model``: what its name in LMCache's keys does not tell (weights, types).  Only clients that
        say the same of both share."""
        if chunk_bytes <= 0:
            raise ValueError("chunk_bytes: the size of one object of LMCache in bytes; see its log, or chunk tokens x bytes a token")
        descriptor = Descriptor.opaque(f"lmcache/{_version() if format is None else format}", chunk_bytes, 1,
                                       hashlib.sha256(model.encode()).digest() if model else b"")
        self._client = Client(socket, name="lmcache")
        self._ns = self._client.namespace(namespace, descriptor)
        self._queue = self._client.queue(max(1, threads))
        self._timeout = timeout
        self._lengths: Dict[int, List[int]] = {}  # batch of gets: the length each buffer has
        self._submitting = threading.Lock()  # LMCache takes answers in a thread of its own: not before their lengths are there

    def event_fd(self) -> int:
        return self._queue.fileno()

    def submit_batch_get(self, keys: List[str], buffers: List[Any]) -> int:
        lengths = [memoryview(buffer).nbytes for buffer in buffers]
        with self._submitting:
            tag = self._queue.get(self._ns, [self._ns.key(key) for key in keys], buffers, timeout=self._timeout)
            self._lengths[tag] = lengths
        return tag

    def submit_batch_set(self, keys: List[str], buffers: List[Any]) -> int:
        return self._queue.put(self._ns, [self._ns.key(key) for key in keys], buffers, timeout=self._timeout)

    def submit_batch_exists(self, keys: List[str]) -> int:
        return self._queue.exists(self._ns, [self._ns.key(key) for key in keys])

    def submit_batch_delete(self, keys: List[str]) -> int:
        """Objects in use stay: LMCache frees by age, and asks again."""
        return self._queue.delete(self._ns, [self._ns.key(key) for key in keys], timeout=min(self._timeout, 1.0))

    def drain_completions(self) -> List[Answer]:
        """(batch, could it be done, why not, what is there of it) for each batch that has ended."""
        answers: List[Answer] = []
        for done in self._queue.poll():
            there = [status == Status.DONE for status in done.statuses]
            with self._submitting:
                lengths = self._lengths.pop(done.tag, None)
            if lengths is not None:  # an object of another length is not the one that was asked for
                there = [ok and used == length for ok, used, length in zip(there, done.used_bytes, lengths)]
            if done.op == "put":
                missing = there.count(False)
                answers.append((done.tag, not missing, self._why(done.statuses, missing), None))
            elif done.op == "delete":
                answers.append((done.tag, all(there), "" if all(there) else "some are in use, or no daemon runs", None))
            else:
                answers.append((done.tag, True, "", there))
        return answers

    def _why(self, statuses: List[Status], missing: int) -> str:
        if not missing:
            return ""
        if Status.SHORT in statuses:
            return f"an object is longer than chunk_bytes ({self._ns.block_bytes})"
        return f"{missing} of {len(statuses)} objects were not stored: the pool had no room in time, or no daemon runs"

    def close(self) -> None:
        self._queue.close()
        self._ns.close()
        self._client.close()
