#!/usr/bin/env python3
"""Trains the small Llama-architecture model that kvpool's demo and tests run: kjv.kvm and kjv.tok in this folder.

Text: the King James Bible (1611, public domain) as Debian 12 ships it, packages bible-kjv and bible-kjv-text 4.38; the
`bible` program prints it:    apt-get install bible-kjv
Versions used: Python 3.11.7, numpy 2.4.6, jax 0.10.2, jaxlib 0.10.2 (CPU).    pip install jax==0.10.2 numpy==2.4.6
Run:  train.py OUTDIR     80 minutes on one core of an AMD EPYC (family 26) beside other work.  Starts again from OUTDIR/state.npz.
      Under `taskset -c 0` it takes one thread; MALLOC_MMAP_THRESHOLD_=4000000000 MALLOC_TRIM_THRESHOLD_=8000000000 keeps
      freed memory and saves a fifth of the time where page faults are dear.
      train.py OUTDIR --export    writes kjv.kvm and kjv.tok from the newest state, while training goes on or after it.
Everything random comes from SEED; floating point sums may still differ between CPUs, so bits are not promised.

The formats are described in README.md beside this file.
"""
import heapq, os, re, struct, subprocess, sys, time

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
import numpy as np

SEED = 1611
VOCAB, CONTEXT = 512, 2048
DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 128, 344, 5, 4, 2, 32
EPS, ROPE_BASE = 1e-5, 10000.0
BOS = 1
# (steps, sequence length, sequences a step); the learning rate is constant, then falls to 0 over the last DECAY steps
PHASES = [(5200, 256, 8), (2600, 512, 4), (900, 2048, 1)]
WARMUP, DECAY = 200, 4000
# Last, against loops: greedy text of small models soon repeats itself.  In each step the model writes greedily from some
# prefixes, and is taught to find less likely each beginning of a word that ended a repetition of REPEAT tokens
# ("unlikelihood", Welleck and others 2019), beside an ordinary batch.  Only beginnings: else it learns to misspell.
UNLIKELY_STEPS, UNLIKELY_RATE, UNLIKELY_WEIGHT, UNLIKELY_EMA = 300, 0.1, 1.0, 0.98
ROLLOUTS, ROLLOUT, PREFIX_MAX, REPEAT = 16, 256, 64, 10
LR_MATRIX, LR_EMBED, LR_NORM = 0.02, 0.004, 0.004
WEIGHT_DECAY = 0.01
EMA = 0.998
SAVE_EVERY, LOG_EVERY = 250, 50


# ---- text: verses one a line, an empty line between chapters ----

def bible():
    """List of chapters, each a list of verses."""
    out = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], check=True, capture_output=True, text=True).stdout
    chapters, last = [], None
    for line in out.splitlines():
        ref, verse = line.split(" ", 1)
        if ref.split(":")[0] != last:
            last = ref.split(":")[0]
            chapters.append([])
        chapters[-1].append(verse.strip())
    assert len(chapters) == 1189 and sum(map(len, chapters)) == 31102
    return chapters


# ---- tokenizer: llama2.c's format; pieces of our own ----

