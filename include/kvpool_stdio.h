/*
 * kvpool_stdio.h - descriptors 0 to 2 are input, output and errors, or nothing: what each program does first
 *
 * A program may be started with some of them closed.  The next object it opened would get that number, and what is
 * printed would be written into it: a log line into the pool's own file.  Not installed.
 */
#ifndef KVPOOL_STDIO_H
#define KVPOOL_STDIO_H

#include <fcntl.h>
#include <unistd.h>

/** kvp_stdio_hold() - what is closed stays unusable: reading and writing fail as before. Return: 0; -1: it cannot be
 *  held. */
static inline int kvp_stdio_hold(void)
{
	for (int fd = 0; fd <= 2; fd++)
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) != fd)
			return -1;
	return 0;
}

#endif
