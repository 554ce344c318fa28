/* test_config.c - every option by flag and by file, and what is said about values that make no sense */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"

#define MIB (1024ull * 1024)

static int parse(struct config *config, char message[256], const char *const *flags)
{
	char *argv[32] = {(char *)(uintptr_t) "kvpoold"};
	char copies[31][300];
	int argc = 1;

	for (; flags[argc - 1]; argc++) {
		snprintf(copies[argc - 1], sizeof(copies[0]), "%s", flags[argc - 1]);
		argv[argc] = copies[argc - 1];
	}
	config_defaults(config);
	message[0] = 0;
	return config_parse_args(config, argc, argv, message);
}
#define PARSE(config, message, ...) parse(config, message, (const char *const[]){__VA_ARGS__, NULL})

static void refused(const char *name, const char *value, const char *text)
{
	char flag[64], line[400], message[256];
	struct config config;

	snprintf(flag, sizeof(flag), "--%s", name);
	assert_int_equal(PARSE(&config, message, flag, value), -EINVAL);
	if (!strstr(message, text))
		fail_msg("\"%s\" does not say \"%s\"", message, text);
	/* the same by file, with the line */
	if (!strcmp(name, "config"))
		return;
	snprintf(line, sizeof(line), "# comment\n\n%s = %s\n", name, value);
	config_defaults(&config);
	if (config_parse_text(&config, line, "kvpoold.conf", message) == 0) {
		assert_int_equal(config_check(&config, message), -EINVAL); /* alone it is fine, with the others not */
	} else {
		assert_non_null(strstr(message, "kvpoold.conf:3: "));
	}
	if (!strstr(message, text))
		fail_msg("\"%s\" does not say \"%s\"", message, text);
}

static void the_defaults_fit_each_other(void **state)
{
	char message[256];
	struct config config;

	(void)state;
	config_defaults(&config);
	assert_int_equal(config_check(&config, message), 0);
	assert_string_equal(config.socket, KVP_DEFAULT_SOCKET);
	assert_string_equal(config.admin_socket, KVP_DEFAULT_SOCKET ".admin");
	assert_int_equal(config.pool_bytes, 1024 * MIB);
	assert_int_equal(config.slab_bytes, 4 * MIB);
	assert_int_equal(config.hold_limit_ms, 0);
	assert_int_equal(config.n_listen, 0);
	assert_int_equal(config.n_stores, 0);
}

static void help_tells_each_default_as_it_is(void **state)
{
	static const char *const lines[] = {"each (default 1G)\n", "each device) (default off)\n",
		"client sessions at once (default 1024)\n", "shows that it lives (default 1000)\n"};
	char text[1 << 14];
	int ends[2], old = dup(STDOUT_FILENO);
	char message[256];
	struct config config;
	ssize_t n;

	(void)state;
	assert_int_equal(pipe(ends), 0);
	fflush(stdout);
	dup2(ends[1], STDOUT_FILENO);
	assert_true(PARSE(&config, message, "--help") > 0);
	fflush(stdout);
	dup2(old, STDOUT_FILENO);
	close(old);
	close(ends[1]);
	n = read(ends[0], text, sizeof(text) - 1);
	close(ends[0]);
	assert_true(n > 0);
	text[n] = 0;
	for (unsigned i = 0; i < 4; i++)
		if (!strstr(text, lines[i]))
			fail_msg("help does not say %s", lines[i]);
}

