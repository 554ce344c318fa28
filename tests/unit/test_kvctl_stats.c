/* test_kvctl_stats.c - kvctl stats, ns and clients on pools whose daemon runs, stands, is dead, or is of another version */
#include "test_kvctl_fixture.h"

static void a_served_pool_is_a_page_of_80_columns(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, ": serving\n");
	assert_says(f->out, "model");
	assert_says(f->out, "not remembered 2, evicted 1");
	assert_says(f->out, "of 10 blocks asked");
	for (char *line = strtok(f->out, "\n"); line; line = strtok(NULL, "\n"))
		if (strlen(line) > 80)
			fail_msg("%zu columns: %s", strlen(line), line);
}

static void what_is_lost_or_not_used_is_told(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_null(strstr(f->out, "not used"));
	assert_null(strstr(f->out, "lines of the log"));
	f->stats->counters.pool_bytes = 2 * FAKE_SLAB + FAKE_SLAB / 2;
	f->stats->counters.log_lines_lost = 7;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "of the pool are not used: it is no multiple of the slab");
	assert_says(f->out, "7 lines of the log are lost");
}

static void how_far_the_pool_can_grow_is_told(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "kvctl resize takes it to 512 KiB at most (8 slabs of 64 KiB)");
}

static void what_restores_cost_and_what_was_not_written_is_on_the_page(void **state)
{
	struct fake *f = *state;

	f->stats->counters.spill_state = 1;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_null(strstr(f->out, "blocks come back"));
	assert_null(strstr(f->out, "too slow"));
	f->stats->counters.spill_read_speed = 1u << 30;
	f->stats->counters.spill_read_queue = 3u << 20;
	f->stats->counters.spill_too_slow = 5;
	f->stats->counters.spill_scrub_damaged = 2;
	f->ns_row->counters.read_ahead = 7;
	f->ns_row->counters.restore_us = 12300;
	f->ns_row->counters.saved_us = 65000000;
	f->stats->counters.spill_used_bytes = 3u << 20;
	f->stats->counters.spill_live_bytes = 1u << 20;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "# can be found  - the rest of the segments in use 2 MiB\n");
	assert_says(f->out, "computing saved: 65 s, in namespaces that say what it costs\n");
	assert_says(f->out, "blocks come back at 1 GiB/s, 3 MiB queued; 7 of them read ahead\n");
	assert_says(f->out, "the last cold blocks asked for of model: 12.3 ms to read\n");
	assert_says(f->out, "the store was too slow 5, found damaged by the scrub 2\n");
	f->ns_row->counters.recompute_us = 4500;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "12.3 ms to read, 4.5 ms to compute\n");
}

/* 1000 tokens in an hour: 200 found again in 64 KiB, 100 in four times the pool (512 KiB), the others new. */
static void given_curve(struct fake *f)
{
	f->curve->tokens = 1000;
	f->curve->seconds = 3600;
	f->curve->watched = 77;
	f->curve->one_in = 1500;
	f->curve->bins[0] = 200;
	f->curve->bins[3 * KVP_CURVE_OCTAVE] = 100;
}

static void what_more_memory_would_buy_is_on_the_page(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "is not known yet: no use was counted\n");
	given_curve(f);
	assert_int_equal(run_here(f, "stats", "--more", "384k"), 0);
	assert_says(f->out, "CURVE  1,000 tokens in 60 min, found again with (77 keys, each for 1.5)\n");
	assert_says(f->out, "384 KiB more of DRAM: 30.0 %, now 20.0 %: 100 tokens/h saved\n");
	assert_says(f->out, "384 KiB more of spill: 20.0 %, now 20.0 %: 0 tokens/h saved\n"); /* half of it headers */
	assert_says(f->out, "now, 128 KiB     20.0 %");
	assert_says(f->out, "-^-");
	for (char *line = strtok(f->out, "\n"); line; line = strtok(NULL, "\n"))
		if (strlen(line) > 80)
			fail_msg("%zu columns: %s", strlen(line), line);
	assert_int_equal(run_here(f, "stats", "--more", "768k"), 0);
	assert_says(f->out, "768 KiB more of spill: 30.0 %, now 20.0 %: 100 tokens/h saved\n");
	assert_int_equal(run_here(f, "stats", "--more", "much"), 2);
	assert_says(f->err, "--more");
}

