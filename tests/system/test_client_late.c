/*
 * test_client_late.c - a daemon that leaves one kind of message unanswered: no call outlives its deadline; and what
 * happens between an answer and its reading
 *
 * Between the library and a real kvpoold stands a relay that keeps messages of one type to itself, or does something
 * while it has one.  Times are what the calls took less what this process waited for a processor, so a host with other
 * things to do does not make them late.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "patience.h"
#include "trial.h"

#define WAIT_MS 50
#define LATE_MS 500 /* whoever waits for an answer all the same takes a second */
#define BLOCKS 8u

struct relay {
	char path[96], daemon[96];
	int listener, stop[2];
	pthread_t thread;
	_Atomic int kept; /* type of the messages that go no further; 0: none */
	_Atomic unsigned n_kept;
	void (*meanwhile)(void *owner, int type); /* called with each message, before it goes on */
	void *owner;
	char packet[KVP_WIRE_MAX];
};

struct fixture {
	struct trial t;
	struct relay relay;
	struct kvp_client *client;
	struct kvp_ns *ns;
	struct kvp_key keys[BLOCKS], never;
};

/* ---- the relay ---- */

static int unix_socket(const char *path, bool listens)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	if (fd < 0 || (listens ? bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, 8)
			       : connect(fd, (struct sockaddr *)&address, sizeof(address)))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* One packet with its descriptors. Return: false: the connection is over. */