static void every_option_means_the_same_by_flag_and_by_file(void **state)
{
	static const char file[] = "socket = /run/x/s\n"
				   "admin-socket = /run/x/a\n"
				   "socket-mode = 0660\n"
				   "listen = /run/x/one,uid=7,gid=8,mode=0600\n"
				   "listen = /run/x/two\n"
				   "group = ops\n"
				   "name = p1\n"
				   "pool = 2G\n"
				   "slab = 32M\n"
				   "spill = /var/x:1T\n"
				   "spill-write-budget = 3G\n"
				   "spill-compress = zstd\n"
				   "io = threads\n"
				   "log-level = debug\n"
				   "lock-memory = yes\n"
				   "max-clients = 10\n"
				   "max-namespaces = 11\n"
				   "uid-max-clients = 12\n"
				   "uid-max-namespaces = 13\n"
				   "uid-max-grants = 14\n"
				   "uid-max-pins = 15\n"
				   "uid-max-transit = 16M\n"
				   "namespace-max = 17M\n"
				   "uid-max-memory = 18M\n"
				   "uid-max-requests = 19\n"
				   "pin-limit = 20\n"
				   "heartbeat = 200\n"
				   "hold-limit = 17\n"
				   "grant-limit = 2000\n"
				   "free-percent = 18\n";
	struct config by_flag, by_file;
	char message[256];

	(void)state;
	/* clang-format off */
	assert_int_equal(parse(&by_flag, message, (const char *const[]){
		"--socket=/run/x/s", "--admin-socket=/run/x/a", "--socket-mode=0660",
		"--listen=/run/x/one,uid=7,gid=8,mode=0600", "--listen=/run/x/two", "--group=ops", "--name=p1", "--pool=2G",
		"--slab=32M", "--spill=/var/x:1T", "--spill-write-budget=3G", "--spill-compress=zstd", "--io=threads", "--log-level=debug", "--lock-memory=yes",
		"--max-clients=10", "--max-namespaces=11", "--uid-max-clients=12", "--uid-max-namespaces=13",
		"--uid-max-grants=14", "--uid-max-pins=15", "--uid-max-transit=16M", "--namespace-max=17M",
		"--uid-max-memory=18M", "--uid-max-requests=19", "--pin-limit=20", "--heartbeat=200", "--hold-limit=17",
		"--grant-limit=2000", "--free-percent=18", NULL}), 0);
	/* clang-format on */
	config_defaults(&by_file);
	assert_int_equal(config_parse_text(&by_file, file, "f", message), 0);
	assert_int_equal(config_check(&by_file, message), 0);
	memset(by_file.line_of, 0, sizeof(by_file.line_of)); /* flags have no lines */
	assert_memory_equal(&by_flag, &by_file, sizeof(by_flag));
	assert_int_equal(by_file.pool_bytes, 2048 * MIB);
	assert_int_equal(by_file.socket_mode, 0660);
	assert_int_equal(by_file.n_listen, 2);
	assert_string_equal(by_file.listen[0].path, "/run/x/one");
	assert_int_equal(by_file.listen[0].uid, 7);
	assert_int_equal(by_file.listen[0].gid, 8);
	assert_int_equal(by_file.listen[0].mode, 0600);
	assert_false(by_file.listen[1].has_uid);
	assert_int_equal(by_file.n_stores, 1);
	assert_string_equal(by_file.stores[0].path, "/var/x");
	assert_int_equal(by_file.stores[0].bytes, 1ull << 40);
	assert_int_equal(by_file.spill_write_budget, 3072 * MIB);
	assert_true(by_file.lock_memory);
	assert_int_equal(by_file.uid_max_pins, 15);
	assert_int_equal(by_file.free_percent, 18);
}

static void flags_win_over_the_file_wherever_they_stand(void **state)
{
	char path[] = "/tmp/kvpool-test-config-XXXXXX", message[256];
	int fd = mkstemp(path);
	struct config config;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(dprintf(fd, "pool = 8M\nslab = 1M\nname = fromfile\n"), 36);
	close(fd);
	assert_int_equal(PARSE(&config, message, "--name", "fromflag", "--config", path), 0);
	assert_string_equal(config.name, "fromflag");
	assert_int_equal(config.pool_bytes, 8 * MIB);
	assert_int_equal(PARSE(&config, message, "--config", path, "--pool", "16M"), 0);
	assert_int_equal(config.pool_bytes, 16 * MIB);
	assert_string_equal(config.name, "fromfile");
	unlink(path);
	assert_int_equal(PARSE(&config, message, "--config", path), -EINVAL);
	assert_non_null(strstr(message, path));
	assert_non_null(strstr(message, "No such file"));
}

