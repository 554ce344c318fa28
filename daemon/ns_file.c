/*
 * ns_file.c - a namespace's birth certificate beside each spill store: SPILL_DIR/ns-<id>.kvns, mode 0600
 *
 * In every directory config_namespace_dir() tells, for any of them may be missing at the next start; one found there is
 * enough. struct ns_file, written to a temporary name, flushed, renamed: it is there whole or not at all.  A damaged or
 * foreign one is left alone and said once; its records are then garbage of the store.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "kvpool_desc.h"
#include "log.h"
#include "loop.h"
#include "namespace.h"

#define NS_FILE_MAGIC 0x31454c4946534e4bull
#define NS_FILE_VERSION 1

struct ns_file {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes;
	struct ns_birth birth;
	uint64_t checksum; /* XXH3-64 of all before it */
};
static_assert(offsetof(struct ns_file, birth) == 16, "store format 1");
static_assert(offsetof(struct ns_birth, secret) == 40, "store format 1");
static_assert(offsetof(struct ns_birth, desc) == 136, "store format 1");

static uint64_t ns_file_checksum(const struct ns_file *file)
{
	return XXH3_64bits(file, offsetof(struct ns_file, checksum));
}

static void ns_file_fill(struct ns_file *file, const struct ns *ns)
{
	const struct kvp_ns_header *head = ns->head;

	memset(file, 0, sizeof(*file));
	file->magic = NS_FILE_MAGIC;
	file->version = NS_FILE_VERSION;
	file->bytes = sizeof(*file);
	file->birth.id = ns->id;
	file->birth.owner_uid = head->owner_uid;
	file->birth.owner_gid = head->owner_gid;
	file->birth.mode = head->mode;
	file->birth.flags = head->flags;
	file->birth.base_id = head->base_id;
	file->birth.cost_ns_per_token = ns->cost_ns_per_token;
	memcpy(file->birth.secret, head->secret, sizeof(file->birth.secret));
	memcpy(file->birth.name, head->name, sizeof(file->birth.name));
	file->birth.desc = head->desc;
	file->checksum = ns_file_checksum(file);
}

static int ns_file_write(const struct ns_file *file, uint64_t id, const char *dir)
{
	char path[320], temporary[336];
	int fd, r = 0;

	snprintf(path, sizeof(path), "%s/ns-%016" PRIx64 ".kvns", dir, id);
	snprintf(temporary, sizeof(temporary), "%s.new", path);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, file, sizeof(*file)) != (ssize_t)sizeof(*file) || fsync(fd) < 0 ||
		rename(temporary, path) < 0)
		r = -errno;
	if (fd >= 0)
		close(fd);
	if (r == 0) {
		fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		if (fd < 0 || fsync(fd) < 0)
			r = -errno;
		if (fd >= 0)
			close(fd);
	}
	return r;
}

/* Return: 0: written in one place at least; -errno. */
int ns_file_save(const struct ns *ns)
{
	const struct config *config = &ns->d->config;
	struct ns_file file;
	const char *dir;
	int result = config->n_stores ? -ENOENT : 0;
	unsigned n = 0;

	ns_file_fill(&file, ns);
	for (unsigned i = 0; (dir = config_namespace_dir(config, i)); i++) {
		int r = ns_file_write(&file, ns->id, dir);

		n += r == 0;
		result = n ? 0 : r;
	}
	if (result < 0)
		log_warn("cannot write %s/ns-%016" PRIx64 ".kvns: %s; this namespace will not survive a reboot",
			config_namespace_dir(config, 0), ns->id, strerror(-result));
	return result;
}

void ns_file_remove(const struct ns *ns)
{
	const struct config *config = &ns->d->config;
	const char *dir;
	char path[320];

	for (unsigned i = 0; (dir = config_namespace_dir(config, i)); i++) {
		snprintf(path, sizeof(path), "%s/ns-%016" PRIx64 ".kvns", dir, ns->id);
		if (unlink(path) < 0 && errno != ENOENT)
			log_warn("cannot remove %s: %s", path, strerror(errno));
	}
}

static const char *ns_file_bad(const struct ns_file *file, ssize_t n)
{
	uint64_t block_bytes;

	if (n < (ssize_t)offsetof(struct ns_file, birth) || file->magic != NS_FILE_MAGIC)
		return "it is not a namespace file";
	if (file->version > NS_FILE_VERSION)
		return "a newer kvpoold wrote it: start that one, or remove the file";
	if (file->version < NS_FILE_VERSION)
		return "a kvpoold too old for this one wrote it: remove the file";
	if (n != (ssize_t)sizeof(*file) || file->bytes != sizeof(*file))
		return "its length is wrong";
	if (file->checksum != ns_file_checksum(file))
		return "its checksum is wrong";
	if (!file->birth.id || memchr(file->birth.name, 0, KVP_NAME_MAX) == NULL || !kvp_name_ok(file->birth.name) ||
		kvp_desc_bad(&file->birth.desc, &block_bytes))
		return "its descriptor is out of bounds";
	return NULL;
}

