/*
 * bundle.c - kvctl support-bundle: everything somebody far away needs to judge a pool, in one file
 *
 * Runs this kvctl's own commands and a few of the system's, each for a limited time, into files of a directory, and
 * packs that.  No block, key or secret of a namespace is in it: none of these commands prints any.
 */
#define _GNU_SOURCE 1
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "option.h"
#include "pool.h"

#define WORDS_MAX 16
#define LIMIT_S "20" /* for each command */

struct bundle {
	char dir[1024];
	char file[4096];
	char kvctl[4096];
	const struct pool *pool;
};

/* What a command prints goes to a file of this name, its complaints too. */
struct piece {
	const char *file;
	const char *words[WORDS_MAX - 6];
};
static const struct piece own[] = {
	{"post-mortem.txt", {"stats", "--post-mortem"}},
	{"stats.json", {"stats", "--json"}},
	{"namespaces.txt", {"ns"}},
	{"clients.txt", {"clients"}},
	{"check.txt", {"check"}},
	{"store.txt", {"store", "list"}},
	{"version.txt", {"version"}},
};
static const struct piece others[] = {
	{"journal.txt", {"journalctl", "--no-pager", "-n", "5000", "-u", "kvpoold"}},
	{"kernel.txt", {"journalctl", "--no-pager", "-n", "500", "-k"}},
	{"cores.txt", {"coredumpctl", "--no-pager", "list", "kvpoold"}},
	{"unit.txt", {"systemctl", "--no-pager", "cat", "kvpoold"}},
	{"unit-status.txt", {"systemctl", "--no-pager", "status", "kvpoold"}},
	{"system.txt", {"uname", "-a"}},
	{"mounts.txt", {"df", "-h"}},
	{"daemon-version.txt", {"kvpoold", "--version"}},
};
static const char *const copied[] = {"/etc/kvpool/kvpoold.conf", "/etc/os-release", "/proc/meminfo", "/proc/cpuinfo",
	"/proc/pressure/memory", "/proc/pressure/io", "/proc/sys/vm/nr_hugepages", "/proc/sys/kernel/io_uring_disabled",
	"/proc/mounts", "/sys/kernel/mm/transparent_hugepage/shmem_enabled"};
static const char *const of_process[] = {"status", "limits", "cgroup", "stat", "smaps_rollup"};

static void child(const struct bundle *bundle, const char *file, const char *const *words)
{
	int fd;

	if (chdir(bundle->dir) < 0)
		_exit(126);
	fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0 || dup2(fd, STDERR_FILENO) < 0)
		_exit(126);
	execvp(words[0], (char *const *)(uintptr_t)words);
	dprintf(STDERR_FILENO, "%s: %s\n", words[0], strerror(errno));
	_exit(127);
}

/* Return: its exit status. */
static int run(const struct bundle *bundle, const char *file, const char *const *words)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		child(bundle, file, words);
	while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 126;
}

static void take(const struct bundle *bundle, const struct piece *piece, bool is_own)
{
	const char *words[WORDS_MAX] = {"timeout", LIMIT_S};
	unsigned n = 2;

	if (is_own)
		words[n++] = bundle->kvctl;
	for (unsigned i = 0; piece->words[i]; i++)
		words[n++] = piece->words[i];
	if (is_own && strcmp(piece->words[0], "version")) {
		words[n++] = "--socket";
		words[n++] = bundle->pool->socket;
		words[n++] = "--name";
		words[n++] = bundle->pool->name;
	}
	run(bundle, piece->file, words);
}

/* A file of the system, under its path with dashes. */
static void take_file(const struct bundle *bundle, const char *path)
{
	const char *words[] = {"timeout", LIMIT_S, "cat", "--", path, NULL};
	char name[256];

	snprintf(name, sizeof(name), "file%s.txt", path);
	for (char *at = name; *at; at++)
		if (*at == '/')
			*at = '-';
	run(bundle, name, words);
}

