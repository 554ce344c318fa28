/*
 * test_spill_encrypted.c - a spill store with a key: what lies there tells nothing, and only what was encrypted for
 * that place in that store is believed
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <unistd.h>

#include "spill_fixture.h"

#define MIB (1ull << 20)
#define SIZE 500000 /* 8 to a segment of 4 MiB; no whole pages */
#define BLOCKS_HERE 10

static struct spill_keys first_key, second_key, both_keys;

static struct spill_keys keys_of(const char *letters)
{
	struct spill_keys keys = {.n = (unsigned)strlen(letters)};

	for (unsigned i = 0; i < keys.n; i++) {
		memset(keys.keys[i].bytes, letters[i], SPILL_KEY_BYTES);
		spill_key_set_id(&keys.keys[i]);
	}
	return keys;
}

static int setup(void **state)
{
	struct fixture *f = fixture_new(*state, 64 * MIB, 4 * MIB);

	assert_true(sodium_init() >= 0);
	first_key = keys_of("1");
	second_key = keys_of("2");
	both_keys = keys_of("21");
	f->opts.keys = &first_key;
	*state = f;
	return fixture_open(f);
}

static int teardown(void **state)
{
	fixture_free(*state);
	return 0;
}

static int reopen_with(struct fixture *f, const struct spill_keys *keys)
{
	fixture_close(f);
	f->opts.keys = keys;
	return fixture_open(f);
}

/* The file, all of it. */
static uint8_t *file_read(const struct fixture *f, size_t *n)
{
	FILE *file = fopen(f->path, "re");
	uint8_t *bytes;

	assert_non_null(file);
	*n = file_bytes(f, NULL);
	bytes = malloc(*n);
	assert_int_equal(fread(bytes, 1, *n, file), *n);
	fclose(file);
	return bytes;
}

static void file_write(const struct fixture *f, uint64_t off, const void *bytes, size_t n)
{
	int fd = open(f->path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, bytes, n, (off_t)off), n);
	fsync(fd);
	close(fd);
}

static void sign(uint8_t *page)
{
	spill_page_end(page);
}

static void nothing_that_was_written_lies_there_in_plain(void **state)
{
	struct fixture *f = *state;
	struct spill_kill kill = {.ns_id = NS_ID, .key.w = {0x1122334455667788u, 0x99aabbccddeeff01u}};
	int res = 1;
	uint8_t *bytes;
	size_t n;

	for (unsigned k = 0; k < BLOCKS_HERE; k++) /* two segments: one is sealed at once, one by the stop */
		assert_int_equal(put(f, k, SIZE), 0);
	assert_int_equal(spill_kill(f->spill, &kill, 1, flush_done, &res), 0);
	settle(f);
	assert_int_equal(res, 0);
	fixture_close(f);
	bytes = file_read(f, &n);
	assert_null(memmem(bytes, n, &kill.key, sizeof(kill.key)));
	for (unsigned k = 0; k < BLOCKS_HERE; k++) {
		struct block b = {.k = k, .bytes = SIZE};
		struct spill_record record = block_record(&b);

		block_fill(&b, f->out);
		for (unsigned at = 0; at < SIZE - 32; at += 49999)
			assert_null(memmem(bytes, n, f->out + at, 32));
		assert_null(memmem(bytes, n, &record.key, sizeof(record.key)));
		assert_null(memmem(bytes, n, &record.key.w[1], sizeof(record.key.w[1])));
	}
	free(bytes);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, BLOCKS_HERE);
	assert_int_equal(f->n_unknown, 0);
	for (unsigned k = 0; k < BLOCKS_HERE; k++)
		assert_int_equal(get(f, k), 0);
	assert_true(stats_of(f).encrypted);
	assert_true(store_adds_up(f));
}

