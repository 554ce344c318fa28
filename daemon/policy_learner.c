/*
 * policy_learner.c - how likely a block of a class is used again at an age, learned while serving
 *
 * A proportional hazard: one curve over age for all, times a factor each for how often a block was used, how much of
 * its request was known and what the client said, by bands of age.  One touch that is not followed by another counts
 * against each age it reaches.  The ring of touches must go back as far as blocks stay, or nothing is learned of the
 * ages at which they come back: of many blocks it holds a sample, by key; of few all of them, as which ones are sampled
 * makes a difference there.
 */
#include "policy_parts.h"

#include <math.h>
#include <string.h>

#define SAMPLE_MASK_MAX 0xffffu
#define TAG(tag) ((tag)&0xffffff) /* as much as the ring keeps */
#define HAZARD_MAX 0.9
#define HALVED_AFTER 2000000u /* updates */
#define TABLES_AFTER 1024u /* touches */

static double edge(unsigned age)
{
	return age ? exp2((age - 1) / 2.0) : 0;
}

unsigned learner_age(double seconds)
{
	int exponent;
	double part;

	if (!(seconds >= 1))
		return 0;
	part = frexp(seconds, &exponent); /* 0.5 .. 1 */
	exponent = 2 * (exponent - 1) + (part >= M_SQRT1_2) + 1;
	return exponent < (int)AGES - 1 ? (unsigned)exponent : AGES - 1;
}

static unsigned use_class(unsigned uses)
{
	return uses < 4 ? uses - (uses > 0) : uses < 8 ? 3 : uses < 16 ? 4 : uses < USES_MAX ? 5 : 6;
}

unsigned learner_match(uint64_t matched, uint64_t n)
{
	uint64_t sixteenths = n ? 16 * matched / n : 0;

	return sixteenths < 2 ? 0 : sixteenths < 8 ? 1 : sixteenths < 14 ? 2 : 3;
}

uint8_t learner_class(unsigned uses, unsigned match, enum policy_hint hint)
{
	return (uint8_t)((use_class(uses) * MATCH_CLASSES + match) * POLICY_HINTS + hint);
}

static void class_parts(uint8_t class, unsigned part[3])
{
	part[0] = class / (MATCH_CLASSES * POLICY_HINTS);
	part[1] = class / POLICY_HINTS % MATCH_CLASSES;
	part[2] = class % POLICY_HINTS;
}

/* The curve, smoothed over neighbouring ages; three uses in fifty is what a new one is taken to have. */
static double learner_base(const struct learner *t, unsigned age)
{
	double used = t->used[age], seen = t->seen[age];

	if (age) {
		used += t->used[age - 1] / 2;
		seen += t->seen[age - 1] / 2;
	}
	if (age + 1 < AGES) {
		used += t->used[age + 1] / 2;
		seen += t->seen[age + 1] / 2;
	}
	return (3 + used) / (50 + seen);
}

static double learner_factor(const struct learner *t, unsigned which, unsigned part, unsigned age)
{
	return (t->hit[which][part][age / 4] + 5) / (t->expected[which][part][age / 4] + 5);
}

static void learner_halve(struct learner *t)
{
	for (unsigned age = 0; age < AGES; age++) {
		t->used[age] /= 2;
		t->seen[age] /= 2;
	}
	for (unsigned i = 0; i < 3 * USE_CLASSES * BANDS; i++) {
		(&t->hit[0][0][0])[i] /= 2;
		(&t->expected[0][0][0])[i] /= 2;
	}
}

static void learner_update(struct learner *t, uint8_t class, unsigned age, unsigned used)
{
	double p = learner_base(t, age);
	unsigned part[3];

	class_parts(class, part);
	t->used[age] += used;
	t->seen[age]++;
	for (unsigned which = 0; which < 3; which++) {
		double factor = learner_factor(t, which, part[which], age);

		t->hit[which][part[which]][age / 4] += used;
		t->expected[which][part[which]][age / 4] += p < HAZARD_MAX ? p : HAZARD_MAX;
		p *= factor;
	}
	if (++t->updates % HALVED_AFTER == 0)
		learner_halve(t);
}

