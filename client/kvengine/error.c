/* error.c - see error.h */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

void error_say(struct error *error, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
}
