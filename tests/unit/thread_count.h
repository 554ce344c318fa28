/*
 * thread_count.h - pthread_create(), counted and refused at will; included once by a test program
 *
 * Not under sanitizers, which have their own: there nothing is counted.  Behind test_attn_fixture.h, which tells.
 */
#ifndef KVPOOL_TEST_THREAD_COUNT_H
#define KVPOOL_TEST_THREAD_COUNT_H

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>

#if FEATURE(thread_sanitizer) || defined(__SANITIZE_THREAD__)
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0"; /* children here do start threads */
}
#endif

static _Atomic int threads_made, threads_refused_from = -1; /* the number of the first one that is not made; -1: none */

#if !SANITIZED
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	typedef int (*create_fn)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
	static _Atomic(create_fn) real;
	const int nth = atomic_fetch_add(&threads_made, 1), limit = atomic_load(&threads_refused_from);

	if (!atomic_load(&real))
		atomic_store(&real, (create_fn)dlsym(RTLD_NEXT, "pthread_create"));
	return limit >= 0 && nth >= limit ? EAGAIN : atomic_load(&real)(thread, attr, start, arg);
}
#endif

#endif