/* With A the part that is still unused at the begin of an age and T the time held until then, all from age 0: from age
   k to the end of j the chance is 1 - A[j+1]/A[k] and the time (T[j+1] - T[k])/A[k]. */
static void learner_make_class(struct learner *t, uint8_t class)
{
	double alive[AGES + 1] = {1}, held[AGES + 1] = {0};
	unsigned part[3];

	class_parts(class, part);
	for (unsigned k = 0; k < AGES; k++) {
		double p = learner_base(t, k);

		for (unsigned which = 0; which < 3; which++)
			p *= learner_factor(t, which, part[which], k);
		p = p < HAZARD_MAX ? p : HAZARD_MAX;
		t->hazard[class][k] = (float)p;
		alive[k + 1] = alive[k] * (1 - p);
		held[k + 1] = held[k] + (alive[k] + alive[k + 1]) / 2 * (edge(k + 1) - edge(k));
	}
	for (unsigned k = 0; k < AGES; k++) {
		double best = 0;

		for (unsigned j = k; j < AGES; j++) {
			double worth = (alive[k] - alive[j + 1]) / (held[j + 1] - held[k]);

			best = worth > best ? worth : best;
		}
		t->worth[class][k] = (float)best;
	}
}

static void learner_make_tables(struct learner *t)
{
	for (unsigned class = 0; class < CLASSES; class ++)
		if (t->met[class])
			learner_make_class(t, (uint8_t) class);
	t->touches = 0;
}

void learner_sample(struct learner *t, uint64_t capacity)
{
	uint32_t mask = 0, before = t->sample_mask;

	while (mask < SAMPLE_MASK_MAX && (mask + 1ull) * RING < REMEMBERED * capacity)
		mask = 2 * mask + 1;
	t->sample_mask = mask;
	for (unsigned i = 0; mask > before && i < RING; i++)
		t->ring[i].alive =
			t->ring[i].alive && !(t->ring[i].tag & mask); /* their next touch would not be seen */
}

void learner_init(struct learner *t, uint64_t capacity)
{
	memset(t, 0, sizeof(*t));
	learner_sample(t, capacity);
	for (unsigned class = 0; class < CLASSES; class ++)
		learner_make_class(t, (uint8_t) class);
}

void learner_advance(struct learner *t, double now)
{
	for (unsigned age = 0; age < AGES - 1; age++) {
		double least = edge(age + 1);

		if (t->next - t->at[age] > RING)
			t->at[age] = t->next - RING; /* overrun: dropped */
		for (; t->at[age] < t->next && stamp_age(t->ring[t->at[age] % RING].at, now) >= least; t->at[age]++)
			if (t->ring[t->at[age] % RING].alive)
				learner_update(t, (uint8_t)t->ring[t->at[age] % RING].class, age, 0);
	}
}

uint16_t learner_touch(struct learner *t, uint32_t tag, uint16_t slot, uint8_t class, double now)
{
	struct touch *old = &t->ring[slot];

	if (!t->met[class]) {
		t->met[class] = true;
		learner_make_class(t, class);
	}
	if (++t->touches >= TABLES_AFTER)
		learner_make_tables(t);
	if (tag & t->sample_mask)
		return slot;
	if (old->alive && old->tag == TAG(tag)) {
		old->alive = false;
		learner_update(t, (uint8_t)old->class, learner_age(stamp_age(old->at, now)), 1);
	}
	slot = (uint16_t)(t->next++ % RING);
	t->ring[slot] = (struct touch){.at = stamp_of(now), .tag = TAG(tag), .class = class & 127, .alive = true};
	return slot;
}

double learner_chance(const struct learner *t, uint8_t class, double age, double horizon_s)
{
	double alive = 1;

	for (unsigned k = learner_age(age); k < AGES; k++) {
		double from = edge(k) > age ? edge(k) : age, to = edge(k + 1), end = age + horizon_s;

		if (from >= end)
			break;
		alive *= 1 - (to > end ? (end - from) / (to - from) : 1) * t->hazard[class][k];
	}
	return 1 - alive;
}
