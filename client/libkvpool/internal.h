/*
 * internal.h - libkvpool's own structures, and what protects what
 *
 *	client		one kvp_open(); owns a socket, a keeper thread, sessions
 *	session		the client in one pool: session object (pin tables), pool header, namespace mappings.  A session that the
 *			daemon no longer knows stays until kvp_close(): views and blocks of it stay readable
 *	ns_map		a namespace object mapped in a session, shared by all kvp_ns of that namespace id
 *	slab_map	one slab mapped, read-only for views or read-write for grants; stays as long as somebody may look at it
 *	spot		a pinned slot;  hold: what a view or block handle of the caller stands for
 *	request		a message that wants an answer
 *
 * Locks, outermost first.  attach_enter(): connecting and joining, held over round trips.  ns_map->lock: stock, grants,
 * staging, making of slab mappings.  client->lock: socket, current session, requests, list of namespaces, regions.
 * registry (self.c): list of clients, thread parts, spare holds.  Finding and pinning takes none.
 *
 * Only the keeper thread receives, connects and closes the socket.
 */
#ifndef KVPOOL_INTERNAL_H
#define KVPOOL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "kvpool.h"
#include "kvpool_desc.h"
#include "kvpool_shm.h"
#include "kvpool_wire.h"

#define MS 1000000ull
#define PAUSE_MIN_MS 10
#define PAUSE_MAX_MS 1000
#define ANSWER_MS 1000 /* longest wait for an answer the daemon gives at once */
#define PUBLISH_MS \
	5000 /* longest wait of kvp_publish(): a copied publish may wait for room, a restart takes its time */
#define STOCK_BLOCKS 8
#define TRY_MS 100 /* deadline 0: longest wait for a daemon that does not answer */
#define STOCK_IDLE_MS 1000 /* a stock nobody took from goes back */
#define SLOT_NONE UINT64_MAX

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

/* ---- mappings ---- */

struct ns_map;

struct slab_map {
	struct slab_map *next; /* of the namespace: all, those that left too */
	struct slab_map *touch_next; /* pages still to be touched */
	const struct ns_map *map;
	char *base;
	uint64_t number;
	uint64_t bytes;
	uint64_t touched;
	uint64_t *
		grants; /* writable: generation + 1 of a grant of our session by slot in the slab, 0: none.  ns_map->lock */
	uint8_t *held; /* it has left: by slot, who pinned it then has not let go.  ns_map->lock */
	uint32_t place;
	bool writable;
	bool retired; /* zeroes lie over it */
};

struct grant {
	uint64_t slot;
	uint64_t generation;
};

/* Staging object of a COPIED namespace. An older one stays mapped: its blocks may still be in use. */
struct stage {
	struct stage *next;
	struct ns_map *map;
	char *base;
	uint64_t bytes;
	uint64_t n_blocks;
	uint64_t n_free;
	uint8_t *used; /* by block */
	_Atomic bool
		current; /* the daemon knows it; also read without the lock: who is late has its publish sent again */
	uint64_t connection; /* on which that is so: another daemon would take its blocks for those of a new one */
	bool retired;
	uint64_t since_ns, idle_ns; /* lock: had since; nothing in it since */
	uint64_t leaving_ns; /* lock: others wait for it: no block is taken from it until then */
};

struct ns_map {
	struct ns_map *next; /* of the session */
	struct session *session;
	uint64_t ns_id;
	bool lost; /* client->lock: the daemon has no such namespace any more */
	const struct kvp_ns_header *head;
	uint64_t bytes;
	const struct kvp_slab *slabs;
	const struct kvp_block *blocks;
	const struct kvp_index_bucket *index;
	uint64_t n_buckets;
	uint64_t n_slots;
	uint64_t block_bytes, block_stride;
	uint32_t slots_per_slab;
	uint64_t slots_inverse; /* see slot_place() */
	uint32_t max_places;
	uint32_t block_tokens;
	_Atomic uint32_t flags; /* kvp_wire_joined; READONLY only as long as every join asked for it */
	uint32_t n_siblings;
	char differs[32];
	uint8_t secret[32];
	struct ns_map *base; /* read-only base namespace, or NULL */
	uint32_t count_at; /* in tables by namespace; KVP_CLIENT_NS_MAX: there was no room */
	_Atomic(struct slab_map *) *ro; /* by place: the current mapping */
	_Atomic bool used; /* somebody looks for blocks or writes: map ahead of need */
	_Atomic bool map_wanted; /* somebody missed for want of a mapping */
	uint64_t changes_seen; /* keeper: slab_changes at the last look */
	uint64_t left_seen; /* the same, for slabs that left */
	uint64_t left_again_ns; /* keeper: some of those were looked at: once more then; 0: none */
	uint32_t n_grants; /* lock: held in all */
	uint64_t
		connection; /* lock: on which the daemon was last told our grants: answers of an earlier one are void */

