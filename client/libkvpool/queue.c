/*
 * queue.c - batches in the background, to and from buffers that are the engine's own
 *
 * Owns struct kvp_queue and its threads.  Everything is done by the calls any engine has, so a queue sees what its caller
 * would: a block is pinned while it is copied out, and found by others only when it is whole.
 *
 * A batch is a job.  Jobs are taken from the front in chunks, so that one big GET has all threads; a PUT has one at a time,
 * which keeps its order (a parent goes before its children).  Lock: queue->lock, held for bookkeeping only.
 */
#include "internal.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#define CHUNK 32u /* blocks */

struct job {
	struct job *next;
	struct kvp_ns *ns;
	struct kvp_io *ios;
	uint64_t deadline_ns, tag;
	uint32_t op, n;
	uint32_t at; /* blocks before are handed out */
	uint32_t n_busy; /* chunks under way */
	uint32_t n_done; /* blocks KVP_IO_DONE */
};

struct jobs {
	struct job *first, **end;
};

struct kvp_queue {
	struct kvp_client *client;
	pthread_mutex_t lock;
	pthread_cond_t work; /* a chunk may be taken, or the end is wanted */
	pthread_cond_t finish; /* a job has ended */
	struct jobs waiting; /* with blocks not handed out */
	struct jobs finished;
	bool ending;
	int fd;
	uint32_t n_threads;
	pthread_t threads[KVP_QUEUE_THREADS_MAX];
};

static void jobs_init(struct jobs *jobs)
{
	jobs->first = NULL;
	jobs->end = &jobs->first;
}

static void jobs_put(struct jobs *jobs, struct job *job)
{
	job->next = NULL;
	*jobs->end = job;
	jobs->end = &job->next;
}

static void jobs_remove(struct jobs *jobs, struct job **at)
{
	struct job *job = *at;

	*at = job->next;
	if (jobs->end == &job->next)
		jobs->end = at;
}

/* ---- one block ---- */

static uint64_t parts_bytes(const struct kvp_io *io)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < io->n_parts; i++)
		bytes += io->parts[i].iov_len;
	return bytes;
}

static void io_scatter(struct kvp_io *io, const struct kvp_view *view)
{
	const char *from = view->data;
	uint64_t left = view->used_bytes;

	io->used_bytes = view->used_bytes;
	io->used_tokens = view->used_tokens;
	io->status = parts_bytes(io) < left ? KVP_IO_SHORT : KVP_IO_DONE;
	for (uint32_t i = 0; io->status == KVP_IO_DONE && left; i++) {
		uint64_t n = io->parts[i].iov_len < left ? io->parts[i].iov_len : left;

		memcpy(io->parts[i].iov_base, from, n);
		from += n;
		left -= n;
	}
}

static void io_gather(const struct kvp_io *io, void *block)
{
	uint64_t left = io->used_bytes;
	char *to = block;

	for (uint32_t i = 0; left; i++) {
		uint64_t n = io->parts[i].iov_len < left ? io->parts[i].iov_len : left;

		memcpy(to, io->parts[i].iov_base, n);
		to += n;
		left -= n;
	}
}

static void io_missed(struct kvp_io *io, uint32_t reason)
{
	io->status = KVP_IO_MISS;
	io->reason = reason;
}

/* ---- a chunk ---- */

/* Up to CHUNK blocks of a job, at @ios. */
struct chunk {
	struct kvp_ns *ns;
	struct kvp_io *ios;
	uint32_t n;
	uint64_t deadline_ns;
};

/* What is there, in one look. A miss is counted by it. */
static void chunk_look(const struct chunk *chunk, uint8_t hits[CHUNK])
{
	struct kvp_key keys[CHUNK];
	struct kvp_match_part part = {.ns = chunk->ns, .keys = keys};

	memset(hits, KVP_MISS, CHUNK);
	for (uint32_t i = 0; i < chunk->n; i++)
		keys[i] = chunk->ios[i].key;
	kvp_match(&part, 1, chunk->n, KVP_MATCH_ALL, hits);
}

/* Copy the run of @n blocks that were seen from @from on, as far as they still are there. Return: blocks that were dealt with. */
static uint32_t run_get(const struct chunk *chunk, uint32_t from, uint32_t n)
{
	struct kvp_view views[CHUNK];
	struct kvp_key keys[CHUNK];
	int64_t r;

	for (uint32_t i = 0; i < n; i++)
		keys[i] = chunk->ios[from + i].key;
	r = kvp_acquire(chunk->ns, keys, n, 0, chunk->deadline_ns, views);
	for (uint32_t i = 0; i < r; i++) {
		struct kvp_io *io = &chunk->ios[from + i];

		io_scatter(io, &views[i]);
		if (kvp_release(&views[i], 1))
			io_missed(io, KVP_MISS_PINS); /* revoked in the middle: the bytes may be another block's */
	}
	if (r < n)
		io_missed(&chunk->ios[from + (r < 0 ? 0 : r)], r < 0 ? KVP_MISS_DETACHED : views[r].reason);
	return r < 0 ? 1 : r < n ? (uint32_t)r + 1 : n;
}

