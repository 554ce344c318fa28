/* test_spill_compress.c - blocks that go to the spill store compressed: as the daemon, or their namespace, says */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include "kvpool_spill.h"
#include "kvpool_stats.h"
#include "trial.h"

#define N 200u /* three times the pool; wire_fill()'s bytes compress well */

static struct trial *given(void **state, const char *compress)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, geteuid(), "4M", "64M");
	trial_option(t, "--spill-compress", compress);
	trial_start(t);
	trial_attach(t);
	*state = t;
	return t;
}

static int setup_zstd(void **state)
{
	given(state, "zstd");
	return 0;
}

static int setup_none(void **state)
{
	given(state, "none");
	return 0;
}

static int setup_auto(void **state)
{
	given(state, "auto");
	return 0;
}

static void put_all(struct kvp_ns *ns)
{
	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
}

static unsigned count_back(struct kvp_ns *ns)
{
	unsigned n = 0;

	for (uint64_t k = 0; k < N; k++) {
		struct kvp_key key = wire_key(k);
		int r = trial_get(ns, &key, k, TRIAL_BLOCK);

		assert_true(r >= 0);
		n += (unsigned)r;
	}
	return n;
}

/* What kvctl says of it; UINT64_MAX: nothing. @part: of the pool ("counters"), or of the namespace. */
static uint64_t counter_of(const struct trial *t, const char *what, const char *name)
{
	static char out[1 << 20];
	char text[80];
	const char *at;

	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), what, "--json"), 0);
	snprintf(text, sizeof(text), "\"%s\": ", name);
	at = strstr(out, text);
	return at ? strtoull(at + strlen(text), NULL, 10) : UINT64_MAX;
}

static void compressed_blocks_come_back_exact_over_kills_and_reboots(void **state)
{
	struct trial *t = *state;

	put_all(t->ns);
	assert_int_equal(count_back(t->ns), N);
	assert_true(counter_of(t, "ns", "packed") >= N - 64);
	trial_detach(t);
	host_kill(&t->host);
	trial_start(t);
	trial_attach(t);
	assert_int_equal(count_back(t->ns), N);
	trial_reboot(t);
	assert_int_equal(count_back(t->ns), N);
}

static void bytes_on_disk_are_what_is_counted_budgeted_and_listed(void **state)
{
	struct trial *t = *state;
	char out[8192];
	uint64_t stored, day;

	put_all(t->ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	stored = counter_of(t, "ns", "packed_stored_bytes");
	assert_int_equal(counter_of(t, "ns", "packed"), N);
	assert_int_equal(counter_of(t, "ns", "packed_bytes"), (uint64_t)N * TRIAL_BLOCK);
	assert_int_equal(counter_of(t, "ns", "pack_state"), 1);
	assert_true(stored < (uint64_t)N * TRIAL_BLOCK / 4);
	day = counter_of(t, "stats", "spill_day_bytes");
	assert_true(day == stored || day < stored); /* midnight may have been in between */
	assert_true(counter_of(t, "stats", "spill_live_bytes") <= stored + N * 4096);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "ns"), 0);
	assert_non_null(strstr(out, "spilled compressed; 200 blocks so far, 12.5 MiB in "));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "list"), 0);
	assert_non_null(strstr(out, "200 records, 12.5 MiB in "));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify"), 0);
	assert_non_null(strstr(out, "200 records"));
	assert_non_null(strstr(out, "0 damaged"));
}

/* The first record's data, and its header with it, so that only unpacking tells. */
static void forge_first_record(const struct trial *t)
{
	uint8_t pages[4 * SPILL_PAGE], super_page[SPILL_PAGE];
	struct spill_super super;
	struct spill_spot spot = {.off = SPILL_SUPER_AREA, .room = UINT32_MAX};
	struct spill_record record = {0};
	struct spill_hash hash;
	char path[160];
	int fd, r = -1;

	snprintf(path, sizeof(path), "%s/" SPILL_STORE_NAME, t->spill);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	for (unsigned copy = 0; copy < 2 && r < 0; copy++) {
		assert_int_equal(pread(fd, super_page, SPILL_PAGE, copy * SPILL_PAGE), SPILL_PAGE);
		r = spill_super_decode(super_page, &super);
	}
	assert_int_equal(r, 0);
	spot.uuid = super.uuid;
	spot.unit = super.unit;
	assert_int_equal(super.unit, SPILL_PAGE); /* as file systems have it */
	assert_int_equal(pread(fd, pages, sizeof(pages), SPILL_SUPER_AREA), sizeof(pages));
	assert_int_equal(spill_segment_decode(pages, &spot), 0);
	spot.off += SPILL_PAGE;
	assert_int_equal(spill_record_decode(pages + SPILL_PAGE, &spot, &record, &hash), 0);
	assert_int_equal(record.codec, SPILL_ZSTD);
	assert_true(record.stored <= 2 * SPILL_PAGE);
	pages[2 * SPILL_PAGE + sizeof(struct spill_disk_pack) + 20] ^= 0x55;
	spill_record_encode(pages + SPILL_PAGE, &spot, &record, spill_hash_data(pages + 2 * SPILL_PAGE, record.stored));
	assert_int_equal(pwrite(fd, pages, sizeof(pages), SPILL_SUPER_AREA), sizeof(pages));
	close(fd);
}