static void spill_stores_are_a_list_and_flags_begin_it_anew(void **state)
{
	struct config config;
	char path[] = "/tmp/kvpool-test-config-XXXXXX", message[256], many[20][24];
	const char *flags[20] = {"--pool=1G"}, *text = "spill = /a:64M\nspill = /b:1G\n";
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_true(write(fd, text, strlen(text)) > 0);
	close(fd);
	assert_int_equal(PARSE(&config, message, "--config", path), 0);
	assert_int_equal(config.n_stores, 2);
	assert_string_equal(config.stores[1].path, "/b");
	assert_int_equal(config.stores[1].bytes, 1024 * MIB);
	assert_int_equal(PARSE(&config, message, "--config", path, "--spill", "/c:64M", "--spill", "/d:64M"), 0);
	assert_int_equal(config.n_stores, 2);
	assert_string_equal(config.stores[0].path, "/c");
	assert_int_equal(PARSE(&config, message, "--config", path, "--spill", "off"), 0);
	assert_int_equal(config.n_stores, 0);
	unlink(path);
	assert_int_equal(PARSE(&config, message, "--spill", "/a:64M", "--spill", "/a:1G"), -EINVAL);
	assert_non_null(strstr(message, "/a is given twice"));
	assert_int_equal(PARSE(&config, message, "--spill", "/a:64M", "--spill", "/a//:1G"), -EINVAL);
	assert_non_null(strstr(message, "/a is given twice"));
	for (unsigned i = 0; i < 17; i++) {
		snprintf(many[i], sizeof(many[i]), "--spill=/%u:64M", i);
		flags[i + 1] = many[i];
	}
	assert_int_equal(parse(&config, message, flags), -EINVAL);
	assert_non_null(strstr(message, "at most 16 stores"));
	flags[17] = NULL;
	assert_int_equal(parse(&config, message, flags), 0);
}

static void several_key_files_are_kept_in_order_and_flags_replace_the_files(void **state)
{
	struct config config;
	char path[] = "/tmp/kvpool-test-config-XXXXXX", message[256];
	const char *text = "spill-key-file = /new\nspill-key-file = /old\n", *flags[12] = {"--pool=1G"};
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_true(write(fd, text, strlen(text)) > 0);
	close(fd);
	assert_int_equal(PARSE(&config, message, "--config", path), 0);
	assert_int_equal(config.n_key_files, 2);
	assert_string_equal(config.key_files[0], "/new");
	assert_string_equal(config.key_files[1], "/old");
	assert_int_equal(PARSE(&config, message, "--config", path, "--spill-key-file", "/a"), 0);
	assert_int_equal(config.n_key_files, 1);
	assert_string_equal(config.key_files[0], "/a");
	unlink(path);
	assert_int_equal(PARSE(&config, message, "--spill-key-file", "key"), -EINVAL);
	assert_non_null(strstr(message, "is not an absolute path"));
	for (unsigned i = 1; i < 10; i++)
		flags[i] = "--spill-key-file=/k";
	assert_int_equal(parse(&config, message, flags), -EINVAL);
	assert_non_null(strstr(message, "at most 8 of them"));
	flags[9] = NULL;
	assert_int_equal(parse(&config, message, flags), 0);
}

static void a_name_in_dev_is_a_device_its_size_may_be_left_out_and_namespaces_need_a_directory(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	assert_int_equal(
		PARSE(&config, message, "--spill", "/dev/nvme1n1", "--spill", "/a:64M", "--spill",
			"/dev/disk/by-path/pci-0000:00:1f.2", "--spill", "/dev/sdb:1G", "--spill", "/dev/shm/x:64M"),
		0);
	assert_int_equal(config.n_stores, 5);
	assert_string_equal(config.stores[0].path, "/dev/nvme1n1");
	assert_true(config.stores[0].device && config.stores[0].bytes == 0);
	assert_false(config.stores[1].device);
	assert_string_equal(config.stores[2].path, "/dev/disk/by-path/pci-0000:00:1f.2");
	assert_true(config.stores[2].device && config.stores[2].bytes == 0);
	assert_string_equal(config.stores[3].path, "/dev/sdb");
	assert_true(config.stores[3].device && config.stores[3].bytes == 1024 * MIB);
	assert_false(config.stores[4].device);
	assert_string_equal(config_namespace_dir(&config, 0), "/a");
	assert_string_equal(config_namespace_dir(&config, 1), "/dev/shm/x");
	assert_null(config_namespace_dir(&config, 2));
	assert_int_equal(PARSE(&config, message, "--spill", "/dev/sdb"), -EINVAL);
	assert_non_null(strstr(message, "namespace-dir = /var/lib/kvpool"));
	assert_int_equal(PARSE(&config, message, "--spill", "/dev/sdb", "--namespace-dir", "/n"), 0);
	assert_string_equal(config_namespace_dir(&config, 0), "/n");
	assert_null(config_namespace_dir(&config, 1));
	assert_int_equal(PARSE(&config, message, "--spill", "/dev/sdb", "--namespace-dir", "n"), -EINVAL);
	assert_int_equal(PARSE(&config, message, "--spill", "off", "--namespace-dir", "/n"), 0);
	assert_null(config_namespace_dir(&config, 0));
}

