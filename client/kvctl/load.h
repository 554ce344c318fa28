/*
 * load.h - what the benchmarks put into a pool and get out of it: keys, namespaces, processes, medians
 */
#ifndef KVCTL_LOAD_H
#define KVCTL_LOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool.h"
#include "kvpool_shm.h"

struct load {
	struct kvp_client *client;
	struct kvp_ns *ns;
};

/** load_open() - a client in a namespace of opaque blocks of @block_bytes. Return: 0; KVCTL_DOWN, KVCTL_FAILED
 *  (said). */
int load_open(struct load *load, const char *socket, const char *ns_name, uint64_t block_bytes, uint32_t stock);
/** load_open_desc() - the same with a descriptor of the caller's */
int load_open_desc(
	struct load *load, const char *socket, const char *ns_name, const struct kvp_desc *desc, uint32_t stock);
void load_close(struct load *load);

/** load_key() - key of block @i, as uniform as a keyed hash */
struct kvp_key load_key(uint64_t i);
/** load_keys_shuffled() - the keys 0..n-1 in a random order; NULL: no memory */
struct kvp_key *load_keys_shuffled(uint64_t n, uint64_t seed);

/** load_publish() - blocks first..first+n-1, each filled with its number if @fill. Return: 0; KVCTL_FAILED (said). */
int load_publish(struct load *load, uint64_t first, uint64_t n, uint64_t block_bytes, bool fill);
/** load_fill() - the bytes of block @i */
void load_fill(void *data, uint64_t i, uint64_t bytes);
/** load_read_lines() - read one word of each cache line. Return: their sum. */
uint64_t load_read_lines(const void *data, uint64_t bytes);

/** load_cpu_ns() - CPU time of this thread: what a loop without waits takes, whoever else wants the CPU */
uint64_t load_cpu_ns(void);
/** load_median(), load_lowest_tenth() - of @n values, which are put in order; the value below which a tenth of them
 *  lies */
double load_median(double *values, unsigned n);
double load_lowest_tenth(double *values, unsigned n);

/**
 * load_processes() - run @body in @n processes at once and wait for them
 * @results: @n x @n_results numbers, in memory shared by all; body writes its own @n_results of them
 * Return: 0; KVCTL_FAILED: one of them failed (it has said why).
 */
int load_processes(unsigned n, int (*body)(void *owner, unsigned index, double *results), void *owner, double *results,
	unsigned n_results);
double *load_results(unsigned n); /* shared by processes forked later */

/* A namespace's own index and descriptors, mapped read-only by name: for probing them bare. */
struct load_index {
	void *map;
	uint64_t map_bytes;
	const struct kvp_index_bucket *buckets;
	uint64_t n_buckets;
	const struct kvp_block *blocks;
	uint64_t n_blocks;
};
/** load_index_open() - @socket's pool, the namespace of @ns. Return: 0; KVCTL_FAILED (said): not root nor the pool's
 *  user. */
int load_index_open(struct load_index *index, const char *socket, const struct kvp_ns *ns);
void load_index_close(struct load_index *index);
/** load_index_probe() - as a reader probes, the key compared, nothing pinned. Return: a slot, or UINT64_MAX. */
uint64_t load_index_probe(const struct load_index *index, const struct kvp_key *key);

#endif
