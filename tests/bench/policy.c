/*
 * policy.c - kvbench-policy: what a decision of the learned order costs, and the memory a block takes, from ten thousand blocks to ten million
 *
 * A decision is a block of a request: looked up by its key, learned from, put in order, and, where it is new, another one named for it.
 * Requests are chains of sixteen blocks, most of them among a tenth of all chains.  CPU time of this thread; the median over requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "kvpool_policy.h"

#define DEPTH 16u
#define MEASURED 20000u /* requests */

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

static int double_compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Return: false: no memory. */
static bool request(struct learned *l, uint64_t chain, uint64_t room, uint64_t *n, double now)
{
	struct kvp_key keys[DEPTH], victim;

	for (uint64_t k = 0; k < DEPTH; k++)
		keys[k] = (struct kvp_key){{mix(chain * DEPTH + k + 1), mix(~(chain * DEPTH + k))}};
	for (int64_t k = learned_request(l, keys, DEPTH, now, (enum policy_hint)(chain % POLICY_HINTS)); k < DEPTH;
		k++) {
		if (k < 0)
			return false;
		if (*n >= room) {
			if (!learned_victim(l, now, &victim))
				return true;
			learned_remove(l, &victim);
			--*n;
		}
		if (learned_insert(l, &keys[k], k ? &keys[k - 1] : NULL, now) < 0)
			return false;
		++*n;
	}
	return true;
}

static int row(uint64_t room)
{
	static double took[MEASURED];
	struct learned *l = learned_new(room, true, 1);
	uint64_t chains = room / DEPTH * 5 / 4, n = 0, dice = 1, begin = 0;
	struct learned_view view;

	for (uint64_t r = 0; l && r < chains + MEASURED; r++) {
		uint64_t chain;
		double before;

		dice = dice * 6364136223846793005ull + 1442695040888963407ull;
		chain = r < chains ? r : (dice >> 33) % (dice >> 62 ? chains / 10 : chains);
		before = cpu_ns();
		if (!request(l, chain, room, &n, (double)r / 20)) {
			learned_free(l);
			l = NULL;
			break;
		}
		if (r >= chains)
			took[begin++] = (cpu_ns() - before) / DEPTH;
	}
	if (!l) {
		fprintf(stderr, "kvbench-policy: no memory for %llu blocks\n", (unsigned long long)room);
		return 1;
	}
	qsort(took, MEASURED, sizeof(took[0]), double_compare);
	learned_view(l, &view);
	printf("%12llu %10.0f %10.0f %12.0f\n", (unsigned long long)room, took[MEASURED / 2], took[MEASURED * 99 / 100],
		(double)view.bytes / (double)room);
	fflush(stdout); /* the next row takes a while */
	learned_free(l);
	return 0;
}

int main(int argc, char **argv)
{
	uint64_t most = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
	int failed = 0;

	printf("%12s %10s %10s %12s\n", "blocks", "ns p50", "ns p99", "bytes/block");
	for (uint64_t room = 10000; room <= most && !failed; room *= 10)
		failed = row(room);
	return failed;
}
