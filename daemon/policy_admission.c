/*
 * policy_admission.c - is a block that leaves memory worth a write?  See kvpool_policy.h.
 *
 * ADMIT_CHANCE moves the chance it takes so that about the budgeted share of what is offered is written: by the tenth
 * root of how far it is off, so that an empty store does not take everything for long, and what is written does not
 * swing.  What has a copy that the log comes to soon is worth another one for the uses that this alone would lose:
 * those of the time after it.
 */
#include "kvpool_policy.h"

#include <math.h>

#define HORIZON_S 600 /* until it is known how long blocks stay */
#define LOST_MEANT \
	2000u /* how long they do is the mean over so many that went: of each segment some went unused at once, others late */
#define THETA_FIRST 0.05
#define THETA_POWER 0.1
#define THETA_LEAST 1e-6
#define OFFERS 250u
#define WRITTEN_ADDED 10 /* few writes more or less say little */
#define COPY_OLD 0.5 /* of the log was written since */

void admission_init(struct admission *a, enum admission_kind kind, double budget)
{
	*a = (struct admission){.kind = kind, .budget = budget, .theta = THETA_FIRST, .horizon_s = HORIZON_S};
}

bool admission_offer(struct admission *a, bool needed, unsigned uses, double chance)
{
	bool write = needed || a->kind == ADMIT_ALL || (a->kind == ADMIT_REUSED && uses >= 2) ||
		     (a->kind == ADMIT_CHANCE && chance >= a->theta);

	a->written += write;
	if (++a->offers < OFFERS)
		return write;
	a->theta *= pow((a->written + WRITTEN_ADDED) / (a->budget * OFFERS + WRITTEN_ADDED), THETA_POWER);
	a->theta = a->theta < THETA_LEAST ? THETA_LEAST : a->theta < 1 ? a->theta : 1;
	a->offers = a->written = 0;
	return write;
}

double admission_left(const struct admission *a, double passed)
{
	return a->kind == ADMIT_CHANCE && passed >= COPY_OLD ? a->horizon_s * (1 - passed) : -1;
}

bool admission_again(struct admission *a, double gained)
{
	bool write = gained >= a->theta;

	a->written += write;
	return write;
}

void admission_lost(struct admission *a, double age_s)
{
	a->lost += a->lost < LOST_MEANT;
	a->horizon_s += (age_s - a->horizon_s) / a->lost;
}