	pthread_mutex_t lock;
	struct slab_map **rw; /* by place */
	struct slab_map *all;
	struct slab_map *unused; /* mapped no more */
	uint64_t *unmapped; /* slabs, by number: the daemon is to be told that they are not mapped here */
	uint32_t n_unmapped, unmapped_room;
	struct grant *stock;
	uint32_t n_stock, stock_room, stock_target;
	uint32_t n_back; /* the last ones of the stock: put back, on their way to the daemon */
	uint32_t n_asking; /* threads that wait for grants: nothing is kept in the stock meanwhile */
	bool refilling; /* a RESERVE for the stock is under way */
	uint64_t refill_after_ns; /* there was no room: the stock is not filled before */
	struct request *arrived; /* answers to RESERVE for the keeper to take in */
	uint64_t taken_ns; /* when somebody last took from the stock */
	struct stage *stages; /* the first one is the newest */
	uint32_t n_stage_asking; /* lock: threads that ask for one */
	bool stage_asked; /* lock: the daemon may have one of ours, here or not */
};

/* slot / slots_per_slab by a multiplication: inverse = ceil(2^63 / slots_per_slab) is exact for slots below 2^32, since it
 * is too large by less than 1, which makes the product too large by less than 2^32 / 2^63 < 1 / slots_per_slab. */
static inline uint32_t slot_place(const struct ns_map *map, uint64_t slot)
{
	return (uint32_t)((unsigned __int128)slot * map->slots_inverse >> 63);
}

struct session {
	struct session *next;
	struct kvp_client *client;
	uint64_t id;
	uint8_t uuid[16];
	int fd; /* the one descriptor that holds the record lock */
	dev_t dev; /* of its object */
	ino_t ino;
	struct kvp_session_header *head;
	uint64_t bytes;
	char *pins;
	uint64_t pin_stride;
	uint32_t max_places;
	const struct kvp_pool_header *header;
	const _Atomic uint32_t *tick; /* the header's; of a quiet client one that stands at 0, which is no use */
	struct ns_map *maps; /* client->lock; only the keeper takes one away */
	uint64_t counts_base[16]; /* the client's counts when the session began */
	uint64_t ns_counts_base[KVP_CLIENT_NS_MAX][6]; /* N_NS_COUNTS */
	bool gone;
	bool swept; /* gone, and nothing of it is in use any more */
};

static inline struct kvp_pin *session_pin(const struct session *s, uint32_t place, uint32_t index)
{
	return (struct kvp_pin *)(void *)(s->pins + place * s->pin_stride) + index;
}

/* The stamp of a use now. */
static inline uint32_t session_tick(const struct session *s)
{
	return atomic_load_explicit(s->tick, memory_order_relaxed);
}

/* ---- client ---- */

enum count { /* the first ones as in struct kvp_client_counts */
	COUNT_LOOKUPS, /* hits and misses: added up by count_sum() */
	COUNT_HITS_RAM,
	COUNT_HITS_SPILL,
	COUNT_MISSES,
	COUNT_TOKENS_RAM,
	COUNT_TOKENS_SPILL,
	N_NS_COUNTS, /* those are kept by namespace, as in struct kvp_client_ns_counts */
	COUNT_COPIED_BYTES = N_NS_COUNTS,
	COUNT_PRIVATE_BLOCKS,
	COUNT_LOST_HOLDS,
	COUNT_ROUND_TRIPS,
	N_COUNTS,
};

struct part;
struct request;

struct kvp_client {
	struct kvp_client *registry_next;
	struct part *parts; /* registry lock */
	char socket[KVP_SOCKET_MAX];
	char comm[32];
	uint32_t flags;
	uint32_t stock_blocks;
	uint32_t connect_timeout_ms;

	_Atomic bool dead; /* in a child after fork() */
	_Atomic uint32_t state; /* enum kvp_state */
	_Atomic uint64_t epoch;
	_Atomic uint64_t gone_counts[N_COUNTS]; /* of threads that ended */
	_Atomic uint64_t gone_ns_counts[KVP_CLIENT_NS_MAX][N_NS_COUNTS];
	_Atomic uint64_t flushed_ns; /* when the counts were last handed over */

	pthread_t keeper;
	bool has_keeper;
	int wake_fd;

