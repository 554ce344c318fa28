/*
 * layers.c - waiting for the layers of a block that is being read back
 *
 * The other half of the protocol of arriving blocks, struct kvp_block of kvpool_shm.h: the count of layers is looked
 * at, and when it is too small slept on, in the block's descriptor, which the daemon alone writes.
 */
#include "internal.h"

#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_AGAIN_NS (100 * MS) /* a daemon that was killed wakes nobody */

/* How many layers are there? UINT32_MAX: all. 0: it will not come. */
static uint32_t layers_there(const struct hold *hold, uint32_t *seen)
{
	uint64_t word;

	*seen = atomic_load_explicit(&hold->block->layers, memory_order_acquire);
	word = atomic_load_explicit(&hold->block->word, memory_order_acquire);
	if (kvp_word_generation(word) != hold->generation)
		return 0;
	if (kvp_word_state(word) == KVP_BLOCK_PUBLISHED || kvp_word_state(word) == KVP_BLOCK_DRAINING)
		return UINT32_MAX;
	return kvp_word_state(word) == KVP_BLOCK_RESTORING && *seen != KVP_LAYERS_VOID ? *seen : 0;
}

static void layers_sleep(const struct hold *hold, uint32_t seen, uint64_t ns)
{
	struct timespec limit = {.tv_sec = (time_t)(ns / (1000 * MS)), .tv_nsec = (long)(ns % (1000 * MS))};

	syscall(SYS_futex, &hold->block->layers, FUTEX_WAIT, seen, &limit, NULL, 0);
}

int kvp_view_wait_layer(struct kvp_view *view, uint32_t layer, uint64_t deadline_ns)
{
	const struct hold *hold = view && view->data ? hold_get(view->opaque[0]) : NULL;
	uint32_t n_layers, there, seen;

	if (!hold || hold->kind != HOLD_VIEW)
		return fail(-KVP_EINVAL, "view: it holds nothing");
	if (atomic_load(&((const struct ns_map *)hold->owner)->session->client->dead))
		return -KVP_ESTALE; /* in a child after fork() the parent's mappings are not there */
	n_layers = view->ns->join.desc.n_layers;
	if (layer >= n_layers)
		return fail(-KVP_EINVAL, "layer: %u, the namespace has %u", layer, n_layers);
	while (layer >= view->layers_ready) {
		uint64_t now;

		there = layers_there(hold, &seen);
		if (!there)
			return -KVP_ESTALE;
		view->layers_ready = there < n_layers ? there : n_layers;
		if (layer < view->layers_ready)
			return 0;
		now = now_ns();
		if (now >= deadline_ns)
			return -KVP_ETIMEDOUT;
		layers_sleep(hold, seen, deadline_ns - now < LOOK_AGAIN_NS ? deadline_ns - now : LOOK_AGAIN_NS);
	}
	return 0;
}