static void what_more_memory_would_buy_is_told_by_a_pool_whose_daemon_is_gone(void **state)
{
	struct fake *f = *state;
	json_t *json, *curve;

	given_curve(f);
	close(f->life_fd);
	assert_int_equal(run_here(f, "stats", "--json", "--more", "384k"), 3);
	json = parsed(f);
	curve = json_object_get(json, "curve");
	assert_true(json_real_value(json_object_get(curve, "share")) == .2);
	assert_true(json_real_value(json_object_get(curve, "share_more_dram")) == .3);
	assert_int_equal(json_array_size(json_object_get(curve, "sizes")), 25);
	json_decref(json);
	f->stats->curve_off += 4096; /* beyond the end: an older daemon's, or no curve at all */
	assert_int_equal(run_here(f, "stats", "--json"), 3);
	json = parsed(f);
	assert_true(json_is_null(json_object_get(json, "curve")));
	json_decref(json);
	fake_live(f);
}

/* Blocks of 4 KiB, compressed to half of that, with a sector of header: 2.5 KiB each. */
static void of_a_store_the_curve_counts_what_blocks_take_there(void **state)
{
	struct fake *f = *state;

	given_curve(f);
	f->stats->n_stores = 1;
	f->stats->stores[0].live_records = 10;
	f->stats->counters.spill_live_bytes = 25 * 1024;
	f->ns_row->counters.cold = 7;
	f->ns_row->counters.clean = 3;
	assert_int_equal(run_here(f, "stats", "--more", "240k"), 0);
	assert_says(f->out, "240 KiB more of spill: 30.0 %, now 20.0 %: 100 tokens/h saved\n");
	assert_int_equal(run_here(f, "stats", "--more", "208k"), 0);
	assert_says(f->out, "208 KiB more of spill: 20.0 %, now 20.0 %: 0 tokens/h saved\n");
	f->stats->counters.spill_live_bytes = 80 * 1024; /* as it lies in memory, and a page of header */
	assert_int_equal(run_here(f, "stats", "--more", "768k"), 0);
	assert_says(f->out, "768 KiB more of spill: 30.0 %, now 20.0 %: 100 tokens/h saved\n");
	assert_int_equal(run_here(f, "stats", "--more", "640k"), 0);
	assert_says(f->out, "640 KiB more of spill: 20.0 %, now 20.0 %: 0 tokens/h saved\n");
}

/* Each part of a curve is rounded to whole tokens. */
static void a_curve_never_finds_more_than_all(void **state)
{
	struct fake *f = *state;
	json_t *json;

	given_curve(f);
	f->curve->bins[0] = 1001;
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json = parsed(f);
	assert_true(json_real_value(json_object_get(json_object_get(json, "curve"), "share")) == 1);
	json_decref(json);
}

static void the_balance_of_a_namespace_is_shown_and_judged(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "model        12       1            2             1       16  ok");
	f->ns_row->counters.free = 13;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "NOT SO");
}

