/* test_daemon_wire.c - clients that speak wrongly, too much, or not at all: the daemon serves the others */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

#define BLOCK 4096u

static const char *const options[] = {"--pool", "8M", "--slab", "1M", "--spill", "off", NULL};

static int setup(void **state)
{
	struct host *host = calloc(1, sizeof(*host));

	assert_non_null(host);
	assert_int_equal(host_open(host, geteuid()), 0);
	assert_int_equal(host_start(host, options), 0);
	*state = host;
	return 0;
}

static int teardown(void **state)
{
	struct host *host = *state;
	bool good = host_alive(host) && host_conserves(host);

	host_close(host);
	free(host);
	return good ? 0 : -1;
}

/* The alive check: a fresh client can reserve, fill, publish and read. */
static void a_fresh_client_is_served(struct host *host)
{
	struct wire w;
	struct wire_ns ns;
	struct wire_pinned pinned;
	static uint64_t k = 1000;
	struct kvp_key key = wire_key(++k);

	assert_true(host_alive(host));
	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_join(&w, &ns, "alive", BLOCK), 0);
	assert_int_equal(wire_put(&ns, &key, NULL, k, 3000), KVP_PUB_STORED);
	assert_int_equal(wire_pin(&ns, &key, &pinned), 1);
	assert_true(wire_right(pinned.data, BLOCK, k));
	wire_unpin(&ns, &pinned);
	wire_leave(&ns);
	wire_close(&w);
}

/* ---- HELLO ---- */

/* B32 */
static void another_major_version_is_refused_with_both_versions_named(void **state)
{
	struct host *host = *state;
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR + 6,
		.minor = 3,
		.layout_major = KVP_LAYOUT_MAJOR,
		.layout_minor = KVP_LAYOUT_MINOR};
	struct kvp_wire_welcome welcome;
	struct wire w;
	char ours[32];

	assert_int_equal(wire_connect(&w, host->socket), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_HELLO, &hello, sizeof(hello), &welcome, sizeof(welcome)), -KVP_EVERSION);
	snprintf(ours, sizeof(ours), "wire %u.%u", KVP_WIRE_MAJOR, KVP_WIRE_MINOR);
	assert_non_null(strstr(w.text, "7.3"));
	assert_non_null(strstr(w.text, ours));
	assert_true(host_logged(host, "is refused, it runs without the pool: this kvpoold speaks wire 1", 5000));
	hello.major = KVP_WIRE_MAJOR;
	hello.layout_major = KVP_LAYOUT_MAJOR + 1;
	assert_int_equal(wire_call(&w, KVP_MSG_HELLO, &hello, sizeof(hello), &welcome, sizeof(welcome)), -KVP_EVERSION);
	/* a HELLO of some other version, that has another length, is understood as far as its versions go */
	hello.layout_major = KVP_LAYOUT_MAJOR;
	assert_int_equal(wire_call(&w, KVP_MSG_HELLO, &hello, 8, &welcome, sizeof(welcome)), -KVP_EVERSION);
	/* and the right one still gets in */
	assert_int_equal(wire_hello(&w, 0), 0);
	wire_close(&w);
	a_fresh_client_is_served(host);
}

static void a_minor_version_ahead_is_served(void **state)
{
	struct host *host = *state;
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR,
		.minor = KVP_WIRE_MINOR + 5,
		.layout_major = KVP_LAYOUT_MAJOR,
		.layout_minor = KVP_LAYOUT_MINOR + 1};
	struct kvp_wire_welcome welcome;
	struct wire w;

	assert_int_equal(wire_connect(&w, host->socket), 0);
	assert_int_equal(
		wire_call(&w, KVP_MSG_HELLO, &hello, sizeof(hello), &welcome, sizeof(welcome)), sizeof(welcome));
	assert_true(welcome.can & KVP_CAN_LONGER);
	wire_close(&w);
}

/* As a library of a later minor version sends them: of what it knows first, a daemon knows nothing. */
static int longer_call(struct wire *w, uint16_t type, const void *known, size_t n, void *reply, size_t room)
{
	char body[sizeof(struct kvp_wire_join) + 24];

	memset(body, 0xa5, sizeof(body));
	memcpy(body, known, n);
	return wire_call(w, type, body, n + 24, reply, room);
}