/* What stands behind the last colon is a size, or part of a name that has colons: of those the kernel gives none
   has. */
static void a_wrong_size_of_a_device_is_refused_and_a_name_with_colons_is_not(void **state)
{
	static const char *const wrong[] = {"/dev/nvme1n1:abc", "/dev/nvme1n1:", "/dev/nvme1n1:-1", "/dev/nvme1n1:15M",
		"/dev/nvme1n1:0", "/dev/disk/by-id/nvme-x:", NULL};
	static const char *const names[] = {
		"/dev/disk/by-path/pci-0000:00:1f.2-ata-1", "/dev/disk/by-id/usb-x-0:0", NULL};
	struct config config;
	char message[256];

	(void)state;
	for (unsigned i = 0; wrong[i]; i++) {
		assert_int_equal(PARSE(&config, message, "--spill", wrong[i], "--namespace-dir", "/n"), -EINVAL);
		assert_non_null(strstr(message, wrong[i]));
		assert_non_null(strstr(message, "is not DIR:SIZE or DEVICE[:SIZE]: use "));
		assert_non_null(strstr(message, "16M at least"));
	}
	for (unsigned i = 0; names[i]; i++) {
		assert_int_equal(PARSE(&config, message, "--spill", names[i], "--namespace-dir", "/n"), 0);
		assert_string_equal(config.stores[0].path, names[i]);
		assert_true(config.stores[0].device && config.stores[0].bytes == 0);
	}
	/* a device is there by that name, without what stands behind the colon */
	assert_int_equal(PARSE(&config, message, "--spill", "/dev/pts/ptmx:abc", "--namespace-dir", "/n"),
		access("/dev/pts/ptmx", F_OK) == 0 ? -EINVAL : 0);
}

static void values_that_make_no_sense_are_refused_with_what_would(void **state)
{
	(void)state;
	refused("pool", "3X", "pool = \"3X\" is not a size, or sizes of nodes: use 64G, or node0=64G,node2=128G");
	refused("pool", "", "is not a size");
	refused("pool", "-1", "node2=128G (1M to 64T)");
	refused("pool", "16E", "node2=128G (1M to 64T)");
	refused("uid-max-transit", "16E", "is not a size: use 4096, 64M, 2G (1M to 64T)");
	refused("pool", "12MM", "is not a size");
	refused("pool", "99999999999999999999", "is not a size");
	refused("pool", "99999999T", "is not a size");
	refused("pool", "4096", "out of range (1M to 64T)");
	refused("slab", "1", "out of range");
	refused("slab", "2G", "is larger than pool");
	refused("spill", "/var/x", "is not DIR:SIZE or DEVICE[:SIZE]: use /var/lib/kvpool:64G");
	refused("spill", ":64G", "is not DIR:SIZE");
	refused("spill", "/var/x:1M", "16M at least");
	refused("max-clients", "0", "out of range (1 to 2048)");
	refused("max-clients", "12x", "is not a number: use decimal digits only (1 to 2048)");
	refused("max-clients", "0x10", "is not a number");
	refused("socket-mode", "0999", "is not an octal number: use 0660 (0 to 777)");
	refused("socket-mode", "1777", "out of range (0 to 777)");
	refused("lock-memory", "maybe", "is not yes or no");
	refused("io", "fast", "auto, uring or threads");
	refused("spill-compress", "lots", "none, zstd or auto");
	refused("spill-compress", "lz4", "none, zstd or auto");
	refused("listen", "/x,uid=65534", "it could be anybody");
	refused("log-level", "loud", "err, warn, info or debug");
	refused("name", "a/b", "letters, digits");
	refused("name", ".hidden", "not starting with a dot");
	refused("socket", "rel/ative", "is a relative path: give an absolute one");
	refused("admin-socket", "rel", "is a relative path");
	refused("listen", "rel", "use /run/kvpool/pod7.sock,uid=2007,mode=0660");
	refused("listen", "/x,uid=", "is not PATH");
	refused("listen", "/x,uid=4294967295", "is not PATH");
	refused("listen", "/x,gid=7", "is not PATH");
	refused("listen", "/x,uid=7,color=3", "is not PATH");
	refused("listen", "/x,mode=01000", "is not PATH");
	refused("listen", "/x,uid=7,uid=8", "is not PATH"); /* which of them? */
	refused("listen", "/x,uid=7,gid=7,gid=8", "is not PATH");
	refused("listen", "/x,mode=0600,mode=0666", "is not PATH");
	refused("spill", "var/x:64M", "spill = \"var/x\" is a relative path: give an absolute one");
	refused("config", "", "config = \"\" is not a name");
}

