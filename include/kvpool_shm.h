/*
 * kvpool_shm.h - the bytes that kvpoold and libkvpool map together
 *
 * Owned by the daemon; a file format, not an API: every offset another process relies on is asserted below.  Clients
 * use kvpool.h.  Offsets, never pointers.  Either side treats what the other may write as input: bounds first, then
 * use.
 *
 * Objects (POSIX shared memory, mode 0600, owner the daemon's user; "stats" and "header" 0640 with the operators'
 * group):
 *
 *   /kvp-<uuid>-header      struct kvp_pool_header                   clients: ro
 *   /kvp-<uuid>-stats       kvpool_stats.h                           clients: none, kvctl: ro by name
 *   /kvp-<uuid>-ns-<id>     struct kvp_ns_header, block descriptors, index, slab table      members: ro
 *   /kvp-<uuid>-slab-<n>    block bytes                              members: ro; rw for a session whose grants lie in it
 *   /kvp-<uuid>-stage-<n>   blocks one session wants copied into the pool (COPIED namespaces)    that session: rw
 *   /kvp-<uuid>-sess-<id>   struct kvp_session_header, pin tables    that session: rw
 *   (no name)               struct kvp_ring: what happens in a namespace; a memory file        members: ro
 *   /kvp-<uuid>-io-<epoch>  lock file of a daemon's rings      nobody but the daemons
 *   /kvpool.<NAME>          the pool's file: its lock and its UUID as text                  nobody but the daemon
 *
 * Slabs of 2M and 1G pages lie under the same names in the directory of a hugetlbfs mount (huge_dir of the header).
 *
 * The word of a block descriptor and the pin counts carry the pin protocol; it is written down at struct kvp_block.
 */
#ifndef KVPOOL_SHM_H
#define KVPOOL_SHM_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"

/*
 * Another major: not mapped at all.  A minor version adds fields at the end of a header, or in reserved room that was
 * zero: header_bytes says how many of a header's bytes the daemon that runs knows and keeps, so who was built later
 * looks there before it believes a field that 1.0 did not have (KVP_*_HEADER_LEAST).  A daemon that takes over what
 * another minor version left zeroes what it does not know and puts its own sizes and minor version in.  Where parts
 * begin is said by offsets in the headers; descriptors, hints, slab table, pins and events keep their length.
 * counters.def: see there.
 */
#define KVP_LAYOUT_MAJOR 1
#define KVP_LAYOUT_MINOR 1 /* 1: the rule above holds; counters are only ever added at the end of their part */
#define KVP_ENDIAN 0x01020304u
#define KVP_MAGIC_HEADER 0x31444548504b564bull /* "KVKPHED1" */
#define KVP_MAGIC_NS 0x3153454d414e4b56ull
#define KVP_MAGIC_SESSION 0x31535345534b5650ull
#define KVP_MAGIC_RING 0x31474e49524b5650ull
#define KVP_PAGE 4096u
#define KVP_OBJECT_NAME_MAX 80

/* Where a daemon is in its life, as the header tells. */
enum kvp_daemon_state {
	KVP_DAEMON_STARTING = 1,
	KVP_DAEMON_SERVING = 2,
	KVP_DAEMON_STOPPED = 4, /* left in order; a killed one still says SERVING and its heartbeat stands still */
};

/* What slabs are made of, by the operator's wish; what each really got its row tells. */
enum kvp_pages {
	KVP_PAGES_4K = 0,
	KVP_PAGES_THP = 1, /* 2M where the kernel has them, for objects in /dev/shm */
	KVP_PAGES_2M = 2, /* of a hugetlbfs mount */
	KVP_PAGES_1G = 3, /* likewise */
};
static inline uint64_t kvp_pages_bytes(uint32_t pages)
{
	return pages == KVP_PAGES_1G ? 1ull << 30 : pages == KVP_PAGES_4K ? 4096 : 2ull << 20;
}
static inline _Bool kvp_pages_in_hugetlbfs(uint32_t pages)
{
	return pages == KVP_PAGES_2M || pages == KVP_PAGES_1G;
}
#define KVP_HUGE_DIR_MAX 112

