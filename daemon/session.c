/* session.c - see session.h */
#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "block.h"
#include "guard.h"
#include "log.h"
#include "namespace.h"
#include "peer.h"
#include "policy.h"
#include "shm.h"
#include "slab.h"
#include "tier.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define LOCK_NS 50000000ull /* so long may a lock be free between two moments in which it is held */
#define LOCK_LOOK_NS 1000000
#define STAGE_FRESH_NS 200000000ull /* who waits for a staging area asks more often than that */

static void session_name(const struct daemon *d, uint64_t id, char name[KVP_OBJECT_NAME_MAX])
{
	shm_object_name(name, d->pool.uuid, "sess-%016" PRIx64, id);
}

static uint64_t session_bytes(const struct daemon *d, uint64_t pins_off)
{
	return pins_off + d->pool.header->max_places * d->pool.header->pin_stride;
}

/* The kernel's word on whether the process lives: does somebody hold the record lock? */
static bool session_lock_held(const struct session *s)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};

	if (fcntl(s->fd, F_GETLK, &lock) < 0)
		return true; /* cannot tell: alive */
	return lock.l_type != F_UNLCK;
}

/* The lock is free: may it be held again in a moment?  Libraries of before close a descriptor of the object now and then,
   which drops it until they take it anew. */
static bool session_may_lock(const struct session *s)
{
	return !atomic_load(&s->head->left) && (kill(s->row->pid, 0) == 0 || errno != ESRCH);
}

static struct session *session_new(struct daemon *d, uint64_t id, int fd, uint64_t pins_off)
{
	struct session *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->d = d;
	s->id = id;
	s->fd = fd;
	s->guard = GUARD_NONE;
	s->pins_off = pins_off;
	s->object_bytes = session_bytes(d, pins_off);
	s->opened_ns = s->heard_ns = loop_now();
	s->has_place = calloc(d->pool.header->max_places, 1);
	s->grants_at = calloc(d->pool.header->max_places, sizeof(*s->grants_at));
	s->head = shm_map(fd, s->object_bytes);
	if (s->head)
		s->guard = guard_add(s->head, s->object_bytes);
	if (!s->has_place || !s->grants_at || !s->head || s->guard < 0) {
		guard_remove(s->guard);
		if (s->head)
			munmap(s->head, s->object_bytes);
		free(s->has_place);
		free(s->grants_at);
		free(s);
		return NULL;
	}
	return s;
}

static void session_list_add(struct session *s)
{
	s->next = s->d->sessions;
	s->d->sessions = s;
	s->d->n_sessions++;
	s->meta_bytes = s->pins_off;
	s->d->pool.meta_bytes += s->meta_bytes;
	gauge_set(&s->d->pool.stats->counters.sessions, s->d->n_sessions);
}

/* It is the session's no more. */
static void member_free(struct member *member)
{
	if (--member->ns->n_members == 0)
		member->ns->left_tick = daemon_tick(member->ns->d);
	free(member);
}

static void session_free(struct session *s)
{
	struct session **at = &s->d->sessions;

	while (*at && *at != s)
		at = &(*at)->next;
	if (*at) {
		*at = s->next;
		s->d->n_sessions--;
		s->d->pool.meta_bytes -= s->meta_bytes;
	}
	gauge_set(&s->d->pool.stats->counters.sessions, s->d->n_sessions);
	while (s->members) {
		struct member *member = s->members;

		s->members = member->next;
		if (member->stage) { /* at a stop only: the object is for the next start to judge */
			close(member->stage->fd);
			free(member->stage);
		}
		member_free(member);
	}
	guard_remove(s->guard);
	munmap(s->head, s->object_bytes);
	close(s->fd);
	free(s->has_place);
	free(s->grants_at);
	free(s->groups);
	free(s);
}

static unsigned session_count_of(const struct daemon *d, uid_t uid)
{
	unsigned n = 0;

	for (const struct session *s = d->sessions; s; s = s->next)
		n += s->uid == uid;
	return n;
}

static struct kvp_session_row *session_free_row(struct daemon *d)
{
	for (unsigned i = 0; i < KVP_STATS_SESSIONS_MAX; i++)
		if (!atomic_load_explicit(&d->pool.session_rows[i].session_id, memory_order_relaxed))
			return &d->pool.session_rows[i];
	return NULL;
}

