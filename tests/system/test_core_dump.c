/*
 * test_core_dump.c - what a core dump of the daemon would hold: no byte of anybody's block, wherever the block has been
 *
 * All memory that VmFlags in smaps does not leave out of a core dump is searched for what the blocks consist of:
 * before, it lay in shared memory, in what was packed for the disk and unpacked from there, in what a scan or the
 * scrubber read.
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trial.h"

#define N 100u /* blocks, half as many again as there is memory for */
#define PIECE (1u << 20)
#define MARKS_BYTES 24u
#define KEY_LETTER 'K'

/* What no program has in it by itself; nor this one, as it is. */
static const char marks[MARKS_BYTES + 1] = "\x1f\x93kvpool: prompt \xd7 secret";

/* Half of a block is noise, so that nothing is gained from making letters shorter: what zstd packs is as it was. */
static void block_fill(char *to, uint64_t k)
{
	uint64_t x = k * 0x9e3779b97f4a7c15u + 1;

	memset(to, 0, TRIAL_BLOCK);
	for (unsigned i = 0; i < TRIAL_BLOCK / 2; i++) {
		x ^= x << 13;
		x ^= x >> 7;
		x ^= x << 17;
		to[i] = (char)x;
	}
	memcpy(to + 1000 + k, marks, MARKS_BYTES);
	memcpy(to + TRIAL_BLOCK / 2 - 2000, marks, MARKS_BYTES);
}

static void put_all(struct trial *t)
{
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_block_ref block;
		struct kvp_publish_item item = {
			.key = wire_key(k), .block = &block, .used_tokens = TRIAL_TOKENS, .used_bytes = TRIAL_BLOCK};
		uint8_t result = 0;

		assert_int_equal(kvp_reserve(t->ns, 1, 0, kvp_deadline_ms(20000), &block), 1);
		block_fill(block.data, k);
		kvp_publish(t->ns, &item, 1, &result);
		assert_int_equal(result, KVP_PUB_STORED);
		kvp_abandon(&block, 1);
	}
}

static void get_all(struct trial *t)
{
	char *bytes = malloc(TRIAL_BLOCK);

	assert_non_null(bytes);
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		struct kvp_view view;

		assert_int_equal(kvp_acquire(t->ns, &key, 1, 0, kvp_deadline_ms(20000), &view), 1);
		block_fill(bytes, k);
		assert_memory_equal(view.data, bytes, TRIAL_BLOCK);
		kvp_release(&view, 1);
	}
	free(bytes);
}

struct search {
	int mem;
	const char *what;
	size_t n;
	unsigned n_found;
	uint64_t searched, left_out;
	char where[360];
};

/* Pieces overlap, so that nothing is missed between two of them. */
static void search_range(struct search *s, uint64_t from, uint64_t to, const char *name)
{
	static char piece[PIECE];

	for (uint64_t at = from; at < to; at += PIECE - s->n) {
		ssize_t n = pread(s->mem, piece, to - at < PIECE ? to - at : PIECE, (off_t)at);

		if (n <= 0)
			return; /* went meanwhile, or is none of its own ([vvar]) */
		if (memmem(piece, (size_t)n, s->what, s->n)) {
			s->n_found++;
			snprintf(s->where, sizeof(s->where), "%" PRIx64 "-%" PRIx64 " %s", from, to, name);
			return;
		}
		if (at + PIECE >= to)
			return;
	}
}

static void search_dumped(struct search *s, pid_t pid)
{
	uint64_t from = 0, to = 0, first, end;
	char path[64], line[600], name[300] = "";
	FILE *smaps;

	snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
	s->mem = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(s->mem >= 0);
	snprintf(path, sizeof(path), "/proc/%d/smaps", (int)pid);
	smaps = fopen(path, "re");
	assert_non_null(smaps);
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %*s %299[^\n]", &first, &end, name) >= 2) {
			from = first;
			to = end;
			continue;
		}
		if (strncmp(line, "VmFlags:", 8) != 0)
			continue;
		if (strstr(line, " dd")) {
			s->left_out += to - from;
		} else if (strstr(line, " rd")) {
			s->searched += to - from;
			search_range(s, from, to, name);
		}
		name[0] = 0;
	}
	fclose(smaps);
	close(s->mem);
}

