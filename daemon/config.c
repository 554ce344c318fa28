/* config.c - see config.h */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kvpool_shm.h"
#include "kvpool_spill.h"

#define MIB (1024u * 1024u)

enum option_kind {
	OPTION_TEXT,
	OPTION_SIZE,
	OPTION_NUMBER,
	OPTION_OCTAL,
	OPTION_BOOL,
	OPTION_SPILL,
	OPTION_KEYS,
	OPTION_POOL,
	OPTION_LISTEN,
};
struct option_row {
	const char *name;
	enum option_kind kind;
	size_t off;
	uint64_t min, max; /* TEXT: shortest, and the room */
	const char *arg;
	const char *help;
};
#define AT(field) offsetof(struct config, field)
#define ROOM(field) sizeof(((struct config *)0)->field)

static const struct option_row options[] = {
	{"config", OPTION_TEXT, AT(file), 1, ROOM(file), "FILE", "configuration file: lines of name = value"},
	{"socket", OPTION_TEXT, AT(socket), 0, ROOM(socket), "PATH", "Unix socket clients connect to"},
	{"admin-socket", OPTION_TEXT, AT(admin_socket), 0, ROOM(admin_socket), "PATH",
		"socket of drain, evict and purge (default: socket + .admin)"},
	{"socket-mode", OPTION_OCTAL, AT(socket_mode), 0, 0777, "OCTAL",
		"permission bits of the socket (default 0666)"},
	{"listen", OPTION_LISTEN, 0, 0, 0, "PATH[,uid=N[,gid=N]][,mode=OCTAL]",
		"one more socket; who comes by it counts as this uid (may be given several times)"},
	{"group", OPTION_TEXT, AT(group), 0, ROOM(group), "GROUP",
		"operators: may read stats and use the admin socket"},
	{"name", OPTION_TEXT, AT(name), 0, ROOM(name), "NAME", "name of the pool"},
	{"pool", OPTION_POOL, AT(pool_bytes), MIB, 1ull << 46, "SIZE|nodeN=SIZE,...",
		"memory for KV blocks, shared out over the NUMA nodes, or so much of each"},
	{"slab", OPTION_SIZE, AT(slab_bytes), CONFIG_SLAB_MIN, 1ull << 40, "SIZE",
		"unit in which memory moves (default: pool / 256, but 2M to 64M, or pool / 4096)"},
	{"pages", OPTION_TEXT, AT(pages_text), 2, ROOM(pages_text), "4k|thp|2M|1G",
		"what slabs are made of (default 4k); 2M and 1G from a hugetlbfs mount"},
	{"pages-short", OPTION_TEXT, AT(pages_short), 1, ROOM(pages_short), "refuse|fallback",
		"where there are too few of these: do not start (default), or go on with 4k"},
	{"hugetlbfs", OPTION_TEXT, AT(hugetlbfs), 1, ROOM(hugetlbfs), "DIR",
		"directory in a hugetlbfs mount (default: the first mount of that page size that is writable)"},
	{"spill", OPTION_SPILL, 0, 0, 0, "DIR:SIZE|DEVICE[:SIZE]",
		"directory or block device and size of a spill store, or off (may be given several times, one for each device)"},
	{"namespace-dir", OPTION_TEXT, AT(namespace_dir), 1, ROOM(namespace_dir), "DIR",
		"directory for the namespaces' own files, where all spill stores are block devices"},
	{"spill-key-file", OPTION_KEYS, 0, 0, 0, "FILE",
		"spill stores are encrypted with the key in it (may be given several times: the others read what is there)"},
	{"spill-write-budget", OPTION_SIZE, AT(spill_write_budget), 0, 1ull << 50, "SIZE",
		"bytes eviction may write to the spill store a day (UTC), then it drops; 0: no limit"},
	{"spill-admit", OPTION_TEXT, AT(spill_admit), 1, ROOM(spill_admit), "all|reused|chance",
		"what eviction writes of namespaces with a learned policy: all (default), what was used twice, or what has the best chance of use"},
	{"spill-admit-percent", OPTION_NUMBER, AT(spill_admit_percent), 1, 100, "PERCENT",
		"chance: so much of what is offered"},
	{"spill-depth", OPTION_NUMBER, AT(spill_depth), 1, 256, "N", "reads and writes of the spill store at once"},
	{"spill-scrub", OPTION_SIZE, AT(spill_scrub), 0, 1ull << 40, "SIZE",
		"bytes a second of the spill store read again to find damage; 0: none"},
	{"spill-compress", OPTION_TEXT, AT(spill_compress), 1, ROOM(spill_compress), "none|zstd|auto",
		"blocks go to the spill store compressed; auto (default): where that costs no time"},
	{"io", OPTION_TEXT, AT(io), 0, ROOM(io), "ENGINE", "auto, uring or threads"},
	{"log-level", OPTION_TEXT, AT(log_level), 0, ROOM(log_level), "LEVEL", "err, warn, info or debug"},
	{"lock-memory", OPTION_BOOL, AT(lock_memory), 0, 1, "yes|no", "mlock the pool"},
	{"pressure", OPTION_NUMBER, AT(pressure_percent), 0, 100, "PERCENT",
		"give memory back while somebody waits for memory this much of the time; 0: never"},
	{"pressure-file", OPTION_TEXT, AT(pressure_file), 0, ROOM(pressure_file), "FILE",
		"where that is told (default: the cgroup's memory.pressure, or /proc/pressure/memory)"},
	{"cgroup-headroom", OPTION_NUMBER, AT(cgroup_headroom), 0, 50, "PERCENT",
		"give memory back before less than this of the cgroup's memory limit is left; 0: never"},
	{"max-clients", OPTION_NUMBER, AT(max_clients), 1, 2048, "N", "client sessions at once"},
	{"max-namespaces", OPTION_NUMBER, AT(max_namespaces), 1, 1024, "N", "namespaces at once"},
	{"namespace-min", OPTION_SIZE, AT(namespace_min), 0, 1ull << 46, "SIZE",
		"memory of a namespace in use that no other one takes from it (default: a slab)"},
	{"uid-max-clients", OPTION_NUMBER, AT(uid_max_clients), 1, 2048, "N", "client sessions of one uid"},
	{"uid-max-namespaces", OPTION_NUMBER, AT(uid_max_namespaces), 1, 1024, "N", "namespaces of one uid"},
	{"uid-max-grants", OPTION_NUMBER, AT(uid_max_grants), 0, UINT32_MAX, "N",
		"blocks one uid may be writing at once; 0: no limit"},
	{"uid-max-pins", OPTION_NUMBER, AT(uid_max_pins), 0, UINT32_MAX, "N",
		"blocks one uid may hold at once, seen for longer than a second: its largest session is put out; 0: no limit"},
	{"namespace-max", OPTION_SIZE, AT(namespace_max), 0, 1ull << 46, "SIZE",
		"memory one namespace may have, in whole slabs: beyond it its own blocks make room; 0: no limit"},
	{"uid-max-memory", OPTION_SIZE, AT(uid_max_memory), 0, 1ull << 46, "SIZE",
		"memory all namespaces of one uid may have together, likewise; 0: no limit"},
	{"namespace-max-spill", OPTION_SIZE, AT(namespace_max_spill), 0, 1ull << 50, "SIZE",
		"bytes of the spill stores one namespace may have: beyond it its own oldest make room, or nothing is written; 0: no limit"},
	{"uid-max-spill", OPTION_SIZE, AT(uid_max_spill), 0, 1ull << 50, "SIZE",
		"bytes of the spill stores all namespaces of one uid may have together, likewise; 0: no limit"},
	{"uid-max-requests", OPTION_NUMBER, AT(uid_max_requests), 0, UINT32_MAX, "N",
		"requests of one uid that may wait at once for room, a disk or a copy; 0: no limit"},
	{"pin-limit", OPTION_NUMBER, AT(pin_limit_ms), 0, 86400000, "MS",
		"a session that holds a block for longer without using it anew is put out; 0: never"},
	{"uid-max-transit", OPTION_SIZE, AT(uid_max_transit), MIB, 1ull << 46, "SIZE",
		"bytes of blocks being read back or copied for one uid, before more is refused"},
	{"heartbeat", OPTION_NUMBER, AT(heartbeat_ms), 50, 60000, "MS", "how often a client shows that it lives"},
	{"hold-limit", OPTION_NUMBER, AT(hold_limit_ms), 0, 86400000, "MS",
		"holds of a stopped client may be revoked after so long; 0: never"},
	{"grant-limit", OPTION_NUMBER, AT(grant_limit_ms), 1000, 86400000, "MS",
		"a grant not published by then is withdrawn"},
	{"read-ahead", OPTION_NUMBER, AT(read_ahead), 0, 1024, "N",
		"cold blocks read along a chain that is being read, into free room only"},
	{"policy", OPTION_TEXT, AT(policy), 1, ROOM(policy), "lru|learned",
		"what stays, of namespaces made from now on: what was used last (default), or by a learned order"},
	{"free-percent", OPTION_NUMBER, AT(free_percent), 0, 50, "N", "free blocks kept ready ahead of need"},
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))
_Static_assert(N_OPTIONS <= CONFIG_OPTIONS_MAX, "config.h's line_of has room for each");

