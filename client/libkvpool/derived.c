/*
 * derived.c - namespaces of what was made from another one's blocks: summaries of keys, narrower types
 *
 * Such blocks never stand under the key of the exact one: the namespace is another, its descriptor carries a label that
 * says what was made of what, and the key is a hash of the exact key and that label.
 */
#include "internal.h"

#include <stdlib.h>
#include <string.h>

#include "kvattn.h"
#include "kvpool_derived.h"

#define QUANTISE_BLOCKS 64u /* held, and published, at a time */

static int label_long(void)
{
	return fail(-KVP_EINVAL, "of: its engine field leaves no room for the label of what is made of it");
}

static int desc_begin(const struct kvp_desc *of, struct kvp_desc *desc)
{
	const char *field;

	if (!of || !desc)
		return fail(-KVP_EINVAL, "of and desc: a null pointer");
	if (kvp_desc_check(of, &field, NULL) < 0)
		return -KVP_EINVAL;
	if (of->layout == KVP_LAYOUT_OPAQUE)
		return fail(-KVP_ENOTSUP, "of: nobody but its engine knows what is in an OPAQUE block");
	kvp_desc_unlabelled(of, desc);
	return 0;
}

uint64_t summary_off(const struct kvp_desc *desc, uint32_t layer)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < layer; i++)
		bytes += 2 * sizeof(float) * (uint64_t)desc->layers[i].kv_heads * desc->layers[i].dim_k;
	return bytes;
}

int kvp_desc_summaries(const struct kvp_desc *of, struct kvp_desc *desc)
{
	int r = desc_begin(of, desc);

	if (r < 0)
		return r;
	desc->layout = KVP_LAYOUT_OPAQUE;
	desc->block_bytes = summary_off(of, of->n_layers);
	return kvp_desc_label(desc, of, "kvpool-minmax/1 of") ? 0 : label_long();
}

int kvp_desc_quantised(const struct kvp_desc *of, uint32_t type_k, uint32_t type_v, struct kvp_desc *desc)
{
	int r = desc_begin(of, desc);
	bool fits;

	if (r < 0)
		return r;
	fits = kvp_desc_of_types(of, type_k, type_v, desc);
	r = kvp_desc_check(desc, NULL, NULL);
	return r < 0 ? r : fits ? 0 : label_long();
}

int kvp_key_derived(const struct kvp_ns *derived, const struct kvp_key *key, struct kvp_key *out)
{
	int r = ns_bad(derived);

	if (r < 0)
		return r;
	if (!key || !out)
		return fail(-KVP_EINVAL, "key and out: a null pointer");
	if (!derived->join.desc.engine[0])
		return fail(-KVP_EINVAL, "derived: namespace %s has no label; see kvp_desc_quantised()",
			derived->join.name);
	kvp_key_of_derived(ns_secret(derived), derived->join.desc.engine, key, out);
	return 0;
}

/* ---- quantise ---- */

struct quantise {
	struct kvp_ns *from, *to;
	const struct kvp_kernels *kernels;
	uint64_t deadline_ns;
	struct kvp_view views[QUANTISE_BLOCKS];
	struct kvp_block_ref blocks[QUANTISE_BLOCKS];
	struct kvp_publish_item items[QUANTISE_BLOCKS];
	uint8_t results[QUANTISE_BLOCKS];
};

static int quantise_bad(const struct quantise *q, const struct kvp_key *keys, uint32_t n)
{
	struct kvp_desc want;
	const char *field;
	int r = ns_bad(q->from);

	if (r == 0)
		r = ns_bad(q->to);
	if (r < 0)
		return r;
	if (n && !keys)
		return fail(-KVP_EINVAL, "keys: a null pointer");
	if (!q->kernels || q->kernels->size != sizeof(*q->kernels) || !q->kernels->convert)
		return fail(-KVP_EINVAL, "kernels: convert is missing; see KVP_KERNELS_OF_KVATTN");
	r = kvp_desc_quantised(&q->from->join.desc, q->to->join.desc.type_k, q->to->join.desc.type_v, &want);
	if (r < 0)
		return r;
	field = kvp_desc_diff(&want, &q->to->join.desc);
	if (field)
		return fail(-KVP_EINVAL,
			"to: namespace %s is not one for what is made of %s, its descriptor differs in %s; "
			"kvp_desc_quantised() makes the right one",
			q->to->join.name, q->from->join.name, field);
	return 0;
}