	pthread_mutex_t lock;
	pthread_cond_t changed; /* tried, attaching, or a batch of a sequence is settled */
	bool tried;
	bool attaching; /* see attach_enter() */
	bool closing;
	bool online; /* messages may be sent: connected, resumed */
	uint64_t can; /* what the daemon said it can: enum kvp_wire_can */
	int fd; /* socket, -1: none; also under the registry lock */
	uint64_t connection; /* counts them */
	uint64_t last_epoch; /* of the last connection */
	uint64_t away_since_ns; /* keeper: no try to connect went well since; 0: the last one did */
	uint64_t next_try_ns;
	uint32_t heartbeat_ms;
	uint64_t next_beat_ns;
	uint64_t next_tend_ns; /* a staging area is to be looked at; UINT64_MAX: none */
	uint64_t mute_until_ns; /* the daemon does not answer: scheduler calls do not ask it before */
	uint64_t n_closes, n_closes_seen; /* of namespaces: so many there were, so many the keeper has looked after */
	uint64_t leave_again_ns; /* keeper: one of them was held: looked at again; 0: none */
	bool resuming; /* by who attaches: HELLO of a session we have is on its way; see wire_receive() */
	int refusal; /* keeper: the daemon's word before it closed the connection, text in refusal_text */
	char refusal_text[256];
	int attach_error; /* why not attached, with its text */
	char attach_text[256];
	uint64_t next_id;
	struct request *requests;
	_Atomic(struct session *) session; /* current, or NULL */
	struct session *old; /* gone ones */
	struct kvp_ns *namespaces;
	const struct slab_map **regions;
	uint32_t n_regions, regions_room;
	bool regions_told; /* somebody asked for them: none goes */
	struct slab_map *touch; /* to be touched by the keeper */
	uint64_t touched_bytes; /* keeper */
	char *packet; /* keeper: KVP_WIRE_MAX bytes */
};

struct private_chunk;

struct kvp_ns {
	struct kvp_ns *next; /* client->lock */
	struct kvp_client *client;
	_Atomic(struct ns_map *) map; /* NULL: detached */
	struct kvp_wire_join join; /* as asked for */
	struct kvp_ns *base;
	uint64_t block_bytes, block_stride;
	uint32_t flags; /* asked for */
	int join_error; /* the keeper's: refused, not tried again before the next beat */
	_Atomic uint64_t no_room_until_ns; /* sequences do not wait for room before */
	uint64_t *off; /* [n_layers][2] */

	pthread_mutex_t ring_lock;
	const struct kvp_ring *ring; /* NULL: not asked for yet */
	uint64_t ring_bytes;
	uint64_t ring_epoch; /* of the daemon it is of */

	pthread_mutex_t private_lock;
	struct private_chunk *chunks;
	void *private_free; /* list through the blocks */
	uint32_t n_private_free;
	char *private_fresh; /* not yet used part of the newest chunk */
	uint64_t private_fresh_bytes;
};

/* ---- self.c: threads, errors, counts, holds, fork ---- */

/** fail() - set this thread's error text. Return: @r: a macro, so that compilers and analyzers see that it fails. */
#define fail(r, ...) \
	({ \
		const int fail_r __attribute__((unused)) = (r); \
		fail_say(__VA_ARGS__); \
		fail_r; \
	})