void config_defaults(struct config *config)
{
	memset(config, 0, sizeof(*config));
	strcpy(config->socket, KVP_DEFAULT_SOCKET);
	strcpy(config->name, "kvpool");
	strcpy(config->pages_text, "4k");
	strcpy(config->pages_short, "refuse");
	strcpy(config->io, "auto");
	strcpy(config->spill_compress, "auto");
	strcpy(config->policy, "lru");
	strcpy(config->spill_admit, "all");
	config->spill_admit_percent = 25;
	strcpy(config->log_level, "info");
	config->socket_mode = 0666;
	config->pool_bytes = 1024ull * MIB;
	config->max_clients = 1024;
	config->max_namespaces = 256;
	config->uid_max_clients = 1024;
	config->uid_max_namespaces = 64;
	config->uid_max_transit = 4096ull * MIB;
	config->heartbeat_ms = 1000;
	config->hold_limit_ms = 0;
	config->grant_limit_ms = 600000;
	config->free_percent = 3;
	config->cgroup_headroom = 2;
	config->read_ahead = 16;
	config->spill_depth = 32;
	config->spill_scrub = 8ull * MIB;
}

int config_parse_size(const char *text, uint64_t *bytes)
{
	static const char units[] = "kmgt";
	char *end;
	unsigned long long n;
	unsigned shift = 0;

	if (!isdigit((unsigned char)text[0]))
		return -EINVAL;
	errno = 0;
	n = strtoull(text, &end, 10);
	if (errno)
		return -EINVAL;
	if (*end) {
		const char *unit = strchr(units, tolower((unsigned char)*end));

		if (!unit)
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
		if (end[1] && strcmp(end + 1, "B") && strcmp(end + 1, "iB"))
			return -EINVAL;
	}
	if (shift && n >> (64 - shift))
		return -EINVAL;
	*bytes = n << shift;
	return 0;
}