static void fields_of_a_later_minor_version_are_left_alone(void **state)
{
	struct host *host = *state;
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR, .layout_major = KVP_LAYOUT_MAJOR};
	struct kvp_wire_welcome welcome;
	struct kvp_wire_admin admin = {.n = 1};
	struct kvp_key key = wire_key(9), missing = wire_key(10);
	struct kvp_wire_grant grant;
	struct kvp_wire_found found[2];
	struct kvp_wire_usage usage;
	struct wire_ns ns;
	struct wire w;
	struct {
		struct kvp_wire_batch head;
		struct kvp_key keys[2];
	} batch;
	struct {
		struct kvp_wire_batch head;
		struct kvp_key key;
		uint64_t deadline_ns;
	} delete;

	assert_int_equal(wire_connect(&w, host->socket), 0);
	assert_int_equal(
		longer_call(&w, KVP_MSG_HELLO, &hello, sizeof(hello), &welcome, sizeof(welcome)), sizeof(welcome));
	wire_close(&w);
	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_join(&w, &ns, "longer", BLOCK), 0);
	assert_int_equal(wire_put(&ns, &key, NULL, 9, 3000), KVP_PUB_STORED);
	struct kvp_wire_reserve reserve = {
		.ns_id = ns.id, .n = 1, .node = UINT32_MAX, .deadline_ns = wire_now() + 3000000000ull};
	assert_int_equal(
		longer_call(&w, KVP_MSG_RESERVE, &reserve, sizeof(reserve), &grant, sizeof(grant)), sizeof(grant));
	batch.head = (struct kvp_wire_batch){.ns_id = ns.id, .n = 2};
	batch.keys[0] = key;
	batch.keys[1] = missing;
	assert_int_equal(longer_call(&w, KVP_MSG_LOOKUP, &batch, sizeof(batch), found, sizeof(found)), sizeof(found));
	assert_int_equal(found[0].state, KVP_HIT_RAM);
	assert_int_equal(found[1].state, KVP_MISS);
	assert_int_equal(
		longer_call(&w, KVP_MSG_USAGE, &batch.head, sizeof(batch.head), &usage, sizeof(usage)), sizeof(usage));
	assert_int_equal(usage.ram_blocks, 1);
	/* the deadline lies behind the keys, not at the end */
	delete.head = (struct kvp_wire_batch){.ns_id = ns.id, .n = 1, .flags = KVP_WIRE_DEADLINE};
	delete.key = missing;
	delete.deadline_ns = 1;
	assert_int_equal(longer_call(&w, KVP_MSG_DELETE, &delete, sizeof(delete), found, sizeof(found)), -ETIME);
	delete.deadline_ns = wire_now() + 3000000000ull;
	assert_int_equal(
		longer_call(&w, KVP_MSG_DELETE, &delete, sizeof(delete), found, sizeof(found)), sizeof(found[0]));
	/* an operator's request that is none is refused by who asks, not by its length */
	assert_int_equal(longer_call(&w, KVP_MSG_EVICT, &admin, sizeof(admin), found, sizeof(found)), -KVP_EACCES);
	wire_leave(&ns);
	wire_close(&w);
}

