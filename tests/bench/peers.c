/*
 * peers.c - kvbench-peers: what others take to hand a block to another process, for kvctl bench
 *
 *	kvbench-peers lookup|share lmdb|memcached|redis N_BLOCKS BLOCK_BYTES N_PROCESSES
 *
 * One process stores N blocks under 16-byte keys, then N_PROCESSES others get them in a random order: "lookup" times
 * the get alone, "share" the get and a read of every cache line.  First passes are not timed.  Servers are started
 * here, on a socket in a directory of their own, and everything is removed at the end.  Prints one line: "ns VALUE",
 * nanoseconds a block, the mean of the processes' medians; or "skip REASON".
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <hiredis/hiredis.h>
#include <inttypes.h>
#include <lmdb.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROCESSES_MAX 16
#define SLICES 15

struct job {
	bool read_all;
	uint64_t n_blocks, block_bytes;
	unsigned n_processes;
	char dir[64];
	char socket[96];
};

/* One of the peers.  open() in each process; get() gives the bytes, valid until the next get(). */
struct peer {
	const char *name;
	const char *const *server; /* argv, "@" is the socket; NULL: none */
	int (*open)(struct job *job, bool writer);
	int (*put)(const struct job *job, const uint64_t key[2], const void *data);
	const void *(*get)(const struct job *job, const uint64_t key[2]);
	void (*close)(void);
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* LMDB's get waits for nobody: its CPU time is its time on a quiet machine.  Servers and what reads memory: the
   clock. */
static uint64_t meter_ns(bool cpu)
{
	struct timespec ts;

	clock_gettime(cpu ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void key_of(uint64_t i, uint64_t key[2])
{
	/* splitmix64: as uniform as a keyed hash */
	for (unsigned w = 0; w < 2; w++) {
		uint64_t z = (2 * i + w + 1) * 0x9e3779b97f4a7c15u;

		z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
		z = (z ^ z >> 27) * 0x94d049bb133111ebu;
		key[w] = z ^ z >> 31;
	}
}

/* ---- LMDB, on tmpfs, values read in place ---- */

static MDB_env *lmdb_env;
static MDB_txn *lmdb_txn;
static MDB_dbi lmdb_dbi;
static uint64_t lmdb_in_txn;

static int lmdb_open(struct job *job, bool writer)
{
	size_t map = job->n_blocks * (job->block_bytes + 8192 + 256) + (64u << 20);
	int r = mdb_env_create(&lmdb_env);

	r = r ? r : mdb_env_set_mapsize(lmdb_env, map);
	r = r ? r
	      : mdb_env_open(
			lmdb_env, job->dir, MDB_NOSYNC | MDB_NOMEMINIT | (writer ? MDB_WRITEMAP : MDB_RDONLY), 0600);
	r = r ? r : mdb_txn_begin(lmdb_env, NULL, writer ? 0 : MDB_RDONLY, &lmdb_txn);
	return r ? r : mdb_dbi_open(lmdb_txn, NULL, writer ? MDB_CREATE : 0, &lmdb_dbi);
}

static int lmdb_put(const struct job *job, const uint64_t key[2], const void *data)
{
	MDB_val k = {16, (void *)(uintptr_t)key}, v = {job->block_bytes, (void *)(uintptr_t)data};
	int r = mdb_put(lmdb_txn, lmdb_dbi, &k, &v, 0);

	if (!r && ++lmdb_in_txn % 1024 == 0) {
		r = mdb_txn_commit(lmdb_txn);
		r = r ? r : mdb_txn_begin(lmdb_env, NULL, 0, &lmdb_txn);
	}
	return r;
}

static const void *lmdb_get(const struct job *job, const uint64_t key[2])
{
	MDB_val k = {16, (void *)(uintptr_t)key}, v;

	return mdb_get(lmdb_txn, lmdb_dbi, &k, &v) == 0 && v.mv_size == job->block_bytes ? v.mv_data : NULL;
}

static void lmdb_close(void)
{
	mdb_txn_commit(lmdb_txn);
	mdb_env_close(lmdb_env);
}

/* ---- memcached, its text protocol over a Unix socket, into a buffer touched before ---- */

static int mc_fd;
static char *mc_buffer;

static int socket_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	uint64_t end = now_ns() + 5000000000u;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	while (connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		if (now_ns() > end) {
			close(fd);
			return -1;
		}
		usleep(10000);
	}
	return fd;
}

static int write_all(const void *data, size_t n)
{
	for (const char *at = data; n;) {
		ssize_t r = write(mc_fd, at, n);

		if (r <= 0)
			return -1;
		at += r;
		n -= (size_t)r;
	}
	return 0;
}

static int mc_open(struct job *job, bool writer)
{
	(void)writer;
	mc_fd = socket_connect(job->socket);
	mc_buffer = malloc(job->block_bytes + 4096);
	if (mc_buffer)
		memset(mc_buffer, 1, job->block_bytes + 4096);
	return mc_fd < 0 || !mc_buffer;
}

static int mc_put(const struct job *job, const uint64_t key[2], const void *data)
{
	char line[96];
	int n = snprintf(line, sizeof(line), "set %016" PRIx64 "%016" PRIx64 " 0 0 %" PRIu64 "\r\n", key[0], key[1],
		job->block_bytes);

	if (write_all(line, (size_t)n) || write_all(data, job->block_bytes) || write_all("\r\n", 2))
		return -1;
	n = (int)read(mc_fd, line, sizeof(line));
	return n < 6 || memcmp(line, "STORED", 6);
}

static const void *mc_get(const struct job *job, const uint64_t key[2])
{
	char line[64];
	size_t have = 0, want = 0;
	int n = snprintf(line, sizeof(line), "get %016" PRIx64 "%016" PRIx64 "\r\n", key[0], key[1]);

	if (write_all(line, (size_t)n))
		return NULL;
	for (;;) {
		ssize_t r = read(mc_fd, mc_buffer + have, job->block_bytes + 4096 - have);

		if (r <= 0)
			return NULL;
		have += (size_t)r;
		if (!want) {
			const char *end = memchr(mc_buffer, '\n', have);

			if (have >= 5 && !memcmp(mc_buffer, "END\r\n", 5))
				return NULL;
			if (end)
				want = (size_t)(end + 1 - mc_buffer) + job->block_bytes + 7; /* "\r\nEND\r\n" */
		}
		if (want && have >= want)
			return mc_buffer + want - job->block_bytes - 7;
	}
}

static void mc_close(void)
{
	close(mc_fd);
	free(mc_buffer);
}

/* ---- Redis, with hiredis ---- */

static redisContext *redis;
static redisReply *redis_last;

static int redis_open(struct job *job, bool writer)
{
	int fd = socket_connect(job->socket);

	(void)writer;
	if (fd < 0)
		return -1;
	close(fd);
	redis = redisConnectUnix(job->socket);
	return !redis || redis->err;
}

static int redis_put(const struct job *job, const uint64_t key[2], const void *data)
{
	redisReply *reply = redisCommand(redis, "SET %b %b", key, (size_t)16, data, (size_t)job->block_bytes);
	int r = !reply || reply->type == REDIS_REPLY_ERROR;

	if (reply)
		freeReplyObject(reply);
	return r;
}

static const void *redis_get(const struct job *job, const uint64_t key[2])
{
	if (redis_last)
		freeReplyObject(redis_last);
	redis_last = redisCommand(redis, "GET %b", key, (size_t)16);
	return redis_last && redis_last->type == REDIS_REPLY_STRING && redis_last->len == job->block_bytes
		       ? redis_last->str
		       : NULL;
}

static void redis_close(void)
{
	redisFree(redis);
}

static const char *const mc_argv[] = {"memcached", "-s", "@", "-m", "6000", "-I", "64m", "-t", "2", "-u", "root", NULL};
static const char *const redis_argv[] = {"redis-server", "--port", "0", "--unixsocket", "@", "--save", "",
	"--appendonly", "no", "--logfile", "/dev/null", "--dir", "/", "--daemonize", "no", NULL};

static const struct peer peers[] = {
	{"lmdb", NULL, lmdb_open, lmdb_put, lmdb_get, lmdb_close},
	{"memcached", mc_argv, mc_open, mc_put, mc_get, mc_close},
	{"redis", redis_argv, redis_open, redis_put, redis_get, redis_close},
};

/* ---- the run ---- */

static int skip(const char *reason)
{
	printf("skip %s\n", reason);
	return 0;
}

static pid_t server_start(const struct peer *peer, const struct job *job)
{
	const char *argv[24];
	unsigned n = 0;
	pid_t pid;

	for (; peer->server[n]; n++)
		argv[n] = !strcmp(peer->server[n], "@") ? job->socket : peer->server[n];
	argv[n] = NULL;
	pid = fork();
	if (pid == 0) {
		int null = open("/dev/null", O_RDWR);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(null, 1);
		dup2(null, 2);
		if (chdir(job->dir))
			_exit(126);
		execvp(argv[0], (char *const *)(uintptr_t)argv);
		_exit(127);
	}
	return pid;
}

static uint64_t read_lines(const void *data, uint64_t bytes)
{
	const uint64_t *at = data;
	uint64_t sum = 0;

	/* values of Redis and memcached are not aligned: memcpy is a plain load all the same */
	for (uint64_t i = 0; i < bytes / 8; i += 8) {
		uint64_t word;

		memcpy(&word, at + i, sizeof(word));
		sum += word;
	}
	return sum;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* All keys in a random order, read one after the other: making them is no part of what is timed. */
static uint64_t (*keys_shuffled(uint64_t n, uint64_t seed))[2]
{
	uint64_t(*keys)[2] = malloc(n * sizeof(*keys));

	for (uint64_t i = 0; keys && i < n; i++) {
		uint64_t j;

		seed = seed * 6364136223846793005u + 1442695040888963407u;
		j = (seed >> 20) % (i + 1);
		memcpy(keys[i], keys[j], sizeof(keys[i]));
		key_of(i, keys[j]);
	}
	return keys;
}

/* Median over slices of the time a get takes, in a process of its own; of CPU time, where slices lie apart, the value
   below which a tenth of them lies, as kvctl bench pin tells its own. < 0: a get failed. */
static double measure(const struct peer *peer, struct job *job, unsigned seed)
{
	uint64_t n = job->n_blocks, at = 0, sum = 0;
	uint64_t(*keys)[2] = keys_shuffled(n, seed);
	uint64_t slice = job->read_all ? n / 3 + 1 : 200000;
	bool cpu = !peer->server && !job->read_all;
	double times[SLICES];

	if (!job->read_all && peer->server)
		slice = 5000; /* a round trip each */
	if (!keys || peer->open(job, false))
		return -1;
	for (unsigned s = 0; s <= SLICES; s++) { /* the first one is not counted: pages are touched, servers warm */
		uint64_t rounds = s ? slice : (n > slice ? n : slice), start;

		if (!s && peer->server && !job->read_all)
			rounds = slice;
		start = meter_ns(cpu);
		for (uint64_t i = 0; i < rounds; i++) {
			const void *data = peer->get(job, keys[at]);

			at = at + 1 == n ? 0 : at + 1;
			if (!data)
				return -1;
			sum += job->read_all ? read_lines(data, job->block_bytes) : *(const unsigned char *)data;
		}
		if (s)
			times[s - 1] = (double)(meter_ns(cpu) - start) / (double)rounds;
		if (cpu)
			nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
	}
	if (sum == 42)
		fputc(' ', stderr); /* the sum is wanted */
	qsort(times, SLICES, sizeof(times[0]), compare);
	return times[cpu ? SLICES / 10 : SLICES / 2];
}

static int store(const struct peer *peer, struct job *job)
{
	char *data = malloc(job->block_bytes);
	int r = data ? peer->open(job, true) : -1;

	for (uint64_t i = 0; !r && i < job->n_blocks; i++) {
		uint64_t key[2];

		key_of(i, key);
		memset(data, (int)i, job->block_bytes);
		r = peer->put(job, key, data);
	}
	free(data);
	if (!r)
		peer->close();
	return r;
}

static int run(const struct peer *peer, struct job *job)
{
	double *results = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), sum = 0;
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(store(peer, job) ? 1 : 0);
	waitpid(pid, &status, 0);
	if (status)
		return skip("storing failed: is it installed, and is there memory?");
	for (unsigned p = 0; p < job->n_processes; p++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			results[p] = measure(peer, job, p + 1);
			_exit(0);
		}
	for (unsigned p = 0; p < job->n_processes; p++)
		waitpid(-1, &status, 0);
	for (unsigned p = 0; p < job->n_processes; p++) {
		if (results[p] <= 0)
			return skip("a get failed: did it evict, for want of memory?");
		sum += results[p];
	}
	printf("ns %.1f\n", sum / job->n_processes);
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

int main(int argc, char **argv)
{
	struct job job = {.dir = "/dev/shm/kvbench-XXXXXX"};
	const struct peer *peer = NULL;
	pid_t server = 0;
	int r;

	for (unsigned i = 0; argc == 6 && i < sizeof(peers) / sizeof(peers[0]); i++)
		if (!strcmp(argv[2], peers[i].name))
			peer = &peers[i];
	if (!peer || (strcmp(argv[1], "lookup") && strcmp(argv[1], "share"))) {
		fprintf(stderr,
			"usage: kvbench-peers lookup|share lmdb|memcached|redis N_BLOCKS BLOCK_BYTES N_PROCESSES\n");
		return 2;
	}
	job.read_all = !strcmp(argv[1], "share");
	job.n_blocks = strtoull(argv[3], NULL, 10);
	job.block_bytes = strtoull(argv[4], NULL, 10);
	job.n_processes = (unsigned)atoi(argv[5]);
	if (!job.n_blocks || !job.block_bytes || !job.n_processes || job.n_processes > PROCESSES_MAX)
		return 2;
	signal(SIGPIPE, SIG_IGN);
	if (!mkdtemp(job.dir))
		return skip("cannot make a directory in /dev/shm");
	snprintf(job.socket, sizeof(job.socket), "%s/s", job.dir);
	fflush(stdout);
	if (peer->server)
		server = server_start(peer, &job);
	/* a server that is not installed: its process has ended, and nobody answers */
	r = run(peer, &job);
	if (server) {
		kill(server, SIGKILL);
		waitpid(server, NULL, 0);
	}
	nftw(job.dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
	return r;
}
