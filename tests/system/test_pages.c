/*
 * test_pages.c - what slabs are made of: 2M pages of a hugetlbfs, transparent huge pages, and what happens without them
 *
 * As root, in a mount namespace of its own, with a /dev/shm and a hugetlbfs of its own; the pages it reserves go back
 * at the end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trial.h"

#define MIB (1024u * 1024)
#define PAGE_BYTES (2 * MIB)
#define RESERVED 16u /* pages */
#define RESERVED_FILE "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
#define FREE_FILE "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"

static char huge[] = "/tmp/kvpool-huge-XXXXXX"; /* where the hugetlbfs is mounted */
static const char *no_huge = "not root, or no mounts here",
		  *no_thp = "not root, or no mounts here"; /* NULL: to be had */

static unsigned long number(const char *path)
{
	unsigned long n = 0;
	FILE *file = fopen(path, "r");

	if (file && fscanf(file, "%lu", &n) != 1)
		n = 0;
	if (file)
		fclose(file);
	return n;
}

static void set_number(const char *path, unsigned long n)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return;
	fprintf(file, "%lu\n", n);
	fclose(file);
}

static unsigned files_in(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	unsigned n = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	closedir(dir);
	return n;
}

static int setup(void **state)
{
	struct trial *t = calloc(1, sizeof(*t));

	assert_non_null(t);
	assert_int_equal(host_open(&t->host, geteuid()), 0);
	*state = t;
	return 0;
}

static int teardown(void **state)
{
	struct trial *t = *state;
	bool good;

	trial_detach(t);
	good = !t->host.pid ||
	       (host_alive(&t->host) && TRIAL_KVCTL(t, NULL, 0, "check") == 0 && TRIAL_KVCTL(t, NULL, 0, "purge") == 0);
	host_close(&t->host);
	free(t);
	return good && (no_huge || !files_in(huge)) ? 0 : -1;
}

static int start(struct trial *t, const char *pool, const char *pages, const char *dir, const char *policy)
{
	const char *options[] = {"--pool", pool, "--slab", "4M", "--free-percent", "0", "--spill", "off", "--pages",
		pages, "--pages-short", policy, dir ? "--hugetlbfs" : NULL, dir, NULL};

	return host_start(&t->host, options);
}

/* Fill it with blocks and read them all back. */
static void use(struct trial *t, unsigned n)
{
	trial_attach(t);
	for (unsigned k = 0; k < n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_put(t->ns, &key, NULL, k, TRIAL_BLOCK), KVP_PUB_STORED);
	}
	for (unsigned k = 0; k < n; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(trial_get(t->ns, &key, k, TRIAL_BLOCK), 1);
	}
}

static const struct kvp_node_row *node(const struct trial *t)
{
	return &t->host.stats->nodes[0];
}

static void without_huge_pages_the_start_is_refused_with_the_way_out(void **state)
{
	struct trial *t = *state;

	assert_true(start(t, "16M", "2M", t->host.dir, "refuse") < 0);
	assert_true(host_logged(&t->host, "is not in a hugetlbfs of 2M pages", 1000));
	assert_true(host_logged(&t->host, "pages-short = fallback", 1000));
}

static void or_it_goes_on_with_small_ones_by_stated_policy_and_says_so(void **state)
{
	struct trial *t = *state;
	char out[8192];

	assert_int_equal(start(t, "16M", "2M", t->host.dir, "fallback"), 0);
	assert_int_equal(node(t)->got, 16 * MIB);
	assert_int_equal(node(t)->huge, 0);
	assert_true(host_logged(&t->host, "some slabs are of 4k pages", 1000));
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats", "--json"), 0);
	assert_non_null(strstr(out, "\"pages\": \"2M\""));
	assert_non_null(strstr(out, "some slabs are of 4k pages"));
	assert_non_null(strstr(out, "\"huge_bytes\": 0"));
	use(t, 200);
}

static void a_slab_that_is_not_whole_pages_is_refused(void **state)
{
	struct trial *t = *state;

	assert_true(host_start(&t->host, (const char *[]){"--pool", "16M", "--slab", "3M", "--pages", "2M", NULL}) < 0);
	assert_true(host_logged(&t->host, "slab = 3145728 is no multiple of pages = 2M", 1000));
}

static bool given_huge(void)
{
	if (no_huge)
		print_message("no 2M pages to be had: %s\n", no_huge);
	return !no_huge;
}

static void slabs_of_2M_pages_are_there_before_readiness_and_survive_the_daemon(void **state)
{
	struct trial *t = *state;
	unsigned long before = number(FREE_FILE);
	struct kvp_key key = wire_key(7);
	char out[8192];

	if (!given_huge())
		skip();
	assert_int_equal(start(t, "16M", "2M", huge, "refuse"), 0);
	assert_int_equal(number(FREE_FILE), before - 8); /* really allocated, not only promised */
	assert_int_equal(node(t)->huge, 16 * MIB);
	assert_int_equal(files_in(huge), 4);
	use(t, 200);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "check"), 0);
	trial_detach(t);
	host_kill(&t->host);
	trial_start(t);
	assert_int_equal(node(t)->huge, 16 * MIB);
	assert_int_equal(number(FREE_FILE), before - 8);
	trial_attach(t);
	assert_int_equal(trial_get(t->ns, &key, 7, TRIAL_BLOCK), 1);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "purge"), 0); /* with no daemon */
	assert_int_equal(files_in(huge), 0);
	assert_int_equal(number(FREE_FILE), before);
}