static void session_row_fill(struct session *s, const struct peer *peer, const struct kvp_wire_hello *hello)
{
	struct kvp_session_row *row = s->row;

	memset(row, 0, sizeof(*row));
	row->uid = s->uid;
	row->gid = s->gid;
	row->pid = peer->pid;
	row->connected = 1;
	row->opened_ns = s->opened_ns;
	snprintf(row->comm, sizeof(row->comm), "%.31s", hello->comm);
	for (char *c = row->comm; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?'; /* it is shown in terminals */
	atomic_store_explicit(&row->session_id, s->id, memory_order_release);
}

static void session_set_peer(struct session *s, struct peer *peer)
{
	s->peer = peer;
	peer->session = s;
	s->uid = peer->uid;
	s->gid = peer->gid;
	free(s->groups);
	s->n_groups = peer->n_groups;
	s->groups = peer->groups;
	peer->groups = NULL; /* moved */
	peer->n_groups = 0;
}

static void session_header_fill(struct session *s)
{
	struct kvp_session_header *head = s->head;

	head->layout_major = KVP_LAYOUT_MAJOR;
	head->layout_minor = KVP_LAYOUT_MINOR;
	head->header_bytes = sizeof(*head);
	head->endian = KVP_ENDIAN;
	head->session_id = s->id;
	head->pins_off = s->pins_off;
	head->pin_stride = s->d->pool.header->pin_stride;
	head->object_bytes = s->object_bytes;
	head->magic = KVP_MAGIC_SESSION;
	atomic_store(&head->word, 1);
}

/* @reason: the one limit that is in the way. */
static bool session_is_one_too_many(
	const struct daemon *d, uid_t uid, const struct kvp_session_row *row, char reason[256])
{
	unsigned n = session_count_of(d, uid);

	if (n >= d->config.uid_max_clients)
		snprintf(reason, 256, "uid %u has %u sessions: raise uid-max-clients (%u)", (unsigned)uid, n,
			d->config.uid_max_clients);
	else if (d->n_sessions >= d->config.max_clients)
		snprintf(reason, 256, "%u sessions are open: raise max-clients (%u)", d->n_sessions,
			d->config.max_clients);
	else if (!row)
		snprintf(reason, 256, "%u sessions are open, more there cannot be", d->n_sessions);
	else
		return false;
	return true;
}

int session_open(
	struct daemon *d, struct peer *peer, const struct kvp_wire_hello *hello, struct session **out, char reason[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	struct kvp_session_row *row = session_free_row(d);
	struct session *s;
	uint64_t id;
	int fd;

	if (session_is_one_too_many(d, peer->uid, row, reason))
		return -KVP_EQUOTA;
	randombytes_buf(&id, sizeof(id));
	id |= 1;
	session_name(d, id, name);
	fd = shm_make(name, session_bytes(d, KVP_SESSION_PINS_OFF), (gid_t)-1);
	if (fd < 0 || shm_reserve(fd, 0, KVP_SESSION_PINS_OFF) < 0) {
		snprintf(reason, 256,
			"no room in " SHM_DIR
			" for a session object, or no descriptor left: %s; make room there, or raise LimitNOFILE",
			strerror(fd < 0 ? -fd : ENOSPC));
		if (fd >= 0) {
			close(fd);
			shm_remove(name);
		}
		return -KVP_ENOSPC;
	}
	s = session_new(d, id, fd, KVP_SESSION_PINS_OFF);
	if (!s) {
		close(fd);
		shm_remove(name);
		snprintf(reason, 256, "the daemon is out of memory or mappings");
		return -KVP_ENOMEM;
	}
	session_set_peer(s, peer);
	session_header_fill(s);
	s->row = row;
	pool_stats_begin(&d->pool);
	session_row_fill(s, peer, hello);
	session_list_add(s);
	gauge_add(&d->pool.stats->counters.sessions_opened, 1);
	pool_stats_end(&d->pool);
	*out = s;
	return 0;
}

int session_resume(struct daemon *d, struct peer *peer, const struct kvp_wire_hello *hello, struct session **out)
{
	for (struct session *s = d->sessions; s; s = s->next) {
		if (s->id != hello->session_id)
			continue;
		if (s->uid != peer->uid || s->ending || !session_lock_held(s))
			break;
		if (s->peer) { /* its old socket: the client has given it up */
			s->peer->session = NULL;
			peer_close(s->peer, NULL);
		}
		session_set_peer(s, peer);
		s->heard_ns = loop_now();
		s->row->connected = 1;
		s->row->pid = peer->pid;
		gauge_add(&d->pool.stats->counters.sessions_resumed, 1);
		*out = s;
		return 0;
	}
	return -KVP_ESTALE;
}

struct member *session_member(const struct session *s, const struct ns *ns)
{
	for (struct member *member = s->members; member; member = member->next)
		if (member->ns == ns)
			return member;
	return NULL;
}

/* For those who look: the first of them it joined. */
static void session_tell_namespaces(struct session *s)
{
	unsigned n = 0;

	for (const struct member *member = s->members; member && n < KVP_STATS_SESSION_NS; member = member->next)
		gauge_set(&s->row->ns_ids[n++], member->ns->id);
	while (n < KVP_STATS_SESSION_NS)
		gauge_set(&s->row->ns_ids[n++], 0);
}

struct member *session_join(struct session *s, struct ns *ns, bool writable)
{
	struct member *member = session_member(s, ns);

	if (!member) {
		member = calloc(1, sizeof(*member));
		if (!member)
			return NULL;
		member->session = s;
		member->ns = ns;
		member->next = s->members;
		s->members = member;
		ns->n_members++;
		session_tell_namespaces(s);
	}
	member->writable = member->writable || writable;
	return member;
}

struct session *session_find(struct daemon *d, uint64_t id)
{
	for (struct session *s = d->sessions; s; s = s->next)
		if (s->id == id)
			return s;
	return NULL;
}

uint32_t session_grants_left(const struct session *s)
{
	uint64_t n = 0, most = s->d->config.uid_max_grants;

	for (const struct session *of = s->d->sessions; most && of; of = of->next)
		if (of->uid == s->uid)
			n += atomic_load_explicit(&of->row->grants, memory_order_relaxed);
	return !most ? UINT32_MAX : n < most ? (uint32_t)(most - n) : 0;
}

bool session_in_group(const struct session *s, gid_t gid)
{
	if (s->gid == gid)
		return true;
	for (unsigned i = 0; i < s->n_groups; i++)
		if (s->groups[i] == gid)
			return true;
	return false;
}

static uint64_t place_off(const struct session *s, uint32_t place)
{
	return s->pins_off + place * s->d->pool.header->pin_stride;
}

/* Of the pages for its pins. */
static uint64_t place_bytes(const struct session *s, uint32_t place)
{
	uint64_t bytes = s->d->slabs[place]->n_slots * sizeof(struct kvp_pin);

	return (bytes + KVP_PAGE - 1) & ~(uint64_t)(KVP_PAGE - 1);
}

int session_give_place(struct session *s, uint32_t place)
{
	uint64_t off = place_off(s, place), bytes = place_bytes(s, place);

	if (s->has_place[place])
		return 0;
	if (shm_reserve(s->fd, off, bytes) < 0)
		return -KVP_ENOSPC;
	/* pages that are only allocated read as a hole to SEEK_DATA, and a new daemon would miss the pins in them */
	if (madvise((char *)s->head + off, bytes, MADV_POPULATE_WRITE) < 0 && errno != EINVAL)
		return -KVP_ENOSPC;
	s->has_place[place] = PLACE_PINS;
	s->meta_bytes += bytes;
	s->d->pool.meta_bytes += bytes;
	gauge_add(&s->row->slabs, 1);
	return 0;
}

bool session_pins(struct daemon *d, uint32_t place, uint32_t index, uint32_t *stamp)
{
	bool pinned = false;

	for (const struct session *s = d->sessions; s; s = s->next) {
		struct kvp_pin *pin;
		uint32_t used;

		if (!s->has_place[place] || s->ending)
			continue;
		pin = session_pin(s, place, index);
		pinned = atomic_load(&pin->count) != 0 || pinned; /* seq_cst, after the DRAINING store */
		used = atomic_load_explicit(&pin->stamp, memory_order_relaxed);
		/* a stamp of the future is a lie: it must not keep a block for ever */
		if (stamp && (int32_t)(used - *stamp) > 0 && (int32_t)(used - daemon_tick(d)) <= 0)
			*stamp = used;
	}
	return pinned;
}

/* What the session knew about the use of a slab's blocks, before its pin table goes. */
static void session_harvest_slab(const struct session *s, struct slab *slab)
{
	for (uint32_t i = 0; i < slab->n_slots; i++) {
		struct entry *e = slab->slots[i].who;
		uint64_t slot = (uint64_t)slab->place * slab->ns->head->slots_per_slab + i;
		uint32_t used;

		if (!e || kvp_word_state(atomic_load(&slab->ns->blocks[slot].word)) != KVP_BLOCK_PUBLISHED)
			continue;
		used = atomic_load_explicit(&session_pin(s, slab->place, i)->stamp, memory_order_relaxed);
		if (!used || (int32_t)(used - daemon_tick(s->d)) > 0)
			continue;
		block_used(e, used);
		if ((int32_t)(used - e->stamp) > 0) {
			e->stamp = used;
			policy_touch(slab->ns, e);
		}
	}
}

static void session_harvest(const struct session *s)
{
	for (uint32_t place = 0; place < s->d->pool.header->max_places; place++)
		if (s->has_place[place] && s->d->slabs[place] && s->d->slabs[place]->ns)
			session_harvest_slab(s, s->d->slabs[place]);
}

/* Its pin table of a place goes, and it has the slab there mapped no more.  No page stays: the next start would find it. */
static void session_end_place(struct session *s, uint32_t place)
{
	uint64_t bytes = place_bytes(s, place);

	session_harvest_slab(s, s->d->slabs[place]);
	if (s->has_place[place] & PLACE_WRITABLE)
		s->d->slabs[place]->writer_left = true;
	if (fallocate(s->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)place_off(s, place), (off_t)bytes) < 0)
		log_debug("session %016" PRIx64 ": %s", s->id, strerror(errno));
	s->has_place[place] = 0;
	s->meta_bytes -= bytes;
	s->d->pool.meta_bytes -= bytes;
	gauge_add(&s->row->slabs, -1);
}

/* How much more a client's count is than what of it was @seen, which is moved up. */
static uint64_t count_grown(_Atomic uint64_t *seen, const _Atomic uint64_t *now)
{
	uint64_t value = atomic_load_explicit(now, memory_order_relaxed);
	uint64_t before = atomic_load_explicit(seen, memory_order_relaxed);

	if (value <= before)
		return 0;
	atomic_store_explicit(seen, value, memory_order_relaxed);
	return value - before;
}

/* What computing these tokens would have taken, by the client's word, less what reading them took. Beyond a year it is a lie. */
static int64_t session_saved_us(const struct member *member, uint64_t ram, uint64_t spill)
{
	const struct kvp_ns_header *head = member->ns->head;
	double read_ns = tier_read_ns(member->ns->d, head->block_bytes) / head->desc.block_tokens;
	double cost_ns = (double)member->cost_ns_per_token;
	double us = ((double)ram * cost_ns + (cost_ns > read_ns ? (double)spill * (cost_ns - read_ns) : 0)) / 1e3;

	return us < 3e13 ? (int64_t)us : 0;
}

/* Hits are lookups as well; misses are counted when they are told. */
#define ADD_GROWN(member, seen, now) \
	do { \
		struct ns *ns_ = (member)->ns; \
		struct kvp_ns_counters *c_ = &ns_->row->counters; \
		int64_t ram_ = (int64_t)count_grown(&(seen)->hits_ram, &(now)->hits_ram); \
		int64_t spill_ = (int64_t)count_grown(&(seen)->hits_spill, &(now)->hits_spill); \
\
		gauge_add(&c_->hits_ram, ram_); \
		gauge_add(&c_->hits_spill, spill_); \
		gauge_add(&c_->lookups, ram_ + spill_); \
		uint64_t tokens_ram_ = count_grown(&(seen)->tokens_ram, &(now)->tokens_ram); \
		uint64_t tokens_spill_ = count_grown(&(seen)->tokens_spill, &(now)->tokens_spill); \
\
		gauge_add(&c_->tokens_ram, (int64_t)tokens_ram_); \
		gauge_add(&c_->tokens_spill, (int64_t)tokens_spill_); \
		gauge_add(&c_->saved_us, session_saved_us(member, tokens_ram_, tokens_spill_)); \
	} while (0)

/* To the namespaces the client names, of those it has joined; a client that names none has its first one. */
static void session_share_counts(struct session *s)
{
	struct member *first = s->members;

	for (unsigned i = 0; i < KVP_CLIENT_NS_MAX; i++) {
		struct kvp_client_ns_counts *now = &s->head->ns_counts[i];
		uint64_t ns_id = atomic_load(&now->ns_id);
		struct ns *ns = ns_id ? ns_find(s->d, ns_id) : NULL;

		if (!ns_id && !i)
			break;
		if (!ns_id)
			return;
		if (ns && session_member(s, ns))
			ADD_GROWN(session_member(s, ns), &s->head->ns_seen[i], now);
	}
	if (!first || atomic_load(&s->head->ns_counts[0].ns_id))
		return;
	while (first->next)
		first = first->next;
	ADD_GROWN(first, &s->seen, s->row);
}

static void session_add_counts(struct session *s)
{
	struct kvp_client_counts *now = &s->head->counts;
	struct kvp_session_row *row = s->row;

	/* the client's own figures: shown as its own, never below what was seen */
#define ADD(field) \
	do { \
		uint64_t value = atomic_load_explicit(&now->field, memory_order_relaxed); \
		if (value > atomic_load_explicit(&row->field, memory_order_relaxed)) \
			atomic_store_explicit(&row->field, value, memory_order_relaxed); \
	} while (0)
	ADD(lookups);
	ADD(hits_ram);
	ADD(hits_spill);
	ADD(misses);
	ADD(tokens_ram);
	ADD(tokens_spill);
	ADD(copied_bytes);
	ADD(private_blocks);
	ADD(lost_holds);
#undef ADD
	session_share_counts(s);
}

int session_make_stage(struct member *member, uint64_t n_blocks)
{
	struct daemon *d = member->session->d;
	struct stage *stage;
	char name[KVP_OBJECT_NAME_MAX];
	uint64_t bytes = n_blocks * member->ns->head->block_stride;
	int fd, r;

	if (member->stage)
		return 0;
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return -KVP_ENOMEM;
	stage->number = atomic_fetch_add(&d->pool.stats->next_number, 1);
	shm_object_name(name, d->pool.uuid, "stage-%" PRIu64, stage->number);
	fd = shm_make(name, bytes, (gid_t)-1);
	r = fd < 0 ? fd : shm_reserve(fd, 0, bytes);
	if (r < 0) {
		if (fd >= 0)
			close(fd);
		shm_remove(name);
		free(stage);
		return -KVP_ENOSPC;
	}
	stage->n_users = 1;
	stage->fd = fd;
	stage->n_blocks = n_blocks;
	stage->bytes = bytes;
	member->stage = stage;
	gauge_add(&member->session->row->staged, (int64_t)n_blocks);
	d->stage_bytes += bytes;
	gauge_set(&d->pool.stats->counters.slab_bytes_staging, d->stage_bytes);
	return 0;
}

/* A client asks anew every few milliseconds until its deadline: one that has ceased to waits no more. */
static bool session_stage_waiting(const struct member *member)
{
	return member->stage_wish_ns && !member->stage && loop_now() - member->stage_asked_ns <= STAGE_FRESH_NS;
}

void session_wish_stage(struct member *member)
{
	if (!session_stage_waiting(member))
		member->stage_wish_ns = loop_now();
	member->stage_asked_ns = loop_now();
}

uint64_t session_stage_waits(const struct daemon *d, const struct member *member, unsigned *n)
{
	uint64_t bytes = 0;

	*n = 0;
	for (const struct session *s = d->sessions; s; s = s->next)
		for (const struct member *other = s->members; other; other = other->next) {
			if (other == member || !session_stage_waiting(other))
				continue;
			++*n;
			if (!member || other->stage_wish_ns < member->stage_wish_ns)
				bytes += other->ns->head->block_stride;
		}
	return bytes;
}

void session_give_stage(struct member *member)
{
	if (!member->stage)
		return;
	gauge_add(&member->session->row->staged, -(int64_t)member->stage->n_blocks);
	member->stage->given = true;
	session_put_stage(member->session->d, member->stage);
	member->stage = NULL;
}

void session_put_stage(struct daemon *d, struct stage *stage)
{
	char name[KVP_OBJECT_NAME_MAX];

	if (--stage->n_users)
		return;
	shm_object_name(name, d->pool.uuid, "stage-%" PRIu64, stage->number);
	shm_remove(name);
	/* its writer may have it mapped for long: the memory goes now. Who gave it up said that nobody maps it; cut, it is no
	 * memory to go on storing into that nobody counts */
	if (stage->given ? ftruncate(stage->fd, 0) < 0
			 : fallocate(stage->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)stage->bytes) < 0)
		log_warn(SHM_DIR "%s: cannot give its memory back: %s", name, strerror(errno));
	close(stage->fd);
	d->stage_bytes -= stage->bytes;
	gauge_set(&d->pool.stats->counters.slab_bytes_staging, d->stage_bytes);
	free(stage);
}

