/* namespace.c - see namespace.h */
#include "namespace.h"

#include <errno.h>
#include <inttypes.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "block.h"
#include "events.h"
#include "forget.h"
#include "index.h"
#include "kvpool_derived.h"
#include "kvpool_desc.h"
#include "log.h"
#include "policy.h"
#include "quota.h"
#include "session.h"
#include "shm.h"
#include "slab.h"
#include "tier.h"

#define COLLECT_NS 1000000000ull /* so long spare slabs wait for the rest of a larger one */

static uint64_t page_up(uint64_t bytes)
{
	return (bytes + KVP_PAGE - 1) & ~(uint64_t)(KVP_PAGE - 1);
}

struct ns_shape ns_shape(const struct kvp_pool_header *pool, uint64_t block_bytes)
{
	struct ns_shape s = {.block_bytes = block_bytes, .stride = page_up(block_bytes)};
	uint64_t n = pool->slab_bytes / s.stride, page = kvp_pages_bytes(pool->pages), most;

	if (!n)
		n = 1;
	/* a usual slab as it is, unless more than 7 % of it would lie idle */
	s.slab_bytes = pool->slab_bytes;
	if (n * s.stride > pool->slab_bytes || (pool->slab_bytes - n * s.stride) * 100 > pool->slab_bytes * 7)
		s.slab_bytes = (n * s.stride + page - 1) & ~(page - 1);
	s.slots_per_slab = (uint32_t)n;
	most = pool->pool_bytes / s.stride + n;
	s.n_buckets = 8;
	while (s.n_buckets * KVP_INDEX_WIDTH < 2 * most)
		s.n_buckets *= 2;
	s.slab_off = page_up(sizeof(struct kvp_ns_header));
	s.index_off = page_up(s.slab_off + pool->max_places * sizeof(struct kvp_slab));
	s.block_off = page_up(s.index_off + s.n_buckets * sizeof(struct kvp_index_bucket));
	s.object_bytes = page_up(s.block_off + (uint64_t)pool->max_places * n * sizeof(struct kvp_block));
	return s;
}

static void ns_map_parts(struct ns *ns)
{
	char *base = (char *)ns->head;

	ns->slab_table = (struct kvp_slab *)(void *)(base + ns->head->slab_off);
	ns->blocks = (struct kvp_block *)(void *)(base + ns->head->block_off);
	ns->index = (struct kvp_index_bucket *)(void *)(base + ns->head->index_off);
}

static struct kvp_ns_row *ns_free_row(struct daemon *d)
{
	for (unsigned i = 0; i < KVP_STATS_NS_MAX; i++)
		if (!atomic_load_explicit(&d->pool.ns_rows[i].ns_id, memory_order_relaxed))
			return &d->pool.ns_rows[i];
	return NULL;
}

static void ns_row_fill(struct ns *ns)
{
	const struct kvp_ns_header *head = ns->head;
	struct kvp_ns_row *row = ns->row;

	memset(row, 0, sizeof(*row));
	row->owner_uid = head->owner_uid;
	row->mode = head->mode;
	row->flags = head->flags;
	row->block_tokens = head->desc.block_tokens;
	row->base_id = head->base_id;
	row->block_bytes = head->block_bytes;
	row->slab_bytes = head->slab_bytes;
	row->slots_per_slab = head->slots_per_slab;
	row->layout = (uint16_t)head->desc.layout;
	row->type_k = (uint8_t)head->desc.type_k;
	row->type_v = (uint8_t)head->desc.type_v;
	memcpy(row->name, head->name, sizeof(row->name));
	atomic_store_explicit(&row->ns_id, head->ns_id, memory_order_release);
}

static void ns_free(struct ns *ns)
{
	forget_ns_gone(ns);
	events_close(ns);
	ns_entry_free_all(ns);
	if (ns->head)
		munmap(ns->head, ns->head->object_bytes);
	if (ns->fd >= 0)
		close(ns->fd);
	policy_end(ns);
	lru_free(&ns->heap);
	lru_free(&ns->far_heap);
	free(ns->ghosts);
	free(ns->layers);
	free(ns);
}