static void pages_larger_than_the_pool_are_refused_by_the_names_that_were_given(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	assert_int_equal(PARSE(&config, message, "--pages", "1G", "--pool", "64M"), -EINVAL);
	assert_non_null(strstr(message, "pages = 1G: a slab is a page at least, and pool = 64M is less than one"));
	assert_null(strstr(message, "slab ="));
	assert_int_equal(PARSE(&config, message, "--pages", "1G", "--pool", "1G"), 0);
	assert_int_equal(PARSE(&config, message, "--slab", "2G", "--pool", "64M"), -EINVAL);
	assert_non_null(strstr(message, "slab = 2147483648 is larger than pool"));
}

static void a_path_too_long_for_a_unix_address_is_refused_with_both_lengths(void **state)
{
	char path[160], message[256];
	struct config config;

	(void)state;
	memset(path, 'a', sizeof(path));
	path[0] = '/';
	path[108] = 0;
	assert_int_equal(PARSE(&config, message, "--socket", path), -EINVAL);
	assert_non_null(strstr(message, "108 bytes long, at most 107 fit"));
	path[105] = 0; /* with .admin it does not fit any more */
	assert_int_equal(PARSE(&config, message, "--socket", path), -EINVAL);
	assert_non_null(strstr(message, "use a shorter path"));
	assert_int_equal(PARSE(&config, message, "--socket", path, "--admin-socket", "/a"), 0);
}

static void unknown_names_are_refused_with_the_line_and_the_nearest_name(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	config_defaults(&config);
	assert_int_equal(
		config_parse_text(&config, "pool = 2G\n# x\nmax-client = 3\n", "/etc/k.conf", message), -EINVAL);
	assert_string_equal(message, "/etc/k.conf:3: no option \"max-client\"; did you mean \"max-clients\"? "
				     "kvpoold --help lists them");
	assert_int_equal(PARSE(&config, message, "--splil", "x"), -EINVAL);
	assert_non_null(strstr(message, "did you mean --spill"));
	/* cut short and not clear: none is taken for the first that begins so */
	assert_int_equal(PARSE(&config, message, "--s", "/x"), -EINVAL);
	assert_non_null(strstr(message, "unknown option --s; did you mean --socket?"));
	assert_int_equal(PARSE(&config, message, "--uid-max", "7"), -EINVAL);
	assert_non_null(strstr(message, "did you mean --uid-max-"));
	assert_int_equal(PARSE(&config, message, "--POOL", "7"), -EINVAL);
	assert_non_null(strstr(message, "did you mean --pool"));
	assert_int_equal(PARSE(&config, message, "--nosuch", "7"), -EINVAL); /* far from all: none is suggested */
	assert_string_equal(message, "unknown option --nosuch; kvpoold --help lists them");
	assert_int_equal(config_parse_text(&config, "nosuch = 2G\n", "/etc/k.conf", message), -EINVAL);
	assert_string_equal(message, "/etc/k.conf:1: no option \"nosuch\"; kvpoold --help lists them");
	assert_int_equal(PARSE(&config, message, "--pool"), -EINVAL);
	assert_non_null(strstr(message, "--pool needs a value"));
	assert_int_equal(PARSE(&config, message, "8M"), -EINVAL);
	assert_non_null(strstr(message, "\"8M\" is not an option"));
}

