/* trial.c - see trial.h */
#include "trial.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define KVCTL_WORDS_MAX 16

void trial_given(struct trial *t, uid_t uid, const char *pool, const char *spill)
{
	const char *options[] = {"--pool", pool, "--slab", "1M", "--free-percent", "0", "--heartbeat", "200", "--spill",
		t->spill_option, NULL};

	memset(t, 0, sizeof(*t));
	assert_int_equal(host_open(&t->host, uid), 0);
	snprintf(t->spill, sizeof(t->spill), "%s/spill", t->host.dir);
	snprintf(t->spill_option, sizeof(t->spill_option), "off");
	if (spill) {
		assert_int_equal(mkdir(t->spill, 0700), 0);
		assert_int_equal(chown(t->spill, uid, (gid_t)uid), 0);
		snprintf(t->spill_option, sizeof(t->spill_option), "%s:%s", t->spill, spill);
	}
	memcpy(t->host.argv, options, sizeof(options));
}

void trial_option(struct trial *t, const char *name, const char *value)
{
	unsigned n = 0;

	while (t->host.argv[n])
		n++;
	t->host.argv[n++] = name;
	t->host.argv[n++] = value;
	t->host.argv[n] = NULL;
}

void trial_namespace(struct host *host, const char *const *options, struct wire *w, struct wire_ns *ns,
	const char *name, uint64_t bytes)
{
	assert_int_equal(host_open(host, geteuid()), 0);
	assert_int_equal(host_start(host, options), 0);
	assert_int_equal(wire_open(w, host->socket), 0);
	assert_int_equal(wire_join(w, ns, name, bytes), 0);
}

void trial_start(struct trial *t)
{
	assert_int_equal(host_start(&t->host, NULL), 0);
}

void trial_attach(struct trial *t)
{
	struct kvp_desc desc;

	trial_desc(&desc);
	assert_int_equal(trial_client(t, &t->client), 0);
	assert_int_equal(trial_ns(t->client, "m", &desc, &t->ns), 0);
}

void trial_detach(struct trial *t)
{
	if (t->ns)
		kvp_ns_close(t->ns);
	if (t->client)
		kvp_close(t->client);
	t->ns = NULL;
	t->client = NULL;
}

bool trial_end(struct trial *t)
{
	bool good = !t->host.pid || (host_alive(&t->host) && host_conserves(&t->host));
	char out[4096] = "";

	if (t->host.pid && TRIAL_KVCTL(t, out, sizeof(out), "check") != 0) {
		fprintf(stderr, "%s\n", out);
		good = false;
	}
	trial_detach(t);
	host_close(&t->host);
	return good;
}

int trial_setup(void **state, const char *pool, const char *spill)
{
	struct trial *t = malloc(sizeof(*t));

	assert_non_null(t);
	trial_given(t, geteuid(), pool, spill);
	trial_start(t);
	*state = t;
	return 0;
}

int trial_teardown(void **state)
{
	struct trial *t = *state;
	bool good = trial_end(t);

	free(t);
	return good ? 0 : -1;
}

void trial_memory_gone(const struct trial *t)
{
	char path[160], prefix[160];
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;

	host_object(&t->host, prefix, "");
	assert_non_null(dir);
	while ((entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix + 9, strlen(prefix + 9)))
			unlinkat(dirfd(dir), entry->d_name, 0);
	closedir(dir);
	snprintf(path, sizeof(path), "/dev/shm/kvpool.%s", t->host.name);
	unlink(path);
}

void trial_reboot(struct trial *t)
{
	assert_int_equal(TRIAL_KVCTL(t, NULL, 0, "drain"), 0);
	trial_detach(t);
	assert_int_equal(host_stop(&t->host), 0);
	trial_memory_gone(t);
	trial_start(t);
	trial_attach(t);
}

static void exec_kvctl(const struct trial *t, const char *const *words)
{
	const char *argv[KVCTL_WORDS_MAX] = {"kvctl"};
	const char *build = getenv("BUILD");
	char path[512];
	unsigned n = 1;

	for (unsigned i = 0; words[i] && n < KVCTL_WORDS_MAX - 5; i++)
		argv[n++] = words[i];
	argv[n++] = "--socket";
	argv[n++] = t->host.socket;
	argv[n++] = "--name";
	argv[n++] = t->host.name;
	argv[n] = NULL;
	snprintf(path, sizeof(path), "%s/kvctl", build ? build : "build");
	execv(path, (char *const *)(uintptr_t)argv);
	_exit(95);
}

int trial_kvctl(const struct trial *t, char *out, size_t room, const char *const *words)
{
	int ends[2], status = 0;
	size_t n = 0;
	char rest[512];
	ssize_t r;
	pid_t pid;

	if (pipe(ends) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		dup2(ends[1], 1);
		dup2(ends[1], 2);
		close(ends[0]);
		close(ends[1]);
		exec_kvctl(t, words);
	}
	close(ends[1]);
	while ((r = read(ends[0], rest, sizeof(rest))) > 0)
		for (ssize_t i = 0; i < r && out && n + 1 < room; i++)
			out[n++] = rest[i];
	if (out && room)
		out[n] = 0;
	close(ends[0]);
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* ---- engines ---- */

int trial_client(const struct trial *t, struct kvp_client **client)
{
	struct kvp_open_opts opts = {.size = sizeof(opts), .socket = t->host.socket, .connect_timeout_ms = 5000};

	return kvp_open(&opts, client);
}

int trial_ns(struct kvp_client *client, const char *name, const struct kvp_desc *desc, struct kvp_ns **ns)
{
	struct kvp_ns_opts opts = {.size = sizeof(opts), .name = name, .owner_uid = KVP_UID_SELF, .desc = desc};

	return kvp_ns_open(client, &opts, ns);
}

void trial_desc(struct kvp_desc *desc)
{
	kvp_desc_init(desc, KVP_LAYOUT_OPAQUE, TRIAL_TOKENS, 0, 0, 0, 0);
	desc->block_bytes = TRIAL_BLOCK;
	strcpy(desc->engine, "trial/1");
}

int trial_put(struct kvp_ns *ns, const struct kvp_key *key, const struct kvp_key *parent, uint64_t k, uint64_t bytes)
{
	struct kvp_block_ref block;
	struct kvp_publish_item item = {.key = *key, .block = &block, .used_tokens = TRIAL_TOKENS, .used_bytes = bytes};
	uint8_t result = 0;

	if (kvp_reserve(ns, 1, 0, kvp_deadline_ms(10000), &block) != 1) {
		fprintf(stderr, "no room for block %llu within 10 s: %s\n", (unsigned long long)k, kvp_error(NULL));
		return -1;
	}
	if (parent)
		item.parent = *parent;
	wire_fill(block.data, bytes, k);
	kvp_publish(ns, &item, 1, &result);
	if (result != KVP_PUB_STORED)
		fprintf(stderr, "block %llu: publish answers %d: %s\n", (unsigned long long)k, result, kvp_error(NULL));
	kvp_abandon(&block, 1);
	return result;
}

int trial_get(struct kvp_ns *ns, const struct kvp_key *key, uint64_t k, uint64_t bytes)
{
	struct kvp_view view;
	int right;

	if (kvp_acquire(ns, key, 1, 0, kvp_deadline_ms(10000), &view) != 1)
		return 0;
	right = view.used_bytes == bytes && wire_right(view.data, bytes, k) ? 1 : -1;
	kvp_release(&view, 1);
	return right;
}