static bool member_has_place(const struct member *member, uint32_t place)
{
	const struct slab *slab = member->session->d->slabs[place];

	return member->session->has_place[place] && slab && slab->ns == member->ns;
}

/* By its own tables, which it writes itself: saying so it stays where it is. */
static bool member_pins(const struct member *member)
{
	const struct session *s = member->session;

	for (uint32_t place = 0; place < s->d->pool.header->max_places; place++)
		for (uint32_t i = 0; member_has_place(member, place) && i < s->d->slabs[place]->n_slots; i++)
			if (atomic_load(&session_pin(s, place, i)->count))
				return true;
	return false;
}

bool session_leave(struct member *member)
{
	struct session *s = member->session;
	struct member **at = &s->members;

	if (member_pins(member) || tier_member_waits(member))
		return false;
	session_add_counts(s); /* while it is in there: what it used was of this namespace */
	block_release_all_grants(member);
	session_give_stage(member);
	for (uint32_t place = 0; place < s->d->pool.header->max_places; place++)
		if (member_has_place(member, place))
			session_end_place(s, place);
	while (*at != member)
		at = &(*at)->next;
	*at = member->next;
	member_free(member);
	session_tell_namespaces(s);
	gauge_add(&s->d->pool.stats->counters.namespaces_left, 1);
	return true;
}