static bool relay_packet(struct relay *relay, int from, int to, bool to_daemon)
{
	union {
		char bytes[CMSG_SPACE(KVP_WIRE_FDS_MAX * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {relay->packet, sizeof(relay->packet)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n = recvmsg(from, &msg, MSG_CMSG_CLOEXEC);
	struct kvp_msg head = {0};
	bool sent;

	if (n <= 0)
		return false;
	memcpy(&head, relay->packet, (size_t)n < sizeof(head) ? (size_t)n : sizeof(head));
	if (to_daemon && head.type == atomic_load(&relay->kept)) {
		atomic_fetch_add(&relay->n_kept, 1);
		return true;
	}
	if (relay->meanwhile)
		relay->meanwhile(relay->owner, head.type);
	iov.iov_len = (size_t)n;
	sent = sendmsg(to, &msg, MSG_NOSIGNAL) == n;
	for (struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg))
		for (size_t i = 0; cmsg->cmsg_type == SCM_RIGHTS && CMSG_LEN(i * sizeof(int)) < cmsg->cmsg_len; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(cmsg) + i * sizeof(int), sizeof(fd));
			close(fd);
		}
	return sent;
}

/* Return: false: the test is over. */
static bool relay_connection(struct relay *relay, int client)
{
	struct pollfd p[3] = {{.fd = client, .events = POLLIN},
		{.fd = unix_socket(relay->daemon, false), .events = POLLIN}, {.fd = relay->stop[0], .events = POLLIN}};
	bool on = p[1].fd >= 0;

	while (on && poll(p, 3, -1) > 0 && !p[2].revents)
		on = (!p[0].revents || relay_packet(relay, p[0].fd, p[1].fd, true)) &&
		     (!p[1].revents || relay_packet(relay, p[1].fd, p[0].fd, false));
	close(p[0].fd);
	close(p[1].fd);
	return !p[2].revents;
}

static void *relay_main(void *at)
{
	struct relay *relay = at;
	struct pollfd p[2] = {{.fd = relay->listener, .events = POLLIN}, {.fd = relay->stop[0], .events = POLLIN}};

	while (poll(p, 2, -1) > 0 && !p[1].revents) {
		int client = accept4(relay->listener, NULL, NULL, SOCK_CLOEXEC);

		if (client >= 0 && !relay_connection(relay, client))
			break;
	}
	return NULL;
}

static void relay_start(struct relay *relay, const struct host *host)
{
	snprintf(relay->daemon, sizeof(relay->daemon), "%s", host->socket);
	snprintf(relay->path, sizeof(relay->path), "%s/relay", host->dir);
	relay->listener = unix_socket(relay->path, true);
	assert_true(relay->listener >= 0);
	assert_int_equal(pipe(relay->stop), 0);
	assert_int_equal(pthread_create(&relay->thread, NULL, relay_main, relay), 0);
}

static void relay_stop(struct relay *relay)
{
	assert_int_equal(write(relay->stop[1], "", 1), 1);
	pthread_join(relay->thread, NULL);
	close(relay->listener);
	close(relay->stop[0]);
	close(relay->stop[1]);
	unlink(relay->path);
}

/* ---- time ---- */

struct watch {
	struct patience patience;
	uint64_t start, waited;
};

static struct watch watch_start(void)
{
	struct watch watch;

	patience_begin(&watch.patience);
	watch.start = kvp_deadline_ms(0);
	watch.waited = patience_waited(&watch.patience);
	return watch;
}

static void in_time(struct watch *watch, const char *what, int kept)
{
	uint64_t took = kvp_deadline_ms(0) - watch->start, waited = patience_waited(&watch->patience) - watch->waited;

	patience_end(&watch->patience);
	took -= waited < took ? waited : took;
	if (took / 1000000 >= LATE_MS)
		fail_msg("%s took %llu ms while messages of type %d were not answered", what,
			(unsigned long long)(took / 1000000), kept);
}

/* ---- ---- */

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));
	struct kvp_open_opts opts = {.size = sizeof(opts), .connect_timeout_ms = 20000, .stock_blocks = KVP_STOCK_NONE};
	struct kvp_desc desc;

	assert_non_null(f);
	trial_given(&f->t, geteuid(), "4M", "32M");
	trial_start(&f->t);
	trial_attach(&f->t);
	relay_start(&f->relay, &f->t.host);
	opts.socket = f->relay.path;
	assert_int_equal(kvp_open(&opts, &f->client), 0);
	assert_int_equal(kvp_state(f->client, NULL), KVP_ATTACHED);
	trial_desc(&desc);
	assert_int_equal(trial_ns(f->client, "m", &desc, &f->ns), 0);
	for (uint64_t k = 0; k < BLOCKS; k++) {
		f->keys[k] = wire_key(k);
		assert_int_equal(
			trial_put(f->t.ns, &f->keys[k], k ? &f->keys[k - 1] : NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	f->never = wire_key(1000);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;
	bool good;

	kvp_ns_close(f->ns);
	kvp_close(f->client);
	relay_stop(&f->relay);
	good = trial_end(&f->t);
	free(f);
	return good ? 0 : -1;
}

static void reserve(struct fixture *f, uint32_t wait_ms, int kept)
{
	struct kvp_block_ref block = {0};
	struct watch watch = watch_start();
	int64_t n = kvp_reserve(f->ns, 1, 0, wait_ms ? kvp_deadline_ms(wait_ms) : 0, &block);

	in_time(&watch, "kvp_reserve", kept);
	assert_true(n >= 0);
	kvp_abandon(&block, (uint32_t)n);
}

static void acquire(struct fixture *f, uint32_t wait_ms, int kept)
{
	struct kvp_view views[BLOCKS];
	struct watch watch = watch_start();
	int64_t n;

	memset(views, 0, sizeof(views));
	n = kvp_acquire(f->ns, f->keys, BLOCKS, 0, wait_ms ? kvp_deadline_ms(wait_ms) : 0, views);
	in_time(&watch, "kvp_acquire", kept);
	assert_true(n >= 0);
	kvp_release(views, (uint32_t)n);
}

static void all_calls_with_a_deadline(struct fixture *f, int kept)
{
	struct kvp_match_part part = {.ns = f->ns, .keys = f->keys};
	struct watch watch;

	watch = watch_start();
	kvp_match(&part, 1, BLOCKS, KVP_MATCH_TOUCH, NULL);
	in_time(&watch, "kvp_match", kept);
	reserve(f, WAIT_MS, kept);
	reserve(f, 0, kept);
	acquire(f, WAIT_MS, kept);
	acquire(f, 0, kept);
	watch = watch_start();
	kvp_touch(f->ns, f->keys, BLOCKS);
	in_time(&watch, "kvp_touch", kept);
	watch = watch_start();
	kvp_delete(f->ns, &f->never, 1, kvp_deadline_ms(WAIT_MS));
	in_time(&watch, "kvp_delete", kept);
	watch = watch_start();
	kvp_ping(f->client, kvp_deadline_ms(WAIT_MS));
	in_time(&watch, "kvp_ping", kept);
}

/* All of them, so that each is asked for again; what a late answer brings back is held for a second. */
static void evict_all(struct fixture *f)
{
	struct kvp_match_part part = {.ns = f->t.ns, .keys = f->keys};
	uint64_t until = wire_now() + 20000000000ull;
	uint8_t states[BLOCKS];
	unsigned n_cold;

	assert_int_equal(TRIAL_KVCTL(&f->t, NULL, 0, "drain"), 0);
	do {
		assert_true(wire_now() < until);
		assert_in_range(
			TRIAL_KVCTL(&f->t, NULL, 0, "evict", "8"), 0, 1); /* 1: some were not in memory any more */
		memset(states, 0, sizeof(states));
		kvp_match(&part, 1, BLOCKS, KVP_MATCH_ALL, states); /* not told in time: asked again */
		n_cold = 0;
		for (unsigned k = 0; k < BLOCKS; k++)
			n_cold += states[k] == KVP_HIT_SPILL;
	} while (n_cold < BLOCKS);
}

static void no_call_outlives_its_deadline_whatever_message_is_not_answered(void **state)
{
	static const int types[] = {
		KVP_MSG_MAP, KVP_MSG_PING, KVP_MSG_RESERVE, KVP_MSG_LOOKUP, KVP_MSG_RESTORE, KVP_MSG_DELETE};
	struct fixture *f = *state;

	for (unsigned i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		if (types[i] == KVP_MSG_RESTORE || types[i] == KVP_MSG_LOOKUP)
			evict_all(f);
		atomic_store(&f->relay.n_kept, 0);
		atomic_store(&f->relay.kept, types[i]);
		all_calls_with_a_deadline(f, types[i]);
		if (!atomic_load(&f->relay.n_kept))
			fail_msg("no message of type %d was sent: this test does not see it", types[i]);
		atomic_store(&f->relay.kept, 0);
	}
	acquire(f, WAIT_MS, 0);
}

static void grants_that_could_not_be_mapped_go_back(void **state)
{
	struct fixture *f = *state;
	struct kvp_block_ref blocks[128];
	struct kvp_ns_info info = {.size = sizeof(info)};
	uint64_t until = wire_now() + 20000000000ull;
	int64_t n;

	atomic_store(&f->relay.kept, KVP_MSG_MAP);
	for (unsigned i = 0; i < 4; i++)
		reserve(f, WAIT_MS, KVP_MSG_MAP);
	atomic_store(&f->relay.kept, 0);
	assert_int_equal(kvp_ns_info(f->ns, &info), 0);
	/* all that the pool has room for, 4 MiB in blocks of 64 KiB: a call gives what there is, and some may be under
	   way yet */
	for (;;) {
		memset(blocks, 0, sizeof(blocks));
		n = kvp_reserve(f->ns, 64, 0, kvp_deadline_ms(20000), blocks);
		if (n == 64)
			break;
		if (wire_now() > until)
			fail_msg("%lld of 64 blocks after 20 s: %s", (long long)n, kvp_error(f->client));
		kvp_abandon(blocks, n > 0 ? (uint32_t)n : 0);
		wire_sleep_ms(10);
	}
	for (uint32_t i = 0; i < 64; i++)
		assert_false(blocks[i].is_private);
	kvp_abandon(blocks, 64);
}

/* ---- what is stored, and gone when its writer hears of it ---- */

struct taken {
	struct kvp_ns *writes, *other; /* one namespace, by the relay and past it */
	struct kvp_key key;
	unsigned n_sent, n_answered, n_gone, n_again;
};

/* The block goes before the first answer is told, and somebody else stores it before the second message is read. */
static void goes_and_comes_from_elsewhere(void *owner, int type)
{
	struct taken *taken = owner;

	if (type == (KVP_MSG_PUBLISH | KVP_MSG_REPLY) && !taken->n_answered++)
		taken->n_gone = kvp_delete(taken->other, &taken->key, 1, kvp_deadline_ms(20000)) == 1;
	if (type == KVP_MSG_PUBLISH && taken->n_sent++ == 1)
		taken->n_again = trial_put(taken->other, &taken->key, NULL, 9, TRIAL_BLOCK) == KVP_PUB_STORED;
}

static void given_a_copied_namespace(struct fixture *f, struct taken *taken)
{
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts), .flags = KVP_NS_COPIED, .name = "copied", .desc = &desc};

	trial_desc(&desc);
	*taken = (struct taken){.key = wire_key(9)};
	assert_int_equal(kvp_ns_open(f->client, &opts, &taken->writes), 0);
	assert_int_equal(kvp_ns_open(f->t.client, &opts, &taken->other), 0);
	f->relay.owner = taken;
	f->relay.meanwhile = goes_and_comes_from_elsewhere;
}

