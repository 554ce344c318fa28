/*
 * test_daemon_trust.c - who gets in, what they can do with what they were given, and clients that break it
 *
 * The daemon runs under one uid, clients under two others, none of them root.  Without the right to change uids the
 * tests are skipped, and say so.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "wire.h"

#define DAEMON_UID 61001
#define ANNA 61002
#define BERT 61003
#define KIB 1024u
#define BLOCK (64 * KIB)

static const char *const options[] = {
	"--pool", "4M", "--slab", "1M", "--heartbeat", "100", "--free-percent", "0", "--spill", "off", NULL};

static struct host host; /* children see it too */

static int setup(void **state)
{
	(void)state;
	memset(&host, 0, sizeof(host));
	if (geteuid() != 0)
		return 0;
	return host_open(&host, DAEMON_UID) < 0 ? -1 : host_start(&host, options);
}

static int teardown(void **state)
{
	bool good = true;

	(void)state;
	if (host.pid)
		good = host_alive(&host) && host_conserves(&host);
	if (host.dir[0])
		host_close(&host);
	return good ? 0 : -1;
}

static void need_root(void)
{
	if (geteuid() == 0)
		return;
	printf("skipped: three uids are needed, and changing them needs root\n");
	skip();
}

/* For bodies that run in a child under another uid. */
#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not true under uid %d: %s\n", __FILE__, __LINE__, (int)getuid(), \
				#condition); \
			return 1; \
		} \
	} while (0)

static pid_t start_as(uid_t uid, gid_t group, int (*body)(void *arg), void *arg)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		if (setgroups(group ? 1 : 0, &group) < 0 || setgid((gid_t)uid) < 0 || setuid(uid) < 0)
			_exit(99);
		alarm(50);
		_exit(body(arg));
	}
	return pid;
}

static void run_as_in(uid_t uid, gid_t group, int (*body)(void *arg), void *arg)
{
	pid_t pid = start_as(uid, group, body, arg);
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void run_as(uid_t uid, int (*body)(void *arg), void *arg)
{
	run_as_in(uid, 0, body, arg);
}

static struct kvp_wire_join join_of(const char *name, uid_t owner, uint32_t mode)
{
	struct kvp_wire_join join = {.owner_uid = owner, .mode = mode};

	snprintf(join.name, sizeof(join.name), "%s", name);
	wire_desc(&join.desc, BLOCK, 1);
	return join;
}

static int reads_right(struct wire_ns *ns, uint64_t k)
{
	struct kvp_key key = wire_key(k);
	struct wire_pinned pinned;
	bool right;

	if (!wire_pin(ns, &key, &pinned))
		return 0;
	right = wire_right(pinned.data, pinned.used_bytes, k);
	wire_unpin(ns, &pinned);
	return right ? 1 : -1;
}

/* ---- namespaces are their owner's ---- */

struct making {
	const char *name;
	uint32_t mode;
	uint32_t flags;
	uint64_t first, n;
};

/* Make a namespace of one's own and publish blocks in it. */
static int makes(void *arg)
{
	const struct making *making = arg;
	struct kvp_wire_join join = join_of(making->name, KVP_UID_SELF, making->mode);
	struct wire w;
	struct wire_ns ns;

	join.flags = making->flags;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	for (uint64_t k = making->first; k < making->first + making->n; k++) {
		struct kvp_key key = wire_key(k);

		CHECK(wire_put(&ns, &key, NULL, k, 3000) == KVP_PUB_STORED);
	}
	return 0;
}

static int is_kept_out(void *arg)
{
	struct kvp_wire_join join = join_of("m", ANNA, 0), own = join_of("m", KVP_UID_SELF, 0);
	const uint64_t *id = arg;
	struct kvp_wire_found found;
	struct kvp_key key = wire_key(1);
	struct wire w;
	struct wire_ns ns, stranger;
	unsigned n_fds = 4;
	int fds[4];

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_send(&w, KVP_MSG_JOIN, 900, &join, sizeof(join), NULL, 0) == 0);
	CHECK(wire_receive(&w, 900, &ns, sizeof(ns), fds, &n_fds, 5000) == -KVP_EACCES);
	CHECK(n_fds == 0);
	join.ns_id = *id;
	CHECK(wire_join_as(&w, &ns, &join) == -KVP_EACCES);
	/* the same name of one's own is another namespace, with another secret and none of the blocks */
	CHECK(wire_join_as(&w, &ns, &own) == 0);
	CHECK(ns.id != *id);
	CHECK(!(ns.joined.flags & KVP_NS_SIBLING));
	CHECK(wire_lookup(&ns, &key, 1, &found) > 0);
	CHECK(found.state == KVP_MISS && found.reason == KVP_MISS_NEVER);
	/* asking about it all the same tells nothing */
	stranger = ns;
	stranger.id = *id;
	CHECK(wire_map(&stranger, 0, false) == -KVP_ENOENT);
	CHECK(wire_lookup(&stranger, &key, 1, &found) == -KVP_ENOENT);
	stranger.id = 0x123456789;
	CHECK(wire_map(&stranger, 0, false) == -KVP_ENOENT);
	return 0;
}

