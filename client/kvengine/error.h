/*
 * error.h - one sentence about what went wrong: object, cause, way out
 *
 * Calls that can fail take a struct error, fill it on failure and return a negative errno.
 */
#ifndef KVENGINE_ERROR_H
#define KVENGINE_ERROR_H

struct error {
	char text[400];
};

/** error_set() - write the sentence. Return: @code as it is, so that a failing call can end with "return error_set(...)" */
int error_set(struct error *error, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