/* Edit distance, for "did you mean": names are short. */
static size_t config_distance(const char *a, const char *b)
{
	size_t row[64], n = strlen(b);

	if (n >= 63)
		return 99;
	for (size_t j = 0; j <= n; j++)
		row[j] = j;
	for (size_t i = 1; a[i - 1]; i++) {
		size_t diagonal = row[0];

		row[0] = i;
		for (size_t j = 1; j <= n; j++) {
			size_t above = row[j];
			size_t best = above < row[j - 1] ? above + 1 : row[j - 1] + 1;
			size_t change = diagonal + (a[i - 1] != b[j - 1]);

			row[j] = change < best ? change : best;
			diagonal = above;
		}
	}
	return row[n];
}

/* What was cut short is nearer than what is as short; capitals make a difference, but no large one. */
static size_t config_farness(const char *name, const char *option)
{
	size_t n = strlen(name), distance = config_distance(name, option);

	return n && distance && !strncasecmp(option, name, n) ? 1 : distance;
}

/* @nearest: of those so near that somebody may have meant them, or NULL. */
static const struct option_row *config_find(const char *name, const char **nearest)
{
	/* two neighbours swapped are two changes: in five letters, a slip */
	size_t best = strlen(name) < 2 ? 2 : (strlen(name) + 1) / 3 + 1;

	*nearest = NULL;
	for (size_t i = 0; i < N_OPTIONS; i++) {
		size_t distance = config_farness(name, options[i].name);

		if (!distance)
			return &options[i];
		if (distance < best) {
			best = distance;
			*nearest = options[i].name;
		}
	}
	return NULL;
}

/* What to say behind an unknown name, if there is one near it. */
static void config_suggest(const char *nearest, const char *before, const char *after, char text[64])
{
	text[0] = 0;
	if (nearest)
		snprintf(text, 64, " did you mean %s%s%s?", before, nearest, after);
}

/* A name in /dev, but of none of the file systems that are usually there. */
static bool config_is_device(const char *path)
{
	static const char *const not_these[] = {"/dev/shm/", "/dev/hugepages/", "/dev/mqueue/"};

	for (size_t i = 0; i < sizeof(not_these) / sizeof(not_these[0]); i++)
		if (!strncmp(path, not_these[i], strlen(not_these[i])))
			return false;
	return !strncmp(path, "/dev/", 5);
}

/* Names a kernel gives have no colons, those by path, serial number or array have: then one that is there, or of whose beginning no
   device is there either, is all of it the name. */
static bool config_is_device_name(const char *value, const char *colon)
{
	char before[256];

	if (!colon)
		return true;
	if (!strchr(value + strlen("/dev/"), '/') || !colon[1])
		return false;
	snprintf(before, sizeof(before), "%.*s", (int)(colon - value), value);
	return access(value, F_OK) == 0 || access(before, F_OK) < 0;
}

static int config_set_spill(struct config *config, const char *value)
{
	const char *colon = strrchr(value, ':');
	struct config_store store;
	bool sized;

	memset(&store, 0, sizeof(store)); /* and what lies between its fields: option_differs() compares bytes */
	store.device = config_is_device(value);
	if (config->stores_from_file)
		config->n_stores = 0;
	config->stores_from_file = false;
	if (!strcmp(value, "off")) {
		config->n_stores = 0;
		return 0;
	}
	if (config->n_stores == CONFIG_STORES_MAX)
		return -ERANGE;
	sized = colon && colon != value && config_parse_size(colon + 1, &store.bytes) == 0 &&
		store.bytes >= SPILL_CAPACITY_MIN;
	if (!sized && store.device && config_is_device_name(value, colon)) {
		store.bytes = 0; /* all there is */
		colon = value + strlen(value);
	} else if (!sized) {
		return -EINVAL;
	}
	if ((size_t)(colon - value) >= sizeof(store.path))
		return -EINVAL;
	memcpy(store.path, value, (size_t)(colon - value));
	for (size_t n = strlen(store.path); n > 1 && store.path[n - 1] == '/'; n--)
		store.path[n - 1] = 0; /* one directory by two names is one */
	memcpy(&config->stores[config->n_stores++], &store, sizeof(store));
	return 0;
}

static int config_set_key_file(struct config *config, const char *value)
{
	if (config->key_files_from_file)
		config->n_key_files = 0;
	config->key_files_from_file = false;
	if (config->n_key_files == CONFIG_KEYS_MAX)
		return -ERANGE;
	if (value[0] != '/' || strlen(value) >= sizeof(config->key_files[0]))
		return -EINVAL;
	strcpy(config->key_files[config->n_key_files++], value);
	return 0;
}

/* One part of a pool option that names nodes. */
static int config_set_node(struct config *config, char *part)
{
	struct config_node *node = &config->nodes[config->n_nodes];
	char *value = strchr(part, '='), *end;
	unsigned long id;

	if (strncmp(part, "node", 4) || !isdigit((unsigned char)part[4]) || !value)
		return -EINVAL;
	errno = 0;
	id = strtoul(part + 4, &end, 10);
	if (errno || end != value || id > UINT16_MAX || config_parse_size(value + 1, &node->bytes) < 0)
		return -EINVAL;
	node->id = (uint32_t)id;
	for (unsigned i = 0; i < config->n_nodes; i++)
		if (config->nodes[i].id == node->id)
			return -EINVAL;
	config->n_nodes++;
	return 0;
}

static int config_set_pool(struct config *config, const struct option_row *row, const char *value)
{
	char text[1024], *rest, *part;
	uint64_t bytes = 0;

	config->n_nodes = 0;
	if (strncmp(value, "node", 4)) {
		if (config_parse_size(value, &bytes) < 0)
			return -EINVAL;
	} else {
		if (strlen(value) >= sizeof(text))
			return -EINVAL;
		strcpy(text, value);
		for (part = strtok_r(text, ",", &rest); part; part = strtok_r(NULL, ",", &rest)) {
			if (config->n_nodes == CONFIG_NODES_MAX || config_set_node(config, part) < 0)
				return -EINVAL;
			if (config->nodes[config->n_nodes - 1].bytes > row->max)
				return -ERANGE;
			bytes += config->nodes[config->n_nodes - 1].bytes;
		}
	}
	if (bytes < row->min || bytes > row->max)
		return -ERANGE;
	config->pool_bytes = bytes;
	return 0;
}

