/*
 * request.h - what each message of a client asks for
 *
 * A message is checked against its length and its sender's rights here, then handed to the room it belongs to, which
 * answers at once or later.  A peer that breaks the protocol is put out; nobody else notices.
 */
#ifndef KVPOOL_REQUEST_H
#define KVPOOL_REQUEST_H

#include <stddef.h>

struct peer;

/** request_handle() - one packet, as received; everything in it is input. Also what the fuzzer calls. */
void request_handle(struct peer *peer, const void *packet, size_t bytes);

#endif
