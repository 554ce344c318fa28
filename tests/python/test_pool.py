"""The package against a real daemon."""
import errno
import gc
import math
import multiprocessing
import os
import select
import subprocess
import sys
import time

import pytest

import kvpool
from conftest import attached

KIB = 1024


def test_a_block_is_read_back_in_place(ns):
    key = ns.key("a")
    assert ns.get(key) is None
    assert ns.put(key, b"abc", bytearray(b"def"), timeout=5)
    view = ns.get(key)
    assert bytes(view.data) == b"abcdef" and len(view) == 6 and view.hit == kvpool.Hit.RAM
    assert view.data.readonly
    assert ns.match([key, ns.key("b")]) == 1
    assert ns.states([ns.key("b"), key]) == [kvpool.Hit.MISS, kvpool.Hit.RAM]


def test_a_pin_is_held_as_long_as_a_buffer_of_it(daemon, client, ns):
    ns.put(ns.key("a"), b"x" * 4096, timeout=5)
    view = ns.get(ns.key("a"))
    data = view.data
    part = data[10:20]
    view.release()
    with pytest.raises(ValueError, match="released"):
        view.data
    del view, data
    gc.collect()
    assert _held(daemon, 1)
    assert bytes(part) == b"x" * 10
    part.release()
    del part
    gc.collect()
    assert _held(daemon, 0)


def _held(daemon, n, seconds=10):
    import json
    until = time.monotonic() + seconds
    while True:
        held = sum(row["counters"]["held"] for row in json.loads(daemon.kvctl("stats", "--json").stdout)["namespaces"])
        if held == n or time.monotonic() > until:
            return held == n
        time.sleep(0.05)


def test_numpy_sees_the_pool_and_cannot_write_there(ns):
    numpy = pytest.importorskip("numpy")
    values = numpy.arange(1024, dtype="float32")
    assert ns.put(ns.key("n"), values, timeout=5)
    view = ns.get(ns.key("n"))
    seen = numpy.asarray(view).view("float32")
    assert (seen == values).all() and seen.ctypes.data == view.address and not seen.flags.writeable
    with pytest.raises(ValueError):
        seen[0] = 1
    assert numpy.frombuffer(view.data, "float32")[5] == 5


def test_blocks_are_written_in_place_and_used_up_by_publishing(ns):
    block = ns.reserve(1, timeout=5)[0]
    block.data[:4] = b"head"
    part = block.data[:4]
    with pytest.raises(BufferError, match="still exist"):
        ns.publish([(ns.key("w"), block, 4)])
    part.release()
    assert ns.publish([(ns.key("w"), block, 4)]) == [kvpool.PublishResult.STORED]
    with pytest.raises(ValueError, match="published"):
        block.data
    assert bytes(ns.get(ns.key("w")).data) == b"head"
    other = ns.reserve(1, timeout=5)[0]
    assert ns.publish([(ns.key("w"), other, 4)]) == [kvpool.PublishResult.EXISTS]


def test_a_parent_nobody_knows_is_no_exception(ns):
    assert not ns.put(ns.key("child"), b"x", parent=ns.key("nobody"), timeout=5)


def test_chains_name_their_beginning(ns):
    tokens = list(range(64))
    keys = ns.hash_chain(tokens)
    assert len(keys) == 4 and len(set(keys)) == 4
    assert ns.hash_chain(tokens[:40]) == keys[:2]
    assert ns.hash_chain(tokens[32:], parent=keys[1]) == keys[2:]
    assert ns.hash_chain(tokens, extra=b"adapter") != keys
    from array import array
    assert ns.hash_chain(array("i", tokens)) == keys


def test_what_is_not_in_memory_comes_back_from_the_store(daemon, client, ns):
    keys = [ns.key(f"{i}") for i in range(1500)]  # 4 MiB hold fewer
    for i, key in enumerate(keys):
        assert ns.put(key, i.to_bytes(8, "little") * 512, timeout=10)
    assert daemon.kvctl("drain", "--deadline", "20").returncode == 0
    hits = {kvpool.Hit.RAM: 0, kvpool.Hit.SPILL: 0}
    for i, key in enumerate(keys):
        view = ns.get(key, timeout=10)
        assert bytes(view.data) == i.to_bytes(8, "little") * 512
        hits[view.hit] += 1
    assert hits[kvpool.Hit.SPILL] > 0 and sum(hits.values()) == 1500