static uint64_t ns_of(const char *name, uid_t uid)
{
	const struct kvp_ns_row *rows = (const void *)((const char *)host.stats + host.stats->ns_off);

	for (unsigned i = 0; i < KVP_STATS_NS_MAX; i++)
		if (rows[i].ns_id && rows[i].owner_uid == uid && !strcmp(rows[i].name, name))
			return rows[i].ns_id;
	return 0;
}

static void another_uids_namespace_is_closed_and_gives_no_descriptor(void **state)
{
	struct making anna = {.name = "m", .first = 1, .n = 3};
	uint64_t id;

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	id = ns_of("m", ANNA);
	assert_true(id != 0);
	run_as(BERT, is_kept_out, &id);
	assert_true(ns_of("m", BERT) != 0);
	assert_true(ns_of("m", BERT) != id);
}

static int cannot_reopen(int fd)
{
	char path[64];
	int rw;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	rw = open(path, O_RDWR);
	CHECK(rw < 0 && errno == EACCES);
	CHECK(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
	CHECK(fchmod(fd, 0666) < 0 && errno == EPERM);
	CHECK(ftruncate(fd, 0) < 0);
	return 0;
}

static int reads_but_cannot_write(void *arg)
{
	struct kvp_wire_join join = join_of("pub", ANNA, 0);
	struct kvp_key key = wire_key(1);
	struct kvp_wire_found found;
	struct kvp_wire_grant grant;
	struct wire w;
	struct wire_ns ns;
	struct {
		struct kvp_wire_map map;
		uint32_t place;
	} body = {.map = {.n = 1}};
	struct kvp_wire_mapped mapped;
	struct kvp_wire_batch touch = {0};
	unsigned n_fds = 1;
	int slab = -1;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	touch.ns_id = ns.id;
	CHECK(ns.joined.flags & KVP_NS_READONLY);
	CHECK(reads_right(&ns, 1) == 1);
	CHECK(wire_reserve(&ns, &grant, 1, 0) == -KVP_EACCES);
	CHECK(wire_lookup(&ns, &key, 1, &found) > 0 && found.state == KVP_HIT_RAM);
	body.place = (uint32_t)(found.slot / ns.head->slots_per_slab);
	CHECK(wire_map(&ns, body.place, true) == -KVP_EACCES);
	CHECK(wire_publish(&ns, NULL, 0, NULL) == -KVP_EACCES);
	CHECK(cannot_reopen(w.header_fd) == 0);
	CHECK(cannot_reopen(ns.fd) == 0);
	body.map.ns_id = ns.id;
	CHECK(wire_send(&w, KVP_MSG_MAP, 901, &body, sizeof(body.map) + sizeof(body.place), NULL, 0) == 0);
	CHECK(wire_receive(&w, 901, &mapped, sizeof(mapped), &slab, &n_fds, 5000) == (int)sizeof(mapped));
	CHECK(mapped.status == 0 && n_fds == 1);
	CHECK(cannot_reopen(slab) == 0);
	CHECK(wire_call(&w, KVP_MSG_DELETE, &touch, sizeof(touch), NULL, 0) == -KVP_EACCES);
	return 0;
}

/* Who may write may delete, and read the events; the whole namespace is its owner's. */
static int deletes_but_cannot_clear(void *arg)
{
	struct kvp_wire_join join = join_of(arg, ANNA, 0);
	struct {
		struct kvp_wire_batch head;
		struct kvp_key key;
	} one = {.head = {.n = 1}, .key = wire_key(3)};
	struct kvp_wire_restore all = {0};
	struct kvp_wire_ring ring;
	struct kvp_wire_found found;
	struct wire w;
	struct wire_ns ns;
	unsigned n_fds = 1;
	int fd = -1;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	one.head.ns_id = all.ns_id = ns.id;
	CHECK(wire_call(&w, KVP_MSG_CLEAR, &all, sizeof(all), NULL, 0) == -KVP_EACCES);
	CHECK(reads_right(&ns, 3) == 1);
	CHECK(wire_call(&w, KVP_MSG_DELETE, &one, sizeof(one), &found, sizeof(found)) == (int)sizeof(found));
	CHECK(found.state == KVP_MISS && reads_right(&ns, 3) == 0);
	one.head.n = 0;
	CHECK(wire_send(&w, KVP_MSG_EVENTS, 902, &one.head, sizeof(one.head), NULL, 0) == 0);
	CHECK(wire_receive(&w, 902, &ring, sizeof(ring), &fd, &n_fds, 5000) == (int)sizeof(ring));
	CHECK(cannot_reopen(fd) == 0);
	return 0;
}

static int is_refused(void *arg)
{
	struct kvp_wire_join join = join_of(arg, ANNA, 0);
	struct wire w;
	struct wire_ns ns;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == -KVP_EACCES);
	return 0;
}

