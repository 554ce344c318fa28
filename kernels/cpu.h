/* cpu.h - what the processor and the operating system offer */
#ifndef KVATTN_CPU_H
#define KVATTN_CPU_H

#include <stdint.h>

enum cpu_level {
	CPU_SCALAR,
	CPU_AVX2, /* AVX2, FMA, F16C; the system saves the 256-bit registers */
	CPU_AVX512, /* and AVX512 F, BW, DQ, VL; the system saves the 512-bit and mask registers */
	CPU_AVX512VNNI, /* and AVX512 VNNI, VBMI */
};

/** cpu_level() - the best level whose every instruction and register state is really there */
enum cpu_level cpu_level(void);

/** cpu_count() - processors this process may keep busy: the affinity set, bounded by the cgroup's quota; at least 1 */
uint32_t cpu_count(void);

#endif
