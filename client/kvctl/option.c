/* option.c - see option.h */
#include "option.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "kvctl.h"

static void option_list(const struct options *options, char *text, size_t room)
{
	size_t n = 0;

	text[0] = 0;
	for (const struct option *o = options->longs; o->name && n < room; o++)
		n += (size_t)snprintf(text + n, room - n, "%s--%s", n ? ", " : "", o->name);
}

int option_next(struct options *options)
{
	char known[512];

	opterr = 0;
	for (;;) {
		int c = getopt_long(options->argc, options->argv, ":h", options->longs, NULL);

		/* an unset variable in a script must not send purge to the default pool */
		if ((c == 's' || c == 'n') && !*optarg) {
			complain("%s: --%s is given an empty value; leave it out, or name one", options->command,
				c == 's' ? "socket" : "name");
			return OPTION_WRONG;
		}
		switch (c) {
		case 's':
			options->socket = optarg;
			continue;
		case 'n':
			options->name = optarg;
			continue;
		case 'j':
			options->json = true;
			continue;
		case 'h':
			usage_print(options->command);
			return OPTION_HELP;
		case ':':
			complain("%s: %s needs a value; see kvctl help %s", options->command, options->argv[optind - 1],
				options->command);
			return OPTION_WRONG;
		case '?':
			option_list(options, known, sizeof(known));
			complain("%s: unknown option %s; it has %s (kvctl help %s)", options->command,
				options->argv[optind - 1], known, options->command);
			return OPTION_WRONG;
		case -1:
			if (options->argc - optind > options->max_rest) {
				complain("%s: \"%s\" is one argument too many; see kvctl help %s", options->command,
					options->argv[optind + options->max_rest], options->command);
				return OPTION_WRONG;
			}
			return OPTION_END;
		default:
			return c;
		}
	}
}

int option_exit(int c)
{
	return c == OPTION_HELP ? output_end(KVCTL_DONE) : KVCTL_USAGE;
}

int option_wrong(const struct options *options, const char *what, const char *value, const char *wanted)
{
	complain("%s: %s \"%s\" is not %s; see kvctl help %s", options->command, what, value, wanted, options->command);
	return OPTION_WRONG;
}

const char *option_take_number(struct options *options)
{
	if (optarg)
		return optarg;
	if (optind < options->argc && isdigit((unsigned char)options->argv[optind][0]))
		return options->argv[optind++];
	return NULL;
}