static int reads_as_group(void *arg)
{
	struct kvp_wire_join join = join_of(arg, ANNA, 0);
	struct wire w;
	struct wire_ns ns;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(reads_right(&ns, 1) == 1);
	return 0;
}

static void who_may_read_reads_in_place_and_can_write_none_of_it(void **state)
{
	struct making anna = {.name = "pub", .mode = 0644, .first = 1, .n = 3};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, reads_but_cannot_write, NULL);
	run_as(ANNA, makes, &(struct making){.name = "pub", .first = 10, .n = 2});
}

static void who_may_write_deletes_but_only_the_owner_clears(void **state)
{
	static char name[] = "shared";
	struct making anna = {.name = name, .mode = 0666, .flags = KVP_NS_IN_PLACE, .first = 1, .n = 3};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, deletes_but_cannot_clear, name);
}

static void the_groups_bits_let_the_group_in_and_nobody_else(void **state)
{
	static char name[] = "grp";
	struct making anna = {.name = name, .mode = 0640, .first = 1, .n = 3};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, is_refused, name);
	run_as_in(BERT, ANNA, reads_as_group, name); /* the kernel's word on supplementary groups */
}

/* ---- several writers: publish copies ---- */

static int publishes_staged(void *arg)
{
	struct kvp_wire_join join = join_of("both", ANNA, 0);
	struct kvp_wire_item items[3] = {{0}};
	struct kvp_wire_result results[3];
	struct kvp_wire_grant grant;
	struct wire w;
	struct wire_ns ns;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(ns.joined.flags & KVP_NS_COPIED && !(ns.joined.flags & KVP_NS_READONLY));
	CHECK(wire_reserve(&ns, &grant, 1, 0) == -KVP_EACCES);
	CHECK(wire_stage(&ns, 4) == 0);
	CHECK(ns.staged.n_blocks == 4 && ns.staged.bytes == 4ull * BLOCK);
	for (unsigned i = 0; i < 3; i++) {
		wire_fill(ns.stage + i * BLOCK, BLOCK, 20 + i);
		items[i] = (struct kvp_wire_item){.slot = i,
			.key = wire_key(20 + i),
			.used_bytes = BLOCK,
			.used_tokens = 16,
			.flags = KVP_ITEM_STAGED};
	}
	items[2].slot = 400; /* out of its area */
	CHECK(wire_publish(&ns, items, 3, results) == 3);
	CHECK(results[0].result == KVP_PUB_STORED && results[1].result == KVP_PUB_STORED);
	CHECK(results[2].result == -KVP_EINVAL);
	memset(ns.stage, 0x5a, ns.staged.bytes); /* what is published does not change with it */
	CHECK(reads_right(&ns, 20) == 1 && reads_right(&ns, 21) == 1 && reads_right(&ns, 22) == 0);
	CHECK(wire_publish(&ns, items, 1, results) == 1 && results[0].result == KVP_PUB_EXISTS);
	CHECK(wire_map(&ns, (uint32_t)(results[0].slot / ns.head->slots_per_slab), true) == -KVP_EACCES);
	return 0;
}

static int reads_what_bert_published(void *arg)
{
	struct kvp_wire_join join = join_of("both", KVP_UID_SELF, 0);
	struct wire w;
	struct wire_ns ns;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(reads_right(&ns, 20) == 1 && reads_right(&ns, 21) == 1);
	return 0;
}

static void with_several_writers_publish_copies_into_memory_no_client_can_write(void **state)
{
	struct making anna = {.name = "both", .mode = 0666};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, publishes_staged, NULL);
	run_as(ANNA, reads_what_bert_published, NULL);
	assert_true(atomic_load(&host.stats->counters.slab_bytes_allocated) <= 4 << 20);
}

static int stages_more_than_there_may_be(void *arg)
{
	struct kvp_wire_join join = join_of("both", ANNA, 0);
	struct wire w, second;
	struct wire_ns ns, other;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(wire_stage(&ns, 1000) == 0);
	CHECK(ns.staged.bytes <= 512 * KIB); /* an eighth of the pool */
	CHECK(wire_open(&second, host.socket) == 0);
	CHECK(wire_join_as(&second, &other, &join) == 0);
	for (unsigned i = 0; i < 20; i++) {
		int r = wire_stage(&other, 1000);

		CHECK(r == 0 || r == -KVP_ENOSPC);
		if (r == -KVP_ENOSPC)
			return 0;
		CHECK(ns.staged.bytes + other.staged.bytes <= 512 * KIB);
		return 0;
	}
	return 1;
}