def test_a_daemon_that_dies_and_comes_back_is_no_exception(daemon, client, ns):
    ns.put(ns.key("a"), b"before", timeout=5)
    view = ns.get(ns.key("a"))
    daemon.kill()
    assert bytes(view.data) == b"before"
    assert bytes(ns.get(ns.key("a")).data) == b"before"
    assert ns.get(ns.key("b"), timeout=0.1) is None
    daemon.start()
    attached(client)
    assert bytes(ns.get(ns.key("a")).data) == b"before"
    assert ns.put(ns.key("b"), b"after", timeout=5)
    view.release()


def test_without_a_daemon_nothing_is_found_and_nothing_raised(tmp_path):
    with kvpool.Client(str(tmp_path / "nobody"), connect_timeout=0.1) as client:
        ns = client.namespace("m", kvpool.Descriptor.opaque("test/1", 4096, 16))
        assert client.state == kvpool.State.DETACHED and client.epoch == 0
        assert ns.get(b"\1" * 16, timeout=0.05) is None and not ns.put(b"\1" * 16, b"x", timeout=0.05)
        assert ns.prefetch([b"\1" * 16]) == 0
        with pytest.raises(kvpool.Error) as error:
            client.ping(0.1)
        assert error.value.errno == errno.ENOTCONN


def test_another_descriptor_is_another_namespace(client, ns):
    ns.put(ns.key("a"), b"x", timeout=5)
    other = client.namespace("m", kvpool.Descriptor.opaque("test/2", 4096, 16))
    assert other.id != ns.id and other.differs == "engine"
    assert other.get(other.key("a")) is None
    with pytest.raises(kvpool.Error) as error:
        client.namespace("m", kvpool.Descriptor.opaque("test/3", 4096, 16), must_exist=True)
    assert error.value.errno == errno.EPROTOTYPE and "engine" in str(error.value)


def test_descriptors_say_what_is_wrong_with_them():
    good = kvpool.Descriptor.model(kvpool.Layout.HND, 16, 2, 4, 64, kvpool.Type.F16, model=b"hash")
    assert good.block_bytes == 2 * 2 * 4 * 16 * 64 * 2
    assert good.differs(kvpool.Descriptor.model(kvpool.Layout.HND, 16, 2, 4, 64, kvpool.Type.BF16, model=b"hash")) == "type_k"
    odd = kvpool.Descriptor.model(kvpool.Layout.HND, 16, 2, 4, 64, kvpool.Type.F16)
    odd.raw.layers[1].kv_heads = 5000
    with pytest.raises(ValueError, match="layers .*1 to 4096"):
        odd.block_bytes
    with pytest.raises(ValueError, match="block_tokens"):
        kvpool.Descriptor.model(kvpool.Layout.HND, 0, 2, 4, 64, kvpool.Type.F16).block_bytes
    with pytest.raises(ValueError, match="32 bytes"):
        kvpool.Descriptor.opaque("e", 4096, 16, model=b"x" * 33)


def test_a_number_that_makes_no_sense_is_refused_by_the_name_of_its_argument(daemon, client, ns):
    with client.queue() as queue:
        for name, wrong in (("block_bytes: 0", lambda: kvpool.Descriptor.opaque("a", block_bytes=0, block_tokens=1)),
                            ("block_bytes: -4", lambda: kvpool.Descriptor.opaque("a", block_bytes=-4, block_tokens=1)),
                            ("block_tokens: 0", lambda: kvpool.Descriptor.opaque("a", block_bytes=1, block_tokens=0)),
                            ("connect_timeout: -1", lambda: kvpool.Client(daemon.socket, connect_timeout=-1)),
                            ("n: -1", lambda: ns.reserve(-1)), ("most: -1", lambda: ns.events().read(most=-1)),
                            ("most: -1", lambda: queue.poll(most=-1))):
            with pytest.raises(ValueError, match=f"^{name}, it must be "):
                wrong()