static void ns_list_add(struct daemon *d, struct ns *ns)
{
	struct ns **at = &d->namespaces;

	while (*at)
		at = &(*at)->next;
	*at = ns;
	d->n_namespaces++;
	d->pool.meta_bytes += ns->head->block_off;
}

static void ns_header_fill(struct ns *ns, const struct ns_birth *birth, const struct ns_shape *shape)
{
	struct kvp_ns_header *head = ns->head;

	head->layout_major = KVP_LAYOUT_MAJOR;
	head->layout_minor = KVP_LAYOUT_MINOR;
	head->endian = KVP_ENDIAN;
	head->header_bytes = sizeof(*head);
	head->object_bytes = shape->object_bytes;
	head->ns_id = birth->id;
	head->base_id = birth->base_id;
	head->block_bytes = shape->block_bytes;
	head->block_stride = shape->stride;
	head->slab_bytes = shape->slab_bytes;
	head->slots_per_slab = shape->slots_per_slab;
	head->max_places = ns->d->pool.header->max_places;
	head->slab_off = shape->slab_off;
	head->block_off = shape->block_off;
	head->index_off = shape->index_off;
	head->n_buckets = shape->n_buckets;
	head->owner_uid = birth->owner_uid;
	head->owner_gid = birth->owner_gid;
	head->mode = birth->mode;
	head->flags = birth->flags;
	memcpy(head->secret, birth->secret, sizeof(head->secret));
	memcpy(head->name, birth->name, sizeof(head->name));
	head->desc = birth->desc;
	atomic_store(&head->state, KVP_NS_LIVE);
	atomic_store_explicit((_Atomic uint64_t *)&head->magic, KVP_MAGIC_NS, memory_order_release);
}

/* Make the object, then list it. */
int ns_make(struct daemon *d, const struct ns_birth *birth, struct ns **out, char reason[256])
{
	char name[KVP_OBJECT_NAME_MAX];
	struct ns *ns = calloc(1, sizeof(*ns));
	struct ns_shape shape;
	uint64_t block_bytes;
	int r = 0;

	if (!ns)
		return -KVP_ENOMEM;
	ns->d = d;
	ns->fd = -1;
	ns->id = birth->id;
	ns->row = ns_free_row(d);
	ns->base = birth->base_id ? ns_find(d, birth->base_id) : NULL;
	ns->cost_ns_per_token = birth->cost_ns_per_token;
	if (!ns->row || kvp_desc_bad(&birth->desc, &block_bytes)) {
		free(ns);
		return -KVP_EQUOTA;
	}
	shape = ns_shape(d->pool.header, block_bytes);
	if (shape.slab_bytes > d->config.pool_bytes || shape.block_off + shape.object_bytes < shape.object_bytes) {
		snprintf(reason, 256,
			"a block of %" PRIu64 " bytes is larger than the whole pool (%" PRIu64
			"): use fewer block_tokens, or a larger --pool",
			block_bytes, d->config.pool_bytes);
		free(ns);
		return -KVP_EINVAL;
	}
	shm_object_name(name, d->pool.uuid, "ns-%016" PRIx64, ns->id);
	ns->fd = shm_make(name, shape.object_bytes, (gid_t)-1);
	if (ns->fd >= 0) {
		r = shm_reserve(ns->fd, 0, shape.block_off);
		ns->head = r < 0 ? NULL : shm_map(ns->fd, shape.object_bytes);
	}
	if (!ns->head) {
		snprintf(reason, 256, "cannot make the namespace's object of %" PRIu64 " bytes: %s", shape.block_off,
			strerror(ns->fd < 0 ? -ns->fd
				 : r < 0    ? -r
					    : errno));
		if (ns->fd >= 0)
			shm_remove(name);
		ns_free(ns);
		return -KVP_ENOSPC;
	}
	ns_header_fill(ns, birth, &shape);
	ns_map_parts(ns);
	if (ns->base)
		ns->base->n_based++;
	pool_stats_begin(&d->pool);
	ns_row_fill(ns);
	pool_stats_end(&d->pool);
	ns_list_add(d, ns);
	policy_begin(ns);
	*out = ns;
	return 0;
}

struct ns *ns_find(struct daemon *d, uint64_t id)
{
	for (struct ns *ns = d->namespaces; ns; ns = ns->next)
		if (ns->id == id)
			return ns;
	return NULL;
}