static void staging_areas_of_all_together_stay_within_an_eighth_of_the_pool(void **state)
{
	struct making anna = {.name = "both", .mode = 0666};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, stages_more_than_there_may_be, NULL);
	for (unsigned i = 0; i < 100 && atomic_load(&host.stats->counters.slab_bytes_staging); i++)
		wire_sleep_ms(50);
	assert_int_equal(atomic_load(&host.stats->counters.slab_bytes_staging), 0);
}

static int gives_up_its_stage(struct wire_ns *ns)
{
	struct kvp_wire_stage none = {.ns_id = ns->id};
	struct kvp_wire_staged staged;

	munmap(ns->stage, ns->staged.bytes);
	ns->stage = NULL;
	return wire_call(ns->w, KVP_MSG_STAGE, &none, sizeof(none), &staged, sizeof(staged));
}

static int gives_up_and_keeps_the_descriptor(void *arg)
{
	struct kvp_wire_join join = join_of("both", ANNA, 0);
	struct stat st;
	struct wire w;
	struct wire_ns ns;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(gives_up_its_stage(&ns) >= 0); /* none there: nothing happens */
	CHECK(wire_stage(&ns, 4) == 0);
	CHECK(atomic_load(&host.stats->counters.slab_bytes_staging) == ns.staged.bytes);
	CHECK(gives_up_its_stage(&ns) >= 0);
	CHECK(atomic_load(&host.stats->counters.slab_bytes_staging) == 0);
	CHECK(fstat(ns.stage_fd, &st) == 0 && st.st_size == 0 && st.st_blocks == 0);
	return 0;
}

static void a_staging_area_given_up_is_memory_to_nobody(void **state)
{
	struct making anna = {.name = "both", .mode = 0666};

	(void)state;
	need_root();
	run_as(ANNA, makes, &anna);
	run_as(BERT, gives_up_and_keeps_the_descriptor, NULL);
}

/* Blocks so long that there is one area. Who asked first is let in before who asked later, as long as it goes on
 * asking: a machine may be too slow for that to be seen at once. */
static int waits_for_a_stage(void *arg)
{
	struct kvp_wire_join join = join_of("long", KVP_UID_SELF, 0);
	struct wire w[3];
	struct wire_ns ns[3];
	unsigned right = 0;

	(void)arg;
	join.flags = KVP_NS_COPIED;
	wire_desc(&join.desc, 512 * KIB, 1);
	for (unsigned i = 0; i < 3; i++) {
		CHECK(wire_open(&w[i], host.socket) == 0);
		CHECK(wire_join_as(&w[i], &ns[i], &join) == 0);
	}
	CHECK(wire_stage(&ns[0], 64) == 0 && ns[0].staged.n_blocks == 1);
	for (unsigned round = 0; round < 100 && !right; round++) {
		CHECK(wire_stage(&ns[1], 64) == -KVP_ENOSPC);
		CHECK(strstr(w[1].text, "raise --pool") != NULL);
		CHECK(wire_stage(&ns[2], 64) == -KVP_ENOSPC);
		CHECK(gives_up_its_stage(&ns[0]) >= 0);
		right = wire_stage(&ns[2], 64) == -KVP_ENOSPC;
		CHECK(!right || wire_stage(&ns[1], 64) == 0);
		if (!right)
			CHECK(gives_up_its_stage(&ns[2]) >= 0 && wire_stage(&ns[0], 64) == 0);
	}
	CHECK(right);
	wire_sleep_ms(400); /* ns[2] has given up waiting: it is in nobody's way */
	CHECK(gives_up_its_stage(&ns[1]) >= 0);
	CHECK(wire_stage(&ns[0], 64) == 0);
	return 0;
}

static void who_waits_longest_for_a_staging_area_gets_the_next(void **state)
{
	(void)state;
	need_root();
	run_as(BERT, waits_for_a_stage, NULL);
}

/* ---- sessions are their uid's ---- */

static int steals_a_session(void *arg)
{
	const struct wire *theirs = arg;
	struct wire w;

	CHECK(wire_connect(&w, host.socket) == 0);
	w.welcome = theirs->welcome;
	CHECK(wire_hello(&w, theirs->welcome.session_id) == -KVP_ESTALE);
	return 0;
}

static int keeps_its_session(void *arg)
{
	struct kvp_wire_pong pong;
	struct wire w, shared;
	int *pipes = arg;
	char go;

	CHECK(wire_open(&w, host.socket) == 0);
	shared = w;
	CHECK(write(pipes[1], &shared, sizeof(shared)) == (ssize_t)sizeof(shared));
	CHECK(read(pipes[2], &go, 1) == 1);
	CHECK(wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)) == (int)sizeof(pong));
	CHECK(atomic_load(&w.session->word) == 1);
	return 0;
}

