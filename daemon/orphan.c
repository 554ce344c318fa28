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

/* Also one that an eviction has written to the store meanwhile: read back from there it would be in memory again,
   without a parent and in no list.  Return: false: it is in use, and asked again. */
static bool orphan_goes(struct entry *e)
{
	return !e || ns_entry_link(e) /* its parent was published anew, say */ || block_let_go(e);
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
		if (orphan_goes(ns ? ns_entry(ns, &orphan.key) : NULL)) /* those below it are orphans now, at the end */
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