static bool ns_mode_allows(const struct ns *ns, const struct session *session, uint32_t bit)
{
	const struct kvp_ns_header *head = ns->head;

	/* as a file's bits, without root's bypass: root of some container must not see every tenant's keys */
	if (session->uid == head->owner_uid)
		return head->mode & bit << 6;
	if (session_in_group(session, head->owner_gid))
		return head->mode & bit << 3;
	return head->mode & bit;
}

bool ns_may_read(const struct ns *ns, const struct session *session)
{
	return ns_mode_allows(ns, session, 04);
}

bool ns_may_write(const struct ns *ns, const struct session *session)
{
	return ns_mode_allows(ns, session, 02);
}

static int ns_join_found(struct ns *ns, struct session *session, const struct kvp_wire_join *join, char reason[256])
{
	if (!ns_may_read(ns, session)) {
		snprintf(reason, 256,
			"namespace %s of uid %u does not let uid %u in (mode %04o): its owner may open it wider",
			ns->head->name, ns->head->owner_uid, (unsigned)session->uid, ns->head->mode);
		return -KVP_EACCES;
	}
	if (join->flags & (KVP_NS_COPIED | KVP_NS_IN_PLACE) & ~ns->head->flags) {
		snprintf(reason, 256,
			"namespace %s of uid %u was made %s: open it without KVP_NS_COPIED and KVP_NS_IN_PLACE, or another one",
			ns->head->name, ns->head->owner_uid, ns->head->flags & KVP_NS_COPIED ? "copied" : "in place");
		return -KVP_EINVAL;
	}
	return 0;
}

static unsigned ns_count_of(const struct daemon *d, uint32_t owner)
{
	unsigned n = 0;

	for (const struct ns *ns = d->namespaces; ns; ns = ns->next)
		n += ns->head->owner_uid == owner;
	return n;
}

/* May somebody hold blocks of it?  After a start those who do have not joined it again yet.  By their pages for pins,
   which they write themselves: so it keeps its memory, and lets nobody in. */
static bool ns_may_be_held(const struct ns *ns)
{
	for (uint32_t place = 0; place < ns->head->max_places; place++) {
		if (!ns->d->slabs[place] || ns->d->slabs[place]->ns != ns)
			continue;
		for (const struct session *s = ns->d->sessions; s; s = s->next)
			if (s->has_place[place])
				return true;
	}
	return false;
}

/* Nobody uses it, nothing is under way in it. */
static bool ns_is_idle(const struct ns *ns)
{
	return !ns->n_members && !ns_may_be_held(ns) && !ns->n_based && !ns->n_writing && !ns->waits &&
	       !ns->restore_head && !atomic_load(&ns->row->counters.restoring) &&
	       !atomic_load(&ns->row->counters.taken);
}

/* It says that it is dying, its blocks go, then its memory, its row, its object. */
static void ns_destroy(struct ns *ns)
{
	struct daemon *d = ns->d;
	struct ns **at = &d->namespaces;
	char name[KVP_OBJECT_NAME_MAX];

	log_info("namespace %s of uid %u, unused, makes way for a new one: %" PRIu64 " blocks are dropped",
		ns->head->name, ns->head->owner_uid,
		(uint64_t)(atomic_load(&ns->row->counters.published) + atomic_load(&ns->row->counters.cold)));
	atomic_store(&ns->head->state, KVP_NS_DYING);
	for (uint32_t place = 0; place < ns->head->max_places; place++)
		if (d->slabs[place] && d->slabs[place]->ns == ns) {
			block_drop_slab(ns, d->slabs[place]);
			ns_remove_slab(ns, d->slabs[place], NULL);
		}
	for (struct entry *e; (e = ns_entry_next(ns, NULL));)
		ns_entry_drop(e);
	while (*at != ns)
		at = &(*at)->next;
	*at = ns->next;
	d->n_namespaces--;
	d->pool.meta_bytes -= ns->head->block_off;
	if (ns->base)
		ns->base->n_based--;
	pool_stats_begin(&d->pool);
	atomic_store_explicit(&ns->row->ns_id, 0, memory_order_release);
	pool_stats_end(&d->pool);
	if (d->config.n_stores)
		ns_file_remove(ns);
	shm_object_name(name, d->pool.uuid, "ns-%016" PRIx64, ns->id);
	shm_remove(name);
	ns_free(ns);
}

