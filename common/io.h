/* Reading files without surprises. */
#ifndef TD_COMMON_IO_H
#define TD_COMMON_IO_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* openat, whatever interrupts: file systems of a network may wait, and a signal ends that. */
int td_open_at(int dir, const char *path, int flags, mode_t mode);
/* n bytes at offset `at`, whatever interrupts. Returns how many came: fewer than n where the file ends; -1:
 * errno says why. */
ssize_t td_read_at(int fd, void *dst, size_t n, uint64_t at);

#endif