/* Memory behind a block may be another one's. */
static void no_byte_behind_a_block_goes_to_the_disk(void **state)
{
	struct fixture *f = *state;
	struct block *b = &f->blocks[0];
	struct spill_record record;
	uint8_t *bytes;
	size_t n;

	*b = (struct block){.k = 0, .bytes = SIZE};
	record = block_record(b);
	block_fill(b, f->out);
	memset(f->out + SIZE, 'S', SPILL_PAGE);
	assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
	settle(f);
	bytes = file_read(f, &n);
	assert_null(memmem(bytes, n, "SSSSSSSS", 8));
	free(bytes);
	assert_int_equal(get(f, 0), 0);
}

static void a_key_that_is_missing_or_another_ones_is_told_and_the_store_left_as_it_is(void **state)
{
	struct fixture *f = *state;
	char id[32];

	assert_int_equal(put(f, 0, SIZE), 0);
	snprintf(id, sizeof(id), "%016" PRIx64, first_key.keys[0].id);
	assert_int_equal(reopen_with(f, NULL), -EKEYREJECTED);
	assert_non_null(strstr(f->message, id));
	assert_non_null(strstr(f->message, "spill-key-file"));
	assert_int_equal(reopen_with(f, &second_key), -EKEYREJECTED);
	assert_non_null(strstr(f->message, id));
	assert_non_null(strstr(f->message, "if none of it is wanted, remove it"));
	assert_int_equal(reopen_with(f, &first_key), 0);
	assert_int_equal(f->n_found, 1);
	assert_int_equal(get(f, 0), 0);
}

static void a_store_in_plain_is_not_opened_with_a_key(void **state)
{
	struct fixture *f = *state;

	fixture_close(f);
	unlink(f->path);
	f->opts.keys = NULL;
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(put(f, 0, SIZE), 0);
	assert_false(stats_of(f).encrypted);
	assert_int_equal(reopen_with(f, &first_key), -EKEYREJECTED);
	assert_non_null(strstr(f->message, "was written without a key: start without spill-key-file, or"));
	assert_int_equal(reopen_with(f, NULL), 0);
	assert_int_equal(get(f, 0), 0);
}

/* As kvctl store drop leaves one. */
static void a_store_with_nothing_in_it_takes_any_key_or_none(void **state)
{
	static const struct spill_keys *const all[] = {NULL, &second_key, &first_key};
	struct fixture *f = *state;

	assert_int_equal(put(f, 0, SIZE), 0);
	for (unsigned i = 0; i < 3; i++) {
		struct spill_super super;

		fixture_close(f);
		super = (struct spill_super){
			.segment_bytes = 4 * MIB, .start = 10 + i, .n_keys = i != 1, .unit = SPILL_PAGE};
		super.key_ids[0] = first_key.keys[0].id;
		spill_super_encode(f->in, &super);
		file_write(f, super.start % 2 * SPILL_PAGE, f->in, SPILL_PAGE);
		assert_int_equal(truncate(f->path, SPILL_SUPER_AREA), 0);
		f->opts.keys = all[i];
		/* the same key is no change */
		assert_int_equal(fixture_open(f), i == 0 || i == 1 || all[i] == &first_key ? 0 : -EKEYREJECTED);
		assert_int_equal(f->n_found, 0);
		assert_int_equal(put(f, 0, SIZE), 0);
		assert_int_equal(get(f, 0), 0);
	}
}

