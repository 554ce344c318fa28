/* maker.c - see maker.h */
#include "maker.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include "guard.h"
#include "io_memory.h"
#include "shm.h"

#define MAKER_THREADS_MAX 64

struct maker_list {
	struct maker_job *head, **tail;
};

struct maker {
	struct topology *topology;
	bool lock;
	int event_fd;
	unsigned n_threads;
	pthread_t threads[MAKER_THREADS_MAX];
	pthread_mutex_t mutex; /* of all below */
	pthread_cond_t work, ended;
	struct maker_list todo, done;
	unsigned n_under_way; /* handed in and not in done yet */
	bool stop;
};

static void list_push(struct maker_list *list, struct maker_job *job)
{
	job->next = NULL;
	*list->tail = job;
	list->tail = &job->next;
}

static struct maker_job *list_pop(struct maker_list *list)
{
	struct maker_job *job = list->head;

	if (job) {
		list->head = job->next;
		if (!list->head)
			list->tail = &list->head;
	}
	return job;
}

static void maker_empty(struct maker_old *old)
{
	if (old->map) {
		io_memory_take_back(old->map); /* what a ring has pinned is not freed by a punch */
		munmap(old->map, old->bytes);
	}
	if (fallocate(old->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)old->bytes) < 0)
		old->error = -errno;
	close(old->fd);
}

/* Map, bind, allocate, touch. The pages are really there when this returns 0.  Allocating by the file knows nothing of
   the mapping's wishes, node and page size: where these count, touching allocates, and says so where there are none. */
static int maker_fill(struct maker *maker, struct maker_job *job)
{
	int r;

	job->map = shm_map(job->fd, job->bytes);
	if (!job->map)
		return -errno;
	job->bind_error = topology_bind(maker->topology, job->map, job->bytes, job->node);
	pages_advise(job->pages, job->map, job->bytes);
	r = job->pages == KVP_PAGES_4K || !topology_can_populate() ? shm_reserve(job->fd, 0, job->bytes) : 0;
	if (r == 0)
		r = topology_populate(maker->topology, job->map, job->bytes, job->node);
	if (r == 0)
		job->placed = topology_placed(maker->topology, job->map, job->bytes, job->node);
	job->huge = r == 0 ? pages_got(job->pages, job->map, job->bytes) : 0;
	if (r == 0 && maker->lock && mlock(job->map, job->bytes) < 0)
		job->lock_error = -errno;
	if (r < 0) {
		munmap(job->map, job->bytes);
		job->map = NULL;
	}
	return r;
}

static void maker_work(struct maker *maker, struct maker_job *job, bool stop)
{
	for (struct maker_old *old = job->olds; old; old = old->next)
		maker_empty(old);
	if (job->fd >= 0)
		job->error = stop ? -ECANCELED : maker_fill(maker, job);
}

static void maker_ended(struct maker *maker, struct maker_job *job)
{
	uint64_t one = 1;

	list_push(&maker->done, job);
	maker->n_under_way--;
	pthread_cond_signal(&maker->ended);
	if (write(maker->event_fd, &one, sizeof(one)) < 0) {
		/* its count is at the limit: it is readable already */
	}
}

static void *maker_thread(void *arg)
{
	struct maker *maker = arg;

	pthread_mutex_lock(&maker->mutex);
	for (;;) {
		struct maker_job *job = list_pop(&maker->todo);
		bool stop = maker->stop;

		if (!job && stop)
			break;
		if (!job) {
			pthread_cond_wait(&maker->work, &maker->mutex);
			continue;
		}
		pthread_mutex_unlock(&maker->mutex);
		maker_work(maker, job, stop);
		pthread_mutex_lock(&maker->mutex);
		maker_ended(maker, job);
	}
	pthread_mutex_unlock(&maker->mutex);
	return NULL;
}

int maker_open(struct maker **result, struct topology *topology, unsigned n_threads, bool lock)
{
	struct maker *maker = calloc(1, sizeof(*maker));
	sigset_t mask, old;

	*result = NULL;
	if (!maker)
		return -ENOMEM;
	maker->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (maker->event_fd < 0) {
		free(maker);
		return -errno;
	}
	maker->topology = topology;
	maker->lock = lock;
	maker->todo.tail = &maker->todo.head;
	maker->done.tail = &maker->done.head;
	pthread_mutex_init(&maker->mutex, NULL);
	pthread_cond_init(&maker->work, NULL);
	pthread_cond_init(&maker->ended, NULL);
	guard_thread_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, &old);
	while (maker->n_threads < n_threads && maker->n_threads < MAKER_THREADS_MAX &&
		pthread_create(&maker->threads[maker->n_threads], NULL, maker_thread, maker) == 0)
		maker->n_threads++;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	*result = maker;
	return 0;
}

void maker_close(struct maker *maker)
{
	if (!maker)
		return;
	pthread_mutex_lock(&maker->mutex);
	maker->stop = true;
	pthread_cond_broadcast(&maker->work);
	pthread_mutex_unlock(&maker->mutex);
	for (unsigned i = 0; i < maker->n_threads; i++)
		pthread_join(maker->threads[i], NULL);
	maker_reap(maker);
	close(maker->event_fd);
	pthread_mutex_destroy(&maker->mutex);
	pthread_cond_destroy(&maker->work);
	pthread_cond_destroy(&maker->ended);
	free(maker);
}

int maker_fd(const struct maker *maker)
{
	return maker->event_fd;
}

void maker_submit(struct maker *maker, struct maker_job *job)
{
	pthread_mutex_lock(&maker->mutex);
	maker->n_under_way++;
	if (maker->n_threads) {
		list_push(&maker->todo, job);
		pthread_cond_signal(&maker->work);
	} else {
		maker_work(maker, job, maker->stop);
		maker_ended(maker, job);
	}
	pthread_mutex_unlock(&maker->mutex);
}

void maker_reap(struct maker *maker)
{
	struct maker_list done;
	struct maker_job *job;
	uint64_t n;

	if (read(maker->event_fd, &n, sizeof(n)) < 0) {
		/* nothing new: fine */
	}
	pthread_mutex_lock(&maker->mutex);
	done = maker->done;
	maker->done = (struct maker_list){.tail = &maker->done.head};
	pthread_mutex_unlock(&maker->mutex);
	if (!done.head)
		return;
	while ((job = done.head)) {
		done.head = job->next;
		job->done(job);
	}
}

void maker_wait(struct maker *maker)
{
	pthread_mutex_lock(&maker->mutex);
	while (!maker->done.head && maker->n_under_way)
		pthread_cond_wait(&maker->ended, &maker->mutex);
	pthread_mutex_unlock(&maker->mutex);
	maker_reap(maker);
}