/* /kvp-<uuid>-header: one page.  Nothing in it tells one tenant about another. */
struct kvp_pool_header {
	uint64_t magic;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint32_t endian;
	uint64_t header_bytes; /* sizeof(struct kvp_pool_header) of the writer */
	uint8_t uuid[16];
	_Atomic uint64_t epoch; /* + 1 at each daemon start; a new pool begins at a random one */
	_Atomic uint64_t heartbeat_ns; /* CLOCK_MONOTONIC, stored by the serving loop several times a second */
	_Atomic uint32_t tick; /* KVP_TICK_MS since the pool was made; last-use stamps are copies of it */
	_Atomic uint32_t state; /* enum kvp_daemon_state */
	int32_t daemon_pid; /* for people; nobody judges life by it */
	uint32_t max_places; /* places for slabs in every slab table and pin table */
	uint64_t pool_bytes; /* budget for block bytes */
	uint64_t slab_bytes; /* usual slab */
	uint64_t pin_stride; /* bytes between the pin tables of two places in a session object */
	uint8_t boot_id[16]; /* of the machine's boot this pool was made in */
	char pool_name[KVP_NAME_MAX];
	char socket[KVP_SOCKET_MAX];
	uint32_t pages; /* enum kvp_pages */
	uint32_t reserved0;
	char huge_dir[KVP_HUGE_DIR_MAX]; /* where slabs of 2M and 1G pages lie; "": none do */
	uint64_t clock_base; /* CLOCK_REALTIME less CLOCK_MONOTONIC, once; since 1.1, 0 before; see pool_clock() */
};
#define KVP_TICK_MS 16

/*
 * What a kvpoold that crashed (a signal of its own making; SIGKILL leaves nothing) could still say, in the header's
 * page behind the header.  It stays when the next one starts, until another crashes.  Offsets in the program only: no
 * address of memory, for clients see this page.
 */
#define KVP_CRASH_OFF 2048
#define KVP_CRASH_FRAMES 24
#define KVP_BUILD_ID_MAX 20
struct kvp_crash {
	_Atomic uint64_t epoch; /* of the daemon that crashed; 0: none did; stored last */
	uint64_t when_s; /* since 1970 */
	int32_t signal;
	int32_t pid;
	uint32_t n_frames;
	uint32_t build_id_bytes;
	uint8_t build_id[KVP_BUILD_ID_MAX];
	uint32_t near_null; /* 1: it touched the first page of memory */
	uint64_t frames
		[KVP_CRASH_FRAMES]; /* return addresses, innermost first, from the program's first byte; UINT64_MAX: a library's */
};
static_assert(KVP_CRASH_OFF + sizeof(struct kvp_crash) <= KVP_PAGE, "one page");
static_assert(sizeof(struct kvp_pool_header) <= KVP_CRASH_OFF, "before it");
#define KVP_POOL_HEADER_LEAST 416u

/*
 * The usual slab where the operator names none.  Memory moves between namespaces in slabs, and one that has blocks has
 * at least one: so 256 of them, which is max-namespaces, but none under 2 MiB (a huge page; its pins fill one page).
 * More than 64 MiB only where there would be more than 4096: descriptors and maps (65 530 a process) run out.  The pool
 * is divided without rest.
 */
static inline uint64_t kvp_default_slab(uint64_t pool_bytes)
{
	uint64_t wish = pool_bytes / 256, n;

	wish = wish < 2u << 20 ? 2u << 20 : wish > 64u << 20 ? 64u << 20 : wish;
	wish = wish < pool_bytes / 4096 ? pool_bytes / 4096 : wish;
	n = (pool_bytes + wish - 1) / wish;
	return pool_bytes / (n ? n : 1) & ~(uint64_t)(KVP_PAGE - 1);
}
static_assert(offsetof(struct kvp_pool_header, epoch) == 40, "layout v1");
static_assert(offsetof(struct kvp_pool_header, tick) == 56, "layout v1");
static_assert(offsetof(struct kvp_pool_header, pool_bytes) == 72, "layout v1");
static_assert(offsetof(struct kvp_pool_header, pool_name) == 112, "layout v1");
static_assert(sizeof(struct kvp_pool_header) <= KVP_PAGE, "one page");

/* State of a slot, the low 8 bits of its word.  Only the daemon moves a word; block_set_state() holds the table of
   moves. */
enum kvp_block_state {
	KVP_BLOCK_FREE = 0,
	KVP_BLOCK_GRANTED = 1, /* a writer stores into it; key[0] is the owner's session id */
	KVP_BLOCK_RESTORING = 2, /* a disk read, or the daemon's own copy, lands in it */
	KVP_BLOCK_PUBLISHED = 3, /* readable, unchanged until FREE */
	KVP_BLOCK_DRAINING = 4, /* the evictor looks at the pin counts; never spans a wait or an I/O */
	KVP_BLOCK_TAKEN = 5, /* grant withdrawn, the writer or a dead daemon's read may still store: nobody gets it */
	KVP_BLOCK_RETIRED = 6, /* generations used up */
};
#define KVP_GENERATION_MAX ((1ull << 56) - 1)