static void a_file_that_is_no_list_of_names_is_refused(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	config_defaults(&config);
	assert_int_equal(config_parse_text(&config, "pool = 2G\nwhat is this\n", "c", message), -EINVAL);
	assert_non_null(strstr(message, "c:2: "));
	assert_int_equal(config_parse_text(&config, "config = /other\n", "c", message), -EINVAL);
	assert_non_null(strstr(message, "c:1: config cannot be set in the file itself"));
	assert_int_equal(config_parse_text(&config, "", "c", message), 0);
	assert_int_equal(config_parse_text(&config, "; only\n# comments\n\n", "c", message), 0);
}

static void what_a_file_says_twice_is_refused_with_both_lines(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	config_defaults(&config);
	assert_int_equal(config_parse_text(&config, "pool = 8M\n\nslab = 1M\npool = 16M\n", "c", message), -EINVAL);
	assert_string_equal(message, "c:4: pool is set in line 1 already: leave one of them");
	config_defaults(&config);
	assert_int_equal(config_parse_text(&config, "listen = /a\nlisten = /b\n", "c", message), 0);
	assert_int_equal(config.n_listen, 2);
	/* of flags the last one counts, as everywhere */
	assert_int_equal(PARSE(&config, message, "--pool", "8M", "--pool", "16M"), 0);
	assert_int_equal(config.pool_bytes, 16 * MIB);
}

static void what_is_found_wrong_after_all_is_read_names_its_line_too(void **state)
{
	char path[] = "/tmp/kvpool-test-config-XXXXXX", message[256], want[256];
	int fd = mkstemp(path);
	struct config config;

	(void)state;
	assert_true(fd >= 0);
	assert_true(dprintf(fd, "\npages = 3M\n") > 0);
	close(fd);
	assert_int_equal(PARSE(&config, message, "--config", path), -EINVAL);
	snprintf(want, sizeof(want), "%s:2: pages = \"3M\": 4k, thp, 2M or 1G", path);
	assert_string_equal(message, want);
	/* a flag that wins has no line */
	assert_int_equal(PARSE(&config, message, "--config", path, "--pages", "5k"), -EINVAL);
	assert_string_equal(message, "pages = \"5k\": 4k, thp, 2M or 1G");
	unlink(path);
}

static void a_section_is_refused_and_not_passed_over(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	config_defaults(&config);
	assert_int_equal(config_parse_text(&config, "pool = 8M\n[memory]\n", "c", message), -EINVAL);
	assert_string_equal(message, "c:2: [memory]: there are no sections here: leave that line out");
}

static void blanks_comments_and_line_ends_change_nothing(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	config_defaults(&config);
	assert_int_equal(
		config_parse_text(&config,
			"\xef\xbb\xbf  pool=8M # of eight\r\n\t; all of it\r\n   slab =\t1M\t; small\r\nname = a", "c",
			message),
		0);
	assert_int_equal(config.pool_bytes, 8 * MIB);
	assert_int_equal(config.slab_bytes, MIB);
	assert_string_equal(config.name, "a");
	/* only behind a blank: a path may hold such a character */
	assert_int_equal(config_parse_text(&config, "socket = /run/a#1;2\n", "c", message), 0);
	assert_string_equal(config.socket, "/run/a#1;2");
}

static void a_configuration_that_is_no_regular_file_is_refused(void **state)
{
	char dir[] = "/tmp/kvpool-test-config-XXXXXX", path[64], message[256];
	struct config config;

	(void)state;
	assert_non_null(mkdtemp(dir));
	assert_int_equal(PARSE(&config, message, "--config", dir), -EINVAL);
	assert_non_null(strstr(message, "is a directory: name a regular file"));
	snprintf(path, sizeof(path), "%s/pipe", dir);
	assert_int_equal(mkfifo(path, 0600), 0);
	alarm(10); /* a reload must not wait for a writer */
	assert_int_equal(PARSE(&config, message, "--config", path), -EINVAL);
	alarm(0);
	assert_non_null(strstr(message, "is a pipe or a device"));
	unlink(path);
	rmdir(dir);
}