void fail_say(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *self_error(void);
/** self_differs() - of the last -KVP_EMISMATCH of this thread; self_set_differs() */
const char *self_differs(void);
void self_set_differs(const char *field);

/* Counts of one thread for one client: written by that thread only, so without locked instructions. */
struct part {
	struct part *thread_next;
	struct part *client_next;
	_Atomic(struct kvp_client *) client; /* NULL: closed */
	_Atomic uint64_t counts[N_COUNTS];
	_Atomic uint64_t ns_counts[KVP_CLIENT_NS_MAX][N_NS_COUNTS]; /* by ns_map.count_at; not in counts as well */
};

#define SPARE_HOLDS 64u
struct self {
	struct part *parts;
	uint32_t n_spare;
	uint32_t spare[SPARE_HOLDS]; /* holds free for this thread */
	char error[512];
	char differs[32]; /* with -KVP_EMISMATCH */
};
extern __thread struct self *self_mine __attribute__((tls_model("initial-exec")));
struct self *self_make(void);
static inline struct self *self_get(void)
{
	return self_mine ? self_mine : self_make();
}

struct part *part_find(struct kvp_client *client);
/** part_get() - this thread's counts; NULL: out of memory */
static inline struct part *part_get(struct kvp_client *client)
{
	struct part *part = self_mine ? self_mine->parts : NULL;

	return part && atomic_load_explicit(&part->client, memory_order_relaxed) == client ? part : part_find(client);
}
static inline void part_add(struct part *part, enum count which, uint64_t n)
{
	atomic_store_explicit(&part->counts[which],
		atomic_load_explicit(&part->counts[which], memory_order_relaxed) + n, memory_order_relaxed);
}
/** part_add_ns() - what is counted by namespace. @map: NULL: of none that is joined. */
static inline void part_add_ns(struct part *part, const struct ns_map *map, enum count which, uint64_t n)
{
	_Atomic uint64_t *count = map && map->count_at < KVP_CLIENT_NS_MAX ? &part->ns_counts[map->count_at][which]
									   : &part->counts[which];

	atomic_store_explicit(count, atomic_load_explicit(count, memory_order_relaxed) + n, memory_order_relaxed);
}
void count_add(struct kvp_client *client, enum count which, uint64_t n);
/** count_sum() - of all threads, those that ended too. @of_ns: the parts of the sums by ns_map.count_at; NULL: not wanted. */
void count_sum(struct kvp_client *client, uint64_t sums[N_COUNTS], uint64_t (*of_ns)[N_NS_COUNTS]);
/** count_flush() - into the session object, where the daemon finds them when this process is no more */
void count_flush(struct session *s);
/** count_flush_soon() - the same, at most every millisecond; by who just counted */
void count_flush_soon(struct session *s);

extern _Atomic bool process_forked; /* some client of this process is a parent's: look at client->dead */
int registry_add(struct kvp_client *client);
void registry_remove(struct kvp_client *client);
/* Around what a fork must not fall into: the socket being made or closed. */
void registry_lock(void);
void registry_unlock(void);

enum hold_kind {
	HOLD_NONE,
	HOLD_VIEW, /* owner: ns_map */
	HOLD_GRANT, /* owner: ns_map */
	HOLD_STAGED, /* owner: stage, slot: its block */
	HOLD_PRIVATE, /* owner: kvp_ns, slot: the address */
	HOLD_PUBLISHING, /* a block inside kvp_publish() */
};
/*
 * What a handle given to the caller stands for.  Handles are serial << 32 | index; serials in holds are even and grow by
 * 2 at each end, handles carry them with bit 0 set, so none is 0 and a stale or forged one is known.
 */
struct hold {
	_Atomic uint32_t serial;
	uint16_t kind;
	uint16_t arriving; /* of a view: 1: it was given while it was being read back */
	void *owner;
	union {
		uint64_t slot;
		const struct kvp_block *block; /* of a view: hold_slot() */
	};
	uint64_t generation;
	struct kvp_pin *pin; /* of a view */
	uint64_t pad[3]; /* one cache line */
};
#define CHUNK_HOLDS 4096u
#define CHUNKS_MAX 16384u
extern _Atomic(struct hold *) hold_chunks[CHUNKS_MAX];

static inline struct hold *hold_at(uint32_t index)
{
	struct hold *chunk = index / CHUNK_HOLDS < CHUNKS_MAX
				     ? atomic_load_explicit(&hold_chunks[index / CHUNK_HOLDS], memory_order_acquire)
				     : NULL;

	return chunk ? &chunk[index % CHUNK_HOLDS] : NULL;
}

/** hold_get() - NULL: stale or forged */
static inline struct hold *hold_get(uint64_t handle)
{
	struct hold *hold = hold_at((uint32_t)handle);

	if (!hold || (uint64_t)atomic_load_explicit(&hold->serial, memory_order_relaxed) + 1 != handle >> 32)
		return NULL;
	return hold->kind == HOLD_NONE ? NULL : hold;
}

void holds_refill(struct self *self);
void holds_spill(struct self *self);

/** hold_take_spare() - of a thread that has one to spare: as hold_take() */
static inline struct hold *hold_take_spare(struct self *self, uint64_t *handle)
{
	uint32_t index = self->spare[--self->n_spare];
	struct hold *hold = hold_at(index);

	*handle = ((uint64_t)atomic_load_explicit(&hold->serial, memory_order_relaxed) + 1) << 32 | index;
	return hold;
}

/** hold_take() - a free hold and its handle; fill in kind and the rest. NULL: out of memory. */
static inline struct hold *hold_take(uint64_t *handle)
{
	struct self *self = self_get();

	if (self && !self->n_spare)
		holds_refill(self);
	return self && self->n_spare ? hold_take_spare(self, handle) : NULL;
}

static inline void hold_void(struct hold *hold)
{
	hold->kind = HOLD_NONE;
	atomic_store_explicit(
		&hold->serial, atomic_load_explicit(&hold->serial, memory_order_relaxed) + 2, memory_order_relaxed);
}

static inline void hold_end_at(struct hold *hold, uint64_t handle)
{
	struct self *self = self_get();

	hold_void(hold);
	if (self && self->n_spare == SPARE_HOLDS)
		holds_spill(self);
	if (self && self->n_spare < SPARE_HOLDS) /* else out of memory: the handle is not used again */
		self->spare[self->n_spare++] = (uint32_t)handle;
}

/** hold_slot() - of a view */
static inline uint64_t hold_slot(const struct hold *hold)
{
	return (uint64_t)(hold->block - ((const struct ns_map *)hold->owner)->blocks);
}

/** hold_new() - Return: the handle; 0: out of memory. */
uint64_t hold_new(enum hold_kind kind, void *owner, uint64_t slot, uint64_t generation);
void hold_end(uint64_t handle);

/* ---- clock ---- */

uint64_t now_ns(void);
static inline uint64_t after_ms(uint64_t ms)
{
	return now_ns() + ms * MS;
}
static inline struct timespec timespec_of(uint64_t ns)
{
	uint64_t seconds = ns / 1000000000ull < INT32_MAX ? ns / 1000000000ull : INT32_MAX;

	return (struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(ns % 1000000000ull)};
}
static inline uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---- client.c ---- */

/** client_bad() - 0, or the error of every call on a NULL or forked handle */
int client_bad(const struct kvp_client *client);
int ns_bad(const struct kvp_ns *ns);

/* ---- wire.c: messages ---- */

struct request {
	struct request *next, *prev; /* in flight; client->lock */
	struct kvp_client *client;
	struct session *session; /* NULL: HELLO */
	uint64_t id;
	uint16_t type;
	bool linked;
	bool answered;
	bool lasting; /* outlives a lost connection and is sent again */
	bool sent; /* on the present connection */
	uint64_t connection; /* it was sent on */
	uint64_t only_on; /* not sent on another connection than this; 0: any */
	bool resending; /* the keeper is at it */
	int32_t status;
	char *packet; /* struct kvp_msg, then the body */
	size_t packet_bytes;
	char *body; /* of the answer */
	size_t body_bytes;
	int fds[KVP_WIRE_FDS_MAX];
	unsigned n_fds;
	char text[256]; /* with a status < 0 */
	char differs[32]; /* with -KVP_EMISMATCH */
	pthread_cond_t cond;
	/* By the keeper, without locks, when answered and nobody waits; frees it. */
	void (*done)(struct request *request);
	/* What becomes of it when its waiter gives up; NULL: it is forgotten. */
	void (*late)(struct request *request);
	/* Just before it is sent again. Return: < 0: not again, end it with this status. */
	int (*again)(struct request *request, bool same_epoch);
	void *owner; /* of whoever made it */
};

struct request *request_new(struct kvp_client *client, struct session *session, uint16_t type, size_t body_bytes);
/** request_body_take() - the answer of a daemon of this minor version, of an earlier or of a later one: what is known here, zeroes
 *  for what did not come.  Return: false: it has less than @least, which 1.0 had. */
bool request_body_take(const struct request *request, void *to, size_t room, size_t least);
/** wire_can() - may this daemon be sent what 1.0 did not know? */
bool wire_can(struct kvp_client *client, enum kvp_wire_can what);
static inline void *request_body(const struct request *request)
{
	return request->packet + sizeof(struct kvp_msg);
}
/** request_send() - Return: 0: in flight; -KVP_EDETACHED; -KVP_EGONE: its session is no more. */
int request_send(struct request *request);
/** request_wait() - Return: the answer's status; -KVP_ETIMEDOUT: withdrawn, or (late set) *request is NULL: no longer yours;
 *  -KVP_EDETACHED: a lasting one is withdrawn, nobody saw it */
int request_wait(struct request **request, uint64_t deadline_ns);
/** request_call() - send and wait, counted as a round trip; freed and *request NULL on -KVP_ETIMEDOUT with late set */
int request_call(struct request **request, uint64_t deadline_ns);
/** request_orphan() - nobody waits from now on: @done runs when it is answered (or now) */
void request_orphan(struct request *request, void (*done)(struct request *request));
void request_free(struct request *request);
/** client_tell() - a message without answer. Return: 0; -KVP_EDETACHED; -EAGAIN: the socket is full. */
int client_tell(
	struct session *session, uint16_t type, const void *head, size_t n_head, const void *body, size_t n_body);
/** wire_receive() - keeper: take one packet, answer its request. Return: 1; 0: none there; < 0: the connection is over. */
int wire_receive(struct kvp_client *client);
void wire_down(struct kvp_client *client);
/** wire_resend() - keeper: what outlived the last connection, in its order */
void wire_resend(struct kvp_client *client, bool same_epoch);
/** wire_end_session() - end requests of a session that is no more; NULL: all requests */
void wire_end_session(struct kvp_client *client, const struct session *session);
/** wire_raw() - keeper: send a request while not online */
int wire_raw(struct request *request);
void client_wake(struct kvp_client *client);
/** client_detached() - not attached: why not, in this thread's error text. Return: that as an error. */
int client_detached(struct kvp_client *client);

/* ---- keeper.c ---- */

void *keeper_main(void *client);
bool keeper_is_me(const struct kvp_client *client);
/** keeper_pause_ns() - from one try to connect to the next, with no daemon for @away_ns: an engine comes back late by a quarter of
 *  the time its daemon was away at most, however long that was; with doubled pauses it would be as late again */
static inline uint64_t keeper_pause_ns(uint64_t away_ns)
{
	return away_ns / 4 < PAUSE_MIN_MS * MS ? PAUSE_MIN_MS * MS : earlier(away_ns / 4, PAUSE_MAX_MS * MS);
}

/* ---- attach.c ---- */

/** attach_try() - keeper: connect, HELLO, resume. Return: 0; -KVP_E... */
int attach_try(struct kvp_client *client);
/** attach_enter() - the right to connect and join. Return: false: not by the deadline. */
bool attach_enter(struct kvp_client *client, uint64_t deadline_ns);
void attach_leave(struct kvp_client *client);
/** attach_join() - between those two: join one namespace in the current session. Return: 0; -KVP_E... */
int attach_join(struct kvp_ns *ns, uint64_t deadline_ns);
/** attach_join_waiting() - keeper: namespaces that are not joined yet */
void attach_join_waiting(struct kvp_client *client);
/** session_gone() - the daemon does not know it any more: what is of it becomes private */
void session_gone(struct session *session);
/** session_sweep() - keeper: give back what gone sessions no longer need */
void session_sweep(struct kvp_client *client);
void session_close(struct session *session, bool in_child);

/* ---- map.c ---- */

int map_open(struct session *session, int fd, const struct kvp_wire_joined *joined, struct ns_map **map);
void map_close(struct ns_map *map, bool in_child);
/** map_places() - have these places mapped. Return: places mapped now (of @n); < 0 */
int map_places(struct ns_map *map, const uint32_t *places, uint32_t n, bool writable, uint64_t deadline_ns);
/** map_ahead() - map what is not mapped, up to 64 places, @first among them. Return: places mapped; < 0 */
int map_ahead(struct ns_map *map, uint32_t first, uint64_t deadline_ns);
/** map_touch() - keeper: a piece of the pages still to be touched. Return: true: more to do. */
bool map_touch(struct kvp_client *client);
/** map_object() - mmap a shared-memory object whose length is checked first; the descriptor stays the caller's */
void *map_object(int fd, uint64_t bytes, bool writable);
/** unmap_left_at() - before another slab is mapped there: if the one that is mapped has left, who looks at it? Under map->lock. */
void unmap_left_at(struct ns_map *map, uint32_t place);
/** unmap_note() - slab @number may not be mapped (any more): if so, tell the daemon. Under map->lock. */
void unmap_note(struct ns_map *map, uint64_t number);
/** unmap_keep() - keeper: unmap what left and nobody looks at */
void unmap_keep(struct ns_map *map);
/** unmap_all() - all slabs of the namespace, and note them. Return: false: somebody may look at one, or was told of its region.
 *  Under map->lock. */
bool unmap_all(struct ns_map *map);
/** unmap_tell() - keeper: tell the daemon what was noted. Under map->lock. */
void unmap_tell(struct ns_map *map);
/** map_retire() - zeroes in place of the slabs, where nobody holds anything. Return: true: all done. */
bool map_retire(struct ns_map *map);

/* ---- leave.c ---- */

/** leave_closed() - keeper: the session leaves the namespaces that nobody has open any more */
void leave_closed(struct kvp_client *client);
/** leave_note() - a handle of @map was closed, under client->lock. Return: the close's number; 0: others have it open. */
uint64_t leave_note(struct kvp_client *client, const struct ns_map *map);
/** leave_wait() - until the keeper has looked after that close: who opens another namespace next finds this one left */
void leave_wait(struct kvp_client *client, uint64_t close);

/* ---- find.c ---- */

struct spot { /* a slot with a pin of its client's session on it */
	struct ns_map *map;
	uint64_t slot;
	uint64_t generation;
	const char *data;
	uint64_t used_bytes;
	uint32_t used_tokens;
	const struct kvp_block *block; /* set by find_pin*() only, as is pin */
	struct kvp_pin *pin;
};
enum found {
	FOUND_NOT,
	FOUND_BUSY, /* being evicted, or not any more */
	FOUND_UNMAPPED, /* there, but its slab is not mapped: spot->map and spot->slot tell */
	FOUND_PINNED,
};
enum lookup {
	LOOKUP_PIN,
	LOOKUP_LOOK, /* is it there? nothing is written */
	LOOKUP_TOUCH, /* and counts as a use */
};
/** find_look() - is the key in @map or its base just now? */
bool find_look(struct ns_map *map, const struct kvp_key *key, enum lookup how);
/** find_pin() - look a key up in @map and its base, pin it */
enum found find_pin(struct ns_map *map, const struct kvp_key *key, struct spot *spot);
/** find_pin_slot() - pin one slot if it holds @key */
enum found find_pin_slot(struct ns_map *map, uint64_t slot, const struct kvp_key *key, struct spot *spot);
/** find_pin_arriving() - pin a block that is being read back, in the slot that a RESTORE's answer named, as far as it is there.
 *  @layers: the first that are; UINT32_MAX: all. FOUND_UNMAPPED: the slab is not mapped. */
enum found find_pin_arriving(
	struct ns_map *map, uint64_t slot, const struct kvp_key *key, struct spot *spot, uint32_t *layers);
/** find_pin_wait() - as find_pin(), mapping the slab if need be by the deadline */
enum found find_pin_wait(struct ns_map *map, const struct kvp_key *key, uint64_t deadline_ns, struct spot *spot);
/** spot_unpin() - Return: true: the hold had been lost. */
bool spot_unpin(const struct ns_map *map, uint64_t slot, uint64_t generation);
bool spot_lost(const struct ns_map *map, uint64_t slot, uint64_t generation);
void spot_pin_again(const struct ns_map *map, uint64_t slot);
/** view_fill() - hand a pinned spot to the caller. Return: false: out of memory, the pin is taken back. */
bool view_fill(struct kvp_view *view, struct kvp_ns *ns, const struct spot *spot, uint32_t hit);
/** rows_copy() - the first @n_tokens tokens of a block. Return: bytes copied. */
uint64_t rows_copy(const struct kvp_ns *ns, void *to, const void *from, uint32_t n_tokens, uint64_t used_bytes);

/* ---- derived.c ---- */

/** summary_off() - of a layer in a block of summaries; layer n_layers: that block's length */
uint64_t summary_off(const struct kvp_desc *desc, uint32_t layer);

/* ---- match.c ---- */

/** lookup_tell() - missed keys, so that the daemon counts them by reason; nobody waits */
void lookup_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n);
struct request *restore_request(
	struct ns_map *map, const struct kvp_key *keys, uint32_t n, uint32_t flags, uint64_t deadline_ns);
