/*
 * kvpool_wire.h - messages between libkvpool and kvpoold
 *
 * A Unix SOCK_SEQPACKET socket; one packet is one message: struct kvp_msg, then the body named beside its type.  The
 * client asks, the daemon answers with the same type | KVP_MSG_REPLY and the same id; answers may come in another order
 * than the questions (RESTORE and RESERVE wait).  id 0: no answer wanted.  An answer to HELLO with id 0 comes unasked:
 * the connection is refused, its text says why, and is closed.  All fields little-endian (the layout check
 * refuses others), all structs without padding.  The receiver copies a packet once, checks it, then uses it.
 * Descriptors travel only from daemon to client; a client that sends one is put out.
 *
 * Versions.  Another major: refused by both sides, with both versions named.  Minor versions may differ, either way round:
 * - A body, or what lies behind the items of one, only ever gets longer, at its end.  A receiver takes what it knows, zeroes
 *   for what did not come, and no less than 1.0 had (KVP_*_LEAST).  Heads in front of items, and items, keep their length.
 * - HELLO keeps its length: kvpoold 1.0 refuses a longer one, as it does any other longer message.
 * - A new message, or a flag that must not be ignored, is sent to a daemon that says so in WELCOME (enum kvp_wire_can); a
 *   message it does not know is answered with KVP_ENOTSUP, a flag is ignored.
 */
#ifndef KVPOOL_WIRE_H
#define KVPOOL_WIRE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"

#define KVP_WIRE_MAJOR 1
#define KVP_WIRE_MINOR 1 /* 1: bodies may be longer than known; WELCOME says what the daemon can */
#define KVP_WIRE_MAGIC 0x4d50564bu
#define KVP_WIRE_MAX (200 * 1024) /* longest packet, header included; under the default SO_SNDBUF */
#define KVP_WIRE_FDS_MAX 64 /* descriptors in one answer */
#define KVP_WIRE_BATCH_MAX 2048 /* items in one message; the library splits larger calls */
#define KVP_WIRE_REQUEST_MAX 12288 /* keys of a REQUEST: of a longer chain the first ones */

enum kvp_msg_type {
	KVP_MSG_HELLO = 1, /* kvp_wire_hello                  -> kvp_wire_welcome + fds: header ro, session rw */
	KVP_MSG_BYE = 2, /* nothing: the session ends now, its pins and grants are void  -> nothing */
	KVP_MSG_PING = 3, /* nothing                         -> kvp_wire_pong */
	KVP_MSG_JOIN = 4, /* kvp_wire_join                   -> kvp_wire_joined + fd: namespace ro */
	KVP_MSG_MAP = 5, /* kvp_wire_map, u32 place[n]      -> kvp_wire_mapped[n] + n fds (only those with status 0) */
	KVP_MSG_RESERVE = 6, /* kvp_wire_reserve                -> kvp_wire_grant[0..n] */
	KVP_MSG_PUBLISH = 7, /* kvp_wire_batch, kvp_wire_item[n] -> kvp_wire_result[n] */
	KVP_MSG_ABANDON = 8, /* kvp_wire_batch, kvp_wire_grant[n] -> nothing */
	KVP_MSG_LOOKUP = 9, /* kvp_wire_batch, kvp_key[n]      -> kvp_wire_found[n]; counts the misses by reason; with
				neither id nor KVP_WIRE_TOUCH: all were missed, those that are there too */
	KVP_MSG_RESTORE = 10, /* kvp_wire_restore, kvp_key[n]   -> kvp_wire_found[n], by the deadline */
	KVP_MSG_GRANTS = 11, /* kvp_wire_batch, kvp_wire_grant[n]: all grants the resumed session still has in this
				namespace; others are taken back   -> nothing */
	KVP_MSG_STAGE =
		12, /* kvp_wire_stage                  -> kvp_wire_staged + fd: staging object rw; of 0 blocks: the
			       session has unmapped it and gives it up   -> kvp_wire_staged, no fd */
	KVP_MSG_EVENTS = 13, /* kvp_wire_batch without items   -> kvp_wire_ring + fd: struct kvp_ring ro */
	KVP_MSG_DELETE =
		14, /* kvp_wire_batch, kvp_key[n]     -> kvp_wire_found[n]: KVP_MISS: it is gone; else it is in use; -EIO: a
		       store could not note what is gone */
	KVP_MSG_CLEAR =
		15, /* kvp_wire_restore without keys   -> kvp_wire_admin_done, by the deadline; as DELETE read later: -ETIME */
	KVP_MSG_USAGE = 16, /* kvp_wire_batch without items    -> kvp_wire_usage */
	KVP_MSG_REQUEST =
		17, /* kvp_wire_batch (flags: enum kvp_hint), kvp_key[n]: what is about to be used, and published, from the
			chain's first block on; for namespaces with KVP_NS_LEARNED (KVP_CAN_REQUEST)   -> nothing */
	KVP_MSG_UNMAPPED =
		18, /* kvp_wire_batch, u64 slab[n]     -> nothing: slabs that left, by number: the session has unmapped them
			(KVP_CAN_UNMAPPED) */
	KVP_MSG_LEAVE =
		19, /* kvp_wire_batch, u64 slab[n]     -> nothing: the session is in the namespace no more; see below
			       (KVP_CAN_LEAVE) */
	KVP_MSG_COLD_NS =
		20, /* kvp_wire_cold_ask                -> kvp_wire_cold_ns, or nothing: past the last (KVP_CAN_COLD) */
	KVP_MSG_COLD =
		21, /* kvp_wire_batch (the namespace with KVP_NS_COLD, @n keys at most, flags: idle, in ms)   -> kvp_key[]: parent
			       of the first or zeroes, then a piece of a chain; one key: ask again, not all was looked at; nothing:
			       there is none, or others wait for room */
	KVP_MSG_DRAIN = 32, /* operators: kvp_wire_admin       -> kvp_wire_admin_done */
	KVP_MSG_PURGE = 33, /* operators: kvp_wire_admin       -> kvp_wire_admin_done, then the daemon ends */
	KVP_MSG_EVICT = 34, /* operators: kvp_wire_admin       -> kvp_wire_admin_done */
	KVP_MSG_RESIZE =
		35, /* operators: kvp_wire_resize     -> kvp_wire_admin_done: n_done bytes in slabs, n_left bytes
				that are too much and cannot go yet, n_failed bytes that could not be added */
	KVP_MSG_STORE_DROP =
		36, /* operators: kvp_wire_admin   -> kvp_wire_admin_done: n_done blocks forgotten; they stay so */
	KVP_MSG_STORE_SCRUB =
		37, /* operators: kvp_wire_admin, n bytes a second (0: as configured)   -> kvp_wire_admin_done at
				once: n_done bytes a second, n_left bytes to read */
	KVP_MSG_NS_POLICY =
		38, /* operators: kvp_wire_admin, n: 0 lru, 1 learned   -> kvp_wire_admin_done: n_done namespaces changed */
	KVP_MSG_REPLY = 0x8000,
};

