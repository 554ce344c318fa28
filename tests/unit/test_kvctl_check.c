/* test_kvctl_check.c - kvctl check finds each broken invariant, names it, and says no more than that; kvctl purge */
#include "test_kvctl_fixture.h"

/* A pool left in order: nobody changes it, so every finding counts at once. */
static int stopped_setup(void **state)
{
	int r = fake_setup(state);
	struct fake *f = *state;

	f->header->state = KVP_DAEMON_STOPPED;
	return r;
}

static void expect_clean(struct fake *f)
{
	if (run_here(f, "check") != 0)
		fail_msg("not clean:\n%s%s", f->out, f->err);
	assert_says(f->out, " checks, 0 violations\n");
}

/* One violation: of @object, by the words of @what. */
static void expect_violation(struct fake *f, const char *object, const char *what)
{
	if (run_here(f, "check") != 1)
		fail_msg("found nothing of \"%s\":\n%s%s", what, f->out, f->err);
	assert_says(f->out, "VIOLATED ");
	assert_says(f->out, object);
	assert_says(f->out, what);
	assert_null(strstr(f->out, " 0 violations"));
}

static void a_sound_pool_is_clean(void **state)
{
	struct fake *f = *state;

	expect_clean(f);
	f->header->state = KVP_DAEMON_SERVING;
	f->header->heartbeat_ns = fake_now();
	expect_clean(f);
}

static void a_gauge_that_does_not_fit_the_descriptors_is_found(void **state)
{
	struct fake *f = *state;

	f->ns_row->counters.free += 1;
	expect_violation(f, "ns-0000000000000011", "free: gauge, recounted: expected 13, found 12");
	assert_says(f->out, "free + held + evictable + in transit = total");
	assert_says(f->out, "2 violations");
	f->ns_row->counters.free -= 1;
	f->ns_row->counters.slots += 16;
	expect_violation(f, "ns-0000000000000011", "slots: gauge, recounted");
	f->ns_row->counters.slots -= 16;
	f->blocks[9].word = kvp_word(4, KVP_BLOCK_TAKEN);
	expect_violation(f, "ns-0000000000000011", "taken: gauge, recounted: expected 0, found 1");
}

static void a_published_block_without_hint_is_found(void **state)
{
	struct fake *f = *state;
	struct kvp_index_bucket *bucket = &f->index[kvp_index_home(&f->blocks[1].key, FAKE_BUCKETS)];

	bucket->hint[0] = 0;
	expect_violation(f, "slot 1", "its hint is found by a reader's probes");
	/* in the next bucket it is not found either: its home is not full */
	f->index[(kvp_index_home(&f->blocks[1].key, FAKE_BUCKETS) + 1) % FAKE_BUCKETS].hint[5] =
		kvp_hint(&f->blocks[1].key, 1);
	expect_violation(f, "slot 1", "its hint is found by a reader's probes");
}

static void a_hint_is_found_in_the_next_bucket_if_its_home_is_full(void **state)
{
	struct fake *f = *state;
	uint64_t home = kvp_index_home(&f->blocks[1].key, FAKE_BUCKETS);

	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
		f->index[home].hint[i] = 0;
	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
		unsigned slot = 8 + i;

		f->blocks[slot].key = (struct kvp_key){{home + 8 * (i + 10), (uint64_t)i << 40}};
		f->blocks[slot].used_bytes = 1;
		f->blocks[slot].word = kvp_word(1, KVP_BLOCK_PUBLISHED);
		fake_hint(f, slot);
	}
	f->index[(home + 1) % FAKE_BUCKETS].hint[7] = kvp_hint(&f->blocks[1].key, 1);
	f->ns_row->counters.free -= 8;
	f->ns_row->counters.published += 8;
	expect_clean(f);
}