void restore_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n);
/** request_tell() - what is about to be used, where the daemon wants to know; nobody waits. @keys: from the chain's first on */
void request_tell(struct ns_map *map, const struct kvp_key *keys, uint32_t n, uint32_t hint);
/** map_is_learned() - does it want to know? */
static inline bool map_is_learned(const struct ns_map *map)
{
	return __atomic_load_n(&map->head->flags, __ATOMIC_RELAXED) & KVP_NS_LEARNED;
}

/* ---- forget.c ---- */

enum delete_fate {
	DELETE_LEFT = 0, /* in use, or not answered */
	DELETE_GONE,
	DELETE_OF_BASE, /* it is the base's, and stays */
};
/** delete_keys() - kvp_delete(), telling of each (enum delete_fate). Return: how many are gone; -KVP_E... */
int64_t delete_keys(struct kvp_ns *ns, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns, uint8_t *fates);

/* ---- events.c ---- */

void ring_close(struct kvp_ns *ns, bool in_child);

/* ---- private.c ---- */

void *private_take(struct kvp_ns *ns);
void private_put(struct kvp_ns *ns, void *data);
void private_close(struct kvp_ns *ns, bool in_child);

/* ---- grant.c, stage.c, write.c ---- */

/* A writable block. */
struct room {
	enum hold_kind kind;
	void *owner; /* as in struct hold */
	uint64_t slot;
	uint64_t generation;
	char *data;
};
/** room_take() - up to @n: grants (pinned) or staging blocks by @deadline_ns, then private memory if @with_private.
 *  Return: rooms given; -KVP_EACCES. */