static void another_uids_session_cannot_be_resumed(void **state)
{
	struct wire anna;
	int pipes[4], status;
	pid_t pid;

	(void)state;
	need_root();
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(pipe(pipes + 2), 0);
	pid = start_as(ANNA, 0, keeps_its_session, pipes);
	assert_int_equal(read(pipes[0], &anna, sizeof(anna)), sizeof(anna));
	run_as(BERT, steals_a_session, &anna);
	assert_int_equal(write(pipes[3], "g", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int is_not_let_in(void *arg)
{
	struct wire w;
	int r;

	(void)arg;
	CHECK(wire_connect(&w, host.socket) == 0);
	r = wire_hello(&w, 0);
	CHECK(r == WIRE_HUNG_UP || r == -EPIPE || r == -ECONNRESET);
	return 0;
}

static void the_overflow_uid_could_be_anybody_and_is_refused(void **state)
{
	(void)state;
	need_root();
	run_as(65534, is_not_let_in, NULL);
	assert_true(host_logged(&host, "its uid could be anybody's", 1000));
}

static int cannot_purge(void *arg)
{
	struct kvp_wire_admin admin = {.n = 1};
	struct kvp_wire_admin_done done;
	char path[112];
	struct wire w;

	(void)arg;
	snprintf(path, sizeof(path), "%s.admin", host.socket);
	CHECK(wire_connect(&w, path) == 0);
	CHECK(wire_call(&w, KVP_MSG_PURGE, &admin, sizeof(admin), &done, sizeof(done)) == -KVP_EACCES);
	CHECK(wire_call(&w, KVP_MSG_EVICT, &admin, sizeof(admin), &done, sizeof(done)) == -KVP_EACCES);
	return 0;
}

static int finds_no_object_by_name(void *arg)
{
	char path[160];
	static const char *const rest[] = {"header", "stats", "slab-1"};

	(void)arg;
	for (unsigned i = 0; i < 3; i++) {
		host_object(&host, path, rest[i]);
		CHECK(access(path, F_OK) == 0);
		CHECK(open(path, O_RDONLY) < 0 && errno == EACCES);
		CHECK(unlink(path) < 0); /* the directory is sticky */
	}
	return 0;
}

/* B31 */
static void all_objects_are_the_daemons_whatever_the_umask_and_strangers_get_nothing_by_name(void **state)
{
	static const mode_t masks[] = {000, 027, 077};

	(void)state;
	need_root();
	run_as(BERT, cannot_purge, NULL);
	for (unsigned i = 0; i < 3; i++) {
		struct making anna = {.name = "m", .first = 10 * i, .n = 1};
		mode_t old = umask(masks[i]);
		struct stat st;
		char path[160];

		host_close(&host);
		assert_int_equal(host_open(&host, DAEMON_UID), 0);
		assert_int_equal(host_start(&host, options), 0);
		run_as(ANNA, makes, &anna);
		run_as(BERT, finds_no_object_by_name, NULL);
		umask(old);
		host_object(&host, path, "slab-1");
		assert_int_equal(stat(path, &st), 0);
		assert_int_equal(st.st_mode & 07777, 0600);
		assert_int_equal(st.st_uid, DAEMON_UID);
	}
}

/* ---- sockets with a policy ---- */

static int joins_by(const char *socket, bool may)
{
	struct kvp_wire_join join = join_of("pod", 7001, 0), own = join_of("pod", KVP_UID_SELF, 0);
	struct wire w;
	struct wire_ns ns;
	int r;

	CHECK(wire_open(&w, socket) == 0);
	if (may) {
		CHECK(wire_join_as(&w, &ns, &own) == 0);
		CHECK(ns.head->owner_uid == 7001 && ns.head->owner_gid == 70);
		return 0;
	}
	r = wire_join_as(&w, &ns, &join);
	CHECK(r == -KVP_EACCES);
	return 0;
}

static int comes_by_socket_one(void *arg)
{
	(void)arg;
	return joins_by("/tmp/kvpool-test-pod-one", true);
}

static int comes_by_socket_two(void *arg)
{
	(void)arg;
	return joins_by("/tmp/kvpool-test-pod-two", false);
}

static void who_comes_by_a_socket_with_a_policy_is_who_it_says(void **state)
{
	static const char *const with[] = {"--pool", "4M", "--slab", "1M", "--listen",
		"/tmp/kvpool-test-pod-one,uid=7001,gid=70", "--listen", "/tmp/kvpool-test-pod-two,uid=7002,mode=0666",
		NULL};

	(void)state;
	need_root();
	host_close(&host);
	assert_int_equal(host_open(&host, DAEMON_UID), 0);
	unlink("/tmp/kvpool-test-pod-one");
	unlink("/tmp/kvpool-test-pod-two");
	assert_int_equal(host_start(&host, with), 0);
	run_as(ANNA, comes_by_socket_one, NULL); /* the same uid by two sockets is two tenants */
	run_as(ANNA, comes_by_socket_two, NULL);
	host_stop(&host);
	assert_int_equal(access("/tmp/kvpool-test-pod-one", F_OK), -1);
	assert_int_equal(access("/tmp/kvpool-test-pod-two", F_OK), -1);
}

/* ---- clients that break what they were given ---- */

enum harm {
	CUTS,
	GROWS,
	PUNCHES,
};

static int does_harm(int fd, enum harm harm)
{
	off_t bytes = lseek(fd, 0, SEEK_END);

	switch (harm) {
	case CUTS:
		return ftruncate(fd, 0);
	case GROWS:
		return ftruncate(fd, bytes * 4);
	default:
		return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes);
	}
}

static int breaks_its_session(void *arg)
{
	const enum harm *harm = arg;
	struct wire_pinned pinned;
	struct kvp_wire_pong pong;
	struct kvp_key key = wire_key(1);
	struct wire w;
	struct wire_ns ns;
	struct stat st;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, "m", BLOCK) == 0);
	CHECK(wire_put(&ns, &key, NULL, 1, 2000) > 0);
	CHECK(wire_pin(&ns, &key, &pinned) == 1);
	CHECK(does_harm(w.session_fd, *harm) == 0);
	for (uint64_t k = 100; k < 250; k++) { /* the daemon reads its pins again and again */
		key = wire_key(k);
		if (wire_put(&ns, &key, NULL, k, 2000) < 0)
			break;
	}
	for (unsigned i = 0; i < 40; i++) {
		wire_sleep_ms(25);
		if (wire_call(&w, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)) < 0)
			break;
	}
	CHECK(fstat(w.session_fd, &st) == 0);
	CHECK(*harm == PUNCHES || (uint64_t)st.st_size == w.session_bytes); /* it has no more than it was given */
	return 0;
}