static void ns_file_passed_over(const char *path, const char *name, const char *why)
{
	log_warn("%s/%s is passed over, so no block of its namespace comes back from the store: %s", path, name, why);
}

/* Return: it is one of a namespace.  If not, that is said. */
static bool ns_file_read(const char *path, int dir, const char *name, struct ns_file *file)
{
	struct stat st;
	const char *bad = NULL;
	ssize_t n = -1;
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return false;
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 077))
		bad = "it must be the daemon's user's own, mode 0600: chown and chmod it, and restart";
	else
		n = read(fd, file, sizeof(*file));
	close(fd);
	if (!bad)
		bad = ns_file_bad(file, n);
	if (bad)
		ns_file_passed_over(path, name, bad);
	return !bad;
}

struct birth {
	const char *path; /* of the directory it was found in */
	struct ns_birth birth;
};

struct ns_births {
	struct birth *items; /* those that have no base first */
	uint32_t n, room, at;
};

static bool births_add(struct ns_births *births, const char *path, const struct ns_birth *birth)
{
	if (births->n == births->room) {
		uint32_t room = births->room ? 2 * births->room : 16;
		struct birth *items = realloc(births->items, room * sizeof(*items));

		if (!items)
			return false;
		births->items = items;
		births->room = room;
	}
	births->items[births->n++] = (struct birth){path, *birth};
	return true;
}

static int births_compare(const void *a, const void *b)
{
	const struct birth *x = a, *y = b;

	return (x->birth.base_id != 0) - (y->birth.base_id != 0);
}

struct ns_births *ns_births_read(struct ns_births *births, const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	struct ns_file file;

	if (!births)
		births = calloc(1, sizeof(*births));
	while (dir && births && (entry = readdir(dir))) {
		size_t n = strlen(entry->d_name);

		if (strncmp(entry->d_name, "ns-", 3) || n <= 5 || strcmp(entry->d_name + n - 5, ".kvns"))
			continue;
		if (ns_file_read(path, dirfd(dir), entry->d_name, &file) && !births_add(births, path, &file.birth))
			break;
	}
	if (dir)
		closedir(dir);
	if (births && births->n)
		qsort(births->items, births->n, sizeof(*births->items), births_compare);
	return births;
}

void ns_births_free(struct ns_births *births)
{
	if (births)
		free(births->items);
	free(births);
}

static void births_passed_over(const struct birth *b, const char *why)
{
	char name[32];

	snprintf(name, sizeof(name), "ns-%016" PRIx64 ".kvns", b->birth.id);
	ns_file_passed_over(b->path, name, why);
}

bool ns_births_make(struct daemon *d, struct ns_births *births, uint64_t until_ns)
{
	for (; births && births->at < births->n; births->at++) {
		const struct birth *b = &births->items[births->at];
		char reason[256] = "";
		struct ns *ns;

		if (loop_now() >= until_ns)
			return true;
		if (!ns_find(d, b->birth.id) && ns_make(d, &b->birth, &ns, reason) < 0)
			births_passed_over(b, reason);
	}
	return false;
}

bool ns_file_spread(struct daemon *d, const char *dir, unsigned n)
{
	char path[320];

	for (struct ns *ns = d->namespaces; ns; ns = ns->next) {
		struct ns_file file;

		snprintf(path, sizeof(path), "%s/ns-%016" PRIx64 ".kvns", dir, ns->id);
		if (access(path, F_OK) == 0)
			continue;
		if (!n--)
			return true;
		ns_file_fill(&file, ns);
		if (ns_file_write(&file, ns->id, dir) < 0)
			return false; /* nor the others */
	}
	return false;
}

/* Why not in there; 0: nothing is against it. */
static int dir_error(const char *dir)
{
	struct stat st;

	if (stat(dir, &st) < 0)
		return errno;
	if (!S_ISDIR(st.st_mode))
		return ENOTDIR;
	return access(dir, R_OK | W_OK | X_OK) < 0 ? errno : 0;
}

int ns_file_check(const struct config *config, char message[256])
{
	const char *dir = config_namespace_dir(config, 0);
	int err;

	/* of a store's own directory the store tells more; this one is nobody else's to miss */
	if (dir && dir == config->namespace_dir && (err = dir_error(dir))) {
		snprintf(message, 256,
			"namespace-dir %.80s: %.40s: without the files in it no block is found again: make it, as the daemon's user, or name the right one",
			dir, strerror(err));
		return -err;
	}
	return 0;
}

void ns_file_load_all(struct daemon *d)
{
	struct ns_births *births = NULL;
	const char *dir;

	for (unsigned i = 0; (dir = config_namespace_dir(&d->config, i)); i++)
		births = ns_births_read(births, dir);
	ns_births_make(d, births, UINT64_MAX);
	ns_births_free(births);
	for (unsigned i = 0; (dir = config_namespace_dir(&d->config, i)); i++)
		ns_file_spread(d, dir, UINT_MAX);
}
