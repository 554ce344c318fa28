/* guard.c - see guard.h.  The handler uses nothing but the table and mmap(), both safe in it. */
#include "guard.h"
#include "crash.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define GUARDS_MAX 32768 /* sessions and slabs that clients may write */

struct guard {
	_Atomic uintptr_t addr; /* 0: free; stored last */
	_Atomic size_t len;
	_Atomic bool condemned;
};
static struct guard guards[GUARDS_MAX];

static void guard_on_sigbus(int sig, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr;

	for (int i = 0; i < GUARDS_MAX; i++) {
		uintptr_t addr = atomic_load_explicit(&guards[i].addr, memory_order_acquire);
		size_t len = atomic_load_explicit(&guards[i].len, memory_order_relaxed);

		if (!addr || at < addr || at - addr >= len)
			continue;
		/* the whole mapping: a hugetlb mapping takes no single page */
		if (mmap((void *)addr, len, PROT_READ | PROT_WRITE,
			    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) == MAP_FAILED)
			break;
		atomic_store(&guards[i].condemned, true);
		return;
	}
	crash_on_signal(sig, info, context);
}

int guard_init(void)
{
	struct sigaction action = {.sa_sigaction = guard_on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};

	sigemptyset(&action.sa_mask);
	return sigaction(SIGBUS, &action, NULL) < 0 ? -errno : 0;
}

int guard_add(void *addr, size_t len)
{
	for (int i = 0; i < GUARDS_MAX; i++) {
		if (atomic_load_explicit(&guards[i].addr, memory_order_relaxed))
			continue;
		atomic_store(&guards[i].condemned, false);
		atomic_store_explicit(&guards[i].len, len, memory_order_relaxed);
		atomic_store_explicit(&guards[i].addr, (uintptr_t)addr, memory_order_release);
		return i;
	}
	return -ENOSPC;
}

void guard_remove(int guard)
{
	if (guard >= 0)
		atomic_store(&guards[guard].addr, 0);
}

bool guard_condemned(int guard)
{
	return guard >= 0 && atomic_load(&guards[guard].condemned);
}

void guard_thread_mask(sigset_t *mask)
{
	static const int faults[] = {SIGBUS, SIGSEGV, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGSYS};

	sigfillset(mask);
	for (unsigned i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(mask, faults[i]);
}
