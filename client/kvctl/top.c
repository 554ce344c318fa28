/*
 * top.c - kvctl top: the pool live on a terminal
 *
 * Reads shared memory only and asks the daemon nothing, so it shows a hung or dead one too.  What is drawn is
 * top_frame.c's.  The terminal is given back on every way out: signals only set a flag, and a terminal that has gone
 * ends the loop.
 */
#define _GNU_SOURCE 1
#include <curses.h>
#include <errno.h>
#include <locale.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kvctl.h"
#include "option.h"
#include "quantity.h"
#include "report.h"
#include "top_frame.h"

#define TEXT_ROWS 48u /* without a terminal */
#define KEY_ESCAPE 27
#define RATE_NS 2000000000ull

static volatile sig_atomic_t ended;

static void top_end(int number)
{
	ended = number;
}

/* ---- looking ---- */

/* The last thing said on stderr, which lies in a memory file while the screen is ours. */
static void trouble_take(char text[256], int said_fd)
{
	char said[1024];
	ssize_t n = said_fd < 0 ? 0 : pread(said_fd, said, sizeof(said) - 1, 0);
	char *line;

	said[n > 0 ? n : 0] = 0;
	line = strrchr(said, '\n');
	if (line)
		*line = 0;
	line = strrchr(said, '\n');
	text_clean(text, 256, line ? line + 1 : said, sizeof(said));
	if (said_fd >= 0 && (ftruncate(said_fd, 0) < 0 || lseek(said_fd, 0, SEEK_SET) < 0))
		text[0] = 0;
}

static void data_free(struct top_data *data)
{
	if (data->found)
		snapshot_free(&data->now);
	if (data->has_before)
		snapshot_free(&data->before);
	if (data->has_middle)
		snapshot_free(&data->middle);
	data->found = data->has_before = data->has_middle = false;
}

/* Clients tell their counts about once a second: rates are of the last RATE_NS to twice that, or they would flicker. */
static void data_move_on(struct top_data *data, uint64_t now)
{
	if (!data->has_middle) {
		data->middle = data->now;
		data->middle_ns = data->now_ns;
		data->has_middle = true;
		return;
	}
	if (now - data->middle_ns < RATE_NS) {
		snapshot_free(&data->now);
		return;
	}
	if (data->has_before)
		snapshot_free(&data->before);
	data->before = data->middle;
	data->before_ns = data->middle_ns;
	data->has_before = true;
	data->middle = data->now;
	data->middle_ns = data->now_ns;
}

/* Return: 0; exit code. What was seen before stays. */
static int top_look(struct top_data *data, const struct options *options)
{
	struct snapshot fresh;
	struct pool pool;
	uint64_t now = now_ns();
	int r = pool_find(&pool, options->socket, options->name);

	if (!r)
		r = snapshot_take(&fresh, &pool, false);
	if (r)
		return r;
	if (data->found && memcmp(pool.header.uuid, data->pool.header.uuid, 16) != 0)
		data_free(data); /* another pool */
	if (data->found)
		data_move_on(data, now);
	data->now = fresh;
	data->now_ns = now;
	data->pool = pool;
	data->found = true;
	data->seconds = (double)(now - data->before_ns) / 1e9 + 1e-9;
	return 0;
}

/* ---- without a terminal ---- */

static int top_text(struct top_data *data, const struct options *options)
{
	struct top_wish wish = {.curve = true};
	struct top_frame frame;
	int r = top_look(data, options);

	if (r)
		return r;
	if (top_frame_make(&frame, TEXT_ROWS, REPORT_WIDTH, data, &wish) < 0) {
		complain("out of memory for %u lines", TEXT_ROWS);
		return KVCTL_FAILED;
	}
	for (unsigned row = 0, blank = 0; row + 1 < frame.rows; row++) {
		char *text = frame.text + (size_t)row * (frame.columns + 1);
		size_t n = strlen(text);

		while (n && text[n - 1] == ' ')
			text[--n] = 0;
		blank += !n;
		for (; n && blank; blank--) /* none at the end */
			printf("\n");
		if (n)
			printf("%s\n", text);
	}
	top_frame_free(&frame);
	return report_exit(&data->pool);
}

/* ---- on one ---- */

static void screen_colours(void)
{
	static const short colours[] = {
		[TOP_HELD] = COLOR_BLUE,
		[TOP_COMING] = COLOR_MAGENTA,
		[TOP_MEMORY] = COLOR_GREEN,
		[TOP_DISK] = COLOR_YELLOW,
		[TOP_WRONG] = COLOR_RED,
	};

	if (!has_colors() || start_color() == ERR)
		return;
	use_default_colors();
	for (int i = TOP_HELD; i <= TOP_WRONG; i++)
		init_pair((short)i, colours[i], -1);
}

static attr_t screen_attribute(unsigned char look)
{
	switch (look) {
	case TOP_PLAIN:
		return A_NORMAL;
	case TOP_STRONG:
		return A_BOLD;
	case TOP_HEAD:
		return A_REVERSE;
	case TOP_CHOSEN:
		return A_BOLD | A_UNDERLINE;
	case TOP_WRONG:
		return A_BOLD | (attr_t)COLOR_PAIR(TOP_WRONG);
	default:
		return (attr_t)COLOR_PAIR(look);
	}
}

