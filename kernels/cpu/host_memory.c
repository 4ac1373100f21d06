/* Finds how much host memory is still available, from /proc/meminfo (proc(5)) and the limit of the cgroup
 * (cgroup v2). */
#include "kernels/cpu/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

/* Reads a number from the first line that matches the format. */
static bool read_number(const char *path, const char *format, uint64_t *out)
{
  char line[256];
  bool found = false;
  FILE *f = fopen(path, "re");
  while (f && !found && fgets(line, sizeof line, f))
    found = sscanf(line, format, out) == 1;
  if (f)
    fclose(f);
  return found;
}

uint64_t td_host_available_bytes(void)
{
  uint64_t kib = 0, used = 0, cached = 0, most;
  read_number("/proc/meminfo", "MemAvailable: %" SCNu64 " kB", &kib);
  uint64_t bytes = kib * 1024;
  if (!read_number("/sys/fs/cgroup/memory.max", "%" SCNu64, &most))
    return bytes;
  read_number("/sys/fs/cgroup/memory.current", "%" SCNu64, &used);
  /* the page cache of files, mostly the model's own, can be reclaimed */
  read_number("/sys/fs/cgroup/memory.stat", "inactive_file %" SCNu64, &cached);
  used = used > cached ? used - cached : 0;
  uint64_t left = most > used ? most - used : 0;
  return left < bytes ? left : bytes;
}