static void stray_hints_are_found(void **state)
{
	struct fake *f = *state;

	f->index[7].hint[3] = (uint64_t)5 << 32 | 12; /* slot 11 is free */
	expect_violation(f, "bucket 7 slot 11", "a hint points to a published block of its tag");
	f->index[7].hint[3] = (uint64_t)5 << 32 | 100; /* place 6: no slab there */
	expect_violation(f, "bucket 7 slot 99", "found no slab there");
	f->index[7].hint[3] = (uint64_t)5 << 32 | 0x7fffffff;
	expect_violation(f, "bucket 7", "a hint points inside");
	f->index[7].hint[3] = kvp_hint(&f->blocks[1].key, 1);
	expect_violation(f, "slot 1", "one hint for a slot");
}

static void a_key_published_twice_is_found(void **state)
{
	struct fake *f = *state;

	fake_publish(f, 5, 0xa2, 0xa1);
	f->ns_row->counters.free -= 1;
	f->ns_row->counters.published += 1;
	expect_violation(f, "slot 5", "its key is published once");
	assert_says(f->out, "1 violations");
}

static void a_block_whose_parent_is_nowhere_is_found_unless_so_many_are_cold(void **state)
{
	struct fake *f = *state;

	f->blocks[2].parent = (struct kvp_key){{0xbad, 0xbad}};
	expect_violation(f, "ns-0000000000000011", "parents of published blocks are published or cold");
	f->ns_row->counters.cold = 1;
	expect_clean(f);
	f->blocks[1].parent = (struct kvp_key){{0xbad2, 0xbad}};
	expect_violation(f, "ns-0000000000000011", "parents of published blocks are published or cold");
}

static void wrong_fields_of_a_descriptor_are_found(void **state)
{
	struct fake *f = *state;

	f->blocks[6].slab_number = 9;
	expect_violation(f, "slot 6", "slab_number as in the slab table");
	f->blocks[6].slab_number = 1;
	f->blocks[0].used_bytes = FAKE_BLOCK + 1;
	expect_violation(f, "slot 0", "used_bytes of a published block");
	f->blocks[0].used_bytes = FAKE_BLOCK;
	f->blocks[0].used_tokens = 17;
	expect_violation(f, "slot 0", "used_tokens of a published block");
	f->blocks[0].used_tokens = 16;
	f->blocks[7].word = 0xff;
	expect_violation(f, "slot 7", "state of the word");
	f->blocks[7].word = kvp_word(0, KVP_BLOCK_DRAINING);
	expect_violation(f, "slot 7", "DRAINING does not last");
}

static void a_grant_of_nobody_is_found(void **state)
{
	struct fake *f = *state;

	f->session_row->grants = 2;
	expect_violation(f, "session 0000000000000022", "grants: gauge, recounted: expected 2, found 1");
	f->session_row->grants = 0;
	f->blocks[3].key.w[0] = 0x99;
	expect_violation(f, "slot 3", "a granted slot belongs to a listed session");
	assert_says(f->out, "1 violations");
}

static void slab_table_and_rows_must_agree(void **state)
{
	struct fake *f = *state;

	f->slab_rows[0].ns_id = 0x12;
	expect_violation(f, "place 0", "its slab is listed, and as this namespace's");
	f->slab_rows[0].ns_id = FAKE_NS;
	f->slab_table[1].number = 1; /* one slab at two places */
	expect_violation(f, "ns-", "slots: gauge, recounted");
	f->slab_table[1].number = 0;
	f->slab_rows[1].number = 1;
	expect_violation(f, "slab 1", "listed once");
	f->slab_rows[1].number = 3;
	expect_violation(f, "slab 3", "numbers come from next_number");
	assert_says(f->out, "object of a listed slab: expected there");
	assert_says(f->out, "an object that no row lists");
	f->slab_rows[1].number = 2;
	expect_clean(f);
}

static void memory_beyond_the_budget_is_found(void **state)
{
	struct fake *f = *state;

	f->header->pool_bytes = FAKE_SLAB;
	expect_violation(f, "slabs", "within the budget");
	f->header->pool_bytes = 2 * FAKE_SLAB;
	f->stats->counters.slab_bytes_free = 0;
	expect_violation(f, "stats", "slab_bytes_free: gauge, rows");
}

