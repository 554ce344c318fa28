/* bench_self.c - what kvctl bench runs beside itself: a daemon of its own, and the helper that measures others */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "admin.h"
#include "bench.h"
#include "kvctl.h"
#include "pool.h"
#include "purge.h"

#define START_NS 60000000000ull
#define STOP_NS 20000000000ull
#define ASK_NS 600000000000ull /* a drain of a million records on a slow disk */

/* Beside this program (build tree, or installed), in sbin beside its bin, or by PATH. */
static const char *program_path(const char *name, char path[PATH_MAX])
{
	static const char *const places[] = {"%s/%s", "%s/../sbin/%s"};
	char self[PATH_MAX] = "", *dir;

	if (readlink("/proc/self/exe", self, sizeof(self) - 1) > 0) {
		dir = dirname(self);
		for (unsigned i = 0; i < 2; i++) {
			snprintf(path, PATH_MAX, places[i], dir, name);
			if (access(path, X_OK) == 0)
				return path;
		}
	}
	snprintf(path, PATH_MAX, "%s", name);
	return path;
}

/* The last line of the daemon's log, which has errors only: why it did not start. */
static void log_tail(const char *path, char *text, size_t room)
{
	char log[8192] = "", *line;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : read(fd, log, sizeof(log) - 1);

	if (fd >= 0)
		close(fd);
	while (n > 0 && log[n - 1] == '\n')
		log[--n] = 0;
	line = strrchr(log, '\n');
	snprintf(text, room, "%s", line ? line + 1 : log);
}