static void screen_draw(const struct top_data *data, struct top_wish *wish)
{
	struct top_frame frame;

	if (LINES < 1 || COLS < 1 || top_frame_make(&frame, (unsigned)LINES, (unsigned)COLS, data, wish) < 0)
		return;
	erase();
	for (unsigned row = 0; row < frame.rows; row++)
		for (unsigned column = 0; column < frame.columns; column++)
			mvaddch((int)row, (int)column,
				(chtype)(unsigned char)frame.text[(size_t)row * (frame.columns + 1) + column] |
					screen_attribute(frame.looks[(size_t)row * frame.columns + column]));
	refresh();
	top_frame_free(&frame);
}

/* Return: false: quit. */
static bool top_key(int key, const struct top_data *data, struct top_wish *wish)
{
	switch (key) {
	case 'q':
		return false;
	case 'p':
	case ' ':
		wish->paused = !wish->paused;
		break;
	case 's':
		wish->sort = (wish->sort + 1) % TOP_SORTS;
		break;
	case 'c':
		wish->curve = !wish->curve;
		break;
	case '?':
	case 'h':
		wish->help = !wish->help;
		break;
	case '\t':
		wish->clients = !wish->clients;
		wish->chosen = 0;
		break;
	case KEY_UP:
	case 'k':
		wish->chosen -= wish->chosen > 0;
		break;
	case KEY_DOWN:
	case 'j':
		wish->chosen++; /* put inside when drawn */
		break;
	case '\r':
	case '\n':
	case KEY_ENTER:
		wish->inside = data->found && !wish->inside ? top_frame_chosen(data, wish) : 0;
		wish->chosen = 0;
		break;
	case KEY_ESCAPE:
		wish->inside = 0;
		wish->help = false;
		break;
	}
	return true;
}

/* Wait for keys until @until_ns. Return: false: quit. */
static bool top_wait(const struct top_data *data, struct top_wish *wish, uint64_t until_ns, const sigset_t *mask)
{
	for (;;) {
		struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
		uint64_t now = now_ns();
		struct timespec left = {0};
		int key;

		if (now < until_ns) {
			left.tv_sec = (time_t)((until_ns - now) / 1000000000);
			left.tv_nsec = (long)((until_ns - now) % 1000000000);
		}
		if (ppoll(&input, 1, &left, mask) > 0 && !(input.revents & POLLIN))
			return false; /* the terminal has gone */
		if (ended)
			return false;
		while ((key = getch()) != ERR) {
			if (!top_key(key, data, wish))
				return false;
			screen_draw(data, wish);
		}
		if (input.revents & POLLHUP)
			return false;
		if (now >= until_ns)
			return true;
	}
}

static void top_live(
	struct top_data *data, const struct options *options, uint64_t every_ns, int said_fd, const sigset_t *mask)
{
	struct top_wish wish = {0};

	screen_colours();
	noecho();
	cbreak();
	keypad(stdscr, TRUE);
	nodelay(stdscr, TRUE);
	set_escdelay(25);
	curs_set(0);
	do {
		if (!wish.paused) {
			data->trouble[0] = 0;
			if (top_look(data, options)) {
				trouble_take(data->trouble, said_fd);
				if (data->found)
					pool_look(&data->pool); /* how old what is shown is */
			}
		}
		screen_draw(data, &wish);
	} while (top_wait(data, &wish, now_ns() + every_ns, mask));
}

static int top_screen(struct top_data *data, const struct options *options, uint64_t every_ns)
{
	const int numbers[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
	struct sigaction action = {.sa_handler = top_end};
	int said_fd, stderr_fd = dup(STDERR_FILENO);
	sigset_t wanted, before;
	SCREEN *screen;

	setlocale(LC_CTYPE, "");
	screen = newterm(NULL, stdout, stdin);
	if (!screen) {
		complain("top: the terminal %s is not known here: set TERM, or use --once",
			getenv("TERM") ? getenv("TERM") : "(TERM is not set)");
		close(stderr_fd);
		return KVCTL_FAILED;
	}
	/* these come only while it waits: none is overlooked */
	sigemptyset(&wanted);
	for (unsigned i = 0; i < 4; i++) {
		sigaddset(&wanted, numbers[i]);
		sigaction(numbers[i], &action, NULL);
	}
	sigprocmask(SIG_BLOCK, &wanted, &before);
	said_fd = memfd_create("kvctl-top", MFD_CLOEXEC);
	if (said_fd >= 0)
		dup2(said_fd, STDERR_FILENO);
	top_live(data, options, every_ns, said_fd, &before);
	endwin();
	delscreen(screen);
	if (stderr_fd >= 0)
		dup2(stderr_fd, STDERR_FILENO);
	close(stderr_fd);
	close(said_fd);
	return KVCTL_DONE;
}

int top_command(int argc, char **argv)
{
	static const struct option longs[] = {
		OPTION_POOL, {"once", no_argument, NULL, 'o'}, {"every", required_argument, NULL, 'e'}, OPTION_LAST};
	struct options options = {.command = "top", .longs = longs, .argc = argc, .argv = argv};
	uint64_t every_ns = 1000000000;
	struct top_data data = {0};
	bool once = false;
	int c, r;

	while ((c = option_next(&options)) >= 0) {
		if (c == 'o') {
			once = true;
		} else if (quantity_parse_seconds(optarg, &every_ns) < 0 || every_ns < 100000000) {
			c = option_wrong(&options, "--every", optarg, "a number of seconds, 0.1 at least");
			break;
		}
	}
	if (c != OPTION_END)
		return option_exit(c);
	if (once || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO))
		r = output_end(top_text(&data, &options));
	else
		r = top_screen(&data, &options, every_ns);
	data_free(&data);
	return r;
}
