/* slab.c - see slab.h */
#include "slab.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "block.h"
#include "cgroup.h"
#include "fault.h"
#include "guard.h"
#include "io_memory.h"
#include "log.h"
#include "maker.h"
#include "namespace.h"
#include "session.h"
#include "shm.h"
#include "tier.h"

#define PROGRESS_NS 5000000000ull /* between lines that tell how far the start is */
#define LOOKS 256 /* slabs looked at in one slab_look() */

/* A slab that left while sessions had it mapped. */
struct leaving {
	struct leaving *next;
	int fd;
	uint64_t number, bytes;
	uint64_t occupied;
	bool busy; /* a maker's thread punches it for the first time */
	unsigned n_sessions;
	uint64_t session_ids[];
};

/* A slab that left: its memory is on its way back. */
struct slab_old {
	struct maker_old old;
	struct leaving *leaving; /* NULL: nobody has it mapped */
};

/* A slab on its way, and what makes room for it. */
struct making {
	struct maker_job job;
	struct daemon *d;
	struct slab *slab; /* NULL: only room is made */
	uint64_t for_ns; /* id of the namespace that gets it; 0: it will be spare */
	uint64_t moving; /* bytes it takes of the budget meanwhile */
};

static struct kvp_slab_row *slab_row(const struct daemon *d, const struct slab *slab)
{
	return &d->pool.slab_rows[slab->place];
}

/* @sign 1: it is there (and in use as it says); -1: no more. Between pool_stats_begin() and _end(), but at the start. */
static void slab_count(struct daemon *d, const struct slab *slab, int sign)
{
	uint64_t bytes = sign < 0 ? -slab->bytes : slab->bytes;

	struct budget_node *node = &d->nodes[slab->node];

	d->n_slabs += (uint32_t)sign;
	node->total += bytes;
	node->spare += slab->use == KVP_SLAB_SPARE ? bytes : 0;
	node->n_slabs += (uint32_t)sign;
	node->n_bound += slab->bound ? (uint32_t)sign : 0;
	node->huge += sign < 0 ? -slab->huge : slab->huge;
	if (slab->placed >= 0)
		node->placed += sign < 0 ? -(uint64_t)slab->placed : (uint64_t)slab->placed;
	budget_stats(d);
	d->slab_bytes_total += bytes;
	d->slab_bytes_spare += slab->use == KVP_SLAB_SPARE ? bytes : 0;
	gauge_set(&d->pool.stats->counters.slabs, d->n_slabs);
	gauge_set(&d->pool.stats->counters.slab_bytes_allocated, d->slab_bytes_total);
	gauge_set(&d->pool.stats->counters.slab_bytes_free, d->slab_bytes_spare);
}

void slab_set_use(struct daemon *d, struct slab *slab, enum kvp_slab_use use, struct ns *ns)
{
	struct kvp_slab_row *row = slab_row(d, slab);

	pool_stats_begin(&d->pool);
	slab_count(d, slab, -1);
	slab->use = use;
	slab->ns = ns;
	row->use = use;
	row->ns_id = ns ? ns->id : 0;
	slab_count(d, slab, 1);
	pool_stats_end(&d->pool);
}

static void slab_dispose(struct slab *slab)
{
	guard_remove(slab->guard);
	if (slab->map) {
		io_memory_take_back(slab->map);
		munmap(slab->map, slab->bytes);
	}
	if (slab->fd >= 0)
		close(slab->fd);
	free(slab->slots);
	free(slab);
}

static void slab_free(struct daemon *d, struct slab *slab)
{
	d->slabs[slab->place] = NULL;
	slab_dispose(slab);
}

/* Blocks go to and from disk straight from its memory.  Not where it lies far: what is pinned there for long the kernel may
   move nearer first. */
static void slab_lend(const struct slab *slab)
{
	if (!slab->far)
		io_memory_lend(slab->map, slab->bytes);
}

static void slab_name(const struct daemon *d, uint64_t number, char name[KVP_OBJECT_NAME_MAX])
{
	shm_object_name(name, d->pool.uuid, "slab-%" PRIu64, number);
}

uint32_t slab_page_kib(const struct slab *slab)
{
	/* of THP a page or two may be missing at the ends */
	return slab->huge * 100 < slab->bytes * 99 ? 4 : (uint32_t)(kvp_pages_bytes(slab->pages) >> 10);
}