def tokenizer_train(chapters):
    """Byte pair encoding.  First within words, so that words come out whole, then the last 48 merges across them
    (" of the", ", and").  Nothing follows a newline inside a piece: verses can be encoded one by one."""
    text = "".join("".join(v + "\n" for v in c) + "\n" for c in chapters)
    count = {c: text.count(c) for c in sorted(set(text))}
    singles = sorted(c for c in count if count[c] >= 100)
    pieces = singles[:]
    n_merges = VOCAB - 259 - len(singles)
    index = {c: i for i, c in enumerate(singles)}
    rare = len(singles)                     # stands for characters that stay bytes
    seq = np.array([index.get(c, rare) for c in text], dtype=np.int64)
    texts = singles + ["\0"]
    word = re.compile(r" ?[A-Za-z']+")
    for m in range(n_merges):
        n = len(texts)
        pairs = seq[:-1] * n + seq[1:]
        hist = np.bincount(pairs, minlength=n * n)
        for best in np.argsort(-hist, kind="stable"):
            joined = texts[best // n] + texts[best % n]
            inside = word.fullmatch(joined) is not None
            if "\0" in joined or "\n" in joined[:-1] or joined in pieces or len(joined) > 12:
                continue
            if inside or m >= n_merges - 48:
                break
        a, b = best // n, best % n
        hit = np.flatnonzero((seq[:-1] == a) & (seq[1:] == b))
        if a == b:                          # aaa: the left pair only
            keep, prev = [], -2
            for h in hit:
                if h != prev + 1:
                    keep.append(h)
                    prev = h
            hit = np.array(keep)
        seq[hit] = n
        seq = np.delete(seq, hit + 1)
        texts.append(joined)
        pieces.append(joined)
    print(f"tokenizer: {len(singles)} characters, {n_merges} merges, {len(text) / len(seq):.2f} characters a token")
    return pieces


def tokenizer_bytes(pieces):
    rows = [(b"<unk>", 0.0), (b"\n<s>\n", 0.0), (b"\n</s>\n", 0.0)]
    rows += [(b"<0x%02X>" % i, 0.0) for i in range(256)]
    rows += [(p.encode(), -float(i)) for i, p in enumerate(pieces)]
    assert len(rows) == VOCAB
    longest = max(len(t) for t, _ in rows)
    return struct.pack("<i", longest) + b"".join(struct.pack("<fi", s, len(t)) + t for t, s in rows)


def encode(text, rank):
    """The engine's rule: merge the neighbouring pair whose joined text has the highest score (lowest rank), leftmost first."""
    tok = list(text)
    nxt, prv = list(range(1, len(tok) + 1)), list(range(-1, len(tok) - 1))
    alive = [True] * len(tok)
    heap = []

    def push(i):
        j = nxt[i]
        if j < len(tok):
            r = rank.get(tok[i] + tok[j])
            if r is not None:
                heapq.heappush(heap, (r, i, tok[i], tok[j]))

    for i in range(len(tok)):
        push(i)
    while heap:
        r, i, a, b = heapq.heappop(heap)
        j = nxt[i]
        if not alive[i] or j >= len(tok) or tok[i] != a or tok[j] != b:
            continue
        tok[i] = a + b
        alive[j] = False
        nxt[i] = nxt[j]
        if nxt[j] < len(tok):
            prv[nxt[j]] = i
        push(i)
        if prv[i] >= 0:
            push(prv[i])
    ids = []
    for i, t in enumerate(tok):
        if alive[i]:
            ids += [259 + rank[t]] if t in rank else [3 + b for b in t.encode()]
    return ids


def decode(ids, pieces):
    out = b"".join(bytes([i - 3]) if i < 259 else pieces[i - 259].encode() for i in ids if i >= 3)
    return out.decode(errors="replace")


class Corpus:
    """Token stream; a window begins at a verse, with the encoder's dummy space before it and BOS before that."""

    def __init__(self, chapters, rank):
        stream, starts, firsts, skips = [], [], [], []
        for chapter in chapters:
            for verse in chapter:
                ids = encode(verse + "\n", rank)
                starts.append(len(stream))
                firsts.append(encode(" " + verse + "\n", rank))
                skips.append(len(ids))
                stream += ids
            stream += encode("\n", rank)
        self.stream = np.array(stream, dtype=np.int32)
        self.starts, self.firsts, self.skips = starts, firsts, skips

    def window(self, verse, length):
        head = [BOS] + self.firsts[verse]
        at = self.starts[verse] + self.skips[verse]
        body = self.stream[at:at + length + 1]
        w = np.concatenate([np.array(head, dtype=np.int32), body])[:length + 1]
        return w if len(w) == length + 1 else None

    def batch(self, rng, n, length):
        out = []
        while len(out) < n:
            w = self.window(int(rng.integers(len(self.starts))), length)
            if w is not None:
                out.append(w)
        return np.stack(out)


# ---- model ----

def model_init(rng):
    kv = KV_HEADS * HEAD_DIM

    def mat(n_out, n_in, scale=1.0):
        return (rng.standard_normal((LAYERS, n_out, n_in)) * scale / np.sqrt(n_in)).astype(np.float32)

    return {
        "embed": (rng.standard_normal((VOCAB, DIM)) * 0.05).astype(np.float32),
        "norm1": np.ones((LAYERS, DIM), np.float32),
        "wq": mat(DIM, DIM), "wk": mat(kv, DIM), "wv": mat(kv, DIM), "wo": mat(DIM, DIM, 0.2),
        "norm2": np.ones((LAYERS, DIM), np.float32),
        "w1": mat(HIDDEN, DIM), "w2": mat(DIM, HIDDEN, 0.2), "w3": mat(HIDDEN, DIM),
        "norm": np.full(DIM, 3.0, np.float32),
    }


ORDER = ["embed", "norm1", "wq", "wk", "wv", "wo", "norm2", "w1", "w2", "w3", "norm"]
MATRICES = ["wq", "wk", "wv", "wo", "w1", "w2", "w3"]


def jax_parts():
    import jax
    import jax.numpy as jnp

    def rms(x, g):
        return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + EPS) * g

    def rope(x, cos, sin):                              # x: [B, T, heads, HEAD_DIM], pairs are (2i, 2i+1)
        x = x.reshape(*x.shape[:-1], HEAD_DIM // 2, 2)
        a, b = x[..., 0], x[..., 1]
        return jnp.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(*a.shape[:-1], HEAD_DIM)

    def attention(q, k, v):
        """Causal; blocks of queries see only the keys up to their own end, which halves the work."""
        b, t = q.shape[:2]
        g = HEADS // KV_HEADS
        q = q.reshape(b, t, KV_HEADS, g, HEAD_DIM).transpose(0, 2, 3, 1, 4)      # [B, KV, g, T, d]
        k, v = k.transpose(0, 2, 1, 3), v.transpose(0, 2, 1, 3)                  # [B, KV, T, d]
        step, out = min(t, 128), []
        for s in range(0, t, step):
            n = s + step
            qs = q[:, :, :, s:n].reshape(b, KV_HEADS, g * step, HEAD_DIM)
            score = jnp.einsum("bhqd,bhkd->bhqk", qs, k[:, :, :n]) * HEAD_DIM ** -0.5
            mask = np.tile(np.arange(n)[None, :] <= np.arange(s, n)[:, None], (g, 1))
            score = jnp.where(mask, score, -1e9)
            p = jnp.exp(score - jax.lax.stop_gradient(score.max(-1, keepdims=True)))
            o = jnp.einsum("bhqk,bhkd->bhqd", p, v[:, :, :n]) / p.sum(-1, keepdims=True)
            out.append(o.reshape(b, KV_HEADS, g, step, HEAD_DIM))
        return jnp.concatenate(out, 3).transpose(0, 3, 1, 2, 4).reshape(b, t, DIM)

    def forward(p, ids):
        b, t = ids.shape
        angle = np.arange(t)[:, None] * ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)
        x = p["embed"][ids]
        for l in range(LAYERS):
            h = rms(x, p["norm1"][l])
            q = (h @ p["wq"][l].T).reshape(b, t, HEADS, HEAD_DIM)
            k = (h @ p["wk"][l].T).reshape(b, t, KV_HEADS, HEAD_DIM)
            v = (h @ p["wv"][l].T).reshape(b, t, KV_HEADS, HEAD_DIM)
            x = x + attention(rope(q, cos, sin), rope(k, cos, sin), v) @ p["wo"][l].T
            h = rms(x, p["norm2"][l])
            x = x + (jax.nn.silu(h @ p["w1"][l].T) * (h @ p["w3"][l].T)) @ p["w2"][l].T
        return rms(x, p["norm"]) @ p["embed"].T

    def loss(p, ids):
        z = forward(p, ids[:, :-1])
        hit = jnp.take_along_axis(z, ids[:, 1:, None], -1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(z, -1) - hit)

    def rollout(p, ids, n_given):
        """Greedy text: row i of ids goes on after its first n_given[i] tokens, to the length of ids."""
        b, t = ids.shape
        angle = np.arange(t)[:, None] * ROPE_BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        cos, sin = jnp.cos(jnp.asarray(angle, jnp.float32)), jnp.sin(jnp.asarray(angle, jnp.float32))
        g = HEADS // KV_HEADS

        def step(carry, pos):
            ids, ks, vs = carry
            x = p["embed"][ids[:, pos]]
            c, s = cos[pos], sin[pos]
            for l in range(LAYERS):
                h = rms(x, p["norm1"][l])
                q = rope((h @ p["wq"][l].T).reshape(b, HEADS, HEAD_DIM), c, s).reshape(b, KV_HEADS, g, HEAD_DIM)
                k = rope((h @ p["wk"][l].T).reshape(b, KV_HEADS, HEAD_DIM), c, s)
                ks = ks.at[l, :, :, pos].set(k)
                vs = vs.at[l, :, :, pos].set((h @ p["wv"][l].T).reshape(b, KV_HEADS, HEAD_DIM))
                score = jnp.einsum("bhgd,bhkd->bhgk", q, ks[l]) * HEAD_DIM ** -0.5
                w = jax.nn.softmax(jnp.where(jnp.arange(t) <= pos, score, -1e9), -1)
                x = x + jnp.einsum("bhgk,bhkd->bhgd", w, vs[l]).reshape(b, DIM) @ p["wo"][l].T
                h = rms(x, p["norm2"][l])
                x = x + (jax.nn.silu(h @ p["w1"][l].T) * (h @ p["w3"][l].T)) @ p["w2"][l].T
            best = jnp.argmax(rms(x, p["norm"]) @ p["embed"].T, -1).astype(jnp.int32)
            ids = ids.at[:, pos + 1].set(jnp.where(pos + 1 < n_given, ids[:, pos + 1], best))
            return (ids, ks, vs), None

        cache = jnp.zeros((LAYERS, b, KV_HEADS, t, HEAD_DIM), jnp.float32)
        (ids, _, _), _ = jax.lax.scan(step, (ids, cache, cache), jnp.arange(t - 1))
        return ids

    def unlikely(p, ids, marked):
        """-log(1 - probability) of the marked tokens; marked[:, i] speaks of ids[:, i + 1]."""
        z = forward(p, ids[:, :-1])
        hit = jnp.take_along_axis(z, ids[:, 1:, None], -1)[..., 0] - jax.nn.logsumexp(z, -1)
        return -jnp.sum(jnp.log1p(-jnp.exp(jnp.minimum(hit, -1e-4))) * marked) / marked.size

    def loss_both(p, ids, written, marked):
        return loss(p, ids) + UNLIKELY_WEIGHT * unlikely(p, written, marked)

    def orthogonal(g):
        """Muon: the momentum's nearest orthogonal matrix, five Newton-Schulz steps."""
        wide = g.shape[-2] > g.shape[-1]
        x = jnp.swapaxes(g, -1, -2) if wide else g
        x = x / (jnp.sqrt(jnp.sum(x * x, (-2, -1), keepdims=True)) + 1e-7)
        for _ in range(5):
            a = x @ jnp.swapaxes(x, -1, -2)
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return jnp.swapaxes(x, -1, -2) if wide else x

    @jax.jit
    def update(state, ids, lr, written=None, marked=None, keep=EMA):
        p, m, v, ema, n = state
        value, g = jax.value_and_grad(loss)(p, ids) if written is None else jax.value_and_grad(loss_both)(
            p, ids, written, marked)
        n = n + 1
        np_, nm, nv = {}, {}, {}
        for k in p:
            if k in MATRICES:
                nm[k] = 0.95 * m[k] + 0.05 * g[k]
                step = orthogonal(0.95 * nm[k] + 0.05 * g[k]) * max(1.0, p[k].shape[-2] / p[k].shape[-1]) ** 0.5
                nv[k] = v[k]
                np_[k] = p[k] * (1 - lr * LR_MATRIX * WEIGHT_DECAY) - lr * LR_MATRIX * step
            else:
                nm[k] = 0.9 * m[k] + 0.1 * g[k]
                nv[k] = 0.98 * v[k] + 0.02 * g[k] * g[k]
                step = nm[k] / (1 - 0.9 ** n) / (jnp.sqrt(nv[k] / (1 - 0.98 ** n)) + 1e-8)
                np_[k] = p[k] - lr * (LR_EMBED if k == "embed" else LR_NORM) * step
        keep = jnp.minimum(keep, n / (n + 10.0))
        ema = {k: ema[k] * keep + np_[k] * (1 - keep) for k in p}
        return (np_, nm, nv, ema, n), value

    return jax.jit(loss), jax.jit(rollout), update