/* At a limit the namespace of @uid (or of anybody, at the limit of all) that nobody has used for longest goes. */
static int ns_make_way(struct daemon *d, uint32_t uid, char reason[256])
{
	for (;;) {
		bool all = d->n_namespaces >= d->config.max_namespaces;
		struct ns *oldest = NULL;

		if (!all && ns_count_of(d, uid) < d->config.uid_max_namespaces)
			return 0;
		for (struct ns *ns = d->namespaces; ns; ns = ns->next)
			if ((all || ns->head->owner_uid == uid) && ns_is_idle(ns) &&
				(!oldest || (int32_t)(ns->left_tick - oldest->left_tick) < 0))
				oldest = ns;
		if (!oldest) {
			snprintf(reason, 256,
				"%u namespaces are the most for one uid, %u for all, and clients are in all of them: raise uid-max-namespaces or max-namespaces",
				d->config.uid_max_namespaces, d->config.max_namespaces);
			return -KVP_EQUOTA;
		}
		ns_destroy(oldest);
	}
}

static int ns_birth_base(struct daemon *d, struct session *session, const struct kvp_wire_join *join,
	struct ns_birth *birth, char reason[256])
{
	struct ns *base = ns_find(d, join->base_id);
	const char *differs = base ? kvp_desc_diff(&base->head->desc, &join->desc) : NULL;

	if (!base || !ns_may_read(base, session)) {
		snprintf(reason, 256, "base namespace %016" PRIx64 ": there is none that uid %u may read",
			join->base_id, (unsigned)session->uid);
		return base ? -KVP_EACCES : -KVP_ENOENT;
	}
	if (differs || base->base) {
		snprintf(reason, 256,
			differs ? "base namespace %s: its descriptor differs in %s"
				: "base namespace %s has a base itself%s",
			base->head->name, differs ? differs : "");
		return -KVP_EMISMATCH;
	}
	birth->base_id = base->id;
	memcpy(birth->secret, base->head->secret, sizeof(birth->secret)); /* one chain of keys across the border */
	return 0;
}

static int ns_create(struct daemon *d, struct session *session, const struct kvp_wire_join *join,
	const struct ns *sibling, struct ns **out, char reason[256])
{
	struct ns_birth birth = {.owner_uid = session->uid, .owner_gid = session->gid, .desc = join->desc};
	int r;

	if (sibling) /* same tokens, same key: a miss can name the sibling that has the block */
		memcpy(birth.secret, sibling->head->secret, sizeof(birth.secret));
	else
		randombytes_buf(birth.secret, sizeof(birth.secret));
	r = ns_make_way(d, session->uid, reason); /* the sibling may be the one that goes */
	if (r < 0)
		return r;
	birth.mode = join->mode ? join->mode : 0600;
	birth.flags = join->flags & (KVP_NS_COPIED | KVP_NS_IN_PLACE | KVP_NS_SPILL_ZSTD | KVP_NS_SPILL_PLAIN |
					    KVP_NS_LAYERS | KVP_NS_COLD);
	if (!(birth.flags & (KVP_NS_COPIED | KVP_NS_IN_PLACE)))
		birth.flags |= birth.mode & 022 ? KVP_NS_COPIED : KVP_NS_IN_PLACE;
	if (!strcmp(d->config.policy, "learned"))
		birth.flags |= KVP_NS_LEARNED;
	birth.cost_ns_per_token = join->cost_ns_per_token;
	memcpy(birth.name, join->name, sizeof(birth.name));
	if (join->base_id) {
		r = ns_birth_base(d, session, join, &birth, reason);
		if (r < 0)
			return r;
	}
	do {
		randombytes_buf(&birth.id, sizeof(birth.id));
	} while (!birth.id || ns_find(d, birth.id));
	r = ns_make(d, &birth, out, reason);
	if (r == 0) {
		log_info("namespace %s of uid %u made: %" PRIu64 " bytes a block of %u tokens, mode %04o, %s",
			birth.name, birth.owner_uid, (*out)->head->block_bytes, birth.desc.block_tokens, birth.mode,
			birth.flags & KVP_NS_COPIED ? "copied" : "in place");
		if (d->config.n_stores)
			ns_file_save(*out);
	}
	return r;
}