static void the_header_and_session_object_are_as_the_layout_says(void **state)
{
	struct host *host = *state;
	struct wire w;
	struct stat st;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_true(w.header->magic == KVP_MAGIC_HEADER);
	assert_int_equal(w.header->endian, KVP_ENDIAN);
	assert_int_equal(w.header->layout_major, KVP_LAYOUT_MAJOR);
	assert_memory_equal(w.header->uuid, w.welcome.uuid, 16);
	assert_int_equal(w.header->state, KVP_DAEMON_SERVING);
	assert_int_equal(w.header->daemon_pid, host->pid);
	assert_string_equal(w.header->pool_name, host->name);
	assert_int_equal(fcntl(w.header_fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_ptr_equal(mmap(NULL, KVP_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, w.header_fd, 0), MAP_FAILED);
	assert_true(w.session->magic == KVP_MAGIC_SESSION);
	assert_int_equal(w.session->session_id, w.welcome.session_id);
	assert_int_equal(atomic_load(&w.session->word), 1);
	assert_int_equal(fstat(w.session_fd, &st), 0);
	assert_int_equal(st.st_size, w.session->object_bytes);
	assert_int_equal(st.st_mode & 07777, 0600);
	wire_close(&w);
}

static void a_session_of_another_pool_is_gone_and_an_unknown_one_stale(void **state)
{
	struct host *host = *state;
	struct wire w;

	assert_int_equal(wire_connect(&w, host->socket), 0);
	assert_int_equal(wire_hello(&w, 12345), -KVP_EGONE); /* of uuid 0 */
	memcpy(w.welcome.uuid, host->uuid, 16);
	assert_int_equal(wire_hello(&w, 12345), -KVP_ESTALE);
	wire_close(&w);
}

/* ---- nonsense ---- */

static void put_out(struct host *host, bool hello, uint16_t type, const void *body, size_t n)
{
	char reply[4096];
	struct wire w;

	assert_int_equal(wire_connect(&w, host->socket), 0);
	if (hello)
		assert_int_equal(wire_hello(&w, 0), 0);
	assert_int_equal(wire_call(&w, type, body, n, reply, sizeof(reply)), WIRE_HUNG_UP);
	wire_close(&w);
}

static void raw_put_out(struct host *host, const void *packet, size_t n)
{
	struct wire w;
	char reply[16];

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(send(w.fd, packet, n, MSG_NOSIGNAL), n);
	assert_int_equal(wire_receive(&w, 77, reply, sizeof(reply), NULL, NULL, 5000), WIRE_HUNG_UP);
	wire_close(&w);
}

static void malformed_messages_put_their_sender_out_and_nobody_else(void **state)
{
	struct host *host = *state;
	static char junk[KVP_WIRE_MAX];
	struct kvp_msg msg = {.magic = KVP_WIRE_MAGIC, .type = KVP_MSG_PING, .bytes = sizeof(msg), .id = 77}, bad;
	struct wire bystander;

	assert_int_equal(wire_open(&bystander, host->socket), 0);
	raw_put_out(host, junk, 1);
	raw_put_out(host, junk, sizeof(msg) - 1);
	raw_put_out(host, junk, sizeof(msg));
	raw_put_out(host, junk, 100000);
	bad = msg;
	bad.bytes++;
	raw_put_out(host, &bad, sizeof(bad));
	bad = msg;
	bad.magic ^= 1;
	raw_put_out(host, &bad, sizeof(bad));
	bad = msg;
	bad.n_fds = 1;
	raw_put_out(host, &bad, sizeof(bad));
	put_out(host, false, KVP_MSG_JOIN, junk, sizeof(struct kvp_wire_join)); /* no HELLO */
	put_out(host, false, KVP_MSG_RESERVE, junk, sizeof(struct kvp_wire_reserve));
	put_out(host, false, KVP_MSG_HELLO, junk, 3);
	put_out(host, true, KVP_MSG_HELLO,
		&(struct kvp_wire_hello){.major = KVP_WIRE_MAJOR, .layout_major = KVP_LAYOUT_MAJOR},
		sizeof(struct kvp_wire_hello)); /* twice */
	put_out(host, true, KVP_MSG_JOIN, junk, 10);
	put_out(host, true, KVP_MSG_RESERVE, junk, 3);
	a_fresh_client_is_served(host);
	assert_int_equal(
		wire_call(&bystander, KVP_MSG_PING, NULL, 0, junk, sizeof(junk)), sizeof(struct kvp_wire_pong));
	wire_close(&bystander);
}

static void bodies_that_do_not_fit_their_count_put_their_sender_out(void **state)
{
	struct host *host = *state;
	static const uint16_t types[] = {KVP_MSG_MAP, KVP_MSG_RESERVE, KVP_MSG_PUBLISH, KVP_MSG_ABANDON, KVP_MSG_GRANTS,
		KVP_MSG_LOOKUP, KVP_MSG_RESTORE, KVP_MSG_STAGE, KVP_MSG_DELETE, KVP_MSG_CLEAR};
	static const uint32_t counts[] = {1, 7, 4096, UINT32_MAX, UINT32_MAX / 16 + 1, UINT32_MAX / 64 + 1};

	for (unsigned t = 0; t < sizeof(types) / sizeof(types[0]); t++)
		for (unsigned c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
			char body[64] = {0}, reply[64];
			struct wire w;
			struct wire_ns ns;

			assert_int_equal(wire_open(&w, host->socket), 0);
			assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
			memcpy(body, &ns.id, 8);
			memcpy(body + 8, &counts[c], 4); /* n stands at the same place in all of them */
			/* one byte less than its head, or than one item behind it */
			assert_int_equal(
				wire_call(&w, types[t], body,
					types[t] == KVP_MSG_STAGE ? KVP_STAGE_LEAST - 1
					: types[t] == KVP_MSG_MAP ? 19
					: types[t] == KVP_MSG_LOOKUP || types[t] == KVP_MSG_DELETE ||
							types[t] == KVP_MSG_ABANDON || types[t] == KVP_MSG_GRANTS
						? 31
						: 23,
					reply, sizeof(reply)),
				WIRE_HUNG_UP);
			wire_leave(&ns);
			wire_close(&w);
		}
	a_fresh_client_is_served(host);
}

static void a_count_of_more_than_a_message_holds_ends_the_connection(void **state)
{
	static const struct {
		uint16_t type;
		size_t head;
	} messages[] = {
		{KVP_MSG_MAP, sizeof(struct kvp_wire_map)},
		{KVP_MSG_PUBLISH, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_ABANDON, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_GRANTS, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_LOOKUP, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_DELETE, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_REQUEST, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_UNMAPPED, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_LEAVE, sizeof(struct kvp_wire_batch)},
		{KVP_MSG_RESTORE, sizeof(struct kvp_wire_restore)},
	};
	static const uint32_t counts[] = {
		1, 64, 256, 512, 1024, KVP_WIRE_BATCH_MAX, KVP_WIRE_REQUEST_MAX, 1u << 28, UINT32_MAX};
	struct host *host = *state;

	for (size_t m = 0; m < sizeof(messages) / sizeof(messages[0]); m++)
		for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
			_Alignas(8) unsigned char body[64] = {0};
			struct kvp_wire_batch answer;
			struct wire w;
			struct wire_ns ns;

			assert_int_equal(wire_open(&w, host->socket), 0);
			assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
			memcpy(body, &ns.id, 8);
			memcpy(body + 8, &counts[c], 4); /* all of them have it there */
			assert_int_equal(
				wire_call(&w, messages[m].type, body, messages[m].head, &answer, sizeof(answer)),
				WIRE_HUNG_UP);
			wire_leave(&ns);
			wire_close(&w);
		}
	a_fresh_client_is_served(host);
}

static void random_bytes_behind_a_right_header_do_no_harm(void **state)
{
	struct host *host = *state;
	uint32_t seed = 12345;

	for (unsigned round = 0; round < 400; round++) {
		unsigned char body[8192];
		struct wire w;
		struct wire_ns ns;
		size_t n;

		assert_int_equal(wire_open(&w, host->socket), 0);
		assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
		seed = seed * 1664525u + 1013904223u;
		n = 16 + seed % (sizeof(body) - 16);
		for (size_t i = 0; i < n; i++) {
			seed = seed * 1664525u + 1013904223u;
			body[i] = (unsigned char)(seed >> 24);
		}
		memcpy(body, &ns.id, 8);
		if (round % 2) { /* a count that fits: the items themselves are read */
			uint32_t count = (uint32_t)((n - 16) / 64);

			memcpy(body + 8, &count, 4);
			n = 16 + count * 64ul;
		}
		(void)wire_call(&w, (uint16_t)(4 + seed % 9), body, n, body, sizeof(body));
		wire_leave(&ns);
		wire_close(&w);
	}
	a_fresh_client_is_served(host);
}

static void an_unknown_message_is_answered_and_the_client_goes_on(void **state)
{
	struct host *host = *state;
	struct kvp_wire_pong pong;
	struct wire w;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_call(&w, 99, NULL, 0, NULL, 0), -KVP_ENOTSUP);
	assert_non_null(strstr(w.text, "99"));
	assert_int_equal(wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)), sizeof(pong));
	wire_close(&w);
}