static void chunk_get(const struct chunk *chunk)
{
	uint8_t hits[CHUNK];

	chunk_look(chunk, hits);
	for (uint32_t i = 0; i < chunk->n;) {
		uint32_t n = 0;

		while (i + n < chunk->n && hits[i + n] != KVP_MISS)
			n++;
		if (n)
			i += run_get(chunk, i, n);
		else
			io_missed(&chunk->ios[i++], 0);
	}
}

static void chunk_exists(const struct chunk *chunk)
{
	uint8_t hits[CHUNK];

	chunk_look(chunk, hits);
	for (uint32_t i = 0; i < chunk->n; i++)
		chunk->ios[i].status = hits[i] == KVP_MISS ? KVP_IO_MISS : KVP_IO_DONE;
}

/* Is there nothing to store? Then the block's status is set. */
static bool put_is_settled(const struct chunk *chunk, struct kvp_io *io)
{
	struct ns_map *map = atomic_load_explicit(&chunk->ns->map, memory_order_acquire);
	uint64_t bytes = parts_bytes(io);

	if (!io->used_bytes)
		io->used_bytes = bytes;
	if (!io->used_tokens)
		io->used_tokens = chunk->ns->join.desc.block_tokens;
	if (bytes < io->used_bytes || io->used_bytes > chunk->ns->block_bytes || !io->used_bytes)
		io->status = KVP_IO_SHORT;
	else if (map && find_look(map, &io->key, LOOKUP_TOUCH))
		io->status = KVP_IO_DONE;
	else
		return false;
	return true;
}

/* Store as many of the @n blocks as there is room for. Return: blocks dealt with; 0: there is no room. */
static uint32_t run_put(const struct chunk *chunk, struct kvp_io *const *ios, uint32_t n)
{
	struct kvp_publish_item items[CHUNK];
	struct kvp_block_ref blocks[CHUNK];
	uint8_t results[CHUNK] = {0};
	int64_t given = kvp_reserve(chunk->ns, n, 0, chunk->deadline_ns, blocks);

	if (given <= 0)
		return 0;
	for (uint32_t i = 0; i < given; i++) {
		io_gather(ios[i], blocks[i].data);
		items[i] = (struct kvp_publish_item){.key = ios[i]->key,
			.parent = ios[i]->parent,
			.block = &blocks[i],
			.used_tokens = ios[i]->used_tokens,
			.used_bytes = ios[i]->used_bytes};
	}
	kvp_publish(chunk->ns, items, (uint32_t)given, results);
	for (uint32_t i = 0; i < given; i++)
		ios[i]->status =
			results[i] == KVP_PUB_STORED || results[i] == KVP_PUB_EXISTS ? KVP_IO_DONE : KVP_IO_REJECTED;
	kvp_abandon(blocks, (uint32_t)given); /* of these, the ones that were not used up */
	return (uint32_t)given;
}

static void chunk_put(const struct chunk *chunk)
{
	struct kvp_io *ios[CHUNK];
	uint32_t n = 0, at = 0, r = 1;

	for (uint32_t i = 0; i < chunk->n; i++)
		if (!put_is_settled(chunk, &chunk->ios[i]))
			ios[n++] = &chunk->ios[i];
	for (; at < n && r; at += r)
		r = run_put(chunk, ios + at, n - at);
	for (; at < n; at++)
		ios[at]->status = KVP_IO_REJECTED;
}

static void chunk_delete(const struct chunk *chunk)
{
	struct kvp_key *keys = malloc(chunk->n * sizeof(*keys));
	uint8_t *fates = calloc(chunk->n, 1);

	for (uint32_t i = 0; keys && i < chunk->n; i++)
		keys[i] = chunk->ios[i].key;
	if (keys && fates)
		delete_keys(chunk->ns, keys, chunk->n, chunk->deadline_ns, fates);
	for (uint32_t i = 0; i < chunk->n; i++)
		chunk->ios[i].status = fates && fates[i] == DELETE_GONE ? KVP_IO_DONE : KVP_IO_REJECTED;
	free(fates);
	free(keys);
}

/* Blocks of one chunk. All there are of those that go: one in use is waited for, and the others not after it. */
static uint32_t chunk_most(uint32_t op)
{
	return op == KVP_OP_DELETE ? KVP_SUBMIT_MAX : CHUNK;
}

