/*
 * bench.h - kvctl bench: rows of measurements, each beside a yardstick taken in the same run
 *
 * The machine may be busy: what is compared is measured in turns, slice by slice, and medians are told.  First passes,
 * where pages are touched for the first time, are never mixed with the others.
 */
#ifndef KVCTL_BENCH_H
#define KVCTL_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvpool.h"

#define BENCH_ROWS_MAX 64
#define BENCH_PROCESSES_MAX 8
#define BENCH_PAIRS_MAX 100
#define BENCH_NO_TARGET 0.0
#define BENCH_ZERO (-1.0) /* the value itself must be 0 */

struct bench_row {
	char name[96];
	double value;
	const char *unit;
	char yardstick[64]; /* "": none */
	double yardstick_value;
	double limit; /* the most value / yardstick_value may be; BENCH_NO_TARGET, BENCH_ZERO */
};

/* A daemon of our own, for --self. */
struct bench_daemon {
	int pid;
	char dir[64]; /* socket, log and spill store, */
	const char *device; /* or that is here; NULL */
	char socket[96];
	char name[32];
};

struct bench {
	char socket[KVP_SOCKET_MAX];
	char spill_dir[256]; /* of the daemon, ""; for the yardstick of the disk */
	const char *device; /* with --self: a device of ours, written over, the store of the daemon first; or NULL */
	uint64_t size; /* spill: of blocks; 0: all of them */
	uint64_t pool_bytes;
	uint64_t spill_bytes; /* capacity of its store */
	bool json;
	unsigned depth; /* spill: transfers at once; 0: as the daemon is */
	unsigned pairs; /* spill: rounds */
	uint64_t records; /* start */
	struct bench_daemon own; /* start: its daemons, one after the other; whoever cleans up sees it here */
	unsigned n_rows;
	struct bench_row rows[BENCH_ROWS_MAX];
};

/** bench_row() - add a row. @yardstick NULL: none. */
void bench_row(struct bench *bench, const char *unit, double value, const char *yardstick, double yardstick_value,
	double limit, const char *name_format, ...) __attribute__((format(printf, 7, 8)));
/** bench_say() - one line for a person, on stderr: what is under way, what is left out and why */
void bench_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Return: 0; KVCTL_FAILED, KVCTL_DOWN (said). */
int bench_pin(struct bench *bench);
int bench_publish(struct bench *bench);
int bench_share(struct bench *bench);
int bench_spill(struct bench *bench);
int bench_attn(struct bench *bench);
int bench_sparse(struct bench *bench);
int bench_start(struct bench *bench);

/** bench_daemon_start() - @device: for its store, or NULL; @spill_bytes 0: no store; @depth: its transfers at once, 0:
 *  as it likes. Return: 0; KVCTL_FAILED (said). */
int bench_daemon_start(
	struct bench_daemon *daemon, const char *device, uint64_t pool_bytes, uint64_t spill_bytes, unsigned depth);
/* The same in steps. */
/** bench_daemon_make() - its directory and names. Return: 0; KVCTL_FAILED (said). */
int bench_daemon_make(struct bench_daemon *daemon);
/** bench_daemon_run() - until it serves. Return: 0; KVCTL_FAILED (said). */
int bench_daemon_run(struct bench_daemon *daemon, uint64_t pool_bytes, uint64_t spill_bytes, unsigned depth);
/** bench_daemon_halt() - end it; its memory and its store stay. bench_daemon_forget() - its memory goes too. */
void bench_daemon_halt(struct bench_daemon *daemon);
void bench_daemon_forget(const struct bench_daemon *daemon);
/** bench_daemon_stop() - end it and remove all it had: memory, store, directory */
void bench_daemon_stop(struct bench_daemon *daemon);

/** bench_pool_fit() - @wanted, or half of what the machine has to spare, said */
uint64_t bench_pool_fit(uint64_t wanted);
/** bench_ask_daemon() - DRAIN or EVICT all. Return: exit code (said). */
int bench_ask_daemon(const char *socket, uint16_t type);

/**
 * bench_peer() - what LMDB, memcached or Redis take, by kvbench-peers beside this program
 * Return: nanoseconds a block; < 0: left out (said why).
 */
double bench_peer(const char *what, const char *peer, uint64_t n_blocks, uint64_t block_bytes, unsigned n_processes);

/** bench_ring_us() - what blocks as kvpool has them take of the device by a bare ring, by kvbench-ring; arguments as
 *  below. Return: microseconds a block; < 0: it is not there, or failed. */
double bench_ring_us(const char *file, bool write, uint64_t block_bytes, unsigned depth, uint64_t bytes);

/** bench_fio_there() - is fio installed? */
bool bench_fio_there(void);
/** bench_fio_speed() - MB/s of @bytes of @file from @off on in pieces of @block_bytes, @depth at once; writes with their flush.
 *  0: it failed. */
double bench_fio_speed(
	const char *file, uint64_t off, bool write, uint64_t block_bytes, unsigned depth, uint64_t bytes);
/** bench_fio_p99_us() - of reads one after the other, a pause of a millisecond between: no limit of the device's is
 *  met */
double bench_fio_p99_us(const char *file, uint64_t off, uint64_t block_bytes, uint64_t bytes);

#endif
