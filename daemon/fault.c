/* fault.c - see fault.h */
#include "fault.h"

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

static int64_t fault_value(const char *text)
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

static void fault_parse_rule(struct fault_rule *rule, const char *text)
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

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of what follows: stores have threads */
static struct fault_rule rules[FAULT_RULES_MAX];
static bool is_set;

static void rules_set(const char *text)
{
	char copy[512], *rest, *one;
	unsigned n = 0;

	snprintf(copy, sizeof(copy), "%s", text ? text : "");
	memset(rules, 0, sizeof(rules));
	for (one = strtok_r(copy, ",", &rest); one && n < FAULT_RULES_MAX; one = strtok_r(NULL, ",", &rest))
		fault_parse_rule(&rules[n++], one);
	is_set = true;
}

void fault_set(const char *text)
{
	pthread_mutex_lock(&lock);
	rules_set(text);
	pthread_mutex_unlock(&lock);
}

static bool fault_hits(struct fault_rule *rule)
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

int64_t fault_int(const char *name, int64_t value)
{
	pthread_mutex_lock(&lock);
	if (!is_set)
		rules_set(getenv("KVPOOL_FAULT"));
	for (unsigned i = 0; i < FAULT_RULES_MAX && rules[i].name[0]; i++)
		if (strcmp(rules[i].name, name) == 0 && fault_hits(&rules[i])) {
			value = rules[i].value;
			break;
		}
	pthread_mutex_unlock(&lock);
	return value;
}
#endif
