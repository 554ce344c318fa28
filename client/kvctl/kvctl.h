/*
 * kvctl.h - what the commands of kvctl have in common: exit codes, how they complain, and who they are
 *
 * One thread.  A command is a function of a file of its noun; it parses its own options (option.h), prints to stdout
 * and returns an exit code.  Everything read from shared memory is input: bounds first, then use.
 */
#ifndef KVCTL_H
#define KVCTL_H

/* The exit codes of kvctl(1). */
enum kvctl_exit {
	KVCTL_DONE = 0,
	KVCTL_FAILED = 1, /* it could not be done; check: invariants are violated; bench: a target was missed */
	KVCTL_USAGE = 2,
	KVCTL_DOWN = 3, /* the daemon does not serve; what its memory shows was printed all the same */
	KVCTL_NO_POOL = 4, /* no pool found, or one that may not or cannot be read */
	KVCTL_OUTPUT = 5, /* stdout took not all: closed pipe, full disk */
};

/** complain() - "kvctl: ..." on stderr: object, cause, way out */
void complain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** output_end() - flush stdout. Return: @code, or KVCTL_OUTPUT (said on stderr) when not all was taken. */
int output_end(int code);

/** usage_print() - the help of one command, on stdout. Return: KVCTL_DONE. */
int usage_print(const char *command);

int stats_command(int argc, char **argv);
int top_command(int argc, char **argv);
int ns_command(int argc, char **argv);
int clients_command(int argc, char **argv);
int check_command(int argc, char **argv);
int ping_command(int argc, char **argv);
int purge_command(int argc, char **argv);
int drain_command(int argc, char **argv);
int evict_command(int argc, char **argv);
int resize_command(int argc, char **argv);
int plan_command(int argc, char **argv);
int store_command(int argc, char **argv);
int replay_command(int argc, char **argv);
int bench_command(int argc, char **argv);
int bundle_command(int argc, char **argv);

#endif