/* With nobody left there is no further look at the pins, nor need for one. */
static void session_nothing_held(struct daemon *d)
{
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		ns->sweep_held = 0; /* of a look under way */
		gauge_set(&ns->row->counters.held, 0);
	}
}

/* The last step: its process is gone, nobody stores any more. */
static void session_finish(struct session *s)
{
	struct daemon *d = s->d;
	char name[KVP_OBJECT_NAME_MAX];

	for (struct member *member = s->members; member; member = member->next) {
		block_release_all_grants(member);
		tier_member_gone(member);
		if (member->stage)
			session_put_stage(d, member->stage);
		member->stage = NULL;
	}
	for (uint32_t place = 0; place < d->pool.header->max_places; place++)
		if (d->slabs[place] && s->has_place[place] & PLACE_WRITABLE)
			d->slabs[place]->writer_left = true;
	pool_stats_begin(&d->pool);
	atomic_store_explicit(&s->row->session_id, 0, memory_order_release);
	session_name(d, s->id, name);
	shm_remove(name);
	session_free(s);
	if (!d->n_sessions)
		session_nothing_held(d);
	pool_stats_end(&d->pool);
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		tier_serve(ns);
}

void session_end(struct session *s, const char *how)
{
	if (how)
		log_warn("session %016" PRIx64 " (%s, uid %u, pid %d) ends: %s", s->id, s->row->comm, (unsigned)s->uid,
			(int)s->row->pid, how);
	if (!s->ending) {
		atomic_store(&s->head->word, 0); /* first: its readers learn that their pins no longer count */
		session_add_counts(s);
		session_harvest(s);
		s->ending = true;
	}
	if (s->peer) {
		s->peer->session = NULL;
		peer_close(s->peer, NULL);
		s->peer = NULL;
	}
	s->row->connected = 0;
	if (!session_lock_held(s))
		session_finish(s);
}