/* It has its memory: list it. Return: false: no place. */
static bool slab_list(struct daemon *d, struct slab *slab)
{
	struct kvp_slab_row *row;
	uint32_t place = 0;

	while (place < d->pool.header->max_places && d->slabs[place])
		place++;
	if (place == d->pool.header->max_places)
		return false;
	slab->place = place;
	d->slabs[place] = slab;
	row = slab_row(d, slab);
	pool_stats_begin(&d->pool);
	row->bytes = slab->bytes;
	row->ns_id = 0;
	row->use = KVP_SLAB_SPARE;
	row->node = topology_node_id(d->topology, slab->node);
	row->page_kib = slab_page_kib(slab);
	row->bound = slab->bound;
	row->placed = (uint64_t)slab->placed;
	atomic_store_explicit(&row->number, slab->number, memory_order_release);
	slab_count(d, slab, 1);
	pool_stats_end(&d->pool);
	return true;
}

static void slab_punch(int fd, uint64_t number, uint64_t bytes)
{
	if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) < 0)
		log_warn("slab %" PRIu64 ": cannot give its memory back: %s", number, strerror(errno));
}

/* Remember it as long as one of those lives that have it mapped. They have no pins there any more. */
static struct leaving *slab_leave(struct daemon *d, struct slab *slab)
{
	struct leaving *leaving;
	unsigned n = 0;

	for (const struct session *s = d->sessions; s; s = s->next)
		n += s->has_place[slab->place] != 0;
	leaving = n ? calloc(1, sizeof(*leaving) + n * sizeof(leaving->session_ids[0])) : NULL;
	for (struct session *s = d->sessions; s; s = s->next) {
		if (!s->has_place[slab->place])
			continue;
		s->has_place[slab->place] = 0;
		gauge_add(&s->row->slabs, -1);
		if (leaving)
			leaving->session_ids[leaving->n_sessions++] = s->id;
	}
	if (!leaving)
		return NULL;
	leaving->fd = fcntl(slab->fd, F_DUPFD_CLOEXEC, 0);
	leaving->number = slab->number;
	leaving->bytes = slab->bytes;
	leaving->next = d->leaving;
	d->leaving = leaving;
	return leaving;
}

static bool leaving_is_over(struct daemon *d, struct leaving *leaving)
{
	struct stat st;

	if (leaving->busy)
		return false; /* counted as long as it is on its way */
	while (leaving->n_sessions && !session_find(d, leaving->session_ids[leaving->n_sessions - 1]))
		leaving->n_sessions--;
	if (!leaving->n_sessions) {
		/* cut, it is no memory that nobody counts, should one of them have it mapped after all */
		if (ftruncate(leaving->fd, 0) < 0)
			log_debug("slab %" PRIu64 ": %s", leaving->number, strerror(errno));
		return true;
	}
	if (fstat(leaving->fd, &st) < 0)
		return false;
	leaving->occupied = (uint64_t)st.st_blocks * 512;
	if (leaving->occupied || (uint64_t)st.st_size != leaving->bytes) {
		/* its reader fills it with zeroes by looking; a writer may have grown it */
		if (ftruncate(leaving->fd, (off_t)leaving->bytes) < 0)
			log_debug("slab %" PRIu64 ": %s", leaving->number, strerror(errno));
		slab_punch(leaving->fd, leaving->number, leaving->bytes);
	}
	return false;
}

void slab_unmapped(const struct session *s, uint64_t number)
{
	for (struct leaving *leaving = s->d->leaving; leaving; leaving = leaving->next)
		for (unsigned i = 0; leaving->number == number && i < leaving->n_sessions; i++)
			if (leaving->session_ids[i] == s->id)
				leaving->session_ids[i--] = leaving->session_ids[--leaving->n_sessions];
}

static void slab_look_at_leaving(struct daemon *d)
{
	uint64_t occupied = 0;

	for (struct leaving **at = &d->leaving; *at;) {
		struct leaving *leaving = *at;

		if (leaving_is_over(d, leaving)) {
			*at = leaving->next;
			close(leaving->fd);
			free(leaving);
			continue;
		}
		occupied += leaving->occupied;
		at = &leaving->next;
	}
	d->leaving_bytes = occupied;
	gauge_set(&d->pool.stats->counters.slab_bytes_leaving, occupied);
}

