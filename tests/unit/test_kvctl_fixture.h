/*
 * test_kvctl_fixture.h - a pool as a daemon would have left it, made by hand, and kvctl run on it as a user would
 *
 * One namespace with one slab of 16 slots at place 0 (three published blocks of a chain, one granted), one spare slab,
 * one session that pins the first block.  All counters fit; a test breaks one thing and looks what kvctl says.
 */
#ifndef TEST_KVCTL_FIXTURE_H
#define TEST_KVCTL_FIXTURE_H

#define _GNU_SOURCE 1
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvpool_shm.h"
#include "kvpool_stats.h"

#define FAKE_PLACES 8u
#define FAKE_SLOTS 16u
#define FAKE_BLOCK 4096u
#define FAKE_SLAB (FAKE_SLOTS * FAKE_BLOCK)
#define FAKE_STRIDE 4096u /* of pin tables */
#define FAKE_BUCKETS 8u
#define FAKE_NS 0x11u
#define FAKE_SESSION 0x22u
#define FAKE_OUTPUT (1 << 20)

struct fake {
	uint8_t uuid[16];
	char uuid_text[37];
	char name[KVP_NAME_MAX];
	char dir[64]; /* of the socket */
	char socket[96];
	char pool_file[128];
	struct kvp_pool_header *header;
	int life_fd;
	struct kvp_stats *stats;
	struct kvp_ns_row *ns_row;
	struct kvp_session_row *session_row;
	struct kvp_slab_row *slab_rows;
	struct kvp_curve *curve;
	struct kvp_ns_header *ns;
	struct kvp_slab *slab_table;
	struct kvp_block *blocks;
	struct kvp_index_bucket *index;
	struct kvp_session_header *session;
	struct kvp_pin *pins;
	char *out; /* of the last run */
	char *err;
	pid_t pid; /* of the last run */
	bool silent; /* the heartbeat stays as it is; else each run finds it fresh, however busy the machine */
};

static inline uint64_t fake_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void fake_path(const struct fake *f, char path[128], const char *rest)
{
	snprintf(path, 128, "/dev/shm/kvp-%s-%s", f->uuid_text, rest);
}

static inline void *fake_object(const struct fake *f, const char *rest, uint64_t bytes)
{
	char path[128];
	void *map;
	int fd;

	fake_path(f, path, rest);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	assert_int_equal(posix_fallocate(fd, 0, (off_t)bytes), 0);
	map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	close(fd);
	return map;
}

/* As a daemon that lives: with the lock on the header. */
static inline void fake_live(struct fake *f)
{
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
	char path[128];

	fake_path(f, path, "header");
	f->life_fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(f->life_fd >= 0);
	assert_int_equal(fcntl(f->life_fd, F_OFD_SETLK, &lock), 0);
}

static inline void fake_make_header(struct fake *f)
{
	struct kvp_pool_header *h = f->header = fake_object(f, "header", KVP_PAGE);
	char boot[37] = "";
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY);

	assert_true(read(fd, boot, 36) == 36);
	close(fd);
	fake_live(f);
	for (unsigned i = 0, n = 0; i < 36; i++)
		if (boot[i] != '-') {
			unsigned byte;

			sscanf(boot + i, "%2x", &byte);
			h->boot_id[n++] = (uint8_t)byte;
			i++;
		}
	h->magic = KVP_MAGIC_HEADER;
	h->layout_major = KVP_LAYOUT_MAJOR;
	h->layout_minor = KVP_LAYOUT_MINOR;
	h->endian = KVP_ENDIAN;
	h->header_bytes = sizeof(*h);
	memcpy(h->uuid, f->uuid, 16);
	h->epoch = 1;
	h->heartbeat_ns = fake_now();
	h->state = KVP_DAEMON_SERVING;
	h->daemon_pid = getpid();
	h->max_places = FAKE_PLACES;
	h->pool_bytes = 2 * FAKE_SLAB;
	h->slab_bytes = FAKE_SLAB;
	h->pin_stride = FAKE_STRIDE;
	strcpy(h->pool_name, f->name);
	strcpy(h->socket, f->socket);
}