/* Who can write to the drive can put every checksum right. */
static void whatever_is_changed_in_a_record_is_a_miss_and_counted(void **state)
{
	static const unsigned spots[] = {
		48, 56, 88, 96, 100, 104, 132, 136, 1160, 1168, 1200, 2000, 3300, 4008, 4050, 4072};
	struct fixture *f = *state;
	_Alignas(8) uint8_t page[SPILL_PAGE];
	unsigned n = sizeof(spots) / sizeof(spots[0]);
	size_t bytes;
	uint8_t *was;

	for (unsigned i = 0; i <= n; i++)
		assert_int_equal(put(f, i, 20000), 0);
	was = file_read(f, &bytes);
	for (unsigned i = 0; i < n; i++) {
		uint64_t off = block_off(f, i);

		assert_int_equal(get(f, i), 0);
		memcpy(page, was + off, SPILL_PAGE);
		page[spots[i]] ^= 4;
		sign(page);
		file_write(f, off, page, SPILL_PAGE);
		assert_int_equal(get(f, i), -EBADMSG);
		assert_int_equal(f->blocks[i].place, 0);
	}
	/* its data, with a checksum that agrees */
	memcpy(page, was + block_off(f, n), SPILL_PAGE);
	was[block_off(f, n) + SPILL_PAGE + 5000] ^= 1;
	((struct spill_disk_record *)(void *)page)->data_hash[0] =
		htole64(spill_hash_data(was + block_off(f, n) + SPILL_PAGE, 20000).w[0]);
	((struct spill_disk_record *)(void *)page)->data_hash[1] =
		htole64(spill_hash_data(was + block_off(f, n) + SPILL_PAGE, 20000).w[1]);
	sign(page);
	memcpy(was + block_off(f, n), page, SPILL_PAGE);
	file_write(f, block_off(f, n) + SPILL_PAGE, was + block_off(f, n) + SPILL_PAGE, 20000);
	assert_int_equal(get(f, n), -EBADMSG); /* by its tag, for the header is as it was */
	assert_int_equal(stats_of(f).damaged, n + 1);
	free(was);
	assert_int_equal(fixture_reopen(f), 0);
	assert_true(store_adds_up(f));
}

static void a_record_in_plain_or_from_another_place_is_none(void **state)
{
	struct fixture *f = *state;
	struct spill_spot spot;
	struct spill_record record;
	struct spill_disk_record *disk = (void *)f->in;
	uint64_t off[3];
	size_t n;
	uint8_t *was;

	for (unsigned k = 0; k < 3; k++) {
		assert_int_equal(put(f, k, 20000), 0);
		off[k] = block_off(f, k);
	}
	was = file_read(f, &n);
	/* block 1 as it would lie there in a store without a key: it is found by nobody */
	record = block_record(&f->blocks[1]);
	spot = (struct spill_spot){.uuid = f->spill->file.super.uuid,
		.sequence = spill_page_sequence(was + off[1]),
		.off = off[1],
		.room = 4 * MIB,
		.unit = SPILL_PAGE};
	block_fill(&f->blocks[1], f->out);
	spill_record_encode(f->in, &spot, &record, spill_hash_data(f->out, record.bytes));
	file_write(f, off[1], f->in, SPILL_PAGE);
	file_write(f, off[1] + SPILL_PAGE, f->out, 20000);
	/* block 0's record where block 2's was, and saying so */
	memcpy(f->in, was + off[0], SPILL_PAGE);
	disk->off = htole64(off[2]);
	sign(f->in);
	file_write(f, off[2], f->in, SPILL_PAGE);
	file_write(f, off[2] + SPILL_PAGE, was + off[0] + SPILL_PAGE, spill_pages(20000));
	free(was);
	assert_int_equal(get(f, 1), -EBADMSG);
	assert_int_equal(get(f, 2), -EBADMSG);
	assert_int_equal(get(f, 0), 0);
	f->spill->segments[0].sealed = false;
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(f->n_found, 1);
	assert_int_equal(f->n_unknown, 0);
}

static void headers_are_read_where_the_seal_does_not_stand(void **state)
{
	struct fixture *f = *state;
	uint64_t seal;

	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	seal = segment_off(f->spill, 0) + 4 * MIB - SPILL_PAGE;
	fixture_close(f);
	memset(f->in, 0, SPILL_PAGE);
	file_write(f, seal, f->in, SPILL_PAGE);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 4);
	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(get(f, k), 0);
}

