/*
 * test_numa.c - memory by node, on topologies this machine need not have (hwloc's synthetic ones: nothing is really
 * placed)
 *
 * kvpool-test: parallel
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvattn.h>

#include "wire.h"

#define MIB (1024u * 1024)
#define BLOCK 65536u
#define ODD (7 * 65536u) /* two of them leave so much of a usual slab idle that they get slabs of another size */
#define WITH_GAPS "node:3(indexes=0,2,5 memory=64MB) pu:1"

struct fixture {
	struct host host;
	struct wire w;
};

static int start(struct fixture *f, const char *topology, const char *pool)
{
	const char *options[] = {"--pool", pool, "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL};

	setenv("HWLOC_SYNTHETIC", topology, 1);
	return host_start(&f->host, options);
}

static int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	assert_int_equal(host_open(&f->host, geteuid()), 0);
	*state = f;
	return 0;
}

static int teardown(void **state)
{
	struct fixture *f = *state;

	host_close(&f->host);
	unsetenv("HWLOC_SYNTHETIC");
	unsetenv("HWLOC_XMLFILE");
	unsetenv("HWLOC_THISSYSTEM");
	free(f);
	return 0;
}

static const struct kvp_node_row *node_row(const struct fixture *f, unsigned i)
{
	return &f->host.stats->nodes[i];
}

static uint32_t node_of(const struct wire_ns *ns, uint64_t slot)
{
	return ns->slabs[slot / ns->head->slots_per_slab].node;
}

/* One block on @node; the node it is really given on. */
static uint32_t given_on(struct wire_ns *ns, uint32_t node)
{
	struct kvp_wire_reserve reserve = {
		.ns_id = ns->id, .n = 1, .node = node, .deadline_ns = wire_now() + 2000000000ull};
	struct kvp_wire_grant grant;

	assert_int_equal(
		wire_call(ns->w, KVP_MSG_RESERVE, &reserve, sizeof(reserve), &grant, sizeof(grant)), sizeof(grant));
	return node_of(ns, grant.slot);
}

static void a_pool_is_shared_out_over_the_nodes_with_memory_whatever_their_numbers(void **state)
{
	struct fixture *f = *state;
	static const uint32_t ids[] = {0, 2, 5};

	assert_int_equal(start(f, WITH_GAPS, "13M"), 0);
	assert_int_equal(f->host.stats->n_nodes, 3);
	for (unsigned i = 0; i < 3; i++) {
		assert_int_equal(node_row(f, i)->id, ids[i]);
		assert_int_equal(node_row(f, i)->asked, (i ? 4 : 5) * MIB);
		assert_int_equal(node_row(f, i)->got, node_row(f, i)->asked);
		assert_int_equal(node_row(f, i)->used, 0);
	}
}

static void a_small_node_gives_what_it_has_and_the_others_the_rest(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(start(f, "pack:2 [numa(memory=3MB)] [numa(memory=64MB)] pu:2", "20M"), 0);
	assert_int_equal(f->host.stats->n_nodes, 4);
	for (unsigned i = 0; i < 4; i++) {
		assert_int_equal(node_row(f, i)->has_cpus, i % 2 == 0);
		assert_int_equal(node_row(f, i)->got, (i % 2 ? 8 : 2) * MIB);
	}
}

static void a_node_named_in_the_pool_gives_what_is_asked_of_it(void **state)
{
	struct fixture *f = *state;

	assert_int_equal(start(f, WITH_GAPS, "node5=3M,node0=2M"), 0);
	assert_int_equal(atomic_load(&f->host.stats->counters.pool_bytes), 5 * MIB);
	assert_int_equal(node_row(f, 0)->got, 2 * MIB);
	assert_int_equal(node_row(f, 1)->got, 0);
	assert_int_equal(node_row(f, 2)->got, 3 * MIB);
}

static void a_node_that_is_not_there_is_refused_with_those_that_are(void **state)
{
	struct fixture *f = *state;

	assert_true(start(f, WITH_GAPS, "node1=3M,node0=2M") < 0);
	assert_true(host_logged(&f->host, "node1 is no node with memory that this process may use", 1000));
	assert_true(host_logged(&f->host, "there are node0 node2 node5", 1000));
}

