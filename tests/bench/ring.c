/*
 * ring.c - kvbench-ring: what records cost a device whatever moves them, for kvctl bench spill
 *
 *	kvbench-ring FILE read|write BLOCK_BYTES DEPTH BYTES
 *
 * fio uses DEPTH buffers again and again: they are in the cache of whoever copies from or to them.  Blocks of a pool
 * lie each in memory of its own, and a record has a page before its block.  This does that and no more, with one ring
 * and pinned memory: no checksum, no table, nobody to be told.  FILE is written over, as far as BYTES; writes end with
 * a flush.  Prints one line: "ns VALUE", nanoseconds a block; or "skip REASON".
 */
#define _GNU_SOURCE 1
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096u
#define DEPTH_MAX 1024u
#define BLOCKS_MAX (1u << 20)

struct run {
	struct io_uring ring;
	int fd;
	bool write;
	uint64_t block_bytes, n_blocks;
	unsigned depth;
	char *blocks, *heads; /* registered as 0 and 1 */
	uint8_t *left; /* of each block: parts that have not ended */
};

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static int skip(const char *what, int err)
{
	printf("skip %s: %s\n", what, strerror(err));
	return 0;
}

/* As the memory of a slab is: shared, and all there. */
static char *memory(uint64_t bytes)
{
	char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (map != MAP_FAILED)
		memset(map, 0x5a, bytes);
	return map == MAP_FAILED ? NULL : map;
}

static int run_open(struct run *run, const char *path)
{
	struct iovec iov[2];
	int r;

	run->fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0600);
	if (run->fd < 0)
		return -errno;
	run->blocks = memory(run->n_blocks * run->block_bytes);
	run->heads = memory((uint64_t)run->depth * PAGE);
	run->left = calloc(run->n_blocks, 1);
	if (!run->blocks || !run->heads || !run->left)
		return -ENOMEM;
	r = io_uring_queue_init(2 * run->depth, &run->ring, 0);
	if (r < 0)
		return r;
	iov[0] = (struct iovec){run->blocks, run->n_blocks * run->block_bytes};
	iov[1] = (struct iovec){run->heads, (size_t)run->depth * PAGE};
	return io_uring_register_buffers(&run->ring, iov, 2);
}

static void part_start(struct run *run, uint64_t block, void *data, uint64_t bytes, uint64_t off, int buffer)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&run->ring);

	if (run->write)
		io_uring_prep_write_fixed(sqe, run->fd, data, (unsigned)bytes, off, buffer);
	else
		io_uring_prep_read_fixed(sqe, run->fd, data, (unsigned)bytes, off, buffer);
	io_uring_sqe_set_data64(sqe, block << 1 | (bytes == run->block_bytes));
	run->left[block]++;
}

static void block_start(struct run *run, uint64_t block)
{
	uint64_t off = block * (run->block_bytes + PAGE);

	part_start(run, block, run->heads + block % run->depth * PAGE, PAGE, off, 1);
	part_start(run, block, run->blocks + block * run->block_bytes, run->block_bytes, off + PAGE, 0);
}

/* Return: blocks that have ended; -errno. */
static int64_t run_reap(struct run *run)
{
	struct io_uring_cqe *cqe;
	int64_t n = 0;

	while (io_uring_peek_cqe(&run->ring, &cqe) == 0) {
		uint64_t data = io_uring_cqe_get_data64(cqe);
		uint64_t want = data & 1 ? run->block_bytes : PAGE;
		int res = cqe->res;

		io_uring_cqe_seen(&run->ring, cqe);
		if (res < 0 || (uint64_t)res != want)
			return res < 0 ? res : -EIO;
		n += --run->left[data >> 1] == 0;
	}
	return n;
}

/* Return: 0; -errno. */
static int run_all(struct run *run)
{
	uint64_t next = 0, done = 0;

	while (done < run->n_blocks) {
		int64_t n;

		for (; next < run->n_blocks && next - done < run->depth; next++)
			block_start(run, next);
		n = io_uring_submit_and_wait(&run->ring, 1);
		if (n >= 0 || n == -EINTR)
			n = run_reap(run);
		if (n < 0)
			return (int)n;
		done += (uint64_t)n;
	}
	return run->write && fdatasync(run->fd) < 0 ? -errno : 0;
}

int main(int argc, char **argv)
{
	struct run run = {0};
	uint64_t bytes, start;
	int r;

	if (argc != 6 || (strcmp(argv[2], "read") && strcmp(argv[2], "write"))) {
		fprintf(stderr, "usage: kvbench-ring FILE read|write BLOCK_BYTES DEPTH BYTES\n");
		return 2;
	}
	run.write = !strcmp(argv[2], "write");
	run.block_bytes = strtoull(argv[3], NULL, 10);
	run.depth = (unsigned)strtoul(argv[4], NULL, 10);
	bytes = strtoull(argv[5], NULL, 10);
	run.n_blocks = bytes / (run.block_bytes + PAGE);
	if (run.block_bytes % PAGE || run.block_bytes <= PAGE || !run.depth || run.depth > DEPTH_MAX || !run.n_blocks ||
		run.n_blocks > BLOCKS_MAX)
		return skip("blocks of whole pages, two at least, are moved, up to 1024 at once", EINVAL);
	r = run_open(&run, argv[1]);
	if (r < 0)
		return skip(argv[1], -r);
	start = now_ns();
	r = run_all(&run);
	free(run.left); /* or a sanitizer ends it before what it says is written */
	if (r < 0)
		return skip(argv[1], -r);
	printf("ns %.0f\n", (double)(now_ns() - start) / (double)run.n_blocks);
	return 0;
}
