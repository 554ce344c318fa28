/* test_guard.c - memory a client cuts under our hands */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/guard.h"

#define BYTES (64 * 1024u)

struct object {
	int fd;
	volatile char *map;
	int guard;
};

static struct object given_object(bool guarded)
{
	struct object o = {.fd = memfd_create("guard", MFD_CLOEXEC), .guard = GUARD_NONE};

	assert_true(o.fd >= 0);
	assert_int_equal(guard_init(), 0); /* cmocka put its own handler in its place */
	assert_int_equal(ftruncate(o.fd, BYTES), 0);
	o.map = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, o.fd, 0);
	assert_ptr_not_equal((void *)(uintptr_t)o.map, MAP_FAILED);
	memset((char *)(uintptr_t)o.map, 7, BYTES);
	if (guarded) {
		o.guard = guard_add((char *)(uintptr_t)o.map, BYTES);
		assert_true(o.guard >= 0);
	}
	return o;
}

static void done_with(struct object *o)
{
	guard_remove(o->guard);
	munmap((char *)(uintptr_t)o->map, BYTES);
	close(o->fd);
}

static void *touches(void *object)
{
	const struct object *o = object;
	sigset_t mask;

	guard_thread_mask(&mask);
	pthread_sigmask(SIG_SETMASK, &mask, NULL);
	return (void *)(uintptr_t)(1u + (unsigned)(unsigned char)o->map[BYTES - 1]);
}

static void a_thread_with_our_mask_lives_through_it_too(void **state)
{
	struct object o = given_object(true);
	pthread_t thread;
	void *read = NULL;

	(void)state;
	assert_int_equal(ftruncate(o.fd, 4096), 0);
	assert_int_equal(pthread_create(&thread, NULL, touches, &o), 0);
	assert_int_equal(pthread_join(thread, &read), 0);
	assert_int_equal((uintptr_t)read, 1); /* a zero */
	assert_true(guard_condemned(o.guard));
	done_with(&o);
}

static void a_cut_object_reads_as_zeroes_and_is_condemned(void **state)
{
	struct object o = given_object(true), other = given_object(true);
	unsigned sum = 0;

	(void)state;
	assert_false(guard_condemned(o.guard));
	assert_int_equal(ftruncate(o.fd, 4096), 0);
	assert_int_equal(o.map[100], 7); /* what is still there is still there, and nothing was noticed */
	assert_false(guard_condemned(o.guard));
	for (unsigned i = 4096; i < BYTES; i++)
		sum += (unsigned)o.map[i];
	assert_int_equal(sum, 0);
	assert_true(guard_condemned(o.guard));
	assert_int_equal(o.map[100], 0); /* the whole mapping was replaced */
	o.map[5000] = 1; /* it may be written to, nobody sees it */
	assert_false(guard_condemned(other.guard));
	assert_int_equal(other.map[5000], 7);
	done_with(&o);
	done_with(&other);
}

static void a_guard_may_be_used_again_for_another_mapping(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 100; i++) {
		struct object o = given_object(true);

		assert_false(guard_condemned(o.guard));
		assert_int_equal(ftruncate(o.fd, 0), 0);
		assert_int_equal(o.map[i * 600], 0);
		assert_true(guard_condemned(o.guard));
		done_with(&o);
	}
	assert_false(guard_condemned(GUARD_NONE));
}

static void *toucher(void *arg)
{
	const struct object *o = arg;
	uintptr_t sum = 0;

	for (unsigned round = 0; round < 50; round++)
		for (unsigned i = 0; i < BYTES; i += 512)
			sum += (uintptr_t)o->map[i];
	return (void *)sum;
}

static void several_threads_may_meet_the_cut_at_once(void **state)
{
	struct object o = given_object(true);
	pthread_t threads[4];

	(void)state;
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, toucher, &o), 0);
	assert_int_equal(ftruncate(o.fd, 0), 0);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	(void)o.map[0];
	assert_true(guard_condemned(o.guard));
	done_with(&o);
}

static void a_bus_error_anywhere_else_still_ends_the_process(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		struct object o = given_object(false);

		if (ftruncate(o.fd, 0) == 0)
			(void)o.map[0];
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) != 0); /* a sanitizer exits instead */
	if (WIFSIGNALED(status))
		assert_int_equal(WTERMSIG(status), SIGBUS);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_thread_with_our_mask_lives_through_it_too),
		cmocka_unit_test(a_cut_object_reads_as_zeroes_and_is_condemned),
		cmocka_unit_test(a_guard_may_be_used_again_for_another_mapping),
		cmocka_unit_test(several_threads_may_meet_the_cut_at_once),
		cmocka_unit_test(a_bus_error_anywhere_else_still_ends_the_process),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
