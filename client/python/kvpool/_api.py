"""Clients, namespaces, views, blocks and queues over the C library.

Lifetime.  Each C handle is closed by the last Python object that needs it: a view keeps its pin, its namespace and its
client open, and the buffers taken from it keep the view's pin.  So ``close()`` and ``release()`` only let go; nothing is
ever unmapped under an array that is still in use.

Threads.  A client and its namespaces may be used from any thread; waits let other Python threads run.  After a fork
(multiprocessing) the child's objects are dead: calls raise ``Error`` with ``errno.ENOTCONN``, and its exit lets go of nothing that is
the parent's.  The pool's memory is not mapped in the child: an array or a memoryview that was taken before the fork must not be
touched there (it ends the process), as little as any pointer.
"""
from __future__ import annotations

import ctypes as c
import enum
import errno
import math
import operator
import os
import sys
import threading
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Tuple, TypeVar, Union
from typing import Sequence as SequenceOf

from . import _lib
from ._buffer import Memory, token_memory

_pool = _lib.pool
Key = bytes  # 16 bytes; Namespace.key() and Namespace.hash_chain() make them
_KEY_BYTES = 16
_YEARS = 1e9  # seconds: 31 years stand for ever, as the longest deadline C is given
_CONNECT_MOST = 4e6  # seconds: kvp_open() takes milliseconds in 32 bits


class Error(OSError):
    """A call was refused; ``errno`` says how, the text names object, cause and way out.  A miss is never an error."""


class State(enum.IntEnum):
    """Of a client.  INCOMPATIBLE: the daemon is of another major version; REFUSED: it, or its socket, keeps this user out."""

    ATTACHED = 1
    DETACHED = 2
    INCOMPATIBLE = 3
    REFUSED = 4


class Layout(enum.IntEnum):
    """How K and V of a layer lie in a block; OPAQUE: as the engine likes."""

    HND = 1
    NHD = 2
    OPAQUE = 4
    TILED = 6


class Type(enum.IntEnum):
    """Of the numbers of K and V."""

    F32 = 1
    F16 = 2
    BF16 = 3
    I8 = 4
    I4 = 5
    FP8 = 6


class Hit(enum.IntEnum):
    """Where a block is.  SPILL: in the store on disk; PENDING: it is being read back."""

    MISS = 0
    RAM = 1
    SPILL = 2
    PENDING = 3


class MissReason(enum.IntEnum):
    """Why a block was not found; see enum kvp_miss_reason in kvpool.h."""

    NOT_TOLD = 0
    NEVER = 1
    EVICTED = 2
    SIBLING = 3
    DAMAGED = 4
    TIER = 5
    COST = 6
    DETACHED = 7
    PINS = 8
    UNASKED = 9


class PublishResult(enum.IntEnum):
    """Of one block.  EXISTS: another was first; REJECTED: not taken, it stays the caller's; GONE: its memory is no longer the pool's."""

    STORED = 1
    EXISTS = 2
    REJECTED = 3
    GONE = 4


class Status(enum.IntEnum):
    """Of one block in a batch.  SHORT: the buffers are shorter than the stored block, or longer than a block can be."""

    WAITING = 0
    DONE = 1
    MISS = 2
    REJECTED = 3
    SHORT = 4


class Hint(enum.IntEnum):
    """What comes after a request; advice."""

    NONE = 0
    ENDS = 1
    CONTINUES = 2
    SOON = 3


class EventKind(enum.IntEnum):
    """What happened to a block; GAP: events were lost, what is known from before may be wrong."""

    STORED = 1
    REMOVED = 2
    CLEARED = 3
    GAP = 4


class Event(NamedTuple):
    """``kind``: what happened to block ``key`` in ``tier`` (Hit.RAM or Hit.SPILL); see enum kvp_event_kind in kvpool.h."""

    seq: int
    kind: EventKind
    key: Key
    parent: Optional[Key]
    tier: int
    used_tokens: int


class Stats(NamedTuple):
    """Of a namespace: what it has now, and what all its clients did since it was made."""

    capacity_bytes: int
    ram_blocks: int
    ram_bytes: int
    spill_blocks: int
    spill_bytes: int
    lookups: int
    hits_ram: int
    hits_spill: int
    misses: int
    tokens_ram: int
    tokens_spill: int
    stored: int
    evicted: int
    dropped: int
    restored: int


