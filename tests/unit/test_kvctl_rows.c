/* test_kvctl_rows.c - what kvctl shows of a pool with several nodes and stores, of a crash, and what purge leaves
   alone */
#include "test_kvctl_fixture.h"

static void given_two_nodes(struct fake *f)
{
	f->stats->pages = 2; /* of 2 MiB */
	f->stats->n_nodes = 2;
	f->stats->nodes[0] = (struct kvp_node_row){.id = 0,
		.has_cpus = 1,
		.memory = 64ull << 30,
		.asked = 2 * FAKE_SLAB,
		.got = 2 * FAKE_SLAB,
		.used = FAKE_SLAB,
		.placed = 2 * FAKE_SLAB,
		.n_slabs = 2,
		.n_bound = 1,
		.huge = FAKE_SLAB};
	f->stats->nodes[1] = (struct kvp_node_row){.id = 3, .asked = 4 * FAKE_SLAB};
	strcpy(f->stats->numa_message, "node3 gave nothing");
	strcpy(f->stats->pages_message, "half in pages of 4k");
	f->stats->counters.slab_bytes_staging = FAKE_SLAB;
	f->stats->counters.slabs_condemned = 1;
	f->ns_row->counters.demoted = 5;
}

static void each_node_has_a_row_with_what_it_gave(void **state)
{
	struct fake *f = *state;
	json_t *json, *node;

	given_two_nodes(f);
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "node0  yes   128 KiB  128 KiB  64 KiB  100.0 %  1 of 2     2M  50.0 %  64 GiB");
	assert_says(f->out, "node3  none");
	assert_says(f->out, "placement: node3 gave nothing");
	assert_says(f->out, "half in pages of 4k");
	assert_says(f->out, "5 blocks moved to nodes without CPUs");
	assert_says(f->out, "staging 64 KiB, leaving 0 B; 1 slabs condemned");
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json = parsed(f);
	node = json_array_get(json_object_get(json, "nodes"), 1);
	assert_int_equal(json_integer_value(json_object_get(node, "node")), 3);
	assert_true(json_is_false(json_object_get(node, "has_cpus")));
	assert_int_equal(json_integer_value(json_object_get(node, "asked_bytes")), 4 * FAKE_SLAB);
	json_decref(json);
	assert_int_equal(run_here(f, "top", "--once"), 0);
	assert_says(f->out, "node0  ");
	assert_says(f->out, "no CPUs");
}

static void given_two_stores(struct fake *f)
{
	struct kvp_counters *c = &f->stats->counters;

	f->stats->n_stores = 2;
	f->stats->stores[0] = (struct kvp_store_row){
		.path = "/spill/a", .state = 1, .uring = 1, .direct = 1, .capacity = 1 << 20, .live = 1 << 19};
	f->stats->stores[1] = (struct kvp_store_row){.path = "/spill/b",
		.message = "gone since noon",
		.state = 2,
		.capacity = 1 << 20,
		.write_errors = 3,
		.read_errors = 1};
	strcpy(f->stats->spill_dir, "/spill/a");
	strcpy(f->stats->spill_message, "one of two is gone");
	c->spill_state = 1;
	c->spill_capacity_bytes = 2 << 20;
	c->spill_live_bytes = c->spill_used_bytes = 1 << 19;
	c->spill_budget_bytes = 10 << 20;
	c->spill_day_bytes = 1 << 20;
	c->spill_over_budget = 7;
	c->spill_last_errno = EIO;
}

static void each_store_has_a_row_with_how_it_does_and_what_is_wrong(void **state)
{
	struct fake *f = *state;
	json_t *json;

	given_two_stores(f);
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "up: /spill/a, 512 KiB of 1 MiB, io_uring, O_DIRECT, 0 errors");
	assert_says(f->out, "DOWN: /spill/b, 0 B of 1 MiB, 4 errors");
	assert_says(f->out, "gone since noon");
	assert_says(f->out, "today 1 MiB of a budget of 10 MiB written; 7 blocks dropped for it");
	assert_says(f->out, "last error 5 (Input/output error)");
	f->stats->stores[1].state = 3;
	f->stats->stores[0].uring = 0;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "FULL, not reclaiming: /spill/b, 0 B of 1 MiB, threads, page cache");
	assert_says(f->out, "threads, O_DIRECT");
	assert_int_equal(run_here(f, "top", "--once"), 0);
	assert_says(f->out, "one of two is gone");
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json = parsed(f);
	assert_non_null(json);
	assert_says(f->out, "gone since noon");
	json_decref(json);
	f->stats->n_stores = 1;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "one of two is gone");
}