static int ns_join_check(const struct kvp_wire_join *join, char reason[256])
{
	uint64_t block_bytes;
	const char *bad;

	if (memchr(join->name, 0, sizeof(join->name)) == NULL || !kvp_name_ok(join->name)) {
		snprintf(reason, 256, "namespace name: 1 to %d letters, digits, . _ - and not starting with a dot",
			KVP_NAME_MAX - 1);
		return -KVP_EINVAL;
	}
	if (join->mode & ~0666u || (join->flags & KVP_NS_COPIED && join->flags & KVP_NS_IN_PLACE) ||
		(join->flags & KVP_NS_SPILL_ZSTD && join->flags & KVP_NS_SPILL_PLAIN)) {
		snprintf(reason, 256, "namespace %s: mode %04o or flags %x make no sense", join->name, join->mode,
			join->flags);
		return -KVP_EINVAL;
	}
	bad = kvp_desc_bad(&join->desc, &block_bytes);
	if (bad) {
		snprintf(reason, 256, "namespace %s: descriptor field %s is out of bounds", join->name, bad);
		return -KVP_EINVAL;
	}
	if (join->flags & KVP_NS_COLD && strncmp(join->desc.engine, KVP_QUANTISED, strlen(KVP_QUANTISED)) != 0) {
		snprintf(reason, 256,
			"namespace %s: KVP_NS_COLD is for one of kvp_desc_quantised(), whose label says what it is made of",
			join->name);
		return -KVP_EINVAL;
	}
	return 0;
}

/* By name: one of this owner and name with this very descriptor, else the first sibling. */
static struct ns *ns_by_name(
	struct daemon *d, const struct kvp_wire_join *join, uint32_t owner, struct ns **sibling, unsigned *n_siblings)
{
	struct ns *found = NULL;

	*sibling = NULL;
	*n_siblings = 0;
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		if (ns->head->owner_uid != owner || strcmp(ns->head->name, join->name) != 0)
			continue;
		if (!kvp_desc_diff(&ns->head->desc, &join->desc)) {
			found = ns;
			continue;
		}
		(*n_siblings)++;
		if (!*sibling)
			*sibling = ns;
	}
	return found;
}

static int ns_join_by_name(struct daemon *d, struct session *session, const struct kvp_wire_join *join, struct ns **ns,
	struct kvp_wire_joined *joined, char reason[256])
{
	uint32_t owner = join->owner_uid == KVP_UID_SELF ? session->uid : join->owner_uid;
	struct ns *sibling;
	unsigned n_siblings;
	int r = ns_join_check(join, reason);

	if (r < 0)
		return r;
	*ns = ns_by_name(d, join, owner, &sibling, &n_siblings);
	if (sibling && ns_may_read(sibling, session)) {
		joined->n_siblings = n_siblings;
		snprintf(joined->differs, sizeof(joined->differs), "%s",
			kvp_desc_diff(&sibling->head->desc, &join->desc));
	}
	if (*ns)
		return ns_join_found(*ns, session, join, reason);
	if (join->flags & KVP_NS_JOIN && joined->n_siblings) {
		snprintf(reason, 256, "namespace %s of uid %u: its descriptor differs in %s", join->name, owner,
			joined->differs);
		return -KVP_EMISMATCH;
	}
	if (join->flags & KVP_NS_JOIN || owner != session->uid) {
		snprintf(reason, 256, "uid %u has no namespace %s of this descriptor; only its owner can make it",
			owner, join->name);
		return -KVP_ENOENT;
	}
	joined->flags |= KVP_NS_CREATED;
	if (sibling)
		log_info("namespace %s of uid %u: a sibling is made, its descriptor differs in %s", join->name, owner,
			kvp_desc_diff(&sibling->head->desc, &join->desc));
	return ns_create(d, session, join, sibling, ns, reason);
}

int ns_join(struct daemon *d, struct session *session, const struct kvp_wire_join *join, struct ns **ns,
	struct kvp_wire_joined *joined, char reason[256])
{
	int r;

