/*
 * topology.h - NUMA nodes as hwloc tells them, and placing memory on them
 *
 * Nodes without memory, gaps in the numbering and nodes this process may not use are left out.  Where binding is
 * refused (containers), one warning, and everything goes on unbound.
 */
#ifndef KVPOOL_TOPOLOGY_H
#define KVPOOL_TOPOLOGY_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

struct topology;

#define TOPOLOGY_NODES_MAX 64 /* more are left out */
#define TOPOLOGY_ANY UINT32_MAX /* instead of an index: no wish */

/** topology_open() - Return: 0; -ENOMEM; -EIO: hwloc could not look. */
int topology_open(struct topology **topology);
void topology_close(struct topology *topology);

unsigned topology_n_nodes(const struct topology *topology); /* with memory we may use; at least 1 */
uint32_t topology_node_id(const struct topology *topology, unsigned i); /* the kernel's number */

unsigned topology_n_cpus(const struct topology *topology); /* we may use; at least 1 */

uint64_t topology_node_memory(const struct topology *topology, unsigned i); /* its size */
bool topology_has_cpus(const struct topology *topology, unsigned i);

/** topology_is_far() - memory only (CXL, say), while other nodes have CPUs: what is used less lies there */
bool topology_is_far(const struct topology *topology, unsigned i);

/** topology_index() - index of the kernel's node @id, or of the nearest one with memory; TOPOLOGY_ANY for an unknown
 *  one */
uint32_t topology_index(const struct topology *topology, uint32_t id);

/** topology_device_node() - the kernel's number of the node on which the block device @dev hangs; -1: not known */
int topology_device_node(uint64_t dev);
/** topology_node_cpus() - those of the kernel's node @id. Return: are there any, and is that a choice? */
bool topology_node_cpus(const struct topology *topology, int id, cpu_set_t *cpus);

/** topology_near() - the @k-th nearest node to node @i, itself first; without a wish, or past the last one: @k */
unsigned topology_near(const struct topology *topology, uint32_t i, unsigned k);

/** topology_bind() - put [addr, addr + len) on node @i before it is touched. Return: 0; -errno: unbound. */
int topology_bind(struct topology *topology, void *addr, uint64_t len, unsigned i);

/** topology_populate() - touch [addr, addr + len) for writing, on a CPU of node @i, without losing contents; the calling
 *  thread moves there, and a long piece is shared with more threads.
 *  Return: 0; -ENOMEM; -errno. */
int topology_populate(struct topology *topology, void *addr, uint64_t len, unsigned i);

/** topology_can_populate() - does the kernel touch pages for us, with an error instead of a signal where there are
 *  none? */
bool topology_can_populate(void);

/** topology_placed() - how many bytes of [addr, addr + len), all touched, lie on node @i by the kernel's word.
 *  Return: bytes; -errno: it is not told here. */
int64_t topology_placed(const struct topology *topology, void *addr, uint64_t len, unsigned i);

#endif
