/*
 * dump.c - counts of a program that does not come to its end: they are written before it is killed
 *
 * Linked by `make coverage` into each program and library, which gcc's own code lets write their counts only at exit().
 * What the sources call as kill(), raise(), _exit() and prctl() comes here first (ld's --wrap), so nothing in daemon/
 * or client/ knows of it.  A SIGKILL becomes DUMP for a program that has this file in it, which writes and then kills
 * itself.  Each library has counts of its own: handlers are a chain, the first loaded ends it.
 */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#define DUMP (SIGRTMAX - 5)
#define GO_ON 1 /* with the signal: this program lives on, for now */
#define PATIENCE_MS 3000

void __gcov_dump(void);
void __gcov_reset(void);
int __real_kill(pid_t pid, int sig);
int __real_raise(int sig);
void __real__exit(int status) __attribute__((noreturn));
int __real_prctl(int option, ...);
int __wrap_kill(pid_t pid, int sig);
int __wrap_raise(int sig);
void __wrap__exit(int status) __attribute__((noreturn));
int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d);

static struct sigaction before;

static void on_dump(int sig, siginfo_t *info, void *context)
{
	int err = errno;

	__gcov_dump();
	__gcov_reset();
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(sig, info, context);
	else if (info->si_value.sival_int != GO_ON)
		__real_kill(getpid(), SIGKILL);
	errno = err;
}

__attribute__((constructor)) static void dump_begin(void)
{
	struct sigaction action = {.sa_sigaction = on_dump, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK};

	sigaction(DUMP, &action, &before);
}

static void dump_own(void)
{
	sigset_t set, old;

	sigemptyset(&set);
	sigaddset(&set, DUMP);
	pthread_sigmask(SIG_UNBLOCK, &set, &old);
	pthread_sigqueue(pthread_self(), DUMP, (union sigval){.sival_int = GO_ON});
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Return: does it run, and would it write? A stopped one does not. */
static bool would_dump(pid_t pid)
{
	char path[32], line[128], state = 'X';
	uint64_t caught = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "re");
	if (!file)
		return false;
	while (fgets(line, sizeof(line), file)) {
		sscanf(line, "State: %c", &state);
		sscanf(line, "SigCgt: %" SCNx64, &caught);
	}
	fclose(file);
	return !strchr("XZTt", state) && caught >> (DUMP - 1) & 1;
}

int __wrap_kill(pid_t pid, int sig)
{
	if (pid == getpid() && sig == SIGKILL)
		dump_own();
	else if (pid > 0 && sig == SIGKILL && would_dump(pid) && __real_kill(pid, DUMP) == 0)
		for (unsigned ms = 0; ms < PATIENCE_MS && would_dump(pid); ms++)
			nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
	return __real_kill(pid, sig);
}

int __wrap_raise(int sig)
{
	dump_own();
	return __real_raise(sig);
}

void __wrap__exit(int status)
{
	dump_own();
	__real__exit(status);
}

int __wrap_prctl(int option, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	if (option == PR_SET_SECCOMP)
		dump_own();
	return __real_prctl(option, a, b, c, d);
}