static void a_client_that_breaks_its_session_object_is_put_out_and_named(void **state)
{
	static enum harm harm;

	(void)state;
	need_root();
	for (harm = CUTS; harm <= PUNCHES; harm++) {
		char who[64];

		run_as(BERT, breaks_its_session, &harm);
		assert_true(host_alive(&host));
		snprintf(who, sizeof(who), "uid %d, pid ", BERT);
		if (harm != PUNCHES) { /* punched, it only forgets its own pins */
			assert_true(host_logged(&host,
				harm == CUTS ? "its session object was cut" : "its session object was grown", 2000));
			assert_true(host_logged(&host, who, 0));
			assert_int_equal(atomic_load(&host.stats->counters.sessions_condemned), harm + 1);
		}
		run_as(ANNA, makes, &(struct making){.name = "fine", .first = 10ul * harm, .n = 2});
	}
}

static int breaks_its_stage(void *arg)
{
	const enum harm *harm = arg;
	struct kvp_wire_item item = {
		.key = wire_key(30 + *harm), .used_bytes = BLOCK, .used_tokens = 16, .flags = KVP_ITEM_STAGED};
	struct kvp_wire_join join = join_of("both", ANNA, 0);
	struct kvp_wire_result result;
	struct wire w;
	struct wire_ns ns;
	int r;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join_as(&w, &ns, &join) == 0);
	CHECK(wire_stage(&ns, 4) == 0);
	wire_fill(ns.stage, BLOCK, 30 + *harm);
	CHECK(does_harm(ns.stage_fd, *harm) == 0);
	r = wire_publish(&ns, &item, 1, &result);
	/* cut: refused, or put out already; grown: its own bytes; punched: zeroes, its own doing */
	if (*harm == CUTS)
		CHECK((r == 1 && result.result == KVP_PUB_REJECTED) || r == WIRE_HUNG_UP);
	return 0;
}

static void a_client_that_breaks_its_staging_area_harms_nobody(void **state)
{
	static enum harm harm;

	(void)state;
	need_root();
	run_as(ANNA, makes, &(struct making){.name = "both", .mode = 0666});
	for (harm = CUTS; harm <= PUNCHES; harm++) {
		run_as(BERT, breaks_its_stage, &harm);
		assert_true(host_alive(&host));
		run_as(ANNA, makes, &(struct making){.name = "fine", .first = 10ul * harm, .n = 2});
	}
}

