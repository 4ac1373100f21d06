/* How much memory may still be taken on the host: /proc/meminfo (proc(5)) and the limit of the cgroup (cgroup
 * v2). */
#include "kernels/cpu/host_memory.h"

#include <inttypes.h>
#include <stdio.h>

uint64_t td_host_available_bytes(void)
{
  uint64_t kib = 0, v;
  char line[256];
  FILE *f = fopen("/proc/meminfo", "re");
  if (f) {
    while (fgets(line, sizeof line, f))
      if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &v) == 1)
        kib = v;
    fclose(f);
  }
  uint64_t bytes = kib * 1024, used = 0;
  f = fopen("/sys/fs/cgroup/memory.current", "re");
  if (f) {
    if (fscanf(f, "%" SCNu64, &v) == 1)
      used = v;
    fclose(f);
  }
  f = fopen("/sys/fs/cgroup/memory.max", "re");
  if (f) {
    if (fscanf(f, "%" SCNu64, &v) == 1 && (v > used ? v - used : 0) < bytes)
      bytes = v > used ? v - used : 0;
    fclose(f);
  }
  return bytes;
}