/* Unlist and unlink; whoever still maps it will read zeroes and hold no memory of the budget.
   Return: what a maker has to empty. */
static struct maker_old *slab_destroy(struct daemon *d, struct slab *slab)
{
	char name[KVP_OBJECT_NAME_MAX];
	struct slab_old *old = calloc(1, sizeof(*old));
	struct leaving *leaving;

	pool_stats_begin(&d->pool);
	atomic_store_explicit(&slab_row(d, slab)->number, 0, memory_order_release);
	slab_name(d, slab->number, name);
	shm_remove_in(pages_dir(&d->pool, slab->pages), name);
	if (!old)
		slab_punch(slab->fd, slab->number, slab->bytes);
	leaving = slab_leave(d, slab);
	if (old) {
		old->old = (struct maker_old){
			.fd = slab->fd, .map = slab->map, .bytes = slab->bytes, .number = slab->number};
		old->leaving = leaving;
		if (leaving)
			leaving->busy = true;
		slab->fd = -1;
		slab->map = NULL;
	}
	slab_count(d, slab, -1);
	slab_free(d, slab);
	pool_stats_end(&d->pool);
	return (struct maker_old *)old;
}

static void making_say_failed(struct daemon *d, const struct slab *slab, int error)
{
	static struct log_limit limit;
	char message[256];

	if (kvp_pages_in_hugetlbfs(slab->pages))
		snprintf(message, sizeof(message),
			"no %" PRIu64 "M pages for slab %" PRIu64 " of %" PRIu64 " bytes on node%u (%s; %" PRIu64
			" bytes free on the host): raise nr_hugepages there, set pages-short = fallback, or give a smaller --pool",
			kvp_pages_bytes(slab->pages) >> 20, slab->number, slab->bytes,
			topology_node_id(d->topology, slab->node), strerror(-error), pages_free(slab->pages));
	else
		snprintf(message, sizeof(message),
			"no room in " SHM_DIR " for slab %" PRIu64 " of %" PRIu64 " bytes (%s; %" PRIu64
			" bytes free there): enlarge it, or give a smaller --pool",
			slab->number, slab->bytes, strerror(-error), shm_free_bytes());
	if (d->slab_failure)
		snprintf(d->slab_failure, 256, "%s", message);
	else if (error != -ECANCELED)
		log_limited(&limit, LOG_LEVEL_WARN, "%s", message);
}

static void making_say_unbound(struct daemon *d, const struct maker_job *job)
{
	if (job->bind_error < 0 && !d->numa_warned) {
		d->numa_warned = true;
		snprintf(d->pool.stats->numa_message, sizeof(d->pool.stats->numa_message),
			"unbound: binding memory to a node is refused here (%s)", strerror(-job->bind_error));
		log_warn("NUMA: %s; going on unbound", d->pool.stats->numa_message);
	}
	if (job->lock_error < 0 && d->config.lock_memory) {
		d->config.lock_memory = false;
		log_warn("lock-memory: cannot lock %" PRIu64
			 " bytes: %s (LimitMEMLOCK=infinity in the unit, or leave it off); going on unlocked",
			job->bytes, strerror(-job->lock_error));
	}
}

static void making_end_olds(struct making *making)
{
	while (making->job.olds) {
		struct slab_old *old = (struct slab_old *)making->job.olds;

		making->job.olds = old->old.next;
		if (old->old.error < 0)
			log_warn("slab %" PRIu64 ": cannot give its memory back: %s", old->old.number,
				strerror(-old->old.error));
		if (old->leaving)
			old->leaving->busy = false;
		free(old);
	}
}

/* Its object, in the directory of its pages. */
static int slab_make_object(struct daemon *d, struct slab *slab)
{
	char name[KVP_OBJECT_NAME_MAX];

	slab_name(d, slab->number, name);
	slab->fd = shm_make_in(pages_dir(&d->pool, slab->pages), name, slab->bytes, (gid_t)-1);
	return slab->fd < 0 ? slab->fd : 0;
}