static void requests_of_operators_are_refused_on_the_clients_socket(void **state)
{
	struct host *host = *state;
	struct kvp_wire_admin admin = {.n = 1};
	struct kvp_wire_admin_done done;
	struct wire w;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_call(&w, KVP_MSG_PURGE, &admin, sizeof(admin), &done, sizeof(done)), -KVP_EACCES);
	assert_int_equal(wire_call(&w, KVP_MSG_EVICT, &admin, sizeof(admin), &done, sizeof(done)), -KVP_EACCES);
	assert_int_equal(wire_call(&w, KVP_MSG_DRAIN, &admin, sizeof(admin), &done, sizeof(done)), -KVP_EACCES);
	assert_non_null(strstr(w.text, ".admin"));
	wire_close(&w);
}

static void a_client_that_sends_descriptors_is_put_out_and_they_are_closed(void **state)
{
	struct host *host = *state;
	unsigned before = host_n_fds(host);

	for (unsigned round = 0; round < 20; round++) {
		int fds[60];
		struct wire w;
		char reply[64];

		for (unsigned i = 0; i < 60; i++)
			fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC);
		assert_int_equal(wire_open(&w, host->socket), 0);
		assert_int_equal(wire_send(&w, KVP_MSG_PING, 5, NULL, 0, fds, 60), 0);
		assert_int_equal(wire_receive(&w, 5, reply, sizeof(reply), NULL, NULL, 5000), WIRE_HUNG_UP);
		wire_close(&w);
		for (unsigned i = 0; i < 60; i++)
			close(fds[i]);
	}
	assert_true(host_logged(host, "it sent descriptors", 2000));
	a_fresh_client_is_served(host);
	wire_sleep_ms(500);
	assert_true(host_n_fds(host) <= before + 8);
}

