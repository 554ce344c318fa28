/* orphan.c - see orphan.h */
#include "orphan.h"

#include <stdlib.h>

#include "block.h"

#define PIECE 1024 /* looked at in one call */

struct orphan { /* by name: it may go meanwhile */
	uint64_t ns_id;
	struct kvp_key key;
};

struct orphans {
	struct orphan *all;
	uint64_t n, room, at;
};

void orphan_add(const struct entry *e)
{
	struct daemon *d = e->ns->d;
	struct orphans *orphans = d->orphans ? d->orphans : calloc(1, sizeof(*orphans));

	d->orphans = orphans;
	if (!orphans)
		return; /* then it is only the first to go when room is needed */
	if (orphans->n == orphans->room) {
		uint64_t room = orphans->room ? 2 * orphans->room : 64;
		struct orphan *all = realloc(orphans->all, room * sizeof(*all));

		if (!all)
			return;
		orphans->all = all;
		orphans->room = room;
	}
	orphans->all[orphans->n++] = (struct orphan){e->ns->id, e->key};
}

void orphan_add_below(const struct entry *e)
{
	for (const struct entry *child = e->first_child; child; child = child->next_sibling)
		if (child->slot != NO_SLOT)
			orphan_add(child);
}

/* Return: false: it is in use, and asked again. */
static bool orphan_goes(struct orphans *orphans, struct entry *e)
{
	uint64_t n = orphans->n;

	if (!e || e->slot == NO_SLOT || ns_entry_link(e)) /* its parent was published anew, say */
		return true;
	orphan_add_below(e);
	if (block_let_go(e))
		return true;
	orphans->n = n; /* those below it hang on it as before */
	return false;
}

void orphan_step(struct daemon *d)
{
	struct orphans *orphans = d->orphans;

	if (!orphans)
		return;
	for (unsigned looks = 0; orphans->n && looks < PIECE; looks++) {
		struct orphan orphan;
		struct ns *ns;

		if (orphans->at >= orphans->n) {
			orphans->at = 0;
			if (looks) /* a round each call is enough for those in use */
				return;
		}
		orphan = orphans->all[orphans->at];
		ns = ns_find(d, orphan.ns_id);
		if (orphan_goes(orphans, ns ? ns_entry(ns, &orphan.key) : NULL))
			orphans->all[orphans->at] = orphans->all[--orphans->n];
		else
			orphans->at++;
	}
	if (orphans->n)
		return;
	free(orphans->all);
	free(orphans);
	d->orphans = NULL;
}