/* Entries of a seal decide what is believed to be there: changed ones are none. */
static void a_seal_that_was_changed_is_none(void **state)
{
	struct fixture *f = *state;
	struct spill_disk_seal *seal = (void *)f->in;
	uint64_t off;
	uint8_t *was;
	size_t n;

	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	off = segment_off(f->spill, 0) + 4 * MIB - SPILL_PAGE;
	fixture_close(f);
	was = file_read(f, &n);
	memcpy(f->in, was + off, SPILL_PAGE);
	assert_int_equal(le64toh(seal->magic), SPILL_SEAL_MAGIC);
	assert_true(spill_page_encrypted(f->in));
	was[off - SPILL_PAGE + 8] ^= 1; /* the key of the first one */
	seal->index_hash[0] = htole64(spill_hash_data(was + off - SPILL_PAGE, SPILL_PAGE).w[0]);
	seal->index_hash[1] = htole64(spill_hash_data(was + off - SPILL_PAGE, SPILL_PAGE).w[1]);
	sign(f->in);
	file_write(f, off - SPILL_PAGE, was + off - SPILL_PAGE, SPILL_PAGE);
	file_write(f, off, f->in, SPILL_PAGE);
	free(was);
	assert_int_equal(fixture_open(f), 0);
	assert_int_equal(f->n_found, 4);
	assert_int_equal(f->n_unknown, 0);
	assert_false(f->spill->segments[0].sealed);
}

/* Of one block, over a stop, a start and a copy that was put back: what lies there is never the same twice. */
static void the_same_bytes_at_the_same_place_never_look_the_same(void **state)
{
	struct fixture *f = *state;
	uint8_t *backup, *now[4];
	uint64_t off;
	size_t n, n_now;

	backup = file_read(f, &n);
	for (unsigned i = 0; i < 4; i++) {
		fixture_close(f);
		file_write(f, 0, backup, n);
		assert_int_equal(truncate(f->path, (off_t)n), 0);
		assert_int_equal(fixture_open(f), 0);
		assert_int_equal(put(f, 0, SIZE), 0);
		off = block_off(f, 0);
		now[i] = file_read(f, &n_now);
		for (unsigned k = 0; k < i; k++) {
			/* the same store, start, segment and place */
			assert_int_equal(spill_page_sequence(now[i] + off), spill_page_sequence(now[k] + off));
			assert_memory_not_equal(now[i] + off + 1168, now[k] + off + 1168, SPILL_SALT);
			for (unsigned at = 0; at < SIZE - 16; at += 4999)
				assert_memory_not_equal(
					now[i] + off + SPILL_PAGE + at, now[k] + off + SPILL_PAGE + at, 16);
		}
	}
	for (unsigned i = 0; i < 4; i++)
		free(now[i]);
	free(backup);
}

/* ---- another key ---- */

static void the_second_key_reads_what_was_written_with_it_and_the_first_one_writes(void **state)
{
	struct fixture *f = *state;
	uint32_t i, k;

	for (unsigned n = 0; n < 3; n++)
		assert_int_equal(put(f, n, SIZE), 0);
	assert_int_equal(reopen_with(f, &both_keys), 0);
	assert_int_equal(f->n_found, 3);
	assert_int_equal(put(f, 3, SIZE), 0);
	for (unsigned n = 0; n < 4; n++)
		assert_int_equal(get(f, n), 0);
	assert_non_null(segment_find(f->spill, f->blocks[0].place, &i));
	assert_non_null(segment_find(f->spill, f->blocks[3].place, &k));
	assert_int_not_equal(i, k); /* all in a segment is of one key */
	assert_int_equal(
		reopen_with(f, &second_key), -EKEYREJECTED); /* the other one is needed as long as that is there */
	assert_int_equal(reopen_with(f, &first_key), -EKEYREJECTED);
	assert_int_equal(reopen_with(f, &both_keys), 0);
	assert_int_equal(f->n_found, 4);
	for (unsigned n = 0; n < 4; n++)
		assert_int_equal(get(f, n), 0);
}

