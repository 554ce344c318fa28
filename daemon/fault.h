/*
 * fault.h - named points at which a test makes things fail
 *
 *	res = FAULT_INT("io.write", res);
 *	KVPOOL_FAULT='io.write=-EIO@3,io.read.short=4096@2+,io.sync=-EIO@%5'
 *
 * name=value[@n | @n+ | @%n]: at the n-th pass, from the n-th on, at each n-th; without @ always.  The value is a number or
 * a negative errno name.  Passes, of whatever thread, are counted in each source file from the last change of the
 * variable; a test changes it while no transfer is under way.  Without -DKVP_FAULT nothing of this is in the program.
 */
#ifndef KVPOOL_FAULT_H
#define KVPOOL_FAULT_H

#include <stdint.h>

#ifdef KVP_FAULT
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAULT_RULES_MAX 16

struct fault_rule {
	char name[32];
	int64_t value;
	unsigned n;
	char mode; /* '=' at the n-th, '+' from the n-th on, '%' each n-th, '*' always */
	unsigned passed;
};

static inline int64_t fault_value(const char *text)
{
	static const struct {
		const char *name;
		int err;
	} names[] = {
		{"-EIO", EIO},
		{"-ENOSPC", ENOSPC},
		{"-EAGAIN", EAGAIN},
		{"-EINTR", EINTR},
		{"-EINVAL", EINVAL},
		{"-EOPNOTSUPP", EOPNOTSUPP},
		{"-ENOSYS", ENOSYS},
		{"-EPERM", EPERM},
		{"-EACCES", EACCES},
		{"-EROFS", EROFS},
		{"-ENOMEM", ENOMEM},
		{"-EBUSY", EBUSY},
	};

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strncmp(text, names[i].name, strlen(names[i].name)) == 0)
			return -names[i].err;
	return strtoll(text, NULL, 0);
}

static inline void fault_parse_rule(struct fault_rule *rule, const char *text)
{
	char value[32] = "", at[16] = "";

	memset(rule, 0, sizeof(*rule));
	if (sscanf(text, "%31[^=]=%31[^@]@%15s", rule->name, value, at) < 2)
		return;
	rule->value = fault_value(value);
	rule->mode = !at[0] ? '*' : at[0] == '%' ? '%' : strchr(at, '+') ? '+' : '=';
	rule->n = (unsigned)strtoul(at[0] == '%' ? at + 1 : at, NULL, 10);
	if (!rule->n)
		rule->n = 1;
}

static inline struct fault_rule *fault_rules(void)
{
	static struct fault_rule rules[FAULT_RULES_MAX];
	static char parsed[512];
	const char *now = getenv("KVPOOL_FAULT");
	char copy[512], *rest, *text;
	unsigned n = 0;

	if (!now)
		now = "";
	if (strncmp(now, parsed, sizeof(parsed) - 1) == 0)
		return rules;
	snprintf(parsed, sizeof(parsed), "%s", now);
	snprintf(copy, sizeof(copy), "%s", now);
	memset(rules, 0, sizeof(rules));
	for (text = strtok_r(copy, ",", &rest); text && n < FAULT_RULES_MAX; text = strtok_r(NULL, ",", &rest))
		fault_parse_rule(&rules[n++], text);
	return rules;
}

static inline bool fault_hits(struct fault_rule *rule)
{
	unsigned pass = ++rule->passed;

	switch (rule->mode) {
	case '*':
		return true;
	case '+':
		return pass >= rule->n;
	case '%':
		return pass % rule->n == 0;
	default:
		return pass == rule->n;
	}
}

static inline int64_t fault_int(const char *name, int64_t value)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	struct fault_rule *rules;

	pthread_mutex_lock(&lock);
	rules = fault_rules();
	for (unsigned i = 0; i < FAULT_RULES_MAX && rules[i].name[0]; i++)
		if (strcmp(rules[i].name, name) == 0 && fault_hits(&rules[i])) {
			value = rules[i].value;
			break;
		}
	pthread_mutex_unlock(&lock);
	return value;
}

#define FAULT_INT(name, value) fault_int(name, value)
#else
#define FAULT_INT(name, value) (value)
#endif

#endif