static void pressure_is_told_as_it_is_watched(void **state)
{
	static const char *const said[] = {"is looked at twice a second (a trigger is refused)",
		"is told by a trigger of the kernel", "cannot be watched: the log says why"};
	struct fake *f = *state;

	strcpy(f->stats->pressure_message, "2 slabs given back");
	for (unsigned i = 0; i < 3; i++) {
		f->stats->pressure_watch = i + 1;
		assert_int_equal(run_here(f, "stats"), 0);
		assert_says(f->out, said[i]);
		assert_says(f->out, "2 slabs given back");
		assert_int_equal(run_here(f, "stats", "--json"), 0);
		json_decref(parsed(f));
	}
	f->stats->pressure_watch = 9; /* of a later version */
	assert_int_equal(run_here(f, "stats"), 0);
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json_decref(parsed(f));
}

static void a_namespace_is_told_with_its_types_its_policy_and_how_it_is_packed(void **state)
{
	static const struct {
		uint32_t layout, k, v;
		const char *said;
	} shapes[] = {
		{KVP_LAYOUT_NHD, KVP_TYPE_F16, KVP_TYPE_F16, "NHD, f16, "},
		{KVP_LAYOUT_TILED, KVP_TYPE_I8, KVP_TYPE_I4, "TILED, K int8, V int4, "},
		{KVP_LAYOUT_OPAQUE, 0, 0, "  OPAQUE, "},
		{77, KVP_TYPE_F16, KVP_TYPE_F16, "?, f16, "},
	};
	struct fake *f = *state;
	json_t *json;

	for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
		f->ns_row->layout = (uint8_t)shapes[i].layout;
		f->ns_row->type_k = (uint8_t)shapes[i].k;
		f->ns_row->type_v = (uint8_t)shapes[i].v;
		assert_int_equal(run_here(f, "ns"), 0);
		assert_says(f->out, shapes[i].said);
		assert_int_equal(run_here(f, "ns", "--json"), 0);
		json = parsed(f);
		json_decref(json);
	}
	f->ns_row->flags |= KVP_NS_LEARNED;
	f->ns_row->base_id = 0x77;
	f->ns_row->counters.saved_us = 2500000;
	f->ns_row->counters.pack_percent = 40;
	f->ns_row->counters.pack_state = 1;
	f->ns_row->counters.packed = 3;
	f->ns_row->counters.packed_bytes = 3 * FAKE_BLOCK;
	f->ns_row->counters.packed_stored_bytes = FAKE_BLOCK;
	assert_int_equal(run_here(f, "ns"), 0);
	assert_says(f->out, "base 0000000000000077");
	assert_says(f->out, "policy learned, on trial: least recent use decides");
	assert_says(f->out, "reuse saved 2.5 s of computing");
	assert_says(f->out, "spilled compressed; sampled blocks would take 40 %; 3 blocks so far, 12 KiB in 4 KiB");
	f->ns_row->counters.policy = 2;
	f->ns_row->counters.pack_state = 9;
	assert_int_equal(run_here(f, "ns"), 0);
	assert_says(f->out, "policy learned, which decides");
	f->ns_row->counters.policy = 1;
	f->stats->counters.spill_state = 1;
	assert_int_equal(run_here(f, "ns"), 0);
	assert_says(f->out, "policy learned, for what is written: before a store least recent use decides");
	f->ns_row->ns_id = 0;
	assert_int_equal(run_here(f, "ns"), 0);
	assert_says(f->out, "no namespaces");
}

static struct kvp_crash *crash_page(struct fake *f)
{
	return (struct kvp_crash *)(void *)((char *)f->header + KVP_CRASH_OFF);
}