static uint32_t chunk_run(const struct chunk *chunk, uint32_t op)
{
	uint32_t n_done = 0;

	if (op == KVP_OP_GET)
		chunk_get(chunk);
	else if (op == KVP_OP_PUT)
		chunk_put(chunk);
	else if (op == KVP_OP_DELETE)
		chunk_delete(chunk);
	else
		chunk_exists(chunk);
	for (uint32_t i = 0; i < chunk->n; i++)
		n_done += chunk->ios[i].status == KVP_IO_DONE;
	return n_done;
}

/* ---- jobs; all of it under queue->lock ---- */

static void job_finish(struct kvp_queue *queue, struct job *job)
{
	jobs_put(&queue->finished, job);
	eventfd_write(queue->fd, 1);
	pthread_cond_broadcast(&queue->finish);
}

/* Work on the first chunk that may be taken, with the lock let go meanwhile. Return: false: there is none now. */
static bool queue_work(struct kvp_queue *queue)
{
	struct job **at = &queue->waiting.first, *job;
	struct chunk chunk;
	uint32_t n_done, most;

	while (*at && (*at)->op == KVP_OP_PUT && (*at)->n_busy)
		at = &(*at)->next;
	job = *at;
	if (!job)
		return false;
	most = chunk_most(job->op);
	chunk = (struct chunk){.ns = job->ns,
		.ios = job->ios + job->at,
		.n = job->n - job->at < most ? job->n - job->at : most,
		.deadline_ns = job->deadline_ns};
	job->at += chunk.n;
	job->n_busy++;
	if (job->at == job->n)
		jobs_remove(&queue->waiting, at);
	pthread_mutex_unlock(&queue->lock);
	n_done = chunk_run(&chunk, job->op);
	pthread_mutex_lock(&queue->lock);
	job->n_done += n_done;
	job->n_busy--;
	if (job->at == job->n && !job->n_busy)
		job_finish(queue, job);
	else if (job->op == KVP_OP_PUT)
		pthread_cond_signal(&queue->work);
	return true;
}

static void *queue_main(void *arg)
{
	struct kvp_queue *queue = arg;

	pthread_mutex_lock(&queue->lock);
	while (!queue->ending)
		if (!queue_work(queue))
			pthread_cond_wait(&queue->work, &queue->lock);
	pthread_mutex_unlock(&queue->lock);
	return NULL;
}

/* ---- open and close ---- */