static void two_sockets_at_one_path_are_refused_by_their_names(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	assert_int_equal(PARSE(&config, message, "--socket", "/a", "--admin-socket", "/a"), -EINVAL);
	assert_string_equal(message, "socket and admin-socket are the same path, /a: give each socket one of its own");
	assert_int_equal(PARSE(&config, message, "--socket", "/a", "--listen", "/a,uid=7"), -EINVAL);
	assert_non_null(strstr(message, "socket and listen are the same path"));
	assert_int_equal(PARSE(&config, message, "--socket", "/a", "--listen", "/a.admin"), -EINVAL);
	assert_non_null(strstr(message, "admin-socket and listen are the same path"));
	assert_int_equal(PARSE(&config, message, "--listen", "/b", "--listen", "/b"), -EINVAL);
	assert_non_null(strstr(message, "listen and listen are the same path"));
}

static void a_reload_takes_limits_and_names_what_has_to_wait(void **state)
{
	struct config now, fresh;
	char message[256];

	(void)state;
	assert_int_equal(PARSE(&now, message, "--pool", "8M", "--listen", "/a", "--group", "a"), 0);
	fresh = now;
	assert_false(config_reload(&now, &fresh, message));
	assert_string_equal(message, "");
	assert_int_equal(PARSE(&fresh, message, "--pool", "16M", "--slab", "1M", "--listen", "/b", "--group", "b",
				 "--io", "threads", "--spill", "/s:64M", "--lock-memory", "yes", "--socket-mode",
				 "0600", "--uid-max-pins", "7", "--uid-max-transit", "1M", "--namespace-max", "2M",
				 "--uid-max-memory", "3M", "--log-level", "debug", "--spill-compress", "none"),
		0);
	assert_true(config_reload(&now, &fresh, message));
	assert_string_equal(message, "socket-mode, listen, group, pool, slab, spill, io, lock-memory");
	assert_int_equal(now.uid_max_pins, 7);
	assert_int_equal(now.uid_max_transit, MIB);
	assert_int_equal(now.namespace_max, 2 * MIB);
	assert_int_equal(now.uid_max_memory, 3 * MIB);
	assert_string_equal(now.log_level, "debug");
	assert_string_equal(now.spill_compress, "none");
	assert_int_equal(now.pool_bytes, 8 * MIB);
	assert_string_equal(now.group, "a");
	assert_int_equal(now.socket_mode, 0666);
}

static void nine_listen_options_are_one_too_many(void **state)
{
	char text[600] = "", message[256];
	struct config config;

	(void)state;
	for (unsigned i = 0; i < 9; i++)
		snprintf(text + strlen(text), sizeof(text) - strlen(text), "listen = /run/%u\n", i);
	config_defaults(&config);
	assert_int_equal(config_parse_text(&config, text, "c", message), -EINVAL);
	assert_non_null(strstr(message, "at most 8 of them"));
}

static void sizes_are_powers_of_1024(void **state)
{
	uint64_t bytes;

	(void)state;
	assert_int_equal(config_parse_size("0", &bytes), 0);
	assert_int_equal(bytes, 0);
	assert_int_equal(config_parse_size("4096", &bytes), 0);
	assert_int_equal(bytes, 4096);
	assert_int_equal(config_parse_size("3k", &bytes), 0);
	assert_int_equal(bytes, 3072);
	assert_int_equal(config_parse_size("3K", &bytes), 0);
	assert_int_equal(bytes, 3072);
	assert_int_equal(config_parse_size("64MiB", &bytes), 0);
	assert_int_equal(bytes, 64 * MIB);
	assert_int_equal(config_parse_size("16T", &bytes), 0);
	assert_int_equal(bytes, 16ull << 40);
	assert_int_equal(config_parse_size("16777215T", &bytes), 0);
	assert_int_equal(config_parse_size("16777216T", &bytes), -EINVAL);
	assert_int_equal(config_parse_size("8m", &bytes), 0);
	assert_int_equal(bytes, 8 * MIB);
	assert_int_equal(config_parse_size("8MB", &bytes), 0);
	assert_int_equal(bytes, 8 * MIB);
	assert_int_equal(config_parse_size("2giB", &bytes), 0);
	assert_int_equal(bytes, 2048 * MIB);
	assert_int_equal(config_parse_size("1Mb", &bytes), -EINVAL);
	assert_int_equal(config_parse_size("1MBB", &bytes), -EINVAL);
	assert_int_equal(config_parse_size("8B", &bytes), -EINVAL);
	assert_int_equal(config_parse_size("8x", &bytes), -EINVAL);
	assert_int_equal(config_parse_size(" 1M", &bytes), -EINVAL);
	assert_int_equal(config_parse_size("1.5G", &bytes), -EINVAL);
}