/* ---- clients that do not read ---- */

static void a_client_that_reads_nothing_is_no_burden_to_others(void **state)
{
	struct host *host = *state;
	struct {
		struct kvp_wire_batch batch;
		struct kvp_key keys[2000];
	} lookup = {{.n = 2000}, {{{0}}}};
	struct wire w;
	struct wire_ns ns;
	unsigned sent = 0;
	uint64_t cpu;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
	lookup.batch.ns_id = ns.id;
	fcntl(w.fd, F_SETFL, O_NONBLOCK);
	for (unsigned i = 0; i < 20000; i++) { /* until nothing more is taken */
		if (wire_send(&w, KVP_MSG_LOOKUP, 1000 + i, &lookup, sizeof(lookup), NULL, 0) == 0)
			sent++;
		else if (sent && i % 100 == 0)
			wire_sleep_ms(1);
		if (i > sent + 300)
			break;
	}
	assert_true(sent > 3);
	assert_true(sent < 2000); /* the daemon reads no more of one who does not read */
	a_fresh_client_is_served(host);
	cpu = host_cpu_ms(host);
	wire_sleep_ms(1000);
	assert_true(host_cpu_ms(host) - cpu <= 50);
	wire_leave(&ns);
	wire_close(&w);
	a_fresh_client_is_served(host);
}

static void nobody_has_two_unread_answers_with_descriptors_on_the_way(void **state)
{
	struct host *host = *state;
	struct kvp_wire_join join = {.name = "m", .owner_uid = KVP_UID_SELF};
	struct kvp_wire_joined joined;
	struct wire w;
	int unread = 0;

	wire_desc(&join.desc, BLOCK, 1);
	assert_int_equal(wire_open(&w, host->socket), 0);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(wire_send(&w, KVP_MSG_JOIN, 500 + i, &join, sizeof(join), NULL, 0), 0);
	wire_sleep_ms(300);
	/* one is on its way, one waits with the daemon, the other questions have not been read */
	assert_int_equal(ioctl(w.fd, FIONREAD, &unread), 0);
	assert_int_equal(unread, sizeof(struct kvp_msg) + sizeof(joined));
	for (unsigned i = 0; i < 10; i++) {
		int fd = -1;
		unsigned n = 1;

		assert_int_equal(wire_receive(&w, 500 + i, &joined, sizeof(joined), &fd, &n, 5000), sizeof(joined));
		assert_int_equal(n, 1);
		close(fd);
	}
	wire_close(&w);
	a_fresh_client_is_served(host);
}

