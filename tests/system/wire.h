/*
 * wire.h - a client of kvpoold made of bare messages, for tests that libkvpool would be too well-behaved for
 *
 * wire_*: one connection and what it mapped, straight from kvpool_wire.h and kvpool_shm.h.  Nothing here asserts, so
 * forked children may use it too: calls return 0 or a count, or the negative error of the answer.
 * host_*: a kvpoold of the test's own: unique name, socket in a directory of its own, everything purged at the end.
 */
#ifndef KVPOOL_TEST_WIRE_H
#define KVPOOL_TEST_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvpool_shm.h"
#include "kvpool_stats.h"
#include "kvpool_wire.h"

#define WIRE_TIMEOUT_MS 20000
#define WIRE_HUNG_UP (-10001) /* the daemon closed the connection */
#define WIRE_SILENT (-10002) /* no answer by the deadline */
#define WIRE_PLACES_MAX 512

/* ---- the daemon ---- */

struct host {
	char dir[64], socket[96], log[96], name[32];
	char binary[512];
	pid_t pid; /* 0: none */
	uid_t uid; /* whom the daemon runs as */
	uint8_t uuid[16];
	struct kvp_stats *stats;
	size_t stats_bytes;
	const char *argv[48];
	unsigned limit_nofile; /* 0: as it is */
};

/** host_open() - directory, name and binary: $KVPOOLD, or build/kvpoold. @uid: whom to run the daemon as. */
int host_open(struct host *host, uid_t uid);
/** host_start() - run it with these options (NULL-terminated; none: the last ones) and wait until it serves.
 *  Return: 0; its exit status negative when it ended instead: -(1000 + status). */
int host_start(struct host *host, const char *const *options);
/** host_kill() - SIGKILL and reap. host_stop() - SIGTERM and reap. Return: wait status. */
int host_kill(struct host *host);
int host_stop(struct host *host);
/** host_alive() - the same process, and it answers a PING */
bool host_alive(struct host *host);
/** host_close() - kill, remove all objects and the directory */
void host_close(struct host *host);
/** host_logged() - does its log hold this text? Waits up to @ms for it. */
bool host_logged(const struct host *host, const char *text, unsigned ms);
/** host_object() - path of /dev/shm/kvp-<uuid>-<rest> */
void host_object(const struct host *host, char path[160], const char *rest);
/** host_objects() - how many objects of the pool there are; @bytes: what they occupy, or NULL */
unsigned host_objects(const struct host *host, uint64_t *bytes);
/** host_ns_row() - the namespace's row in the stats object */
const struct kvp_ns_row *host_ns_row(struct host *host, uint64_t ns_id);
/** host_conserves() - free + granted + restoring + taken + retired + published = slots, in a steady copy */
bool host_conserves(struct host *host);
/** host_cpu_ms() - CPU time it used */
uint64_t host_cpu_ms(const struct host *host);
/** host_rss_kib() - its resident size */
uint64_t host_rss_kib(const struct host *host);
unsigned host_n_fds(const struct host *host);
unsigned host_n_maps(const struct host *host);
/** wire_n_mapped() - mappings of ours of objects whose path has this in it */
unsigned wire_n_mapped(const char *object);

/* ---- a client ---- */

struct wire {
	int fd;
	uint64_t next_id;
	struct kvp_wire_welcome welcome;
	int header_fd, session_fd;
	const struct kvp_pool_header *header;
	struct kvp_session_header *session;
	size_t session_bytes;
	char text[300]; /* of the last refusal */
};

struct wire_ns {
	struct wire *w;
	struct kvp_wire_joined joined;
	uint64_t id;
	int fd;
	const struct kvp_ns_header *head;
	const struct kvp_slab *slabs;
	const struct kvp_block *blocks;
	const struct kvp_index_bucket *index;
	struct {
		uint64_t number;
		const char *ro;
		char *rw;
		size_t bytes;
	} at[WIRE_PLACES_MAX];
	int stage_fd;
	char *stage;
	struct kvp_wire_staged staged;
};

struct wire_pinned {
	uint64_t slot, word;
	const char *data;
	uint64_t used_bytes;
};