static void a_block_comes_from_the_node_that_is_asked_for_as_long_as_it_has_any(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;

	assert_int_equal(start(f, WITH_GAPS, "6M"), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", BLOCK), 0);
	for (unsigned round = 0; round < 10; round++) /* free slots elsewhere are no reason to be given those */
		for (unsigned i = 0; i < 3; i++)
			assert_int_equal(given_on(&ns, node_row(f, i)->id), node_row(f, i)->id);
	for (unsigned i = 0; i < 22; i++)
		assert_int_equal(given_on(&ns, 2), 2);
	assert_int_equal(node_row(f, 1)->used, 2 * MIB);
	assert_true(given_on(&ns, 2) != 2); /* full: another one */
	assert_true(given_on(&ns, 77) != 77); /* nobody knows it: any */
	wire_leave(&ns);
	wire_close(&f->w);
}

static void a_reserve_waits_for_memory_near_it_while_that_is_being_made(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;
	unsigned n_slots = MIB / ODD;

	assert_int_equal(start(f, WITH_GAPS, "12M"), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", ODD), 0);
	for (unsigned i = 0; i < 3; i++) /* free slots on the nodes before are no reason to be given those */
		assert_int_equal(given_on(&ns, node_row(f, i)->id), node_row(f, i)->id);
	for (unsigned i = 1; i < 2 * n_slots; i++)
		assert_int_equal(given_on(&ns, 0), 0);
	wire_leave(&ns);
	wire_close(&f->w);
}

static void a_reader_is_told_on_which_node_a_block_lies(void **state)
{
	struct fixture *f = *state;
	struct kvp_open_opts open = {.size = sizeof(open), .connect_timeout_ms = 5000};
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "n", .owner_uid = KVP_UID_SELF, .desc = &desc};
	struct kvp_client *client;
	struct kvp_ns *ns;
	struct kvp_block_ref block;
	struct kvp_view view, nothing = {0};
	struct kvp_publish_item item = {.key = wire_key(1), .block = &block, .used_tokens = 16, .view = &view};
	uint8_t result = 0;

	assert_int_equal(start(f, WITH_GAPS, "node5=4M"), 0);
	open.socket = f->host.socket;
	wire_desc(&desc, BLOCK, 0);
	assert_int_equal(kvp_open(&open, &client), 0);
	assert_int_equal(kvp_ns_open(client, &opts, &ns), 0);
	assert_int_equal(kvp_reserve(ns, 1, 0, kvp_deadline_ms(2000), &block), 1);
	assert_int_equal(kvp_publish(ns, &item, 1, &result), 1);
	assert_int_equal(result, KVP_PUB_STORED);
	assert_int_equal(kvp_view_node(&view), 5);
	assert_int_equal(kvp_release(&view, 1), 0);
	assert_int_equal(kvp_view_node(&view), -KVP_ENOENT);
	assert_int_equal(kvp_view_node(&nothing), -KVP_ENOENT);
	kvp_ns_close(ns);
	kvp_close(client);
}

/* What is stored is told, and what is still being written is not. */
static void a_sequence_tells_the_nodes_of_its_table(void **state)
{
	struct fixture *f = *state;
	struct kvp_open_opts open = {.size = sizeof(open), .connect_timeout_ms = 5000};
	struct kvp_desc desc;
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = "n", .owner_uid = KVP_UID_SELF, .desc = &desc};
	uint32_t tokens[24] = {0};
	struct kvattn_table table;
	struct kvp_client *client;
	struct kvp_seq *seq;
	struct kvp_ns *ns;

	assert_int_equal(start(f, WITH_GAPS, "node5=4M"), 0);
	open.socket = f->host.socket;
	wire_desc(&desc, BLOCK, 0);
	assert_int_equal(kvp_open(&open, &client), 0);
	assert_int_equal(kvp_ns_open(client, &opts, &ns), 0);
	assert_int_equal(kvp_seq_open(ns, NULL, &seq), 0);
	assert_int_equal(kvp_seq_append(seq, tokens, 24), 24);
	for (int i = 0; i < 200; i++) { /* the daemon's answer is taken over by calls on the sequence */
		assert_true(kvp_seq_commit(seq, 16) >= 0);
		assert_int_equal(kvp_seq_table(seq, &table), 0);
		if (kvp_seq_nodes(seq)[0] >= 0)
			break;
		usleep(50000);
	}
	assert_int_equal(table.n_blocks, 2);
	assert_int_equal(kvp_seq_nodes(seq)[0], 5);
	assert_int_equal(kvp_seq_nodes(seq)[1], -1);
	kvp_seq_close(seq);
	kvp_ns_close(ns);
	kvp_close(client);
}

