/* tune.h - what belongs to the machine and shows in no bit: how far ahead streams are asked for */
#ifndef KVATTN_TUNE_H
#define KVATTN_TUNE_H

#include <stdint.h>

#define TUNE_AHEAD_MIN 64u
#define TUNE_AHEAD_MAX 65536u
#define TUNE_NEAR \
	4096u /* what is asked for farther ahead goes into the second-level cache: four streams would fill the first */
#define TUNE_FIRST 512u /* and this far ahead it is asked for once more, into the first */

/** tune_ahead() - bytes of a stream that are prefetched before they are used: KVATTN_AHEAD, what kvattn_calibrate() found,
 *  else the usual; any thread */
uint32_t tune_ahead(void);

/** tune_ahead_set() - from now on, for the calls that begin then; also over KVATTN_AHEAD */
void tune_ahead_set(uint32_t bytes);

/** tune_ahead_of() - what @text says, a whole number of lines within the bounds; 0: NULL, or nothing that can be meant */
uint32_t tune_ahead_of(const char *text);

#endif
