/*
 * ns.c - namespaces as the caller sees them
 *
 * A kvp_ns is there from kvp_ns_open() on, attached or not; ns->map says what it is attached to.
 */
#include "internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

int ns_bad(const struct kvp_ns *ns)
{
	if (!ns)
		return fail(-KVP_EINVAL, "ns: a null pointer");
	return client_bad(ns->client);
}

static int ns_opts_bad(const struct kvp_client *client, const struct kvp_ns_opts *opts)
{
	const uint32_t known = KVP_NS_JOIN | KVP_NS_COPIED | KVP_NS_IN_PLACE | KVP_NS_READONLY | KVP_NS_SPILL_ZSTD |
			       KVP_NS_SPILL_PLAIN | KVP_NS_LAYERS | KVP_NS_COLD;
	const char *field;

	if (!opts)
		return fail(-KVP_EINVAL, "opts: a null pointer");
	if (opts->size != sizeof(*opts))
		return fail(-KVP_EINVAL, "opts.size: %u, this library knows %zu", opts->size, sizeof(*opts));
	if (!opts->name || !kvp_name_ok(opts->name))
		return fail(-KVP_EINVAL, "opts.name: 1 to %d of A-Z a-z 0-9 . _ - and not starting with a dot",
			KVP_NAME_MAX - 1);
	if (opts->flags & ~known || (opts->flags & KVP_NS_COPIED && opts->flags & KVP_NS_IN_PLACE))
		return fail(-KVP_EINVAL, "opts.flags: %#x, unknown bits or COPIED together with IN_PLACE", opts->flags);
	if (opts->flags & KVP_NS_SPILL_ZSTD && opts->flags & KVP_NS_SPILL_PLAIN)
		return fail(-KVP_EINVAL, "opts.flags: %#x, SPILL_ZSTD together with SPILL_PLAIN", opts->flags);
	if (opts->mode & ~0666u)
		return fail(-KVP_EINVAL, "opts.mode: %04o, only the bits of 0666 mean something", opts->mode);
	if (!opts->desc)
		return fail(-KVP_EINVAL, "opts.desc: a null pointer");
	if (kvp_desc_check(opts->desc, &field, NULL) < 0)
		return -KVP_EINVAL;
	if (opts->base && opts->base->client != client)
		return fail(-KVP_EINVAL, "opts.base: of another client");
	if (opts->base && (field = kvp_desc_diff(&opts->base->join.desc, opts->desc)))
		return fail(-KVP_EINVAL, "opts.base: its descriptor differs in %s", field);
	return 0;
}

static int ns_offsets(struct kvp_ns *ns)
{
	const struct kvp_desc *desc = &ns->join.desc;

	ns->off = calloc(desc->n_layers ? 2ull * desc->n_layers : 1, sizeof(*ns->off));
	for (uint32_t i = 0; ns->off && i < desc->n_layers; i++) {
		ns->off[2 * i] = kvp_tensor_off(desc, i, KVP_K);
		ns->off[2 * i + 1] = kvp_tensor_off(desc, i, KVP_V);
	}
	return ns->off ? 0 : fail(-KVP_ENOMEM, "out of memory");
}

static void ns_free(struct kvp_ns *ns, bool in_child)
{
	private_close(ns, in_child);
	ring_close(ns, in_child);
	pthread_mutex_destroy(&ns->ring_lock);
	pthread_mutex_destroy(&ns->private_lock);
	free(ns->off);
	free(ns);
}

static struct kvp_ns *ns_new(struct kvp_client *client, const struct kvp_ns_opts *opts)
{
	struct kvp_ns *ns = calloc(1, sizeof(*ns));

	if (!ns)
		return NULL;
	ns->client = client;
	ns->base = opts->base;
	ns->flags = opts->flags;
	pthread_mutex_init(&ns->ring_lock, NULL);
	pthread_mutex_init(&ns->private_lock, NULL);
	ns->join = (struct kvp_wire_join){.owner_uid = opts->owner_uid,
		.mode = opts->mode,
		.flags = opts->flags,
		.cost_ns_per_token = opts->cost_ns_per_token,
		.desc = *opts->desc};
	strcpy(ns->join.name, opts->name);
	kvp_desc_bad(&ns->join.desc, &ns->block_bytes);
	ns->block_stride = (ns->block_bytes + KVP_PAGE - 1) & ~(uint64_t)(KVP_PAGE - 1);
	if (ns_offsets(ns) < 0) {
		ns_free(ns, false);
		return NULL;
	}
	return ns;
}