/* One part of a listen option behind the path. */
static int config_set_listen_part(struct config_listen *listen, const char *part, bool *has_gid)
{
	const char *value = strchr(part, '=');
	unsigned long n;
	char *end;

	if (!value || !isdigit((unsigned char)value[1]))
		return -EINVAL;
	errno = 0;
	n = strtoul(value + 1, &end, !strncmp(part, "mode=", 5) ? 8 : 10);
	if (errno || *end || n >= UINT32_MAX)
		return -EINVAL;
	if (!strncmp(part, "uid=", 4) && !listen->has_uid) { /* each once */
		listen->has_uid = true;
		listen->uid = (uint32_t)n;
	} else if (!strncmp(part, "gid=", 4) && !*has_gid) {
		*has_gid = true;
		listen->gid = (uint32_t)n;
	} else if (!strncmp(part, "mode=", 5) && !listen->mode && n && n <= 0777) {
		listen->mode = (uint32_t)n;
	} else {
		return -EINVAL;
	}
	return 0;
}

static int config_set_listen(struct config *config, const char *value)
{
	struct config_listen listen;
	char text[256], *rest, *part;
	bool has_gid = false;

	memset(&listen, 0, sizeof(listen)); /* and what lies between its fields: option_differs() compares bytes */
	if (config->n_listen == CONFIG_LISTEN_MAX || strlen(value) >= sizeof(text))
		return -ERANGE;
	strcpy(text, value);
	part = strtok_r(text, ",", &rest);
	if (!part || part[0] != '/' || strlen(part) >= sizeof(listen.path))
		return -EINVAL;
	strcpy(listen.path, part);
	while ((part = strtok_r(NULL, ",", &rest)))
		if (config_set_listen_part(&listen, part, &has_gid) < 0)
			return -EINVAL;
	if (has_gid && !listen.has_uid)
		return -EINVAL;
	if (!has_gid)
		listen.gid = listen.uid;
	memcpy(&config->listen[config->n_listen++], &listen, sizeof(listen));
	return 0;
}

static int config_set_number(struct config *config, const struct option_row *row, const char *value)
{
	char *at = (char *)config + row->off;
	uint64_t n;
	char *end;

	if (row->kind == OPTION_SIZE) {
		if (config_parse_size(value, &n) < 0)
			return -EINVAL;
	} else {
		if (!isdigit((unsigned char)value[0]))
			return -EINVAL;
		errno = 0;
		n = strtoull(value, &end, row->kind == OPTION_OCTAL ? 8 : 10);
		if (errno || *end)
			return -EINVAL;
	}
	if (n < row->min || n > row->max)
		return -ERANGE;
	if (row->kind == OPTION_SIZE)
		*(uint64_t *)(void *)at = n;
	else
		*(uint32_t *)(void *)at = (uint32_t)n;
	return 0;
}

static int config_set_value(struct config *config, const struct option_row *row, const char *value)
{
	char *at = (char *)config + row->off;

	switch (row->kind) {
	case OPTION_TEXT:
		if (strlen(value) < row->min)
			return -EINVAL;
		if (strlen(value) >= row->max)
			return -ERANGE;
		strcpy(at, value);
		return 0;
	case OPTION_BOOL:
		if (strcmp(value, "yes") && strcmp(value, "no"))
			return -EINVAL;
		*(bool *)(void *)at = !strcmp(value, "yes");
		return 0;
	case OPTION_SPILL:
		return config_set_spill(config, value);
	case OPTION_KEYS:
		return config_set_key_file(config, value);
	case OPTION_LISTEN:
		return config_set_listen(config, value);
	case OPTION_POOL:
		return config_set_pool(config, row, value);
	default:
		return config_set_number(config, row, value);
	}
}

/* What such a value looks like. */
static const char *config_example(enum option_kind kind)
{
	switch (kind) {
	case OPTION_TEXT:
		return "a name: leave the option out, or give one";
	case OPTION_SIZE:
		return "a size: use 4096, 64M, 2G";
	case OPTION_POOL:
		return "a size, or sizes of nodes: use 64G, or node0=64G,node2=128G";
	case OPTION_NUMBER:
		return "a number: use decimal digits only";
	case OPTION_OCTAL:
		return "an octal number: use 0660";
	case OPTION_BOOL:
		return "yes or no";
	case OPTION_KEYS:
		return "an absolute path of at most 255 bytes: use /etc/kvpool/spill.key";
	case OPTION_SPILL:
		return "DIR:SIZE or DEVICE[:SIZE]: use /var/lib/kvpool:64G (16M at least), /dev/nvme1n1, or off";
	default:
		return "PATH[,uid=N[,gid=N]][,mode=OCTAL]: use /run/kvpool/pod7.sock,uid=2007,mode=0660";
	}
}

static void config_size_text(uint64_t bytes, char text[24])
{
	static const char *const units[] = {"", "k", "M", "G", "T"};
	unsigned unit = 0;

	while (bytes && !(bytes & 1023) && unit < 4) {
		bytes >>= 10;
		unit++;
	}
	snprintf(text, 24, "%" PRIu64 "%s", bytes, units[unit]);
}

