"""transformers on the pool: the ids of a run without it, from blocks that are neither computed again nor copied."""
import copy
import inspect
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM  # noqa: E402

import kvpool  # noqa: E402
from kvpool import hf  # noqa: E402
from conftest import ONE_BLOCK, Daemon, attached, tell_gain, told_apart  # noqa: E402

PROMPT = 150
STEPS = 24
BLOCK = 16
CACHE = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


def make_model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=8,
                         num_key_value_heads=4, max_position_embeddings=1024, eos_token_id=None, bos_token_id=None,
                         pad_token_id=0)
    return LlamaForCausalLM(config).to(dtype).eval()


def prompt(seed=1, n=PROMPT):
    return torch.randint(1, 512, (1, n), generator=torch.Generator().manual_seed(seed))


def generate(model, ids, cache):
    with torch.no_grad():
        return model.generate(ids, **{CACHE: cache}, max_new_tokens=STEPS, do_sample=False,
                              attention_mask=torch.ones_like(ids))[0].tolist()


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def pooled(model):
    other = copy.deepcopy(model)
    hf.use(other)
    return other


@pytest.fixture
def pool(client, pooled):
    with hf.namespace(client, "m", pooled, block_tokens=BLOCK) as ns:
        yield ns


def run(ns, model, ids, timeout=5):
    with hf.PoolCache(ns, model, ids, timeout=timeout) as cache:
        tokens = generate(model, ids, cache)
        return tokens, cache.reused, cache.computed


def test_the_ids_are_those_of_a_run_without_a_pool(model, pooled, pool):
    want = generate(model, prompt(), DynamicCache())
    cold = run(pool, pooled, prompt())
    assert cold == (want, 0, PROMPT + STEPS - 1)
    warm = run(pool, pooled, prompt())
    assert warm[0] == want and warm[1] == (PROMPT - 1) // BLOCK * BLOCK and warm[2] == PROMPT + STEPS - 1 - warm[1]


def test_another_ending_reuses_the_shared_beginning_only(model, pooled, pool):
    run(pool, pooled, prompt())
    other = torch.cat([prompt()[:, :100], prompt(9, 40)], dim=1)
    tokens, reused, _ = run(pool, pooled, other)
    assert reused == 96 and tokens == generate(model, other, DynamicCache())


def test_the_answer_is_reused_by_the_next_turn(pooled, pool, model):
    first, _, _ = run(pool, pooled, prompt())
    turn = torch.cat([torch.tensor([first]), prompt(5, 20)], dim=1)
    tokens, reused, _ = run(pool, pooled, turn)
    assert reused == (PROMPT + STEPS - 1) // BLOCK * BLOCK and tokens == generate(model, turn, DynamicCache())


def test_nothing_that_was_reused_is_copied(client, pooled, pool):
    run(pool, pooled, prompt())
    before = client.counts().copied_bytes
    run(pool, pooled, prompt())
    assert client.counts().copied_bytes == before


def test_other_weights_find_nothing(client, pooled, pool):
    run(pool, pooled, prompt())
    other = make_model(seed=7)
    want = generate(other, prompt(), DynamicCache())
    hf.use(other)
    ns = hf.namespace(client, "m", other, block_tokens=BLOCK)
    assert ns.differs == "model"
    assert run(ns, other, prompt()) == (want, 0, PROMPT + STEPS - 1)


def test_another_type_or_version_finds_nothing(client, model, pooled, pool, monkeypatch):
    run(pool, pooled, prompt())
    half = copy.deepcopy(model).to(torch.bfloat16)
    want = generate(half, prompt(), DynamicCache())
    hf.use(half)
    tokens, reused, _ = run(hf.namespace(client, "m", half, block_tokens=BLOCK), half, prompt())
    assert reused == 0 and len(tokens) == len(want)
    monkeypatch.setattr(hf.transformers, "__version__", "another")
    ns = hf.namespace(client, "m", pooled, block_tokens=BLOCK)
    assert ns.differs == "engine" and run(ns, pooled, prompt())[1] == 0


def test_a_pool_of_one_block_is_still_right(model, pooled):
    daemon, prompts = Daemon(*ONE_BLOCK), [prompt(seed, 400) for seed in (1, 2, 1)]
    try:
        with kvpool.Client(daemon.socket, connect_timeout=10) as client, \
                hf.namespace(client, "m", pooled, block_tokens=384) as ns:
            assert ns.block_bytes > 1 << 19
            for ids in prompts:
                want = generate(model, ids, DynamicCache())
                for _ in range(2):
                    tokens, reused, _ = run(ns, pooled, ids, 1)
                    assert tokens == want and reused in (0, 384)
            assert reused == 384
    finally:
        daemon.close()