static inline uint64_t kvp_word(uint64_t generation, enum kvp_block_state state)
{
	return generation << 8 | (uint64_t)state;
}
static inline uint64_t kvp_word_generation(uint64_t word)
{
	return word >> 8;
}
static inline enum kvp_block_state kvp_word_state(uint64_t word)
{
	return (enum kvp_block_state)(word & 0xff);
}

/*
 * Block descriptor: one cache line, slot = place * slots_per_slab + index in the slab.
 *
 * Pin protocol.  Readers never write here.  All four accesses marked (*) are seq_cst: one side always sees the other.
 *   reader:  w = word, PUBLISHED?      | daemon (evictor): word = DRAINING (*)
 *            pins[slot].count += 1 (*) |                   any count of any counted session > 0 ? (*)
 *            word == w still? (*)      |                     yes: word = PUBLISHED again
 *            session still counted?    |                     no: unlink hint, word = (generation + 1, FREE);
 *            slab and key as wanted?   |                         only then may fields or bytes change
 *            any no: count -= 1 (release), look again or miss
 * After using a block (acquire fence) a reader whose hold can be revoked reads the word once more: same generation and
 * PUBLISHED or DRAINING, else what it read is void.
 * Publish: fields, then word (release), then the index hint.
 * A block that arrives: RESTORING with layers > 0.  No hint leads there, only a RESTORE's answer.  Its fields are
 * stored, and
 *          of its bytes the first `layers` layers have landed and were compared.
 *   reader:  w = word, RESTORING, layers > 0? | daemon (the read failed): word = (generation + 1, TAKEN) (*)
 *            pins[slot].count += 1 (*)        |                           layers = KVP_LAYERS_VOID, wake
 *            word == w and layers > 0 still,  |                           any count of any counted session > 0 ? (*)
 *              or w's generation, PUBLISHED (*)|                           no: word = (generation + 2, FREE); else later
 *            session, slab, key as ever       | daemon (all is right): word = (generation, PUBLISHED), and so on
 *            any no: count -= 1, read it as a miss, or look again
 *          Then it may use the layers below the count, and further ones as the count grows (acquire) or the block is
 *          published.  Another generation: its hold is void.
 * Crash:   DRAINING is put back by the next daemon; RESTORING is set aside until the dead one's ring has ended;
 *          and as long as somebody pins it, its generation + 1; GRANTED stays with its owner as long as that lives; pins of a dead session vanish with its object.
 * Wrap:    a slot whose generation is KVP_GENERATION_MAX is RETIRED.
 */
struct kvp_block {
	_Atomic uint64_t word; /* generation:56 | state:8 */
	struct kvp_key key; /* valid while PUBLISHED or DRAINING; while GRANTED key.w[0] is the owner's session id */
	struct kvp_key parent; /* all zero: first block of a chain */
	uint64_t slab_number; /* the slab's identity: a reader's mapping must be of this very one */
	uint64_t used_bytes; /* stored length, at most block_bytes */
	uint32_t used_tokens;
	_Atomic uint32_t
		layers; /* RESTORING: the first so many are there, 0: none; futex.  KVP_LAYERS_VOID: they never will be */
};
#define KVP_LAYERS_VOID UINT32_MAX
static_assert(offsetof(struct kvp_block, layers) == 60, "layout v1");
static_assert(sizeof(struct kvp_block) == 64, "one cache line, two slots never share one");
static_assert(offsetof(struct kvp_block, key) == 8, "layout v1");
static_assert(offsetof(struct kvp_block, parent) == 24, "layout v1");
static_assert(offsetof(struct kvp_block, slab_number) == 40, "layout v1");
static_assert(offsetof(struct kvp_block, used_bytes) == 48, "layout v1");
static_assert(offsetof(struct kvp_block, used_tokens) == 56, "layout v1");

/*
 * Index: buckets of 8 hints, one cache line each.  A hint is 0 (empty) or tag:32 | (slot + 1):32; the descriptor is the
 * truth.  A key's home bucket is kvp_index_home(); its hint lies there, or in one of the next KVP_INDEX_PROBES - 1
 * buckets if all before were full when it was put in.  The daemon, the only writer, keeps this true on removal by
 * moving hints back (copy first, then clear), so a reader may stop at the first bucket that is not full.
 */