/* The words are those of a program that failed: what is beyond their bounds is not looked at. */
static void a_crash_is_told_with_its_frames_also_to_programs(void **state)
{
	struct fake *f = *state;
	struct kvp_crash *crash = crash_page(f);
	json_t *json, *dead;
	pid_t gone = fork();

	if (gone == 0)
		_exit(0);
	waitpid(gone, NULL, 0);
	close(f->life_fd); /* it lives no more */
	f->header->daemon_pid = gone;
	f->silent = true;
	f->header->heartbeat_ns = fake_now() - 60000000000u;
	assert_int_equal(run_here(f, "stats", "--post-mortem"), 0);
	assert_says(f->out, "it was killed: SIGKILL, or the kernel for want of memory");
	assert_says(f->out, "none was recorded in this pool");
	*crash = (struct kvp_crash){.epoch = 1,
		.when_s = 86400,
		.signal = SIGSEGV,
		.pid = gone,
		.near_null = 1,
		.n_frames = 1000,
		.build_id_bytes = 1000};
	for (unsigned i = 0; i < KVP_CRASH_FRAMES; i++)
		crash->frames[i] = i % 2 ? UINT64_MAX : 0x1000 + i;
	memset(crash->build_id, 0xab, sizeof(crash->build_id));
	assert_int_equal(run_here(f, "stats", "--post-mortem"), 0);
	assert_says(f->out, "it crashed");
	assert_says(f->out, "crash   signal 11 (Segmentation fault)");
	assert_says(f->out, "1970-01-02 00:00:00 UTC, at an address near 0");
	assert_says(f->out, "build id abab");
	assert_says(f->out, "0x1002");
	assert_int_equal(run_here(f, "stats", "--post-mortem", "--json"), 0);
	json = parsed(f);
	dead = json_object_get(json, "post_mortem");
	assert_non_null(dead);
	assert_int_equal(json_integer_value(json_object_get(dead, "signal")), SIGSEGV);
	assert_int_equal(json_array_size(json_object_get(dead, "frames")), KVP_CRASH_FRAMES / 2);
	assert_int_equal(json_integer_value(json_object_get(dead, "granted")), 1);
	json_decref(json);
	f->header->state = KVP_DAEMON_STOPPED;
	assert_int_equal(run_here(f, "stats", "--post-mortem"), 0);
	assert_says(f->out, "it stopped in order");
}

static void a_crash_of_an_earlier_daemon_is_no_word_of_the_one_that_lives(void **state)
{
	struct fake *f = *state;
	struct kvp_crash *crash = crash_page(f);

	*crash = (struct kvp_crash){.epoch = 1, .signal = SIGABRT, .pid = 1};
	assert_int_equal(run_here(f, "stats", "--post-mortem"), 0);
	assert_says(f->out, "it lives: what follows is of an earlier one");
	assert_says(f->out, "build id unknown");
}

/* ---- purge ---- */

static void given_gone(struct fake *f)
{
	close(f->life_fd);
	f->silent = true;
	f->header->heartbeat_ns = fake_now() - 60000000000u;
}

static void purge_leaves_what_another_user_put_there(void **state)
{
	struct fake *f = *state;
	char path[128], link[128];

	if (geteuid() != 0) {
		print_message("skipped: only root can give files to others\n");
		skip();
	}
	given_gone(f);
	fake_path(f, path, "slab-2");
	assert_int_equal(chown(path, 61001, 61001), 0);
	fake_path(f, link, "slab-9");
	assert_int_equal(symlink("/etc/passwd", link), 0);
	assert_int_equal(chown(f->pool_file, 61001, 61001), 0);
	assert_int_equal(run_here(f, "purge"), 1);
	assert_says(f->err, "is not the pool's (owner uid 61001, the pool's is 0): remove it by hand");
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(chown(f->pool_file, 0, 0), 0);
	assert_int_equal(run_here(f, "purge"), 0);
	assert_says(f->err, "slab-2 is not the pool's (owner uid 61001, or no file): left alone");
	assert_says(f->err, "slab-9 is not the pool's");
	assert_says(f->out, "1 slabs and ");
	assert_int_equal(access(path, F_OK), 0);
	assert_int_equal(access("/etc/passwd", F_OK), 0);
}

