"""What LMCache asks of a native connector; with LMCache's own adapter where it is installed."""
import json
import select
import subprocess
import sys
import threading
import time

import pytest

import kvpool
from conftest import ONE_BLOCK, Daemon, attached, tell_gain, told_apart
from kvpool.lmcache import NativeClient


def answers(client, n):
    got = []
    poller = select.poll()
    poller.register(client.event_fd(), select.POLLIN)
    while len(got) < n:
        assert poller.poll(20000), "no completion"
        got += client.drain_completions()
    return {tag: (ok, error, there) for tag, ok, error, there in got}


@pytest.fixture
def native(daemon):
    client = NativeClient(chunk_bytes=16384, socket=daemon.socket)
    attached(client._client)  # on a busy machine that may take longer than a client waits when it is opened
    yield client
    client.close()


def test_objects_of_another_process_are_found(daemon, native):
    keys = [f"model@00000001@0@{i:064x}" for i in range(20)]
    values = [memoryview(bytes([i]) * (16384 - 8 * (i % 2))) for i in range(20)]
    tag = native.submit_batch_set(keys, values)
    assert answers(native, 1)[tag] == (True, "", None)
    other = NativeClient(chunk_bytes=16384, socket=daemon.socket)
    exists = other.submit_batch_exists(keys + ["model@00000001@0@ff"])
    assert answers(other, 1)[exists] == (True, "", [True] * 20 + [False])
    buffers = [memoryview(bytearray(16384 - 8 * (i % 2))) for i in range(20)]
    got = other.submit_batch_get(keys, buffers)
    assert answers(other, 1)[got] == (True, "", [True] * 20)
    assert buffers == values
    other.close()


def test_an_object_of_another_length_is_a_miss(native):
    native.submit_batch_set(["a"], [memoryview(b"x" * 1000)])
    answers(native, 1)
    tags = [native.submit_batch_get(["a"], [memoryview(bytearray(n))]) for n in (999, 1000, 1001)]
    got = answers(native, 3)
    assert [got[tag][2] for tag in tags] == [[False], [True], [False]]


def test_lengths_count_for_answers_that_are_taken_before_the_call_returns(native, monkeypatch):
    native.submit_batch_set(["a"], [memoryview(b"x" * 1000)])
    answers(native, 1)
    get, taken = native._queue.get, []
    taker = threading.Thread(target=lambda: taken.append(answers(native, 1)))

    def slow(*args, **more):
        tag = get(*args, **more)
        taker.start()
        taker.join(0.5)  # a thread that runs whenever it can
        return tag

    monkeypatch.setattr(native._queue, "get", slow)
    tag = native.submit_batch_get(["a"], [memoryview(bytearray(1001))])
    taker.join()
    assert taken[0][tag] == (True, "", [False])
    assert not native._lengths


def test_what_could_not_be_stored_says_why(daemon, native):
    tag = native.submit_batch_set(["long"], [memoryview(bytes(20000))])
    ok, error, _ = answers(native, 1)[tag]
    assert not ok and "chunk_bytes (16384)" in error
    with pytest.raises(ValueError, match="chunk_bytes"):
        NativeClient(chunk_bytes=0)


def test_deleted_objects_are_gone(native):
    keys = [f"k{i}" for i in range(4)]
    native.submit_batch_set(keys, [memoryview(bytes([i]) * 16384) for i in range(4)])
    answers(native, 1)
    tag = native.submit_batch_delete(keys[:2] + ["never"])
    assert answers(native, 1)[tag] == (True, "", None)
    tag = native.submit_batch_exists(keys)
    assert answers(native, 1)[tag] == (True, "", [False, False, True, True])


def test_without_a_daemon_all_is_a_miss(tmp_path):
    client = NativeClient(chunk_bytes=4096, socket=str(tmp_path / "nobody"), timeout=0.1)
    get = client.submit_batch_get(["a"], [memoryview(bytearray(10))])
    put = client.submit_batch_set(["a"], [memoryview(bytes(10))])
    got = answers(client, 2)
    assert got[get] == (True, "", [False]) and not got[put][0] and "no daemon" in got[put][1]
    client.close()