static void daemon_exec(const struct bench_daemon *daemon, uint64_t pool_bytes, uint64_t spill_bytes, unsigned depth)
{
	char path[PATH_MAX], pool[32], spill[PATH_MAX], depth_text[16], log[128];
	sigset_t none;
	int fd;

	snprintf(log, sizeof(log), "%s/log", daemon->dir);
	snprintf(pool, sizeof(pool), "%" PRIu64, pool_bytes);
	snprintf(spill, sizeof(spill), "%s:%" PRIu64, daemon->device ? daemon->device : daemon->dir, spill_bytes);
	snprintf(depth_text, sizeof(depth_text), "%u", depth ? depth : 32);
	prctl(PR_SET_PDEATHSIG, SIGTERM); /* nobody else would end it */
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	fd = open(log, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	dup2(fd, STDOUT_FILENO);
	dup2(fd, STDERR_FILENO);
	unsetenv("NOTIFY_SOCKET");
	execlp(program_path("kvpoold", path), "kvpoold", "--socket", daemon->socket, "--name", daemon->name, "--pool",
		pool, "--spill", spill_bytes ? spill : "off", "--spill-depth", depth_text, "--spill-compress", "none",
		"--spill-scrub", "0", "--log-level", "err", daemon->device ? "--namespace-dir" : NULL, daemon->dir,
		(char *)NULL); /* fio neither compresses nor reads what is cold beside */
	fprintf(stderr, "cannot run %s: %s\n", path, strerror(errno));
	_exit(127);
}

/* Serving, by its header: the quiet way, nothing is said of a pool that is not there yet. */
static bool daemon_serves(const struct bench_daemon *daemon)
{
	char path[PATH_MAX];
	struct kvp_open_opts opts = {
		.size = sizeof(opts), .socket = path, .connect_timeout_ms = 100, .stock_blocks = KVP_STOCK_NONE};
	struct kvp_client *client;
	bool serves;

	snprintf(path, sizeof(path), "%s", daemon->socket);
	if (access(path, F_OK) < 0 || kvp_open(&opts, &client) < 0)
		return false;
	serves = kvp_state(client, NULL) == KVP_ATTACHED && kvp_ping(client, kvp_deadline_ms(1000)) == 0;
	kvp_close(client);
	return serves;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* The pool of an earlier run of this user that was killed before it could clean up, and its directory. */
static void purge_leftover(const char *name)
{
	struct pool pool;
	char *slash;

	if (pool_find(&pool, NULL, name) || pool.uid != geteuid())
		return;
	bench_say("removing the pool of an earlier run that was killed: %s", name);
	if (purge_without_daemon(NULL, name, true))
		return;
	slash = strrchr(pool.socket, '/');
	if (slash)
		*slash = 0;
	slash = strrchr(pool.socket, '/');
	if (slash && !strncmp(slash, "/kvbench-", strlen("/kvbench-")))
		nftw(pool.socket, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Gigabytes nobody else would give back. */
static void purge_leftovers(void)
{
	DIR *dir = opendir(POOL_SHM_DIR);
	struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		int pid = 0, end = 0;

		if (sscanf(entry->d_name, "kvpool.bench-%d%n", &pid, &end) != 1 || entry->d_name[end] || pid <= 0)
			continue;
		if (kill(pid, 0) < 0 && errno == ESRCH)
			purge_leftover(entry->d_name + strlen("kvpool."));
	}
	if (dir)
		closedir(dir);
}

int bench_daemon_make(struct bench_daemon *daemon)
{
	const char *tmp = getenv("TMPDIR");

	memset(daemon, 0, sizeof(*daemon));
	purge_leftovers();
	/* not /tmp, which may be memory: a spill store belongs on a disk */
	snprintf(daemon->dir, sizeof(daemon->dir), "%.40s/kvbench-XXXXXX", tmp ? tmp : "/var/tmp");
	if (!mkdtemp(daemon->dir)) {
		complain("bench: cannot make %s: %s; name another place in TMPDIR", daemon->dir, strerror(errno));
		daemon->dir[0] = 0;
		return KVCTL_FAILED;
	}
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/sock", daemon->dir);
	snprintf(daemon->name, sizeof(daemon->name), "bench-%d", (int)getpid());
	return 0;
}

int bench_daemon_run(struct bench_daemon *daemon, uint64_t pool_bytes, uint64_t spill_bytes, unsigned depth)
{
	uint64_t end = now_ns() + START_NS;
	char log[128], why[256];
	pid_t pid = fork(); /* not into *daemon at once: the child may share it */

	if (pid == 0)
		daemon_exec(daemon, pool_bytes, spill_bytes, depth);
	daemon->pid = pid;
	while (now_ns() < end) {
		if (waitpid(daemon->pid, NULL, WNOHANG) != 0) {
			daemon->pid = 0;
			break;
		}
		if (daemon_serves(daemon))
			return 0;
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	snprintf(log, sizeof(log), "%s/log", daemon->dir);
	log_tail(log, why, sizeof(why));
	complain("bench: kvpoold did not start: %s", why[0] ? why : "no word from it");
	return KVCTL_FAILED;
}

int bench_daemon_start(
	struct bench_daemon *daemon, const char *device, uint64_t pool_bytes, uint64_t spill_bytes, unsigned depth)
{
	int r = bench_daemon_make(daemon);

	if (r)
		return r;
	daemon->device = device;
	bench_say("starting a daemon with a pool of %" PRIu64 " MiB ...", pool_bytes >> 20);
	r = bench_daemon_run(daemon, pool_bytes, spill_bytes, depth);
	if (r)
		bench_daemon_stop(daemon);
	return r;
}

void bench_daemon_halt(struct bench_daemon *daemon)
{
	uint64_t end = now_ns() + STOP_NS;

	if (daemon->pid > 0)
		kill(daemon->pid, SIGTERM);
	while (daemon->pid > 0 && waitpid(daemon->pid, NULL, WNOHANG) == 0) {
		if (now_ns() > end)
			kill(daemon->pid, SIGKILL);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	}
	daemon->pid = 0;
}

void bench_daemon_forget(const struct bench_daemon *daemon)
{
	char path[POOL_PATH_MAX];

	snprintf(path, sizeof(path), POOL_SHM_DIR "/kvpool.%s", daemon->name);
	if (daemon->name[0] && access(path, F_OK) == 0)
		purge_without_daemon(NULL, daemon->name, true);
}

void bench_daemon_stop(struct bench_daemon *daemon)
{
	bench_daemon_halt(daemon);
	bench_daemon_forget(daemon);
	if (daemon->dir[0])
		nftw(daemon->dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int bench_ask_daemon(const char *socket, uint16_t type)
{
	struct kvp_wire_admin ask = {.n = UINT64_MAX};
	struct options options = {.command = "bench", .socket = socket};
	struct kvp_wire_admin_done done = {0};

	return admin_do(&options, NULL, type, &ask, sizeof(ask), ASK_NS, &done);
}

/* Return: what a program says with "ns VALUE"; < 0: @line has why not, or nothing. */
static double command_ns(const char *command, char line[256])
{
	FILE *out = popen(command, "re");
	double ns;

	line[0] = 0;
	if (out) {
		if (!fgets(line, 256, out))
			line[0] = 0;
		pclose(out);
	}
	line[strcspn(line, "\n")] = 0;
	return sscanf(line, "ns %lf", &ns) == 1 && ns > 0 ? ns : -1;
}

double bench_peer(const char *what, const char *peer, uint64_t n_blocks, uint64_t block_bytes, unsigned n_processes)
{
	char path[PATH_MAX], command[PATH_MAX + 128], line[256];
	double ns;

	program_path("kvbench-peers", path);
	if (!strchr(path, '/')) {
		bench_say("%s left out: no kvbench-peers beside kvctl (make %s)", peer, "build/kvbench-peers");
		return -1;
	}
	bench_say("%s: %s of %" PRIu64 " blocks of %" PRIu64 " bytes, %u processes ...", peer, what, n_blocks,
		block_bytes, n_processes);
	snprintf(command, sizeof(command), "'%s' %s %s %" PRIu64 " %" PRIu64 " %u", path, what, peer, n_blocks,
		block_bytes, n_processes);
	ns = command_ns(command, line);
	if (ns < 0)
		bench_say(
			"%s left out: %s", peer, strncmp(line, "skip ", 5) ? "no answer from kvbench-peers" : line + 5);
	return ns;
}

double bench_ring_us(const char *file, bool write, uint64_t block_bytes, unsigned depth, uint64_t bytes)
{
	char path[PATH_MAX], command[2 * PATH_MAX], line[256];

	snprintf(command, sizeof(command), "exec '%s' '%s' %s %" PRIu64 " %u %" PRIu64 " 2>/dev/null",
		program_path("kvbench-ring", path), file, write ? "write" : "read", block_bytes, depth, bytes);
	return command_ns(command, line) / 1e3;
}
