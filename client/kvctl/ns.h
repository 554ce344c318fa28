/*
 * ns.h - namespaces as kvctl shows them: rows of a table, objects of JSON, and finding one by what the user typed
 */
#ifndef KVCTL_NS_H
#define KVCTL_NS_H

#include <jansson.h>

#include "snapshot.h"

json_t *ns_json(const struct kvp_ns_row *row);
/** ns_print() - the table of namespaces, as in kvctl stats (@indent 2) and kvctl ns */
void ns_print(const struct snapshot *snapshot, unsigned indent);
/** ns_choose() - id of the one namespace of that name or id. Return: 0; KVCTL_FAILED (said: none, or several with their
 *  ids). */
int ns_choose(const struct snapshot *snapshot, const char *text, uint64_t *ns_id);
const char *ns_name(const struct kvp_ns_row *row, char text[KVP_NAME_MAX]);

#endif
