#include "common/host_memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/cgroup.h"

/* Reads a number from the first line that matches the format, and closes the file. f NULL: no file. */
static bool read_number(FILE *f, const char *format, uint64_t *out)
{
  char line[256];
  bool found = false;
  while (f && !found && fgets(line, sizeof line, f))
    found = sscanf(line, format, out) == 1;
  if (f)
    fclose(f);
  return found;
}

/* What the group's limit leaves; UINT64_MAX: it has none. The page cache of files, mostly the model's own,
 * can be reclaimed. */
static uint64_t group_left_bytes(const td_cgroup *g)
{
  uint64_t most, used = 0, cached = 0;
  if (!read_number(td_cgroup_open(g, "memory.max"), "%" SCNu64, &most)) /* "max" is no number */
    return UINT64_MAX;
  read_number(td_cgroup_open(g, "memory.current"), "%" SCNu64, &used);
  read_number(td_cgroup_open(g, "memory.stat"), "inactive_file %" SCNu64, &cached);
  used = used > cached ? used - cached : 0;
  return most > used ? most - used : 0;
}

uint64_t td_host_available_bytes(void)
{
  uint64_t kib = 0;
  read_number(fopen("/proc/meminfo", "re"), "MemAvailable: %" SCNu64 " kB", &kib);
  uint64_t bytes = kib * 1024;
  td_cgroup g;
  td_cgroup_own(&g);
  do {
    uint64_t left = group_left_bytes(&g);
    bytes = left < bytes ? left : bytes;
  } while (td_cgroup_up(&g));
  return bytes;
}