static void a_slab_that_was_cut_or_punched_is_found(void **state)
{
	struct fake *f = *state;
	char path[128];
	int fd;

	fake_path(f, path, "slab-2");
	fd = open(path, O_RDWR);
	assert_int_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192), 0);
	close(fd);
	expect_violation(f, "slab-2", "all of it is allocated");
	fake_path(f, path, "slab-1");
	assert_int_equal(truncate(path, 4096), 0);
	expect_violation(f, "slab-1", "length as listed");
}

static void objects_nobody_lists_are_found(void **state)
{
	struct fake *f = *state;
	static const char *const names[] = {"slab-77", "stage-3", "ns-00000000000000aa", "sess-00000000000000aa",
		"io-7", "what", "slab-0x1", "ns-11"};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		char path[128];

		fake_path(f, path, names[i]);
		close(open(path, O_CREAT | O_RDWR, 0600));
		expect_violation(f, names[i], "an object that no row lists");
		unlink(path);
	}
	expect_clean(f);
}

static void objects_open_to_others_are_found(void **state)
{
	struct fake *f = *state;
	char path[128];

	fake_path(f, path, "slab-1");
	chmod(path, 0644);
	expect_violation(f, "slab-1", "who may open it");
	chmod(path, 0600);
	fake_path(f, path, "stats");
	chmod(path, 0640);
	expect_clean(f);
}

static void a_session_without_object_or_with_a_broken_one_is_found(void **state)
{
	struct fake *f = *state;
	char path[128], aside[128];

	f->session->pin_stride = 8;
	expect_violation(f, "sess-0000000000000022", "head and length of the session object");
	f->session->pin_stride = FAKE_STRIDE;
	f->pins[4].count = 0xffffffff;
	expect_violation(f, "place 0 slot 4", "a pin count is one");
	f->pins[4].count = 0;
	fake_path(f, path, "sess-0000000000000022");
	fake_path(f, aside, "sess-0000000000000023");
	assert_int_equal(rename(path, aside), 0);
	expect_violation(f, "sess-0000000000000022", "object of a listed session");
	assert_says(f->out, "an object that no row lists");
}

/* Set one field wrong, look, and set it right again. */
#define with(field, wrong, object, what) \
	do { \
		__typeof__(field) right_ = (field); \
		(field) = (wrong); \
		expect_violation(f, object, what); \
		(field) = right_; \
	} while (0)

static void every_number_that_is_said_twice_must_agree(void **state)
{
	struct fake *f = *state;
	struct kvp_counters *c = &f->stats->counters;
	const char *ns = "ns-0000000000000011";

	with(c->slabs, 3, "stats", "slabs: gauge, rows: expected 3, found 2");
	with(c->slab_bytes_allocated, 1, "stats", "slab_bytes_allocated: gauge, rows");
	with(c->slab_bytes_staging, 4096, "stats", "slab_bytes_staging: gauge, objects");
	with(c->sessions, 0, "stats", "sessions: gauge, rows");
	with(f->slab_rows[1].use, 9, "slab 2", "use: expected 1 to 4, found 9");
	with(f->slab_table[0].bytes, 4096, ns, "bytes of its slab as listed");
	with(f->slab_table[0].number, 7, "slab 1", "in the slab table of its namespace");
	with(f->ns_row->counters.clean, 4, ns, "clean blocks are published");
	with(f->ns->ns_id, 0x12, ns, "ns_id as in its name");
	with(f->ns->object_bytes, 4096, ns, "object_bytes as the file is long");
	with(f->ns->slab_bytes, 2 * FAKE_SLAB, ns, "slab_bytes as in its row");
	with(f->ns->slab_bytes, FAKE_SLAB - 1, ns, "a slab holds its slots");
	with(f->ns_row->slots_per_slab, 15, ns, "slots_per_slab as in its row");
	with(f->ns->base_id, 5, ns, "base_id as in its row");
	with(f->ns->owner_uid, 5, ns, "owner_uid as in its row");
	with(f->ns->mode, 0666, ns, "mode as in its row");
	with(f->ns->block_stride, 4097, ns, "block_stride is block_bytes rounded up to pages");
	with(f->blocks[0].key, ((struct kvp_key){{0, 0}}), "slot 0", "key of a published block");
	with(f->blocks[8].word, kvp_word(5, KVP_BLOCK_RETIRED), "slot 8", "a retired slot has used up its generations");
	expect_clean(f);
}