static void json_has_every_counter_by_its_name(void **state)
{
	struct fake *f = *state;
	json_t *json, *pool, *ns, *units;

	f->stats->counters.spill_writes = 77;
	f->ns_row->counters.miss_cost = 88;
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json = parsed(f);
	pool = json_object_get(json, "counters");
	ns = json_object_get(json_array_get(json_object_get(json, "namespaces"), 0), "counters");
	units = json_object_get(json, "units");
#define KVP_COUNTER(name, kind, unit, help) \
	assert_true(json_is_integer(json_object_get(pool, #name))); \
	assert_string_equal( \
		json_string_value(json_object_get(json_object_get(json_object_get(units, "pool"), #name), "unit")), \
		#unit);
#define KVP_NS_COUNTER(name, kind, unit, help) \
	assert_true(json_is_integer(json_object_get(ns, #name))); \
	assert_string_equal(json_string_value(json_object_get( \
				    json_object_get(json_object_get(units, "namespace"), #name), "kind")), \
		#kind);
#include "counters.def"
	assert_int_equal(json_integer_value(json_object_get(pool, "spill_writes")), 77);
	assert_int_equal(json_integer_value(json_object_get(ns, "miss_cost")), 88);
	assert_true(json_is_true(json_object_get(json_object_get(json, "pool"), "up")));
	assert_true(json_is_false(json_object_get(json, "inconsistent")));
	json_decref(json);
}

static void a_daemon_that_is_gone_does_not_serve_however_young_its_heartbeat(void **state)
{
	struct fake *f = *state;

	close(f->life_fd); /* as the kernel does for the dead, and the pid is somebody else's */
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "gone");
	assert_null(strstr(f->out, ": serving\n"));
	fake_live(f);
	assert_int_equal(run_here(f, "stats"), 0);
}

static void a_silent_daemon_is_told_with_its_age_and_pid(void **state)
{
	struct fake *f = *state;

	f->silent = true;
	f->header->heartbeat_ns = fake_now() - 12000000000u;
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "not answering: heartbeat 12.");
	assert_says(f->out, "alive");
	f->header->daemon_pid = 0x7ffffff0; /* that of another pid namespace */
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "pid 2147483632 alive");
	close(f->life_fd);
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "pid 2147483632 gone");
	assert_says(f->out, "model");
}

static void a_pool_of_another_boot_is_dead_whatever_its_heartbeat(void **state)
{
	struct fake *f = *state;

	f->header->boot_id[3] ^= 1;
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "heartbeat of an earlier boot");
}

static void start_and_stop_are_told(void **state)
{
	struct fake *f = *state;

	f->header->state = KVP_DAEMON_STARTING;
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, ": starting\n");
	f->header->state = KVP_DAEMON_STOPPED;
	assert_int_equal(run_here(f, "stats"), 3);
	assert_says(f->out, "stopped in order (memory kept)");
}

static void a_copy_that_never_holds_still_is_marked_and_comes_at_once(void **state)
{
	struct fake *f = *state;
	uint64_t before = fake_now();
	json_t *json;

	f->stats->version = 3;
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	assert_true(fake_now() - before < 3000000000u); /* the machine may be busy */
	json = parsed(f);
	assert_true(json_is_true(json_object_get(json, "inconsistent")));
	json_decref(json);
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "sums may not add up");
}

static void a_daemon_that_changes_all_the_time_delays_nobody(void **state)
{
	struct fake *f = *state;
	uint64_t before;
	pid_t pid = fork();

	while (pid == 0) { /* as a daemon under load: odd for a moment, even for a moment */
		f->stats->version += 1;
		f->header->heartbeat_ns = fake_now();
		for (unsigned i = 0; i < 2000; i++)
			__asm__ volatile("");
	}
	before = fake_now();
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	assert_true(fake_now() - before < 3000000000u); /* the machine may be busy */
	json_decref(parsed(f));
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void a_hundred_at_once_are_all_answered(void **state)
{
	struct fake *f = *state;
	pid_t pids[100];

	for (unsigned i = 0; i < 100; i++) {
		pids[i] = fork();
		if (pids[i] == 0) {
			int null = open("/dev/null", O_WRONLY);

			dup2(null, 1);
			execl(kvctl_path(), "kvctl", "stats", "--socket", f->socket, (char *)NULL);
			_exit(127);
		}
	}
	for (unsigned i = 0; i < 100; i++) {
		int status;

		assert_true(waitpid(pids[i], &status, 0) == pids[i]);
		/* the machine may be so busy that the heartbeat of this pool, which nobody renews, gets old */
		assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 3));
	}
}

static void another_layout_is_refused_with_both_versions(void **state)
{
	struct fake *f = *state;
	char ours[16];

	f->header->layout_major = 7;
	f->header->layout_minor = 3;
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "version 7.3");
	snprintf(ours, sizeof(ours), "(%u.%u)", KVP_LAYOUT_MAJOR, KVP_LAYOUT_MINOR);
	assert_says(f->err, ours);
	assert_string_equal(f->out, "");
	f->header->layout_major = KVP_LAYOUT_MAJOR;
	f->stats->layout_major = 2;
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "version 2.");
}

static void who_has_how_much_of_a_quota_is_shown_where_there_is_one(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_null(strstr(f->out, "QUOTAS"));
	f->stats->counters.uid_max_bytes = 1u << 30;
	f->stats->counters.namespace_max_bytes = 1u << 29;
	f->ns_row->owner_uid = 54321;
	f->ns_row->slots_per_slab = 4;
	f->ns_row->slab_bytes = 3u << 20;
	f->ns_row->counters.slots = 8;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "QUOTAS a namespace may have 512 MiB");
	assert_says(f->out, "54321 has 6 MiB of 1 GiB");
}

/* As another minor version has it: what this one does not count is 0, what it counts beyond is nobody's affair. */
static void counters_of_another_minor_version_are_read_as_far_as_they_go(void **state)
{
	struct fake *f = *state;

	f->stats->counters.starts = 41;
	f->stats->counters.log_lines_lost = 7;
	f->header->layout_minor = f->stats->layout_minor = KVP_LAYOUT_MINOR + 1;
	f->header->header_bytes = sizeof(*f->header) + 40;
	f->stats->counters_bytes = offsetof(struct kvp_counters, log_lines_lost);
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	assert_says(f->out, "\"starts\": 41");
	assert_says(f->out, "\"log_lines_lost\": 0");
	/* 1.0 had them in no fixed order */
	f->stats->layout_minor = 0;
	assert_int_equal(run_here(f, "stats", "--json"), 4);
	assert_says(f->err, "does not know");
}

static void another_byte_order_or_magic_or_size_is_refused(void **state)
{
	struct fake *f = *state;

	f->header->endian = 0x04030201;
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "04030201");
	f->header->endian = KVP_ENDIAN;
	f->header->magic ^= 1;
	assert_int_equal(run_here(f, "stats"), 4);
	f->header->magic ^= 1;
	f->header->header_bytes = 8192;
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "8192");
	f->header->header_bytes = sizeof(*f->header);
	f->header->uuid[0] ^= 1;
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "UUID");
}

