/*
 * ns_file.c - a namespace's birth certificate beside the spill store: SPILL_DIR/ns-<id>.kvns, mode 0600
 *
 * struct ns_file, written to a temporary name, flushed, renamed: it is there whole or not at all.  A damaged or foreign
 * one is left alone and said once; its records are then garbage of the store.
 */
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "kvpool_desc.h"
#include "log.h"
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

int ns_file_save(const struct ns *ns)
{
	const char *dir = ns->d->config.spill_dir;
	char path[320], temporary[336];
	struct ns_file file;
	int fd, r = 0;

	ns_file_fill(&file, ns);
	snprintf(path, sizeof(path), "%s/ns-%016" PRIx64 ".kvns", dir, ns->id);
	snprintf(temporary, sizeof(temporary), "%s.new", path);
	fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || write(fd, &file, sizeof(file)) != (ssize_t)sizeof(file) || fsync(fd) < 0 ||
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
	if (r < 0)
		log_warn("cannot write %s: %s; this namespace will not survive a reboot", path, strerror(-r));
	return r;
}

void ns_file_remove(const struct ns *ns)
{
	char path[320];

	snprintf(path, sizeof(path), "%s/ns-%016" PRIx64 ".kvns", ns->d->config.spill_dir, ns->id);
	if (unlink(path) < 0 && errno != ENOENT)
		log_warn("cannot remove %s: %s", path, strerror(errno));
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

static void ns_file_load(struct daemon *d, int dir, const char *name, bool with_base)
{
	struct ns_file file;
	struct stat st;
	char reason[256] = "";
	const char *bad = NULL;
	struct ns *ns;
	ssize_t n = -1;
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);

	if (fd < 0)
		return;
	if (fstat(fd, &st) < 0 || st.st_uid != geteuid() || (st.st_mode & 077))
		bad = "it is not ours alone (owner or mode)";
	else
		n = read(fd, &file, sizeof(file));
	close(fd);
	if (!bad)
		bad = ns_file_bad(&file, n);
	if (!bad && (ns_find(d, file.birth.id) || (file.birth.base_id != 0) != with_base))
		return;
	if (!bad && ns_make(d, &file.birth, &ns, reason) < 0)
		bad = reason;
	if (bad)
		log_warn("%s/%s is passed over: %s", d->config.spill_dir, name, bad);
}

void ns_file_load_all(struct daemon *d)
{
	/* bases first */
	for (int with_base = 0; with_base <= 1; with_base++) {
		DIR *dir = opendir(d->config.spill_dir);
		struct dirent *entry;

		if (!dir)
			return;
		while ((entry = readdir(dir))) {
			size_t n = strlen(entry->d_name);

			if (!strncmp(entry->d_name, "ns-", 3) && n > 5 && !strcmp(entry->d_name + n - 5, ".kvns"))
				ns_file_load(d, dirfd(dir), entry->d_name, with_base);
		}
		closedir(dir);
	}
}
