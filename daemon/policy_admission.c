/*
 * policy_admission.c - is a block that leaves memory worth a write?  See kvpool_policy.h.
 *
 * ADMIT_CHANCE moves the chance it takes so that about the budgeted share of what is offered is written.
 */
#include "kvpool_policy.h"

#define HORIZON_S 600 /* until it is known how long blocks stay */
#define HORIZON_STEP 0.02
#define THETA_FIRST 0.05
#define THETA_STEP 1.05
#define THETA_LEAST 1e-6
#define OFFERS 500u

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
	a->theta *= a->written > a->budget * OFFERS ? THETA_STEP : 1 / THETA_STEP;
	a->theta = a->theta < THETA_LEAST ? THETA_LEAST : a->theta < 1 ? a->theta : 1;
	a->offers = a->written = 0;
	return write;
}

void admission_lost(struct admission *a, double age_s)
{
	a->horizon_s += HORIZON_STEP * (age_s - a->horizon_s);
}