#define KVP_INDEX_WIDTH 8
#define KVP_INDEX_PROBES 8
struct kvp_index_bucket {
	_Atomic uint64_t hint[KVP_INDEX_WIDTH];
};
static_assert(sizeof(struct kvp_index_bucket) == 64, "one cache line");

static inline uint64_t kvp_index_home(const struct kvp_key *key, uint64_t n_buckets)
{
	return key->w[0] & (n_buckets - 1); /* keys are keyed hashes: their bits are already uniform */
}
static inline uint32_t kvp_index_tag(const struct kvp_key *key)
{
	return (uint32_t)(key->w[1] >> 32);
}
static inline uint64_t kvp_hint(const struct kvp_key *key, uint64_t slot)
{
	return (uint64_t)kvp_index_tag(key) << 32 | (uint32_t)(slot + 1);
}
static inline uint64_t kvp_hint_slot(uint64_t hint)
{
	return (uint32_t)hint - 1u;
}

/* Slab table of a namespace: place -> slab.  number 0: no slab of this namespace there. */
struct kvp_slab {
	_Atomic uint64_t number;
	uint64_t bytes;
	uint32_t node; /* the kernel's number; UINT32_MAX: it lies elsewhere */
	uint32_t page_kib;
	uint8_t reserved[8];
};
static_assert(sizeof(struct kvp_slab) == 32, "layout v1");

enum kvp_ns_state {
	KVP_NS_LIVE = 1,
	KVP_NS_DYING = 2, /* says so first, goes last */
};

/* /kvp-<uuid>-ns-<id>.  Descriptor pages exist only for places that hold a slab of this namespace: never touch
   others. */
struct kvp_ns_header {
	uint64_t magic;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint32_t endian;
	uint64_t header_bytes;
	uint64_t object_bytes;
	uint64_t ns_id;
	uint64_t base_id; /* 0: none */
	_Atomic uint64_t state;
	_Atomic uint64_t slab_changes; /* + 1 whenever the slab table changed */
	uint64_t block_bytes; /* payload */
	uint64_t block_stride; /* payload rounded up to pages */
	uint64_t slab_bytes; /* whole blocks, at least one */
	uint32_t slots_per_slab;
	uint32_t max_places;
	uint64_t slab_off; /* struct kvp_slab[max_places] */
	uint64_t block_off; /* struct kvp_block[max_places * slots_per_slab] */
	uint64_t index_off; /* struct kvp_index_bucket[n_buckets] */
	uint64_t n_buckets; /* power of two */
	uint32_t owner_uid;
	uint32_t owner_gid;
	uint32_t mode; /* 0600, 0640, 0660, 0644, 0666: read = look up, write = publish */
	uint32_t flags; /* KVP_NS_COPIED ... of kvpool.h */
	uint8_t secret[32];
	char name[KVP_NAME_MAX];
	struct kvp_desc desc;
};
static_assert(offsetof(struct kvp_ns_header, block_bytes) == 64, "layout v1");
static_assert(offsetof(struct kvp_ns_header, slab_off) == 96, "layout v1");
static_assert(offsetof(struct kvp_ns_header, secret) == 144, "layout v1");
#define KVP_NS_HEADER_MAX (2 * KVP_PAGE)
static_assert(sizeof(struct kvp_ns_header) <= KVP_NS_HEADER_MAX, "the slab table starts at page 2 or later");
#define KVP_NS_HEADER_LEAST 3712u
static_assert(offsetof(struct kvp_ns_header, desc) + sizeof(struct kvp_desc) == KVP_NS_HEADER_LEAST, "layout v1");

/* A reader's hold on a slot. count: threads and views of its session; stamp: header tick of the last use. */
struct kvp_pin {
	_Atomic uint32_t count;
	_Atomic uint32_t stamp;
};
static_assert(sizeof(struct kvp_pin) == 8, "layout v1");

/* What a client counts about itself; the daemon adds the differences to its counters and believes nothing else of
   it. */
struct kvp_client_counts {
	_Atomic uint64_t lookups; /* keys asked for */
	_Atomic uint64_t hits_ram; /* keys found and pinned in DRAM */
	_Atomic uint64_t hits_spill; /* keys that came back from the spill store */
	_Atomic uint64_t misses; /* keys not usable */
	_Atomic uint64_t tokens_ram; /* tokens those hits stand for */
	_Atomic uint64_t tokens_spill;
	_Atomic uint64_t copied_bytes; /* block bytes the library itself copied */
	_Atomic uint64_t private_blocks; /* blocks handed out from private memory for want of pool memory */
	_Atomic uint64_t lost_holds; /* holds revoked while in use */
	uint64_t reserved[7];
};
static_assert(sizeof(struct kvp_client_counts) == 128, "layout v1");