/* No huge pages for it: may it be made of 4k ones instead?  Then its object is, from now on. */
static bool slab_fall_back(struct daemon *d, struct slab *slab, int error)
{
	char name[KVP_OBJECT_NAME_MAX], why[160];

	if (!kvp_pages_in_hugetlbfs(slab->pages) || !d->config.pages_fallback || error == -ECANCELED)
		return false;
	snprintf(why, sizeof(why), "node%u has no more of those pages (%s); see nr_hugepages",
		topology_node_id(d->topology, slab->node), strerror(-error));
	pages_say_short(d, why);
	slab_name(d, slab->number, name);
	shm_remove_in(pages_dir(&d->pool, slab->pages), name);
	if (slab->fd >= 0)
		close(slab->fd);
	slab->pages = KVP_PAGES_4K;
	return slab_make_object(d, slab) == 0;
}

/* Of transparent huge pages the kernel gives what it has. Return: is that refused? */
static bool making_is_short(struct daemon *d, const struct slab *slab)
{
	char why[160];

	if (slab->pages != KVP_PAGES_THP || slab_page_kib(slab) > 4)
		return false;
	snprintf(why, sizeof(why),
		"of slab %" PRIu64 " only %" PRIu64 " of %" PRIu64 " bytes are huge pages: memory is scattered",
		slab->number, slab->huge, slab->bytes);
	if (d->config.pages_fallback || !d->slab_failure) {
		pages_say_short(d, why);
		return false;
	}
	snprintf(d->slab_failure, 256, "pages = thp: %s; free memory, or set pages-short = fallback", why);
	return true;
}

/* Back from the maker: it goes to whom it was made for, or stays spare. */
static void making_done(struct maker_job *job)
{
	struct making *making = job->owner;
	struct daemon *d = making->d;
	struct slab *slab = making->slab;
	struct ns *ns = making->for_ns ? ns_find(d, making->for_ns) : NULL;
	char name[KVP_OBJECT_NAME_MAX];

	making_end_olds(making);
	if (slab && job->error < 0 && slab_fall_back(d, slab, job->error)) {
		job->fd = slab->fd;
		job->pages = slab->pages;
		maker_submit(d->maker, job);
		return;
	}
	d->slab_bytes_moving -= making->moving;
	d->nodes[job->node].moving -= making->moving;
	if (FAULT_INT("slab.slow_ms", 0)) /* a machine that takes its time */
		usleep((useconds_t)FAULT_INT("slab.slow_ms", 0) * 1000);
	d->n_making--;
	if (slab) {
		d->n_coming--;
		making_say_unbound(d, job);
		slab->map = job->map;
		slab->placed = job->placed;
		slab->huge = job->huge;
		slab->bound = job->bind_error == 0 && topology_n_nodes(d->topology) > 1;
		if (job->error < 0 || making_is_short(d, slab) || !slab_list(d, slab)) {
			if (job->error < 0)
				making_say_failed(d, slab, job->error);
			slab_name(d, slab->number, name);
			shm_remove_in(pages_dir(&d->pool, slab->pages), name);
			slab_dispose(slab);
			slab = NULL;
		}
		if (slab)
			slab_lend(slab);
		if (ns)
			ns_slab_came(ns, job->node, slab);
		for (ns = slab && !ns ? d->namespaces : NULL; ns && !d->stopping; ns = ns->next)
			if (ns->waits)
				tier_serve(ns);
	}
	free(making);
}

/* Hand @olds in, and a new slab to be made in their room; @bytes 0: none.
   Return: false: none will come. */