static inline void fake_make_stats(struct fake *f)
{
	uint32_t ns_off = (sizeof(struct kvp_stats) + 63) & ~63u;
	uint32_t session_off = ns_off + KVP_STATS_NS_MAX * (uint32_t)sizeof(struct kvp_ns_row);
	uint32_t slab_off = session_off + KVP_STATS_SESSIONS_MAX * (uint32_t)sizeof(struct kvp_session_row);
	uint32_t curve_off = slab_off + FAKE_PLACES * (uint32_t)sizeof(struct kvp_slab_row);
	uint64_t bytes = curve_off + sizeof(struct kvp_curve);
	struct kvp_stats *s = f->stats = fake_object(f, "stats", bytes);

	s->magic = KVP_MAGIC_STATS;
	s->layout_major = KVP_LAYOUT_MAJOR;
	s->layout_minor = KVP_LAYOUT_MINOR;
	s->endian = KVP_ENDIAN;
	memcpy(s->uuid, f->uuid, 16);
	s->object_bytes = bytes;
	s->counters_bytes = sizeof(struct kvp_counters);
	s->ns_row_bytes = sizeof(struct kvp_ns_row);
	s->session_row_bytes = sizeof(struct kvp_session_row);
	s->slab_row_bytes = sizeof(struct kvp_slab_row);
	s->ns_off = ns_off;
	s->session_off = session_off;
	s->slab_off = slab_off;
	s->curve_off = curve_off;
	s->curve_bytes = sizeof(struct kvp_curve);
	s->max_places = FAKE_PLACES;
	s->version = 2;
	s->next_number = 3;
	s->counters.pool_bytes = 2 * FAKE_SLAB;
	s->counters.slabs = 2;
	s->counters.slab_bytes_allocated = 2 * FAKE_SLAB;
	s->counters.slab_bytes_free = FAKE_SLAB;
	s->counters.sessions = 1;
	f->curve = (struct kvp_curve *)(void *)((char *)s + curve_off);
	f->ns_row = (struct kvp_ns_row *)(void *)((char *)s + ns_off);
	f->session_row = (struct kvp_session_row *)(void *)((char *)s + session_off);
	f->slab_rows = (struct kvp_slab_row *)(void *)((char *)s + slab_off);
}

static inline void fake_make_slabs(struct fake *f)
{
	munmap(fake_object(f, "slab-1", FAKE_SLAB), FAKE_SLAB);
	munmap(fake_object(f, "slab-2", FAKE_SLAB), FAKE_SLAB);
	f->slab_rows[0] = (struct kvp_slab_row){
		.number = 1, .bytes = FAKE_SLAB, .ns_id = FAKE_NS, .use = KVP_SLAB_BLOCKS, .page_kib = 4};
	f->slab_rows[1] = (struct kvp_slab_row){.number = 2, .bytes = FAKE_SLAB, .use = KVP_SLAB_SPARE, .page_kib = 4};
}

static inline void fake_hint(struct fake *f, uint64_t slot)
{
	const struct kvp_key *key = &f->blocks[slot].key;
	struct kvp_index_bucket *bucket = &f->index[kvp_index_home(key, FAKE_BUCKETS)];

	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
		if (!bucket->hint[i]) {
			bucket->hint[i] = kvp_hint(key, slot);
			return;
		}
	fail_msg("bucket full");
}

static inline void fake_publish(struct fake *f, uint64_t slot, uint64_t key, uint64_t parent)
{
	struct kvp_block *b = &f->blocks[slot];

	b->key = (struct kvp_key){{key, key << 40}};
	b->parent = (struct kvp_key){{parent, parent << 40}};
	b->used_bytes = FAKE_BLOCK;
	b->used_tokens = 16;
	b->word = kvp_word(1, KVP_BLOCK_PUBLISHED);
	fake_hint(f, slot);
}

