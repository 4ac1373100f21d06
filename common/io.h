/* Reading files without surprises. */
#ifndef TD_COMMON_IO_H
#define TD_COMMON_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* openat, whatever interrupts: file systems of a network may wait, and a signal ends that. */
int td_open_at(int dir, const char *path, int flags, mode_t mode);
/* n bytes at offset `at`, whatever interrupts. Returns how many came: fewer than n where the file ends; -1:
 * errno says why. */
ssize_t td_read_at(int fd, void *dst, size_t n, uint64_t at);

/* Opens a file that an option names, to be read to its end. It is a regular one or /dev/null, or a pipe
 * without a name, as of `<(...)` or `|`: whoever starts us has given that one its writer already. One with a
 * name (mkfifo) may have none for ever, and opening it would wait for one. NULL: *why says what is wrong. */
FILE *td_file_open(const char *path, const char **why);
/* Whether it would have the same to say a second time: a pipe has not. True also where there is none. */
bool td_file_can_be_read_again(const char *path);

#endif