	memset(joined, 0, sizeof(*joined));
	reason[0] = 0;
	if (join->ns_id) {
		*ns = ns_find(d, join->ns_id);
		if (!*ns) {
			snprintf(reason, 256, "there is no namespace %016" PRIx64 " in this pool", join->ns_id);
			return -KVP_ENOENT;
		}
		r = ns_join_found(*ns, session, join, reason);
	} else {
		r = ns_join_by_name(d, session, join, ns, joined, reason);
	}
	if (r < 0)
		return r;
	joined->ns_id = (*ns)->id;
	joined->base_id = (*ns)->base ? (*ns)->base->id : 0;
	joined->flags |= (*ns)->head->flags | (joined->n_siblings ? KVP_NS_SIBLING : 0);
	if (!ns_may_write(*ns, session) || join->flags & KVP_NS_READONLY)
		joined->flags |= KVP_NS_READONLY;
	return 0;
}

/* ---- slabs of a namespace ---- */

void ns_attach_slab(struct ns *ns, struct slab *slab, bool adopted)
{
	struct kvp_slab *entry = &ns->slab_table[slab->place];

	ns->n_slots += slab->n_slots;
	if (!adopted) {
		entry->bytes = slab->bytes;
		/* what is not told may be believed, what is known to lie elsewhere not */
		entry->node = slab->placed >= 0 && (uint64_t)slab->placed < slab->bytes / 2
				      ? UINT32_MAX
				      : topology_node_id(ns->d->topology, slab->node);
		entry->page_kib = slab_page_kib(slab);
		atomic_store_explicit(&entry->number, slab->number, memory_order_release);
		atomic_fetch_add_explicit(&ns->head->slab_changes, 1, memory_order_release);
	}
}

/* The descriptors of a place: allocated before anybody may look at them. */
static int ns_reserve_descriptors(struct ns *ns, uint32_t place)
{
	uint64_t bytes = ns->head->slots_per_slab * sizeof(struct kvp_block);
	uint64_t first = ns->head->block_off + place * bytes;
	uint64_t from = first & ~(uint64_t)(KVP_PAGE - 1);

	return shm_reserve(ns->fd, from, page_up(first + bytes) - from);
}

static bool ns_take_slab(struct ns *ns, struct slab *slab)
{
	if (ns_reserve_descriptors(ns, slab->place) < 0) {
		static struct log_limit limit;

		log_limited(&limit, LOG_LEVEL_WARN, "namespace %s: no room in " SHM_DIR " for block descriptors",
			ns->head->name);
		return false;
	}
	slab->slots = calloc(ns->head->slots_per_slab, sizeof(*slab->slots));
	if (!slab->slots)
		return false;
	slab->n_slots = ns->head->slots_per_slab;
	slab_set_use(ns->d, slab, KVP_SLAB_BLOCKS, ns);
	pool_stats_begin(&ns->d->pool);
	block_adopt_slab(ns, slab);
	ns_attach_slab(ns, slab, false);
	pool_stats_end(&ns->d->pool);
	ns->d->pool.meta_bytes += ns->head->slots_per_slab * sizeof(struct kvp_block);
	return true;
}

static void ns_expect_slab(struct ns *ns, uint32_t node)
{
	ns->n_coming += ns->head->slots_per_slab;
	ns->coming_on[node]++;
}

bool ns_add_slab(struct ns *ns, uint32_t node, bool only_there)
{
	struct daemon *d = ns->d;
	struct slab *slab;
	uint32_t at;

	if (!quota_allows(ns, NULL))
		return false;
	if (d->collects && d->collects != ns->id && loop_now() < d->collects_until_ns)
		return false; /* spare slabs are being gathered for a larger one of another */
	slab = slab_take_spare(d, ns->head->slab_bytes, node, only_there);
	if (slab)
		return ns_take_slab(ns, slab);
	if (!slab_request(d, ns->head->slab_bytes, node, only_there, ns->id, &at))
		return false;
	ns_expect_slab(ns, at);
	return true;
}

void ns_slab_came(struct ns *ns, uint32_t node, struct slab *slab)
{
	ns->n_coming -= ns->head->slots_per_slab;
	ns->coming_on[node]--;
	if (ns->d->collects == ns->id)
		ns->d->collects = 0;
	if (slab && ns_take_slab(ns, slab))
		ns->no_room_until_ns = 0;
	if (!ns->d->stopping && ns->d->tier)
		tier_serve(ns);
}