def repeats(ids, n_given, word_begins):
    """1 at i if ids[i + 1] was written by the model, begins a word and ends REPEAT tokens that occurred before."""
    out = np.zeros(len(ids) - 1, np.float32)
    seen = set()
    for end in range(REPEAT, len(ids) + 1):
        gram = tuple(ids[end - REPEAT:end])
        if gram in seen and end > n_given and gram[-1] in word_begins:
            out[end - 2] = 1
        seen.add(gram)
    return out


def rollout_batch(corpus, rng, p, rollout, word_begins):
    ids = np.stack([corpus.batch(rng, 1, ROLLOUT)[0] for _ in range(ROLLOUTS)])
    n_given = rng.integers(1, PREFIX_MAX, ROLLOUTS)
    n_given[0] = 1
    written = np.asarray(rollout(p, ids, n_given))
    return written, np.stack([repeats(w.tolist(), n, word_begins) for w, n in zip(written, n_given)])


# ---- files ----

def state_save(path, state, step):
    p, m, v, ema, n = state
    flat = {f"{tag}.{k}": np.asarray(t[k]) for tag, t in zip("pmve", (p, m, v, ema)) for k in p}
    with open(path + ".tmp", "wb") as f:
        np.savez(f, n=np.float32(n), step=step, **flat)
    os.replace(path + ".tmp", path)