static void slabs_stay_on_their_nodes_over_a_restart(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;
	struct kvp_key key = wire_key(1);

	assert_int_equal(start(f, WITH_GAPS, "node2=2M,node5=4M"), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", BLOCK), 0);
	assert_int_equal(given_on(&ns, 5), 5);
	assert_int_equal(wire_put(&ns, &key, NULL, 1, 1000), KVP_PUB_STORED);
	wire_leave(&ns);
	wire_close(&f->w);
	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_int_equal(node_row(f, 0)->got, 0);
	assert_int_equal(node_row(f, 1)->got, 2 * MIB);
	assert_int_equal(node_row(f, 2)->got, 4 * MIB);
}

/* A machine of three packages with one node and one processor each, of which node 1 has no memory and node 2 is nearest
   to it. */
static void write_machine(const char *path)
{
	static const char distances[] = "10 30 30 30 10 20 30 20 10 ";
	FILE *file = fopen(path, "we");

	assert_non_null(file);
	fputs("<?xml version=\"1.0\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n"
	      "<object type=\"Machine\" os_index=\"0\" cpuset=\"0x7\" complete_cpuset=\"0x7\" allowed_cpuset=\"0x7\" "
	      "nodeset=\"0x7\" complete_nodeset=\"0x7\" allowed_nodeset=\"0x7\" gp_index=\"1\">\n",
		file);
	for (unsigned i = 0; i < 3; i++) {
		char sets[160];

		snprintf(sets, sizeof(sets),
			"os_index=\"%u\" cpuset=\"%#x\" complete_cpuset=\"%#x\" nodeset=\"%#x\" complete_nodeset=\"%#x\"",
			i, 1u << i, 1u << i, 1u << i, 1u << i);
		fprintf(file,
			"<object type=\"Package\" %s gp_index=\"%u\">\n<object type=\"NUMANode\" %s gp_index=\"%u\" "
			"local_memory=\"%u\"/>\n<object type=\"PU\" %s gp_index=\"%u\"/>\n</object>\n",
			sets, 3 * i + 2, sets, 3 * i + 3, i == 1 ? 0 : 64 * MIB, sets, 3 * i + 4);
	}
	fprintf(file,
		"</object>\n<distances2 type=\"NUMANode\" nbobjs=\"3\" kind=\"5\" indexing=\"os\">\n<indexes length=\"6\">0 1 2 "
		"</indexes>\n<u64values length=\"%zu\">%s</u64values>\n</distances2>\n</topology>\n",
		strlen(distances), distances);
	assert_int_equal(fclose(file), 0);
}

/* B45 */
static void a_node_with_cpus_and_no_memory_has_no_share_and_is_served_from_the_nearest(void **state)
{
	const char *options[] = {"--pool", "4M", "--slab", "1M", "--free-percent", "0", "--spill", "off", NULL};
	struct fixture *f = *state;
	struct wire_ns ns;
	char machine[128];

	snprintf(machine, sizeof(machine), "%s/machine.xml", f->host.dir);
	write_machine(machine);
	setenv("HWLOC_XMLFILE", machine, 1);
	assert_int_equal(host_start(&f->host, options), 0);
	assert_int_equal(f->host.stats->n_nodes, 2);
	assert_int_equal(node_row(f, 0)->id, 0);
	assert_int_equal(node_row(f, 1)->id, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(node_row(f, i)->got, 2 * MIB);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", BLOCK), 0);
	for (unsigned i = 0; i < 2 * MIB / BLOCK; i++)
		assert_int_equal(given_on(&ns, 1), 2);
	assert_int_equal(given_on(&ns, 1), 0); /* that is full: the other */
	assert_true(host_conserves(&f->host));
	wire_leave(&ns);
	wire_close(&f->w);
	host_stop(&f->host);
	assert_true(host_start(&f->host, (const char *[]){"--pool", "node1=2M,node2=2M", "--slab", "1M", "--spill",
						 "off", NULL}) < 0);
	assert_true(host_logged(&f->host, "node1 is no node with memory that this process may use", 1000));
}

static void where_binding_is_refused_there_is_one_warning_and_all_goes_on_unbound(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;

	setenv("HWLOC_THISSYSTEM", "1", 1); /* node 41 is none of the kernel's */
	assert_int_equal(start(f, "node:2(indexes=0,41 memory=64MB) pu:1", "4M"), 0);
	assert_true(host_logged(&f->host, "NUMA: unbound", 1000));
	assert_true(strstr(f->host.stats->numa_message, "unbound") == f->host.stats->numa_message);
	assert_int_equal(node_row(f, 1)->n_bound, 0);
	assert_int_equal(node_row(f, 1)->placed, 0); /* asked of the kernel, not believed */
	assert_int_equal(node_row(f, 1)->got, 2 * MIB);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", BLOCK), 0);
	assert_int_equal(given_on(&ns, 41), UINT32_MAX); /* no reader is told that it lies on 41 */
	wire_leave(&ns);
	wire_close(&f->w);
}

#define WITH_CXL "pack:1 [numa(memory=64MB)] [numa(memory=64MB)] pu:1" /* node 1 has no CPUs */
#define SLOTS 32u /* on each of its nodes */

/* A pool of which half lies on a node without CPUs, and @n blocks in it: chains of @chain. */
static void given_tiers(struct fixture *f, struct wire_ns *ns, unsigned n, unsigned chain)
{
	assert_int_equal(start(f, WITH_CXL, "node0=2M,node1=2M"), 0);
	assert_int_equal(node_row(f, 0)->has_cpus, 1);
	assert_int_equal(node_row(f, 1)->has_cpus, 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, ns, "m", BLOCK), 0);
	for (unsigned k = 0; k < n; k++) {
		struct kvp_key key = wire_key(k), parent = wire_key(k - 1);

		assert_int_equal(wire_put(ns, &key, k % chain ? &parent : NULL, k, 3000), KVP_PUB_STORED);
		if (k % 8 == 7)
			wire_sleep_ms(40); /* another tick: the order is known */
	}
}

/* Which node block @k is on, its bytes being right; UINT32_MAX: it is not in memory. */
static uint32_t lies_on(struct wire_ns *ns, uint64_t k)
{
	struct kvp_key key = wire_key(k);
	struct wire_pinned pinned;
	uint32_t node;

	if (wire_pin(ns, &key, &pinned) != 1)
		return UINT32_MAX;
	assert_true(wire_right(pinned.data, pinned.used_bytes, k));
	node = node_of(ns, pinned.slot);
	wire_unpin(ns, &pinned);
	return node;
}

static uint64_t demoted(struct fixture *f, const struct wire_ns *ns)
{
	return atomic_load(&host_ns_row(&f->host, ns->id)->counters.demoted);
}

static void what_was_used_least_lately_moves_to_the_node_without_cpus_before_it_leaves_memory(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;

	given_tiers(f, &ns, 2 * SLOTS, 1);
	for (uint64_t k = 0; k < 2 * SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), k < SLOTS); /* all are there: the older half on node 1 */
	assert_int_equal(demoted(f, &ns), SLOTS);
	assert_int_equal(atomic_load(&host_ns_row(&f->host, ns.id)->counters.evicted), 0);
	for (uint64_t k = 0; k < SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), 1); /* read in place: using it brings none back */
	assert_true(host_conserves(&f->host));
	wire_leave(&ns);
	wire_close(&f->w);
}

