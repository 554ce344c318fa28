"""kvpool: KV-cache blocks shared between the inference engines of a host, used in place.

    import kvpool
    with kvpool.Client() as client:
        ns = client.namespace("llama-8b", kvpool.Descriptor.opaque("my-engine/1", block_bytes=1 << 20, block_tokens=256))
        keys = ns.hash_chain(tokens)
        views = ns.acquire(keys, timeout=0.1)          # the leading blocks that are there, pinned
        numpy.frombuffer(views[0], dtype="float16")     # no copy; the pin is held as long as the array is

With no daemon everything works and nothing is found: a miss is an answer, never an exception.
"""
from ._api import (Block, Client, Completion, Counts, Descriptor, Error, Event, EventKind, Events, Hint, Hit, Key, Layout,
                   MissReason, Namespace, PublishResult, Queue, Sequence, State, Stats, Status, Type, View)

__all__ = ["Block", "Client", "Completion", "Counts", "Descriptor", "Error", "Event", "EventKind", "Events", "Hint", "Hit",
           "Key", "Layout", "MissReason", "Namespace", "PublishResult", "Queue", "Sequence", "State", "Stats",
           "Status", "Type", "View"]
__version__ = "0.1.0"
