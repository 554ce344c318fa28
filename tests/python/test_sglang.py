"""SGLang's dynamic storage backend on the pool, made by SGLang's own factory, over host memory as its host pools lay it out."""
import importlib.util
import sys
import types

import pytest

torch = pytest.importorskip("torch")
_spec = importlib.util.find_spec("sglang")
if _spec is None:
    pytest.skip("sglang is not installed", allow_module_level=True)

# Only the storage modules: the package's own __init__ loads all of SGLang, most of which wants a GPU.
if "sglang" not in sys.modules:
    package = types.ModuleType("sglang")
    package.__path__ = list(_spec.submodule_search_locations)
    sys.modules["sglang"] = package
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig, PoolTransfer  # noqa: E402
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory  # noqa: E402

from conftest import ONE_BLOCK, Daemon, attached, told_apart  # noqa: E402

LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 16, 4, 40


class HostPool:
    """kv_buffer, layouts and get_page_buffer_meta() as SGLang's MHATokenToKVPoolHost has them."""

    def __init__(self, layout="page_first", dtype=torch.float16, layers=LAYERS):
        self.layers, self.layout, self.dtype, self.page_size, self.size = layers, layout, dtype, PAGE, PAGE * PAGES
        shape = (2, layers, self.size, HEADS, DIM) if layout == "layer_first" else (2, self.size, layers, HEADS, DIM)
        self.kv_buffer = torch.zeros(shape, dtype=dtype)

    def page(self, index):
        at = slice(index * PAGE, (index + 1) * PAGE)
        return self.kv_buffer[:, :, at] if self.layout == "layer_first" else self.kv_buffer[:, at]

    def get_page_buffer_meta(self, indices):
        base, item = self.kv_buffer.data_ptr(), self.dtype.itemsize
        v_offset = self.layers * self.size * HEADS * DIM * item
        pointers = []
        for index in indices.tolist()[::PAGE]:
            if self.layout == "layer_first":
                for layer in range(self.layers):
                    k = base + (index + layer * self.size) * HEADS * DIM * item
                    pointers += [k, k + v_offset]
            else:
                k = base + index * self.layers * HEADS * DIM * item
                pointers += [k, k + v_offset]
        parts = PAGE * HEADS * DIM * item * (1 if self.layout == "layer_first" else self.layers)
        return pointers, [parts] * len(pointers)

    def get_data_page(self, index):
        return self.page(int(index) // PAGE).flatten()

    def get_dummy_flat_data_page(self):
        return torch.zeros(2 * self.layers * PAGE * HEADS * DIM, dtype=self.dtype)

    def fill(self, seed):
        self.kv_buffer.copy_(torch.randn(self.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)))


def own_pool(layout):
    """SGLang's class for such memory, as it makes it beside a GPU, but not pinned."""
    try:
        from sglang.srt.mem_cache import device_pool_info as info
        from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
    except ImportError as error:
        pytest.skip(f"SGLang's own host pools want more here: {error}")
    k, v = ([torch.zeros(2 * PAGE, HEADS, DIM, dtype=torch.float16) for _ in range(LAYERS)] for _ in "kv")
    pointers = [torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.uint64) for buffers in (k, v)]
    device = info.MHABufferInfo(
        buffers=info.KVBuffers(k=tuple(k), v=tuple(v), k_data_ptrs=pointers[0], v_data_ptrs=pointers[1],
                               layout=info.KVBufferLayout.NHD),
        page_size=PAGE, head_num=HEADS, head_dim=DIM, v_head_dim=DIM, dtype=torch.float16, device=torch.device("cpu"))
    return MHATokenToKVPoolHost(device, 2.0, 0, PAGE, layout, pin_memory=False, device="cpu", device_capacity_tokens=2 * PAGE,
                                start_layer=0, end_layer=LAYERS, host_token_capacity=PAGE * PAGES)


