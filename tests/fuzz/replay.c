/*
 * replay.c - a plain main for fuzz targets: each file of the seed directories given goes through the target once
 *
 * usage: replay_NAME FILE|DIRECTORY...
 * Lets `make check` run the seeds without a fuzzer.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static unsigned n_files;

static int replay_file(const char *path)
{
	FILE *file = fopen(path, "re");
	uint8_t *data = malloc(1 << 20);
	size_t n;

	if (!file || !data) {
		fprintf(stderr, "%s: cannot be read\n", path);
		return 1;
	}
	n = fread(data, 1, 1 << 20, file);
	fclose(file);
	/* exactly as long as the seed, so that a sanitizer sees a read past its end */
	data = realloc(data, n ? n : 1);
	LLVMFuzzerTestOneInput(data, n);
	free(data);
	n_files++;
	return 0;
}

static int replay_directory(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	int r = dir ? 0 : 1;

	while (dir && (entry = readdir(dir))) {
		char name[1024];

		if (entry->d_name[0] == '.')
			continue;
		snprintf(name, sizeof(name), "%s/%s", path, entry->d_name);
		r |= replay_file(name);
	}
	if (dir)
		closedir(dir);
	return r;
}

int main(int argc, char **argv)
{
	int r = 0;

	for (int i = 1; i < argc; i++) {
		struct stat st;

		r |= stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode) ? replay_directory(argv[i]) : replay_file(argv[i]);
	}
	printf("%u seeds\n", n_files);
	return r || !n_files;
}