def test_two_engines_in_one_pool_are_told_apart(daemon, pooled):
    from kvpool.lmcache import NativeClient
    native = NativeClient(chunk_bytes=16384, socket=daemon.socket)
    with kvpool.Client(daemon.socket, name="transformers") as client, \
            hf.namespace(client, "transformers", pooled, block_tokens=BLOCK) as ns:
        run(ns, pooled, prompt())
        told_apart(daemon, "transformers", "lmcache")
    native.close()


def test_without_a_daemon_and_after_its_death_the_ids_are_the_same(daemon, client, model, pooled, pool, tmp_path):
    want = generate(model, prompt(), DynamicCache())
    with kvpool.Client(str(tmp_path / "nobody"), connect_timeout=0.1) as alone:
        assert run(hf.namespace(alone, "m", pooled, block_tokens=BLOCK), pooled, prompt(), 0.1)[0] == want
    with hf.PoolCache(pool, pooled, prompt()) as cache:
        with torch.no_grad():
            pooled(prompt()[:, :100], **{CACHE: cache})
            daemon.kill()
            assert generate(pooled, prompt(), cache) == want
    daemon.start()
    attached(client)
    assert run(pool, pooled, prompt())[0] == want


def test_another_process_finds_them(daemon, pooled, pool):
    want, _, _ = run(pool, pooled, prompt())
    program = "import sys; sys.path[:0] = sys.argv[2:]\n" \
              "import torch, kvpool, test_hf\nfrom kvpool import hf\n" \
              "model = test_hf.make_model(); hf.use(model)\n" \
              "client = kvpool.Client(sys.argv[1], connect_timeout=10)\n" \
              "ns = hf.namespace(client, 'm', model, block_tokens=test_hf.BLOCK)\n" \
              "print(*test_hf.run(ns, model, test_hf.prompt()), sep=';')"
    path = [p for p in sys.path if p.endswith("tests/python") or p.endswith("client/python")]
    out = subprocess.run([sys.executable, "-c", program, daemon.socket, *path], capture_output=True, text=True)
    assert out.stdout.strip() == f"{want};144;{PROMPT + STEPS - 1 - 144}", out.stderr


def test_what_it_cannot_hold_is_refused_by_name(client, model, pooled, pool):
    with pytest.raises(ValueError, match="batch of 2"):
        hf.PoolCache(pool, pooled, prompt().repeat(2, 1))
    with pytest.raises(ValueError, match="use"):
        hf.PoolCache(pool, model, prompt())
    with hf.PoolCache(pool, pooled, prompt()) as cache, torch.no_grad():
        mask = torch.ones(1, PROMPT)
        mask[0, 0] = 0
        with pytest.raises(ValueError, match="padding"):
            pooled(prompt(), **{CACHE: cache}, attention_mask=mask)


def test_with_any_other_cache_the_model_computes_as_before(model, pooled):
    assert generate(pooled, prompt(), DynamicCache()) == generate(model, prompt(), DynamicCache())


def test_the_time_to_the_first_token_is_told():
    """A model large enough to compute for a while; asserted is what was computed, told how long it took."""
    torch.manual_seed(3)
    config = LlamaConfig(vocab_size=512, hidden_size=512, intermediate_size=1376, num_hidden_layers=4, num_attention_heads=8,
                         num_key_value_heads=2, max_position_embeddings=2048, eos_token_id=None, bos_token_id=None, pad_token_id=0)
    plain = LlamaForCausalLM(config).eval()
    pooled = copy.deepcopy(plain)
    hf.use(pooled)
    ids, own = prompt(5, 1000), DynamicCache()

    def first(model, cache):
        began, cpu = time.monotonic(), time.process_time()
        with torch.no_grad():
            out = model.generate(ids, **{CACHE: cache}, max_new_tokens=1, do_sample=False, attention_mask=torch.ones_like(ids))
        return time.monotonic() - began, time.process_time() - cpu, out[0, -1].item()

    told = {"without the pool": first(plain, own)}
    own.crop(992 - own.get_seq_length())
    daemon = Daemon(pool="64M")
    try:
        with kvpool.Client(daemon.socket) as client, hf.namespace(client, "gain", pooled) as ns:
            for name, reused in (("cold", 0), ("warm", 992)):
                with hf.PoolCache(ns, pooled, ids, timeout=5) as cache:
                    told[name] = first(pooled, cache)
                    assert cache.reused == reused
    finally:
        daemon.close()
    told["its own cache, kept"] = first(plain, own)
    assert len({token for _, _, token in told.values()}) == 1, told
    tell_gain("transformers, random Llama of 13 million weights, 1000 tokens, first token after: " +
              ", ".join(f"{name} {wall:.2f} s (CPU {cpu:.2f})" for name, (wall, cpu, _) in told.items()) +
              f"; warm is 1/{told['cold'][1] / told['warm'][1]:.0f} of cold")
