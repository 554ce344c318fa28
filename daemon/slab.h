/*
 * slab.h - slabs: the memory of the pool, allocated, placed and touched before anybody gets it
 *
 * A slab is one shared-memory object at a place (row of the slab table); its number is its identity and never given
 * again.  Spare slabs belong to no namespace and are all zero.  A slab that leaves a namespace is unlinked and punched
 * empty; its successor is a new object with zeroed pages.  Clients that had it may go on to map it and, by touching it,
 * fill it again: what it occupies is taken off the budget, and punched again, until the last of those sessions is gone.
 * A slab that a writer cut, grew or punched is condemned: all its blocks go, whoever holds them.
 */
#ifndef KVPOOL_SLAB_H
#define KVPOOL_SLAB_H

#include "daemon.h"

struct slab_slot { /* the daemon's own side of a slot */
	void *who; /* entry while PUBLISHED, DRAINING, RESTORING; member while GRANTED, TAKEN */
	uint32_t next,
		prev; /* index + 1 within the slab; free list, or the grant list of its member across slabs (slot numbers) */
	uint32_t since; /* tick of the grant */
	uint32_t io; /* transfers that touch the slot's bytes */
};

struct slab {
	uint32_t place;
	uint32_t node; /* index into topology; chosen by itself it is never a far one */
	uint64_t number;
	uint64_t bytes;
	enum kvp_slab_use use;
	int fd;
	char *map;
	struct ns *ns;
	struct slab_slot *slots; /* while in a namespace */
	uint32_t n_slots, n_free, free_head;
	struct slab *open_next, *open_prev; /* in ns->open[] while it has free slots to give out */
	bool is_open;
	bool client_writable; /* a session got a rw descriptor of it, or may have got one from an earlier daemon */
	int guard; /* while client_writable */
	bool writer_left; /* one that had it so may have kept the descriptor: who writes it now is never alone */
	bool withdrawn; /* no slot of it is given out, and its free ones are not counted as free */
	bool condemned; /* and it goes when the last transfer in it has ended */
	bool far; /* its node has no CPUs while others have */
	bool bound;
	enum kvp_pages pages; /* of what its object is made; it lies in pages_dir() of that */
	uint64_t huge; /* bytes of it in pages larger than 4k */
	int64_t placed; /* bytes of it that lie on its node; -errno: the kernel does not tell */
};

/** slab_start() - adopt the slabs of the last daemon, then fill the budget with spare ones. @message as ever. Return: 0; -errno. */
int slab_start(struct daemon *d, char message[256]);
void slab_stop(struct daemon *d);

/** slab_take_spare() - a zeroed slab of exactly @bytes, from the spare ones, on @node or (unless @only_there) as near to it as can
 *  be; NULL: none */
struct slab *slab_take_spare(struct daemon *d, uint64_t bytes, uint32_t node, bool only_there);
/** slab_request() - make one for a namespace, of spare ones of other sizes if need be: ns_slab_came() follows, soon. @at: the
 *  node it will lie on.  Return: false: there is no room for it, nothing follows. */
bool slab_request(struct daemon *d, uint64_t bytes, uint32_t node, bool only_there, uint64_t for_ns, uint32_t *at);
/** slab_give() - the slab leaves whoever had it, and one of @bytes for a namespace is made of it, on its node: ns_slab_came()
 *  follows. *  Return: false: it is not enough for that; a spare one of the usual size takes its room in the budget. */
bool slab_give(struct daemon *d, struct slab *slab, uint64_t bytes, uint64_t for_ns);
/** slab_release_spare() - a spare one of node @i goes, and its memory. Return: false: there is none. */
bool slab_release_spare(struct daemon *d, uint32_t i);
/** slab_make_spare() - one more there. Return: false: it cannot be begun. */
bool slab_make_spare(struct daemon *d, uint32_t i);
/** slab_check_room() - do /dev/shm, the huge pages and the cgroup hold a pool of @bytes, @more than now? @what: it is, for a person. Return: 0; -ENOMEM; -ENOSPC. */
int slab_check_room(const struct daemon *d, uint64_t bytes, uint64_t more, const char *what, char message[256]);
/** slab_settle() - at the start and in tests: wait for all that is being made */
void slab_settle(struct daemon *d);
/** slab_set_use() - move its row to another user */
void slab_set_use(struct daemon *d, struct slab *slab, enum kvp_slab_use use, struct ns *ns);
uint64_t slab_spare_bytes(const struct daemon *d);
/** slab_page_kib() - of its pages: what the kernel gave, not what was wished */
uint32_t slab_page_kib(const struct slab *slab);
/** slab_set_open() - n_free or withdrawn has changed: keep its namespace's list of slabs with free slots in step */
void slab_set_open(struct slab *slab);
/** slab_withdraw() - give out no slot of it from now on. slab_give_again() - after all. */
void slab_withdraw(struct slab *slab);
void slab_give_again(struct slab *slab);
/** slab_let_write() - a client gets, or may have, a descriptor it can write with: from now on it is watched. Return: 0; -ENOSPC. */
int slab_let_write(struct slab *slab);
/** slab_unmapped() - the session says that it has no mapping of a slab that left: nothing is kept of that slab for it */
void slab_unmapped(const struct session *s, uint64_t number);
/** slab_look() - a few times a second: slabs writers broke, and those that left */
void slab_look(struct daemon *d);

#endif
