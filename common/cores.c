#include "common/cores.h"

#include <sched.h>
#include <stdio.h>

/* The cores that the cgroup's quota allows (v2 "max period", v1 files); 0: no limit. */
static uint32_t quota_cores(void)
{
  long quota = 0, period = 0;
  FILE *f = fopen("/sys/fs/cgroup/cpu.max", "r");
  if (f) {
    if (fscanf(f, "%ld %ld", &quota, &period) != 2) /* "max": no limit */
      quota = 0;
    fclose(f);
  } else {
    FILE *q = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "r"),
         *d = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "r");
    if (q && d && (fscanf(q, "%ld", &quota) != 1 || fscanf(d, "%ld", &period) != 1))
      quota = 0;
    if (q)
      fclose(q);
    if (d)
      fclose(d);
  }
  return quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

uint32_t td_usable_cores(void)
{
  enum { CPUS_MAX = 4096 };
  uint32_t n = 1;
  cpu_set_t *set = CPU_ALLOC(CPUS_MAX);
  if (set && sched_getaffinity(0, CPU_ALLOC_SIZE(CPUS_MAX), set) == 0)
    n = (uint32_t)CPU_COUNT_S(CPU_ALLOC_SIZE(CPUS_MAX), set);
  if (set)
    CPU_FREE(set);
  uint32_t quota = quota_cores();
  n = quota && quota < n ? quota : n;
  return n ? n : 1;
}