static int queue_start(struct kvp_queue *queue, uint32_t n_threads)
{
	sigset_t all, before;
	int r = 0;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	while (queue->n_threads < n_threads && !r) {
		r = pthread_create(&queue->threads[queue->n_threads], NULL, queue_main, queue);
		queue->n_threads += !r;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r ? fail(-KVP_ENOMEM, "no thread can be made: %s", strerror(r)) : 0;
}

int kvp_queue_open(struct kvp_client *client, const struct kvp_queue_opts *opts, struct kvp_queue **result)
{
	uint32_t n_threads = opts ? opts->n_threads : 1;
	struct kvp_queue *queue;
	pthread_condattr_t attr;
	int r = client_bad(client);

	if (r < 0)
		return r;
	if (!result)
		return fail(-KVP_EINVAL, "queue: a null pointer");
	if (opts && opts->size != sizeof(*opts))
		return fail(-KVP_EINVAL, "opts.size: %u, this library knows %zu", opts->size, sizeof(*opts));
	if (n_threads > KVP_QUEUE_THREADS_MAX)
		return fail(-KVP_EINVAL, "opts.n_threads: %u, at most %u", n_threads, KVP_QUEUE_THREADS_MAX);
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return fail(-KVP_ENOMEM, "out of memory");
	queue->client = client;
	jobs_init(&queue->waiting);
	jobs_init(&queue->finished);
	pthread_mutex_init(&queue->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&queue->work, NULL);
	pthread_cond_init(&queue->finish, &attr);
	pthread_condattr_destroy(&attr);
	queue->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = queue->fd < 0 ? fail(-KVP_ENOMEM, "no eventfd: %s", strerror(errno)) : queue_start(queue, n_threads);
	if (r < 0) {
		kvp_queue_close(queue);
		return r;
	}
	*result = queue;
	return 0;
}

static void job_drop(struct job *job)
{
	for (uint32_t i = job->at; i < job->n; i++)
		job->ios[i].status = job->op == KVP_OP_PUT || job->op == KVP_OP_DELETE ? KVP_IO_REJECTED : KVP_IO_MISS;
	free(job);
}

void kvp_queue_close(struct kvp_queue *queue)
{
	if (!queue)
		return;
	if (client_bad(queue->client) ==
		0) { /* in a child after fork() its threads are not there, and who knows the lock */
		pthread_mutex_lock(&queue->lock);
		queue->ending = true;
		pthread_cond_broadcast(&queue->work);
		pthread_mutex_unlock(&queue->lock);
		for (uint32_t i = 0; i < queue->n_threads; i++)
			pthread_join(queue->threads[i], NULL);
		pthread_cond_destroy(&queue->work);
		pthread_cond_destroy(&queue->finish);
		pthread_mutex_destroy(&queue->lock);
	}
	for (struct jobs *jobs = &queue->waiting; jobs; jobs = jobs == &queue->waiting ? &queue->finished : NULL)
		for (struct job *job = jobs->first, *next; job; job = next) {
			next = job->next;
			job_drop(job);
		}
	if (queue->fd >= 0)
		close(queue->fd);
	free(queue);
}

static int queue_bad(const struct kvp_queue *queue)
{
	return queue ? client_bad(queue->client) : fail(-KVP_EINVAL, "queue: a null pointer");
}

int kvp_queue_fd(const struct kvp_queue *queue)
{
	return queue ? queue->fd : fail(-KVP_EINVAL, "queue: a null pointer");
}

/* ---- submit and poll ---- */

static int ios_bad(uint32_t op, const struct kvp_io *ios, uint32_t n)
{
	if (op < KVP_OP_GET || op > KVP_OP_DELETE)
		return fail(-KVP_EINVAL, "op: %u is not one of enum kvp_op", op);
	if (!ios || !n || n > KVP_SUBMIT_MAX)
		return fail(-KVP_EINVAL, "n: %u blocks at %s, it must be 1 to %u", n, ios ? "ios" : "a null pointer",
			KVP_SUBMIT_MAX);
	for (uint32_t i = 0; i < n; i++) {
		if (!ios[i].key.w[0] && !ios[i].key.w[1])
			return fail(-KVP_EINVAL, "ios[%u].key: all zero is no key", i);
		for (uint32_t k = 0; op < KVP_OP_EXISTS && k < ios[i].n_parts; k++)
			if (!ios[i].parts || (!ios[i].parts[k].iov_base && ios[i].parts[k].iov_len))
				return fail(-KVP_EINVAL, "ios[%u].parts[%u]: a null pointer", i, k);
	}
	return 0;
}

int kvp_submit(struct kvp_queue *queue, struct kvp_ns *ns, uint32_t op, struct kvp_io *ios, uint32_t n,
	uint64_t deadline_ns, uint64_t tag)
{
	struct job *job;
	int r = queue_bad(queue);

	if (r == 0)
		r = ns_bad(ns);
	if (r == 0 && ns->client != queue->client)
		r = fail(-KVP_EINVAL, "ns: it is of another client than the queue");
	if (r == 0)
		r = ios_bad(op, ios, n);
	if (r < 0)
		return r;
	job = malloc(sizeof(*job));
	if (!job)
		return fail(-KVP_ENOMEM, "out of memory");
	*job = (struct job){.ns = ns, .ios = ios, .op = op, .n = n, .deadline_ns = deadline_ns, .tag = tag};
	for (uint32_t i = 0; i < n; i++)
		ios[i].status = ios[i].reason = 0;
	pthread_mutex_lock(&queue->lock);
	jobs_put(&queue->waiting, job);
	if (n > CHUNK && op != KVP_OP_PUT)
		pthread_cond_broadcast(&queue->work);
	else
		pthread_cond_signal(&queue->work);
	pthread_mutex_unlock(&queue->lock);
	return 0;
}

int64_t kvp_queue_poll(struct kvp_queue *queue, struct kvp_completion *completions, uint32_t max, uint64_t deadline_ns)
{
	struct timespec until = timespec_of(deadline_ns);
	int64_t n = 0, r = queue_bad(queue);
	eventfd_t count;

	if (r == 0 && max && !completions)
		r = fail(-KVP_EINVAL, "completions: a null pointer");
	if (r < 0 || !max)
		return r;
	pthread_mutex_lock(&queue->lock);
	while (!queue->finished.first) {
		if (!queue->n_threads && queue_work(queue))
			continue;
		if (!deadline_ns || pthread_cond_timedwait(&queue->finish, &queue->lock, &until) != 0)
			break;
	}
	while (n < max && queue->finished.first) {
		struct job *job = queue->finished.first;

		jobs_remove(&queue->finished, &queue->finished.first);
		completions[n++] = (struct kvp_completion){.tag = job->tag, .n = job->n, .n_done = job->n_done};
		free(job);
	}
	if (n && !queue->finished.first)
		eventfd_read(queue->fd, &count);
	pthread_mutex_unlock(&queue->lock);
	return n;
}
