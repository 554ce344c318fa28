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
	bool of_pins; /* the daemon's sum is from its last round of looking at them: */
	uint64_t pins, round,
		since; /* how they stood, its rounds by then, and its rounds when they were first seen so */
};

/* A round that begins after the pins were seen, and its sum told: the third to begin after the one that was under
   way. */
#define FINDING_ROUNDS 3u

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

/** expect_pins() - as expect_u64(), of what the daemon sums up in rounds. @pins: a hash of all pins that it is of. */
bool expect_pins(struct findings *findings, const char *object, const char *what, uint64_t expected, uint64_t found,
	uint64_t pins, uint64_t round);

/** findings_keep_seen() - drop from @now what @before had not: only what lasts is a violation */
void findings_keep_seen(struct findings *now, const struct findings *before);
/** findings_n_green() - of pins that have not stood still for FINDING_ROUNDS of the daemon's, as yet */
size_t findings_n_green(const struct findings *findings);
/** findings_drop_green() - these are none: they count as skipped */
void findings_drop_green(struct findings *findings);

#endif