/* " (1M to 64T)"; "" where there is none. */
static void config_range(const struct option_row *row, char text[64])
{
	char min[24], max[24];

	text[0] = 0;
	if (row->kind != OPTION_SIZE && row->kind != OPTION_POOL && row->kind != OPTION_NUMBER &&
		row->kind != OPTION_OCTAL)
		return;
	snprintf(min, sizeof(min), "%" PRIu64, row->min);
	snprintf(max, sizeof(max), row->kind == OPTION_OCTAL ? "%" PRIo64 : "%" PRIu64, row->max);
	if (row->kind == OPTION_SIZE || row->kind == OPTION_POOL) {
		config_size_text(row->min, min);
		config_size_text(row->max, max);
	}
	snprintf(text, 64, " (%s to %s)", min, max);
}

static int config_set(struct config *config, const char *name, const char *value, const char *origin, char message[256])
{
	const char *nearest;
	const struct option_row *row = config_find(name, &nearest);
	char range[64], suggestion[64];
	int r;

	if (!row) {
		config_suggest(nearest, "\"", "\"", suggestion);
		snprintf(
			message, 256, "%s: no option \"%.40s\";%s kvpoold --help lists them", origin, name, suggestion);
		return -EINVAL;
	}
	r = config_set_value(config, row, value);
	config->line_of[row - options] = 0;
	config_range(row, range);
	if (r == -ERANGE && row->kind == OPTION_LISTEN)
		snprintf(message, 256, "%s: listen: at most %d of them, each at most 255 bytes long", origin,
			CONFIG_LISTEN_MAX);
	else if (r == -ERANGE && row->kind == OPTION_SPILL)
		snprintf(message, 256, "%s: spill: at most %d stores", origin, CONFIG_STORES_MAX);
	else if (r == -ERANGE && row->kind == OPTION_KEYS)
		snprintf(message, 256, "%s: spill-key-file: at most %d of them", origin, CONFIG_KEYS_MAX);
	else if (r == -ERANGE && row->kind != OPTION_TEXT)
		snprintf(message, 256, "%.100s: %s = \"%.60s\" is out of range%s", origin, row->name, value, range);
	else if (r == -ERANGE)
		snprintf(message, 256, "%s: %s is %zu bytes long, at most %" PRIu64 " fit: use a shorter one", origin,
			name, strlen(value), row->max - 1);
	else if (r < 0)
		snprintf(message, 256, "%s: %s = \"%.60s\" is not %s%s", origin, name, value, config_example(row->kind),
			range);
	return r < 0 ? -EINVAL : 0;
}

int config_parse_pool(struct config *config, const char *value, char message[256])
{
	return config_set(config, "pool", value, "resize", message);
}

/* A configuration file being read: where, and which names it has set in which line. */
struct config_reader {
	struct config *config;
	const char *origin;
	char *message;
	unsigned line;
};

/* Without the blanks around it; @text is cut. */
static char *config_trim(char *text)
{
	size_t n;

	text += strspn(text, " \t\r");
	for (n = strlen(text); n && strchr(" \t\r", text[n - 1]); n--)
		text[n - 1] = 0;
	return text;
}

/* A comment is a whole line, or the rest of one behind a blank. */
static void config_cut_comment(char *text)
{
	for (char *c = text; *c; c++)
		if ((*c == '#' || *c == ';') && (c == text || c[-1] == ' ' || c[-1] == '\t')) {
			*c = 0;
			return;
		}
}

/* May this be there? Only a list takes a name twice: one of two values would be lost without a word. */
static int config_check_name(struct config_reader *reader, const char *origin, const char *name)
{
	const char *nearest;
	const struct option_row *row = config_find(name, &nearest);
	unsigned set_in;

	if (!row)
		return 0; /* config_set() says so */
	set_in = reader->config->line_of[row - options];
	if (!strcmp(name, "config")) {
		snprintf(reader->message, 256, "%.150s: config cannot be set in the file itself", origin);
		return -EINVAL;
	}
	if (set_in && row->kind != OPTION_LISTEN && row->kind != OPTION_SPILL && row->kind != OPTION_KEYS) {
		snprintf(reader->message, 256, "%.150s: %.40s is set in line %u already: leave one of them", origin,
			name, set_in);
		return -EINVAL;
	}
	return 0;
}

static int config_take_line(struct config_reader *reader, char *text)
{
	char origin[256], *equals, *name;
	const char *nearest;

	config_cut_comment(text);
	text = config_trim(text);
	if (!text[0])
		return 0;
	snprintf(origin, sizeof(origin), "%.200s:%u", reader->origin, reader->line);
	if (text[0] == '[') {
		snprintf(reader->message, 256, "%.150s: %.40s: there are no sections here: leave that line out", origin,
			text);
		return -EINVAL;
	}
	equals = strchr(text, '=');
	if (!equals || equals == text) {
		snprintf(reader->message, 256, "%.150s: \"%.40s\" is not of the form name = value", origin, text);
		return -EINVAL;
	}
	*equals = 0;
	name = config_trim(text);
	if (config_check_name(reader, origin, name) < 0)
		return -EINVAL;
	if (config_set(reader->config, name, config_trim(equals + 1), origin, reader->message) < 0)
		return -EINVAL;
	reader->config->line_of[config_find(name, &nearest) - options] = reader->line;
	return 0;
}

int config_parse_text(struct config *config, const char *text, const char *origin, char message[256])
{
	struct config_reader reader = {.config = config, .origin = origin, .message = message};

	message[0] = 0;
	if (!strncmp(text, "\xef\xbb\xbf", 3)) /* some editors begin every file with this mark */
		text += 3;
	while (*text) {
		size_t n = strcspn(text, "\n");
		char line[1024];

		reader.line++;
		if (n >= sizeof(line)) {
			snprintf(message, 256, "%.200s:%u: %zu bytes long, at most %zu fit", origin, reader.line, n,
				sizeof(line) - 1);
			return -EINVAL;
		}
		memcpy(line, text, n);
		line[n] = 0;
		text += n + (text[n] == '\n');
		if (config_take_line(&reader, line) < 0)
			return -EINVAL;
	}
	return 0;
}

