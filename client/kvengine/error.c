/* error.c - see error.h */
#include "error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *error, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	(void)vsnprintf(error->text, sizeof(error->text), format, args);
	va_end(args);
	return code;
}