int wire_connect(struct wire *w, const char *socket);
/** wire_send() - one message. @n_fds descriptors may go with it, as no honest client would. Return: 0; -errno. */
int wire_send(struct wire *w, uint16_t type, uint64_t id, const void *body, size_t n, const int *fds, unsigned n_fds);
/** wire_receive() - the answer @id. Return: body bytes; -KVP_E...; WIRE_HUNG_UP; WIRE_SILENT. */
int wire_receive(struct wire *w, uint64_t id, void *body, size_t room, int *fds, unsigned *n_fds, int timeout_ms);
int wire_call(struct wire *w, uint16_t type, const void *body, size_t n, void *reply, size_t room);
/** wire_hello() - open or resume a session, map it, take its lock */
int wire_hello(struct wire *w, uint64_t resume);
int wire_open(struct wire *w, const char *socket); /* connect and hello */
/** wire_drop() - close the socket only: the session lives on. wire_close() - everything. */
void wire_drop(struct wire *w);
void wire_close(struct wire *w);
/** wire_lock() - take the session's record lock anew */
int wire_lock(struct wire *w);

/** wire_desc() - a descriptor of opaque blocks of @bytes for 16 tokens */
void wire_desc(struct kvp_desc *desc, uint64_t bytes, uint8_t model);
/** wire_join_as() - JOIN with all its fields; wire_join() - own namespace @name, mode 0600, blocks of @bytes */
int wire_join_as(struct wire *w, struct wire_ns *ns, const struct kvp_wire_join *join);
int wire_join(struct wire *w, struct wire_ns *ns, const char *name, uint64_t bytes);
void wire_leave(struct wire_ns *ns); /* unmap */

/** wire_reserve() - Return: grants; -KVP_E... */
int wire_reserve(struct wire_ns *ns, struct kvp_wire_grant *grants, uint32_t n, unsigned wait_ms);
int wire_abandon(struct wire_ns *ns, const struct kvp_wire_grant *grants, uint32_t n);
/** wire_keep() - GRANTS: all this resumed session still has */
int wire_keep(struct wire_ns *ns, const struct kvp_wire_grant *grants, uint32_t n);
/** wire_map() - one place. Return: 0; -KVP_E... */
int wire_map(struct wire_ns *ns, uint32_t place, bool writable);
/** wire_data() - writable bytes of a granted slot, or NULL */
char *wire_data(struct wire_ns *ns, uint64_t slot);
int wire_publish(struct wire_ns *ns, const struct kvp_wire_item *items, uint32_t n, struct kvp_wire_result *results);
/** wire_put() - reserve, fill with the pattern of @k, publish under @key below @parent (NULL: none), unpinned.
 *  Return: enum kvp_publish_result; -KVP_ENOSPC; -KVP_E... */
int wire_put(struct wire_ns *ns, const struct kvp_key *key, const struct kvp_key *parent, uint64_t k, unsigned wait_ms);
int wire_stage(struct wire_ns *ns, uint64_t n_blocks);
int wire_lookup(struct wire_ns *ns, const struct kvp_key *keys, uint32_t n, struct kvp_wire_found *found);
int wire_restore(
	struct wire_ns *ns, const struct kvp_key *keys, uint32_t n, unsigned wait_ms, struct kvp_wire_found *found);

/** wire_pin() - by the protocol, mapping its slab when need be. Return: 1; 0: a miss. */
int wire_pin(struct wire_ns *ns, const struct kvp_key *key, struct wire_pinned *pinned);
void wire_unpin(struct wire_ns *ns, const struct wire_pinned *pinned);

/** wire_fill(), wire_right() - the content check of block @k */
void wire_fill(char *data, size_t n, uint64_t k);
bool wire_right(const char *data, size_t n, uint64_t k);

struct kvp_key wire_key(uint64_t k); /* any key, spread as hashes are */
uint64_t wire_now(void);
void wire_sleep_ms(unsigned ms);
/** wire_until() - wait until @done(arg) or @ms are over. Return: done. */
bool wire_until(bool (*done)(void *arg), void *arg, unsigned ms);

#endif
