/*
 * session.h - clients as the pool knows them: their session objects, pins, grants, and whether they live
 *
 * A session lives as long as its process holds the record lock on its object; the socket only brings news.  Closed
 * socket and free lock: dead at once.  Lock seen free for longer than two heartbeats: dead.  A session that ends stops
 * counting in this order: its word is cleared, its pins are read once more, its grants return, its object goes.
 */
#ifndef KVPOOL_SESSION_H
#define KVPOOL_SESSION_H

#include "daemon.h"
#include "kvpool_wire.h"

/* Where a writer of a copied namespace puts its blocks. Outlives its member while a copy out of it is under way. */
struct stage {
	unsigned n_users;
	int fd;
	uint64_t number, n_blocks, bytes;
	bool given; /* its client has given it up: nobody maps it any more */
};

/* has_place */
#define PLACE_PINS 1u /* it has pin pages there */
#define PLACE_WRITABLE 2u /* and got a descriptor it may write with */

struct session {
	struct session *next;
	struct daemon *d;
	uint64_t id;
	uid_t uid;
	gid_t gid;
	gid_t *groups;
	unsigned n_groups;
	struct peer *peer; /* NULL: its socket is closed */
	int fd;
	struct kvp_session_header *head; /* the whole object is mapped here; client-writable: read under the guard */
	uint64_t object_bytes;
	uint64_t pins_off; /* where its pin tables begin: a daemon of another minor version may have made it */
	int guard;
	uint8_t *has_place; /* by place: PLACE_... of the slab that is there now */
	uint32_t *grants_at; /* by place: grants of it that lie there */
	uint64_t meta_bytes; /* of shared memory for it */
	struct member *members;
	struct kvp_session_row *row;
	struct kvp_client_counts seen; /* counts already added to the first namespace, of a client that names none */
	uint64_t lock_free_since_ns; /* 0: held when last seen */
	uint64_t opened_ns;
	uint64_t heard_ns; /* when its last message came, or it was adopted */
	uint64_t sweep_pins; /* in this sweep: holds, and for how many ticks it has had the oldest */
	uint32_t sweep_oldest;
	bool over_pins; /* its uid was over uid-max-pins at the last count */
	bool ending; /* no longer counted; stays until its process, which may still store, is gone */
};

/** session_start() - adopt the sessions of the last daemon whose process lives; end the others */
int session_start(struct daemon *d, char message[256]);
void session_stop(struct daemon *d);

/** session_open() - a new one for @peer. Return: 0; -KVP_EQUOTA; -KVP_ENOMEM; -KVP_ENOSPC. @reason: 256 bytes. */
int session_open(struct daemon *d, struct peer *peer, const struct kvp_wire_hello *hello, struct session **session,
	char reason[256]);
/** session_resume() - Return: 0; -KVP_ESTALE: unknown, dead, or of another uid. */
int session_resume(struct daemon *d, struct peer *peer, const struct kvp_wire_hello *hello, struct session **session);
/** session_disconnected() - its socket is closed; it ends if its process is gone */
void session_disconnected(struct session *s);
/** session_end() - see above. @how: for the log, or NULL. */
void session_end(struct session *s, const char *how);
/** session_look() - several times a second: who died, who broke its objects, whose holds go? adds up client counts */
void session_look(struct daemon *d);

struct member *session_member(const struct session *s, const struct ns *ns);
struct member *session_join(struct session *s, struct ns *ns, bool writable);
/** session_leave() - undo session_join(), by KVP_MSG_LEAVE's rules. Return: false: it holds something there, or waits for an
 *  answer: nothing was done; else @member is no more. */
bool session_leave(struct member *member);
struct session *session_find(struct daemon *d, uint64_t id);
/** session_grants_left() - how many more its uid may have, of all its sessions; uid-max-grants */
uint32_t session_grants_left(const struct session *s);
/** session_limit_pins() - after a count of pins: put out who holds more than uid-max-pins, seen twice */
void session_limit_pins(struct daemon *d);
/** session_limit_age() - likewise: who has held a block unused for longer than pin-limit */
void session_limit_age(struct daemon *d);
/** session_make_stage() - a staging area for its copied publishes; removed with the session. Return: 0; -KVP_ENOSPC. */
int session_make_stage(struct member *member, uint64_t n_blocks);
/** session_wish_stage() - it asks for one: its place among those that wait is from its first asking */
void session_wish_stage(struct member *member);
/** session_stage_waits() - writers that asked for one lately and found no room. Return: bytes those need at least that came
 *  before @member, NULL: all of them; *@n: how many others wait */
uint64_t session_stage_waits(const struct daemon *d, const struct member *member, unsigned *n);
/** session_give_stage() - its client has unmapped it and gives it up; a copy under way ends first */
void session_give_stage(struct member *member);
/** session_put_stage() - one user less; the last one frees it */
void session_put_stage(struct daemon *d, struct stage *stage);
bool session_in_group(const struct session *s, gid_t gid);

/** session_give_place() - the session will map this place: make its pin pages. Return: 0; -KVP_ENOSPC. */
int session_give_place(struct session *s, uint32_t place);

/** session_pins() - does any counted session pin this slot? The evictor's second step: seq_cst loads. Also the latest stamp. */
bool session_pins(struct daemon *d, uint32_t place, uint32_t index, uint32_t *stamp);

static inline struct kvp_pin *session_pin(const struct session *s, uint32_t place, uint32_t index)
{
	return (struct kvp_pin *)(void *)((char *)s->head + s->pins_off +
					  (uint64_t)place * s->d->pool.header->pin_stride) +
	       index;
}

#endif