class Counts(NamedTuple):
    """What this client did since it was opened; see struct kvp_counts in kvpool.h."""

    lookups: int
    hits_ram: int
    hits_spill: int
    misses: int
    tokens_ram: int
    tokens_spill: int
    copied_bytes: int
    private_blocks: int
    lost_holds: int
    round_trips: int


class Completion(NamedTuple):
    """Of one batch. ``op``: "get", "put", "exists" or "delete"; ``statuses``: a Status for each block; ``used_bytes``: their stored lengths."""

    tag: int
    op: str
    statuses: List[Status]
    used_bytes: List[int]

    @property
    def ok(self) -> bool:
        """All of it done?"""
        return all(status == Status.DONE for status in self.statuses)


_forks = 0  # how often this process was made by a fork, as far as it can be told


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


def _check(result: int, client: Any = None) -> int:
    if result < 0:
        text = _pool.kvp_error(client).decode(errors="replace")
        raise Error(-result, text or os.strerror(-result))
    return result


def _seconds(timeout: float, most: float) -> float:
    if math.isnan(timeout):
        raise ValueError("timeout: not a number; give seconds, 0 (do not wait) or math.inf (no limit)")
    return min(timeout, most)


def _made(handle: Any, what: str, how: str) -> "_Handle":
    if not isinstance(handle, _Handle):
        raise TypeError(f"a {what} is made by {how}")
    return handle


def _deadline(timeout: float) -> int:
    """Seconds from now as the library's deadline; 0: do not wait; math.inf: as long as it takes."""
    return time.monotonic_ns() + int(_seconds(timeout, _YEARS) * 1e9) if not timeout <= 0 else 0


def _fits(what: str, value: int, bits: int = 32, least: int = 0) -> int:
    """As C takes it: ctypes would cut what is too long, and take -1 for the most there is."""
    if not least <= operator.index(value) < 1 << bits:
        raise ValueError(f"{what}: {value}, it must be {least} to {(1 << bits) - 1}")
    return value


def _text(what: str, value: Union[str, bytes]) -> bytes:
    """As C reads it: to the first zero byte, so there must be none."""
    text = value.encode() if isinstance(value, str) else value
    if b"\0" in text:
        raise ValueError(f"{what}: {value!r} holds a zero byte")
    return text


def _keys(keys: SequenceOf[Key]) -> Any:
    joined = b"".join(keys)
    if not set(map(len, keys)) <= {_KEY_BYTES}:
        raise ValueError("a key is 16 bytes: namespace.key(...) makes one of anything")
    return (_lib.Key * len(keys)).from_buffer_copy(joined) if keys else (_lib.Key * 0)()


class Descriptor:
    """What the blocks of a namespace are.  Two of them share blocks only when every field is the same."""

    def __init__(self, raw: _lib.Desc):
        self.raw = raw

    @classmethod
    def opaque(cls, engine: str, block_bytes: int, block_tokens: int, model: bytes = b"") -> "Descriptor":
        """Bytes of the engine's own, with a stored length up to ``block_bytes``.

        ``engine`` names format and version ("llama.cpp-state/b4000/fa1"): what another build cannot read must differ in it.
        ``model``: up to 32 bytes, a hash of the weights or of config and file identity; never only a name.
        """
        raw = _lib.Desc()
        _pool.kvp_desc_init(raw, Layout.OPAQUE, _fits("block_tokens", block_tokens, least=1), 0, 0, 0, 0)
        raw.block_bytes = _fits("block_bytes", block_bytes, 64, least=1)
        if len(engine.encode()) > 127:
            raise ValueError("engine: at most 127 bytes of UTF-8")
        raw.engine = _text("engine", engine)
        return cls(raw)._with(model)

    @classmethod
    def model(cls, layout: Layout, block_tokens: int, n_layers: int, kv_heads: int, head_dim: int, type: Type,
              model: bytes = b"") -> "Descriptor":
        """``n_layers`` equal full-attention layers; for anything else set fields of ``.raw`` (struct kvp_desc)."""
        raw = _lib.Desc()
        _pool.kvp_desc_init(raw, layout, _fits("block_tokens", block_tokens), _fits("n_layers", n_layers),
                            _fits("kv_heads", kv_heads), _fits("head_dim", head_dim), type)
        return cls(raw)._with(model)

    def _with(self, model: bytes) -> "Descriptor":
        if len(model) > 32:
            raise ValueError("model: at most 32 bytes; give a hash")
        self.raw.model[:len(model)] = model
        return self

    @property
    def block_bytes(self) -> int:
        """Payload of a block. Raises ValueError, naming the field and its bounds, for a descriptor that is not whole."""
        size = c.c_uint64()
        if _pool.kvp_desc_check(self.raw, None, size) < 0:
            raise ValueError(_pool.kvp_error(None).decode())
        return size.value

    def differs(self, other: "Descriptor") -> Optional[str]:
        """Name of the first field in which the two differ, or None."""
        name = _pool.kvp_desc_differs(self.raw, other.raw)
        return name.decode() if name else None


