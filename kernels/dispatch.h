/* dispatch.h - the instruction set this process computes with */
#ifndef KVATTN_DISPATCH_H
#define KVATTN_DISPATCH_H

#include "attn.h"

/** dispatch_isa() - chosen at the first call, the same ever after; any thread.  @vectors: without products of tiles */
const struct attn_isa *dispatch_isa(bool vectors);

#endif