/* The whole of it; a named pipe or a device would hold up a reload for ever. Return: bytes; -EINVAL. */
static ssize_t config_read_file(const char *path, char *text, size_t room, char message[256])
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	ssize_t n = -1;
	size_t all = 0;

	if (fd < 0 || fstat(fd, &st) < 0) {
		snprintf(message, 256, "cannot open the configuration file %.150s: %s", path, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		snprintf(message, 256, "the configuration file %.150s is %s: name a regular file", path,
			S_ISDIR(st.st_mode) ? "a directory" : "a pipe or a device");
	} else {
		while (all < room && (n = read(fd, text + all, room - all)) > 0)
			all += (size_t)n;
		if (n < 0)
			snprintf(message, 256, "cannot read the configuration file %.150s: %s", path, strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	return n < 0 ? -EINVAL : (ssize_t)all;
}

static int config_parse_file(struct config *config, char message[256])
{
	char text[64 * 1024];
	ssize_t n = config_read_file(config->file, text, sizeof(text), message);

	if (n < 0)
		return -EINVAL;
	if (n == sizeof(text)) {
		snprintf(message, 256, "%.150s is longer than 64 KiB: not a configuration file of kvpoold",
			config->file);
		return -EINVAL;
	}
	if (memchr(text, 0, (size_t)n)) {
		snprintf(message, 256, "%.150s holds zero bytes: not a text file", config->file);
		return -EINVAL;
	}
	text[n] = 0;
	return config_parse_text(config, text, config->file, message);
}

/* As config_defaults() has it; "": none, or the help says it in its own words. */
static void option_default(const struct option_row *row, const struct config *defaults, char text[160])
{
	const char *at = (const char *)defaults + row->off;
	char size[24];

	text[0] = 0;
	if (strstr(row->help, "default") || row->kind == OPTION_LISTEN)
		return;
	if (row->kind == OPTION_KEYS)
		snprintf(text, 160, " (default none: they lie as they are)");
	else if (row->kind == OPTION_SPILL)
		snprintf(text, 160, " (default off)");
	else if (row->kind == OPTION_BOOL)
		snprintf(text, 160, " (default %s)", *(const bool *)(const void *)at ? "yes" : "no");
	else if (row->kind == OPTION_NUMBER)
		snprintf(text, 160, " (default %" PRIu32 ")", *(const uint32_t *)(const void *)at);
	else if (row->kind == OPTION_TEXT && *at)
		snprintf(text, 160, " (default %.140s)", at);
	else if (row->kind == OPTION_SIZE || row->kind == OPTION_POOL) {
		config_size_text(*(const uint64_t *)(const void *)at, size);
		snprintf(text, 160, " (default %s)", size);
	}
}

static void config_help(void)
{
	struct config defaults;
	char text[160];

	config_defaults(&defaults);
	printf("usage: kvpoold [--name VALUE]...\n\nOwns the KV-cache memory of this host; see kvpoold(8).\n\n");
	for (size_t i = 0; i < N_OPTIONS; i++) {
		option_default(&options[i], &defaults, text);
		printf("  --%s %s\n        %s%s\n", options[i].name, options[i].arg, options[i].help, text);
	}
	printf("  --help, --version\n\nSizes: 4096, 64M, 2G; m, MB and MiB are M too (powers of 1024).\n");
}

#define OPTION_CODE 256 /* each its own: getopt_long() takes what is cut short for the first of those that share one */

/* Flags are read twice: first for --config, then all, so that flags win over the file. */
static int config_scan(struct config *config, int argc, char **argv, bool only_file, char message[256])
{
	struct option longs[N_OPTIONS + 3];
	int c, index;

	memset(longs, 0, sizeof(longs));
	for (size_t i = 0; i < N_OPTIONS; i++)
		longs[i] = (struct option){options[i].name, required_argument, NULL, OPTION_CODE + (int)i};
	longs[N_OPTIONS] = (struct option){"help", no_argument, NULL, 'h'};
	longs[N_OPTIONS + 1] = (struct option){"version", no_argument, NULL, 'v'};
	opterr = 0;
	optind = 0; /* anew: 1 would keep where an earlier scan had moved non-options to */
	while ((c = getopt_long(argc, argv, ":hv", longs, &index)) != -1) {
		if (c == 'h') {
			config_help();
			return 1;
		}
		if (c == 'v') {
			printf("kvpoold %d.%d\n", KVP_VERSION_MAJOR, KVP_VERSION_MINOR);
			return 1;
		}
		if (c == ':') {
			snprintf(message, 256, "%.60s needs a value", argv[optind - 1]);
			return -EINVAL;
		}
		if (c == '?') {
			const char *nearest;
			char suggestion[64];

			config_find(argv[optind - 1] + strspn(argv[optind - 1], "-"), &nearest);
			config_suggest(nearest, "--", "", suggestion);
			snprintf(message, 256, "unknown option %.60s;%s kvpoold --help lists them", argv[optind - 1],
				suggestion);
			return -EINVAL;
		}
		if (only_file == !strcmp(longs[index].name, "config")) {
			char origin[64];

			snprintf(origin, sizeof(origin), "--%.50s", longs[index].name);
			if (config_set(config, longs[index].name, optarg, origin, message) < 0)
				return -EINVAL;
		}
	}
	if (optind < argc) {
		snprintf(message, 256, "\"%.60s\" is not an option: all are of the form --name VALUE", argv[optind]);
		return -EINVAL;
	}
	return 0;
}

int config_parse_args(struct config *config, int argc, char **argv, char message[256])
{
	int r = config_scan(config, argc, argv, true, message);

	if (r)
		return r;
	if (config->file[0]) {
		r = config_parse_file(config, message);
		if (r < 0)
			return r;
		config->stores_from_file = config->key_files_from_file = true;
	}
	r = config_scan(config, argc, argv, false, message);
	config->stores_from_file = config->key_files_from_file = false;
	if (r)
		return r;
	r = config_check(config, message);
	if (r < 0)
		config_where(config, message);
	return r;
}

void config_where(const struct config *config, char message[256])
{
	size_t n = strcspn(message, " :");
	char what[256];

	for (size_t i = 0; i < N_OPTIONS; i++)
		if (strlen(options[i].name) == n && !strncmp(options[i].name, message, n) && config->line_of[i]) {
			memcpy(what, message, sizeof(what));
			snprintf(message, 256, "%.100s:%u: %.140s", config->file, config->line_of[i], what);
			return;
		}
}

static bool config_name_ok(const char *name)
{
	return name[0] && name[0] != '.' &&
	       !name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")];
}

static int config_check_path(const char *what, const char *path, char message[256])
{
	if (path[0] != '/') {
		snprintf(message, 256, "%s = \"%.100s\" is a relative path: give an absolute one", what, path);
		return -EINVAL;
	}
	return 0;
}

/* Each socket at a path of its own: the second bind would be refused as if another daemon were there. */
static int config_check_sockets(const struct config *config, char message[256])
{
	const char *names[2 + CONFIG_LISTEN_MAX] = {"socket", "admin-socket"};
	const char *paths[2 + CONFIG_LISTEN_MAX] = {config->socket, config->admin_socket};
	unsigned n = 2;

	if (config_check_path(names[0], paths[0], message) < 0 || config_check_path(names[1], paths[1], message) < 0)
		return -EINVAL;
	for (unsigned i = 0; i < config->n_listen; i++, n++) {
		names[n] = "listen";
		paths[n] = config->listen[i].path;
		if (config->listen[i].has_uid && config->listen[i].uid == KVP_OVERFLOW_UID) {
			snprintf(message, 256,
				"listen = %.107s,uid=%u: that is what uids outside a user namespace read as, it could be anybody and is refused: give another one",
				paths[n], KVP_OVERFLOW_UID);
			return -EINVAL;
		}
	}
	for (unsigned i = 0; i < n; i++)
		for (unsigned j = i + 1; j < n; j++)
			if (!strcmp(paths[i], paths[j])) {
				snprintf(message, 256,
					"%s and %s are the same path, %.107s: give each socket one of its own",
					names[i], names[j], paths[i]);
				return -EINVAL;
			}
	return 0;
}

static int config_check_admin_socket(struct config *config, char message[256])
{
	size_t n = strlen(config->socket);

	if (config->admin_socket[0])
		return 0;
	if (n + strlen(".admin") >= sizeof(config->admin_socket)) {
		snprintf(message, 256, "socket is %zu bytes long; with .admin at most %zu fit: use a shorter path", n,
			sizeof(config->admin_socket) - 1);
		return -EINVAL;
	}
	snprintf(config->admin_socket, sizeof(config->admin_socket), "%.*s.admin",
		(int)(sizeof(config->admin_socket) - sizeof(".admin")), config->socket);
	return 0;
}

/* Slabs are whole pages. */
static int config_check_pages(struct config *config, char message[256])
{
	static const char *const names[] = {"4k", "thp", "2M", "1G"};
	uint64_t page;
	char pool[24];

	config->pages = 0;
	while (config->pages < 4 && strcmp(config->pages_text, names[config->pages]))
		config->pages++;
	if (config->pages == 4) {
		snprintf(message, 256, "pages = \"%.7s\": 4k, thp, 2M or 1G", config->pages_text);
		return -EINVAL;
	}
	config->pages_fallback = !strcmp(config->pages_short, "fallback");
	if (!config->pages_fallback && strcmp(config->pages_short, "refuse")) {
		snprintf(message, 256, "pages-short = \"%.15s\": refuse or fallback", config->pages_short);
		return -EINVAL;
	}
	if (config->hugetlbfs[0] && config_check_path("hugetlbfs", config->hugetlbfs, message) < 0)
		return -EINVAL;
	page = kvp_pages_bytes(config->pages);
	if (config->slab_bytes && page > KVP_PAGE && config->slab_bytes % page) {
		snprintf(message, 256, "slab = %" PRIu64 " is no multiple of pages = %s: make it one",
			config->slab_bytes, names[config->pages]);
		return -EINVAL;
	}
	config->slab_asked = config->slab_bytes != 0;
	if (!config->slab_asked) {
		config->slab_bytes = kvp_default_slab(config->pool_bytes);
		if (config->slab_bytes < page)
			config->slab_bytes = page;
		if (page > config->pool_bytes) {
			config_size_text(config->pool_bytes, pool);
			snprintf(message, 256,
				"pages = %s: a slab is a page at least, and pool = %s is less than one: a larger pool, or smaller pages",
				names[config->pages], pool);
			return -EINVAL;
		}
	}
	config->slab_bytes &= ~(page - 1);
	return 0;
}

const char *config_namespace_dir(const struct config *config, unsigned i)
{
	for (unsigned k = 0; k < config->n_stores; k++)
		if (!config->stores[k].device && i-- == 0)
			return config->stores[k].path;
	return config->n_stores && config->namespace_dir[0] && i == 0 ? config->namespace_dir : NULL;
}

/* Whether two paths lead to one file is seen when they are opened. */
static int config_check_stores(const struct config *config, char message[256])
{
	if (config->namespace_dir[0] && config_check_path("namespace-dir", config->namespace_dir, message) < 0)
		return -EINVAL;
	if (config->n_stores && !config_namespace_dir(config, 0)) {
		snprintf(message, 256,
			"spill: %.80s is a device, and without the namespaces' own files no block in it is found again: name a directory for them, namespace-dir = /var/lib/kvpool",
			config->stores[0].path);
		return -EINVAL;
	}
	for (unsigned i = 0; i < config->n_stores; i++) {
		if (config_check_path("spill", config->stores[i].path, message) < 0)
			return -EINVAL;
		for (unsigned j = 0; j < i; j++)
			if (!strcmp(config->stores[i].path, config->stores[j].path)) {
				snprintf(message, 256,
					"spill: %.120s is given twice: give each store a directory of its own",
					config->stores[i].path);
				return -EINVAL;
			}
	}
	return 0;
}

int config_check(struct config *config, char message[256])
{
	if (!config_name_ok(config->name)) {
		snprintf(message, 256, "name = \"%.60s\": letters, digits, . _ - only, not starting with a dot",
			config->name);
		return -EINVAL;
	}
	if (config_check_admin_socket(config, message) < 0 || config_check_sockets(config, message) < 0)
		return -EINVAL;
	if (config_check_stores(config, message) < 0)
		return -EINVAL;
	if (config_check_pages(config, message) < 0)
		return -EINVAL;
	if (config->slab_bytes > config->pool_bytes) {
		snprintf(message, 256, "slab = %" PRIu64 " is larger than pool = %" PRIu64 ": make it smaller",
			config->slab_bytes, config->pool_bytes);
		return -EINVAL;
	}
	if (strcmp(config->io, "auto") && strcmp(config->io, "uring") && strcmp(config->io, "threads")) {
		snprintf(message, 256, "io = \"%.15s\": auto, uring or threads", config->io);
		return -EINVAL;
	}
	if (strcmp(config->spill_compress, "none") && strcmp(config->spill_compress, "zstd") &&
		strcmp(config->spill_compress, "auto")) {
		snprintf(message, 256, "spill-compress = \"%.7s\": none, zstd or auto", config->spill_compress);
		return -EINVAL;
	}
	if (strcmp(config->spill_admit, "all") && strcmp(config->spill_admit, "reused") &&
		strcmp(config->spill_admit, "chance")) {
		snprintf(message, 256, "spill-admit = \"%.7s\": all, reused or chance", config->spill_admit);
		return -EINVAL;
	}
	if (strcmp(config->policy, "lru") && strcmp(config->policy, "learned")) {
		snprintf(message, 256, "policy = \"%.7s\": lru or learned", config->policy);
		return -EINVAL;
	}
	if (strcmp(config->log_level, "err") && strcmp(config->log_level, "warn") &&
		strcmp(config->log_level, "info") && strcmp(config->log_level, "debug")) {
		snprintf(message, 256, "log-level = \"%.15s\": err, warn, info or debug", config->log_level);
		return -EINVAL;
	}
	return 0;
}

/* Limits, times and what is logged; all else is built upon at the start. */
static bool option_is_live(const struct option_row *row)
{
	return (row->kind == OPTION_NUMBER && strcmp(row->name, "spill-depth")) ||
	       !strcmp(row->name, "uid-max-transit") || !strcmp(row->name, "uid-max-spill") ||
	       !strcmp(row->name, "namespace-max-spill") || !strcmp(row->name, "uid-max-memory") ||
	       !strcmp(row->name, "namespace-min") || !strcmp(row->name, "namespace-max") ||
	       !strcmp(row->name, "spill-write-budget") || !strcmp(row->name, "spill-compress") ||
	       !strcmp(row->name, "policy") || !strcmp(row->name, "spill-admit") || !strcmp(row->name, "spill-scrub") ||
	       !strcmp(row->name, "log-level");
}

static size_t option_room(const struct option_row *row)
{
	switch (row->kind) {
	case OPTION_TEXT:
		return row->max;
	case OPTION_SIZE:
		return sizeof(uint64_t);
	case OPTION_BOOL:
		return sizeof(bool);
	default:
		return sizeof(uint32_t);
	}
}

static bool option_differs(const struct option_row *row, const struct config *a, const struct config *b)
{
	switch (row->kind) {
	case OPTION_TEXT:
		return strcmp((const char *)a + row->off, (const char *)b + row->off) != 0;
	case OPTION_SPILL:
		return a->n_stores != b->n_stores ||
		       memcmp(a->stores, b->stores, a->n_stores * sizeof(a->stores[0])) != 0;
	case OPTION_KEYS:
		return a->n_key_files != b->n_key_files ||
		       memcmp(a->key_files, b->key_files, a->n_key_files * sizeof(a->key_files[0])) != 0;
	case OPTION_POOL:
		return a->pool_bytes != b->pool_bytes || a->n_nodes != b->n_nodes ||
		       memcmp(a->nodes, b->nodes, sizeof(a->nodes)) != 0;
	case OPTION_LISTEN:
		return a->n_listen != b->n_listen || memcmp(a->listen, b->listen, sizeof(a->listen)) != 0;
	default:
		return memcmp((const char *)a + row->off, (const char *)b + row->off, option_room(row)) != 0;
	}
}

bool config_reload(struct config *now, const struct config *fresh, char later[256])
{
	size_t n = 0;

	later[0] = 0;
	for (const struct option_row *row = options; row < options + N_OPTIONS; row++)
		if (option_is_live(row))
			memcpy((char *)now + row->off, (const char *)fresh + row->off, option_room(row));
		else if (option_differs(row, now, fresh) && n < 256)
			n += (size_t)snprintf(later + n, 256 - n, "%s%s", n ? ", " : "", row->name);
	return n;
}
