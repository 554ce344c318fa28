/*
 * admin.h - the daemon's admin socket
 */
#ifndef KVCTL_ADMIN_H
#define KVCTL_ADMIN_H

#include <stdbool.h>
#include <stdint.h>

#include "kvpool_wire.h"
#include "option.h"

/** admin_option_next() - option_next() of a command that takes --admin and --deadline too: those go to @admin and
 *  @limit_ns */
int admin_option_next(struct options *options, const char **admin, uint64_t *limit_ns);
/** admin_socket_path() - @admin, else the daemon's socket + ".admin". Return: 0; exit code (said). */
int admin_socket_path(const struct options *options, const char *admin, char path[KVP_SOCKET_MAX]);
/** admin_connect() - waits 2 s at most. Return: a descriptor; -ETIMEDOUT; -errno. */
int admin_connect(const char *path);
/** admin_connect_in() - likewise, and @limit_ns at most */
int admin_connect_in(const char *path, uint64_t limit_ns);
/** admin_nobody() - does this error of admin_connect() mean that no daemon is there? */
bool admin_nobody(int error);
/** admin_complain() - say what went wrong with @what */
void admin_complain(const char *what, const char *path, int error);
/** admin_ask() - one message and its answer by the deadline; a wait of more than a second is told. Return: 0; 1:
 *  refused (said); -ETIMEDOUT; -EPROTO; -errno. */
int admin_ask(int fd, const char *what, uint16_t type, const void *ask, size_t ask_bytes, uint64_t deadline_ns,
	struct kvp_wire_admin_done *done);
/** admin_complain_late() - no answer came on @fd by the deadline: say whether @what may still have been done */
void admin_complain_late(const char *what, int fd);
/** admin_ns() - id of the namespace of that name or id. Return: 0; exit code (said). */
int admin_ns(const struct options *options, const char *name, uint64_t *ns_id);
/** admin_do() - one operator's message, from connect to answer. @ask begins with its deadline. Return: 0; exit code
 *  (said). */
int admin_do(const struct options *options, const char *admin, uint16_t type, void *ask, size_t ask_bytes,
	uint64_t limit_ns, struct kvp_wire_admin_done *done);

#endif