static void what_is_new_lies_near_and_what_leaves_memory_leaves_the_far_node(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;
	unsigned there = 0;

	given_tiers(f, &ns, 4 * SLOTS, 1);
	for (uint64_t k = 3 * SLOTS; k < 4 * SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), 0);
	for (uint64_t k = 2 * SLOTS; k < 3 * SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), 1);
	for (uint64_t k = 0; k < 2 * SLOTS; k++)
		there += lies_on(&ns, k) != UINT32_MAX;
	assert_int_equal(there, 0);
	assert_true(host_conserves(&f->host));
	wire_leave(&ns);
	wire_close(&f->w);
}

static void a_whole_chain_moves_there_not_only_its_last_block(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;

	given_tiers(f, &ns, 2 * SLOTS, SLOTS);
	for (uint64_t k = 0; k < 2 * SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), k < SLOTS);
	assert_true(host_conserves(&f->host));
	wire_leave(&ns);
	wire_close(&f->w);
}

static void where_all_near_memory_is_held_a_grant_comes_from_the_far_node(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;
	struct wire_pinned pinned[SLOTS];

	given_tiers(f, &ns, SLOTS, 1);
	for (uint64_t k = 0; k < SLOTS; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_pin(&ns, &key, &pinned[k]), 1);
	}
	assert_int_equal(given_on(&ns, 0), 1);
	assert_int_equal(demoted(f, &ns), 0);
	for (unsigned k = 0; k < SLOTS; k++)
		wire_unpin(&ns, &pinned[k]);
	assert_int_equal(given_on(&ns, 0), 0); /* let go: one moves, and there is near memory again */
	assert_int_equal(demoted(f, &ns), 1);
	assert_int_equal(given_on(&ns, 1), 1); /* asked for by name: that very node */
	wire_leave(&ns);
	wire_close(&f->w);
}