/* Its process is gone. Who closed its client in order has said so where a daemon finds it that was not there to hear it. */
static void session_count_died(const struct session *s)
{
	if (!s->ending && !atomic_load(&s->head->left))
		gauge_add(&s->d->pool.stats->counters.sessions_died, 1);
}

void session_disconnected(struct session *s)
{
	s->peer = NULL;
	s->row->connected = 0;
	if (!session_lock_held(s)) {
		session_count_died(s);
		session_end(s, NULL);
	}
}

/* Has its client cut or grown what it may write? Grown, it would eat the room of the host. */
static const char *session_bad(const struct session *s)
{
	struct stat st;

	if (guard_condemned(s->guard))
		return "its session object was cut";
	if (fstat(s->fd, &st) == 0 && (uint64_t)st.st_size != s->object_bytes)
		return (uint64_t)st.st_size < s->object_bytes ? "its session object was cut"
							      : "its session object was grown";
	for (const struct member *member = s->members; member; member = member->next)
		if (member->stage && fstat(member->stage->fd, &st) == 0 && (uint64_t)st.st_size != member->stage->bytes)
			return "its staging area was cut or grown";
	return NULL;
}

static void session_condemn(struct session *s, const char *why)
{
	gauge_add(&s->d->pool.stats->counters.sessions_condemned, 1);
	/* back to its length, so that it takes no more than it was given; what was cut is zero */
	if (ftruncate(s->fd, (off_t)s->object_bytes) < 0)
		log_debug("session %016" PRIx64 ": %s", s->id, strerror(errno));
	for (struct member *member = s->members; member; member = member->next)
		if (member->stage && ftruncate(member->stage->fd, (off_t)member->stage->bytes) < 0)
			log_debug("session %016" PRIx64 ": %s", s->id, strerror(errno));
	session_end(s, why);
}