/* Return: a descriptor to write the slab with in which it was granted a block; -1 */
static int slab_to_write(struct wire_ns *ns)
{
	struct {
		struct kvp_wire_map map;
		uint32_t place;
	} body = {.map = {.ns_id = ns->id, .n = 1, .writable = 1}};
	struct kvp_wire_mapped mapped;
	struct kvp_wire_grant grant;
	unsigned n_fds = 1;
	int slab = -1;

	if (wire_reserve(ns, &grant, 1, 2000) != 1)
		return -1;
	body.place = (uint32_t)(grant.slot / ns->head->slots_per_slab);
	if (wire_send(ns->w, KVP_MSG_MAP, 901, &body, sizeof(body.map) + sizeof(body.place), NULL, 0) < 0 ||
		wire_receive(ns->w, 901, &mapped, sizeof(mapped), &slab, &n_fds, 5000) != (int)sizeof(mapped))
		return -1;
	return mapped.status == 0 ? slab : -1;
}

/* A writer of an in-place namespace that breaks the slab it may write, and goes on using the pool. */
static int breaks_a_slab(void *arg)
{
	const enum harm *harm = arg;
	struct wire w;
	struct wire_ns ns;
	int slab;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, "m", BLOCK) == 0);
	slab = slab_to_write(&ns);
	CHECK(slab >= 0);
	CHECK(does_harm(slab, *harm) == 0);
	wire_sleep_ms(500);
	return 0;
}

/* It says that it left, and kept what it had. */
static int leaves_and_breaks_a_slab(void *arg)
{
	struct kvp_wire_batch leave = {0};
	struct wire w, other;
	struct wire_ns ns, others;
	struct kvp_wire_pong pong;
	int slab;

	(void)arg;
	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, "m", BLOCK) == 0);
	slab = slab_to_write(&ns);
	CHECK(slab >= 0);
	CHECK(wire_open(&other, host.socket) == 0);
	CHECK(wire_join(&other, &others, "m", BLOCK) == 0);
	CHECK(slab_to_write(&others) >= 0);
	leave.ns_id = ns.id;
	CHECK(wire_call(&w, KVP_MSG_LEAVE, &leave, sizeof(leave), NULL, 0) == 0);
	CHECK(does_harm(slab, CUTS) == 0);
	for (unsigned i = 0; i < 60 && !atomic_load(&host.stats->counters.slabs_condemned); i++)
		wire_sleep_ms(50);
	CHECK(wire_call(&other, KVP_MSG_PING, NULL, 0, &pong, sizeof(pong)) == (int)sizeof(pong));
	return 0;
}

static void nobody_is_put_out_for_what_a_writer_who_left_may_have_done(void **state)
{
	(void)state;
	need_root();
	run_as(ANNA, leaves_and_breaks_a_slab, NULL);
	assert_int_equal(atomic_load(&host.stats->counters.slabs_condemned), 1);
	assert_int_equal(atomic_load(&host.stats->counters.sessions_condemned), 0);
}

static int finds_misses_or_right_bytes(void *arg)
{
	const struct making *making = arg;
	struct wire w;
	struct wire_ns ns;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, making->name, BLOCK) == 0);
	for (uint64_t k = making->first; k < making->first + making->n; k++)
		CHECK(reads_right(&ns, k) >= 0);
	for (uint64_t k = 5000; k < 5080; k++) {
		struct kvp_key key = wire_key(k);
		int r = wire_put(&ns, &key, NULL, k, 3000);

		CHECK(r == KVP_PUB_STORED || r == KVP_PUB_EXISTS);
		CHECK(reads_right(&ns, k) == 1);
	}
	return 0;
}

static void a_writer_that_breaks_a_slab_costs_its_blocks_and_the_daemon_says_who(void **state)
{
	static enum harm harm;

	(void)state;
	need_root();
	for (harm = CUTS; harm <= PUNCHES; harm++) {
		struct making anna = {.name = "m", .first = 100ul * harm, .n = 40};
		char who[64];

		run_as(ANNA, makes, &anna);
		run_as(ANNA, breaks_a_slab, &harm);
		assert_true(host_alive(&host));
		snprintf(who, sizeof(who), "a writer of it is session");
		assert_true(host_logged(&host, who, 3000));
		snprintf(who, sizeof(who), "uid %d, pid ", ANNA);
		assert_true(host_logged(&host, who, 0));
		for (unsigned i = 0; i < 60 && atomic_load(&host.stats->counters.slabs_condemned) < harm + 1u; i++)
			wire_sleep_ms(50);
		assert_int_equal(atomic_load(&host.stats->counters.slabs_condemned), harm + 1);
		run_as(ANNA, finds_misses_or_right_bytes, &anna);
		assert_int_equal(atomic_load(&host.stats->counters.slab_bytes_allocated), 4 << 20);
	}
}