def test_other_models_formats_and_versions_share_nothing(daemon, native, monkeypatch):
    tag = native.submit_batch_set(["a"], [memoryview(b"x" * 16384)])
    assert answers(native, 1)[tag][0]

    def there(**options):
        other = NativeClient(chunk_bytes=16384, socket=daemon.socket, **options)
        tag = other.submit_batch_exists(["a"])
        found = answers(other, 1)[tag][2][0]
        other.close()
        return found

    assert there() and not there(model="another") and not there(format="bf16")
    monkeypatch.setattr("kvpool.lmcache._version", lambda: "another")
    assert not there()


def test_a_pool_of_one_block_gives_right_bytes_or_none():
    daemon = Daemon(*ONE_BLOCK)
    size = 600000
    try:
        native, found = NativeClient(chunk_bytes=size, socket=daemon.socket, timeout=2), 0
        for i in range(4):
            native.submit_batch_set([f"k{i}"], [memoryview(bytes([i + 1]) * size)])
            answers(native, 1)
            buffers = [memoryview(bytearray(size)) for _ in range(4)]
            tag = native.submit_batch_get([f"k{k}" for k in range(4)], buffers)
            there = answers(native, 1)[tag][2]
            assert all(buffers[k] == bytes([k + 1]) * size for k in range(4) if there[k])
            assert sum(there) <= 1 and not any(there[i + 1:])
            found += sum(there)
        assert found
        native.close()
    finally:
        daemon.close()


def test_two_engines_in_one_pool_are_told_apart(daemon, native):
    with kvpool.Client(daemon.socket, name="my-engine") as client, \
            client.namespace("my-engine", kvpool.Descriptor.opaque("my-engine/1", 4096, 16)):
        told_apart(daemon, "lmcache", "my-engine")


# ---- LMCache's own adapter, in two processes ----

N, OBJECT = 5, 8192


def adapter(socket, chunk_bytes=OBJECT, **more):
    from lmcache.v1.distributed.l2_adapters import native_plugin_l2_adapter as plugin
    return plugin._create_native_plugin_l2_adapter(plugin.NativePluginL2AdapterConfig.from_dict({
        "module_path": "kvpool.lmcache", "class_name": "NativeClient",
        "adapter_params": {"chunk_bytes": chunk_bytes, "socket": socket, "timeout": 2, **more}}))


def object_keys(n=N, salt=""):
    from lmcache.v1.distributed.api import ObjectKey
    return [ObjectKey(chunk_hash=bytes([i]) * 32, model_name="m", kv_rank=0, cache_salt=salt) for i in range(n)]


def objects(fill, n=N, size=OBJECT):
    """Whoever submits them keeps them alive until the task has ended."""
    import torch
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj
    return [TensorMemoryObj(torch.full((size,), fill(i), dtype=torch.uint8), MemoryObjMetadata(
        torch.Size([size]), torch.uint8, 0, size, 1, 0, MemoryFormat.BINARY), None) for i in range(n)]


def until(call):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        result = call()
        if result:
            return result
        time.sleep(0.002)
    raise AssertionError("no answer")


def store(made, keys, values):
    task = made.submit_store_task(keys, values)
    return int(until(made.pop_completed_store_tasks)[task]) >= 0  # -1: not stored


def load(made, keys, into):
    """Which of them were found, then which were loaded."""
    task = made.submit_lookup_and_lock_task(keys, {})
    found = until(lambda: made.query_lookup_and_lock_result(task))
    task = made.submit_load_task(keys, into)
    loaded = until(lambda: made.query_load_result(task))
    made.submit_unlock(keys)
    return [found.test(i) for i in range(len(keys))], [loaded.test(i) for i in range(len(keys))]