static inline void fake_make_ns(struct fake *f)
{
	uint64_t slab_off = 2 * KVP_PAGE, index_off = 3 * KVP_PAGE, block_off = 4 * KVP_PAGE;
	uint64_t bytes = block_off + FAKE_PLACES * FAKE_SLOTS * sizeof(struct kvp_block);
	struct kvp_ns_header *h;

	h = f->ns = fake_object(f, "ns-0000000000000011", bytes);
	h->magic = KVP_MAGIC_NS;
	h->layout_major = KVP_LAYOUT_MAJOR;
	h->layout_minor = KVP_LAYOUT_MINOR;
	h->endian = KVP_ENDIAN;
	h->header_bytes = sizeof(*h);
	h->object_bytes = bytes;
	h->ns_id = FAKE_NS;
	h->state = KVP_NS_LIVE;
	h->block_bytes = h->block_stride = FAKE_BLOCK;
	h->slab_bytes = FAKE_SLAB;
	h->slots_per_slab = FAKE_SLOTS;
	h->max_places = FAKE_PLACES;
	h->slab_off = slab_off;
	h->block_off = block_off;
	h->index_off = index_off;
	h->n_buckets = FAKE_BUCKETS;
	h->mode = 0600;
	h->desc.block_tokens = 16;
	strcpy(h->name, "model");
	f->slab_table = (struct kvp_slab *)(void *)((char *)h + slab_off);
	f->index = (struct kvp_index_bucket *)(void *)((char *)h + index_off);
	f->blocks = (struct kvp_block *)(void *)((char *)h + block_off);
	f->slab_table[0].number = 1;
	f->slab_table[0].bytes = FAKE_SLAB;
	for (unsigned i = 0; i < FAKE_SLOTS; i++)
		f->blocks[i].slab_number = 1;
	fake_publish(f, 0, 0xa1, 0);
	fake_publish(f, 1, 0xa2, 0xa1);
	fake_publish(f, 2, 0xa3, 0xa2);
	f->blocks[3].word = kvp_word(1, KVP_BLOCK_GRANTED);
	f->blocks[3].key.w[0] = FAKE_SESSION;
	f->ns_row->mode = 0600;
	f->ns_row->block_tokens = 16;
	f->ns_row->block_bytes = FAKE_BLOCK;
	f->ns_row->slab_bytes = FAKE_SLAB;
	f->ns_row->slots_per_slab = FAKE_SLOTS;
	f->ns_row->layout = KVP_LAYOUT_HND;
	strcpy(f->ns_row->name, "model");
	f->ns_row->counters.slots = FAKE_SLOTS;
	f->ns_row->counters.free = FAKE_SLOTS - 4;
	f->ns_row->counters.granted = 1;
	f->ns_row->counters.published = 3;
	f->ns_row->counters.held = 1;
	f->ns_row->counters.lookups = 10;
	f->ns_row->counters.hits_ram = 6;
	f->ns_row->counters.hits_spill = 1;
	f->ns_row->counters.miss_never = 2;
	f->ns_row->counters.miss_evicted = 1;
	f->ns_row->ns_id = FAKE_NS;
}

static inline void fake_make_session(struct fake *f)
{
	uint64_t bytes = KVP_SESSION_PINS_OFF + FAKE_PLACES * FAKE_STRIDE;
	struct kvp_session_header *h = f->session = fake_object(f, "sess-0000000000000022", bytes);

	h->magic = KVP_MAGIC_SESSION;
	h->layout_major = KVP_LAYOUT_MAJOR;
	h->endian = KVP_ENDIAN;
	h->session_id = FAKE_SESSION;
	h->word = 1;
	h->pins_off = KVP_SESSION_PINS_OFF;
	h->pin_stride = FAKE_STRIDE;
	h->object_bytes = bytes;
	f->pins = (struct kvp_pin *)(void *)((char *)h + KVP_SESSION_PINS_OFF);
	f->pins[0].count = 2; /* two threads */
	f->session_row->uid = getuid();
	f->session_row->pid = getpid();
	f->session_row->connected = 1;
	f->session_row->opened_ns = fake_now();
	f->session_row->pins = 1;
	f->session_row->grants = 1;
	strcpy(f->session_row->comm, "engine");
	f->session_row->session_id = FAKE_SESSION;
}

static inline void fake_remove(struct fake *f)
{
	char prefix[64], path[300];
	DIR *dir = opendir("/dev/shm");
	struct dirent *entry;

	snprintf(prefix, sizeof(prefix), "kvp-%s-", f->uuid_text);
	while ((entry = readdir(dir)))
		if (!strncmp(entry->d_name, prefix, strlen(prefix))) {
			snprintf(path, sizeof(path), "/dev/shm/%s", entry->d_name);
			unlink(path);
		}
	closedir(dir);
	unlink(f->pool_file);
	unlink(f->socket);
	rmdir(f->dir);
}