static void a_key_of_which_nothing_is_left_is_said_and_not_asked_for_again(void **state)
{
	struct fixture *f = *state;
	struct log_catch lines;
	char text[96];

	snprintf(text, sizeof(text), "nothing is left in it that needs key %016" PRIx64, first_key.keys[0].id);
	assert_int_equal(put(f, 0, SIZE), 0);
	lines = log_catch();
	assert_int_equal(reopen_with(f, &both_keys), 0);
	assert_int_equal(log_lines(&lines, text), 0);
	fclose(lines.lines);
	for (unsigned k = 0; k < 140; k++) /* once round the log */
		assert_int_equal(put(f, k % 5, SIZE), 0);
	lines = log_catch();
	assert_int_equal(reopen_with(f, &both_keys), 0);
	assert_int_equal(log_lines(&lines, text), 1);
	fclose(lines.lines);
	assert_int_equal(reopen_with(f, &second_key), 0);
	for (unsigned k = 0; k < 5; k++)
		assert_int_equal(get(f, k), 0);
}

/* A kill leaves a segment without a seal: who starts with a new key seals it with that of its records. */
static void a_segment_is_sealed_with_the_key_of_its_records(void **state)
{
	struct fixture *f = *state;
	uint64_t seal = segment_off(f->spill, 0) + 4 * MIB - SPILL_PAGE;

	for (unsigned k = 0; k < 4; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	fixture_close(f);
	memset(f->in, 0, SPILL_PAGE);
	file_write(f, seal, f->in, SPILL_PAGE);
	for (unsigned i = 0; i < 3; i++) { /* sealed by the first, read by the others */
		assert_int_equal(reopen_with(f, &both_keys), 0);
		assert_int_equal(f->n_found, 4);
		settle(f);
		assert_int_equal(f->spill->file.super.n_keys, 2);
	}
	assert_true(f->spill->segments[0].sealed);
	assert_int_equal(get(f, 2), 0);
}

/* ---- beside all else ---- */

static struct spill_layers layers;
static uint32_t last_told, most;
static struct fixture *told_fixture;

static const struct spill_layers *layers_of_ns(void *owner, uint64_t ns_id)
{
	(void)owner;
	return ns_id == NS_ID ? &layers : NULL;
}

static void came(void *owner, void *reader, uint32_t n)
{
	struct block part = *(const struct block *)reader;

	(void)owner;
	assert_true(n > last_told && n <= most);
	part.bytes = layers.ends[n - 1];
	assert_true(block_is(&part, told_fixture->in));
	last_told = n;
}

static void layers_are_told_of_as_they_come_and_one_that_was_changed_never(void **state)
{
	struct fixture *f = told_fixture = *state;
	uint64_t off;
	uint8_t byte;
	size_t n;
	uint8_t *was;

	layers.n = 12;
	for (uint32_t i = 0; i < layers.n; i++)
		layers.ends[i] = (i + 1) * 100000ull;
	f->opts.layers = layers_of_ns;
	f->opts.layers_came = came;
	last_told = 0;
	most = layers.n - 1;
	assert_int_equal(fixture_reopen(f), 0);
	assert_int_equal(put(f, 0, layers.ends[11]), 0);
	assert_int_equal(put(f, 1, 100000), 0); /* not all of its layers: it is one */
	for (unsigned i = 0; i < 20; i++) {
		last_told = 0;
		assert_int_equal(get(f, 0), 0);
	}
	assert_int_equal(get(f, 1), 0);
	off = data_off(f, 0);
	was = file_read(f, &n);
	byte = was[off + 750000] ^ 1;
	free(was);
	file_write(f, off + 750000, &byte, 1);
	last_told = 0;
	most = 7;
	assert_int_equal(get(f, 0), -EBADMSG);
	f->opts.layers = NULL; /* who asks for none reads it as well */
	f->spill->opts.layers = NULL;
	assert_int_equal(put(f, 2, layers.ends[11]), 0);
	assert_int_equal(get(f, 2), 0);
}

static void packed_bytes_are_encrypted_once_though_they_are_asked_for_twice(void **state)
{
	struct fixture *f = *state;
	struct spill_record record;
	struct block *b;

	for (unsigned k = 0; k < 3; k++) {
		b = &f->blocks[k];
		*b = (struct block){.k = k, .bytes = SIZE};
		record = block_record(b);
		record.codec = k < 2 ? SPILL_ZSTD : SPILL_SAMPLE;
		block_fill(b, f->out);
		if (k == 1) /* O_DIRECT is refused only now: all goes once more, through the page cache */
			fault_arm("io.write=-EINVAL@1");
		assert_int_equal(spill_write(f->spill, &record, f->out, b, block_done, b), 0);
		settle(f);
		assert_int_equal(b->res, 0);
	}
	for (unsigned i = 0; i < 2; i++) {
		for (unsigned k = 0; k < 3; k++)
			assert_int_equal(get(f, k), 0);
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->n_found, 3);
	}
}