static void more_requests_than_may_wait_are_refused_and_the_rest_goes_on(void **state)
{
	struct host *host = *state;
	struct kvp_wire_grant grants[2048];
	struct kvp_wire_reserve reserve;
	struct wire w, other;
	struct wire_ns ns, theirs;
	unsigned refused = 0;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_open(&other, host->socket), 0);
	assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
	assert_int_equal(wire_join(&other, &theirs, "m", BLOCK), 0);
	assert_int_equal(wire_reserve(&ns, grants, 2048, 0), 2048); /* all of it */
	reserve = (struct kvp_wire_reserve){
		.ns_id = theirs.id, .n = 1, .node = UINT32_MAX, .deadline_ns = wire_now() + 60000000000ull};
	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(wire_send(&other, KVP_MSG_RESERVE, 1000 + i, &reserve, sizeof(reserve), NULL, 0), 0);
	for (unsigned i = 256; i < 300; i++)
		refused += wire_receive(&other, 1000 + i, grants, sizeof(grants), NULL, NULL, 5000) == -KVP_EQUOTA;
	assert_int_equal(refused, 44);
	wire_leave(&theirs);
	wire_close(&other);
	wire_leave(&ns);
	wire_close(&w);
	a_fresh_client_is_served(host);
}

/* B40 */
static void clients_that_ask_and_close_at_once_are_nothing_to_the_daemon(void **state)
{
	struct host *host = *state;
	struct {
		struct kvp_wire_batch batch;
		struct kvp_key keys[1000];
	} lookup = {{.n = 1000}, {{{0}}}};
	struct kvp_wire_hello hello = {.major = KVP_WIRE_MAJOR, .layout_major = KVP_LAYOUT_MAJOR};
	unsigned before = host_n_fds(host);

	for (unsigned i = 0; i < 3000; i++) {
		struct wire w;

		if (wire_connect(&w, host->socket) < 0)
			continue;
		if (i % 3 != 0)
			wire_send(&w, KVP_MSG_HELLO, 1, &hello, sizeof(hello), NULL, 0);
		if (i % 3 == 2)
			wire_send(&w, KVP_MSG_LOOKUP, 2, &lookup, sizeof(lookup), NULL, 0);
		close(w.fd);
	}
	a_fresh_client_is_served(host);
	wire_sleep_ms(1500);
	assert_true(host_n_fds(host) <= before + 8);
}

/* ---- descriptors run out ---- */

/* B41, on the daemon's side */
static void with_no_descriptor_left_extras_are_refused_without_spinning(void **state)
{
	struct host host;
	struct wire w[60];
	unsigned in = 0;
	uint64_t cpu;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	host.limit_nofile = 48;
	assert_int_equal(host_start(&host, options), 0);
	for (unsigned i = 0; i < 60; i++) {
		int r = wire_open(&w[i], host.socket);

		if (r == 0) {
			assert_true(w[i].session->magic == KVP_MAGIC_SESSION);
			in++;
		} else {
			assert_true(r < 0);
		}
	}
	assert_true(in >= 5);
	assert_true(in < 48);
	cpu = host_cpu_ms(&host);
	wire_sleep_ms(1000);
	assert_true(host_cpu_ms(&host) - cpu <= 50);
	for (unsigned i = 0; i < 60; i++)
		wire_close(&w[i]);
	wire_sleep_ms(1000);
	a_fresh_client_is_served(&host);
	host_close(&host);
}