static void session_look_at(struct session *s)
{
	struct daemon *d = s->d;
	const char *bad = s->ending ? NULL : session_bad(s);
	uint64_t now = loop_now();

	if (bad) {
		session_condemn(s, bad);
		return;
	}
	if (!s->ending)
		session_add_counts(s);
	if (session_lock_held(s)) {
		s->lock_free_since_ns = 0;
		return;
	}
	if (!s->lock_free_since_ns)
		s->lock_free_since_ns = now;
	if (s->peer && now - s->lock_free_since_ns < 2ull * d->config.heartbeat_ms * 1000000)
		return;
	if (!s->peer && now - s->lock_free_since_ns < LOCK_NS && session_may_lock(s))
		return;
	session_count_died(s);
	session_end(s, s->peer && !atomic_load(&s->head->left)
			       ? "its lock is free: the process is gone, or closed the session object"
			       : NULL);
}

/* Of all, or of one uid. */
static void session_revoke_silent(struct daemon *d, bool all, uint32_t uid)
{
	uint64_t limit = d->config.hold_limit_ms * 1000000ull, now = loop_now();
	struct session *next;

	for (struct session *s = limit ? d->sessions : NULL; s; s = next) {
		next = s->next;
		if (s->ending || now - s->heard_ns < limit || (!all && s->uid != uid))
			continue;
		gauge_add(&d->pool.stats->counters.sessions_condemned, 1);
		session_end(s, "not heard of for longer than hold-limit while memory is needed: its holds are revoked");
	}
}

