/*
 * test_crowd.c - a thousand clients at once, 64 of them busy, and some that behave badly: the busy ones are all served
 *
 * How long their calls take is printed, beside the same 64 alone; a machine that does other things may take what it
 * likes.
 *
 * kvpool-test: timeout=180
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

#define BLOCK 16384u
#define IDLE 933u
#define PROCESSES 4u
#define BUSY 16u /* in each of them */
#define ROUNDS 20u
#define CALLS (PROCESSES * BUSY * ROUNDS)

struct crowd {
	struct host host;
	struct wire idle[IDLE];
	struct wire deaf, half, takes_nothing;
	uint64_t *took; /* of each call, shared with the processes */
};

static int setup(void **state)
{
	struct crowd *c = calloc(1, sizeof(*c));
	struct rlimit limit;

	assert_non_null(c);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
	if (limit.rlim_cur < 3 * IDLE + 256) {
		printf("skipped: this process may open only %lu files\n", (unsigned long)limit.rlim_cur);
		free(c);
		*state = NULL;
		return 0;
	}
	assert_int_equal(host_open(&c->host, geteuid()), 0);
	assert_int_equal(
		host_start(&c->host, (const char *[]){"--pool", "32M", "--slab", "1M", "--spill", "off", NULL}), 0);
	c->took = mmap(NULL, CALLS * sizeof(*c->took), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(c->took, MAP_FAILED);
	*state = c;
	return 0;
}

static int teardown(void **state)
{
	struct crowd *c = *state;
	bool good = !c || (host_alive(&c->host) && host_conserves(&c->host));

	if (!c)
		return 0;
	for (unsigned i = 0; i < IDLE; i++)
		if (c->idle[i].fd)
			wire_close(&c->idle[i]);
	host_close(&c->host);
	munmap(c->took, CALLS * sizeof(*c->took));
	free(c);
	return good ? 0 : -1;
}

/* 16 engines of one process, by turns: each call publishes a block of its own and finds it. Exit status 0: all were
   served. */
static int is_busy(const struct host *host, uint64_t first, uint64_t *took)
{
	static struct wire w[BUSY];
	static struct wire_ns ns[BUSY];

	for (unsigned i = 0; i < BUSY; i++)
		if (wire_open(&w[i], host->socket) < 0 || wire_join(&w[i], &ns[i], "m", BLOCK) < 0)
			return 1;
	for (unsigned round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < BUSY; i++) {
			uint64_t k = first + i * ROUNDS + round, began = wire_now();
			struct kvp_key key = wire_key(k);
			struct wire_pinned pinned;

			if (wire_put(&ns[i], &key, NULL, k, 10000) != KVP_PUB_STORED)
				return 2;
			took[i * ROUNDS + round] = wire_now() - began;
			if (wire_pin(&ns[i], &key, &pinned) == 1) {
				if (!wire_right(pinned.data, pinned.used_bytes, k))
					return 3;
				wire_unpin(&ns[i], &pinned);
			}
		}
	return 0;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void all_busy_ones_are_served(struct crowd *c, const char *who, uint64_t first)
{
	pid_t pids[PROCESSES];

	fflush(NULL);
	for (unsigned p = 0; p < PROCESSES; p++) {
		pids[p] = fork();
		if (pids[p] == 0)
			_exit(is_busy(&c->host, first + p * BUSY * ROUNDS, c->took + p * BUSY * ROUNDS));
	}
	for (unsigned p = 0; p < PROCESSES; p++) {
		int status = -1;

		assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
		assert_true(WIFEXITED(status));
		assert_int_equal(WEXITSTATUS(status), 0);
	}
	qsort(c->took, CALLS, sizeof(*c->took), by_size);
	printf("%s: reserve, map, publish: p50 %.2f ms, p99 %.2f ms, longest %.2f ms\n", who,
		(double)c->took[CALLS / 2] / 1e6, (double)c->took[CALLS * 99 / 100] / 1e6,
		(double)c->took[CALLS - 1] / 1e6);
}

/* One asks and never reads, one sends half a message, one never takes the descriptors it was sent. */
static void misbehave(struct crowd *c)
{
	struct kvp_wire_hello hello = {
		.major = KVP_WIRE_MAJOR, .layout_major = KVP_LAYOUT_MAJOR, .pid = getpid(), .comm = "takes nothing"};
	struct kvp_msg half = {.magic = KVP_WIRE_MAGIC, .type = KVP_MSG_RESERVE, .bytes = 4096, .id = 7};

	assert_int_equal(wire_open(&c->deaf, c->host.socket), 0);
	fcntl(c->deaf.fd, F_SETFL, O_NONBLOCK);
	for (unsigned i = 0; i < 3000; i++)
		wire_send(&c->deaf, KVP_MSG_PING, 100 + i, NULL, 0, NULL, 0);
	assert_int_equal(wire_open(&c->half, c->host.socket), 0);
	assert_true(write(c->half.fd, &half, sizeof(half)) == (ssize_t)sizeof(half));
	assert_int_equal(wire_connect(&c->takes_nothing, c->host.socket), 0);
	assert_int_equal(wire_send(&c->takes_nothing, KVP_MSG_HELLO, 1, &hello, sizeof(hello), NULL, 0), 0);
}

static void of_a_thousand_clients_the_64_busy_ones_are_served_whatever_the_others_do(void **state)
{
	struct crowd *c = *state;

	if (!c)
		skip();
	all_busy_ones_are_served(c, "64 alone", 0);
	for (unsigned i = 0; i < IDLE; i++)
		assert_int_equal(wire_open(&c->idle[i], c->host.socket), 0);
	misbehave(c);
	assert_true(atomic_load(&c->host.stats->counters.sessions) >= IDLE + 1);
	for (unsigned i = 0; i < CALLS; i++)
		c->took[i] = 0;
	all_busy_ones_are_served(c, "64 of a thousand", CALLS);
	wire_close(&c->deaf);
	wire_close(&c->half);
	close(c->takes_nothing.fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			of_a_thousand_clients_the_64_busy_ones_are_served_whatever_the_others_do, setup, teardown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