static void collect(const struct bundle *bundle)
{
	char path[128];

	for (unsigned i = 0; i < sizeof(own) / sizeof(own[0]); i++)
		take(bundle, &own[i], true);
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		take(bundle, &others[i], false);
	for (unsigned i = 0; i < sizeof(copied) / sizeof(copied[0]); i++)
		take_file(bundle, copied[i]);
	for (unsigned i = 0; bundle->pool->pid_state && i < sizeof(of_process) / sizeof(of_process[0]); i++) {
		snprintf(path, sizeof(path), "/proc/%d/%s", (int)bundle->pool->header.daemon_pid, of_process[i]);
		take_file(bundle, path);
	}
}

static int pack(const struct bundle *bundle)
{
	const char *base = strrchr(bundle->dir, '/') + 1;
	const char *words[] = {"tar", "--create", "--gzip", "--file", bundle->file, "--directory", "..", base, NULL};
	int r = run(bundle, "pack.txt", words);

	if (!r)
		return KVCTL_DONE;
	complain("support-bundle: tar cannot write %s (its status is %d): make room there, or name another --output",
		bundle->file, r);
	unlink(bundle->file);
	return KVCTL_FAILED;
}

/* What was collected: files only. */
static void put_away(const struct bundle *bundle)
{
	DIR *dir = opendir(bundle->dir);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(bundle->dir);
}

/* Before anything is collected, so that a path that cannot be had costs nobody a minute.  What is there is never
   touched. */
static int make_places(struct bundle *bundle)
{
	const char *tmp = getenv("TMPDIR");
	int fd = open(bundle->file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	if (fd < 0) {
		complain("support-bundle: %s: %s: name another --output", bundle->file,
			errno == EEXIST ? "it is there already" : strerror(errno));
		return KVCTL_FAILED;
	}
	close(fd);
	snprintf(bundle->dir, sizeof(bundle->dir), "%.900s/kvpool-bundle-XXXXXX", tmp && *tmp == '/' ? tmp : "/tmp");
	if (!mkdtemp(bundle->dir)) {
		complain("support-bundle: cannot make %s: %s: set TMPDIR", bundle->dir, strerror(errno));
		unlink(bundle->file);
		return KVCTL_FAILED;
	}
	return 0;
}

static int bundle_file(struct bundle *bundle, const char *output)
{
	char cwd[2048] = "", stamp[32];
	time_t now = time(NULL);
	struct tm tm;

	gmtime_r(&now, &tm);
	strftime(stamp, sizeof(stamp), "%Y%m%d-%H%M%S", &tm);
	if ((!output || output[0] != '/') && !getcwd(cwd, sizeof(cwd))) {
		complain("support-bundle: the working directory cannot be told (%s): give an absolute --output",
			strerror(errno));
		return KVCTL_FAILED;
	}
	if (output)
		snprintf(bundle->file, sizeof(bundle->file), "%s%s%s", cwd, cwd[0] ? "/" : "", output);
	else
		snprintf(bundle->file, sizeof(bundle->file), "%s/kvpool-%.40s-%s.tar.gz", cwd, bundle->pool->name,
			stamp);
	return make_places(bundle);
}

int bundle_command(int argc, char **argv)
{
	static const struct option longs[] = {OPTION_POOL, {"output", required_argument, NULL, 'o'}, OPTION_LAST};
	struct options options = {.command = "support-bundle", .longs = longs, .argc = argc, .argv = argv};
	const char *output = NULL;
	struct bundle bundle = {0};
	struct pool pool;
	ssize_t n;
	int c, r;

	while ((c = option_next(&options)) >= 0)
		output = optarg;
	if (c != OPTION_END)
		return option_exit(c);
	r = pool_find(&pool, options.socket, options.name);
	if (r)
		return r;
	bundle.pool = &pool;
	n = readlink("/proc/self/exe", bundle.kvctl, sizeof(bundle.kvctl) - 1);
	if (n <= 0)
		strcpy(bundle.kvctl, "kvctl");
	r = bundle_file(&bundle, output);
	if (r)
		return r;
	fflush(stdout);
	collect(&bundle);
	r = pack(&bundle);
	put_away(&bundle);
	if (!r)
		printf("%s: state, log and surroundings of pool %s\nNo block, key or secret is in it; names of namespaces, "
		       "users and programs are.\n",
			bundle.file, pool.name);
	return output_end(r);
}
