/*
 * file.h - a whole file, mapped to be read once at start: checkpoints and tokenizers
 *
 * The bytes are foreign: whoever reads them checks every size against @size first.
 */
#ifndef KVENGINE_FILE_H
#define KVENGINE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "error.h"

struct file {
	const uint8_t *bytes;
	size_t size;
};

/** file_map() - Return: 0; -errno: not there, not a regular file, empty. */
int file_map(struct file *file, const char *path, struct error *error);

/** file_unmap() - may run twice */
void file_unmap(struct file *file);

#endif