/* A slab that moved to another namespace is still mapped by who had it before. */
static int looks_at_what_it_had(void *arg)
{
	int *pipes = arg;
	struct wire w;
	struct wire_ns ns;
	char go;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, "m", BLOCK) == 0);
	for (uint64_t k = 0; k < 64; k++) {
		struct kvp_key key = wire_key(k);

		CHECK(wire_put(&ns, &key, NULL, k, 2000) == KVP_PUB_STORED);
		CHECK(reads_right(&ns, k) == 1); /* now it is mapped */
	}
	CHECK(write(pipes[1], "r", 1) == 1);
	CHECK(read(pipes[2], &go, 1) == 1);
	for (unsigned round = 0; round < 30; round++) {
		for (unsigned p = 0; p < ns.head->max_places; p++)
			for (size_t i = 0; ns.at[p].ro && i < ns.at[p].bytes; i += 4096)
				(void)*(volatile const char *)(ns.at[p].ro + i); /* fills it with zeroes again */
		wire_sleep_ms(20);
	}
	CHECK(write(pipes[1], "d", 1) == 1);
	CHECK(read(pipes[2], &go, 1) == 1);
	return 0;
}

static int takes_memory(void *arg)
{
	(void)arg;
	struct wire w;
	struct wire_ns ns;

	CHECK(wire_open(&w, host.socket) == 0);
	CHECK(wire_join(&w, &ns, "other", 48 * KIB) == 0);
	for (uint64_t k = 0; k < 50; k++) {
		struct kvp_key key = wire_key(9000 + k);
		int r = wire_put(&ns, &key, NULL, 9000 + k, 5000);

		CHECK(r == KVP_PUB_STORED);
	}
	return 0;
}

static void a_slab_that_left_is_kept_out_of_the_budget_while_somebody_fills_it_again(void **state)
{
	int pipes[4], status;
	pid_t pid;
	uint64_t bytes, most = 0;
	char c;

	(void)state;
	need_root();
	assert_int_equal(pipe(pipes), 0);
	assert_int_equal(pipe(pipes + 2), 0);
	pid = start_as(ANNA, 0, looks_at_what_it_had, pipes);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	run_as(BERT, takes_memory, NULL); /* slabs move */
	assert_int_equal(write(pipes[3], "g", 1), 1);
	for (unsigned i = 0; i < 100 && !most; i++) {
		most = atomic_load(&host.stats->counters.slab_bytes_leaving);
		wire_sleep_ms(5);
	}
	assert_true(most > 0);
	assert_int_equal(read(pipes[0], &c, 1), 1);
	host_objects(&host, &bytes);
	assert_true(bytes <= 4 * KIB * KIB + 2 * KIB * KIB);
	for (unsigned i = 0; i < 60 && atomic_load(&host.stats->counters.slab_bytes_leaving); i++)
		wire_sleep_ms(50);
	assert_int_equal(atomic_load(&host.stats->counters.slab_bytes_leaving), 0); /* punched again */
	assert_int_equal(write(pipes[3], "g", 1), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WEXITSTATUS(status), 0);
}

#define WITH_DAEMON(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		WITH_DAEMON(another_uids_namespace_is_closed_and_gives_no_descriptor),
		WITH_DAEMON(who_may_read_reads_in_place_and_can_write_none_of_it),
		WITH_DAEMON(who_may_write_deletes_but_only_the_owner_clears),
		WITH_DAEMON(the_groups_bits_let_the_group_in_and_nobody_else),
		WITH_DAEMON(with_several_writers_publish_copies_into_memory_no_client_can_write),
		WITH_DAEMON(staging_areas_of_all_together_stay_within_an_eighth_of_the_pool),
		WITH_DAEMON(a_staging_area_given_up_is_memory_to_nobody),
		WITH_DAEMON(who_waits_longest_for_a_staging_area_gets_the_next),
		WITH_DAEMON(another_uids_session_cannot_be_resumed),
		WITH_DAEMON(the_overflow_uid_could_be_anybody_and_is_refused),
		WITH_DAEMON(all_objects_are_the_daemons_whatever_the_umask_and_strangers_get_nothing_by_name),
		WITH_DAEMON(who_comes_by_a_socket_with_a_policy_is_who_it_says),
		WITH_DAEMON(a_client_that_breaks_its_session_object_is_put_out_and_named),
		WITH_DAEMON(a_client_that_breaks_its_staging_area_harms_nobody),
		WITH_DAEMON(a_writer_that_breaks_a_slab_costs_its_blocks_and_the_daemon_says_who),
		WITH_DAEMON(nobody_is_put_out_for_what_a_writer_who_left_may_have_done),
		WITH_DAEMON(a_slab_that_left_is_kept_out_of_the_budget_while_somebody_fills_it_again),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	signal(SIGPIPE, SIG_IGN);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
