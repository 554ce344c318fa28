/*
 * bench_fio.c - what fio does with the same device, as the yardstick of kvctl bench spill
 *
 * Each run is a process of its own, by io_uring past the page cache; its JSON is input: what is not there is 0.
 */
#define _GNU_SOURCE 1
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "bench.h"

#define ANSWER_MAX (1u << 20)

/* Its answer, or NULL. */
static json_t *fio_run(const char *arguments)
{
	char command[1024], *text = malloc(ANSWER_MAX), *begin;
	json_t *json = NULL;
	size_t n = 0;
	FILE *out;

	snprintf(command, sizeof(command),
		"exec fio --ioengine=io_uring --direct=1 --thread --randrepeat=0 --output-format=json %.800s 2>/dev/null",
		arguments);
	out = text ? popen(command, "re") : NULL;
	if (out) {
		n = fread(text, 1, ANSWER_MAX - 1, out);
		if (pclose(out) != 0)
			n = 0;
	}
	if (text) {
		text[n] = 0;
		begin = strchr(text, '{');
		json = begin ? json_loads(begin, 0, NULL) : NULL;
	}
	free(text);
	return json;
}

static const json_t *fio_job(const json_t *json, size_t i)
{
	return json_array_get(json_object_get(json, "jobs"), i);
}

bool bench_fio_there(void)
{
	return system("command -v fio >/dev/null 2>&1") == 0;
}

double bench_fio_speed(const char *file, uint64_t off, bool write, uint64_t block_bytes, unsigned depth, uint64_t bytes)
{
	char arguments[800];
	const json_t *side;
	double ms, moved;
	json_t *json;

	snprintf(arguments, sizeof(arguments),
		"--name=b --filename='%s' --offset=%" PRIu64 " --rw=%s --bs=%" PRIu64 " --iodepth=%u --size=%" PRIu64
		"%s",
		file, off, write ? "write" : "read", block_bytes, depth, bytes,
		write ? " --overwrite=1 --end_fsync=1" : "");
	json = fio_run(arguments);
	side = json_object_get(fio_job(json, 0), write ? "write" : "read");
	ms = json_number_value(json_object_get(side, "runtime"));
	if (write && json_number_value(json_object_get(fio_job(json, 0), "job_runtime")) > ms)
		ms = json_number_value(json_object_get(fio_job(json, 0), "job_runtime")); /* with its flush */
	moved = json_number_value(json_object_get(side, "io_bytes"));
	json_decref(json);
	return ms > 0 ? moved / 1e3 / ms : 0;
}

double bench_fio_p99_us(const char *file, uint64_t off, uint64_t block_bytes, uint64_t bytes)
{
	char arguments[800];
	const json_t *list;
	double ns;
	json_t *json;

	snprintf(arguments, sizeof(arguments),
		"--filename='%s' --offset=%" PRIu64 " --bs=%" PRIu64 " --size=%" PRIu64
		" --time_based --runtime=2 --name=r --rw=randread --iodepth=1 --thinktime=1000",
		file, off, block_bytes, bytes);
	json = fio_run(arguments);
	list = json_object_get(json_object_get(json_object_get(fio_job(json, 0), "read"), "clat_ns"), "percentile");
	ns = json_number_value(json_object_get(list, "99.000000"));
	json_decref(json);
	return ns / 1e3;
}