/* Not even the one it keeps to refuse somebody: it has more open than it may. */
static void with_fewer_descriptors_than_it_has_it_serves_who_is_there_and_nobody_else_without_spinning(void **state)
{
	struct host *host = *state;
	struct rlimit few = {3, 0}, before;
	struct wire w, late;
	struct wire_ns ns;
	struct kvp_wire_pong pong;
	uint64_t cpu;

	assert_int_equal(wire_open(&w, host->socket), 0);
	assert_int_equal(wire_join(&w, &ns, "a", BLOCK), 0);
	for (uint64_t k = 0; k < 4; k++)
		assert_int_equal(wire_put(&ns, &(struct kvp_key){{k + 1, 1}}, NULL, k, 5000), KVP_PUB_STORED);
	assert_int_equal(prlimit(host->pid, RLIMIT_NOFILE, NULL, &before), 0);
	few.rlim_max = before.rlim_max;
	assert_int_equal(prlimit(host->pid, RLIMIT_NOFILE, &few, NULL), 0);
	assert_int_equal(wire_connect(&late, host->socket), 0); /* nobody takes it from the queue */
	wire_sleep_ms(300);
	cpu = host_cpu_ms(host);
	for (unsigned i = 0; i < 10; i++) {
		assert_int_equal(wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)), sizeof(pong));
		assert_int_equal(wire_put(&ns, &(struct kvp_key){{100 + i, 1}}, NULL, 100 + i, 5000), KVP_PUB_STORED);
		wire_sleep_ms(100);
	}
	assert_true(host_cpu_ms(host) - cpu <= 100);
	assert_true(host_logged(host, "no connection can be taken on: Too many open files", 0));
	assert_int_equal(prlimit(host->pid, RLIMIT_NOFILE, &before, NULL), 0);
	assert_int_equal(wire_hello(&late, 0), 0);
	a_fresh_client_is_served(host);
	wire_close(&late);
	wire_leave(&ns);
	wire_close(&w);
}

/* B41, on the client's side: what the kernel drops is not taken for a descriptor */
static void a_client_without_descriptors_gets_an_error_not_a_mapping(void **state)
{
	struct host *host = *state;
	int status;
	pid_t pid = fork();

	if (pid == 0) {
		struct wire w;
		struct rlimit limit;
		int r;

		if (wire_connect(&w, host->socket) < 0)
			_exit(1);
		limit.rlim_cur = limit.rlim_max = (rlim_t)w.fd + 1;
		setrlimit(RLIMIT_NOFILE, &limit);
		r = wire_hello(&w, 0);
		_exit(r == -EPROTO && !w.session ? 0 : 2);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	a_fresh_client_is_served(host);
}

/* ---- limits of a uid ---- */

/* Whoever looks after the host learns it from the log: who, and what to do. */
static void logged_as_refused(const struct host *host, const char *cause)
{
	char line[300];

	snprintf(line, sizeof(line),
		"client of uid %u, pid %d is refused, it runs without the pool: ", (unsigned)geteuid(), (int)getpid());
	assert_true(host_logged(host, line, 5000));
	assert_true(host_logged(host, cause, 0));
}

static void an_engine_that_is_refused_is_in_the_log_with_who_it_is_and_the_way_out(void **state)
{
	static const char *const tight[] = {"--pool", "2M", "--slab", "1M", "--max-clients", "1", NULL};
	struct host host;
	struct wire w[3];

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, tight), 0);
	assert_int_equal(wire_open(&w[0], host.socket), 0);
	assert_int_equal(wire_open(&w[1], host.socket), -KVP_EQUOTA);
	logged_as_refused(&host, "1 sessions are open: raise max-clients (1)");
	wire_sleep_ms(1100); /* a line a second */
	assert_true(wire_open(&w[2], host.socket) < 0); /* two connections there are, its own would be the third */
	assert_true(host_logged(&host, "2 connections are open: raise max-clients (1)", 5000));
	for (unsigned i = 0; i < 3; i++)
		wire_close(&w[i]);
	host_close(&host);
}

static void a_uid_at_its_limits_is_told_which_and_how_to_raise_it(void **state)
{
	static const char *const tight[] = {"--pool", "8M", "--slab", "1M", "--uid-max-clients", "3",
		"--uid-max-namespaces", "2", "--uid-max-grants", "10", NULL};
	struct kvp_wire_grant grants[16];
	struct host host;
	struct wire w[4];
	struct wire_ns ns[3];

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, tight), 0);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(wire_open(&w[i], host.socket), 0);
	assert_int_equal(wire_open(&w[3], host.socket), -KVP_EQUOTA);
	assert_non_null(strstr(w[3].text, "uid-max-clients (3)"));
	assert_null(strstr(w[3].text, " max-clients")); /* only the one that is in the way */
	logged_as_refused(&host, "uid-max-clients (3)");
	wire_close(&w[3]);
	assert_int_equal(wire_join(&w[0], &ns[0], "a", BLOCK), 0);
	assert_int_equal(wire_join(&w[0], &ns[1], "b", BLOCK), 0);
	assert_int_equal(wire_join(&w[0], &ns[2], "c", BLOCK), -KVP_EQUOTA);
	assert_non_null(strstr(w[0].text, "uid-max-namespaces"));
	assert_int_equal(wire_reserve(&ns[0], grants, 8, 0), 8);
	assert_int_equal(wire_reserve(&ns[1], grants, 8, 0), 2); /* of the uid, not of the namespace: what is left */
	assert_int_equal(wire_reserve(&ns[1], grants, 8, 1000), -KVP_EQUOTA);
	assert_non_null(strstr(w[0].text, "uid-max-grants"));
	wire_leave(&ns[0]);
	wire_leave(&ns[1]);
	for (unsigned i = 0; i < 3; i++)
		wire_close(&w[i]);
	host_close(&host);
}

