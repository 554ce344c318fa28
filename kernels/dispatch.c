/*
 * dispatch.c - the instruction set this process computes with
 *
 * Chosen once.  Threads that race for the first call find the same answer, so a plain atomic pointer is enough, and
 * nothing here can be held by another thread at a fork.
 */
#include "dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"

static _Atomic(const struct attn_isa *) chosen;

/* KVATTN_ISA takes features away and never adds one; a name that is not known takes nothing. */
static enum cpu_level level_allowed(enum cpu_level level)
{
	static const struct {
		const char *name;
		enum cpu_level level;
	} caps[] = {
		{"scalar", CPU_SCALAR},
#if defined(__x86_64__)
		{"avx2", CPU_AVX2},
		{"avx512", CPU_AVX512},
		{"avx512vnni", CPU_AVX512VNNI},
#endif
	};
	const char *name = getenv("KVATTN_ISA");

	for (size_t i = 0; name && i < sizeof(caps) / sizeof(caps[0]); i++)
		if (strcmp(name, caps[i].name) == 0 && caps[i].level < level)
			return caps[i].level;
	return level;
}

static const struct attn_isa *isa_of(enum cpu_level level)
{
#if defined(__x86_64__)
	if (level == CPU_AVX512AMX && cpu_amx_grant())
		return &attn_isa_avx512amx;
	if (level >= CPU_AVX512VNNI)
		return &attn_isa_avx512vnni;
	if (level == CPU_AVX512)
		return &attn_isa_avx512;
	if (level == CPU_AVX2)
		return &attn_isa_avx2;
#elif defined(__aarch64__)
	if (level == CPU_NEON)
		return &attn_isa_neon;
#endif
	(void)level;
	return &attn_isa_scalar;
}

const struct attn_isa *dispatch_isa(bool vectors)
{
	const struct attn_isa *isa = atomic_load_explicit(&chosen, memory_order_acquire);

	if (!isa) {
		isa = isa_of(level_allowed(cpu_level()));
		atomic_store_explicit(&chosen, isa, memory_order_release);
	}
#if defined(__x86_64__)
	if (vectors && isa == &attn_isa_avx512amx)
		return &attn_isa_avx512vnni;
#endif
	(void)vectors;
	return isa;
}

const char *kvattn_isa_name(void)
{
	return dispatch_isa(false)->name;
}

uint32_t kvattn_version(void)
{
	return KVATTN_VERSION_MAJOR << 16 | KVATTN_VERSION_MINOR;
}
