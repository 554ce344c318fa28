/*
 * config.h - what the operator may set: one table of names serves flags, the configuration file and the help text
 *
 * A flag --name VALUE and a line `name = VALUE` mean the same; flags win.  Every value is checked; an unknown name is
 * refused with its line and the nearest known name.
 */
#ifndef KVPOOL_CONFIG_H
#define KVPOOL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool.h"

#define KVP_OVERFLOW_UID 65534u /* what uids outside our user namespace read as: it could be anybody */
#define CONFIG_LISTEN_MAX 8
#define CONFIG_SLAB_MIN (64 * 1024u)

/* One more socket, and who those that come by it are (pods share uids: the socket then tells them apart). */
struct config_listen {
	char path[KVP_SOCKET_MAX];
	uint32_t mode; /* permission bits; 0: as socket_mode */
	bool has_uid; /* everybody who comes by it is this uid and gid, whatever the kernel says */
	uint32_t uid, gid;
};

#define CONFIG_NODES_MAX 64

/* What one NUMA node gives to the pool. */
struct config_node {
	uint32_t id;
	uint64_t bytes;
};

#define CONFIG_STORES_MAX 16
#define CONFIG_OPTIONS_MAX 64
#define CONFIG_KEYS_MAX 8 /* as SPILL_KEYS_MAX */

/* A spill store. */
struct config_store {
	char path[256];
	bool device; /* a block device, not a directory */
	uint64_t bytes; /* 0: all of the device */
};

struct config {
	char file[256]; /* --config; "": none */
	char socket[KVP_SOCKET_MAX];
	char admin_socket[KVP_SOCKET_MAX]; /* default: socket + ".admin" */
	uint32_t socket_mode; /* permission bits of the socket; who may connect */
	struct config_listen listen[CONFIG_LISTEN_MAX];
	unsigned n_listen;
	char group[64]; /* operators: may read stats and use the admin socket; "": only the owner */
	char name[KVP_NAME_MAX];
	uint64_t pool_bytes; /* of all nodes */
	struct config_node nodes[CONFIG_NODES_MAX];
	unsigned n_nodes; /* 0: shared out */
	uint64_t slab_bytes; /* 0: kvp_default_slab() */
	bool slab_asked; /* for this size; else it follows from the pool's */
	char pages_text[8], pages_short[16]; /* as written */
	uint32_t pages; /* enum kvp_pages, by config_check() */
	bool pages_fallback; /* where there are none of these: 4k, else no start */
	char hugetlbfs[KVP_SOCKET_MAX]; /* directory of a mount for 2M and 1G pages; "": found by itself */
	struct config_store stores[CONFIG_STORES_MAX];
	unsigned n_stores; /* 0: no spill */
	char key_files[CONFIG_KEYS_MAX][256]; /* of the stores: what is written is encrypted with the first one's key */
	unsigned n_key_files; /* 0: stores lie in plain */
	bool key_files_from_file; /* as stores_from_file */
	char namespace_dir
		[256]; /* where the namespaces' own files lie, beside the stores' directories; "": only there */
	bool stores_from_file; /* the first flag begins the list anew */
	uint64_t spill_write_budget; /* bytes a day for evictions; 0: no limit */
	char spill_admit[8]; /* all, reused, chance: what evictions of learned namespaces write */
	uint32_t spill_admit_percent; /* chance: of what is offered */
	uint32_t spill_depth; /* transfers at once */
	char spill_compress[8]; /* none, zstd, auto: of namespaces that were not made to be either */
	uint64_t spill_scrub; /* bytes a second read again to find damage; 0: none */
	char io[16]; /* auto, uring, threads */
	char log_level[16]; /* err, warn, info, debug */
	uint32_t pressure_percent; /* memory is given back above; 0: never */
	char pressure_file[256]; /* "": found by itself */
	uint32_t cgroup_headroom; /* percent of the cgroup's limit kept free by giving memory back; 0: never */
	bool lock_memory; /* mlock the slabs */
	uint32_t max_clients;
	uint32_t max_namespaces;
	uint32_t uid_max_clients; /* for each uid */
	uint32_t uid_max_namespaces;
	uint32_t uid_max_grants; /* 0: no limit */
	uint32_t uid_max_pins; /* 0: no limit */
	uint64_t uid_max_transit; /* bytes of blocks on their way for its requests */
	uint32_t uid_max_requests; /* that wait for something; 0: no limit */
	uint64_t uid_max_memory; /* bytes of memory its namespaces may have; 0: no limit */
	uint64_t namespace_max; /* likewise a single one */
	uint64_t uid_max_spill; /* bytes of the spill stores its namespaces may have; 0: no limit */
	uint64_t namespace_max_spill; /* likewise a single one */
	uint32_t pin_limit_ms; /* a session that holds a block unused for longer is put out; 0: never */
	uint32_t heartbeat_ms;
	uint32_t hold_limit_ms; /* a stopped client's holds may be revoked after so long; 0: never */
	uint32_t grant_limit_ms;
	uint32_t read_ahead; /* blocks read along a chain before they are asked for */
	uint64_t namespace_min; /* bytes of memory that no other namespace takes from one in use */
	char policy[8]; /* of namespaces made from now on: lru, learned */
	uint32_t free_percent; /* free slots kept ready by evicting ahead of need */
	uint32_t line_of
		[CONFIG_OPTIONS_MAX]; /* of the file, in which config.c's option i is set last; 0: it is not set there */
};

/** config_defaults() */
void config_defaults(struct config *config);

/**
 * config_parse_args() - flags, and the file --config names
 * @message: 256 bytes: what is wrong, where, and the way out
 * Return: 0; 1: help or version was printed; -EINVAL.
 */
int config_parse_args(struct config *config, int argc, char **argv, char message[256]);

/** config_where() - if @message begins with the name of an option that the file sets, put file and line before it */
void config_where(const struct config *config, char message[256]);

/** config_parse_text() - the lines of a configuration file. @origin: its name for messages. Return: 0; -EINVAL. */
int config_parse_text(struct config *config, const char *text, const char *origin, char message[256]);

/** config_parse_size() - "64M", "2G", "4096"; k, M, G, T, in either case, with B or iB or not, are powers of 1024.
 *  Return: 0; -EINVAL. */
int config_parse_size(const char *text, uint64_t *bytes);

/** config_parse_pool() - a new value of pool: pool_bytes and nodes. Return: 0; -EINVAL. */
int config_parse_pool(struct config *config, const char *value, char message[256]);

/**
 * config_reload() - take over what may change while serving
 * @later: names of what differs and has to wait for the next start
 * Return: is there any such?
 */
bool config_reload(struct config *now, const struct config *fresh, char later[256]);

/** config_check() - do the values fit each other? Return: 0; -EINVAL. */
int config_check(struct config *config, char message[256]);

/** config_namespace_dir() - the @i-th directory in which the namespaces' own files lie; NULL: there are no more */
const char *config_namespace_dir(const struct config *config, unsigned i);

#endif
