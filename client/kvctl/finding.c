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
	finding->class = class;
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

static bool finding_in(const struct findings *findings, const struct finding *finding)
{
	/* beyond FINDINGS_MAX nobody can tell: it may have been there */
	if (findings->n_lost)
		return true;
	for (size_t i = 0; i < findings->n; i++)
		if (!strcmp(findings->all[i].object, finding->object) && !strcmp(findings->all[i].what, finding->what))
			return true;
	return false;
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