def test_what_c_would_cut_off_is_refused(client, ns):
    opaque = kvpool.Descriptor.opaque("test/1", block_bytes=4096, block_tokens=16)
    for wrong in (lambda: client.namespace("a\0b", opaque), lambda: kvpool.Client("/tmp/a\0b"), lambda: kvpool.Client(name="a\0b"),
                  lambda: kvpool.Descriptor.opaque("a\0b", block_bytes=1, block_tokens=1)):
        with pytest.raises(ValueError, match="zero byte"):
            wrong()
    sequence = ns.sequence()
    for wrong in (lambda: kvpool.Descriptor.opaque("a", block_bytes=1, block_tokens=2**32 + 16),
                  lambda: kvpool.Descriptor.opaque("a", block_bytes=-1, block_tokens=16),
                  lambda: kvpool.Descriptor.model(kvpool.Layout.HND, 16, 2, 2**32 + 1, 8, kvpool.Type.F16),
                  lambda: ns.sequence(window=2**32 + 5), lambda: ns.sequence(window=-1),
                  lambda: sequence.truncate(2**64), lambda: sequence.commit(-1), lambda: client.queue(2**32),
                  lambda: client.namespace("a", opaque, mode=2**32 + 0o600), lambda: kvpool.Client(stock_blocks=-1),
                  lambda: ns.publish([(ns.key("a"), ns.reserve(1, timeout=5)[0], 2**64)])):
        with pytest.raises(ValueError, match="it must be [01] to"):
            wrong()
    for keys in ([b"x" * 8, b"y" * 24], [b"", b"z" * 32]):  # as long as two, together
        with pytest.raises(ValueError, match="a key is 16 bytes"):
            ns.match(keys)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_queue_moves_batches_between_buffers(client, ns, threads):
    keys = [ns.key(f"q{i}") for i in range(50)]
    with client.queue(threads) as queue:
        out = [[bytes([i]) * 100, bytes([i + 1]) * i] for i in range(50)]
        put = queue.put(ns, keys, out, timeout=10)
        (done,) = queue.poll(10)
        assert done.tag == put and done.ok
        into = [[bytearray(50), bytearray(200)] for _ in range(51)]
        get = queue.get(ns, keys + [ns.key("nobody")], into, timeout=1)
        (done,) = queue.poll(10)
        assert done.tag == get and done.statuses == [kvpool.Status.DONE] * 50 + [kvpool.Status.MISS]
        for i in range(50):
            assert done.used_bytes[i] == 100 + i
            assert bytes(into[i][0] + into[i][1])[:100 + i] == bytes([i]) * 100 + bytes([i + 1]) * i
        if threads:
            queue.exists(ns, keys)
            assert select.select([queue], [], [], 10)[0]
            assert queue.poll()[0].ok
            assert not select.select([queue], [], [], 0)[0]


def test_closing_in_any_order_lets_go_once(daemon):
    client = kvpool.Client(daemon.socket, connect_timeout=10)
    ns = client.namespace("m", kvpool.Descriptor.opaque("test/1", 4096, 16))
    queue = client.queue()
    assert ns.put(ns.key("a"), b"still here", timeout=5)
    data = ns.get(ns.key("a")).data
    block = ns.reserve(1, timeout=5)[0]
    client.close()
    ns.close()
    queue.close()
    assert bytes(data) == b"still here"
    with pytest.raises(ValueError, match="closed"):
        client.state
    del data, block
    gc.collect()
    assert _sessions(daemon, 0)


def test_a_batch_keeps_what_it_needs_until_it_has_ended(client):
    ns = client.namespace("q", kvpool.Descriptor.opaque("test/1", 1 << 16, 16))
    keys = [ns.key(f"{i}") for i in range(40)]
    with client.queue(2) as queue:
        queue.put(ns, keys, [bytes(1 << 16)] * 40, timeout=10)
        queue.get(ns, keys, [bytearray(1 << 16) for _ in keys], timeout=10)
        ns.close()
        del ns
        gc.collect()
        done = queue.poll(10)
        assert {d.op for d in done + (queue.poll(10) if len(done) < 2 else [])} == {"put", "get"}


def _sessions(daemon, n, seconds=10):
    import json
    until = time.monotonic() + seconds
    while True:
        sessions = json.loads(daemon.kvctl("stats", "--json").stdout)["counters"]["sessions"]
        if sessions == n or time.monotonic() > until:
            return sessions == n
        time.sleep(0.05)


