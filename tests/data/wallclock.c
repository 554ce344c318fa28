/*
 * wallclock.c - preloaded: a wall clock that a test sets, without touching the machine's
 *
 * CLOCK_REALTIME is off by as many seconds as the file $KVPOOL_WALLCLOCK says, 8 bytes that its test changes while
 * programs run. Waits that end by the wall clock cannot be bent that way, so the first one ends the program: there must
 * be none.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset;
static int (*real_gettime)(clockid_t, struct timespec *);
static int (*real_cond)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);

__attribute__((constructor)) static void begin(void)
{
	const char *path = getenv("KVPOOL_WALLCLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);

	real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
	real_cond = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2");
	if (!real_cond)
		real_cond = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
	if (fd >= 0)
		close(fd);
	if (map != MAP_FAILED)
		offset = map;
}

static void refuse(const char *what)
{
	static const char text[] = ": a wait that ends by the wall clock\n";

	(void)!write(2, what, strlen(what));
	(void)!write(2, text, sizeof(text) - 1);
	abort();
}

int clock_gettime(clockid_t id, struct timespec *t)
{
	int r;

	if (!real_gettime)
		begin();
	r = real_gettime(id, t);
	if (r == 0 && offset && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
		t->tv_sec += *offset;
	return r;
}

time_t time(time_t *out)
{
	struct timespec t;

	clock_gettime(CLOCK_REALTIME, &t);
	if (out)
		*out = t.tv_sec;
	return t.tv_sec;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone)
{
	struct timespec t;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &t);
	*tv = (struct timeval){t.tv_sec, t.tv_nsec / 1000};
	return 0;
}

int pthread_cond_timedwait(
	pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
	if (!(cond->__data.__wrefs & 2)) /* glibc: made for CLOCK_MONOTONIC */
		refuse("pthread_cond_timedwait");
	return real_cond(cond, mutex, until);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until)
{
	(void)sem, (void)until;
	refuse("sem_timedwait");
	return -1;
}

int pthread_mutex_timedlock(pthread_mutex_t *restrict mutex, const struct timespec *restrict until)
{
	(void)mutex, (void)until;
	refuse("pthread_mutex_timedlock");
	return -1;
}

int timerfd_create(int id, int flags)
{
	static int (*real)(int, int);

	if (id == CLOCK_REALTIME)
		refuse("timerfd_create");
	if (!real)
		real = dlsym(RTLD_NEXT, "timerfd_create");
	return real(id, flags);
}
