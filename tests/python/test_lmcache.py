"""What LMCache asks of a native connector; with LMCache's own adapter where it is installed."""
import select

import pytest

import kvpool
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


def test_lmcaches_own_adapter_stores_looks_up_and_loads(daemon):
    torch = pytest.importorskip("torch")
    adapters = pytest.importorskip("lmcache.v1.distributed.l2_adapters.native_plugin_l2_adapter")
    import time
    from lmcache.v1.distributed.api import ObjectKey
    from lmcache.v1.memory_management import MemoryFormat, MemoryObjMetadata, TensorMemoryObj

    def adapter():
        config = adapters.NativePluginL2AdapterConfig.from_dict({
            "module_path": "kvpool.lmcache", "class_name": "NativeClient",
            "adapter_params": {"chunk_bytes": 8192, "socket": daemon.socket}})
        return adapters._create_native_plugin_l2_adapter(config)

    def until(call):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            result = call()
            if result:
                return result
            time.sleep(0.005)
        raise AssertionError("no answer")

    def objects(fill):
        made = []
        for i in range(5):
            data = torch.full((8192,), fill(i), dtype=torch.uint8)
            made.append(TensorMemoryObj(data, MemoryObjMetadata(torch.Size([8192]), torch.uint8, 0, 8192, 1, 0,
                                                                MemoryFormat.BINARY), None))
        return made

    keys = [ObjectKey(chunk_hash=bytes([i]) * 32, model_name="m", kv_rank=0) for i in range(5)]
    first, second = adapter(), adapter()
    try:
        stored = objects(lambda i: i + 1)  # whoever submits keeps them alive until the task has ended
        task = first.submit_store_task(keys, stored)
        assert int(until(first.pop_completed_store_tasks)[task]) >= 0  # -1: not stored
        task = second.submit_lookup_and_lock_task(keys, {})
        assert until(lambda: second.query_lookup_and_lock_result(task)).popcount() == 5
        into = objects(lambda i: 0)
        task = second.submit_load_task(keys, into)
        assert until(lambda: second.query_load_result(task)).popcount() == 5
        for i, obj in enumerate(into):
            assert bytes(obj.byte_array) == bytes([i + 1]) * 8192
    finally:
        first.close()
        second.close()