static int block_convert(const struct quantise *q, const struct kvp_view *view, void *block)
{
	for (uint32_t layer = 0; layer < q->from->join.desc.n_layers; layer++) {
		struct kvattn_geom from, to;
		int r = kvp_attn_geom(q->from, layer, &from);

		if (r == 0)
			r = kvp_attn_geom(q->to, layer, &to);
		if (r < 0)
			return r;
		r = q->kernels->convert(&from, view->data, &to, block, view->used_tokens);
		if (r < 0)
			return fail(-KVP_ENOTSUP, "layer %u: the kernels do not convert it: %s", layer, strerror(-r));
	}
	return 0;
}

/* Views are held and blocks reserved: fill, publish. Return: stored, or there already; < 0. */
static int64_t quantise_publish(
	struct quantise *q, const struct kvp_key *parent, const struct kvp_key *keys, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		struct kvp_publish_item *item = &q->items[i];
		const struct kvp_key *before = i ? &keys[i - 1] : parent;
		int r = block_convert(q, &q->views[i], q->blocks[i].data);

		*item = (struct kvp_publish_item){.block = &q->blocks[i], .used_tokens = q->views[i].used_tokens};
		if (r == 0)
			r = kvp_key_derived(q->to, &keys[i], &item->key);
		if (r == 0 && before && !kvp_key_is_none(before))
			r = kvp_key_derived(q->to, before, &item->parent);
		if (r < 0)
			return r;
	}
	if (kvp_lost(q->views, n)) /* what was read may have been something else by then */
		return fail(
			-KVP_ESTALE, "blocks were taken away while they were read: this process was stopped too long");
	return kvp_publish(q->to, q->items, n, q->results);
}

static int64_t quantise_some(struct quantise *q, const struct kvp_key *parent, const struct kvp_key *keys, uint32_t n)
{
	int64_t held = kvp_acquire(q->from, keys, n, 0, q->deadline_ns, q->views), rooms = 0, done = 0;

	if (held > 0)
		rooms = kvp_reserve(q->to, (uint32_t)held, 0, q->deadline_ns, q->blocks);
	if (rooms > 0)
		done = quantise_publish(q, parent, keys, (uint32_t)rooms);
	if (rooms > 0)
		kvp_abandon(q->blocks, (uint32_t)rooms);
	if (held > 0)
		kvp_release(q->views, (uint32_t)held);
	return held < 0 ? held : rooms < 0 ? rooms : done;
}

int64_t kvp_quantise(struct kvp_ns *from, struct kvp_ns *to, const struct kvp_kernels *kernels,
	const struct kvp_key *parent, const struct kvp_key *keys, uint32_t n, uint64_t deadline_ns)
{
	struct quantise *q = calloc(1, sizeof(*q));
	int64_t total = 0, r;

	if (!q)
		return fail(-KVP_ENOMEM, "out of memory");
	*q = (struct quantise){.from = from, .to = to, .kernels = kernels, .deadline_ns = deadline_ns};
	r = quantise_bad(q, keys, n);
	while (r == 0 && total < n) {
		uint32_t some = n - total < QUANTISE_BLOCKS ? (uint32_t)(n - total) : QUANTISE_BLOCKS;
		int64_t got = quantise_some(q, total ? &keys[total - 1] : parent, keys + total, some);

		total += got > 0 ? got : 0;
		r = got < 0 ? got : got < some; /* fewer: the run ends here */
	}
	free(q);
	return r < 0 ? r : total;
}
