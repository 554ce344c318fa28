/* finding.c - see finding.h */
#include "finding.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int findings_init(struct findings *findings)
{
	memset(findings, 0, sizeof(*findings));
	findings->all = calloc(FINDINGS_MAX, sizeof(*findings->all));
	return findings->all ? 0 : -ENOMEM;
}

void findings_free(struct findings *findings)
{
	free(findings->all);
	findings->all = NULL;
}

void findings_clear(struct findings *findings)
{
	findings->n_checks = findings->n_skipped = findings->n_lost = 0;
	findings->n = 0;
}

bool expect(struct findings *findings, enum finding_class class, bool ok, const char *object, const char *what,
	const char *expected, const char *found_format, ...)
{
	struct finding *finding;
	va_list args;

	findings->n_checks++;
	if (ok)
		return true;
	if (findings->n == FINDINGS_MAX) {
		findings->n_lost++;
		return false;
	}
	finding = &findings->all[findings->n++];
	*finding = (struct finding){.class = class};
	snprintf(finding->object, sizeof(finding->object), "%s", object);
	snprintf(finding->what, sizeof(finding->what), "%s", what);
	snprintf(finding->expected, sizeof(finding->expected), "%s", expected);
	va_start(args, found_format);
	vsnprintf(finding->found, sizeof(finding->found), found_format, args);
	va_end(args);
	return false;
}

bool expect_u64(struct findings *findings, enum finding_class class, const char *object, const char *what,
	uint64_t expected, uint64_t found)
{
	char text[24];

	snprintf(text, sizeof(text), "%" PRIu64, expected);
	return expect(findings, class, expected == found, object, what, text, "%" PRIu64, found);
}

bool expect_pins(struct findings *findings, const char *object, const char *what, uint64_t expected, uint64_t found,
	uint64_t pins, uint64_t round)
{
	size_t n = findings->n;

	if (expect_u64(findings, FINDING_SOFT, object, what, expected, found))
		return true;
	if (findings->n > n) {
		findings->all[n].of_pins = true;
		findings->all[n].pins = pins;
		findings->all[n].round = findings->all[n].since = round;
	}
	return false;
}

static bool finding_in(const struct findings *findings, struct finding *finding)
{
	for (size_t i = 0; i < findings->n; i++) {
		const struct finding *before = &findings->all[i];

		if (strcmp(before->object, finding->object) || strcmp(before->what, finding->what))
			continue;
		if (before->pins == finding->pins)
			finding->since = before->since;
		return true;
	}
	/* beyond FINDINGS_MAX nobody can tell: it may have been there */
	return findings->n_lost;
}

static bool is_green(const struct finding *finding)
{
	return finding->of_pins && finding->round - finding->since < FINDING_ROUNDS;
}

size_t findings_n_green(const struct findings *findings)
{
	size_t n = 0;

	for (size_t i = 0; i < findings->n; i++)
		n += is_green(&findings->all[i]);
	return n;
}

void findings_drop_green(struct findings *findings)
{
	size_t kept = 0;

	for (size_t i = 0; i < findings->n; i++)
		if (!is_green(&findings->all[i]))
			findings->all[kept++] = findings->all[i];
	findings->n_skipped += findings->n - kept;
	findings->n = kept;
}

void findings_keep_seen(struct findings *now, const struct findings *before)
{
	size_t kept = 0;

	for (size_t i = 0; i < now->n; i++)
		if (finding_in(before, &now->all[i]))
			now->all[kept++] = now->all[i];
	now->n = kept;
	if (!before->n_lost)
		now->n_lost = 0;
}