def _child(ns, client, view, block, answers):
    seen = []
    for call in (lambda: ns.get(b"\1" * 16), lambda: client.ping(1), lambda: ns.reserve(1), lambda: view.data,
                 lambda: view.lost, lambda: block.data):
        try:
            call()
            seen.append(0)
        except kvpool.Error as error:
            seen.append(error.errno)
    view.release()
    answers.put(seen)


def test_a_forked_child_is_detached_and_takes_nothing_of_its_parents(daemon, client, ns):
    ns.put(ns.key("a"), b"x" * 64, timeout=5)
    view = ns.get(ns.key("a"))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    block = ns.reserve(1, timeout=5)[0]
    child = context.Process(target=_child, args=(ns, client, view, block, answers))
    child.start()
    assert answers.get(timeout=30) == [errno.ENOTCONN] * 6
    child.join(30)
    assert child.exitcode == 0
    assert bytes(view.data) == b"x" * 64 and not view.lost
    assert _held(daemon, 1)
    assert ns.put(ns.key("b"), b"y", timeout=5)


def test_the_death_of_a_parent_frees_its_pins_though_its_child_lives(daemon):
    program = """
import os, sys, time
sys.path.insert(0, sys.argv[2])
import kvpool
client = kvpool.Client(sys.argv[1], connect_timeout=10)
ns = client.namespace("m", kvpool.Descriptor.opaque("test/1", 4096, 16))
assert ns.put(ns.key("a"), b"x", timeout=5)
view = ns.get(ns.key("a"))
if os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(os.getpid(), flush=True)
time.sleep(60)
"""
    path = os.path.dirname(os.path.dirname(kvpool.__file__))
    process = subprocess.Popen([sys.executable, "-c", program, daemon.socket, path], stdout=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        process.stdout.readline()
        assert _held(daemon, 1)
        process.kill()
        assert _held(daemon, 0)
        assert _sessions(daemon, 0)
    finally:
        os.killpg(process.pid, 9)
        process.wait()


def test_the_example_of_the_readme_finds_in_its_second_run_what_its_first_one_stored(daemon, client, tmp_path):
    readme = open(os.path.join(os.path.dirname(os.path.dirname(kvpool.__file__)), "README.md")).read()
    program = readme.split("```python\n")[1].split("```")[0]
    environment = dict(os.environ, KVPOOL_SOCKET=daemon.socket,
                       PYTHONPATH=os.path.dirname(os.path.dirname(kvpool.__file__)))

    def run():
        return subprocess.run([sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True).stdout

    environment["KVPOOL_SOCKET"] = str(tmp_path / "nobody")
    assert run() == "not stored: DETACHED\n"
    environment["KVPOOL_SOCKET"] = daemon.socket
    more = [client.namespace(f"other-{i}", kvpool.Descriptor.opaque("test/1", 1 << 16, 16)) for i in range(8)]
    for other in more:  # more namespaces than the pool's four slabs: the example's waits for one of theirs
        assert other.put(other.key("a"), b"x" * 1000, timeout=60)
    assert run() == "" and run() == "4 b'KVKV'\n" * 4


def test_a_queue_that_is_not_made_by_its_client_is_refused_by_the_name_of_the_way(client, ns):
    for wrong, way in ((lambda: kvpool.Queue(client), r"client\.queue\(\)"), (lambda: kvpool.Namespace(client, "m"), r"client\.namespace\("),
                       (lambda: kvpool.Sequence(client, ns), r"ns\.sequence\(\)")):
        with pytest.raises(TypeError, match=way):
            wrong()
    raised = []
    hook, sys.unraisablehook = sys.unraisablehook, raised.append
    try:
        with pytest.raises(TypeError):
            kvpool.Queue(client)
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert raised == []


def test_an_infinite_timeout_is_no_limit_and_what_is_no_number_is_refused(daemon, client, ns):
    forever = math.inf
    key = ns.key("a")
    assert ns.put(key, b"abc", timeout=forever)
    assert len(ns.reserve(1, timeout=forever)) == 1
    assert bytes(ns.acquire([key], timeout=forever)[0].data) == b"abc"
    client.ping(forever)
    with client.queue() as queue:
        queue.delete(ns, [key], timeout=forever)
        assert queue.poll(forever)[0].ok
    kvpool.Client(daemon.socket, connect_timeout=forever).close()
    assert ns.get(key, timeout=-forever) is None
    for call in (lambda: ns.reserve(1, math.nan), lambda: ns.acquire([key], math.nan), lambda: client.ping(math.nan),
                 lambda: kvpool.Client(daemon.socket, connect_timeout=math.nan)):
        with pytest.raises(ValueError, match="math.inf"):
            call()


def test_private_blocks_are_always_given_and_never_published(client, ns, tmp_path):
    with kvpool.Client(str(tmp_path / "nobody"), connect_timeout=0.1) as alone:
        other = alone.namespace("m", kvpool.Descriptor.opaque("test/1", 4096, 16))
        assert other.reserve(3) == []
        blocks = other.reserve(3, private=True)
        assert len(blocks) == 3
        blocks[0].data[:2] = b"ab"
        assert other.publish([(other.key("a"), blocks[0], 2)]) == [kvpool.PublishResult.REJECTED]
        assert bytes(blocks[0].data[:2]) == b"ab"


def test_importing_it_needs_no_numpy_and_no_torch():
    program = "import sys; sys.path.insert(0, sys.argv[1]); import kvpool; " \
              "assert not {'numpy', 'torch'} & set(sys.modules)"
    path = os.path.dirname(os.path.dirname(kvpool.__file__))
    subprocess.run([sys.executable, "-c", program, path], check=True)


def test_attention_reads_views_and_arrays_in_place(client):
    numpy = pytest.importorskip("numpy")
    from kvpool import attention
    heads, kv_heads, dim, tokens = 4, 2, 32, 40
    ns = client.namespace("a", kvpool.Descriptor.model(kvpool.Layout.HND, 16, 2, kv_heads, dim, kvpool.Type.F32))
    random = numpy.random.default_rng(1)
    k, v = (random.standard_normal((2, tokens, kv_heads, dim), dtype="float32") for _ in range(2))
    q = random.standard_normal((3, heads, dim), dtype="float32")
    keys, parent = [], None
    for at in range(0, 48, 16):
        block = ns.reserve(1, timeout=5)[0]
        for layer in range(2):
            attention.put(ns, layer, block, 0, k[layer, at:at + 16], v[layer, at:at + 16])
        keys.append(ns.key(f"{at}"))
        assert ns.publish([(keys[-1], block, 0, parent)]) == [kvpool.PublishResult.STORED]
        parent = keys[-1]
    views = ns.acquire(keys)
    assert len(views) == 3
    out = numpy.zeros((3, heads, dim), dtype="float32")
    attention.attend(ns, 1, q, views, tokens, out, n_q_heads=heads)
    for row in range(3):
        seen = tokens - 3 + row + 1
        for head in range(heads):
            z = k[1, :seen, head // 2].astype("float64") @ q[row, head] / dim ** 0.5
            w = numpy.exp(z - z.max())
            want = (w / w.sum()) @ v[1, :seen, head // 2]
            assert numpy.abs(out[row, head] - want).max() < 1e-5
    with pytest.raises(ValueError, match="out"):
        attention.attend(ns, 1, q, views, tokens, out[:2], n_q_heads=heads)


def test_attention_takes_no_blocks_of_another_namespace_and_no_other_numbers(client):
    numpy = pytest.importorskip("numpy")
    from kvpool import attention
    large, small = (client.namespace(name, kvpool.Descriptor.model(kvpool.Layout.HND, tokens, 1, 2, 32, kvpool.Type.F32))
                    for name, tokens in (("large", 64), ("small", 16)))
    rows = numpy.ones((64, 2, 32), dtype="float32")
    q, out = numpy.ones((1, 2, 32), dtype="float32"), numpy.zeros((1, 2, 32), dtype="float32")
    with small.reserve(1, timeout=5)[0] as block, small.sequence() as sequence:
        with pytest.raises(ValueError, match="block: of another namespace than large"):
            attention.put(large, 0, block, 0, rows, rows)
        attention.put(small, 0, block, 0, rows[:16], rows[:16])
        assert small.publish([(small.key("a"), block)]) == [kvpool.PublishResult.STORED]
        sequence.append(range(16))
        for blocks in (small.acquire([small.key("a")], timeout=5), sequence):
            with pytest.raises(ValueError, match="blocks: of another namespace than large"):
                attention.attend(large, 0, q, blocks, 16, out, n_q_heads=2)
        again = client.namespace("small", kvpool.Descriptor.model(kvpool.Layout.HND, 16, 1, 2, 32, kvpool.Type.F32))
        views = small.acquire([small.key("a")], timeout=5)
        attention.attend(again, 0, q, views, 16, out, n_q_heads=2)  # another handle of the same one
        assert (out == 1).all()
        with pytest.raises(ValueError, match="float32 is needed"):  # the bytes of two rows
            attention.attend(small, 0, q.astype("float64"), views, 16, numpy.zeros((2, 2, 32), dtype="float32"), n_q_heads=2)
        for heads in (0, -1, 2**32 + 2):
            with pytest.raises(ValueError, match="n_q_heads"):
                attention.attend(small, 0, q, views, 16, out, n_q_heads=heads)


def test_a_layer_that_stores_no_v_takes_it_from_k(client):
    numpy = pytest.importorskip("numpy")
    from kvpool import attention
    heads, dim, dim_v, tokens = 4, 40, 32, 37
    latent = kvpool.Descriptor.model(kvpool.Layout.TILED, 16, 1, 1, dim, kvpool.Type.F32)
    latent.raw.layers[0].dim_v = 0
    ns = client.namespace("latent", latent)
    random = numpy.random.default_rng(2)
    k = random.standard_normal((tokens, 1, dim), dtype="float32")
    q = random.standard_normal((1, heads, dim), dtype="float32")
    seq = ns.sequence()
    seq.append(range(tokens))
    attention.put_sequence(seq, 0, 0, k)
    out = numpy.zeros((1, heads, dim_v), dtype="float32")
    attention.attend(ns, 0, q, seq, tokens, out, n_q_heads=heads, dim_v=dim_v)
    for head in range(heads):
        z = k[:, 0].astype("float64") @ q[0, head] / dim ** 0.5
        w = numpy.exp(z - z.max())
        assert numpy.abs(out[0, head] - (w / w.sum()) @ k[:, 0, :dim_v]).max() < 1e-5
    with pytest.raises(ValueError, match="v: the layer stores none"):
        attention.put_sequence(seq, 0, 0, k, k)
    with pytest.raises(ValueError, match="dim_v"):
        attention.attend(ns, 0, q, seq, tokens, out, n_q_heads=heads, dim_v=dim + 1)
    plain = client.namespace("plain", kvpool.Descriptor.model(kvpool.Layout.TILED, 16, 1, 1, dim, kvpool.Type.F32))
    with pytest.raises(ValueError, match="v: the layer stores V"):
        attention.put(plain, 0, plain.reserve(1, private=True)[0], 0, k[:16])


def test_deleted_blocks_are_gone_and_cleared_ones_too(ns):
    keys = [ns.key(f"{i}") for i in range(8)]
    for key in keys:
        assert ns.put(key, b"x" * 4096, timeout=5)
    view = ns.get(keys[0])
    assert ns.delete(keys[:4], timeout=2) == 3
    assert ns.states(keys)[:4] == [kvpool.Hit.RAM] + [kvpool.Hit.MISS] * 3
    assert ns.touch(keys) == 5
    assert ns.request(keys, kvpool.Hint.CONTINUES) is None
    assert ns.stats().ram_blocks == 5 and ns.stats().stored == 8
    assert ns.clear(timeout=4) == 1
    view.release()
    del view
    gc.collect()
    assert ns.clear() == 0 and ns.stats().ram_blocks == 0


def test_a_queue_deletes(client, ns):
    keys = [ns.key(f"{i}") for i in range(8)]
    ns.put(keys[0], b"x" * 4096, timeout=5)
    with client.queue() as queue:
        tag = queue.delete(ns, keys, timeout=5)
        done = queue.poll(timeout=20)
        assert done[0].tag == tag and done[0].op == "delete" and done[0].ok
    assert ns.match(keys) == 0


def test_events_tell_what_comes_and_goes(ns):
    events = ns.events()
    assert [event.kind for event in events.read(timeout=5)] == [kvpool.EventKind.GAP]
    a, b = ns.key("a"), ns.key("b")
    assert ns.put(a, b"x", timeout=5) and ns.put(b, b"y", parent=a, timeout=5)
    ns.delete([b], timeout=5)
    ns.clear()
    got = events.read(timeout=5)
    kinds = kvpool.EventKind
    assert [(event.kind, event.key) for event in got[:3]] == [(kinds.STORED, a), (kinds.STORED, b), (kinds.REMOVED, b)]
    assert got[1].parent == a and got[0].parent is None and got[0].tier == kvpool.Hit.RAM
    assert got[3].kind == kinds.CLEARED and len(got) == 4
    assert [event.seq for event in got] == list(range(got[0].seq, got[0].seq + 4))
    assert events.read() == []


def test_the_layers_of_a_block_come_back_one_by_one(daemon, client):
    layers, block = 4, 64
    shape = kvpool.Descriptor.model(kvpool.Layout.HND, block, layers, 2, 64, kvpool.Type.F16)
    ns = client.namespace("layers", shape, layers=True)
    each = ns.block_bytes // layers
    keys = [ns.key(f"block {i}") for i in range(12)]
    for i, key in enumerate(keys):
        assert ns.put(key, *(bytes([16 * layer + i]) * each for layer in range(layers)), timeout=5)
    view = ns.get(keys[0])
    assert view.layers_ready == layers and view.wait_layer(layers - 1)
    with pytest.raises(kvpool.Error) as refused:
        view.wait_layer(layers)
    assert refused.value.errno == errno.EINVAL
    view.release()
    assert daemon.kvctl("drain").returncode == daemon.kvctl("evict").returncode == 0
    views = ns.acquire(keys, timeout=10, layers=True)
    assert views and all(view.hit == kvpool.Hit.SPILL for view in views)
    for i, view in enumerate(views):
        for layer in range(layers):
            assert view.wait_layer(layer, timeout=10) and view.layers_ready > layer
            assert bytes(view.data[layer * each:(layer + 1) * each]) == bytes([16 * layer + i]) * each


def test_a_namespace_says_how_its_blocks_lie_in_the_store(daemon, client):
    shape = kvpool.Descriptor.opaque("test/1", block_bytes=65536, block_tokens=16)
    for name, compress in (("packed", True), ("plain", False)):
        ns = client.namespace(name, shape, compress=compress)
        assert ns.put(ns.key("a"), bytes(ns.block_bytes), timeout=5)
    assert daemon.kvctl("drain").returncode == 0
    said = daemon.kvctl("ns").stdout
    assert "spilled compressed; 1 blocks so far" in said.split("packed  id")[1].split("\n\n")[0], said
    assert "compressed" not in said.split("plain  id")[1].split("\n\n")[0], said


def test_what_is_printed_of_them_says_what_they_are(client, ns):
    ns.put(ns.key("a"), b"abc", timeout=5)
    view, block, queue = ns.get(ns.key("a")), ns.reserve(1, timeout=5)[0], client.queue()
    assert repr(view) == "<kvpool view, RAM, 3 bytes>" and repr(block) == "<kvpool block, 4096 bytes>"
    assert repr(ns) == "<kvpool namespace m>" and not ns.closed
    view.release()
    block.abandon()
    queue.close()
    assert "released" in repr(view) and "given back" in repr(block)
    assert repr(queue) == "<kvpool queue, closed>" and queue.closed
    with pytest.raises(ValueError, match="this queue is closed"):
        queue.poll()


def test_a_block_is_given_back_at_the_end_of_its_with(daemon, ns):
    with pytest.raises(KeyError):
        with ns.reserve(1, timeout=5)[0] as block:
            block.data[:1] = b"x"
            raise KeyError
    with pytest.raises(ValueError, match="given back"):
        block.data
    with ns.reserve(1, timeout=5)[0] as block:
        block.data[:1] = b"y"
        assert ns.publish([(ns.key("y"), block, 1)]) == [kvpool.PublishResult.STORED]
    assert bytes(ns.get(ns.key("y")).data) == b"y"