static void objects_cut_short_are_refused_without_a_crash(void **state)
{
	struct fake *f = *state;
	char path[128];

	fake_path(f, path, "stats");
	assert_int_equal(truncate(path, 100000), 0);
	assert_int_equal(run_here(f, "stats"), 4);
	assert_says(f->err, "cut short");
	assert_int_equal(truncate(path, 10), 0);
	assert_int_equal(run_here(f, "stats"), 4);
	fake_path(f, path, "header");
	f->silent = true; /* its page goes */
	assert_int_equal(truncate(path, 100), 0);
	assert_int_equal(run_here(f, "stats"), 4);
	assert_int_equal(truncate(path, 0), 0);
	assert_int_equal(run_here(f, "stats"), 4);
}

static void rows_said_to_lie_outside_are_refused(void **state)
{
	struct fake *f = *state;

	f->stats->slab_off = 0xfffffff8;
	assert_int_equal(run_here(f, "stats"), 4);
	f->stats->slab_off = f->stats->session_off;
	f->stats->max_places = 0xffffffff;
	assert_int_equal(run_here(f, "stats"), 4);
	f->stats->max_places = FAKE_PLACES;
	f->stats->ns_row_bytes = 8;
	assert_int_equal(run_here(f, "stats"), 4);
	f->stats->ns_row_bytes = sizeof(struct kvp_ns_row);
	f->stats->object_bytes = 16;
	assert_int_equal(run_here(f, "stats"), 4);
}

static void links_and_fifos_are_not_followed(void **state)
{
	struct fake *f = *state;
	char path[128], aside[140];

	fake_path(f, path, "header");
	snprintf(aside, sizeof(aside), "%s-aside", path);
	assert_int_equal(rename(path, aside), 0);
	assert_int_equal(symlink(aside, path), 0);
	assert_int_equal(run_here(f, "stats"), 4);
	unlink(path);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_int_equal(run_here(f, "stats"), 4);
	unlink(path);
	assert_int_equal(rename(aside, path), 0);
	assert_int_equal(run_here(f, "stats"), 0);
}

