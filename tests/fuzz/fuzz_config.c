/*
 * fuzz_config.c - a configuration file as foreign bytes, and each line of it as a size
 *
 * What is refused is refused with a message that names the file; what is accepted is the same when read again.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition)
{
	if (!condition)
		abort();
}

static void try_sizes(char *text)
{
	char *rest;

	for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
		uint64_t bytes = 0;

		if (config_parse_size(line, &bytes) == 0)
			must(line[0] >= '0' && line[0] <= '9');
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), message[256] = "";
	struct config config, again;

	must(text != NULL);
	memcpy(text, data, size);
	text[size] = 0;
	config_defaults(&config);
	if (config_parse_text(&config, text, "fuzz.conf", message) == 0) {
		config_defaults(&again);
		must(config_parse_text(&again, text, "fuzz.conf", message) == 0);
		must(memcmp(&config, &again, sizeof(config)) == 0);
		if (config_check(&config, message) == 0) {
			must(config.slab_bytes && config.slab_bytes <= config.pool_bytes);
			must(config.socket[0] == '/' && config.admin_socket[0] == '/' && config.name[0] != '.');
		} else {
			must(message[0] != 0);
		}
	} else {
		must(strstr(message, "fuzz.conf") != NULL);
	}
	try_sizes(text);
	free(text);
	return 0;
}
