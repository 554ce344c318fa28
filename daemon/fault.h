/*
 * fault.h - named points at which a test makes things fail
 *
 *	res = FAULT_INT("io.write", res);
 *	KVPOOL_FAULT='io.write=-EIO@3,io.read.short=4096@2+,io.sync=-EIO@%5'
 *
 * name=value[@n | @n+ | @%n]: at the n-th pass, from the n-th on, at each n-th; without @ always.  The value is a number or
 * a negative errno name.  Passes, of whatever thread, are counted from the last fault_set(), or from the first pass of
 * the program, which reads KVPOOL_FAULT.  Without -DKVP_FAULT nothing of this is in the program.
 */
#ifndef KVPOOL_FAULT_H
#define KVPOOL_FAULT_H

#include <stdint.h>

#ifdef KVP_FAULT
#define FAULT_INT(name, value) fault_int(name, value)
int64_t fault_int(const char *name, int64_t value);
/** fault_set() - rules from now on, as in KVPOOL_FAULT; for tests that are the program */
void fault_set(const char *rules);
#else
#define FAULT_INT(name, value) (value)
#endif

#endif