class _Handle:
    """A C handle, closed by the last one that needs it: its owner, and the handles and pins made of it.

    Counted here and not by Python's references alone: what a collected cycle holds is finalised in any order.
    """

    _lock = threading.RLock()  # a collection may begin while it is held

    def __init__(self, value: Optional[int], close: Any, *parents: "_Handle"):
        self.value, self._close, self._parents, self._users, self._owned = value, close, parents, 1, True
        for parent in parents:
            parent.use()

    def use(self) -> "_Handle":
        with self._lock:
            self._users += 1
        return self

    def drop(self) -> None:
        with self._lock:
            self._users -= 1
            last = self._users == 0
        if last:
            self._close(self.value)
            for parent in self._parents:
                parent.drop()

    def let_go(self) -> None:
        """By the owner."""
        if self._owned:
            self._owned = False
            self.drop()

    __del__ = let_go


_Self = TypeVar("_Self", bound="_Open")


class _Open:
    """What has a C handle until it is closed: a client and all that is made of it."""

    _handle: Optional[_Handle] = None

    def _told(self) -> str:
        """What it is, for messages and repr()."""
        return type(self).__name__.lower()

    @property
    def _held(self) -> _Handle:
        if self._handle is None:
            raise ValueError(f"this {self._told()} is closed")
        return self._handle

    @property
    def _raw(self) -> Any:
        return self._held.value

    @property
    def closed(self) -> bool:
        return self._handle is None

    def close(self) -> None:
        """Let go: what was made of it goes on until it is let go itself; what was published stays in the pool."""
        if self._handle is not None:
            self._handle.let_go()
        self._handle = None

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<kvpool {self._told()}{', closed' if self.closed else ''}>"


class Client(_Open):
    """A connection to the pool of this host; opens without a daemon too, in state DETACHED."""

    def __init__(self, socket: Optional[str] = None, *, name: Optional[str] = None, connect_timeout: float = 1.0,
                 offline: bool = False, stock_blocks: int = 0):
        """``socket``: None: KVPOOL_SOCKET of the environment, else the default.  ``name``: shown by kvctl clients."""
        wait = _seconds(connect_timeout, _CONNECT_MOST)
        if wait < 0:
            raise ValueError(f"connect_timeout: {connect_timeout}, it must be 0 or more seconds")
        opts = _lib.OpenOpts(size=c.sizeof(_lib.OpenOpts), connect_timeout_ms=max(1, int(wait * 1000)),
                             socket=_text("socket", os.fsencode(socket)) if socket else None,
                             comm=_text("name", name) if name else None,
                             flags=2 if offline else 0, stock_blocks=_fits("stock_blocks", stock_blocks))
        handle = c.c_void_p()
        _check(_pool.kvp_open(opts, handle))
        self._handle = _Handle(handle.value, _pool.kvp_close)

    @property
    def state(self) -> State:
        """ATTACHED: a daemon serves. Otherwise nothing is found and nothing stored, and the library goes on trying."""
        return State(_pool.kvp_state(self._raw, None))

    @property
    def epoch(self) -> int:
        """Changes at each start of the daemon; 0 while never attached."""
        epoch = c.c_uint64()
        _pool.kvp_state(self._raw, epoch)
        return epoch.value

    def ping(self, timeout: float = 1.0) -> None:
        """Raises Error when the daemon does not serve."""
        _check(_pool.kvp_ping(self._raw, _deadline(timeout)), self._raw)

    def counts(self) -> Counts:
        """What this client did so far; works without a daemon too."""
        raw = _lib.Counts(size=c.sizeof(_lib.Counts))
        _check(_pool.kvp_counts(self._raw, raw), self._raw)
        return Counts(*(getattr(raw, field) for field in Counts._fields))

    def namespace(self, name: str, descriptor: Descriptor, *, must_exist: bool = False, readonly: bool = False,
                  copied: bool = False, in_place: bool = False, owner_uid: Optional[int] = None, mode: int = 0,
                  base: Optional["Namespace"] = None, cost_ns_per_token: int = 0,
                  compress: Optional[bool] = None, layers: bool = False) -> "Namespace":
        """Create or join a namespace; see kvp_ns_open() in kvpool.h for each argument.

        ``compress``: in the spill store, yes or no; None: as the daemon is set.  ``layers``: see ``acquire()``.
        """
        flags = 1 * must_exist | 2 * copied | 4 * in_place | 8 * readonly | 256 * layers
        flags |= {None: 0, True: 64, False: 128}[compress]
        opts = _lib.NsOpts(size=c.sizeof(_lib.NsOpts), flags=flags, name=_text("name", name),
                           desc=c.pointer(descriptor.raw),
                           owner_uid=_lib.UID_SELF if owner_uid is None else _fits("owner_uid", owner_uid),
                           mode=_fits("mode", mode), base=base._raw if base else None,
                           cost_ns_per_token=_fits("cost_ns_per_token", cost_ns_per_token, 64))
        handle = c.c_void_p()
        _check(_pool.kvp_ns_open(self._raw, opts, handle), self._raw)
        parents = [self._held] + ([base._held] if base else [])
        return Namespace(_Handle(handle.value, _pool.kvp_ns_close, *parents), name)

    def queue(self, threads: int = 1) -> "Queue":
        """A queue for batches in the background; 0 threads: the work is done inside ``poll()``."""
        opts = _lib.QueueOpts(size=c.sizeof(_lib.QueueOpts), n_threads=_fits("threads", threads))
        handle = c.c_void_p()
        _check(_pool.kvp_queue_open(self._raw, opts, handle), self._raw)
        return Queue(_Handle(handle.value, _pool.kvp_queue_close, self._held))


