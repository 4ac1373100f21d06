/* The control groups that this process is in: its own and every group above it. A limit that any of them sets
 * holds for the process, as systemd's MemoryMax= and CPUQuota= do. Version 2 only: cgroups(7).
 * Stateless: any thread. */
#ifndef TD_COMMON_CGROUP_H
#define TD_COMMON_CGROUP_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct td_cgroup {
  char folder[PATH_MAX];
} td_cgroup;

/* The process's own group, as /proc/self/cgroup names it. If that cannot be read, or names a group outside of
 * what is mounted, it is the root. */
void td_cgroup_own(td_cgroup *g);
/* Goes to the group above. False: g is the root. */
bool td_cgroup_up(td_cgroup *g);
/* Opens a file of the group for reading. NULL: it has none of this name. The caller closes it. */
FILE *td_cgroup_open(const td_cgroup *g, const char *name);

#endif