static bool slab_begin(struct daemon *d, struct maker_old *olds, uint64_t bytes, uint32_t node, uint64_t for_ns)
{
	struct making *making = calloc(1, sizeof(*making));
	struct slab *slab = bytes ? calloc(1, sizeof(*slab)) : NULL;
	uint64_t freed = 0;
	int r;

	if (!making) { /* the memory of the old ones is lost to us until the next start */
		log_err("out of memory: a slab's memory is not given back");
		free(slab);
		return false;
	}
	if (slab) {
		*slab = (struct slab){.bytes = bytes,
			.node = node,
			.use = KVP_SLAB_SPARE,
			.guard = GUARD_NONE,
			.pages = pages_next(d),
			.far = topology_is_far(d->topology, node),
			.number = atomic_fetch_add(&d->pool.stats->next_number, 1)};
		r = slab_make_object(d, slab);
		if (r < 0 && !slab_fall_back(d, slab, r)) {
			making_say_failed(d, slab, r);
			free(slab);
			slab = NULL;
		}
	}
	for (const struct maker_old *old = olds; old; old = old->next)
		freed += old->bytes;
	making->d = d;
	making->slab = slab;
	making->for_ns = for_ns;
	making->moving = slab && slab->bytes > freed ? slab->bytes : freed;
	making->job = (struct maker_job){.olds = olds,
		.fd = slab ? slab->fd : -1,
		.bytes = bytes,
		.node = node,
		.pages = slab ? slab->pages : KVP_PAGES_4K,
		.done = making_done,
		.owner = making};
	d->slab_bytes_moving += making->moving;
	d->nodes[node].moving += making->moving;
	d->n_making++;
	d->n_coming += slab != NULL;
	maker_submit(d->maker, &making->job);
	return slab;
}

/* A spare slab of @bytes (0: any) on node @i. */
static struct slab *slab_find_spare(struct daemon *d, uint64_t bytes, uint32_t i)
{
	if (!d->nodes[i].spare)
		return NULL;
	for (uint32_t place = 0; place < d->pool.header->max_places; place++) {
		struct slab *slab = d->slabs[place];

		if (slab && slab->use == KVP_SLAB_SPARE && slab->node == i && (!bytes || slab->bytes == bytes))
			return slab;
	}
	return NULL;
}

static bool slab_has_place(const struct daemon *d)
{
	return d->n_slabs + d->n_coming < d->pool.header->max_places;
}

struct slab *slab_take_spare(struct daemon *d, uint64_t bytes, uint32_t node, bool only_there)
{
	unsigned n = only_there ? 1 : topology_n_nodes(d->topology);
	struct slab *slab = NULL;

	for (unsigned k = 0; k < n && !slab; k++) {
		unsigned i = topology_near(d->topology, node, k);

		if (i == node || !topology_is_far(d->topology, i))
			slab = slab_find_spare(d, bytes, i);
	}
	return slab;
}

bool slab_request(struct daemon *d, uint64_t bytes, uint32_t node, bool only_there, uint64_t for_ns, uint32_t *at)
{
	unsigned n = only_there ? 1 : topology_n_nodes(d->topology), i = 0;
	struct maker_old *olds = NULL;
	uint64_t room = 0;

	for (unsigned k = 0; k < n && room < bytes; k++) {
		i = topology_near(d->topology, node, k);
		if (i == node || !topology_is_far(d->topology, i))
			room = budget_room(d, i) + d->nodes[i].spare;
	}
	if (room < bytes || !slab_has_place(d))
		return false;
	for (room = budget_room(d, i); room < bytes;) {
		struct slab *spare = slab_find_spare(d, 0, i);
		struct maker_old *old;

		room += spare->bytes;
		old = slab_destroy(d, spare);
		if (old) {
			old->next = olds;
			olds = old;
		}
	}
	*at = i;
	return slab_begin(d, olds, bytes, i, for_ns);
}

bool slab_give(struct daemon *d, struct slab *slab, uint64_t bytes, uint64_t for_ns)
{
	uint32_t node = slab->node;
	struct maker_old *old = slab_destroy(d, slab);
	bool enough = bytes && budget_room(d, node) >= bytes && slab_has_place(d);

	if (!enough)
		bytes = budget_room(d, node) >= d->pool.header->slab_bytes ? d->pool.header->slab_bytes : 0;
	return slab_begin(d, old, bytes, node, enough ? for_ns : 0) && enough;
}

void slab_settle(struct daemon *d)
{
	while (d->n_making)
		maker_wait(d->maker);
}

uint64_t slab_spare_bytes(const struct daemon *d)
{
	return d->slab_bytes_spare;
}

static bool slab_is_whole(int fd, uint64_t bytes)
{
	struct stat st;

	return fstat(fd, &st) == 0 && (uint64_t)st.st_size == bytes && (uint64_t)st.st_blocks * 512 >= bytes;
}

