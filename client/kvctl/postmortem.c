/* postmortem.c - see postmortem.h.  All of it was written by a program that then failed: bounds first. */
#include "postmortem.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "quantity.h"
#include "report.h"

#define WHEN_ROOM 40

/* The words of struct kvp_crash, checked; n_frames counts those inside the program. */
struct crash {
	bool there;
	struct kvp_crash words;
	char build_id[2 * KVP_BUILD_ID_MAX + 1];
	uint64_t frames[KVP_CRASH_FRAMES];
	uint32_t n_frames;
};

struct in_hand {
	uint64_t granted, restoring, taken, held, published;
	unsigned holders;
};

static void crash_read(struct crash *crash, const struct pool *pool)
{
	char path[POOL_PATH_MAX];
	struct stat st;
	int fd;

	memset(crash, 0, sizeof(*crash));
	pool_path(pool, path, "header");
	fd = pool_object_open(pool, path, &st);
	if (fd < 0)
		return;
	crash->there = pool_read(fd, &crash->words, sizeof(crash->words), KVP_CRASH_OFF) == 0 &&
		       atomic_load(&crash->words.epoch) != 0;
	close(fd);
	if (!crash->there)
		return;
	for (uint32_t i = 0; i < crash->words.n_frames && i < KVP_CRASH_FRAMES; i++)
		if (crash->words.frames[i] != UINT64_MAX)
			crash->frames[crash->n_frames++] = crash->words.frames[i];
	for (uint32_t i = 0; i < crash->words.build_id_bytes && i < KVP_BUILD_ID_MAX; i++)
		snprintf(crash->build_id + 2 * (size_t)i, 3, "%02x", crash->words.build_id[i]);
}

static const char *when_text(char text[WHEN_ROOM], time_t when)
{
	struct tm tm;

	if (!gmtime_r(&when, &tm) || !strftime(text, WHEN_ROOM, "%Y-%m-%d %H:%M:%S UTC", &tm))
		snprintf(text, WHEN_ROOM, "?");
	return text;
}

static struct in_hand in_hand_of(const struct snapshot *snapshot)
{
	struct in_hand hand = {0};

	for (unsigned i = 0; i < snapshot->n_ns; i++) {
		hand.granted += C(snapshot->ns[i].counters.granted);
		hand.restoring += C(snapshot->ns[i].counters.restoring);
		hand.taken += C(snapshot->ns[i].counters.taken);
		hand.held += C(snapshot->ns[i].counters.held);
		hand.published += C(snapshot->ns[i].counters.published);
	}
	for (unsigned i = 0; i < snapshot->n_sessions; i++)
		hand.holders += C(snapshot->sessions[i].pins) != 0;
	return hand;
}

static const char *end_text(const struct pool *pool, const struct crash *crash)
{
	if (pool->life == POOL_STOPPED)
		return "it stopped in order";
	if (pool->life == POOL_SERVING || pool->life == POOL_STARTING)
		return "it lives: what follows is of an earlier one, if of any";
	if (pool->pid_state)
		return "it is there and does not move: stopped by a signal, hung, or waiting for a disk";
	return crash->there && crash->words.pid == pool->header.daemon_pid
		       ? "it crashed"
		       : "it was killed: SIGKILL, or the kernel for want of memory (journalctl -k)";
}

static void print_crash(const struct crash *crash)
{
	char when[WHEN_ROOM];

	if (!crash->there) {
		printf("crash   none was recorded in this pool; SIGKILL leaves no word\n");
		return;
	}
	printf("crash   signal %d (%s) of pid %d at %s%s\n", crash->words.signal, strsignal(crash->words.signal),
		crash->words.pid, when_text(when, (time_t)crash->words.when_s),
		crash->words.near_null ? ", at an address near 0" : "");
	printf("        build id %s\n        addr2line -f -i -e kvpoold",
		crash->build_id[0] ? crash->build_id : "unknown");
	for (uint32_t i = 0; i < crash->n_frames; i++)
		printf("%s0x%" PRIx64, i % 6 ? " " : " \\\n          ", crash->frames[i]);
	printf("\n        core: coredumpctl info %d; memory of the pool is not in it\n", crash->words.pid);
}

void postmortem_print(const struct pool *pool, const struct snapshot *snapshot)
{
	const struct kvp_counters *c = &snapshot->head.counters;
	struct in_hand hand = in_hand_of(snapshot);
	struct crash crash;
	char when[WHEN_ROOM], life[160];

	crash_read(&crash, pool);
	printf("POST MORTEM of pool %s, %s\n", pool->name, pool->uuid);
	printf("daemon  %s\n        %s\n", pool_life_text(pool, life, sizeof(life)), end_text(pool, &crash));
	if (pool->heartbeat_age_s >= 0)
		printf("        last heartbeat %s; starts of this pool: %" PRIu64 "\n",
			when_text(when, time(NULL) - (time_t)pool->heartbeat_age_s), (uint64_t)C(c->starts));
	print_crash(&crash);
	printf("in hand %" PRIu64 " blocks granted, %" PRIu64 " arriving, %" PRIu64 " set aside%s\n", hand.granted,
		hand.restoring, hand.taken, snapshot->version & 1 ? "; counters were being changed" : "");
	printf("kept    %" PRIu64 " blocks in memory, %" PRIu64 " of them held by %u clients\n", hand.published,
		hand.held, hand.holders);
	printf("loop    longest turn %.1f ms; %" PRIu64 " log lines lost\n", (double)C(c->loop_max_us) / 1000,
		(uint64_t)C(c->log_lines_lost));
	if (C(c->spill_last_errno))
		printf("store   last error %d (%s)\n", (int)C(c->spill_last_errno),
			strerror((int)C(c->spill_last_errno)));
	printf("further journalctl -u kvpoold; kvctl check; kvctl support-bundle packs all of it\n\n");
}

json_t *postmortem_json(const struct pool *pool, const struct snapshot *snapshot)
{
	struct in_hand hand = in_hand_of(snapshot);
	json_t *json = json_object(), *frames = json_array();
	struct crash crash;

	crash_read(&crash, pool);
	json_object_set_new(json, "end", json_string(end_text(pool, &crash)));
	json_object_set_new(json, "crashed", json_boolean(crash.there));
	for (uint32_t i = 0; i < crash.n_frames; i++)
		json_array_append_new(frames, json_u64(crash.frames[i]));
	json_object_set_new(json, "frames", frames);
	json_object_set_new(json, "signal", crash.there ? json_integer(crash.words.signal) : json_null());
	json_object_set_new(json, "pid", crash.there ? json_integer(crash.words.pid) : json_null());
	json_object_set_new(json, "when", crash.there ? json_u64(crash.words.when_s) : json_null());
	json_object_set_new(json, "build_id", json_string(crash.build_id));
	json_object_set_new(json, "granted", json_u64(hand.granted));
	json_object_set_new(json, "restoring", json_u64(hand.restoring));
	json_object_set_new(json, "taken", json_u64(hand.taken));
	json_object_set_new(json, "published", json_u64(hand.published));
	json_object_set_new(json, "held", json_u64(hand.held));
	return json;
}