static void an_object_linked_twice_or_lost_is_found(void **state)
{
	struct fake *f = *state;
	char path[128], other[128];

	fake_path(f, path, "slab-1");
	fake_path(f, other, "slab-9");
	assert_int_equal(link(path, other), 0);
	expect_violation(f, "slab-1", "a regular file of the pool's user, linked once");
	unlink(other);
	fake_path(f, path, "ns-0000000000000011");
	unlink(path);
	expect_violation(f, "ns-0000000000000011", "object of a listed namespace");
}

static void a_pool_file_that_names_another_pool_is_found(void **state)
{
	struct fake *f = *state;
	int fd = open(f->pool_file, O_WRONLY);

	assert_int_equal(pwrite(fd, "0", 1, 0), 1);
	close(fd);
	unlink(f->pool_file);
	expect_violation(f, f->name, "the pool's file names this pool");
}

static void a_broken_namespace_object_is_refused_without_a_crash(void **state)
{
	struct fake *f = *state;

	f->ns->block_off = 0xfffffffffffff000;
	expect_violation(f, "ns-0000000000000011", "head of the object");
	f->ns->block_off = 4 * KVP_PAGE;
	f->ns->n_buckets = 1ull << 60;
	expect_violation(f, "ns-0000000000000011", "head of the object");
	f->ns->n_buckets = 3;
	expect_violation(f, "ns-0000000000000011", "head of the object");
	f->ns->n_buckets = FAKE_BUCKETS;
	f->ns->slots_per_slab = 0xffffffff;
	expect_violation(f, "ns-0000000000000011", "head of the object");
	f->ns->slots_per_slab = FAKE_SLOTS;
	f->ns->block_bytes = 5000;
	expect_violation(f, "ns-0000000000000011", "block_bytes as in its row");
}

static void what_a_killed_daemon_left_unfinished_is_no_violation_but_told(void **state)
{
	struct fake *f = *state;
	json_t *json;

	f->header->state = KVP_DAEMON_SERVING;
	f->silent = true;
	f->header->heartbeat_ns = fake_now() - 5000000000u;
	f->blocks[2].word = kvp_word(1, KVP_BLOCK_DRAINING);
	assert_int_equal(run_here(f, "check"), 0);
	assert_says(f->out, "unfinished ");
	assert_says(f->out, "DRAINING does not last");
	assert_says(f->out, ", 0 violations");
	assert_int_equal(run_here(f, "check", "--json"), 0);
	json = parsed(f);
	assert_int_equal(json_array_size(json_object_get(json, "unfinished")), 1);
	json_decref(json);
	f->index[7].hint[3] = (uint64_t)5 << 32 | 0x7fffffff; /* this no kill explains */
	assert_int_equal(run_here(f, "check"), 1);
}

static void json_lists_each_violation(void **state)
{
	struct fake *f = *state;
	json_t *json, *violation;

	f->blocks[3].key.w[0] = 0x99;
	f->session_row->grants = 0;
	assert_int_equal(run_here(f, "check", "--json"), 1);
	json = parsed(f);
	assert_int_equal(json_array_size(json_object_get(json, "violations")), 1);
	violation = json_array_get(json_object_get(json, "violations"), 0);
	assert_says(json_string_value(json_object_get(violation, "object")), "slot 3");
	assert_string_equal(json_string_value(json_object_get(violation, "found")), "no session 0000000000000099");
	assert_true(json_is_false(json_object_get(json, "ok")));
	json_decref(json);
}

static unsigned rounds = 1; /* of looking at all pins, at each beat */

/* A child that beats as a daemon does, and puts one thing right after @ms. */
static pid_t beat(struct fake *f, _Atomic uint64_t *gauge, uint64_t value, unsigned ms)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	for (unsigned t = 0;; t += 20) {
		f->header->heartbeat_ns = fake_now();
		f->stats->counters.pin_sweeps += rounds;
		if (gauge && t >= ms)
			*gauge = value;
		usleep(20000);
	}
}

