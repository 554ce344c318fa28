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

/**
 * error_set() - write the sentence. Return: @code as it is, so that a failing call can end with "return
 * error_set(...)": a macro, so that compilers and analyzers see that it fails
 */
#define error_set(error, code, ...) \
	({ \
		const int error_code __attribute__((unused)) = (code); \
		error_say(error, __VA_ARGS__); \
		error_code; \
	})
void error_say(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