def load_here(socket, **more):
    """In a process of its own: is what was found what had been stored?"""
    made, into = adapter(socket, **more), objects(lambda i: 0)
    found, loaded = load(made, object_keys(), into)
    right = [bytes(obj.byte_array) == bytes([i + 1]) * OBJECT for i, obj in enumerate(into)]
    made.close()
    return found, loaded, right


def load_there(socket, **more):
    program = "import json, sys; sys.path[:0] = json.loads(sys.argv[2])\nimport test_lmcache\n" \
              "print(json.dumps(test_lmcache.load_here(sys.argv[1], **json.loads(sys.argv[3]))))"
    run = subprocess.run([sys.executable, "-c", program, socket, json.dumps(sys.path), json.dumps(more)], capture_output=True,
                         text=True, timeout=600)
    assert run.returncode == 0, run.stderr[-3000:]
    return json.loads(run.stdout.splitlines()[-1])


@pytest.fixture
def lmcache():
    pytest.importorskip("torch")
    pytest.importorskip("lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter")


def test_lmcache_in_another_process_finds_and_loads_what_this_one_stored(daemon, lmcache):
    made = adapter(daemon.socket)
    assert store(made, object_keys(), objects(lambda i: i + 1))
    assert load_there(daemon.socket) == [[True] * N] * 3
    assert load_there(daemon.socket, model="another") == [[False] * N] * 3
    made.close()


def test_the_daemon_killed_under_lmcache_is_a_miss_and_no_exception(daemon, lmcache):
    made, keys = adapter(daemon.socket), object_keys()
    assert store(made, keys, objects(lambda i: i + 1))
    daemon.kill()
    into = objects(lambda i: 0)
    _, loaded = load(made, keys, into)
    assert all(bytes(obj.byte_array) == bytes([i + 1]) * OBJECT for i, obj in enumerate(into) if loaded[i])
    assert not store(made, object_keys(salt="later"), objects(lambda i: 9))
    daemon.start()
    assert load_there(daemon.socket) == [[True] * N] * 3
    made.close()


def test_lmcache_counts_what_each_salt_uses(daemon, lmcache):
    made = adapter(daemon.socket)
    assert store(made, object_keys(), objects(lambda i: 1)) and store(made, object_keys(2, "tenant"), objects(lambda i: 2, 2))
    assert dict(made.get_usage().bytes_by_cache_salt) == {"": N * OBJECT, "tenant": 2 * OBJECT}
    into = objects(lambda i: 0, 2)
    assert load(made, object_keys(2, "tenant"), into)[1] == [True] * 2
    assert all(bytes(obj.byte_array) == bytes([2]) * OBJECT for obj in into)
    made.close()


def test_what_lmcache_takes_to_store_and_load_is_told(lmcache, tmp_path):
    """Beside LMCache's own adapter for files, whose files are in the page cache."""
    from lmcache.v1.distributed.l2_adapters import fs_l2_adapter as fs
    n, size = 16, 4 << 20
    daemon = Daemon(pool="160M")
    values, into, told = objects(lambda i: i + 1, n, size), objects(lambda i: 0, n, size), {}
    both = {"kvpool": lambda: adapter(daemon.socket, size),
            "its files": lambda: fs.FSL2Adapter(fs.FSL2AdapterConfig.from_dict({"base_path": str(tmp_path)}))}
    try:
        for name, make in both.items():
            made, keys = make(), object_keys(n)
            took = [time.process_time()]
            assert store(made, keys, values)
            for _ in range(5):
                took.append(time.process_time())
                assert load(made, keys, into)[1] == [True] * n
            took.append(time.process_time())
            stored, *loads = [b - a for a, b in zip(took, took[1:])]
            assert all(bytes(obj.byte_array[:8]) == bytes([i + 1]) * 8 for i, obj in enumerate(into))
            told[name] = stored, min(loads)
            made.close()
    finally:
        daemon.close()
    tell_gain("LMCache, 16 objects of 4 MiB, CPU time: " + ", ".join(
        f"{name}: stored in {stored * 1e3:.0f} ms, found and loaded in {best * 1e3:.0f} ms (least of 5)"
        for name, (stored, best) in told.items()))
