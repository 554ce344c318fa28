/* uring.c - see uring.h */
#include "uring.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Without these the code around would need other paths: timeouts as an argument of the wait, and no lost
   completions. */
#define URING_FEATURES (IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP)

static int uring_sysctl_disabled(void)
{
	FILE *f = fopen("/proc/sys/kernel/io_uring_disabled", "re");
	int value = 0;

	if (!f)
		return 0;
	if (fscanf(f, "%d", &value) != 1)
		value = 0;
	fclose(f);
	return value;
}

void uring_explain(int err, const char *step, char why[URING_WHY_MAX])
{
	int disabled = err == EPERM ? uring_sysctl_disabled() : 0;

	if (disabled)
		snprintf(why, URING_WHY_MAX, "%s refused: kernel.io_uring_disabled=%d; set it to 0 to allow it", step,
			disabled);
	else if (err == EPERM || err == EACCES)
		snprintf(why, URING_WHY_MAX, "%s refused: %s, by a seccomp filter or the container's policy", step,
			strerror(err));
	else if (err == ENOSYS)
		snprintf(why, URING_WHY_MAX, "%s: not in this kernel, or hidden by a seccomp filter", step);
	else if (err == ENOMEM)
		snprintf(why, URING_WHY_MAX, "%s: no memory, or LimitMEMLOCK is too small", step);
	else
		snprintf(why, URING_WHY_MAX, "%s: %s", step, strerror(err));
}

static int uring_setup(struct io_uring *ring, unsigned entries, unsigned cq_entries)
{
	/* COOP_TASKRUN spares interrupts to a thread that enters the kernel all the time anyway; older kernels lack
	   it */
	static const unsigned flags[] = {IORING_SETUP_COOP_TASKRUN, 0};
	int r = -EINVAL;

	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]) && r == -EINVAL; i++) {
		struct io_uring_params params = {
			.flags = IORING_SETUP_CLAMP | IORING_SETUP_CQSIZE | flags[i],
			.cq_entries = cq_entries > 2 * entries ? cq_entries : 2 * entries,
		};

		r = io_uring_queue_init_params(entries, ring, &params);
	}
	return r;
}

static int uring_round_trip(struct io_uring *ring)
{
	struct __kernel_timespec timeout = {.tv_sec = 5};
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int r;

	io_uring_prep_nop(sqe);
	r = io_uring_submit(ring);
	if (r < 0)
		return r;
	do
		r = io_uring_wait_cqe_timeout(ring, &cqe, &timeout);
	while (r == -EINTR);
	if (r < 0)
		return r;
	r = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return r;
}

int uring_open(struct io_uring *ring, unsigned entries, unsigned cq_entries, char why[URING_WHY_MAX])
{
	int r = uring_setup(ring, entries, cq_entries);

	if (r < 0) {
		uring_explain(-r, "io_uring_setup", why);
		return r;
	}
	if ((ring->features & URING_FEATURES) != URING_FEATURES) {
		snprintf(why, URING_WHY_MAX, "io_uring of this kernel is too old (needs Linux 5.11)");
		r = -ENOSYS;
	} else {
		r = uring_round_trip(ring);
		if (r < 0)
			uring_explain(-r, "io_uring_enter", why);
	}
	if (r < 0)
		io_uring_queue_exit(ring);
	return r;
}
