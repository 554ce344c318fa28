/* test_spill_broken.c - a client cuts the memory of a block while the store's threads read it: the daemon lives, and
   knows */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../daemon/guard.h"
#include "spill_fixture.h"

#define MIB (1ull << 20)
#define BYTES 200000u
#define MAPPED (64 * 4096u)

/* In a process of its own, for it is the process that would die.  Exit status 0: it lived, and the cut was noticed. */
static int writes_what_is_cut(bool uring, bool packed)
{
	struct fixture *f = fixture_new(uring ? &with_uring : &with_threads, 16 * MIB, MIB);
	struct block *b = &f->blocks[3];
	int fd = memfd_create("slab", MFD_CLOEXEC), guard;
	struct spill_record record;
	void *map;

	if (guard_init() < 0 || fixture_open(f) < 0 || ftruncate(fd, MAPPED) < 0)
		return 2;
	map = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	guard = guard_add(map, MAPPED);
	b->bytes = BYTES;
	record = block_record(b);
	if (packed)
		record.codec = SPILL_ZSTD;
	if (map == MAP_FAILED || guard < 0 || ftruncate(fd, 4096) < 0)
		return 3;
	if (spill_write(f->spill, &record, map, b, block_done, b) < 0)
		return 4;
	settle(f);
	if (!b->done || !guard_condemned(guard))
		return 5;
	fixture_free(f);
	return 0;
}

static void lives(bool uring, bool packed)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0)
		_exit(writes_what_is_cut(uring, packed));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(WIFSIGNALED(status) ? WTERMSIG(status) : 0, 0);
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void a_block_cut_while_its_checksum_is_computed_kills_nobody(void **state)
{
	(void)state;
	lives(true, false);
	lives(false, false);
}

static void a_block_cut_while_it_is_packed_kills_nobody(void **state)
{
	(void)state;
	lives(true, true);
	lives(false, true);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_block_cut_while_its_checksum_is_computed_kills_nobody),
		cmocka_unit_test(a_block_cut_while_it_is_packed_kills_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
