#include "common/cores.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>

#include "common/cgroup.h"

static uint32_t cores_of(long quota, long period)
{
  return quota > 0 && period > 0 ? (uint32_t)((quota + period - 1) / period) : 0;
}

/* Version 1 of cgroups. */
static uint32_t old_quota_cores(void)
{
  long quota = 0, period = 0;
  FILE *q = fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re"),
       *d = fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re");
  if (q && d && (fscanf(q, "%ld", &quota) != 1 || fscanf(d, "%ld", &period) != 1))
    quota = 0;
  if (q)
    fclose(q);
  if (d)
    fclose(d);
  return cores_of(quota, period);
}

/* The cores that the quotas of the process's control groups allow; 0: no limit. */
static uint32_t quota_cores(void)
{
  uint32_t least = 0;
  bool is_new = false;
  td_cgroup g;
  td_cgroup_own(&g);
  do {
    long quota = 0, period = 0;
    FILE *f = td_cgroup_open(&g, "cpu.max");
    is_new |= f != NULL;
    if (f && fscanf(f, "%ld %ld", &quota, &period) != 2) /* "max": no limit */
      quota = 0;
    if (f)
      fclose(f);
    uint32_t n = cores_of(quota, period);
    least = n > 0 && (least == 0 || n < least) ? n : least;
  } while (td_cgroup_up(&g));
  return is_new ? least : old_quota_cores();
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
