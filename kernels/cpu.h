/* cpu.h - what the processor and the operating system offer */
#ifndef KVATTN_CPU_H
#define KVATTN_CPU_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

enum cpu_level {
	CPU_SCALAR,
	CPU_NEON, /* 64-bit ARM: every one */
	CPU_AVX2, /* AVX2, FMA, F16C; the system saves the 256-bit registers */
	CPU_AVX512, /* and AVX512 F, BW, DQ, VL; the system saves the 512-bit and mask registers */
	CPU_AVX512VNNI, /* and AVX512 VNNI, VBMI */
	CPU_AVX512AMX, /* and AMX TILE, BF16, if cpu_amx_grant() says so */
};

/* What CPUID and XGETBV answer; zeros: nothing, or they may not be asked. */
struct cpu_says {
	uint32_t leaf1_ecx, leaf7_ebx, leaf7_ecx, leaf7_edx, xcr0;
};

/** cpu_level_of() - the best level whose every instruction and register state such a processor and system really have */
enum cpu_level cpu_level_of(const struct cpu_says *says);

/** cpu_level() - cpu_level_of() this one */
enum cpu_level cpu_level(void);

/**
 * cpu_amx_grant() - ask the system for the state of tiles, for all threads of the process, for ever
 *
 * From then on the kernel wants room for them on alternate signal stacks: a sigaltstack() of less is refused.
 */
bool cpu_amx_grant(void);

/** cpu_count() - processors this process may keep busy: the affinity set, bounded by the cgroup's quota; at least 1 */
uint32_t cpu_count(void);

#define CPU_NODES_MAX 64u

/* NUMA nodes with CPUs, by their number. */
struct cpu_nodes {
	uint32_t n; /* the highest one's number + 1; 0: none are told */
	cpu_set_t cpus[CPU_NODES_MAX]; /* of a node without CPUs, or one that is not there: none */
};

/** cpu_nodes_read() - what is told in @dir, /sys/devices/system/node */
void cpu_nodes_read(const char *dir, struct cpu_nodes *nodes);

/** cpu_node() - the number of the node on which the calling thread runs; UINT32_MAX: it cannot be told */
uint32_t cpu_node(void);

#endif
