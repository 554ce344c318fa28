/*
 * crew.c - threads that stay between calls, each on the CPUs of one node
 *
 * Made by kvattn_crew_new(), gone with kvattn_crew_free().  A call that has work puts a job on the crew's list, works
 * itself, takes the job off and waits for those who are still in it; so it never waits for a thread to come, and calls
 * that meet share the threads there are.  One lock, held for a few instructions.  A child after fork() has the crew's
 * memory but none of its threads, and perhaps a lock that nobody will give back: it touches neither.
 */
#define _GNU_SOURCE 1 /* CPU sets, names of threads */
#include "crew.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#define CREW_MAX 1024u

struct crew_job {
	struct crew_job *next;
	void (*work)(void *arg, uint32_t seat);
	void *arg;
	uint32_t n_seats, n_taken; /* the caller's is taken from the beginning */
	uint32_t n_inside; /* threads of the crew that have not come back */
};

struct crew_thread {
	struct kvattn_crew *crew;
	pthread_t thread;
	cpu_set_t cpus; /* none: all that the process has */
};

struct kvattn_crew {
	pthread_mutex_t lock; /* of all that follows but pid and n_threads */
	pthread_cond_t work, left;
	struct crew_job *jobs; /* with seats that may be taken */
	bool ends;
	pid_t pid;
	uint32_t n_threads; /* made; the caller of the moment is one more */
	struct crew_thread threads[];
};

static struct crew_job *job_free(const struct kvattn_crew *crew)
{
	struct crew_job *job = crew->jobs;

	while (job && job->n_taken == job->n_seats)
		job = job->next;
	return job;
}

static void *thread_run(void *arg)
{
	struct crew_thread *self = arg;
	struct kvattn_crew *crew = self->crew;

	if (CPU_COUNT(&self->cpus)) /* refused: it works anywhere */
		(void)sched_setaffinity(0, sizeof(self->cpus), &self->cpus);
	pthread_mutex_lock(&crew->lock);
	while (!crew->ends) {
		struct crew_job *job = job_free(crew);
		uint32_t seat;

		if (!job) {
			pthread_cond_wait(&crew->work, &crew->lock);
			continue;
		}
		seat = job->n_taken++;
		job->n_inside++;
		pthread_mutex_unlock(&crew->lock);
		job->work(job->arg, seat);
		pthread_mutex_lock(&crew->lock);
		if (--job->n_inside == 0)
			pthread_cond_broadcast(&crew->left);
	}
	pthread_mutex_unlock(&crew->lock);
	return NULL;
}

int crew_place(const cpu_set_t *allowed, const struct cpu_nodes *nodes, uint32_t i, uint32_t n)
{
	uint32_t nth = (uint32_t)((uint64_t)i % n * (uint32_t)CPU_COUNT(allowed) / n);

	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, allowed) || nth--)
			continue;
		for (uint32_t node = 0; node < nodes->n; node++)
			if (CPU_ISSET(cpu, &nodes->cpus[node]))
				return (int)node;
		return -1;
	}
	return -1;
}

/* With one node there is nothing to choose, and the threads follow what becomes of the process's set. */
static void crew_pin(struct kvattn_crew *crew, uint32_t n)
{
	struct cpu_nodes nodes;
	cpu_set_t allowed;

	if (sched_getaffinity(0, sizeof(allowed), &allowed) < 0)
		return;
	cpu_nodes_read("/sys/devices/system/node", &nodes);
	for (uint32_t i = 1; i < n && nodes.n > 1; i++) {
		const int node = crew_place(&allowed, &nodes, i, n);

		if (node >= 0)
			CPU_AND(&crew->threads[i - 1].cpus, &allowed, &nodes.cpus[node]);
	}
}

/* Signals stay with the threads that the process made itself. */
static void crew_start(struct kvattn_crew *crew, uint32_t n)
{
	sigset_t all, before;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	for (uint32_t i = 0; i + 1 < n; i++) {
		struct crew_thread *thread = &crew->threads[i];

		thread->crew = crew;
		if (pthread_create(&thread->thread, NULL, thread_run, thread))
			break;
		pthread_setname_np(thread->thread, "kvattn");
		crew->n_threads++;
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int kvattn_crew_new(uint32_t n_threads, uint32_t flags, struct kvattn_crew **made)
{
	const uint32_t wanted = n_threads == KVATTN_THREADS_AUTO ? cpu_count() : n_threads;
	const uint32_t n = wanted < 1 ? 1 : wanted < CREW_MAX ? wanted : CREW_MAX;
	struct kvattn_crew *crew;

	if (!made || flags & ~KVATTN_CREW_LOOSE)
		return -EINVAL;
	crew = calloc(1, sizeof(*crew) + n * sizeof(crew->threads[0]));
	if (!crew)
		return -ENOMEM;
	crew->pid = getpid();
	pthread_mutex_init(&crew->lock, NULL);
	pthread_cond_init(&crew->work, NULL);
	pthread_cond_init(&crew->left, NULL);
	if (!(flags & KVATTN_CREW_LOOSE))
		crew_pin(crew, n);
	crew_start(crew, n);
	*made = crew;
	return 0;
}

static bool crew_here(const struct kvattn_crew *crew)
{
	return crew->pid == getpid();
}

void kvattn_crew_free(struct kvattn_crew *crew)
{
	if (!crew)
		return;
	if (crew_here(crew)) {
		pthread_mutex_lock(&crew->lock);
		crew->ends = true;
		pthread_cond_broadcast(&crew->work);
		pthread_mutex_unlock(&crew->lock);
		for (uint32_t i = 0; i < crew->n_threads; i++)
			pthread_join(crew->threads[i].thread, NULL);
		pthread_cond_destroy(&crew->left);
		pthread_cond_destroy(&crew->work);
		pthread_mutex_destroy(&crew->lock);
	}
	free(crew);
}

uint32_t crew_size(const struct kvattn_crew *crew)
{
	return crew && crew_here(crew) ? crew->n_threads + 1 : 1;
}

uint32_t kvattn_crew_size(const struct kvattn_crew *crew)
{
	return crew_size(crew);
}

static void job_add(struct kvattn_crew *crew, struct crew_job *job)
{
	struct crew_job **last = &crew->jobs;

	while (*last) /* who came first is served first */
		last = &(*last)->next;
	*last = job;
}

static void job_remove(struct kvattn_crew *crew, const struct crew_job *job)
{
	struct crew_job **at = &crew->jobs;

	while (*at != job)
		at = &(*at)->next;
	*at = job->next;
}

void crew_run(struct kvattn_crew *crew, uint32_t n_seats, void (*work)(void *arg, uint32_t seat), void *arg)
{
	struct crew_job job = {.work = work, .arg = arg, .n_seats = n_seats, .n_taken = 1};

	if (n_seats < 2 || crew_size(crew) < 2) {
		work(arg, 0);
		return;
	}
	pthread_mutex_lock(&crew->lock);
	job_add(crew, &job);
	for (uint32_t i = 1; i < n_seats && i <= crew->n_threads; i++)
		pthread_cond_signal(&crew->work);
	pthread_mutex_unlock(&crew->lock);
	work(arg, 0);
	pthread_mutex_lock(&crew->lock);
	job_remove(crew, &job);
	while (job.n_inside)
		pthread_cond_wait(&crew->left, &crew->lock);
	pthread_mutex_unlock(&crew->lock);
}
