/* index.c - see index.h */
#include "index.h"

static _Atomic uint64_t *bucket_place(struct kvp_index_bucket *bucket, uint64_t hint)
{
	for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
		if (atomic_load_explicit(&bucket->hint[i], memory_order_relaxed) == hint)
			return &bucket->hint[i];
	return NULL;
}

static struct kvp_index_bucket *bucket_at(const struct index *index, uint64_t home, unsigned probe)
{
	return &index->buckets[(home + probe) & (index->n_buckets - 1)];
}

static unsigned index_probes(const struct index *index)
{
	return index->n_buckets < KVP_INDEX_PROBES ? (unsigned)index->n_buckets : KVP_INDEX_PROBES;
}

bool index_insert(const struct index *index, const struct kvp_key *key, uint64_t slot)
{
	uint64_t home = kvp_index_home(key, index->n_buckets);

	for (unsigned probe = 0; probe < index_probes(index); probe++) {
		_Atomic uint64_t *place = bucket_place(bucket_at(index, home, probe), 0);

		if (!place)
			continue;
		atomic_store_explicit(place, kvp_hint(key, slot), memory_order_release);
		return true;
	}
	return false;
}

/* A place in bucket number `hole` became empty: move a hint back into it whose probes pass over that bucket. */
static _Atomic uint64_t *index_pull(const struct index *index, uint64_t hole, _Atomic uint64_t *empty, uint64_t *from)
{
	for (unsigned probe = 1; probe < index_probes(index); probe++) {
		struct kvp_index_bucket *bucket = bucket_at(index, hole, probe);

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load_explicit(&bucket->hint[i], memory_order_relaxed);
			uint64_t slot = kvp_hint_slot(hint), home;

			if (!hint || slot >= index->n_blocks)
				continue;
			home = kvp_index_home(&index->blocks[slot].key, index->n_buckets);
			/* its home lies at or before the hole, counted along the probing order */
			if (((hole - home) & (index->n_buckets - 1)) >= index_probes(index) - probe)
				continue;
			atomic_store_explicit(empty, hint, memory_order_release);
			*from = (hole + probe) & (index->n_buckets - 1);
			return &bucket->hint[i];
		}
	}
	return NULL;
}

void index_remove(const struct index *index, const struct kvp_key *key, uint64_t slot)
{
	uint64_t home = kvp_index_home(key, index->n_buckets), hole = 0;
	_Atomic uint64_t *place = NULL;

	for (unsigned probe = 0; probe < index_probes(index) && !place; probe++) {
		hole = (home + probe) & (index->n_buckets - 1);
		place = bucket_place(&index->buckets[hole], kvp_hint(key, slot));
	}
	if (!place)
		return;
	/* the copy is stored before the old place is cleared: a reader between sees it twice, never not at all */
	for (;;) {
		uint64_t from;
		_Atomic uint64_t *next = NULL;
		bool was_full = true;

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++)
			was_full =
				was_full && atomic_load_explicit(&index->buckets[hole].hint[i], memory_order_relaxed);
		if (was_full)
			next = index_pull(index, hole, place, &from);
		if (!next) {
			atomic_store_explicit(place, 0, memory_order_release);
			return;
		}
		place = next;
		hole = from;
	}
}

uint64_t index_find(const struct index *index, const struct kvp_key *key)
{
	uint64_t home = kvp_index_home(key, index->n_buckets);

	for (unsigned probe = 0; probe < index_probes(index); probe++) {
		struct kvp_index_bucket *bucket = bucket_at(index, home, probe);
		bool full = true;

		for (unsigned i = 0; i < KVP_INDEX_WIDTH; i++) {
			uint64_t hint = atomic_load_explicit(&bucket->hint[i], memory_order_acquire);
			uint64_t slot = kvp_hint_slot(hint);

			full = full && hint;
			if (hint && hint >> 32 == kvp_index_tag(key) && slot < index->n_blocks &&
				index->blocks[slot].key.w[0] == key->w[0] && index->blocks[slot].key.w[1] == key->w[1])
				return slot;
		}
		if (!full)
			break;
	}
	return UINT64_MAX;
}