int slab_let_write(struct slab *slab)
{
	if (slab->client_writable)
		return 0;
	slab->guard = guard_add(slab->map, slab->bytes);
	if (slab->guard < 0) {
		slab->guard = GUARD_NONE;
		return -ENOSPC;
	}
	slab->client_writable = true;
	return 0;
}

void slab_set_open(struct slab *slab)
{
	bool open = slab->n_free && !slab->withdrawn;

	if (open == slab->is_open)
		return;
	slab->is_open = open;
	if (!open)
		DL_DELETE2(slab->ns->open[slab->node], slab, open_prev, open_next);
	else if (slab->n_free == slab->n_slots) /* last: slabs in use are filled first */
		DL_APPEND2(slab->ns->open[slab->node], slab, open_prev, open_next);
	else
		DL_PREPEND2(slab->ns->open[slab->node], slab, open_prev, open_next);
}

void slab_withdraw(struct slab *slab)
{
	if (!slab->withdrawn)
		ns_count_free(slab->ns, slab, -(int64_t)slab->n_free);
	slab->withdrawn = true;
	slab_set_open(slab);
}

void slab_give_again(struct slab *slab)
{
	if (!slab->withdrawn || slab->condemned)
		return;
	slab->withdrawn = false;
	ns_count_free(slab->ns, slab, slab->n_free);
	slab_set_open(slab);
}

/* A writer broke it. Which one nobody can tell, but who could have. */
static void slab_condemn(struct daemon *d, struct slab *slab)
{
	struct session *suspect = NULL;
	unsigned n = 0;

	slab->condemned = true;
	slab_withdraw(slab);
	gauge_add(&d->pool.stats->counters.slabs_condemned, 1);
	for (struct session *s = d->sessions; s; s = s->next) {
		if (!(s->has_place[slab->place] & PLACE_WRITABLE))
			continue;
		suspect = s;
		n++;
		log_warn("slab %" PRIu64
			 " of namespace %s was cut, grown or punched; a writer of it is session %016" PRIx64
			 " (%s, uid %u, pid %d)",
			slab->number, slab->ns->head->name, s->id, s->row->comm, (unsigned)s->uid, (int)s->row->pid);
	}
	log_warn("slab %" PRIu64 " of namespace %s (uid %u) is condemned, its blocks are dropped%s", slab->number,
		slab->ns->head->name, slab->ns->head->owner_uid,
		n ? "" : "; its writers of now are not known: the daemon started after they got it, or they are gone");
	if (n == 1 && !slab->writer_left && !suspect->ending) {
		gauge_add(&d->pool.stats->counters.sessions_condemned, 1);
		session_end(suspect, "it alone could have broken the slab");
	}
}

void slab_look(struct daemon *d)
{
	static uint32_t at;
	uint32_t n = d->pool.header->max_places < LOOKS ? d->pool.header->max_places : LOOKS;

	for (uint32_t i = 0; i < n; i++) {
		struct slab *slab = d->slabs[at++ % d->pool.header->max_places];
		struct ns *ns = slab ? slab->ns : NULL;

		if (!ns || !slab->client_writable)
			continue;
		if (!slab->condemned && (guard_condemned(slab->guard) || !slab_is_whole(slab->fd, slab->bytes)))
			slab_condemn(d, slab);
		if (slab->condemned && block_drop_slab(ns, slab)) {
			ns_remove_slab(ns, slab, NULL);
			tier_serve(ns);
		}
	}
	slab_look_at_leaving(d);
}

