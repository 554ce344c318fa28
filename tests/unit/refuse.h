/*
 * refuse.h - have the kernel refuse system calls, as a container would: a raw seccomp filter in a forked child
 */
#ifndef KVPOOL_TEST_REFUSE_H
#define KVPOOL_TEST_REFUSE_H

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "die_after_fork=0"; /* children here do start threads */
}
#endif

/* From now on this thread and its children get @err from system call @nr. */
static inline void refuse_syscall(int nr, int err)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)nr, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)err),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
		perror("seccomp");
		_exit(99);
	}
}

/* Run @body in a child of its own. Return: its exit status; 128 + signal. */
static inline int in_child(int (*body)(void *arg), void *arg)
{
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0)
		_exit(body(arg));
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return 98;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* For bodies of in_child(): cmocka's asserts belong to the parent. */
#define CHILD_CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: not true in the child: %s\n", __FILE__, __LINE__, #condition); \
			return 1; \
		} \
	} while (0)

#endif