def state_load(path):
    z = np.load(path)
    trees = [{k: z[f"{tag}.{k}"] for k in ORDER} for tag in "pmve"]
    return (*trees, z["n"]), int(z["step"])


def export(outdir, pieces):
    (_, _, _, ema, _), step = state_load(os.path.join(outdir, "state.npz"))
    head = b"KVPMODEL" + struct.pack("<10i2f", 1, DIM, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, VOCAB, CONTEXT, 1,
                                     ROPE_BASE, EPS)
    head += bytes(64 - len(head))
    with open(os.path.join(outdir, "kjv.kvm"), "wb") as f:
        f.write(head + b"".join(ema[k].astype("<f2").tobytes() for k in ORDER))
    with open(os.path.join(outdir, "kjv.tok"), "wb") as f:
        f.write(tokenizer_bytes(pieces))
    print(f"exported step {step}, {os.path.getsize(os.path.join(outdir, 'kjv.kvm'))} bytes")


def rate(step, total):
    return min(1.0, (step + 1) / WARMUP, (total - step) / DECAY)


def main():
    outdir = sys.argv[1]
    os.makedirs(outdir, exist_ok=True)
    chapters = bible()
    held_out = [c for i, c in enumerate(chapters) if i % 40 == 7]
    pieces = tokenizer_train(chapters)
    if "--export" in sys.argv:
        return export(outdir, pieces)
    rank = {p: i for i, p in enumerate(pieces)}
    cache = os.path.join(outdir, "corpus.npy")
    train = Corpus([c for i, c in enumerate(chapters) if i % 40 != 7], rank)
    check = Corpus(held_out, rank)
    print(f"{len(train.stream)} training tokens, {len(check.stream)} held out; first: {train.window(0, 12)}", flush=True)
    loss, rollout, update = jax_parts()
    total = sum(n for n, _, _ in PHASES)
    path = os.path.join(outdir, "state.npz")
    if os.path.exists(path):
        state, first = state_load(path)
    else:
        p = model_init(np.random.default_rng(SEED))
        zero = {k: np.zeros_like(p[k]) for k in p}
        state, first = (p, zero, zero, p, np.float32(0)), 0
    print(f"{sum(p.size for p in state[0].values())} parameters, {total} steps, from {first}", flush=True)
    step, began, seen, sums = 0, time.time(), 0, []
    for n, length, rows in PHASES:
        held = check.batch(np.random.default_rng(SEED), 4096 // min(length, 1024), min(length, 1024))
        for _ in range(n):
            step += 1
            if step <= first:
                continue
            ids = train.batch(np.random.default_rng([SEED, step]), rows, length)
            state, value = update(state, ids, np.float32(rate(step - 1, total)))
            sums.append(float(value))
            seen += rows * length
            assert np.isfinite(sums[-1]), f"step {step}: loss {sums[-1]}"
            if step % LOG_EVERY == 0:
                print(f"step {step} loss {np.mean(sums):.4f} {seen / (time.time() - began):.0f} tokens/s", flush=True)
                sums = []
            if step % SAVE_EVERY == 0 or step == total:
                state_save(path, state, step)
                print(f"step {step} held out {float(loss(state[3], held)):.4f}", flush=True)
    word_begins = {259 + i for i, p in enumerate(pieces) if p[0] == " " or p[0].isupper()}
    for _ in range(UNLIKELY_STEPS):
        step += 1
        if step <= first:
            continue
        if step == total + 1:
            state = (state[3], state[1], state[2], state[3], state[4])     # from the average on
        rng = np.random.default_rng([SEED, step])
        ids = train.batch(rng, 1, PHASES[-1][1])
        written, marked = rollout_batch(train, rng, state[3], rollout, word_begins)
        left = (total + UNLIKELY_STEPS + 1 - step) / UNLIKELY_STEPS
        state, value = update(state, ids, np.float32(UNLIKELY_RATE * min(1.0, 2 * left)), written, marked, UNLIKELY_EMA)
        sums.append([float(value), marked.mean()])
        assert np.isfinite(sums[-1][0]), f"step {step}: loss {sums[-1]}"
        if step % 10 == 0:
            print(f"step {step} loss {np.mean(sums, 0)[0]:.4f} repeated {np.mean(sums, 0)[1]:.4f}", flush=True)
            sums = []
        if step % 50 == 0 or step == total + UNLIKELY_STEPS:
            state_save(path, state, step)
            print(f"step {step} held out {float(loss(state[3], held)):.4f}", flush=True)
    export(outdir, pieces)


main()