static void who_holds_more_than_uid_max_pins_is_put_out(void **state)
{
	static const char *const tight[] = {"--pool", "8M", "--slab", "1M", "--uid-max-pins", "4", NULL};
	struct wire_pinned pinned;
	struct host host;
	struct wire w;
	struct wire_ns ns;

	(void)state;
	assert_int_equal(host_open(&host, geteuid()), 0);
	assert_int_equal(host_start(&host, tight), 0);
	assert_int_equal(wire_open(&w, host.socket), 0);
	assert_int_equal(wire_join(&w, &ns, "m", BLOCK), 0);
	for (uint64_t k = 0; k < 6; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&ns, &key, NULL, k, 0), KVP_PUB_STORED);
		if (k < 4)
			assert_int_equal(wire_pin(&ns, &key, &pinned), 1);
	}
	wire_sleep_ms(600);
	assert_int_equal(atomic_load(&w.session->word), 1);
	assert_int_equal(wire_pin(&ns, &(struct kvp_key){{wire_key(5).w[0], wire_key(5).w[1]}}, &pinned), 1);
	assert_true(host_logged(&host, "uid-max-pins is 4", 5000));
	assert_int_equal(atomic_load(&w.session->word), 0); /* it can see that its holds are void */
	wire_leave(&ns);
	wire_close(&w);
	host_close(&host);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(another_major_version_is_refused_with_both_versions_named),
		WITH_DAEMON(a_minor_version_ahead_is_served),
		WITH_DAEMON(fields_of_a_later_minor_version_are_left_alone),
		WITH_DAEMON(the_header_and_session_object_are_as_the_layout_says),
		WITH_DAEMON(a_session_of_another_pool_is_gone_and_an_unknown_one_stale),
		WITH_DAEMON(malformed_messages_put_their_sender_out_and_nobody_else),
		WITH_DAEMON(bodies_that_do_not_fit_their_count_put_their_sender_out),
		WITH_DAEMON(a_count_of_more_than_a_message_holds_ends_the_connection),
		WITH_DAEMON(random_bytes_behind_a_right_header_do_no_harm),
		WITH_DAEMON(an_unknown_message_is_answered_and_the_client_goes_on),
		WITH_DAEMON(requests_of_operators_are_refused_on_the_clients_socket),
		WITH_DAEMON(a_client_that_sends_descriptors_is_put_out_and_they_are_closed),
		WITH_DAEMON(a_client_that_reads_nothing_is_no_burden_to_others),
		WITH_DAEMON(nobody_has_two_unread_answers_with_descriptors_on_the_way),
		WITH_DAEMON(more_requests_than_may_wait_are_refused_and_the_rest_goes_on),
		WITH_DAEMON(clients_that_ask_and_close_at_once_are_nothing_to_the_daemon),
		cmocka_unit_test(with_no_descriptor_left_extras_are_refused_without_spinning),
		WITH_DAEMON(with_fewer_descriptors_than_it_has_it_serves_who_is_there_and_nobody_else_without_spinning),
		WITH_DAEMON(a_client_without_descriptors_gets_an_error_not_a_mapping),
		cmocka_unit_test(an_engine_that_is_refused_is_in_the_log_with_who_it_is_and_the_way_out),
		cmocka_unit_test(a_uid_at_its_limits_is_told_which_and_how_to_raise_it),
		cmocka_unit_test(who_holds_more_than_uid_max_pins_is_put_out),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