static void slabs_of_2M_pages_go_to_another_namespace_and_away_with_a_smaller_pool(void **state)
{
	struct trial *t = *state;
	unsigned long before = number(FREE_FILE);
	struct kvp_ns *second;
	struct kvp_desc desc;

	if (!given_huge())
		skip();
	assert_int_equal(start(t, "16M", "2M", huge, "refuse"), 0);
	use(t, 200);
	trial_desc(&desc);
	desc.block_bytes = 3 * MIB; /* one in a usual slab: slabs are made anew, of whole pages */
	assert_int_equal(trial_ns(t->client, "large", &desc, &second), 0);
	for (unsigned k = 0; k < 3; k++) {
		struct kvp_key key = wire_key(1000 + k);

		assert_int_equal(trial_put(second, &key, NULL, k, 3 * MIB), KVP_PUB_STORED);
		assert_int_equal(trial_get(second, &key, k, 3 * MIB), 1);
	}
	assert_int_equal(node(t)->huge, node(t)->got);
	kvp_ns_close(second);
	trial_detach(t);
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "resize", "8M"), 0);
	assert_true(number(FREE_FILE) >= before - 4);
	assert_int_equal(node(t)->huge, node(t)->got);
}

static void with_too_few_2M_pages_the_start_is_refused_and_takes_none(void **state)
{
	struct trial *t = *state;
	unsigned long before = number(FREE_FILE);
	char pool[32];

	if (!given_huge())
		skip();
	snprintf(pool, sizeof(pool), "%luM", before * 2 + 4);
	assert_true(start(t, pool, "2M", huge, "refuse") < 0);
	assert_true(host_logged(&t->host, "raise nr_hugepages", 1000));
	assert_int_equal(number(FREE_FILE), before);
	assert_int_equal(files_in(huge), 0);
}

static void or_the_rest_is_of_small_ones_by_stated_policy(void **state)
{
	struct trial *t = *state;
	unsigned long before = number(FREE_FILE);
	struct kvp_key key = wire_key(3);
	char pool[32];

	if (!given_huge())
		skip();
	snprintf(pool, sizeof(pool), "%luM", before * 2 + 8);
	assert_int_equal(start(t, pool, "2M", huge, "fallback"), 0);
	assert_int_equal(number(FREE_FILE), before % 2);
	assert_int_equal(node(t)->got, node(t)->asked);
	assert_in_range(node(t)->got - node(t)->huge, 8 * MIB, 12 * MIB);
	use(t, (unsigned)(node(t)->got / TRIAL_BLOCK * 3 / 4)); /* in large and small ones */
	trial_detach(t);
	host_kill(&t->host);
	trial_start(t); /* each is found again where it lies */
	assert_in_range(node(t)->got - node(t)->huge, 8 * MIB, 12 * MIB);
	trial_attach(t);
	assert_int_equal(trial_get(t->ns, &key, 3, TRIAL_BLOCK), 1);
}

static void transparent_huge_pages_are_counted_as_the_kernel_mapped_them(void **state)
{
	struct trial *t = *state;
	char out[8192];

	if (no_thp) {
		print_message("no transparent huge pages to be had: %s\n", no_thp);
		skip();
	}
	assert_int_equal(start(t, "16M", "thp", NULL, "fallback"), 0);
	assert_int_equal(TRIAL_KVCTL(t, out, sizeof(out), "stats"), 0);
	if (!node(t)->huge) /* memory may be scattered: then it says so */
		assert_true(host_logged(&t->host, "some slabs are of 4k pages", 1000));
	else
		assert_int_equal(node(t)->huge % PAGE_BYTES, 0);
	use(t, 200);
}

static void where_shared_memory_has_none_thp_is_refused(void **state)
{
	struct trial *t = *state;

	if (no_thp)
		skip();
	assert_int_equal(mount("none", "/dev/shm", NULL, MS_REMOUNT, "huge=never"), 0);
	assert_true(start(t, "16M", "thp", NULL, "refuse") < 0);
	assert_true(host_logged(&t->host, "mount -o remount,huge=advise /dev/shm", 1000));
	assert_int_equal(mount("none", "/dev/shm", NULL, MS_REMOUNT, "huge=advise"), 0);
}

/* What this machine gives. */
static void given_pages(void)
{
	unsigned long had = number(RESERVED_FILE);

	if (geteuid() || unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return;
	if (mount("none", "/dev/shm", "tmpfs", 0, "mode=1777,huge=advise") == 0)
		no_thp = NULL;
	else
		no_thp = "no tmpfs with huge=advise";
	if (!mkdtemp(huge) || mount("none", huge, "hugetlbfs", 0, "pagesize=2M") < 0) {
		no_huge = "no hugetlbfs";
		return;
	}
	set_number(RESERVED_FILE, had + RESERVED);
	no_huge = number(FREE_FILE) < RESERVED ? "they cannot be reserved here" : NULL;
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(without_huge_pages_the_start_is_refused_with_the_way_out),
		TEST(or_it_goes_on_with_small_ones_by_stated_policy_and_says_so),
		TEST(a_slab_that_is_not_whole_pages_is_refused),
		TEST(slabs_of_2M_pages_are_there_before_readiness_and_survive_the_daemon),
		TEST(slabs_of_2M_pages_go_to_another_namespace_and_away_with_a_smaller_pool),
		TEST(with_too_few_2M_pages_the_start_is_refused_and_takes_none),
		TEST(or_the_rest_is_of_small_ones_by_stated_policy),
		TEST(transparent_huge_pages_are_counted_as_the_kernel_mapped_them),
		TEST(where_shared_memory_has_none_thp_is_refused),
	};
	unsigned long had = number(RESERVED_FILE);
	int r;

	given_pages();
	r = cmocka_run_group_tests(tests, NULL, NULL);
	if (number(RESERVED_FILE) != had)
		set_number(RESERVED_FILE, had);
	umount(huge);
	rmdir(huge);
	return r;
}
