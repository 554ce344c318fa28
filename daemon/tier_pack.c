/*
 * tier_pack.c - which blocks go to the spill store packed
 *
 * As the namespace was made to (KVP_NS_SPILL_ZSTD, KVP_NS_SPILL_PLAIN), else as spill-compress says.  "auto" asks the
 * blocks: the first ones that a namespace writes are packed for a trial, in the store's worker, and unpacked against
 * the clock.  It pays where they become shorter by an eighth and one thread unpacks no slower than the device reads:
 * then restores stay as fast, and the store holds more.  Which device that is only reads can tell; until some were made
 * blocks go down plain.
 */
#include <string.h>

#include "namespace.h"
#include "spill_set.h"
#include "tier_parts.h"

#define SAMPLES 16

bool pack_pays(const struct ns_pack *pack, double read_ns_per_byte)
{
	if (pack->n < SAMPLES || !pack->timed_bytes || read_ns_per_byte <= 0)
		return false;
	return pack->stored * 8 <= pack->bytes * 7 &&
	       (double)pack->unpack_ns <= read_ns_per_byte * (double)pack->timed_bytes;
}

static bool pack_is_auto(const struct ns *ns)
{
	return !(ns->head->flags & (KVP_NS_SPILL_ZSTD | KVP_NS_SPILL_PLAIN)) &&
	       !strcmp(ns->d->config.spill_compress, "auto");
}

static uint32_t pack_codec(const struct ns *ns)
{
	struct spill_stats stats;

	if (ns->head->flags & KVP_NS_SPILL_PLAIN || ns->head->flags & KVP_NS_LAYERS)
		return SPILL_PLAIN;
	if (!pack_is_auto(ns))
		return ns->head->flags & KVP_NS_SPILL_ZSTD || !strcmp(ns->d->config.spill_compress, "zstd")
			       ? SPILL_ZSTD
			       : SPILL_PLAIN;
	if (ns->pack.n < SAMPLES)
		return SPILL_SAMPLE;
	spill_set_stats(ns->d->tier->spill, &stats);
	return pack_pays(&ns->pack, stats.read_ns_per_byte) ? SPILL_ZSTD : SPILL_PLAIN;
}

uint32_t tier_codec(struct ns *ns)
{
	uint32_t codec = pack_codec(ns);

	gauge_set(&ns->row->counters.pack_state, codec == SPILL_SAMPLE ? 2 : codec != SPILL_PLAIN);
	return codec;
}

static void pack_sampled(struct ns *ns, const struct spill_packed *packed)
{
	struct ns_pack *pack = &ns->pack;

	pack->n++;
	pack->bytes += packed->bytes;
	pack->stored += packed->stored < packed->bytes ? packed->stored : packed->bytes;
	if (packed->unpack_ns) {
		pack->timed_bytes += packed->bytes;
		pack->unpack_ns += packed->unpack_ns;
		gauge_set(&ns->d->pool.stats->counters.spill_unpack_speed,
			(uint64_t)((double)packed->bytes * 1e9 / (double)packed->unpack_ns));
	}
	gauge_set(&ns->row->counters.pack_percent, pack->stored * 100 / pack->bytes);
}

void tier_packed(struct ns *ns, spill_place place)
{
	const struct spill_packed *packed = spill_set_packed(ns->d->tier->spill, place);
	struct kvp_ns_counters *c = &ns->row->counters;
	struct kvp_counters *all = &ns->d->pool.stats->counters;
	uint64_t saved = packed->stored < packed->bytes ? packed->bytes - packed->stored : 0;

	if (packed->codec == SPILL_SAMPLE) {
		pack_sampled(ns, packed);
	} else if (packed->codec == SPILL_ZSTD) {
		gauge_add(&c->packed, 1);
		gauge_add(&c->packed_bytes, (int64_t)packed->bytes);
		gauge_add(&c->packed_stored_bytes, (int64_t)packed->stored);
		/* the day's budget was charged for the block, before its record's length was known */
		if (saved <= atomic_load(&all->spill_day_bytes))
			gauge_add(&all->spill_day_bytes, -(int64_t)saved);
	}
}
