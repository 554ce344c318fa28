/*
 * policy.c - kvbench-policy: what a decision of the learned order costs, and the memory a block takes, from ten
 * thousand blocks to ten million
 *
 * A decision is a block of a request: looked up by its key, learned from, put in order, and, where it is new, another
 * one named for it. Requests are chains of sixteen blocks, most of them among a tenth of all chains.  CPU time of this
 * thread; the median over requests, and over those for which others had to go.  Beside it the yardstick: one load,
 * anywhere in as much memory, that waits for the one before it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#include "kvpool_policy.h"

#define DEPTH 16u
#define MEASURED 20000u /* requests */
#define LOADS 1000000u
#define LINE 64u
#define HUGE_PAGE (2ul << 20)

static double cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Nanoseconds. 0: no memory. */
static double load_ns(uint64_t bytes)
{
	uint64_t rounded = (bytes + HUGE_PAGE - 1) & ~(HUGE_PAGE - 1), lines = rounded / LINE, dice = 1;
	uint64_t *table = aligned_alloc(HUGE_PAGE, rounded);
	double begin;

	if (!table)
		return 0;
	madvise(table, rounded, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < lines; i++)
		table[i * LINE / sizeof(*table)] = i;
	begin = cpu_ns();
	for (unsigned i = 0; i < LOADS; i++) {
		uint64_t line = (uint64_t)(((unsigned __int128)dice * lines) >> 64);

		dice = mix(dice + table[line * LINE / sizeof(*table)]);
	}
	begin = cpu_ns() - begin;
	free(table);
	return dice ? begin / LOADS : 0;
}

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Return: how many of its leading blocks were in; -1: no memory. */
static int64_t request(struct learned *l, uint64_t chain, uint64_t room, uint64_t *n, double now)
{
	struct kvp_key keys[DEPTH], victim;
	int64_t known;

	for (uint64_t k = 0; k < DEPTH; k++)
		keys[k] = (struct kvp_key){{mix(chain * DEPTH + k + 1), mix(~(chain * DEPTH + k))}};
	known = learned_request(l, keys, DEPTH, now, (enum policy_hint)(chain % POLICY_HINTS));
	for (int64_t k = known; k >= 0 && k < DEPTH; k++) {
		if (*n >= room) {
			if (!learned_victim(l, now, &victim))
				return known;
			learned_remove(l, &victim);
			--*n;
		}
		if (learned_insert(l, &keys[k], k ? &keys[k - 1] : NULL, now) < 0)
			return -1;
		++*n;
	}
	return known < 0 ? -1 : known;
}

struct costs {
	double all[MEASURED], new[MEASURED]; /* ns a decision, by request; of those that made room */
	unsigned n_all, n_new;
};

/* All chains once, as many again as they are measured, until what is in is what is asked for, then those. Return:
   false: no memory. */
static bool measure(struct learned *l, uint64_t room, struct costs *costs)
{
	uint64_t chains = room / DEPTH * 5 / 4, n = 0, dice = 1;

	for (uint64_t r = 0; r < 2 * chains + MEASURED; r++) {
		uint64_t chain;
		double before, ns;
		int64_t known;

		dice = dice * 6364136223846793005ull + 1442695040888963407ull;
		chain = r < chains ? r : (dice >> 33) % (dice >> 62 ? chains / 10 : chains);
		before = cpu_ns();
		known = request(l, chain, room, &n, (double)r / 20);
		ns = (cpu_ns() - before) / DEPTH;
		if (known < 0)
			return false;
		if (r < 2 * chains)
			continue;
		costs->all[costs->n_all++] = ns;
		if (known < DEPTH)
			costs->new[costs->n_new++] = ns;
	}
	qsort(costs->all, costs->n_all, sizeof(costs->all[0]), double_compare);
	qsort(costs->new, costs->n_new, sizeof(costs->new[0]), double_compare);
	return true;
}

static int row(uint64_t room)
{
	static struct costs costs;
	struct learned *l = learned_new(room, true, 1);
	struct learned_view view;
	bool good;

	costs.n_all = costs.n_new = 0;
	good = l && measure(l, room, &costs);
	if (l)
		learned_view(l, &view);
	learned_free(l);
	if (!good) {
		fprintf(stderr, "kvbench-policy: no memory for %llu blocks\n", (unsigned long long)room);
		return 1;
	}
	printf("%12llu %10.0f %10.0f %10.0f %12.0f %10.0f\n", (unsigned long long)room, costs.all[costs.n_all / 2],
		costs.all[costs.n_all * 99 / 100], costs.n_new ? costs.new[costs.n_new / 2] : 0,
		(double)view.bytes / (double)room, load_ns(view.bytes));
	fflush(stdout); /* the next row takes a while */
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
	int failed = 0;

	printf("%12s %10s %10s %10s %12s %10s\n", "blocks", "ns p50", "ns p99", "p50 new", "bytes/block", "ns a load");
	for (uint64_t room = 10000; room <= most && !failed; room *= 10)
		failed = row(room);
	return failed;
}