static void a_deleted_key_stays_deleted(void **state)
{
	struct fixture *f = *state;
	struct spill_kill kill;
	int res = 1;

	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	kill = (struct spill_kill){.ns_id = NS_ID, .key = block_record(&f->blocks[1]).key};
	assert_int_equal(spill_kill(f->spill, &kill, 1, flush_done, &res), 0);
	settle(f);
	assert_int_equal(res, 0);
	for (unsigned i = 0; i < 2; i++) {
		assert_int_equal(fixture_reopen(f), 0);
		assert_int_equal(f->n_found, 2);
		assert_int_equal(f->blocks[1].n_found, 0);
	}
}

static void a_scrub_passes_over_what_is_right_and_finds_what_is_not(void **state)
{
	struct fixture *f = *state;
	uint8_t byte = 0x77;

	for (unsigned k = 0; k < 3; k++)
		assert_int_equal(put(f, k, SIZE), 0);
	spill_scrub_now(f->spill, 64 * MIB);
	while (io_in_flight(f->spill->io))
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	assert_int_equal(stats_of(f).scrub_passes, 1);
	assert_int_equal(stats_of(f).damaged, 0);
	file_write(f, block_off(f, 1) + 2 * SPILL_PAGE, &byte, 1);
	byte++;
	file_write(f, block_off(f, 1) + 2 * SPILL_PAGE + 1, &byte, 1);
	spill_scrub_now(f->spill, 64 * MIB);
	while (io_in_flight(f->spill->io))
		spill_wait(f->spill, loop_now() + SPILL_SECOND);
	assert_int_equal(stats_of(f).scrub_damaged, 1);
	assert_int_equal(f->blocks[1].n_gone, 1);
}

static void what_cannot_be_encrypted_is_not_written(void **state)
{
	struct fixture *f = *state;
	uint8_t *bytes;
	size_t n;

	assert_int_equal(put(f, 0, SIZE), 0);
	f->spill->worker_cipher.keys = &second_key; /* whose id is told, and which is then not to be found */
	second_key.n = 0;
	assert_int_equal(put(f, 1, SIZE), -EIO);
	bytes = file_read(f, &n);
	assert_null(memmem(bytes, n, f->out + 1000, 32));
	free(bytes);
	assert_int_equal(f->blocks[1].place, 0);
}

/* ---- the file of a key ---- */

static int key_from(
	const struct fixture *f, const void *text, size_t n, mode_t mode, struct spill_key *key, char why[256])
{
	char path[96];
	FILE *file;

	snprintf(path, sizeof(path), "%s/key", f->dir);
	unlink(path);
	file = fopen(path, "we");
	assert_non_null(file);
	assert_int_equal(fwrite(text, 1, n, file), n);
	fclose(file);
	assert_int_equal(chmod(path, mode), 0);
	why[0] = 0;
	return spill_key_read(path, geteuid(), key, why);
}