class Namespace(_Open):
    """The blocks of one model in one layout for one trust domain; made by ``Client.namespace()``."""

    def __init__(self, handle: _Handle, name: str):
        self.name = name
        self._handle = _made(handle, "namespace", "client.namespace(name, descriptor)")
        info = self._info()
        self.block_bytes: int = info.block_bytes
        self.block_tokens: int = info.block_tokens

    def _told(self) -> str:
        return f"namespace {self.name}"

    def _info(self) -> _lib.NsInfo:
        info = _lib.NsInfo(size=c.sizeof(_lib.NsInfo))
        _check(_pool.kvp_ns_info(self._raw, info))
        return info

    @property
    def id(self) -> int:
        """0 while detached."""
        return int(self._info().ns_id)

    @property
    def differs(self) -> str:
        """The first descriptor field in which another namespace of this name differs; "": there is none."""
        field: bytes = self._info().differs
        return field.decode()

    # ---- keys ----

    def key(self, name: Union[bytes, str]) -> Key:
        """The block key of an engine's own key of 1 to 1024 bytes."""
        name = name.encode() if isinstance(name, str) else bytes(name)
        key = _lib.Key()
        _check(_pool.kvp_hash_bytes(self._raw, name, len(name), key))
        return bytes(key)

    def hash_chain(self, tokens: Any, parent: Optional[Key] = None, extra: bytes = b"") -> List[Key]:
        """Keys of the full blocks of ``tokens`` (ints, or a buffer of 4-byte integers)."""
        memory, address, n = token_memory(tokens)
        keys = (_lib.Key * (n // self.block_tokens))()
        first = _keys([parent])[0] if parent else None
        count = _check(_pool.kvp_hash_chain(self._raw, first, address, n, extra or None, len(extra), keys))
        del memory
        joined = bytes(keys)
        return [joined[i * _KEY_BYTES:(i + 1) * _KEY_BYTES] for i in range(count)]

    # ---- find ----

    def match(self, keys: SequenceOf[Key]) -> int:
        """How many leading blocks exist; pins, reads and touches nothing."""
        raw = _keys(keys)
        part = _lib.MatchPart(ns=self._raw, keys=raw)
        return _check(_pool.kvp_match(part, 1, len(keys), 0, None))

    def states(self, keys: SequenceOf[Key]) -> List[Hit]:
        """Where each of the blocks is, past the first miss too."""
        raw, states = _keys(keys), (c.c_uint8 * len(keys))()
        part = _lib.MatchPart(ns=self._raw, keys=raw)
        _check(_pool.kvp_match(part, 1, len(keys), 2, states))
        return [Hit(state) for state in states]

    def acquire(self, keys: SequenceOf[Key], timeout: float = 0, layers: bool = False) -> List["View"]:
        """Pin the leading blocks that are there, waiting ``timeout`` seconds for those in the spill store.

        ``layers``: in a namespace made with it, a block that is being read back is given with its first layers;
        ``View.wait_layer()`` before each layer is looked at.
        """
        raw, views = _keys(keys), (_lib.View * len(keys))()
        count = _check(_pool.kvp_acquire(self._raw, raw, len(keys), 2 * layers, _deadline(timeout), views))
        return [View(self, _Pin(views[i], self._held)) for i in range(count)]

    def get(self, key: Key, timeout: float = 0) -> Optional["View"]:
        """One block, or None."""
        views = self.acquire([key], timeout)
        return views[0] if views else None

    def prefetch(self, keys: SequenceOf[Key]) -> int:
        """Start reads of spilled blocks. Return: reads started or under way; 0 with no daemon."""
        result = _pool.kvp_prefetch(self._raw, _keys(keys), len(keys))
        return 0 if result == -errno.ENOTCONN else _check(result)

    def sequence(self, *, salt: bytes = b"", extra: bytes = b"", window: int = 0, sinks: int = 0) -> "Sequence":
        """A token sequence with its K and V in blocks (not OPAQUE); see struct kvp_seq_opts in kvpool.h."""
        opts = _lib.SeqOpts(size=c.sizeof(_lib.SeqOpts), n_salt=len(salt), salt=salt or None, extra=extra or None,
                            n_extra=len(extra), window=_fits("window", window), sinks=_fits("sinks", sinks))
        handle = c.c_void_p()
        _check(_pool.kvp_seq_open(self._raw, opts, handle))
        return Sequence(_Handle(handle.value, _pool.kvp_seq_close, self._held), self)

    # ---- write ----

    def reserve(self, n: int = 1, timeout: float = 0, private: bool = False) -> List["Block"]:
        """Up to ``n`` blocks to store into, waiting ``timeout`` seconds for room; fewer is normal, none with no daemon.

        A new namespace in a full pool waits until a slab of others was emptied for it: seconds, where there are many.

        ``private``: always ``n``, the rest in memory of this process's own: of use to compute in, refused when published.
        """
        refs = (_lib.BlockRef * _fits("n", n))()
        count = _check(_pool.kvp_reserve(self._raw, n, 1 if private else 0, _deadline(timeout), refs))
        return [Block(self, refs[i]) for i in range(count)]

    def publish(self, items: Iterable[Tuple[Any, ...]]) -> List[PublishResult]:
        """Make blocks findable: items (key, block), (key, block, used_bytes) or (key, block, used_bytes, parent key).

        In order, so parents go first.  A block that was stored or existed is used up; others stay the caller's.
        """
        items = [tuple(item) + (0, None)[len(item) - 2:] for item in items]
        raw = (_lib.PublishItem * len(items))()
        results = (c.c_uint8 * len(items))()
        for at, (key, block, used_bytes, parent) in zip(raw, items):
            block._end_writing()
            at.key, at.block = _keys([key])[0], c.pointer(block._ref)
            at.used_bytes, at.used_tokens = _fits("used_bytes", used_bytes, 64), self.block_tokens
            if parent:
                at.parent = _keys([parent])[0]
        _check(_pool.kvp_publish(self._raw, raw, len(items), results))
        return [PublishResult(result) for result in results]

    def put(self, key: Key, *parts: Any, parent: Optional[Key] = None, timeout: float = 0) -> bool:
        """Store a block from buffers. Return: is it there now, by this call or before?"""
        memories = [Memory(part, False) for part in parts]
        length = sum(memory.length for memory in memories)
        if not 0 < length <= self.block_bytes:
            raise ValueError(f"{length} bytes: a block of {self.name} holds 1 to {self.block_bytes}")
        blocks = self.reserve(1, timeout)
        if not blocks:
            return False
        at: int = blocks[0]._ref.data
        for memory in memories:
            c.memmove(at, memory.address, memory.length)
            at += memory.length
        return self.publish([(key, blocks[0], length, parent)])[0] in (PublishResult.STORED, PublishResult.EXISTS)

    # ---- let go of stored blocks, and hear of it ----

    def delete(self, keys: SequenceOf[Key], timeout: float = 0) -> int:
        """Blocks not wanted any more go, waiting ``timeout`` seconds for those in use. Return: how many are gone; 0 with no daemon."""
        result = _pool.kvp_delete(self._raw, _keys(keys), len(keys), _deadline(timeout))
        return 0 if result == -errno.ENOTCONN else _check(result)

    def clear(self, timeout: float = 10) -> int:
        """All blocks go, for good; its owner's right. Return: blocks left because they are in use."""
        return _check(_pool.kvp_clear(self._raw, _deadline(timeout)))

    def request(self, keys: SequenceOf[Key], hint: Hint = Hint.NONE) -> None:
        """Say what is about to be used and published, a chain from its first block on, and what comes after it; does not wait."""
        _check(_pool.kvp_request(self._raw, _keys(keys), len(keys), hint))

    def touch(self, keys: SequenceOf[Key]) -> int:
        """Count as a use; does not wait. Return: how many lie in memory."""
        return _check(_pool.kvp_touch(self._raw, _keys(keys), len(keys)))

    def stats(self, timeout: float = 1) -> Stats:
        """Raises Error (ENOTCONN) with no daemon."""
        raw = _lib.StatsOf(size=c.sizeof(_lib.StatsOf))
        _check(_pool.kvp_stats(self._raw, raw, _deadline(timeout)))
        return Stats(*(getattr(raw, field) for field in Stats._fields))

    def events(self) -> "Events":
        """What happens to its blocks from now on, for a router."""
        return Events(self)


class Events:
    """What happens in a namespace since the last ``read()``; the first event is a GAP, for what was before is not known.

    A reader that is too slow loses events and is told so by another GAP; the daemon waits for nobody.
    """

    def __init__(self, ns: Namespace):
        self._ns, self._from = ns, c.c_uint64(0)

    def read(self, timeout: float = 0, most: int = 1024) -> List[Event]:
        """Waits ``timeout`` seconds for the first."""
        raw = (_lib.Event * _fits("most", most))()
        count = _check(_pool.kvp_events(self._ns._raw, self._from, raw, most, _deadline(timeout)))
        return [Event(at.seq, EventKind(at.kind), bytes(at.key), bytes(at.parent) if any(at.parent.w) else None, at.tier,
                      at.used_tokens) for at in raw[:count]]


class _Pin:
    """One hold on a block, let go with the last reference: views and the buffers taken from them."""

    def __init__(self, raw: _lib.View, ns: _Handle):
        self.raw, self._ns, self._born = _lib.View.from_buffer_copy(raw), ns.use(), _forks

    def check(self) -> "_Pin":
        if self._born != _forks:
            raise Error(errno.ENOTCONN, "this view is of the process this one was forked from, whose memory is not here: "
                                        "open a client of your own")
        return self

    def __del__(self, release: Any = _pool.kvp_release) -> None:
        release(self.raw, 1)
        self._ns.drop()


class View:
    """A block in place, read-only and unchanged until let go.

    ``data`` is a read-only memoryview; ``numpy.asarray(view)`` gives bytes; from Python 3.12 on the view itself is a buffer.
    What was taken of it keeps the pin, ``release()`` or not.
    """

    def __init__(self, ns: Namespace, pin: _Pin):
        self._pin: Optional[_Pin] = pin
        self.used_bytes: int = pin.raw.used_bytes
        self.used_tokens: int = pin.raw.used_tokens
        self.hit = Hit(pin.raw.hit)
        self.block_bytes = ns.block_bytes

    def _held(self) -> _Pin:
        if self._pin is None:
            raise ValueError("this view was released")
        return self._pin.check()

    @property
    def address(self) -> int:
        """Of the first byte; good as long as the view, or a buffer taken from it, is held."""
        return int(self._held().raw.data)

    @property
    def data(self) -> memoryview:
        """The used bytes."""
        memory: Any = (c.c_ubyte * self.used_bytes).from_address(self.address)
        memory._pin = self._held()
        return memoryview(memory).cast("B").toreadonly()

    def __buffer__(self, flags: int) -> memoryview:
        return self.data

    @property
    def __array_interface__(self) -> Dict[str, Any]:
        return {"version": 3, "shape": (self.used_bytes,), "typestr": "|u1", "data": (self.address, True)}

    @property
    def lost(self) -> bool:
        """Was the hold revoked (the process was stopped past the hold limit)? Then what was read is void."""
        return bool(_pool.kvp_lost(self._held().raw, 1))

    @property
    def layers_ready(self) -> int:
        """The first n layers are there; all, unless it was acquired with ``layers``."""
        return int(self._held().raw.layers_ready)

    def wait_layer(self, layer: int, timeout: float = 0) -> bool:
        """Wait until a layer is there. Return: False: not in time. Error ESTALE: it will not come, the block is a miss."""
        result = _pool.kvp_view_wait_layer(self._held().raw, _fits("layer", layer), _deadline(timeout))
        return False if result == -errno.ETIMEDOUT else _check(result) == 0

    @property
    def node(self) -> Optional[int]:
        """NUMA node the block lies on, None: not known."""
        node = _pool.kvp_view_node(self._held().raw)
        return node if node >= 0 else None

    def release(self) -> None:
        """Let go; buffers that were taken of it keep the block."""
        self._pin = None

    def __len__(self) -> int:
        return self.used_bytes

    def __repr__(self) -> str:
        return f"<kvpool view, {self.hit.name}, {self.used_bytes} bytes{', released' if self._pin is None else ''}>"

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()


class _Grant:
    """The right to store into one block; given back with the last reference, if it is not used up."""

    def __init__(self, ref: _lib.BlockRef, ns: _Handle):
        self.ref, self._ns, self.born = _lib.BlockRef.from_buffer_copy(ref), ns.use(), _forks

    def __del__(self, abandon: Any = _pool.kvp_abandon) -> None:
        abandon(self.ref, 1)
        self._ns.drop()


class Block:
    """A block to store into; given back to the pool if it is not published, at the end of its ``with`` or its last reference."""

    def __init__(self, ns: Namespace, ref: _lib.BlockRef):
        self._grant = _Grant(ref, ns._held)
        self._length = ns.block_bytes
        self._memory: Any = None
        self._data: Optional[memoryview] = None

    @property
    def _ref(self) -> _lib.BlockRef:
        if not self._grant.ref.data:
            raise ValueError("this block was published or given back")
        if self._grant.born != _forks:
            raise Error(errno.ENOTCONN, "this block is of the process this one was forked from, whose memory is not here: "
                                        "open a client of your own")
        return self._grant.ref

    @property
    def data(self) -> memoryview:
        """All of it, writable; contents are undefined at first."""
        ref = self._ref
        if self._data is None:
            self._memory = (c.c_ubyte * self._length).from_address(ref.data)
            self._memory._grant = self._grant
            self._data = memoryview(self._memory).cast("B")
        return self._data

    def _end_writing(self) -> None:
        """Nobody may store into what others can find."""
        self._ref
        if self._data is not None:
            self._data.release()
            self._data = None
        if self._memory is not None and sys.getrefcount(self._memory) > 2:
            raise BufferError("arrays or memoryviews over this block still exist: delete them before it is published")
        self._memory = None

    def abandon(self) -> None:
        """Give it back now; nothing to do for one that was published."""
        if self._grant.ref.data:
            self._end_writing()
            _pool.kvp_abandon(self._grant.ref, 1)

    def __len__(self) -> int:
        return self._length

    def __enter__(self) -> "Block":
        return self

    def __exit__(self, *_: Any) -> None:
        self.abandon()

    def __repr__(self) -> str:
        return f"<kvpool block, {self._length} bytes{'' if self._grant.ref.data else ', published or given back'}>"


class SequenceStats(NamedTuple):
    """What became of a sequence's tokens and blocks so far; see struct kvp_seq_stats in kvpool.h."""

    lost: int
    tokens: int
    reused_ram: int
    reused_spill: int
    published: int
    private_blocks: int
    copied_bytes: int
    restored: int


class Sequence(_Open):
    """A token sequence whose K and V lie in blocks: match once, then append, store rows, attend, commit.

    ``kvpool.attention`` stores into it and attends over it.  For one thread at a time.
    """

    def __init__(self, handle: _Handle, ns: Namespace):
        self._handle = _made(handle, "sequence", "ns.sequence()")
        self.ns = ns

    def match(self, tokens: Any, timeout: float = 0) -> int:
        """Take over the blocks of the longest known prefix; the first call on it. Return: tokens that need no computing."""
        memory, address, n = token_memory(tokens)
        result = _check(_pool.kvp_seq_match(self._raw, address, n, _deadline(timeout)))
        del memory
        return result

    def append(self, tokens: Any) -> int:
        """Room for the K and V of more tokens. Return: the new length."""
        memory, address, n = token_memory(tokens)
        result = _check(_pool.kvp_seq_append(self._raw, address, n))
        del memory
        return result

    def __len__(self) -> int:
        return int(_pool.kvp_seq_length(self._raw))

    def commit(self, n: int) -> int:
        """K and V of the tokens before ``n`` are stored in all layers: publish the full blocks. Return: blocks published so far."""
        return _check(_pool.kvp_seq_commit(self._raw, _fits("n", n, 64)))

    def truncate(self, n: int) -> None:
        """Keep the first ``n`` tokens."""
        _check(_pool.kvp_seq_truncate(self._raw, _fits("n", n, 64)))

    def stats(self) -> SequenceStats:
        raw = _lib.SeqStats(size=c.sizeof(_lib.SeqStats))
        _check(_pool.kvp_seq_stats(self._raw, raw))
        return SequenceStats(*(getattr(raw, field) for field in SequenceStats._fields))


class Queue(_Open):
    """Batches in the background, to and from the caller's own buffers; made by ``Client.queue()``."""

    _GET, _PUT, _EXISTS, _DELETE = 1, 2, 3, 4

    def __init__(self, handle: _Handle):
        self._running: Dict[int, Tuple[Any, Any, str, _Handle]] = {}  # tag: the library writes there until it is polled
        self._handle = _made(handle, "queue", "client.queue()")
        self._next = 1

    def fileno(self) -> int:
        """Readable while completions wait: for select, poll and asyncio's add_reader()."""
        return _check(_pool.kvp_queue_fd(self._raw))

    def _submit(self, ns: Namespace, op: int, keys: SequenceOf[Key], parts: Optional[SequenceOf[Any]],
                parents: Optional[SequenceOf[Optional[Key]]], timeout: float) -> int:
        raw_keys, ios = _keys(keys), (_lib.Io * len(keys))()
        alive: List[Any] = []
        if parts is not None and len(parts) != len(keys):
            raise ValueError(f"{len(keys)} keys and buffers for {len(parts)}")
        for i, io in enumerate(ios):
            io.key = raw_keys[i]
            parent = parents[i] if parents else None
            if parent:
                io.parent = _keys([parent])[0]
            if parts is None:
                continue
            group = parts[i] if isinstance(parts[i], (list, tuple)) else [parts[i]]
            memories = [Memory(part, op == self._GET) for part in group]
            vector = (_lib.IoVec * len(memories))(*(_lib.IoVec(m.address, m.length) for m in memories))
            io.parts, io.n_parts = vector, len(memories)
            alive += [memories, vector]
        tag, self._next = self._next, self._next + 1
        self._running[tag] = (ios, alive, ("", "get", "put", "exists", "delete")[op], ns._held.use())
        result = _pool.kvp_submit(self._raw, ns._raw, op, ios, len(keys), _deadline(timeout), tag)
        if result < 0:
            self._end(tag)
        _check(result)
        return tag

    def _end(self, tag: int) -> Tuple[Any, str]:
        """The library has let go of a batch: its buffers may go."""
        ios, _alive, op, ns = self._running.pop(tag)
        ns.drop()
        return ios, op

    def get(self, ns: Namespace, keys: SequenceOf[Key], buffers: SequenceOf[Any], timeout: float = 0) -> int:
        """Copy blocks into ``buffers``: for each key a writable buffer, or a list of them. Return: the batch's tag."""
        return self._submit(ns, self._GET, keys, buffers, None, timeout)

    def put(self, ns: Namespace, keys: SequenceOf[Key], buffers: SequenceOf[Any],
            parents: Optional[SequenceOf[Optional[Key]]] = None, timeout: float = 0) -> int:
        """Store blocks out of ``buffers``; what is there already is not copied again."""
        return self._submit(ns, self._PUT, keys, buffers, parents, timeout)

    def exists(self, ns: Namespace, keys: SequenceOf[Key]) -> int:
        """Which of them are there: DONE or MISS for each, nothing is read."""
        return self._submit(ns, self._EXISTS, keys, None, None, 0)

    def delete(self, ns: Namespace, keys: SequenceOf[Key], timeout: float = 0) -> int:
        """Blocks not wanted any more go."""
        return self._submit(ns, self._DELETE, keys, None, None, timeout)

    def poll(self, timeout: float = 0, most: int = 64) -> List[Completion]:
        """Batches that have ended, waiting ``timeout`` seconds for the first."""
        raw = (_lib.Completion * _fits("most", most))()
        count = _check(_pool.kvp_queue_poll(self._raw, raw, most, _deadline(timeout)))
        done = []
        for completion in raw[:count]:
            ios, op = self._end(completion.tag)
            done.append(Completion(completion.tag, op, [Status(io.status) for io in ios], [io.used_bytes for io in ios]))
        return done

    def close(self) -> None:
        """Drops what has not begun, waits for what is under way; its buffers are free afterwards."""
        super().close()
        for tag in list(self._running):
            self._end(tag)

    def __del__(self) -> None:
        self.close()


if sys.byteorder != "little":
    raise ImportError("kvpool: keys and blocks are little-endian")
