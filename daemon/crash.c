/* crash.c - see crash.h.  In the handler: no lock, no memory, nothing that could fault again but the header's page. */
#include "crash.h"

#include <errno.h>
#include <execinfo.h>
#include <inttypes.h>
#include <link.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "log.h"

#define STACK_BYTES 65536
#define PAGE_OF_NULL 4096u

extern const char __executable_start, etext; /* the linker's: where the program lies */

static struct kvp_crash *_Atomic crash_words;
static const struct kvp_pool_header *crash_header;
static uint8_t crash_build_id[KVP_BUILD_ID_MAX];
static uint32_t crash_build_id_bytes;

static uint64_t frame_off(const void *at)
{
	uintptr_t addr = (uintptr_t)at, start = (uintptr_t)&__executable_start;

	return addr >= start && addr < (uintptr_t)&etext ? addr - start : UINT64_MAX;
}

static void crash_write(struct kvp_crash *words, int sig, const siginfo_t *info)
{
	void *frames[KVP_CRASH_FRAMES];
	struct timespec now;
	int n = backtrace(frames, KVP_CRASH_FRAMES); /* called once before, so nothing is loaded now */

	int first = 0;

	while (first < n && frame_off(frames[first]) != UINT64_MAX) /* this handler */
		first++;
	atomic_store(&words->epoch, 0);
	clock_gettime(CLOCK_REALTIME, &now);
	words->when_s = (uint64_t)now.tv_sec;
	words->signal = sig;
	words->pid = getpid();
	/* si_code: not one that somebody sent */
	words->near_null =
		(sig == SIGSEGV || sig == SIGBUS) && info->si_code > 0 && (uintptr_t)info->si_addr < PAGE_OF_NULL;
	words->n_frames = (uint32_t)(n - first);
	for (int i = first; i < n; i++)
		words->frames[i - first] = frame_off(frames[i]);
	words->build_id_bytes = crash_build_id_bytes;
	memcpy(words->build_id, crash_build_id, sizeof(words->build_id));
	atomic_store(&words->epoch, atomic_load(&crash_header->epoch));
}

void crash_on_signal(int sig, siginfo_t *info, void *context)
{
	struct kvp_crash *words = atomic_exchange(&crash_words, NULL); /* of several threads one, and no second crash */
	struct sigaction action = {.sa_handler = SIG_DFL};

	(void)context;
	sigaction(sig, &action, NULL);
	if (words)
		crash_write(words, sig, info);
	raise(sig);
}

static int note_build_id(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	(void)arg;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
		const char *at = (const char *)info->dlpi_addr + segment->p_vaddr, *end = at + segment->p_memsz;

		while (segment->p_type == PT_NOTE && (size_t)(end - at) >= sizeof(ElfW(Nhdr))) {
			const ElfW(Nhdr) *note = (const void *)at;
			const char *text = at + sizeof(*note) + (note->n_namesz + 3u) / 4 * 4;

			if (note->n_type == NT_GNU_BUILD_ID && note->n_descsz <= KVP_BUILD_ID_MAX) {
				memcpy(crash_build_id, text, note->n_descsz);
				crash_build_id_bytes = note->n_descsz;
				return 1;
			}
			at = text + (note->n_descsz + 3u) / 4 * 4;
		}
	}
	return 1; /* the program is the first, and no other is of interest */
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1 /* it tells more */
#else
#define SANITIZED 0
#endif

int crash_init(void)
{
	static const int signals[] = {SIGSEGV, SIGABRT, SIGILL, SIGFPE};
	static char stack[STACK_BYTES];
	stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction action = {.sa_sigaction = crash_on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER};
	void *frames[2];

	if (SANITIZED)
		return 0;
	dl_iterate_phdr(note_build_id, NULL);
	backtrace(frames, 2);
	if (sigaltstack(&other, NULL) < 0)
		return -errno;
	for (unsigned i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		if (sigaction(signals[i], &action, NULL) < 0)
			return -errno;
	return 0;
}

void crash_attach(struct kvp_pool_header *header)
{
	crash_header = header;
	atomic_store(&crash_words, header ? (struct kvp_crash *)(void *)((char *)header + KVP_CRASH_OFF) : NULL);
}

void crash_tell_last(const struct kvp_pool_header *header, int32_t pid)
{
	const struct kvp_crash *words = (const void *)((const char *)header + KVP_CRASH_OFF);
	uint64_t at = 0;

	if (!atomic_load(&words->epoch) || words->pid != pid) {
		log_warn(
			"the last kvpoold, pid %d, was killed: by whom the kernel's log may tell (out of memory?); all "
			"blocks in memory are kept",
			pid);
		return;
	}
	for (uint32_t i = 0; !at && i < words->n_frames && i < KVP_CRASH_FRAMES; i++)
		at = words->frames[i] != UINT64_MAX ? words->frames[i] : 0;
	log_warn("the last kvpoold, pid %d, crashed by signal %d (%s), in +0x%" PRIx64
		 " of its program; kvctl stats --post-mortem tells the rest; all blocks in memory are kept",
		pid, words->signal, strsignal(words->signal), at);
}