static uint64_t session_pins_of(const struct daemon *d, uid_t uid)
{
	uint64_t n = 0;

	for (const struct session *s = d->sessions; s; s = s->next)
		if (s->uid == uid && !s->ending)
			n += atomic_load_explicit(&s->row->pins, memory_order_relaxed);
	return n;
}

void session_limit_pins(struct daemon *d)
{
	struct session *next;

	for (struct session *s = d->config.uid_max_pins ? d->sessions : NULL; s; s = next) {
		bool largest = true, over;

		next = s->next;
		for (const struct session *o = d->sessions; o; o = o->next)
			largest = largest && (o->uid != s->uid || o->ending || o->row->pins <= s->row->pins);
		over = !s->ending && largest && session_pins_of(d, s->uid) > d->config.uid_max_pins;
		if (over && s->over_pins) {
			char why[128];

			snprintf(why, sizeof(why), "its uid holds %" PRIu64 " blocks, uid-max-pins is %u: raise it",
				session_pins_of(d, s->uid), d->config.uid_max_pins);
			gauge_add(&d->pool.stats->counters.sessions_condemned, 1);
			session_end(s, why);
			continue;
		}
		s->over_pins = over;
	}
}

void session_limit_age(struct daemon *d)
{
	struct session *next;

	for (struct session *s = d->config.pin_limit_ms ? d->sessions : NULL; s; s = next) {
		uint64_t oldest_ms = atomic_load_explicit(&s->row->oldest_pin_ms, memory_order_relaxed);
		char why[160];

		next = s->next;
		if (s->ending || oldest_ms <= d->config.pin_limit_ms)
			continue;
		snprintf(why, sizeof(why),
			"it has held a block for %" PRIu64
			" ms without using it anew, pin-limit is %u: release it, or raise that",
			oldest_ms, d->config.pin_limit_ms);
		gauge_add(&d->pool.stats->counters.sessions_condemned, 1);
		session_end(s, why);
	}
}

void session_look(struct daemon *d)
{
	struct session *next;

	for (struct session *s = d->sessions; s; s = next) {
		next = s->next;
		session_look_at(s);
	}
	if (d->holds_wanted || d->own_holds_wanted) {
		bool all = d->holds_wanted;

		d->holds_wanted = d->own_holds_wanted = false;
		session_revoke_silent(d, all, d->own_holds_uid);
	}
}

/* Which places have pin pages: those whose pages hold data. Reading a hole through a mapping would fill it. */
static void session_find_places(struct session *s)
{
	uint64_t stride = s->d->pool.header->pin_stride;
	uint64_t off = s->pins_off;

	while (off < s->object_bytes) {
		off_t data = lseek(s->fd, (off_t)off, SEEK_DATA);
		uint64_t place;

		if (data < 0)
			break;
		place = ((uint64_t)data - s->pins_off) / stride;
		if (place >= s->d->pool.header->max_places)
			break;
		s->has_place[place] = PLACE_PINS;
		gauge_add(&s->row->slabs, 1);
		off = s->pins_off + (place + 1) * stride;
	}
}

/* What the last daemon saw of its counts is in the namespaces' counters already: by namespace the object says it itself. */
static void session_see_counts(struct session *s)
{
	atomic_store(&s->seen.hits_ram, atomic_load(&s->row->hits_ram));
	atomic_store(&s->seen.hits_spill, atomic_load(&s->row->hits_spill));
	atomic_store(&s->seen.tokens_ram, atomic_load(&s->row->tokens_ram));
	atomic_store(&s->seen.tokens_spill, atomic_load(&s->row->tokens_spill));
}

