/*
 * main.c - kvpool-exporter: a pool's counters for Prometheus, over HTTP
 *
 * Reads shared memory only, as kvctl stats does, so it tells of a daemon that hangs or is dead.  libmicrohttpd's one
 * thread answers; the first thread waits for the signal to stop.
 */
#define _GNU_SOURCE 1
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "client/kvctl/kvctl.h"
#include "kvpool_stdio.h"
#include "metrics.h"

#define CONNECTIONS 16u
#define CONNECTIONS_EACH 8u /* address */
#define TIMEOUT_S 10u
#define MEMORY (64u << 10) /* a connection */

struct exporter {
	const char *socket, *name;
};

/* What is the same as before is not said again: it comes with each scrape. */
void complain(const char *format, ...)
{
	static char last[512];
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (!strcmp(text, last))
		return;
	strcpy(last, text);
	fprintf(stderr, "kvpool-exporter: %s\n", text);
}

static enum MHD_Result answer(
	struct MHD_Connection *connection, unsigned status, char *text, size_t bytes, enum MHD_ResponseMemoryMode mode)
{
	struct MHD_Response *response = MHD_create_response_from_buffer(bytes, text, mode);
	enum MHD_Result r;

	if (!response) {
		if (mode == MHD_RESPMEM_MUST_FREE)
			free(text);
		return MHD_NO;
	}
	MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
	if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
		MHD_add_response_header(response, "Allow", "GET, HEAD");
	r = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return r;
}

static enum MHD_Result answer_text(struct MHD_Connection *connection, unsigned status, const char *text)
{
	return answer(connection, status, (char *)(uintptr_t)text, strlen(text), MHD_RESPMEM_PERSISTENT);
}

static enum MHD_Result asked(void *owner, struct MHD_Connection *connection, const char *url, const char *method,
	const char *version, const char *body, size_t *body_bytes, void **state)
{
	const struct exporter *exporter = owner;
	size_t bytes = 0;
	char *text = NULL;

	(void)version;
	(void)body;
	(void)state;
	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0) {
		*body_bytes = 0; /* whatever it is */
		return answer_text(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD\n");
	}
	if (!strcmp(url, "/"))
		return answer_text(connection, MHD_HTTP_OK, "kvpool-exporter: the counters are at /metrics\n");
	if (strcmp(url, "/metrics") != 0)
		return answer_text(connection, MHD_HTTP_NOT_FOUND, "there is only /metrics\n");
	if (metrics_make(exporter->socket, exporter->name, &text, &bytes) < 0)
		return answer_text(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "out of memory\n");
	return answer(connection, MHD_HTTP_OK, text, bytes, MHD_RESPMEM_MUST_FREE);
}

/* "127.0.0.1:9732" or "[::1]:9732". Return: 0; -EINVAL. */
static int address_parse(const char *text, struct sockaddr_storage *address)
{
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)address;
	struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)address;
	const char *colon = strrchr(text, ':');
	char host[INET6_ADDRSTRLEN + 2];
	unsigned long port;
	char *end;
	size_t n;

	memset(address, 0, sizeof(*address));
	if (!colon || colon == text || !colon[1] || (size_t)(colon - text) >= sizeof(host))
		return -EINVAL;
	port = strtoul(colon + 1, &end, 10);
	if (*end || colon[1] < '0' || colon[1] > '9' || port > 65535)
		return -EINVAL;
	n = (size_t)(colon - text);
	memcpy(host, text, n);
	host[n] = 0;
	if (host[0] == '[' && host[n - 1] == ']') {
		host[n - 1] = 0;
		v6->sin6_family = AF_INET6;
		v6->sin6_port = htons((uint16_t)port);
		return inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1 ? 0 : -EINVAL;
	}
	v4->sin_family = AF_INET;
	v4->sin_port = htons((uint16_t)port);
	return inet_pton(AF_INET, host, &v4->sin_addr) == 1 ? 0 : -EINVAL;
}

static int serve(struct exporter *exporter, const char *listen, const struct sockaddr_storage *address)
{
	unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;
	const union MHD_DaemonInfo *info;
	struct MHD_Daemon *http;
	sigset_t ends;
	int number;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
	signal(SIGPIPE, SIG_IGN);
	if (address->ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	http = MHD_start_daemon(flags, 0, NULL, NULL, asked, exporter, MHD_OPTION_SOCK_ADDR,
		(const struct sockaddr *)(const void *)address, MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS,
		MHD_OPTION_PER_IP_CONNECTION_LIMIT, CONNECTIONS_EACH, MHD_OPTION_CONNECTION_TIMEOUT, TIMEOUT_S,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)MEMORY, MHD_OPTION_END);
	if (!http) {
		complain("cannot listen on %s: %s; choose another --listen", listen,
			strerror(errno ? errno : EADDRINUSE));
		return EXIT_FAILURE;
	}
	info = MHD_get_daemon_info(http, MHD_DAEMON_INFO_BIND_PORT);
	printf("listening on port %u\n", info ? info->port : 0u);
	fflush(stdout);
	sigwait(&ends, &number);
	MHD_stop_daemon(http);
	return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {{"socket", required_argument, NULL, 's'},
		{"name", required_argument, NULL, 'n'}, {"listen", required_argument, NULL, 'l'},
		{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
	const char *listen = "127.0.0.1:9732";
	struct sockaddr_storage address;
	struct exporter exporter = {0};
	int c;

	if (kvp_stdio_hold() < 0)
		return EXIT_FAILURE;
	opterr = 0;
	while ((c = getopt_long(argc, argv, ":", longs, NULL)) != -1) {
		if (c == 's') {
			exporter.socket = optarg;
		} else if (c == 'n') {
			exporter.name = optarg;
		} else if (c == 'l') {
			listen = optarg;
		} else if (c == 'h') {
			printf("usage: kvpool-exporter [--socket PATH | --name NAME] [--listen ADDRESS:PORT]\n\n"
			       "The pool's counters for Prometheus at http://ADDRESS:PORT/metrics (127.0.0.1:9732);\n"
			       "see kvpool-exporter(1).\n");
			return EXIT_SUCCESS;
		} else {
			complain(c == ':' ? "%s needs a value; kvpool-exporter --help lists them"
					  : "unknown option %s; kvpool-exporter --help lists them",
				argv[optind - 1]);
			return KVCTL_USAGE;
		}
	}
	if (optind < argc) {
		complain("unexpected argument %s; see --help", argv[optind]);
		return KVCTL_USAGE;
	}
	if (address_parse(listen, &address) < 0) {
		complain("--listen %s is not an address and a port, for example 127.0.0.1:9732 or [::1]:9732", listen);
		return KVCTL_USAGE;
	}
	return serve(&exporter, listen, &address);
}
