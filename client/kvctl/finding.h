/*
 * finding.h - what kvctl check looked at, and what it found otherwise than it must be
 *
 * HARD: no moment and no kill may show it.  SOFT: a daemon in the middle of a change shows it for an instant, a killed
 * one until the next start repairs it.
 */
#ifndef KVCTL_FINDING_H
#define KVCTL_FINDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum finding_class {
	FINDING_SOFT,
	FINDING_HARD,
};

struct finding {
	enum finding_class class;
	char object[120];
	char what[120];
	char expected[80];
	char found[80];
};

#define FINDINGS_MAX 1000 /* kept; all are counted */

struct findings {
	uint64_t n_checks;
	uint64_t n_skipped; /* comparisons for which the daemon never held still */
	uint64_t n_lost; /* findings beyond FINDINGS_MAX */
	size_t n;
	struct finding *all;
};

int findings_init(struct findings *findings);
void findings_free(struct findings *findings);
void findings_clear(struct findings *findings);

/** expect() - one check; the texts are kept if @ok is false. Return: @ok. */
bool expect(struct findings *findings, enum finding_class class, bool ok, const char *object, const char *what,
	const char *expected, const char *found_format, ...) __attribute__((format(printf, 7, 8)));
bool expect_u64(struct findings *findings, enum finding_class class, const char *object, const char *what,
	uint64_t expected, uint64_t found);

/** findings_keep_seen() - drop from @now what @before had not: only what lasts is a violation */
void findings_keep_seen(struct findings *now, const struct findings *before);

#endif