static void ns_link(struct kvp_ns *ns)
{
	pthread_mutex_lock(&ns->client->lock);
	ns->next = ns->client->namespaces;
	ns->client->namespaces = ns;
	pthread_mutex_unlock(&ns->client->lock);
}

static void ns_unlink(struct kvp_ns *ns)
{
	struct kvp_ns **at = &ns->client->namespaces;

	while (*at && *at != ns)
		at = &(*at)->next;
	if (*at)
		*at = ns->next;
}

/* The first join, by the caller, whose errors are the caller's. The daemon being away is none. */
static int ns_join_now(struct kvp_ns *ns)
{
	struct kvp_client *client = ns->client;
	uint64_t deadline = after_ms(client->connect_timeout_ms);
	int r;

	if (atomic_load(&client->state) != KVP_ATTACHED)
		return 0;
	if (!attach_enter(client, deadline))
		return 0; /* the keeper is at it; it joins this one too */
	r = attach_join(ns, deadline);
	attach_leave(client);
	return r == -KVP_EDETACHED || r == -KVP_ETIMEDOUT || r == -KVP_EGONE ? 0 : r;
}

int kvp_ns_open(struct kvp_client *client, const struct kvp_ns_opts *opts, struct kvp_ns **out)
{
	struct kvp_ns *ns;
	int r = client_bad(client);

	if (r == 0)
		r = ns_opts_bad(client, opts);
	if (r == 0 && !out)
		r = fail(-KVP_EINVAL, "ns: a null pointer");
	if (r < 0)
		return r;
	*out = NULL;
	ns = ns_new(client, opts);
	if (!ns)
		return fail(-KVP_ENOMEM, "out of memory");
	ns_link(ns);
	r = ns_join_now(ns);
	if (r < 0) {
		kvp_ns_close(ns);
		return r;
	}
	client_wake(client);
	*out = ns;
	return 0;
}

void kvp_ns_close(struct kvp_ns *ns)
{
	struct kvp_client *client;
	uint64_t close = 0;
	bool in_child;

	if (!ns)
		return;
	client = ns->client;
	in_child = atomic_load(&client->dead);
	if (in_child) {
		ns_unlink(ns);
	} else {
		attach_enter(client, UINT64_MAX); /* the keeper may be joining it */
		pthread_mutex_lock(&client->lock);
		ns_unlink(ns);
		close = leave_note(client, atomic_load(&ns->map));
		pthread_mutex_unlock(&client->lock);
		attach_leave(client);
	}
	ns_free(ns, in_child);
	if (!in_child)
		leave_wait(client, close);
}

int kvp_ns_info(const struct kvp_ns *ns, struct kvp_ns_info *info)
{
	const struct ns_map *map;
	int r = ns_bad(ns);

	if (r < 0)
		return r;
	if (!info)
		return fail(-KVP_EINVAL, "info: a null pointer");
	if (info->size != sizeof(*info))
		return fail(-KVP_EINVAL, "info.size: %u, this library knows %zu", info->size, sizeof(*info));
	map = atomic_load_explicit(&ns->map, memory_order_acquire);
	*info = (struct kvp_ns_info){.size = sizeof(*info),
		.flags = ns->flags,
		.block_bytes = ns->block_bytes,
		.block_stride = ns->block_stride,
		.block_tokens = ns->join.desc.block_tokens};
	if (map) {
		info->flags = (map->flags & ~(uint32_t)KVP_NS_LEARNED) | (ns->flags & KVP_NS_JOIN) |
			      (map_is_learned(map) ? KVP_NS_LEARNED : 0);
		info->ns_id = map->ns_id;
		info->n_siblings = map->n_siblings;
		memcpy(info->differs, map->differs, sizeof(info->differs));
	}
	return 0;
}
