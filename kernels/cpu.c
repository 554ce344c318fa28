/*
 * cpu.c - what the processor and the operating system offer
 *
 * A feature bit alone proves nothing: a system or hypervisor that does not save the wide registers leaves the bit set,
 * and the first wide instruction is then SIGILL.  So XCR0 is read too (OSXSAVE first, or reading it would trap).
 */
#define _GNU_SOURCE 1 /* sched_getaffinity(), getcpu() */
#include "cpu.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAF1_ECX_OSXSAVE (1u << 27)
#define LEAF1_ECX_NEEDED (1u << 12 | LEAF1_ECX_OSXSAVE | 1u << 28 | 1u << 29) /* FMA, OSXSAVE, AVX, F16C */
#define LEAF7_EBX_AVX2 (1u << 5)
#define LEAF7_EBX_AVX512 (1u << 16 | 1u << 17 | 1u << 30 | 1u << 31) /* F, DQ, BW, VL */
#define LEAF7_ECX_VNNI (1u << 1 | 1u << 11) /* VBMI, VNNI */
#define LEAF7_EDX_AMX (1u << 22 | 1u << 24) /* BF16, TILE */
#define XCR0_AVX 0x6u /* XMM, YMM */
#define XCR0_AVX512 0xe6u /* XMM, YMM, mask registers, ZMM 0-15 high halves, ZMM 16-31 */
#define XCR0_AMX 0x600e6u /* those, the shape of tiles, tiles */

enum cpu_level cpu_level_of(const struct cpu_says *says)
{
	if ((says->leaf1_ecx & LEAF1_ECX_NEEDED) != LEAF1_ECX_NEEDED || (says->xcr0 & XCR0_AVX) != XCR0_AVX ||
		!(says->leaf7_ebx & LEAF7_EBX_AVX2))
		return CPU_SCALAR;
	if ((says->xcr0 & XCR0_AVX512) != XCR0_AVX512 || (says->leaf7_ebx & LEAF7_EBX_AVX512) != LEAF7_EBX_AVX512)
		return CPU_AVX2;
	if ((says->leaf7_ecx & LEAF7_ECX_VNNI) != LEAF7_ECX_VNNI)
		return CPU_AVX512;
	return (says->xcr0 & XCR0_AMX) == XCR0_AMX && (says->leaf7_edx & LEAF7_EDX_AMX) == LEAF7_EDX_AMX
		       ? CPU_AVX512AMX
		       : CPU_AVX512VNNI;
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 /* asm/prctl.h of Linux 5.16 */
#define TILE_DATA 18 /* the last one's bit */

static uint32_t xcr0(void)
{
	uint32_t low, high;

	__asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
	return low;
}

enum cpu_level cpu_level(void)
{
	struct cpu_says says = {0};
	uint32_t a, b, d;

	if (!__get_cpuid(1, &a, &b, &says.leaf1_ecx, &d) || !(says.leaf1_ecx & LEAF1_ECX_OSXSAVE))
		return CPU_SCALAR;
	says.xcr0 = xcr0();
	if (!__get_cpuid_count(7, 0, &a, &says.leaf7_ebx, &says.leaf7_ecx, &says.leaf7_edx))
		return CPU_SCALAR;
	return cpu_level_of(&says);
}

bool cpu_amx_grant(void)
{
	return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0;
}

#else

enum cpu_level cpu_level(void)
{
#if defined(__aarch64__)
	return CPU_NEON;
#else
	return CPU_SCALAR;
#endif
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

/* "0-3,8" to CPUs; what is beyond a cpu_set_t is left out. */
static void cpus_parse(const char *list, cpu_set_t *cpus)
{
	unsigned long first, last;
	char *end;

	CPU_ZERO(cpus);
	for (; *list >= '0' && *list <= '9'; list = *end == ',' ? end + 1 : end) {
		first = last = strtoul(list, &end, 10);
		if (*end == '-')
			last = strtoul(end + 1, &end, 10);
		for (; first <= last && first < CPU_SETSIZE; first++)
			CPU_SET(first, cpus);
	}
}

void cpu_nodes_read(const char *dir, struct cpu_nodes *nodes)
{
	*nodes = (struct cpu_nodes){0};
	for (uint32_t i = 0; i < CPU_NODES_MAX; i++) {
		char path[256], line[4096];
		FILE *file;

		snprintf(path, sizeof(path), "%s/node%u/cpulist", dir, i);
		file = fopen(path, "re");
		if (!file)
			continue;
		if (fgets(line, sizeof(line), file)) {
			cpus_parse(line, &nodes->cpus[i]);
			if (CPU_COUNT(&nodes->cpus[i]))
				nodes->n = i + 1;
		}
		fclose(file);
	}
}

uint32_t cpu_node(void)
{
	unsigned node;

	return getcpu(NULL, &node) == 0 ? node : UINT32_MAX;
}

/* The numbers in a cgroup's file, 0 for each that is not there ("max" is none). */
static void numbers_in(const char *dir, const char *name, unsigned long long *a, unsigned long long *b)
{
	char path[4400], line[64] = "";
	FILE *file;

	*a = *b = 0;
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "re");
	if (!file)
		return;
	if (fgets(line, sizeof(line), file))
		sscanf(line, "%llu %llu", a, b);
	fclose(file);
}

/* Whole processors, rounded up; 0: no limit or no such file. */
static uint32_t quota_in(const char *dir, bool v1)
{
	unsigned long long quota, period, none;

	if (v1) { /* without a limit -1, which is more than any machine has */
		numbers_in(dir, "cpu.cfs_quota_us", &quota, &none);
		numbers_in(dir, "cpu.cfs_period_us", &period, &none);
	} else { /* "max 100000" or "200000 100000" */
		numbers_in(dir, "cpu.max", &quota, &period);
	}
	return period && quota / period < UINT32_MAX ? (uint32_t)(quota / period + (quota % period != 0)) : 0;
}

/* Of @path in the hierarchy at @top: every ancestor's quota binds too. In a container a path of version 1 may be the host's,
   which is not there; the uppermost directory is then the container's own. */
static uint32_t quota_under(const char *top, const char *path, bool v1)
{
	char dir[4352];
	uint32_t least = 0;

	snprintf(dir, sizeof(dir), "%s%s", top, path);
	for (;;) {
		const uint32_t here = quota_in(dir, v1);

		if (here && (!least || here < least))
			least = here;
		if (strlen(dir) <= strlen(top))
			return least;
		*strrchr(dir, '/') = '\0';
	}
}

/* Version 2 is "0::/path", the processors' hierarchy of version 1 "4:cpu,cpuacct:/path". */
static uint32_t quota_count(void)
{
	char line[4300];
	uint32_t least = 0;
	FILE *file = fopen("/proc/self/cgroup", "re");

	while (file && fgets(line, sizeof(line), file)) {
		char *of = strchr(line, ':'), *path = of ? strchr(of + 1, ':') : NULL;
		uint32_t here = 0;

		line[strcspn(line, "\n")] = '\0';
		if (!path || path[1] != '/')
			continue;
		*path++ = '\0';
		if (strncmp(line, "0:", 2) == 0)
			here = quota_under("/sys/fs/cgroup", path, false);
		else if (strncmp(of, ":cpu,", 5) == 0 || strcmp(of, ":cpu") == 0 || strstr(of, ",cpu,") ||
			 (strlen(of) > 4 && strcmp(of + strlen(of) - 4, ",cpu") == 0))
			here = quota_under("/sys/fs/cgroup/cpu", path, true);
		if (here && (!least || here < least))
			least = here;
	}
	if (file)
		fclose(file);
	return least;
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