static void verify_finds_a_record_that_does_not_unpack(void **state)
{
	struct trial *t = *state;
	char out[8192];

	put_all(t->ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", t->spill), 0);
	forge_first_record(t);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "store", "verify", t->spill), 1);
	assert_non_null(strstr(out, "1 damaged"));
	trial_start(t);
	trial_attach(t);
}

static int ns_with(struct kvp_client *client, const char *name, uint32_t flags, struct kvp_ns **ns)
{
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {
		.size = sizeof(opts), .name = name, .owner_uid = KVP_UID_SELF, .desc = &desc, .flags = flags};

	trial_desc(&desc);
	return kvp_ns_open(client, &opts, ns);
}

static void a_namespace_made_to_be_compressed_is_where_the_daemon_says_none(void **state)
{
	struct trial *t = *state;
	struct kvp_ns *ns;

	assert_int_equal(ns_with(t->client, "z", KVP_NS_SPILL_ZSTD, &ns), 0);
	put_all(ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_true(counter_of(t, "stats", "spill_write_bytes") < (uint64_t)N * TRIAL_BLOCK / 2);
	assert_int_equal(count_back(ns), N);
	kvp_ns_close(ns);
	trial_reboot(t); /* it is kept with the namespace */
	assert_int_equal(ns_with(t->client, "z", 0, &ns), 0);
	assert_int_equal(count_back(ns), N);
	kvp_ns_close(ns);
}

static void a_namespace_made_plain_is_where_the_daemon_says_zstd(void **state)
{
	struct trial *t = *state;
	struct kvp_ns *ns;

	assert_int_equal(ns_with(t->client, "p", KVP_NS_SPILL_PLAIN | KVP_NS_SPILL_ZSTD, &ns), -KVP_EINVAL);
	assert_int_equal(ns_with(t->client, "p", KVP_NS_SPILL_PLAIN, &ns), 0);
	put_all(ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_true(counter_of(t, "stats", "spill_write_bytes") >= (uint64_t)N * TRIAL_BLOCK);
	assert_int_equal(count_back(ns), N);
	kvp_ns_close(ns);
}

static void a_namespace_with_layers_is_written_plain_whatever_else_it_was_made_with(void **state)
{
	struct trial *t = *state;
	struct kvp_ns *ns;

	assert_int_equal(ns_with(t->client, "layers", KVP_NS_LAYERS | KVP_NS_SPILL_ZSTD, &ns), 0);
	put_all(ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_true(counter_of(t, "stats", "spill_write_bytes") >= (uint64_t)N * TRIAL_BLOCK);
	assert_int_equal(count_back(ns), N); /* opaque blocks have no layers: they come whole */
	kvp_ns_close(ns);
}

static void auto_samples_and_says_what_it_found_before_it_compresses_anything(void **state)
{
	struct trial *t = *state;

	put_all(t->ns);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	assert_int_equal(
		counter_of(t, "ns", "pack_state"), 0); /* nothing was read: how fast the store is is not known */
	assert_int_equal(counter_of(t, "ns", "packed"), 0);
	assert_true(counter_of(t, "ns", "pack_percent") > 0 && counter_of(t, "ns", "pack_percent") < 50);
	assert_true(counter_of(t, "stats", "spill_unpack_speed") > 0);
	assert_true(counter_of(t, "stats", "spill_write_bytes") >= (uint64_t)N * TRIAL_BLOCK);
	assert_int_equal(count_back(t->ns), N);
	assert_true(counter_of(t, "stats", "spill_device_speed") > 0);
}

#define OF(how, test) \
	{ \
#test, test, how, trial_teardown, NULL \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		OF(setup_zstd, compressed_blocks_come_back_exact_over_kills_and_reboots),
		OF(setup_zstd, bytes_on_disk_are_what_is_counted_budgeted_and_listed),
		OF(setup_zstd, verify_finds_a_record_that_does_not_unpack),
		OF(setup_zstd, a_namespace_with_layers_is_written_plain_whatever_else_it_was_made_with),
		OF(setup_none, a_namespace_made_to_be_compressed_is_where_the_daemon_says_none),
		OF(setup_zstd, a_namespace_made_plain_is_where_the_daemon_says_zstd),
		OF(setup_auto, auto_samples_and_says_what_it_found_before_it_compresses_anything),
	};

	return cmocka_run_group_tests_name("spill_compress", tests, NULL, NULL);
}