int64_t room_take(struct kvp_ns *ns, uint32_t n, bool with_private, uint64_t deadline_ns, struct room *rooms);
/** private_rooms() - Return: rooms given */
uint32_t private_rooms(struct kvp_ns *ns, uint32_t n, struct room *rooms);
void room_put_back(const struct room *room);
struct room room_of(const struct hold *hold);
/** stage_is_lost() - is it of a staging area the daemon no longer knows? */
bool stage_is_lost(const struct room *room);
/** stage_move() - a block of a staging area the daemon no longer knows, to the present one.
 *  @left: NULL, or where somebody may read it on: is given the old one, to be put back later, unless it holds one already.
 *  Return: false: it cannot be published. */
bool stage_move(struct kvp_client *client, struct room *room, uint64_t used_bytes, struct room *left);
void stage_put(struct stage *stage, uint64_t slot);
/** stage_ready() - ask for an area if there is none, so that blocks can move to it; by a thread that may wait a little */
void stage_ready(struct ns_map *map);
uint32_t stage_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms);
/** stock_trim() - after putting back many */
void stock_trim(struct ns_map *map);
/** grant_rooms() - Return: grants given, from the stock and by asking until the deadline */
uint32_t grant_rooms(struct ns_map *map, uint32_t n, uint64_t deadline_ns, struct room *rooms);
/** grant_put_back() - a handed-out one that was not published */
void grant_put_back(struct ns_map *map, uint64_t slot, uint64_t generation);
void stock_refill(struct ns_map *map);
/** stock_keep() - keeper: refill, or give back what nobody uses */
void stock_keep(struct ns_map *map);
void stock_drop(struct ns_map *map);
/** stock_leave() - keeper: all of it back to the daemon. Return: no grant is ours any more, nor on its way. */
bool stock_leave(struct ns_map *map);
/** stages_forget() - the daemon no longer knows them: their blocks are readable, and movable to a new one */
void stages_forget(struct ns_map *map);
/** stage_keep() - keeper: gives up one that nobody uses. Return: there is one still */
bool stage_keep(struct ns_map *map);
/** stage_leave() - keeper: gives it up. Return: false: somebody has a block of one. */
bool stage_leave(struct ns_map *map);
/** stage_wanted() - others wait for a staging area: it is given up as soon as it is empty */
void stage_wanted(struct ns_map *map);
/** stages_keep() - it still does, on a new connection */
void stages_keep(struct ns_map *map);
/** grants_list() - GRANTS of a resumed session. Return: 0; -KVP_E... */
int grants_list(struct ns_map *map);
void grant_forget(struct ns_map *map, uint64_t slot, uint64_t generation);

