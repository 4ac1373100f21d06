/* Opening and reading files: interruptions, and files that would block. */
#ifndef TD_COMMON_IO_H
#define TD_COMMON_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* openat that continues after EINTR. (An open on a network file system may wait, and a signal interrupts
 * it.) */
int td_open_at(int dir, const char *path, int flags, mode_t mode);
/* Reads n bytes at offset `at`; continues after EINTR. Returns how many it read: fewer than n only at the end
 * of the file. -1: see errno. */
ssize_t td_read_at(int fd, void *dst, size_t n, uint64_t at);

/* Opens a file that an option names, for reading it to the end. It must be a regular file, /dev/null, or an
 * unnamed pipe, as from `<(...)` or `|`: a pipe that the parent process made has its writer already. A named
 * pipe (mkfifo) is refused, because opening it could wait without end for a writer. NULL: *why says what is
 * wrong. */
FILE *td_file_open(const char *path, const char **why);
/* Whether a second read would give the same content. False for a pipe; true also if the file does not
 * exist. */
bool td_file_can_be_read_again(const char *path);

#endif