static void the_usual_slab_divides_the_pool_and_grows_with_it(void **state)
{
	struct config config;
	char message[256];

	(void)state;
	assert_int_equal(PARSE(&config, message, "--pool", "25M"), 0);
	assert_int_equal(config.slab_bytes, 25 * MIB / 13 & ~4095u); /* not under 2M, but for the rest */
	assert_int_equal(PARSE(&config, message, "--pool", "1G"), 0);
	assert_int_equal(config.slab_bytes, 4 * MIB); /* 256, so that as many namespaces have blocks */
	assert_int_equal(PARSE(&config, message, "--pool", "64G"), 0);
	assert_int_equal(config.slab_bytes, 64 * MIB);
	assert_int_equal(PARSE(&config, message, "--pool", "1T"), 0);
	assert_int_equal(config.slab_bytes, 256 * MIB);
	assert_int_equal(PARSE(&config, message, "--pool", "1M"), 0);
	assert_int_equal(config.slab_bytes, 1 * MIB);
}

static void a_pool_is_one_size_or_one_for_each_node(void **state)
{
	static const char *const wrong[] = {
		"node0=", "node=1G", "node0=64G,node0=1G", "node1=64G,2G", "node0=512k", "nodeA=1G", "64G,node0=1G"};
	struct config config;
	char message[256];

	(void)state;
	assert_int_equal(PARSE(&config, message, "--pool", "node0=64G,node12=128G"), 0);
	assert_int_equal(config.n_nodes, 2);
	assert_int_equal(config.nodes[1].id, 12);
	assert_int_equal(config.nodes[1].bytes, 128ull << 30);
	assert_int_equal(config.pool_bytes, 192ull << 30);
	assert_int_equal(PARSE(&config, message, "--pool", "2G"), 0);
	assert_int_equal(config.n_nodes, 0);
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
		assert_int_equal(PARSE(&config, message, "--pool", wrong[i]), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_defaults_fit_each_other),
		cmocka_unit_test(help_tells_each_default_as_it_is),
		cmocka_unit_test(every_option_means_the_same_by_flag_and_by_file),
		cmocka_unit_test(flags_win_over_the_file_wherever_they_stand),
		cmocka_unit_test(what_is_found_wrong_after_all_is_read_names_its_line_too),
		cmocka_unit_test(spill_stores_are_a_list_and_flags_begin_it_anew),
		cmocka_unit_test(several_key_files_are_kept_in_order_and_flags_replace_the_files),
		cmocka_unit_test(a_name_in_dev_is_a_device_its_size_may_be_left_out_and_namespaces_need_a_directory),
		cmocka_unit_test(a_wrong_size_of_a_device_is_refused_and_a_name_with_colons_is_not),
		cmocka_unit_test(values_that_make_no_sense_are_refused_with_what_would),
		cmocka_unit_test(pages_larger_than_the_pool_are_refused_by_the_names_that_were_given),
		cmocka_unit_test(a_path_too_long_for_a_unix_address_is_refused_with_both_lengths),
		cmocka_unit_test(unknown_names_are_refused_with_the_line_and_the_nearest_name),
		cmocka_unit_test(a_file_that_is_no_list_of_names_is_refused),
		cmocka_unit_test(what_a_file_says_twice_is_refused_with_both_lines),
		cmocka_unit_test(a_section_is_refused_and_not_passed_over),
		cmocka_unit_test(blanks_comments_and_line_ends_change_nothing),
		cmocka_unit_test(a_configuration_that_is_no_regular_file_is_refused),
		cmocka_unit_test(two_sockets_at_one_path_are_refused_by_their_names),
		cmocka_unit_test(a_reload_takes_limits_and_names_what_has_to_wait),
		cmocka_unit_test(nine_listen_options_are_one_too_many),
		cmocka_unit_test(sizes_are_powers_of_1024),
		cmocka_unit_test(a_pool_is_one_size_or_one_for_each_node),
		cmocka_unit_test(the_usual_slab_divides_the_pool_and_grows_with_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
