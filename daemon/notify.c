/* notify.c - see notify.h */
#include "notify.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

bool notify_say(unsigned wait_ms, const char *format, ...)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct timeval wait = {.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000};
	size_t n = path ? strlen(path) : 0;
	char text[512];
	va_list args;
	bool said;
	int fd;

	if (!n)
		return true;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if ((path[0] != '/' && path[0] != '@') || n >= sizeof(address.sun_path)) {
		sd_notify(0, text); /* vsock, or whatever else it knows */
		return true;
	}
	memcpy(address.sun_path, path, n);
	if (path[0] == '@')
		address.sun_path[0] = 0;
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return false;
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
	said = sendto(fd, text, strlen(text), MSG_NOSIGNAL | (wait_ms ? 0 : MSG_DONTWAIT), (struct sockaddr *)&address,
		       (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) >= 0 ||
	       (errno != EAGAIN && errno != ENOBUFS && errno != ENOMEM); /* else it is not there, and wants nothing */
	close(fd);
	return said;
}