/* A slab of the last daemon, as its row tells. */
static bool slab_adopt(struct daemon *d, uint32_t place)
{
	struct kvp_slab_row *row = &d->pool.slab_rows[place];
	uint64_t number = atomic_load(&row->number), bytes = 0;
	enum kvp_pages pages = d->pool.header->pages;
	char name[KVP_OBJECT_NAME_MAX];
	struct slab *slab;
	int fd;

	if (kvp_pages_in_hugetlbfs(pages) && row->page_kib <= 4)
		pages = KVP_PAGES_4K; /* there were none left for it */
	slab_name(d, number, name);
	fd = shm_find_in(pages_dir(&d->pool, pages), name, &bytes, (gid_t)-1);
	slab = fd < 0 ? NULL : calloc(1, sizeof(*slab));
	/* a slab has all its pages; missing ones were punched, and what was in them reads as zeroes */
	if (!slab || bytes != row->bytes || !slab_is_whole(fd, bytes) ||
		(row->use != KVP_SLAB_BLOCKS && row->use != KVP_SLAB_SPARE)) {
		if (fd >= 0)
			close(fd);
		free(slab);
		shm_remove_in(pages_dir(&d->pool, pages), name);
		atomic_store(&row->number, 0);
		log_warn("slab %" PRIu64 " of the last daemon is lost or changed: its blocks are dropped", number);
		return false;
	}
	slab->place = place;
	slab->number = number;
	slab->bytes = bytes;
	slab->use = row->use;
	slab->fd = fd;
	slab->guard = GUARD_NONE;
	slab->bound = row->bound;
	slab->pages = pages;
	slab->huge = row->page_kib > 4 ? bytes : 0;
	slab->placed = (int64_t)row->placed;
	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		if (topology_node_id(d->topology, i) == row->node)
			slab->node = i;
	slab->far = topology_is_far(d->topology, slab->node);
	slab->map = shm_map(fd, bytes);
	if (!slab->map) {
		slab->fd = fd;
		slab_free(d, slab);
		return false;
	}
	d->slabs[place] = slab;
	slab_count(d, slab, 1);
	slab_lend(slab);
	return true;
}

static bool slab_keep_object(void *owner, const char *rest)
{
	struct daemon *d = owner;
	uint64_t number;

	if (sscanf(rest, "slab-%" SCNu64, &number) != 1)
		return true; /* not a slab: others look after it */
	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		if (atomic_load(&d->pool.slab_rows[i].number) == number)
			return true;
	return false;
}

static uint64_t slab_free_places(const struct daemon *d)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		n += !d->slabs[i];
	return n;
}

static void slab_maker_ready(struct loop_source *source, uint32_t events)
{
	(void)events;
	maker_reap(source->owner);
}

static int slab_maker_start(struct daemon *d)
{
	int r = maker_open(&d->maker, d->topology, topology_n_cpus(d->topology), d->config.lock_memory);

	if (r < 0)
		return r;
	d->maker_source = (struct loop_source){
		.fd = maker_fd(d->maker), .events = LOOP_IN, .ready = slab_maker_ready, .owner = d->maker};
	return loop_add(d->loop, &d->maker_source);
}

static uint64_t slab_missing(const struct daemon *d)
{
	uint64_t n = 0;

	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		n += budget_room(d, i) / d->pool.header->slab_bytes;
	return n;
}

static void slab_say_progress(struct daemon *d, uint64_t *next_ns)
{
	char text[96];
	uint64_t now = loop_now();

	snprintf(text, sizeof(text), "populating the pool: %" PRIu64 " of %" PRIu64 " MiB", d->slab_bytes_total >> 20,
		d->budget_bytes >> 20);
	pool_progress(&d->pool, text);
	if (now < *next_ns)
		return;
	*next_ns = now + PROGRESS_NS;
	log_info("%s", text);
}

/* Fill the budgets with spare slabs, all nodes in turn, all CPUs at work. */
static int slab_populate(struct daemon *d, char message[256])
{
	unsigned n_nodes = topology_n_nodes(d->topology);
	uint64_t slab = d->pool.header->slab_bytes, next_ns = loop_now() + PROGRESS_NS;
	bool failed = false, more = true;

	message[0] = 0;
	d->slab_failure = message;
	slab_say_progress(d, &next_ns); /* the first slab may be large, and take long */
	while (!message[0] && !failed && (more || d->n_making)) {
		/* few under way, so that one that fails is not followed by many */
		for (more = true; more && !failed && d->n_making < n_nodes + 2 * topology_n_cpus(d->topology);) {
			more = false;
			for (unsigned i = 0; i < n_nodes && !failed; i++)
				if (budget_room(d, i) >= slab) {
					failed = !slab_begin(d, NULL, slab, i, 0);
					more = true;
				}
		}
		maker_wait(d->maker);
		slab_say_progress(d, &next_ns);
	}
	slab_settle(d);
	d->slab_failure = NULL;
	return message[0] || failed ? -ENOSPC : 0;
}