static void of_two_pools_at_a_socket_the_one_that_beats_is_shown(void **state)
{
	struct fake *f = *state;
	struct fake *other = fake_beside(f);
	json_t *json;

	f->silent = true;
	f->header->heartbeat_ns = fake_now() - 60000000000u;
	assert_int_equal(run_here(f, "stats", "--json"), 0);
	json = parsed(f);
	assert_string_equal(
		json_string_value(json_object_get(json_object_get(json, "pool"), "uuid")), other->uuid_text);
	json_decref(json);
	fake_remove(other);
	free(other);
}

static void a_pool_is_found_by_its_name(void **state)
{
	struct fake *f = *state;

	f->header->state = KVP_DAEMON_STOPPED;
	assert_int_equal(run(f, "stats", "--name", f->name), 3);
	assert_says(f->out, f->name);
	assert_int_equal(run(f, "stats", "--name", "no-such-pool"), 4);
	assert_says(f->err, "no-such-pool");
	/* with the directory it stands in reached another way */
	char twisted[160];

	snprintf(twisted, sizeof(twisted), "%s/../%s/sock", f->dir, strrchr(f->dir, '/') + 1);
	assert_int_equal(run(f, "stats", "--socket", twisted), 3);
}

static void no_pool_is_a_short_message_with_the_others_named(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run(f, "stats", "--socket", "/nowhere/at/all"), 4);
	assert_says(f->err, "/nowhere/at/all");
	assert_string_equal(f->out, "");
}

static void a_closed_pipe_and_a_full_disk_end_it_without_a_crash(void **state)
{
	struct fake *f = *state;
	const char *const argv[] = {"kvctl", "stats", "--socket", f->socket, NULL};
	const char *const watch[] = {"kvctl", "stats", "--socket", f->socket, "--watch", "0.01", NULL};
	const char *const json[] = {"kvctl", "stats", "--socket", f->socket, "--json", NULL};
	int fds[2], full = open("/dev/full", O_WRONLY);

	assert_int_equal(pipe(fds), 0);
	close(fds[0]);
	assert_int_equal(run_to(f, fds[1], argv), 5);
	assert_says(f->err, "Broken pipe");
	assert_int_equal(run_to(f, fds[1], watch), 5);
	assert_int_equal(run_to(f, full, argv), 5);
	assert_says(f->err, "No space left");
	assert_int_equal(run_to(f, full, json), 5); /* longer than what is gathered: refused before the end */
	assert_says(f->err, "No space left");
	close(fds[1]);
	close(full);
}

static void watch_comes_again_and_ends_with_the_pool(void **state)
{
	struct fake *f = *state;
	pid_t pid = fork();

	if (pid == 0) {
		usleep(300000);
		fake_remove(f);
		_exit(0);
	}
	assert_int_equal(run_here(f, "stats", "--json", "--watch", "0.02"), 4);
	waitpid(pid, NULL, 0);
	assert_non_null(strchr(strchr(f->out, '\n') + 1, '\n')); /* a line each */
}

static void what_clients_say_of_themselves_cannot_steer_a_terminal(void **state)
{
	struct fake *f = *state;
	json_t *json;

	memset(f->session_row->comm, 'x', sizeof(f->session_row->comm)); /* no terminator either */
	memcpy(f->session_row->comm, "a\033[2J\377\n", 7);
	assert_int_equal(run_here(f, "clients"), 0);
	assert_says(f->out, "a?[2J??xx");
	assert_null(strchr(f->out, '\033'));
	assert_int_equal(run_here(f, "clients", "--json"), 0);
	json = parsed(f);
	assert_int_equal(
		json_integer_value(json_object_get(json_array_get(json_object_get(json, "clients"), 0), "grants")), 1);
	json_decref(json);
}

static void namespaces_of_one_name_are_told_apart(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run_here(f, "stats"), 0);
	assert_null(strstr(f->out, "0000000000000011"));
	memcpy(&f->ns_row[1], f->ns_row, sizeof(*f->ns_row));
	f->ns_row[1].ns_id = 0x12;
	assert_int_equal(run_here(f, "stats"), 0);
	assert_says(f->out, "model 0000000000000011");
	assert_says(f->out, "model 0000000000000012");
	f->ns_row[1].ns_id = 0;
}