static inline void fake_uuid(struct fake *f)
{
	assert_int_equal(getrandom(f->uuid, 16, 0), 16);
	for (unsigned i = 0, n = 0; i < 16; i++)
		n += (unsigned)sprintf(
			f->uuid_text + n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", f->uuid[i]);
}

/* A second pool on the same socket and name: another UUID, nothing shared. */
static inline struct fake *fake_beside(const struct fake *other)
{
	struct fake *f = calloc(1, sizeof(*f));

	assert_non_null(f);
	fake_uuid(f);
	snprintf(f->name, sizeof(f->name), "%s", other->name);
	snprintf(f->socket, sizeof(f->socket), "%s", other->socket);
	fake_make_header(f);
	fake_make_stats(f);
	return f;
}

static inline int fake_setup(void **state)
{
	struct fake *f = calloc(1, sizeof(*f));
	int fd;

	assert_non_null(f);
	fake_uuid(f);
	snprintf(f->name, sizeof(f->name), "test-%.8s", f->uuid_text);
	strcpy(f->dir, "/tmp/kvctl-test-XXXXXX");
	assert_non_null(mkdtemp(f->dir));
	snprintf(f->socket, sizeof(f->socket), "%s/sock", f->dir);
	snprintf(f->pool_file, sizeof(f->pool_file), "/dev/shm/kvpool.%s", f->name);
	fd = open(f->pool_file, O_RDWR | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	assert_true(dprintf(fd, "%s %-26d\n", f->uuid_text, (int)getpid()) == 64);
	close(fd);
	fake_make_header(f);
	fake_make_stats(f);
	fake_make_slabs(f);
	fake_make_ns(f);
	fake_make_session(f);
	f->out = malloc(FAKE_OUTPUT);
	f->err = malloc(FAKE_OUTPUT);
	*state = f;
	return 0;
}

static inline int fake_teardown(void **state)
{
	struct fake *f = *state;

	fake_remove(f);
	free(f->out);
	free(f->err);
	free(f);
	return 0;
}

/* build/kvctl stands beside or above this test; KVCTL names another one. */
static inline const char *kvctl_path(void)
{
	static const char *const places[] = {"", "/..", "/../..", "/../../.."};
	static char path[PATH_MAX + 32];
	char self[PATH_MAX] = "";

	if (getenv("KVCTL"))
		return getenv("KVCTL");
	assert_true(readlink("/proc/self/exe", self, sizeof(self) - 1) > 0);
	dirname(self);
	for (unsigned i = 0; i < 4; i++) {
		snprintf(path, sizeof(path), "%s%s/kvctl", self, places[i]);
		if (access(path, X_OK) == 0)
			return path;
	}
	fail_msg("no kvctl beside or above %s: build it, or name it in KVCTL", self);
	return NULL;
}

static inline void slurp(int fd, char *text)
{
	ssize_t n = pread(fd, text, FAKE_OUTPUT - 1, 0);

	assert_true(n >= 0);
	text[n] = 0;
	close(fd);
}

/* kvctl with these arguments, stdout to @out_fd or kept in f->out. Return: exit code; a signal fails the test. */
static inline int run_to(struct fake *f, int out_fd, const char *const *argv)
{
	int out = out_fd >= 0 ? out_fd : memfd_create("out", 0), err = memfd_create("err", 0), status;
	pid_t pid;

	if (f->header && !f->silent)
		f->header->heartbeat_ns = fake_now();
	pid = fork();
	if (pid == 0) {
		signal(SIGPIPE, SIG_DFL);
		dup2(out, 1);
		dup2(err, 2);
		unsetenv("KVPOOL_SOCKET");
		execv(kvctl_path(), (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	f->pid = pid;
	assert_true(waitpid(pid, &status, 0) == pid);
	slurp(err, f->err);
	if (out_fd < 0)
		slurp(out, f->out);
	if (!WIFEXITED(status))
		fail_msg("kvctl was ended by signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

#define run(f, ...) run_to(f, -1, (const char *const[]){"kvctl", __VA_ARGS__, NULL})
#define run_here(f, command, ...) run(f, command, "--socket", (f)->socket, ##__VA_ARGS__)

#define assert_says(text, part) \
	do { \
		if (!strstr(text, part)) \
			fail_msg("\"%s\" is not in:\n%s", part, text); \
	} while (0)

static inline json_t *parsed(const struct fake *f)
{
	json_error_t error;
	json_t *json = json_loads(f->out, 0, &error);

	if (!json)
		fail_msg("no JSON: %s\n%s", error.text, f->out);
	return json;
}

#endif