static void a_running_daemon_is_given_time_to_put_things_right(void **state)
{
	struct fake *f = *state;
	uint64_t before = fake_now();
	pid_t pid;

	f->header->state = KVP_DAEMON_SERVING;
	f->ns_row->counters.held = 0; /* its last look was before the pin */
	pid = beat(f, &f->ns_row->counters.held, 1, 300);
	expect_clean(f);
	assert_true(fake_now() - before > 200000000u);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

/* A pin that comes and goes: at each look it is there, at each of the daemon's it was not. */
static pid_t use_again_and_again(struct fake *f)
{
	pid_t pid = fork();

	if (pid)
		return pid;
	for (;; usleep(5000))
		f->pins[0].stamp++;
}

static void sums_of_pins_that_move_are_not_compared_and_those_that_stand_still_are(void **state)
{
	struct fake *f = *state;
	pid_t daemon, reader;

	f->header->state = KVP_DAEMON_SERVING;
	f->ns_row->counters.held = 0;
	f->session_row->pins = 0;
	daemon = beat(f, NULL, 0, 0);
	reader = use_again_and_again(f);
	assert_int_equal(run_here(f, "check"), 0);
	assert_says(f->out, "2 sums not compared");
	kill(reader, SIGKILL);
	waitpid(reader, NULL, 0);
	expect_violation(f, "ns-0000000000000011", "held: gauge, 1 in the pin tables");
	kill(daemon, SIGKILL);
	waitpid(daemon, NULL, 0);
}

static void a_daemon_that_gets_to_no_round_is_not_wrong_about_pins(void **state)
{
	struct fake *f = *state;
	pid_t pid;

	f->header->state = KVP_DAEMON_SERVING;
	f->ns_row->counters.held = 0;
	rounds = 0;
	pid = beat(f, NULL, 0, 0);
	rounds = 1;
	assert_int_equal(run_here(f, "check"), 0);
	assert_says(f->out, "1 sums not compared");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void a_block_in_use_may_have_lost_its_parent_with_a_broken_slab(void **state)
{
	struct fake *f = *state;

	f->blocks[0].parent = (struct kvp_key){{0xbad, 0xbad}}; /* the session pins it */
	expect_clean(f);
	f->stats->counters.slabs_condemned = 1; /* whatever was broken: one that nobody holds goes */
	f->blocks[2].parent = (struct kvp_key){{0xbad2, 0xbad}};
	expect_violation(f, "ns-0000000000000011", "parents of published blocks are published or cold");
}

static void what_a_running_daemon_does_not_put_right_is_found(void **state)
{
	struct fake *f = *state;
	pid_t pid;

	f->header->state = KVP_DAEMON_SERVING;
	f->ns_row->counters.held = 0;
	pid = beat(f, NULL, 0, 0);
	expect_violation(f, "ns-0000000000000011", "held: gauge, 1 in the pin tables");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void a_dead_session_that_a_running_daemon_keeps_is_found(void **state)
{
	struct fake *f = *state;
	pid_t pid;

	f->header->state = KVP_DAEMON_SERVING;
	f->session_row->connected = 0; /* and nobody holds the lock */
	f->session_row->pins = 5;
	pid = beat(f, NULL, 0, 0);
	expect_violation(f, "sess-0000000000000022", "socket closed, so its process lives and holds the lock");
	assert_says(f->out, "pins: gauge, 1 in its table: expected 5, found 1");
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void looking_fills_no_hole(void **state)
{
	struct fake *f = *state;
	char path[128];
	struct stat before, after;
	int fd;

	fake_path(f, path, "sess-0000000000000022");
	fd = open(path, O_RDWR);
	assert_int_equal(
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, KVP_PAGE + FAKE_STRIDE, 4 * FAKE_STRIDE), 0);
	assert_int_equal(fstat(fd, &before), 0);
	expect_clean(f);
	assert_int_equal(fstat(fd, &after), 0);
	assert_int_equal(before.st_blocks, after.st_blocks);
	close(fd);
}

/* ---- purge ---- */

static unsigned objects_left(const struct fake *f)
{
	char prefix[64];
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;
	unsigned n = 0;

	snprintf(prefix, sizeof(prefix), "kvp-%s-", f->uuid_text);
	while ((entry = readdir(dir)))
		n += !strncmp(entry->d_name, prefix, strlen(prefix));
	closedir(dir);
	return n + (access(f->pool_file, F_OK) == 0);
}

static void purge_without_a_daemon_leaves_nothing(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "purge"), 0);
	assert_says(f->out, "2 slabs and 4 other objects");
	assert_int_equal(objects_left(f), 0);
	assert_int_equal(run_here(f, "purge"), 4);
}

static void purge_leaves_alone_what_a_living_daemon_has(void **state)
{
	struct fake *f = *state;
	int fd = open(f->pool_file, O_RDWR);

	assert_int_equal(flock(fd, LOCK_EX), 0);
	assert_int_equal(run_here(f, "purge"), 1);
	assert_says(f->err, "lives or is dying");
	assert_int_equal(objects_left(f), 7);
	close(fd);
	assert_int_equal(run_here(f, "purge"), 0);
}

static void purge_by_another_user_is_refused(void **state)
{
	struct fake *f = *state;
	const char *kvctl = kvctl_path();
	pid_t pid;
	int status;

	if (geteuid() != 0) {
		print_message("skipped: cannot change uid\n");
		skip();
	}
	chmod(f->dir, 0755);
	char path[128];

	fake_path(f, path, "header");
	chmod(path, 0644);
	pid = fork();
	if (pid == 0) {
		if (setgid(65534) || setuid(65534))
			_exit(99);
		if (access(kvctl, X_OK) < 0)
			_exit(77);
		execl(kvctl, "kvctl", "purge", "--socket", f->socket, (char *)NULL);
		_exit(98);
	}
	waitpid(pid, &status, 0);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
		print_message("skipped: other users cannot reach %s\n", kvctl);
		skip();
	}
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
	assert_int_equal(objects_left(f), 7);
}