/* ---- publish.c ---- */

struct batch_item {
	struct room room;
	struct room left; /* with keep_rooms: where it lay before it moved, and may be read; HOLD_NONE: it did not */
	struct kvp_key key, parent;
	uint64_t used_bytes;
	uint32_t used_tokens;
	bool want_spot; /* the block stored, or the one there was, is to be held */
	bool parent_pinned;
	struct spot parent_spot;
	/* filled by batch_settle() */
	uint8_t result; /* enum kvp_publish_result */
	bool room_kept; /* not used up: back to whoever gave it */
	bool again; /* what was stored, or was there, was gone before it was pinned; or it had nowhere to move to */
	bool stored; /* by this batch, whatever became of it */
	bool no_parent; /* not admitted: the parent is not there any more, or not yet: it may be on its way again */
	struct spot spot; /* pinned, with want_spot and STORED or EXISTS */
};
struct batch {
	struct request *request;
	struct ns_map *map;
	void *owner; /* of whoever made it */
	bool keep_rooms; /* somebody may still read them: not put back, even if the key is elsewhere */
	bool keep_stage; /* a copy out of the staging area may still be under way */
	uint32_t n;
	struct batch_item items[];
};
struct batch *batch_new(struct ns_map *map, uint32_t n);
/** batch_add() - NULL: it cannot be published */
struct batch_item *batch_add(struct batch *batch, const struct room *room, const struct kvp_key *key,
	const struct kvp_key *parent, uint32_t used_tokens, uint64_t used_bytes);
/** batch_send() - Return: 0; -KVP_E...: not sent */
int batch_send(struct batch *batch);
/** batch_settle() - with the answer there: results, spots; rooms used up are ended */
void batch_settle(struct batch *batch, int status);
void batch_free(struct batch *batch);

/* ---- key.c ---- */

void key_block(const uint8_t secret[32], const struct kvp_key *parent, const uint32_t *tokens, uint32_t n,
	const void *extra, uint32_t n_extra, struct kvp_key *key);
const uint8_t *ns_secret(const struct kvp_ns *ns);

#endif