def indices(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def backend(daemon, pool, model="m", rank=0, size=1, **extra):
    extra = {"backend_name": "kvpool", "module_path": "kvpool.sglang", "class_name": "KvpoolHiCache", "interface_v1": 1,
             "socket": daemon if isinstance(daemon, str) else daemon.socket, "timeout": 20, **extra}
    config = HiCacheStorageConfig(tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
                                  is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True,
                                  model_name=model, extra_config=extra)
    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    made.on_host_pools_registered()
    if not isinstance(daemon, str):
        attached(made._client)  # on a busy machine that may take longer than the client waits when it is opened
    return made


KEYS = [f"{i:064x}" for i in range(12)]


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_pages_of_another_process_are_loaded_byte_for_byte(daemon, layout):
    first, second = HostPool(layout), HostPool(layout)
    first.fill(1)
    a, b = backend(daemon, first), backend(daemon, second)
    assert b.batch_exists(KEYS) == 0
    assert a.batch_set_v1(KEYS, indices(range(12))) == [True] * 12
    assert b.batch_exists(KEYS + ["none"]) == 12 and b.exists(KEYS[3]) and not b.exists("none")
    pages = list(range(20, 32))
    assert b.batch_get_v1(KEYS, indices(pages)) == [True] * 12
    for i, page in enumerate(pages):
        assert torch.equal(second.page(page), first.page(i))
    assert not second.page(5).any()
    a.close()
    b.close()


@pytest.mark.parametrize("layout", ["page_first", "layer_first", "page_first_direct"])
def test_pages_of_sglangs_own_host_pools_are_loaded_byte_for_byte(daemon, layout):
    first, second = own_pool(layout), own_pool(layout)
    first.kv_buffer.copy_(torch.randn(first.kv_buffer.shape, generator=torch.Generator().manual_seed(7)))
    second.kv_buffer.zero_()
    a, b = backend(daemon, first), backend(daemon, second)
    assert a.batch_set_v1(KEYS, indices(range(12))) == [True] * 12
    assert b.batch_exists(KEYS) == 12 and b.batch_get_v1(KEYS, indices(range(20, 32))) == [True] * 12
    for i in range(12):
        assert torch.equal(second.get_data_page((20 + i) * PAGE), first.get_data_page(i * PAGE))
    assert not second.get_data_page(5 * PAGE).any() and not second.get_data_page(33 * PAGE).any()
    a.close()
    b.close()


@pytest.mark.parametrize("layout", ["page_first", "layer_first"])
def test_the_pools_of_these_tests_lie_as_sglangs_own(layout):
    own, ours = own_pool(layout), HostPool(layout)
    ours.fill(8)
    own.kv_buffer.copy_(ours.kv_buffer)
    pages = indices([3, 4, 9])
    starts = [[pointer - pool.kv_buffer.data_ptr() for pointer in pool.get_page_buffer_meta(pages)[0]] for pool in (own, ours)]
    assert starts[0] == starts[1] and own.get_page_buffer_meta(pages)[1] == ours.get_page_buffer_meta(pages)[1]
    assert torch.equal(own.get_data_page(5 * PAGE), ours.get_data_page(5 * PAGE))
    assert own.get_dummy_flat_data_page().shape == ours.get_dummy_flat_data_page().shape


def test_a_missing_page_is_false_and_the_others_are_loaded(daemon):
    pool = HostPool()
    pool.fill(2)
    a = backend(daemon, pool)
    assert a.batch_set_v1(KEYS[:3] + KEYS[4:6], indices([0, 1, 2, 4, 5])) == [True] * 5
    assert a.batch_exists(KEYS[:6]) == 3
    assert a.batch_get_v1(KEYS[:6], indices(range(6, 12))) == [True, True, True, False, True, True]
    a.close()


def test_the_older_interface_gives_tensors(daemon):
    pool = HostPool()
    pool.fill(3)
    a = backend(daemon, pool, interface_v1=0)
    assert a.batch_set(KEYS[:4], [pool.get_data_page(i * PAGE) for i in range(4)])
    got = a.batch_get(KEYS[:5], [pool.get_dummy_flat_data_page() for _ in range(5)])
    assert got[4] is None
    for i in range(4):
        assert torch.equal(got[i], pool.get_data_page(i * PAGE))
    assert a.get("none", pool.get_dummy_flat_data_page()) is None
    assert a.set("one", pool.get_data_page(0)) and a.exists("one")
    a.close()


def test_other_models_ranks_layouts_and_types_share_nothing(daemon):
    pool = HostPool()
    a = backend(daemon, pool)
    assert all(a.batch_set_v1(KEYS, indices(range(12))))
    others = [backend(daemon, pool, model="other"), backend(daemon, pool, rank=1, size=2),
              backend(daemon, HostPool("layer_first")), backend(daemon, HostPool(dtype=torch.bfloat16)),
              backend(daemon, pool, model_id="finetune")]
    assert [other.batch_exists(KEYS) for other in others] == [0] * 5
    assert backend(daemon, HostPool()).batch_exists(KEYS) == 12


def test_another_version_finds_nothing(daemon, monkeypatch):
    pool = HostPool()
    assert all(backend(daemon, pool).batch_set_v1(KEYS, indices(range(12))))
    monkeypatch.setattr("kvpool.sglang._version", lambda: "another")
    assert backend(daemon, pool).batch_exists(KEYS) == 0


def test_a_pool_of_one_block_gives_that_page_or_none():
    daemon, found = Daemon(*ONE_BLOCK), 0
    try:
        first, second = HostPool(layers=1100), HostPool(layers=1100)
        first.fill(9)
        a, b = backend(daemon, first, timeout=1), backend(daemon, second, timeout=1)
        for i in range(4):
            a.batch_set_v1([KEYS[i]], indices([i]))
            there = b.batch_get_v1(KEYS[:4], indices(range(20, 24)))
            assert all(torch.equal(second.page(20 + k), first.page(k)) for k in range(4) if there[k])
            assert sum(there) <= 1 and not any(there[i + 1:])
            found += sum(there)
        assert found
        a.close()
        b.close()
    finally:
        daemon.close()


def test_two_engines_in_one_pool_are_told_apart(daemon):
    from kvpool.lmcache import NativeClient
    a, native = backend(daemon, HostPool()), NativeClient(chunk_bytes=16384, socket=daemon.socket)
    a.batch_set_v1(KEYS, indices(range(12)))
    told_apart(daemon, "sglang", "lmcache")
    native.close()
    a.close()


def test_several_pools_by_the_second_interface(daemon):
    kv, indexer = HostPool(), HostPool()
    kv.fill(4)
    indexer.fill(5)
    a = backend(daemon, kv)
    a.register_mem_host_pool_v2(kv, "kv")
    a.register_mem_host_pool_v2(indexer, "indexer")
    moves = [PoolTransfer(name="kv", keys=KEYS, host_indices=indices(range(12))),
             PoolTransfer(name="indexer", keys=KEYS[:8], host_indices=indices(range(8)))]
    assert a.batch_set_v2(moves) == {"kv": [True] * 12, "indexer": [True] * 8}
    found = a.batch_exists_v2(KEYS, [PoolTransfer(name="indexer", keys=KEYS)])
    assert found.kv_hit_pages == 8 and found.extra_pool_hit_pages == {"indexer": 8}
    back = [PoolTransfer(name="indexer", keys=KEYS[:8], host_indices=indices(range(20, 28)))]
    assert a.batch_get_v2(back) == {"indexer": [True] * 8}
    assert torch.equal(indexer.page(27), indexer.page(7))
    a.close()


def test_whatever_happens_nothing_is_raised(daemon, tmp_path):
    pool = HostPool()
    a = backend(daemon, pool)
    assert all(a.batch_set_v1(KEYS, indices(range(12))))
    daemon.kill()
    assert a.batch_get_v1(KEYS, indices(range(12))) == [True] * 12  # what is mapped is still read
    assert len(a.batch_set_v1(["x"] * 2, indices([0, 1]))) == 2
    assert a.batch_get_v1(["none"], indices([0])) == [False]
    assert a.batch_get_v1(KEYS, None) == [False] * 12  # misuse, too
    assert a.batch_set(KEYS, None) is False and a.batch_get(KEYS, None) == [None] * 12
    assert a.batch_get_v2([PoolTransfer(name="kv", keys=KEYS)]) == {"kv": [False] * 12}
    a.clear()
    daemon.start()
    nobody = backend(str(tmp_path / "nobody"), HostPool(), timeout=0.1)
    assert nobody.batch_exists(KEYS) == 0 and nobody.batch_get_v1(KEYS, indices(range(12))) == [False] * 12
    assert nobody.batch_set_v1(KEYS, indices(range(12))) == [False] * 12
    nobody.close()


def test_sglangs_threads_may_load_and_store_at_once(daemon):
    import threading
    pool = HostPool()
    pool.fill(6)
    a = backend(daemon, pool)
    assert all(a.batch_set_v1(KEYS, indices(range(12))))
    results = []

    def store():
        for i in range(30):
            results.append(all(a.batch_set_v1([f"s{i}-{k}" for k in range(4)], indices(range(4)))))

    def load():
        for _ in range(30):
            results.append(all(a.batch_get_v1(KEYS, indices(range(20, 32)))))

    threads = [threading.Thread(target=run) for run in (store, load, store, load)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and results == [True] * 120
    a.close()
