/*
 * cold.h - what nobody has used for long in a namespace, and is not yet in the one of its blocks made narrower
 *
 * Such a one has KVP_NS_COLD and a descriptor of kvp_desc_quantised(), and the name and owner of what it is made of.
 * Who asks does the arithmetic (kvpool-cold); here it is only looked, and nothing noted but where the next look begins.
 */
#ifndef KVPOOL_COLD_H
#define KVPOOL_COLD_H

#include "namespace.h"

/** cold_from() - what it is made of, where its owner allowed it when it was made; NULL: there is none */
struct ns *cold_from(const struct ns *to);
/** cold_next() - of those @session may write to, made of what it may read, the one with the least id above @after; NULL */
struct ns *cold_next(const struct session *session, uint64_t after);
/** cold_find() - see KVP_MSG_COLD.  A bounded look at those unused for longest, from where the last one ended.
 *  @keys: room for @max, at least one. Return: 0: none, and unless @more none further on. */
uint32_t cold_find(
	struct ns *to, uint32_t idle_ms, struct kvp_key *parent, struct kvp_key *keys, uint32_t max, bool *more);

#endif
