/* test_kvctl_words.c - kvctl's words: each command explains itself, and says of a wrong word what would have done */
#include "test_kvctl_fixture.h"

static const char *const commands[] = {"stats", "top", "ns", "clients", "check", "ping", "drain", "evict", "resize",
	"purge", "store", "support-bundle", "plan", "replay", "bench"};
#define N_COMMANDS (sizeof(commands) / sizeof(commands[0]))

static void each_command_explains_itself(void **state)
{
	struct fake *f = *state;
	char text[64];

	for (unsigned i = 0; i < N_COMMANDS; i++) {
		snprintf(text, sizeof(text), "usage: kvctl %s ", commands[i]);
		assert_int_equal(run(f, commands[i], "--help"), 0);
		if (strncmp(f->out, text, strlen(text)))
			fail_msg("%s --help says:\n%s", commands[i], f->out);
		assert_int_equal(run(f, "help", commands[i]), 0);
		assert_memory_equal(f->out, text, strlen(text));
		assert_int_equal(run(f, "help"), 0);
		assert_says(f->out, commands[i]);
	}
	assert_int_equal(run(f, "help", "nothing"), 2);
	assert_says(f->err, "no command \"nothing\"");
	assert_int_equal(run(f, "version"), 0);
	assert_says(f->out, "kvctl 0.");
}

static void each_command_names_an_option_that_it_does_not_have(void **state)
{
	struct fake *f = *state;
	char text[64];

	for (unsigned i = 0; i < N_COMMANDS; i++) {
		snprintf(text, sizeof(text), "%s: unknown option --nonsense; it has --", commands[i]);
		assert_int_equal(run(f, commands[i], "--nonsense"), 2);
		assert_says(f->err, text);
		assert_string_equal(f->out, "");
	}
}

/* Before anything is asked or changed: there is a pool, and nobody at its admin socket. */
static void a_value_that_is_none_is_refused_with_one_that_would_do(void **state)
{
	static const struct {
		const char *words[6];
		const char *said;
	} cases[] = {
		{{"stats", "--more", "much"}, "--more \"much\" is not"},
		{{"stats", "--watch=never"}, "\"never\" is not"},
		{{"top", "--every", "0"}, "--every \"0\" is not"},
		{{"ping", "--timeout", "soon"}, "--timeout \"soon\" is not a number of seconds"},
		{{"drain", "--deadline", "later"}, "--deadline \"later\" is not"},
		{{"evict", "--deadline", "-1"}, "--deadline \"-1\" is not"},
		{{"evict", "0"}, "N \"0\" is not a number of blocks, 1 at least"},
		{{"evict", "some"}, "N \"some\" is not a number of blocks"},
		{{"evict", "1", "2"}, "\"2\" is one argument too many"},
		{{"resize"}, "give the size of the pool, or of nodes: 64G, or node0=64G,node2=128G"},
		{{"resize", "large"}, "give the size of the pool"},
		{{"resize", "node0=64G,node1"}, "give the size of the pool"},
		{{"resize", "node0=64G,128G"}, "give the size of the pool"},
		{{"resize", "node0=much"}, "give the size of the pool"},
		{{"purge", "--deadline", "later"}, "--deadline \"later\" is not"},
		{{"purge", "--socket", ""}, "--socket is given an empty value"},
		{{"purge", "--name", ""}, "--name is given an empty value"},
		{{"purge", "now"}, "\"now\" is one argument too many"},
		{{"store"}, "name one of list, verify, scrub, drop"},
		{{"store", "polish"}, "not \"polish\""},
		{{"store", "scrub", "--rate", "fast"}, "--rate \"fast\" is not a size"},
		{{"store", "scrub", "--rate", "0"}, "--rate \"0\" is not a size"},
		{{"store", "drop"}, "drop forgets all that the store holds for good: say --yes"},
		{{"store", "drop", "--ns", "model"}, "what the store holds of the namespace for good: say --yes"},
		{{"ns", "list"}, "\"list\" is nothing it does"},
		{{"ns", "set", "model"}, "give a namespace, and policy=lru or policy=learned"},
		{{"ns", "set", "model", "policy=best"}, "give a namespace, and policy=lru or policy=learned"},
		{{"bench"}, "name one of pin, publish, share"},
		{{"bench", "spill", "--depth", "0"}, "--depth \"0\" is not a number from 1 to 256"},
		{{"bench", "spill", "--pairs", "101"}, "--pairs \"101\" is not a number from 1 to 100"},
		{{"bench", "spill", "--size", "x"}, "--size \"x\" is not a size"},
		{{"bench", "spill", "--device", "/dev/null"}, "--device is for spill, with --self"},
		{{"bench", "pin", "--self", "--device", "/dev/null"}, "--device is for spill, with --self"},
		{{"bench", "start", "--records", "999"}, "--records \"999\" is not a number from 1000 on"},
		{{"bench", "start"}, "start stops and starts daemons: it takes its own, with --self"},
		{{"replay"}, "a trace and --pool must be given, or a trace and --sweep"},
		{{"replay", "t", "--policy", "best", "--sweep"}, "--policy \"best\" is not lru, learned or unguarded"},
		{{"replay", "t", "--admit", "some", "--sweep"}, "--admit \"some\" is not all, reused or chance"},
		{{"replay", "t", "--hints", "much", "--sweep"}, "--hints \"much\" is not the share that is wrong"},
		{{"replay", "t", "--write-budget", "-1"}, "--write-budget \"-1\" is not a share from 0 to 1"},
		{{"replay", "t", "--block-bytes", "0"}, "--block-bytes \"0\" is not a size"},
		{{"replay", "t", "--sweep", "--pool", "10"}, "--sweep chooses the sizes itself"},
	};
	struct fake *f = *state;

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const char *argv[10] = {"kvctl"};
		unsigned n = 1;

		for (unsigned k = 0; k < 6 && cases[i].words[k]; k++)
			argv[n++] = cases[i].words[k];
		assert_int_equal(run_to(f, -1, argv), 2);
		assert_says(f->err, cases[i].said);
		assert_string_equal(f->out, "");
	}
}