void ns_remove_slab(struct ns *ns, struct slab *slab, struct ns *heir)
{
	struct daemon *d = ns->d;
	uint32_t node = slab->node;

	atomic_store_explicit(&ns->slab_table[slab->place].number, 0, memory_order_release);
	atomic_fetch_add_explicit(&ns->head->slab_changes, 1, memory_order_release);
	pool_stats_begin(&d->pool);
	ns->n_slots -= slab->n_slots;
	if (ns->emptying == slab)
		ns->emptying = NULL;
	slab_withdraw(slab);
	gauge_add(&ns->row->counters.slots, -(int64_t)slab->n_slots);
	gauge_add(&ns->row->counters.free, -(int64_t)slab->n_free);
	gauge_add(&ns->row->counters.retired, -(int64_t)(slab->n_slots - slab->n_free));
	pool_stats_end(&d->pool);
	d->pool.meta_bytes -= ns->head->slots_per_slab * sizeof(struct kvp_block);
	if (slab_give(d, slab, heir ? heir->head->slab_bytes : 0, heir ? heir->id : 0)) {
		ns_expect_slab(heir, node);
	} else if (heir) {
		d->collects = heir->id;
		d->collects_until_ns = loop_now() + COLLECT_NS;
	}
}

/* ---- start ---- */

static bool ns_header_ok(const struct ns *ns, uint64_t id, uint64_t bytes)
{
	const struct kvp_ns_header *head = ns->head;
	uint64_t block_bytes;
	struct ns_shape shape;

	if (head->magic != KVP_MAGIC_NS || head->layout_major != KVP_LAYOUT_MAJOR || head->endian != KVP_ENDIAN ||
		head->header_bytes < KVP_NS_HEADER_LEAST || head->header_bytes > KVP_NS_HEADER_MAX ||
		head->slab_off < head->header_bytes || head->ns_id != id || head->object_bytes != bytes ||
		head->max_places != ns->d->pool.header->max_places || kvp_desc_bad(&head->desc, &block_bytes))
		return false;
	shape = ns_shape(ns->d->pool.header, block_bytes);
	/* another --pool size gives other sizes; what was laid out stays as it is, within the object */
	return head->block_stride == shape.stride &&
	       head->block_off + (uint64_t)head->max_places * head->slots_per_slab * sizeof(struct kvp_block) <=
		       bytes &&
	       head->index_off + head->n_buckets * sizeof(struct kvp_index_bucket) <= head->block_off &&
	       (head->n_buckets & (head->n_buckets - 1)) == 0 && head->slots_per_slab;
}

/* Of what another minor version left: what is not known here is nobody's from now on. */
static void ns_header_renew(struct kvp_ns_header *head)
{
	if (head->header_bytes > sizeof(*head))
		memset(head + 1, 0, head->header_bytes - sizeof(*head));
	head->header_bytes = sizeof(*head);
	head->layout_minor = KVP_LAYOUT_MINOR;
}

static struct ns *ns_adopt(struct daemon *d, struct kvp_ns_row *row)
{
	uint64_t id = atomic_load(&row->ns_id), bytes = 0;
	char name[KVP_OBJECT_NAME_MAX];
	struct ns *ns = calloc(1, sizeof(*ns));

	if (!ns)
		return NULL;
	ns->d = d;
	ns->id = id;
	ns->row = row;
	shm_object_name(name, d->pool.uuid, "ns-%016" PRIx64, id);
	ns->fd = shm_find(name, &bytes, (gid_t)-1);
	ns->head = ns->fd < 0 || bytes < KVP_PAGE ? NULL : shm_map(ns->fd, bytes);
	if (!ns->head || !ns_header_ok(ns, id, bytes)) {
		log_warn("namespace %016" PRIx64 " of the last daemon is lost or damaged: its blocks are dropped", id);
		if (ns->head)
			munmap(ns->head, bytes);
		ns->head = NULL;
		ns_free(ns);
		atomic_store(&row->ns_id, 0);
		shm_remove(name);
		return NULL;
	}
	ns_header_renew(ns->head);
	ns_map_parts(ns);
	ns_list_add(d, ns);
	policy_begin(ns);
	return ns;
}

