/* lines.h - the lines of a log, or of a file of the kernel's, that tell what a test wants to know */
#ifndef KVPOOL_TEST_LINES_H
#define KVPOOL_TEST_LINES_H

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* Lines of the file that have @text in them; UINT_MAX: it cannot be opened. */
static inline unsigned lines_with(const char *path, const char *text)
{
	FILE *file = fopen(path, "re");
	char line[1300];
	unsigned n = 0;

	if (!file)
		return UINT_MAX;
	while (fgets(line, sizeof(line), file))
		n += strstr(line, text) != NULL;
	fclose(file);
	return n;
}

#endif