bool slab_release_spare(struct daemon *d, uint32_t i)
{
	struct slab *spare = slab_find_spare(d, 0, i);

	if (!spare)
		return false;
	slab_begin(d, slab_destroy(d, spare), 0, i, 0);
	return true;
}

bool slab_make_spare(struct daemon *d, uint32_t i)
{
	return slab_has_place(d) && slab_begin(d, NULL, d->pool.header->slab_bytes, i, 0);
}

int slab_check_room(const struct daemon *d, uint64_t bytes, uint64_t more, const char *what, char message[256])
{
	enum kvp_pages pages = pages_next(d);
	uint64_t limit = cgroup_limit(), room = shm_free_bytes(), huge = pages_free(pages), has = 0;

	if (kvp_pages_in_hugetlbfs(pages)) { /* neither is asked for these; what falls back to 4k pages asks both */
		if (more > huge && !d->config.pages_fallback) {
			snprintf(message, 256,
				"%" PRIu64 " bytes in %" PRIu64 "M pages are free, %s needs %" PRIu64
				" more: raise nr_hugepages, set pages-short = fallback, or give a smaller one",
				huge, kvp_pages_bytes(pages) >> 20, what, more);
			return -ENOMEM;
		}
		more -= more < huge ? more : huge;
		for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
			has += d->nodes[i].total - d->nodes[i].huge;
		bytes = has + more;
	}
	if (bytes > limit) {
		snprintf(message, 256,
			"%s, %" PRIu64 ", is more than this cgroup's memory limit of %" PRIu64
			": raise the limit (MemoryMax=), or give a smaller one",
			what, bytes, limit);
		return -ENOMEM;
	}
	if (more > room) {
		snprintf(message, 256,
			SHM_DIR " has %" PRIu64 " bytes free, %s needs %" PRIu64
				" more: enlarge it (mount -o remount,size=...), or give a smaller one",
			room, what, more);
		return -ENOSPC;
	}
	return 0;
}

int slab_start(struct daemon *d, char message[256])
{
	uint64_t missing;
	int r;

	d->slabs = calloc(d->pool.header->max_places, sizeof(*d->slabs));
	if (!d->slabs || slab_maker_start(d) < 0)
		return -ENOMEM;
	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		d->has_far |= topology_is_far(d->topology, i);
	r = pages_start(d, message);
	if (r == 0)
		r = budget_start(d, message);
	if (r < 0)
		return r;
	r = slab_check_room(d, d->budget_bytes, 0, "--pool", message);
	if (r < 0)
		return r;
	if (d->pool.found) {
		shm_remove_all(d->pool.uuid, slab_keep_object, d);
		pages_remove_all(d->pool.uuid, d->pool.header, &d->config, slab_keep_object, d);
		for (uint32_t i = 0; i < d->pool.header->max_places; i++)
			if (atomic_load(&d->pool.slab_rows[i].number))
				slab_adopt(d, i);
	}
	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		while (budget_over(d, i) && slab_release_spare(d, i))
			;
	slab_settle(d);
	missing = slab_missing(d);
	if (missing > slab_free_places(d)) {
		snprintf(message, 256,
			"the pool kept in memory was made for %" PRIu64 " bytes at most (%u slabs of %" PRIu64
			"), --pool is %" PRIu64 ": start smaller, or drop it with kvctl purge first",
			d->pool.header->max_places * d->pool.header->slab_bytes, d->pool.header->max_places,
			d->pool.header->slab_bytes, d->config.pool_bytes);
		return -ENOSPC;
	}
	r = slab_check_room(d, d->budget_bytes, missing * d->pool.header->slab_bytes, "--pool", message);
	if (r < 0)
		return r;
	return slab_populate(d, message);
}

void slab_stop(struct daemon *d)
{
	if (!d->slabs)
		return;
	if (d->maker)
		loop_del(d->loop, &d->maker_source);
	maker_close(d->maker);
	for (uint32_t i = 0; i < d->pool.header->max_places; i++)
		if (d->slabs[i])
			slab_free(d, d->slabs[i]);
	while (d->leaving) {
		struct leaving *leaving = d->leaving;

		d->leaving = leaving->next;
		close(leaving->fd);
		free(leaving);
	}
	free(d->slabs);
	d->slabs = NULL;
}
