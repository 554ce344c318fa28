/*
 * option.h - the options of one command, read one after the other
 *
 *	while ((c = option_next(&options)) >= 0) ...own ones...
 *	if (c != OPTION_END)
 *		return option_exit(c);
 */
#ifndef KVCTL_OPTION_H
#define KVCTL_OPTION_H

#include <getopt.h>
#include <stdbool.h>

#define OPTION_END (-1)
#define OPTION_HELP (-2) /* the help was printed */
#define OPTION_WRONG (-3) /* said what is wrong */

#define OPTION_POOL \
	{"socket", required_argument, NULL, 's'}, \
	{ \
		"name", required_argument, NULL, 'n' \
	}
#define OPTION_JSON \
	{ \
		"json", no_argument, NULL, 'j' \
	}
#define OPTION_LAST \
	{"help", no_argument, NULL, 'h'}, \
	{ \
		NULL, 0, NULL, 0 \
	}

struct options {
	const char *command;
	const struct option *longs; /* ends with OPTION_LAST */
	int argc;
	char **argv;
	int max_rest; /* arguments that are no options */
	/* filled */
	const char *socket; /* NULL: not said */
	const char *name;
	bool json;
};

/** option_next() - the code of the next option that is the command's own, its value in optarg; or OPTION_END, ... */
int option_next(struct options *options);
/** option_exit() - exit code after OPTION_HELP or OPTION_WRONG */
int option_exit(int c);
/** option_wrong() - "--what VALUE is not ...". Return: OPTION_WRONG. */
int option_wrong(const struct options *options, const char *what, const char *value, const char *wanted);
/** option_take_number() - the value of an option whose value may stand apart ("--watch 2"): optarg, or the next argument
 *  if it is a number, or NULL */
const char *option_take_number(struct options *options);

#endif