struct kvp_msg {
	uint32_t magic;
	uint16_t type;
	uint16_t n_fds;
	uint32_t bytes; /* of the whole packet */
	int32_t status; /* in answers: 0 or a negative KVP_E...; then the body is a text for a human, not terminated;
			 * with -KVP_EMISMATCH a zero byte follows it, and the name of the field */
	uint64_t id;
};
static_assert(sizeof(struct kvp_msg) == 24, "wire v1");

struct kvp_wire_hello {
	uint16_t major;
	uint16_t minor;
	uint16_t layout_major;
	uint16_t layout_minor;
	uint64_t session_id; /* 0: a new session; else resume this one, which must be of the same uid and alive */
	uint8_t uuid[16]; /* pool the session is of; another pool answers KVP_EGONE */
	int32_t pid; /* as the client sees itself; shown, never judged by */
	uint32_t reserved;
	char comm[32]; /* what kvctl shows */
};
#define KVP_HELLO_LEAST 72u
static_assert(sizeof(struct kvp_wire_hello) == KVP_HELLO_LEAST, "wire v1");

/* What a daemon can that one of 1.0 could not, or did not say. */
enum kvp_wire_can {
	KVP_CAN_LONGER = 1 << 0, /* bodies longer than it knows */
	KVP_CAN_DEADLINE = 1 << 1, /* KVP_WIRE_DEADLINE */
	KVP_CAN_REQUEST = 1 << 2, /* KVP_MSG_REQUEST */
	KVP_CAN_UNMAPPED = 1 << 3, /* KVP_MSG_UNMAPPED */
	KVP_CAN_LEAVE = 1 << 4, /* KVP_MSG_LEAVE */
	KVP_CAN_COLD = 1 << 5, /* KVP_MSG_COLD_NS, KVP_MSG_COLD, KVP_NS_COLD */
};

struct kvp_wire_welcome {
	uint16_t major;
	uint16_t minor;
	uint32_t heartbeat_ms; /* take the session's lock anew at least this often */
	uint64_t session_id;
	uint64_t epoch;
	uint8_t uuid[16];
	uint32_t hold_limit_ms; /* a stopped client's holds may be revoked after so long; 0: never */
	uint32_t grant_limit_ms;
	uint64_t can; /* enum kvp_wire_can */
};
#define KVP_WELCOME_LEAST 48u
static_assert(offsetof(struct kvp_wire_welcome, can) == KVP_WELCOME_LEAST, "wire v1");

