/* budget.c - see budget.h */
#include "budget.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "daemon.h"

static int budget_by_names(struct daemon *d, char message[256])
{
	unsigned n = topology_n_nodes(d->topology);

	for (unsigned i = 0; i < n; i++)
		d->nodes[i].budget = 0;
	for (unsigned k = 0; k < d->config.n_nodes; k++) {
		const struct config_node *wish = &d->config.nodes[k];
		unsigned i = 0;

		while (i < n && topology_node_id(d->topology, i) != wish->id)
			i++;
		if (i == n) {
			size_t at = (size_t)snprintf(message, 256,
				"pool: node%u is no node with memory that this process may use; there are", wish->id);

			for (i = 0; i < n && at < 240; i++)
				at += (size_t)snprintf(
					message + at, 256 - at, " node%u", topology_node_id(d->topology, i));
			return -EINVAL;
		}
		if (wish->bytes < d->pool.header->slab_bytes) {
			snprintf(message, 256,
				"pool: node%u=%" PRIu64 " is less than a slab of %" PRIu64
				": give it more, or a smaller --slab",
				wish->id, wish->bytes, d->pool.header->slab_bytes);
			return -EINVAL;
		}
		d->nodes[i].budget = wish->bytes;
	}
	return 0;
}

/* The node with the least budget, of those that hold more if any do. */
static unsigned budget_least(const struct daemon *d, uint64_t more)
{
	unsigned n = topology_n_nodes(d->topology), best = n, any = 0;

	for (unsigned i = 0; i < n; i++) {
		if (d->nodes[i].budget < d->nodes[any].budget)
			any = i;
		if (d->nodes[i].budget + more <= topology_node_memory(d->topology, i) &&
			(best == n || d->nodes[i].budget < d->nodes[best].budget))
			best = i;
	}
	return best < n ? best : any;
}

void budget_share_out(struct daemon *d, uint64_t bytes)
{
	uint64_t slab = d->pool.header->slab_bytes, left = bytes / slab;
	uint64_t piece = 1 + left / (TOPOLOGY_NODES_MAX * 1024ull); /* slabs given out in one go */

	for (unsigned i = 0; i < topology_n_nodes(d->topology); i++)
		d->nodes[i].budget = 0;
	for (; left; left -= piece) {
		piece = piece < left ? piece : left;
		d->nodes[budget_least(d, piece * slab)].budget += piece * slab;
	}
	d->nodes[0].budget += bytes % slab; /* less than a slab */
}

void budget_set(struct daemon *d, uint64_t bytes)
{
	uint64_t slab = d->pool.header->slab_bytes;

	d->budget_bytes = bytes;
	budget_share_out(d, bytes);
	if (d->config.n_nodes && d->config.pool_bytes) {
		char message[256];

		budget_by_names(d, message); /* was right when it was set */
		for (unsigned i = 0; i < topology_n_nodes(d->topology); i++) {
			double part = (double)d->nodes[i].budget / (double)d->config.pool_bytes;

			d->nodes[i].budget = bytes == d->config.pool_bytes
						     ? d->nodes[i].budget
						     : (uint64_t)(part * (double)bytes) / slab * slab;
		}
	}
	budget_stats(d);
}

int budget_start(struct daemon *d, char message[256])
{
	int r = 0;

	d->budget_bytes = d->config.pool_bytes;
	if (d->config.n_nodes)
		r = budget_by_names(d, message);
	else
		budget_share_out(d, d->config.pool_bytes);
	budget_stats(d);
	return r;
}

uint64_t budget_room(const struct daemon *d, uint32_t i)
{
	const struct budget_node *node = &d->nodes[i];
	uint64_t taken = d->slab_bytes_total + d->slab_bytes_moving + d->leaving_bytes;
	uint64_t room = d->budget_bytes > taken ? d->budget_bytes - taken : 0;
	uint64_t here = node->budget > node->total + node->moving ? node->budget - node->total - node->moving : 0;

	return room < here ? room : here;
}

uint64_t budget_over(const struct daemon *d, uint32_t i)
{
	const struct budget_node *node = &d->nodes[i];

	return node->total > node->budget ? node->total - node->budget : 0;
}

void budget_stats(struct daemon *d)
{
	struct kvp_stats *stats = d->pool.stats;

	/* while it shrinks the pool is as large as it still is */
	d->pool.header->pool_bytes = d->slab_bytes_total > d->budget_bytes ? d->slab_bytes_total : d->budget_bytes;
	gauge_set(&stats->counters.pool_bytes, d->pool.header->pool_bytes);
	stats->n_nodes = topology_n_nodes(d->topology);
	for (unsigned i = 0; i < stats->n_nodes; i++) {
		const struct budget_node *node = &d->nodes[i];
		struct kvp_node_row *row = &stats->nodes[i];

		row->id = topology_node_id(d->topology, i);
		row->has_cpus = topology_has_cpus(d->topology, i);
		row->memory = topology_node_memory(d->topology, i);
		row->asked = node->budget;
		row->got = node->total;
		row->used = node->total - node->spare;
		row->placed = node->placed;
		row->huge = node->huge;
		row->n_slabs = node->n_slabs;
		row->n_bound = node->n_bound;
	}
}