static bool ns_keep_object(void *owner, const char *rest)
{
	uint64_t id;

	return sscanf(rest, "ns-%" SCNx64, &id) != 1 || ns_find(owner, id);
}

int ns_start(struct daemon *d, char message[256])
{
	(void)message;
	if (!d->pool.found)
		return 0;
	for (unsigned i = 0; i < KVP_STATS_NS_MAX; i++)
		if (atomic_load(&d->pool.ns_rows[i].ns_id))
			ns_adopt(d, &d->pool.ns_rows[i]);
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		ns->base = ns->head->base_id ? ns_find(d, ns->head->base_id) : NULL;
		if (ns->base)
			ns->base->n_based++;
	}
	shm_remove_all(d->pool.uuid, ns_keep_object, d);
	for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
		struct slab *slab = d->slabs[place];
		struct ns *ns;

		if (!slab || slab->use != KVP_SLAB_BLOCKS)
			continue;
		ns = ns_find(d, d->pool.slab_rows[place].ns_id);
		if (!ns || slab->bytes < ns->head->block_stride * ns->head->slots_per_slab) {
			slab_give(d, slab, 0, 0);
			continue;
		}
		if (ns_reserve_descriptors(ns, place) < 0)
			return -ENOSPC;
		slab->ns = ns;
		slab->n_slots = ns->head->slots_per_slab;
		slab->slots = calloc(slab->n_slots, sizeof(*slab->slots));
		if (!slab->slots)
			return -ENOMEM;
		/* clients of the last daemon may have it open for writing */
		if (!(ns->head->flags & KVP_NS_COPIED) && slab_let_write(slab) < 0)
			return -ENOSPC;
		d->pool.meta_bytes += slab->n_slots * sizeof(struct kvp_block);
	}
	slab_settle(d);
	return 0;
}

/* Second half of the start, once the sessions are known: the descriptors. */
void ns_adopt_blocks(struct daemon *d)
{
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		struct kvp_ns_counters *c = &ns->row->counters;

		ns_entry_expect(ns, atomic_load(&c->published) + atomic_load(&c->cold));
		pool_stats_begin(&d->pool);
		gauge_set(&c->slots, 0);
		gauge_set(&c->free, 0);
		gauge_set(&c->granted, 0);
		gauge_set(&c->restoring, 0);
		gauge_set(&c->taken, 0);
		gauge_set(&c->retired, 0);
		gauge_set(&c->published, 0);
		gauge_set(&c->held, 0);
		gauge_set(&c->cold, 0);
		gauge_set(&c->clean, 0);
		gauge_set(&c->restore_us, 0); /* these were the last daemon's guesses */
		gauge_set(&c->recompute_us, 0);
		gauge_set(&c->pack_state, 0);
		gauge_set(&c->pack_percent, 0);
		gauge_set(&c->spill_log_bytes, 0);
		for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
			struct slab *slab = d->slabs[place];
			bool listed = atomic_load(&ns->slab_table[place].number) != 0;

			if (!slab || slab->ns != ns) {
				if (listed)
					atomic_store(&ns->slab_table[place].number, 0);
				continue;
			}
			/* a kill between row and table leaves the table without it */
			ns_attach_slab(ns, slab, listed && atomic_load(&ns->slab_table[place].number) == slab->number);
		}
		block_repair_index(ns);
		for (uint32_t place = 0; place < d->pool.header->max_places; place++)
			if (d->slabs[place] && d->slabs[place]->ns == ns)
				block_adopt_published(ns, d->slabs[place]);
		for (uint32_t place = 0; place < d->pool.header->max_places; place++)
			if (d->slabs[place] && d->slabs[place]->ns == ns)
				block_adopt_slab(ns, d->slabs[place]);
		free(ns->indexed);
		ns->indexed = NULL;
		pool_stats_end(&d->pool);
	}
}

void ns_stop(struct daemon *d)
{
	/* the process ends, which gives back a million entries at once; one by one it would take as long as a start */
	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		munmap(ns->head, ns->head->object_bytes);
		close(ns->fd);
	}
	d->ended = d->namespaces;
	d->namespaces = NULL;
	d->n_namespaces = 0;
}
