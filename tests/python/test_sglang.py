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

import kvpool  # noqa: E402

LAYERS, HEADS, DIM, PAGE, PAGES = 3, 2, 16, 4, 40


class HostPool:
    """kv_buffer, layouts and get_page_buffer_meta() as SGLang's MHATokenToKVPoolHost has them."""

    def __init__(self, layout="page_first", dtype=torch.float16):
        self.layout, self.dtype, self.page_size, self.size = layout, dtype, PAGE, PAGE * PAGES
        shape = (2, LAYERS, self.size, HEADS, DIM) if layout == "layer_first" else (2, self.size, LAYERS, HEADS, DIM)
        self.kv_buffer = torch.zeros(shape, dtype=dtype)

    def page(self, index):
        at = slice(index * PAGE, (index + 1) * PAGE)
        return self.kv_buffer[:, :, at] if self.layout == "layer_first" else self.kv_buffer[:, at]

    def get_page_buffer_meta(self, indices):
        base, item = self.kv_buffer.data_ptr(), self.dtype.itemsize
        v_offset = LAYERS * self.size * HEADS * DIM * item
        pointers = []
        for index in indices.tolist()[::PAGE]:
            if self.layout == "layer_first":
                for layer in range(LAYERS):
                    k = base + (index + layer * self.size) * HEADS * DIM * item
                    pointers += [k, k + v_offset]
            else:
                k = base + index * LAYERS * HEADS * DIM * item
                pointers += [k, k + v_offset]
        parts = PAGE * HEADS * DIM * item * (1 if self.layout == "layer_first" else LAYERS)
        return pointers, [parts] * len(pointers)

    def get_data_page(self, index):
        return self.page(int(index) // PAGE).flatten()

    def get_dummy_flat_data_page(self):
        return torch.zeros(2 * LAYERS * PAGE * HEADS * DIM, dtype=self.dtype)

    def fill(self, seed):
        self.kv_buffer.copy_(torch.randn(self.kv_buffer.shape, generator=torch.Generator().manual_seed(seed)))


def indices(pages):
    return torch.cat([torch.arange(page * PAGE, (page + 1) * PAGE) for page in pages])


def backend(daemon, pool, model="m", rank=0, size=1, **extra):
    extra = {"backend_name": "kvpool", "module_path": "kvpool.sglang", "class_name": "KvpoolHiCache", "interface_v1": 1,
             "socket": daemon if isinstance(daemon, str) else daemon.socket, "timeout": 5, **extra}
    config = HiCacheStorageConfig(tp_rank=rank, tp_size=size, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
                                  is_mla_model=False, enable_storage_metrics=False, is_page_first_layout=True,
                                  model_name=model, extra_config=extra)
    made = StorageBackendFactory.create_backend("dynamic", config, pool)
    made.register_mem_pool_host(pool)
    made.on_host_pools_registered()
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