static void an_option_at_the_end_needs_its_value(void **state)
{
	static const char *const lacking[][2] = {{"stats", "--socket"}, {"top", "--every"}, {"ping", "--timeout"},
		{"drain", "--admin"}, {"purge", "--deadline"}, {"store", "--rate"}, {"support-bundle", "--output"},
		{"plan", "--layers"}, {"replay", "--pool"}, {"bench", "--pairs"}};
	struct fake *f = *state;
	char text[64];

	for (unsigned i = 0; i < sizeof(lacking) / sizeof(lacking[0]); i++) {
		snprintf(text, sizeof(text), "%s: %s needs a value", lacking[i][0], lacking[i][1]);
		assert_int_equal(run(f, lacking[i][0], lacking[i][1]), 2);
		assert_says(f->err, text);
	}
}

static void a_pool_that_is_not_there_is_none_to_any_command(void **state)
{
	static const char *const asking[][3] = {{"stats"}, {"top", "--once"}, {"ns"}, {"clients"}, {"check"}, {"purge"},
		{"store", "list"}, {"store", "verify"}, {"support-bundle"}, {"bench", "pin"},
		{"ns", "set", "x"}}; /* the last lacks a word */
	struct fake *f = *state;

	for (unsigned i = 0; i + 1 < sizeof(asking) / sizeof(asking[0]); i++) {
		const char *argv[8] = {"kvctl", asking[i][0], "--name", "no-such-pool", asking[i][1], NULL};

		assert_int_equal(run_to(f, -1, argv), 4);
		assert_says(f->err, "no-such-pool");
	}
	assert_int_equal(run(f, "evict", "--ns", "model", "--name", "no-such-pool"), 4);
	assert_int_equal(run(f, "ns", "set", "model", "policy=lru", "--name", "no-such-pool"), 4);
	assert_int_equal(run(f, "store", "drop", "--yes", "--name", "no-such-pool"), 4);
}

static void a_socket_path_longer_than_the_kernel_takes_is_refused(void **state)
{
	struct fake *f = *state;
	char path[400] = "/";

	memset(path + 1, 'a', sizeof(path) - 2);
	assert_int_not_equal(run(f, "ping", "--socket", path), 0);
	assert_says(f->err, "long");
	assert_int_not_equal(run(f, "drain", "--admin", path), 0);
	assert_says(f->err, "long");
	assert_int_not_equal(run(f, "stats", "--socket", path), 0);
}

#define test(name) cmocka_unit_test_setup_teardown(name, fake_setup, fake_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(each_command_explains_itself),
		test(each_command_names_an_option_that_it_does_not_have),
		test(a_value_that_is_none_is_refused_with_one_that_would_do),
		test(an_option_at_the_end_needs_its_value),
		test(a_pool_that_is_not_there_is_none_to_any_command),
		test(a_socket_path_longer_than_the_kernel_takes_is_refused),
	};

	return cmocka_run_group_tests_name("kvctl's words", tests, NULL, NULL);
}