struct kvp_wire_pong {
	uint64_t epoch;
	uint32_t state; /* enum kvp_daemon_state */
	uint32_t reserved;
};
#define KVP_PONG_LEAST 16u

struct kvp_wire_join {
	char name[KVP_NAME_MAX];
	uint32_t owner_uid; /* KVP_UID_SELF: the caller */
	uint32_t mode; /* used when created; 0: 0600 */
	uint32_t flags; /* enum kvp_ns_flags */
	uint32_t reserved;
	uint64_t base_id; /* 0: none */
	uint64_t ns_id; /* resume: join exactly this one; 0: by name */
	uint64_t cost_ns_per_token;
	struct kvp_desc desc;
};
#define KVP_JOIN_LEAST 3576u
static_assert(offsetof(struct kvp_wire_join, desc) + sizeof(struct kvp_desc) == KVP_JOIN_LEAST, "wire v1");

struct kvp_wire_joined {
	uint64_t ns_id;
	uint64_t base_id;
	uint32_t
		flags; /* as stored: KVP_NS_COPIED or KVP_NS_IN_PLACE, KVP_NS_CREATED, KVP_NS_SIBLING, KVP_NS_READONLY */
	uint32_t n_siblings; /* namespaces of this owner and name beside this one */
	char differs[32]; /* with KVP_NS_SIBLING: the first descriptor field that differs */
};
#define KVP_JOINED_LEAST 56u

struct kvp_wire_map {
	uint64_t ns_id;
	uint32_t n;
	uint32_t writable; /* 1: rw descriptors; only slabs in which the session has grants */
};
static_assert(sizeof(struct kvp_wire_map) == 16, "wire v1");

struct kvp_wire_mapped {
	uint32_t place;
	int32_t status; /* 0, or -KVP_ESTALE: no slab of the namespace there (any more); -KVP_EACCES */
	uint64_t number;
	uint64_t bytes;
};
static_assert(sizeof(struct kvp_wire_mapped) == 24, "wire v1");

struct kvp_wire_reserve {
	uint64_t ns_id;
	uint32_t n;
	uint32_t node; /* 0xffffffff: no wish */
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: what is there now */
};
#define KVP_RESERVE_LEAST 24u

struct kvp_wire_grant {
	uint64_t slot;
	uint64_t generation;
};
static_assert(sizeof(struct kvp_wire_grant) == 16, "wire v1");

struct kvp_wire_batch {
	uint64_t ns_id;
	uint32_t n;
	uint32_t flags; /* LOOKUP: KVP_WIRE_TOUCH; DELETE: KVP_WIRE_DEADLINE */
};
static_assert(sizeof(struct kvp_wire_batch) == 16, "wire v1");

/*
 * LEAVE undoes JOIN.  Before it is sent the session has unmapped all slabs of the namespace, those in slab[n] too, and its
 * staging area, and stores into nothing there any more: its grants, published by halves or not at all, go back as by ABANDON,
 * its staging area as by STAGE of 0 blocks, its counts to the namespace.
 * - It is refused with -EBUSY, and nothing has changed, while the session pins a block there or one of its requests there is not
 *   answered: let go, take the answers, ask again.  What a client writes into its own pin tables can so keep it where it is, and
 *   bring it nowhere.
 * - Afterwards messages about the namespace are answered as to any stranger, -KVP_ENOENT, until the session joins again.  Its pins
 *   there do not count: there are none.
 * - Published blocks stay, as does what others have there.  A namespace whose base it is keeps the base; who is in both
 *   leaves each on its own.
 * - A start of the daemon in between: who is in which namespace is not kept over one, a resumed session joins those it is in.  Without
 *   the answer it joins, and asks again: -KVP_ENOENT says that it had left.
 * - A session in which nobody ever says LEAVE (a library of before, or beside a daemon of before) is in all it joined until its end.
 */
#define KVP_WIRE_TOUCH 1u /* counts as a use */
#define KVP_WIRE_PREFETCH 2u /* RESTORE: answer at once, go on reading; no miss is counted */
#define KVP_WIRE_FIRST \
	4u /* RESTORE: answer as soon as the first key is there or is not coming, go on reading the others; misses
			     are counted when the first key is one */
#define KVP_WIRE_NO_WAIT 16u /* CLEAR: blocks in use are not waited for */
#define KVP_WIRE_DEADLINE 32u /* DELETE: behind the keys lies, in 8 bytes, by when the answer is wanted */
#define KVP_WIRE_LAYERS 8u /* RESTORE: a block whose first layers are there is there (KVP_WIRE_ARRIVES) */