#define PUT_OUT 255 /* no result */

/* The relay stands still until the daemon takes back what its client held: at times it gives up the client too. */
static uint8_t publishes(struct fixture *f, const struct taken *taken, struct kvp_view *view)
{
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = taken->key, .block = &block, .used_tokens = TRIAL_TOKENS, .view = view};
	uint8_t result = 0;
	int64_t n;

	assert_int_equal(kvp_reserve(taken->writes, 1, 0, kvp_deadline_ms(20000), &block), 1);
	wire_fill(block.data, TRIAL_BLOCK, 9);
	n = kvp_publish(taken->writes, &item, 1, &result);
	f->relay.meanwhile = NULL;
	assert_int_equal(taken->n_gone, 1);
	if (n == 0 && taken->n_sent == 1) {
		kvp_abandon(&block, 1);
		return PUT_OUT;
	}
	assert_int_equal(n, 1);
	assert_null(block.data);
	return result;
}

static void who_stored_a_block_hears_so_though_it_was_gone_before_it_could_be_held(void **state)
{
	struct fixture *f = *state;
	uint8_t result = PUT_OUT;
	struct kvp_view view;
	struct taken taken;

	for (unsigned tries = 0; result == PUT_OUT && tries < 10; tries++) {
		if (tries) {
			kvp_ns_close(taken.writes);
			kvp_ns_close(taken.other);
			wire_sleep_ms(500); /* attached anew */
		}
		given_a_copied_namespace(f, &taken);
		result = publishes(f, &taken, &view);
	}
	assert_int_equal(result, KVP_PUB_STORED);
	assert_int_equal(taken.n_again, 1);
	assert_true(wire_right(view.data, TRIAL_BLOCK, 9));
	kvp_release(&view, 1);
	kvp_ns_close(taken.writes);
	kvp_ns_close(taken.other);
}

static void who_stores_a_block_and_holds_it_not_sends_it_once(void **state)
{
	struct fixture *f = *state;
	struct taken taken;

	given_a_copied_namespace(f, &taken);
	assert_int_equal(publishes(f, &taken, NULL), KVP_PUB_STORED);
	assert_int_equal(taken.n_sent, 1);
	kvp_ns_close(taken.writes);
	kvp_ns_close(taken.other);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
		TEST(no_call_outlives_its_deadline_whatever_message_is_not_answered),
		TEST(grants_that_could_not_be_mapped_go_back),
		TEST(who_stored_a_block_hears_so_though_it_was_gone_before_it_could_be_held),
		TEST(who_stores_a_block_and_holds_it_not_sends_it_once),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests_name("client late", tests, NULL, NULL);
}
