/*
 * cpu.c - what the processor and the operating system offer
 *
 * A feature bit alone proves nothing: a system or hypervisor that does not save the wide registers leaves the bit set,
 * and the first wide instruction is then SIGILL.  So XCR0 is read too (OSXSAVE first, or reading it would trap).
 */
#define _GNU_SOURCE 1 /* sched_getaffinity() */
#include "cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h of Linux 5.16 */

#define LEAF1_ECX_NEEDED (1u << 12 | 1u << 27 | 1u << 28 | 1u << 29) /* FMA, OSXSAVE, AVX, F16C */
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define LEAF7_ECX_VNNI (1u << 1 | 1u << 11) /* VBMI, VNNI */
#define LEAF7_EDX_AMX (1u << 22 | 1u << 24) /* BF16, TILE */
#define XCR0_AVX 0x6u /* XMM, YMM */
#define XCR0_AVX512 0xe6u /* XMM, YMM, mask registers, ZMM 0-15 high halves, ZMM 16-31 */
#define XCR0_AMX 0x600e6u /* those, the shape of tiles, tiles */
#define TILE_DATA 18 /* the last one's bit */

static uint32_t xcr0(void)
{
	uint32_t low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

enum cpu_level cpu_level(void)
{
	uint32_t a, b, c, d, saved;

	if (!__get_cpuid(1, &a, &b, &c, &d) || (c & LEAF1_ECX_NEEDED) != LEAF1_ECX_NEEDED)
		return CPU_SCALAR;
	saved = xcr0();
	if ((saved & XCR0_AVX) != XCR0_AVX || !__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & LEAF7_EBX_AVX2))
		return CPU_SCALAR;
	if ((saved & XCR0_AVX512) != XCR0_AVX512 || (b & LEAF7_EBX_AVX512) != LEAF7_EBX_AVX512)
		return CPU_AVX2;
	if ((c & LEAF7_ECX_VNNI) != LEAF7_ECX_VNNI)
		return CPU_AVX512;
	return (saved & XCR0_AMX) == XCR0_AMX && (d & LEAF7_EDX_AMX) == LEAF7_EDX_AMX ? CPU_AVX512AMX : CPU_AVX512VNNI;
}

bool cpu_amx_grant(void)
{
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

#else

enum cpu_level cpu_level(void)
{
	return CPU_SCALAR;
}

bool cpu_amx_grant(void)
{
	return false;
}

#endif

static uint32_t affinity_count(void)
{
	cpu_set_t set;

	/* Fails where the machine has more processors than a cpu_set_t holds: then as many as it holds are plenty. */
	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return CPU_SETSIZE;
	return (uint32_t)CPU_COUNT(&set);
}

/* "max 100000" or "200000 100000" in a cgroup's cpu.max: whole processors, rounded up; 0: no limit or no such file */
static uint32_t quota_in(const char *dir)
{
	char path[4352], line[64] = "";
	unsigned long long quota, period;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/fs/cgroup%s/cpu.max", dir);
	file = fopen(path, "re");
	if (!file)
		return 0;
	if (!fgets(line, sizeof(line), file))
		line[0] = '\0';
	fclose(file);
	if (sscanf(line, "%llu %llu", &quota, &period) != 2 || period == 0)
		return 0;
	return (uint32_t)((quota + period - 1) / period);
}

/* Version 2 only ("0::/path"); every ancestor's quota binds too. */
static uint32_t quota_count(void)
{
	char line[4300], *dir = NULL;
	uint32_t least = 0;
	FILE *file = fopen("/proc/self/cgroup", "re");

	if (!file)
		return 0;
	while (!dir && fgets(line, sizeof(line), file))
		if (strncmp(line, "0::/", 4) == 0)
			dir = line + 3;
	fclose(file);
	if (!dir)
		return 0;
	dir[strcspn(dir, "\n")] = '\0';
	for (;;) {
		const uint32_t here = quota_in(dir);
		char *slash = strrchr(dir, '/');

		if (here && (!least || here < least))
			least = here;
		if (!slash)
			return least;
		*slash = '\0';
	}
}

uint32_t cpu_count(void)
{
	static _Atomic uint32_t quota_known; /* quota + 1, read once: some files in /sys are too dear for each call */
	uint32_t quota = atomic_load_explicit(&quota_known, memory_order_relaxed);
	const uint32_t set = affinity_count();

	if (quota == 0) {
		quota = quota_count() + 1;
		atomic_store_explicit(&quota_known, quota, memory_order_relaxed);
	}
	quota--;
	return quota && quota < set ? quota : set ? set : 1;
}