/* Where the pin tables of an object of @bytes begin, as the daemon that made it said; its client may have written there since.
   Return: 0: it is no session object of ours. */
static uint64_t session_pins_begin(const struct daemon *d, int fd, uint64_t bytes)
{
	struct kvp_session_header head;

	if (pread(fd, &head, KVP_SESSION_HEADER_LEAST, 0) != KVP_SESSION_HEADER_LEAST ||
		head.magic != KVP_MAGIC_SESSION || head.layout_major != KVP_LAYOUT_MAJOR)
		return 0;
	if (head.pins_off % KVP_PAGE || head.pins_off < KVP_SESSION_PINS_OFF_LEAST ||
		head.pins_off > KVP_SESSION_PINS_OFF_MAX || bytes < session_bytes(d, head.pins_off))
		return 0;
	return head.pins_off;
}

/* The daemon before may have known more of the header, or less. */
static void session_header_renew(const struct session *s)
{
	uint64_t known = sizeof(*s->head) < s->pins_off ? sizeof(*s->head) : s->pins_off;
	uint64_t before = s->head->header_bytes ? s->head->header_bytes : KVP_SESSION_HEADER_LEAST;

	if (before > known && before <= s->pins_off)
		memset((char *)s->head + known, 0, before - known);
	s->head->header_bytes = known;
	s->head->layout_minor = KVP_LAYOUT_MINOR;
}

/* At a start: is its process gone?  As long as it may be there, one look is not enough to give away what it writes to. */
static bool session_is_dead(const struct session *s, uint64_t until_ns)
{
	while (!session_lock_held(s)) {
		if (loop_now() >= until_ns || !session_may_lock(s))
			return true;
		nanosleep(&(struct timespec){.tv_nsec = LOCK_LOOK_NS}, NULL);
	}
	return false;
}

static bool session_adopt(struct daemon *d, struct kvp_session_row *row, uint64_t until_ns)
{
	uint64_t id = atomic_load(&row->session_id), bytes = 0, pins_off;
	char name[KVP_OBJECT_NAME_MAX];
	struct session *s;
	int fd;

	session_name(d, id, name);
	fd = shm_find(name, &bytes, (gid_t)-1);
	if (fd < 0)
		return false;
	pins_off = session_pins_begin(d, fd, bytes);
	s = pins_off ? session_new(d, id, fd, pins_off) : NULL;
	if (!s) {
		close(fd);
		return false;
	}
	s->row = row;
	s->uid = row->uid;
	s->gid = row->gid;
	gauge_set(&row->grants, 0); /* counted anew as they are adopted */
	gauge_set(&row->staged, 0); /* areas of the last daemon's are nobody's */
	gauge_set(&row->slabs, 0);
	gauge_set(&row->pins, 0);
	gauge_set(&row->oldest_pin_ms, 0);
	session_list_add(s);
	row->connected = 0;
	if (session_is_dead(s, until_ns)) {
		/* whoever has it mapped after all learns that nothing in it counts */
		if (atomic_exchange(&s->head->word, 0) != 0)
			session_count_died(s);
		session_free(s);
		return false;
	}
	if (atomic_load(&s->head->word) == 0) {
		s->ending = true;
		return true;
	}
	session_header_renew(s);
	session_find_places(s);
	session_see_counts(s);
	session_add_counts(s);
	return true;
}

static bool session_keep_object(void *owner, const char *rest)
{
	struct daemon *d = owner;
	uint64_t id;

	if (!strncmp(rest, "stage-", 6))
		return false; /* not kept: their writers ask anew */
	if (sscanf(rest, "sess-%" SCNx64, &id) != 1)
		return true;
	for (struct session *s = d->sessions; s; s = s->next)
		if (s->id == id)
			return true;
	return false;
}

int session_start(struct daemon *d, char message[256])
{
	uint64_t until_ns = loop_now() + LOCK_NS; /* of all together: who is dead is often many */

	(void)message;
	if (!d->pool.found)
		return 0;
	for (unsigned i = 0; i < KVP_STATS_SESSIONS_MAX; i++)
		if (atomic_load(&d->pool.session_rows[i].session_id) &&
			!session_adopt(d, &d->pool.session_rows[i], until_ns))
			atomic_store(&d->pool.session_rows[i].session_id, 0);
	shm_remove_all(d->pool.uuid, session_keep_object, d);
	gauge_set(&d->pool.stats->counters.slab_bytes_staging, 0);
	return 0;
}

void session_stop(struct daemon *d)
{
	while (d->sessions)
		session_free(d->sessions);
}