static void purge_is_for_root_and_the_pools_owner(void **state)
{
	struct fake *f = *state;
	const char *path = kvctl_path();
	int err = memfd_create("err", 0), status;
	pid_t pid;

	if (geteuid() != 0) {
		print_message("skipped: only root can be another user\n");
		skip();
	}
	given_gone(f);
	assert_int_equal(chmod(f->dir, 0755), 0);
	for (unsigned i = 0; i < 2; i++) {
		char object[128];

		fake_path(f, object, i ? "stats" : "header");
		assert_int_equal(chmod(object, 0644), 0);
	}
	assert_int_equal(chmod(f->pool_file, 0644), 0);
	pid = fork();
	if (pid == 0) {
		dup2(err, 2);
		if (setgid(61001) || setuid(61001))
			_exit(99);
		execl(path, "kvctl", "purge", "--socket", f->socket, (char *)NULL);
		_exit(access(path, X_OK) < 0 ? 77 : 98);
	}
	assert_true(waitpid(pid, &status, 0) == pid);
	slurp(err, f->err);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("skipped: other users cannot reach %s\n", path);
		skip();
	}
	assert_int_equal(WEXITSTATUS(status), 1);
	assert_says(f->err, "is uid 0's: only root or that user may purge it");
	assert_int_equal(access(f->pool_file, F_OK), 0);
}

/* A start that lost its header left the file naming another pool: both go. */
static void purge_takes_the_pool_its_file_names_too(void **state)
{
	struct fake *f = *state;
	struct fake *other = fake_beside(f);
	int fd = open(f->pool_file, O_RDWR);
	char header[128], stats[128];

	given_gone(f);
	assert_true(pwrite(fd, other->uuid_text, 36, 0) == 36);
	close(fd);
	close(other->life_fd);
	fake_path(other, header, "header");
	fake_path(other, stats, "stats");
	assert_int_equal(unlink(header), 0);
	assert_int_equal(run_here(f, "purge"), 0);
	assert_int_not_equal(access(stats, F_OK), 0);
	assert_int_not_equal(access(f->pool_file, F_OK), 0);
	fake_remove(other);
	free(other);
}

static void slabs_in_a_directory_of_huge_pages_are_purged_there(void **state)
{
	struct fake *f = *state;
	char slab[160];
	int fd;

	given_gone(f);
	snprintf(f->header->huge_dir, sizeof(f->header->huge_dir), "%s", f->dir);
	snprintf(slab, sizeof(slab), "%s/kvp-%s-slab-7", f->dir, f->uuid_text);
	fd = open(slab, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(run_here(f, "purge"), 0);
	assert_says(f->out, "3 slabs and ");
	assert_int_not_equal(access(slab, F_OK), 0);
}

static void a_directory_of_huge_pages_that_is_gone_is_told_and_the_pool_stays_known(void **state)
{
	struct fake *f = *state;

	given_gone(f);
	strcpy(f->header->huge_dir, "/nowhere/at/all");
	assert_int_equal(run_here(f, "purge"), 1);
	assert_says(f->err, "cannot list /nowhere/at/all");
	assert_int_equal(access(f->pool_file, F_OK), 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(each_node_has_a_row_with_what_it_gave),
		test(each_store_has_a_row_with_how_it_does_and_what_is_wrong),
		test(pressure_is_told_as_it_is_watched),
		test(a_namespace_is_told_with_its_types_its_policy_and_how_it_is_packed),
		test(a_crash_is_told_with_its_frames_also_to_programs),
		test(a_crash_of_an_earlier_daemon_is_no_word_of_the_one_that_lives),
		test(purge_leaves_what_another_user_put_there),
		test(purge_is_for_root_and_the_pools_owner),
		test(purge_takes_the_pool_its_file_names_too),
		test(slabs_in_a_directory_of_huge_pages_are_purged_there),
		test(a_directory_of_huge_pages_that_is_gone_is_told_and_the_pool_stays_known),
	};

	return cmocka_run_group_tests_name("kvctl's rows", tests, NULL, NULL);
}