static void namespaces_are_listed_with_what_they_are(void **state)
{
	struct fake *f = *state;
	json_t *json, *ns;

	assert_int_equal(run_here(f, "ns"), 0);
	assert_says(f->out, "id 0000000000000011");
	assert_says(f->out, "HND, 16 tokens a block, 4096 bytes, 16 blocks in a slab of 64 KiB");
	assert_int_equal(run_here(f, "ns", "--json"), 0);
	json = parsed(f);
	ns = json_array_get(json_object_get(json, "namespaces"), 0);
	assert_string_equal(json_string_value(json_object_get(ns, "name")), "model");
	assert_int_equal(json_integer_value(json_object_get(json_object_get(ns, "conservation"), "total")), 16);
	assert_true(json_is_true(json_object_get(json_object_get(ns, "conservation"), "holds")));
	json_decref(json);
}

static void wrong_words_are_refused_with_a_hint(void **state)
{
	struct fake *f = *state;

	assert_int_equal(run(f, "stats", "--jsn"), 2);
	assert_says(f->err, "--json");
	assert_int_equal(run(f, "stats", "--socket"), 2);
	assert_int_equal(run(f, "stats", "more"), 2);
	assert_int_equal(run(f, "stats", "--watch=x"), 2);
	assert_int_equal(run(f, "stat"), 2);
	assert_says(f->err, "no command \"stat\"; did you mean \"stats\"?");
	assert_int_equal(run(f, "xyz"), 2);
	assert_says(f->err, "no command \"xyz\"; kvctl help lists");
	assert_int_equal(run(f, "--json", "stats"), 2);
	assert_says(f->err, "comes first");
	assert_int_equal(run(f, "help", "stats"), 0);
	assert_says(f->out, "--watch");
	assert_int_equal(run(f, "help"), 0);
	assert_int_equal(run(f, "stats", "--help"), 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_served_pool_is_a_page_of_80_columns),
		test(what_is_lost_or_not_used_is_told),
		test(how_far_the_pool_can_grow_is_told),
		test(what_restores_cost_and_what_was_not_written_is_on_the_page),
		test(what_more_memory_would_buy_is_on_the_page),
		test(what_more_memory_would_buy_is_told_by_a_pool_whose_daemon_is_gone),
		test(of_a_store_the_curve_counts_what_blocks_take_there),
		test(a_curve_never_finds_more_than_all),
		test(the_balance_of_a_namespace_is_shown_and_judged),
		test(json_has_every_counter_by_its_name),
		test(a_daemon_that_is_gone_does_not_serve_however_young_its_heartbeat),
		test(a_silent_daemon_is_told_with_its_age_and_pid),
		test(a_pool_of_another_boot_is_dead_whatever_its_heartbeat),
		test(start_and_stop_are_told),
		test(a_copy_that_never_holds_still_is_marked_and_comes_at_once),
		test(a_daemon_that_changes_all_the_time_delays_nobody),
		test(a_hundred_at_once_are_all_answered),
		test(another_layout_is_refused_with_both_versions),
		test(who_has_how_much_of_a_quota_is_shown_where_there_is_one),
		test(counters_of_another_minor_version_are_read_as_far_as_they_go),
		test(another_byte_order_or_magic_or_size_is_refused),
		test(objects_cut_short_are_refused_without_a_crash),
		test(rows_said_to_lie_outside_are_refused),
		test(links_and_fifos_are_not_followed),
		test(of_two_pools_at_a_socket_the_one_that_beats_is_shown),
		test(a_pool_is_found_by_its_name),
		test(no_pool_is_a_short_message_with_the_others_named),
		test(a_closed_pipe_and_a_full_disk_end_it_without_a_crash),
		test(watch_comes_again_and_ends_with_the_pool),
		test(what_clients_say_of_themselves_cannot_steer_a_terminal),
		test(namespaces_of_one_name_are_told_apart),
		test(namespaces_are_listed_with_what_they_are),
		test(wrong_words_are_refused_with_a_hint),
	};

	return cmocka_run_group_tests_name("kvctl stats", tests, NULL, NULL);
}