struct kvp_wire_item {
	uint64_t slot; /* of the grant, or of the staging object with KVP_ITEM_STAGED */
	uint64_t generation;
	struct kvp_key key;
	struct kvp_key parent; /* all zero: none */
	uint64_t used_bytes;
	uint32_t used_tokens;
	uint32_t flags;
};
#define KVP_ITEM_STAGED 1u
static_assert(sizeof(struct kvp_wire_item) == 64, "wire v1");

struct kvp_wire_result {
	int32_t result; /* enum kvp_publish_result */
	uint32_t flags; /* KVP_RESULT_... */
	uint64_t slot; /* STORED: where it lies; EXISTS: the other block's; the grant then stays the caller's */
	uint64_t generation;
};
static_assert(sizeof(struct kvp_wire_result) == 24, "wire v1");
#define KVP_RESULT_STAGE_WANTED 1u /* of a staged block: another writer waits for a staging area */

struct kvp_wire_restore {
	uint64_t ns_id;
	uint32_t n;
	uint32_t flags; /* KVP_WIRE_PREFETCH, KVP_WIRE_FIRST */
	uint64_t deadline_ns;
};
static_assert(sizeof(struct kvp_wire_restore) == 24, "wire v1");

struct kvp_wire_found {
	uint32_t state; /* enum kvp_hit */
	uint32_t
		reason; /* enum kvp_miss_reason, with KVP_MISS; with KVP_HIT_RAM of a RESTORE: KVP_WIRE_RESTORED, or 0; of a
			   DELETE, not with KVP_MISS: KVP_WIRE_OF_BASE, or 0 */
	uint64_t slot; /* with KVP_HIT_RAM: a hint */
};
static_assert(sizeof(struct kvp_wire_found) == 16, "wire v1");

#define KVP_WIRE_ARRIVES \
	2u /* it is being read back into the slot named, and some layers are there: struct kvp_block says how to hold it */
#define KVP_WIRE_OF_BASE 3u /* it is a block of the base, which nobody deletes from here */
#define KVP_WIRE_RESTORED 1u /* it had to be read back for this: a hit of the spill store */

struct kvp_wire_stage {
	uint64_t ns_id;
	uint64_t n_blocks; /* wished for; 0: given up */
};
#define KVP_STAGE_LEAST 16u

struct kvp_wire_staged {
	uint64_t bytes; /* of the object; block_stride apart */
	uint64_t n_blocks;
};
#define KVP_STAGED_LEAST 16u

struct kvp_wire_ring {
	uint64_t bytes; /* of the object */
};
#define KVP_RING_LEAST 8u

struct kvp_wire_usage {
	uint64_t capacity_bytes;
	uint64_t ram_blocks, ram_bytes;
	uint64_t spill_blocks, spill_bytes; /* copies of blocks in memory included */
	uint64_t lookups, hits_ram, hits_spill, tokens_ram, tokens_spill;
	uint64_t stored, evicted, dropped, restored;
};
#define KVP_USAGE_LEAST 112u

struct kvp_wire_cold_ask {
	uint64_t after; /* the ns_id of the last answer; 0: from the first on */
	uint32_t idle_ms;
	uint32_t reserved;
};
#define KVP_COLD_ASK_LEAST 16u

/* A namespace with KVP_NS_COLD that the session may write to, and the one it is made of, which it may read. */
struct kvp_wire_cold_ns {
	uint64_t ns_id;
	uint32_t owner_uid;
	uint32_t has; /* 1: something is cold in it; KVP_COLD_MORE */
	char name[KVP_NAME_MAX];
	struct kvp_desc from, to;
};
#define KVP_COLD_MORE 2u /* not as far as was looked: ask again */
#define KVP_COLD_NS_LEAST ((uint32_t)(80 + 2 * sizeof(struct kvp_desc)))
static_assert(sizeof(struct kvp_wire_cold_ns) == 80 + 2 * sizeof(struct kvp_desc), "wire v1");

/* What an operator asks for. Read after its deadline it is not done: status -ETIME. */
struct kvp_wire_admin {
	uint64_t deadline_ns; /* CLOCK_MONOTONIC; 0: none */
	uint64_t ns_id; /* 0: all */
	uint64_t n; /* EVICT: blocks; UINT64_MAX: all that may go */
};
#define KVP_ADMIN_LEAST 24u

struct kvp_wire_resize {
	uint64_t deadline_ns; /* likewise */
	char pool[1024]; /* as kvpoold's --pool */
};
#define KVP_RESIZE_LEAST 1032u

struct kvp_wire_admin_done {
	uint64_t n_done;
	uint64_t n_left;
	uint64_t n_failed; /* of those left: could not be written */
	int32_t error; /* errno of the last of them */
	uint32_t late; /* 1: the deadline ended it */
	uint64_t n_pushed; /* DRAIN: of those left: written, and pushed out by what was written after them */
};
#define KVP_ADMIN_DONE_LEAST 16u

#endif