/* The part of it that belongs to one namespace: the table fills from the front, an entry keeps its namespace. */
struct kvp_client_ns_counts {
	_Atomic uint64_t ns_id; /* 0: this entry and those after it are not in use */
	_Atomic uint64_t lookups;
	_Atomic uint64_t hits_ram;
	_Atomic uint64_t hits_spill;
	_Atomic uint64_t misses;
	_Atomic uint64_t tokens_ram;
	_Atomic uint64_t tokens_spill;
};
#define KVP_CLIENT_NS_MAX 64 /* of a session in more namespaces, the further ones are counted for the session only */

/*
 * /kvp-<uuid>-sess-<id>, written by one client and the daemon.  Pins of slot (place, i) in whatever namespace owns the
 * place: struct kvp_pin at pins_off + place * pin_stride + i * 8.  A place's pin pages exist only after the daemon
 * answered MAP for it.  The client holds a write lock (fcntl, byte 0) on this object for as long as it lives.
 */
struct kvp_session_header {
	uint64_t magic;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint32_t endian;
	uint64_t session_id;
	_Atomic uint64_t
		word; /* non-zero: its session's pins count; cleared by the daemon before it stops counting them */
	uint64_t pins_off;
	uint64_t pin_stride;
	uint64_t object_bytes;
	_Atomic uint64_t left; /* 1: its client was closed in order: nobody died when the lock is free */
	struct kvp_client_counts counts;
	uint64_t header_bytes; /* the daemon's; 0: of 1.0 */
	uint8_t reserved[56];
	struct kvp_client_ns_counts ns_counts[KVP_CLIENT_NS_MAX];
	struct kvp_client_ns_counts
		ns_seen[KVP_CLIENT_NS_MAX]; /* the daemon's: what of them is in the namespaces' counters */
};
static_assert(offsetof(struct kvp_session_header, ns_counts) == 256, "layout v1");
static_assert(offsetof(struct kvp_session_header, word) == 24, "layout v1");
static_assert(offsetof(struct kvp_session_header, counts) == 64, "layout v1");
#define KVP_SESSION_PINS_OFF (2 * KVP_PAGE) /* in new ones; each says where its own begin */
static_assert(sizeof(struct kvp_session_header) <= KVP_SESSION_PINS_OFF, "the pins begin at a page of their own");
#define KVP_SESSION_HEADER_LEAST 7424u
#define KVP_SESSION_PINS_OFF_LEAST (2 * KVP_PAGE)
#define KVP_SESSION_PINS_OFF_MAX (64 * KVP_PAGE)
static_assert(offsetof(struct kvp_session_header, ns_seen) + KVP_CLIENT_NS_MAX * sizeof(struct kvp_client_ns_counts) ==
		      KVP_SESSION_HEADER_LEAST,
	"layout v1");

/*
 * What happens in a namespace, for who asked (KVP_MSG_EVENTS).  Event s lies at events[s % n_events]; numbers have no
 * gaps, and a later ring's begin above all of an earlier one's.  The daemon, the only writer, waits for nobody: it
 * takes the place's number away, stores the rest, then the new number, then next.  A reader copies an event and looks
 * at its number again: any other than the one wanted means that it was overtaken.
 */
struct kvp_ring_event {
	_Atomic uint64_t seq; /* 0: being written */
	_Atomic uint64_t key[2];
	_Atomic uint64_t parent[2];
	_Atomic uint64_t what; /* used_tokens:32 | tier:16 (enum kvp_hit) | kind:16 (enum kvp_event_kind) */
	uint64_t reserved[2];
};
static_assert(sizeof(struct kvp_ring_event) == 64, "layout v1");

struct kvp_ring {
	uint64_t magic;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint32_t endian;
	uint64_t object_bytes;
	uint64_t n_events; /* power of two */
	uint64_t first; /* number of the ring's first event */
	_Atomic uint64_t next; /* number of the event to come */
	_Atomic uint64_t closed; /* 1: nothing comes any more */
	uint64_t reserved;
	struct kvp_ring_event events[];
};
static_assert(offsetof(struct kvp_ring, events) == 64, "layout v1");
#define KVP_RING_EVENTS 4096u

#endif