static void a_key_file_is_32_bytes_or_64_digits_and_nobody_elses(void **state)
{
	static const char digits[] = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n";
	struct fixture *f = *state;
	struct spill_key key, other;
	uint8_t bytes[33];
	char why[256];

	assert_int_equal(sodium_hex2bin(bytes, 32, digits, 64, NULL, NULL, NULL), 0);
	assert_int_equal(key_from(f, bytes, 32, 0400, &key, why), 0);
	assert_memory_equal(key.bytes, bytes, 32);
	assert_int_equal(key_from(f, digits, 64, 0600, &other, why), 0);
	assert_int_equal(other.id, key.id);
	assert_int_equal(key_from(f, digits, 65, 0600, &other, why), 0);
	assert_int_equal(other.id, key.id);
	assert_int_equal(key_from(f, digits, 63, 0600, &other, why), -EINVAL);
	assert_non_null(strstr(why, "head -c 32 /dev/urandom >"));
	assert_int_equal(key_from(f, "", 0, 0600, &other, why), -EINVAL);
	assert_int_equal(key_from(f, bytes, 33, 0600, &other, why), -EINVAL);
	memset(bytes, 0, sizeof(bytes));
	assert_int_equal(key_from(f, bytes, 32, 0600, &other, why), -EINVAL); /* of a file that was never filled */
	assert_int_equal(key_from(f, digits, 64, 0644, &other, why), -EPERM);
	assert_non_null(strstr(why, "chmod 0400"));
	assert_int_equal(key_from(f, digits, 64, 0620, &other, why), -EPERM);
	/* a credential of systemd: the mask of its access list stands where a group's bits are */
	assert_int_equal(key_from(f, digits, 64, 0440, &other, why), geteuid() == 0 && getegid() == 0 ? 0 : -EPERM);
	assert_int_equal(spill_key_read(f->dir, geteuid(), &other, why), -EINVAL);
	assert_int_equal(spill_key_read("/nowhere/key", geteuid(), &other, why), -ENOENT);
	if (geteuid() == 0) {
		char path[96];

		assert_int_equal(key_from(f, digits, 64, 0600, &other, why), 0);
		snprintf(path, sizeof(path), "%s/key", f->dir);
		assert_int_equal(chown(path, 12345, 12345), 0);
		assert_int_equal(spill_key_read(path, 0, &other, why), -EPERM);
		assert_non_null(strstr(why, "belongs to uid 12345"));
		assert_int_equal(spill_key_read(path, 12345, &other, why), 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		EACH_WAY(nothing_that_was_written_lies_there_in_plain),
		BY(no_byte_behind_a_block_goes_to_the_disk, with_uring),
		BY(a_key_that_is_missing_or_another_ones_is_told_and_the_store_left_as_it_is, with_uring),
		BY(a_store_in_plain_is_not_opened_with_a_key, with_uring),
		BY(a_store_with_nothing_in_it_takes_any_key_or_none, with_uring),
		BOTH(whatever_is_changed_in_a_record_is_a_miss_and_counted),
		BY(a_record_in_plain_or_from_another_place_is_none, with_uring),
		BY(headers_are_read_where_the_seal_does_not_stand, with_uring),
		BY(a_seal_that_was_changed_is_none, with_uring),
		BY(the_same_bytes_at_the_same_place_never_look_the_same, with_uring),
		BY(the_second_key_reads_what_was_written_with_it_and_the_first_one_writes, with_uring),
		BY(a_key_of_which_nothing_is_left_is_said_and_not_asked_for_again, with_uring),
		BY(a_segment_is_sealed_with_the_key_of_its_records, with_uring),
		EACH_WAY(layers_are_told_of_as_they_come_and_one_that_was_changed_never),
		EACH_WAY(packed_bytes_are_encrypted_once_though_they_are_asked_for_twice),
		BY(a_deleted_key_stays_deleted, with_uring),
		BY(a_scrub_passes_over_what_is_right_and_finds_what_is_not, with_uring),
		BY(what_cannot_be_encrypted_is_not_written, with_uring),
		BY(a_key_file_is_32_bytes_or_64_digits_and_nobody_elses, with_uring),
	};

	return cmocka_run_group_tests_name("spill_encrypted", tests, NULL, NULL);
}