static void holds_none(struct trial *t, const char *what, size_t n, const char *when)
{
	struct search s = {.what = what, .n = n};

	search_dumped(&s, t->host.pid);
	assert_true(s.searched > 1 << 20); /* it was looked for */
	assert_true(s.left_out >= 4 << 20); /* the pool, for one */
	if (s.n_found)
		fail_msg("%s, a core dump of the daemon would hold it in %u mappings, as in %s", when, s.n_found,
			s.where);
}

static void no_byte_of_a_block_would_be_in_it(const char *compress, const char *key_file)
{
	static const char key[33] = {[0 ... 31] = KEY_LETTER};
	struct trial t;

	trial_given(&t, geteuid(), "4M", "64M");
	trial_option(&t, "--spill-compress", compress);
	if (key_file)
		trial_option(&t, "--spill-key-file", key_file);
	trial_start(&t);
	trial_attach(&t);
	put_all(&t);
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "drain"), 0);
	holds_none(&t, marks, MARKS_BYTES, "when all was written to disk");
	get_all(&t);
	holds_none(&t, marks, MARKS_BYTES, "when all was read from there");
	trial_reboot(&t);
	holds_none(&t, marks, MARKS_BYTES, "when the store was scanned");
	get_all(&t);
	assert_int_equal(TRIAL_KVCTL(&t, NULL, 0, "store", "scrub"), 0);
	for (unsigned i = 0; i < 1000 && !atomic_load(&t.host.stats->counters.spill_scrub_bytes); i++)
		wire_sleep_ms(20);
	assert_true(atomic_load(&t.host.stats->counters.spill_scrub_bytes) > 0);
	holds_none(&t, marks, MARKS_BYTES, "when the store was scrubbed");
	if (key_file)
		holds_none(&t, key, 32, "the key of the store:");
	assert_true(trial_end(&t));
}

static void no_byte_of_a_block_that_goes_to_disk_is_in_a_core_dump(void **state)
{
	(void)state;
	no_byte_of_a_block_would_be_in_it("none", NULL);
}

static void no_byte_of_a_block_that_was_packed_is_in_a_core_dump(void **state)
{
	(void)state;
	no_byte_of_a_block_would_be_in_it("zstd", NULL);
}

static void no_byte_of_a_block_that_was_encrypted_is_in_a_core_dump_nor_the_key(void **state)
{
	char path[] = "/tmp/kvpool-test-key-XXXXXX";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	for (unsigned i = 0; i < 32; i++)
		assert_int_equal(write(fd, (char[]){KEY_LETTER}, 1), 1);
	assert_int_equal(fchmod(fd, 0400), 0);
	close(fd);
	no_byte_of_a_block_would_be_in_it("zstd", path);
	unlink(path);
}

/* Else a search that looks nowhere would find nothing too. */
static void what_is_in_memory_is_found(void **state)
{
	char *here = strdup("found?");
	struct search s = {.what = here, .n = strlen(here)};

	(void)state;
	search_dumped(&s, getpid());
	assert_true(s.n_found > 0);
	free(here);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_in_memory_is_found),
		cmocka_unit_test(no_byte_of_a_block_that_goes_to_disk_is_in_a_core_dump),
		cmocka_unit_test(no_byte_of_a_block_that_was_packed_is_in_a_core_dump),
		cmocka_unit_test(no_byte_of_a_block_that_was_encrypted_is_in_a_core_dump_nor_the_key),
	};

	return cmocka_run_group_tests_name("core dump", tests, NULL, NULL);
}