static void both_tiers_survive_a_killed_daemon(void **state)
{
	struct fixture *f = *state;
	struct wire_ns ns;

	given_tiers(f, &ns, 2 * SLOTS, SLOTS);
	wire_leave(&ns);
	wire_close(&f->w);
	host_kill(&f->host);
	assert_int_equal(host_start(&f->host, NULL), 0);
	assert_int_equal(wire_open(&f->w, f->host.socket), 0);
	assert_int_equal(wire_join(&f->w, &ns, "m", BLOCK), 0);
	for (uint64_t k = 0; k < 2 * SLOTS; k++)
		assert_int_equal(lies_on(&ns, k), k < SLOTS);
	for (uint64_t k = 100; k < 100 + SLOTS; k++) {
		struct kvp_key key = wire_key(k);

		assert_int_equal(wire_put(&ns, &key, NULL, k, 3000), KVP_PUB_STORED);
		assert_int_equal(lies_on(&ns, k), 0);
	}
	assert_true(host_conserves(&f->host));
	wire_leave(&ns);
	wire_close(&f->w);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_pool_is_shared_out_over_the_nodes_with_memory_whatever_their_numbers),
		TEST(a_small_node_gives_what_it_has_and_the_others_the_rest),
		TEST(a_node_named_in_the_pool_gives_what_is_asked_of_it),
		TEST(a_node_that_is_not_there_is_refused_with_those_that_are),
		TEST(a_block_comes_from_the_node_that_is_asked_for_as_long_as_it_has_any),
		TEST(a_reserve_waits_for_memory_near_it_while_that_is_being_made),
		TEST(a_node_with_cpus_and_no_memory_has_no_share_and_is_served_from_the_nearest),
		TEST(a_reader_is_told_on_which_node_a_block_lies),
		TEST(a_sequence_tells_the_nodes_of_its_table),
		TEST(slabs_stay_on_their_nodes_over_a_restart),
		TEST(what_was_used_least_lately_moves_to_the_node_without_cpus_before_it_leaves_memory),
		TEST(what_is_new_lies_near_and_what_leaves_memory_leaves_the_far_node),
		TEST(a_whole_chain_moves_there_not_only_its_last_block),
		TEST(where_all_near_memory_is_held_a_grant_comes_from_the_far_node),
		TEST(both_tiers_survive_a_killed_daemon),
		TEST(where_binding_is_refused_there_is_one_warning_and_all_goes_on_unbound),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