#define test(name) cmocka_unit_test_setup_teardown(name, stopped_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_sound_pool_is_clean),
		test(a_gauge_that_does_not_fit_the_descriptors_is_found),
		test(a_published_block_without_hint_is_found),
		test(a_hint_is_found_in_the_next_bucket_if_its_home_is_full),
		test(stray_hints_are_found),
		test(a_key_published_twice_is_found),
		test(a_block_whose_parent_is_nowhere_is_found_unless_so_many_are_cold),
		test(wrong_fields_of_a_descriptor_are_found),
		test(a_grant_of_nobody_is_found),
		test(slab_table_and_rows_must_agree),
		test(memory_beyond_the_budget_is_found),
		test(a_slab_that_was_cut_or_punched_is_found),
		test(objects_nobody_lists_are_found),
		test(objects_open_to_others_are_found),
		test(a_session_without_object_or_with_a_broken_one_is_found),
		test(every_number_that_is_said_twice_must_agree),
		test(an_object_linked_twice_or_lost_is_found),
		test(a_pool_file_that_names_another_pool_is_found),
		test(a_broken_namespace_object_is_refused_without_a_crash),
		test(what_a_killed_daemon_left_unfinished_is_no_violation_but_told),
		test(json_lists_each_violation),
		test(a_running_daemon_is_given_time_to_put_things_right),
		test(what_a_running_daemon_does_not_put_right_is_found),
		test(sums_of_pins_that_move_are_not_compared_and_those_that_stand_still_are),
		test(a_daemon_that_gets_to_no_round_is_not_wrong_about_pins),
		test(a_block_in_use_may_have_lost_its_parent_with_a_broken_slab),
		test(a_dead_session_that_a_running_daemon_keeps_is_found),
		test(looking_fills_no_hole),
		test(purge_without_a_daemon_leaves_nothing),
		test(purge_leaves_alone_what_a_living_daemon_has),
		test(purge_by_another_user_is_refused),
	};

	return cmocka_run_group_tests_name("kvctl check", tests, NULL, NULL);
}
