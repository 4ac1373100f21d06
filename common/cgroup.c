/* The control groups of this process: see cgroup.h. */
#include "common/cgroup.h"

#include <string.h>

#define MOUNT "/sys/fs/cgroup"

void td_cgroup_own(td_cgroup *g)
{
  char line[PATH_MAX];
  strcpy(g->folder, MOUNT);
  FILE *f = fopen("/proc/self/cgroup", "re");
  while (f && fgets(line, sizeof line, f)) {
    char *end = strchr(line, '\n'), *path = line + 3;
    if (!end || strncmp(line, "0::", 3) != 0)
      continue;
    *end = '\0';
    /* "/..": the group is above the root of this process's cgroup namespace */
    if (strcmp(path, "/") != 0 && strncmp(path, "/..", 3) != 0 &&
        strlen(path) < sizeof g->folder - strlen(MOUNT))
      strcat(g->folder, path);
    break;
  }
  if (f)
    fclose(f);
}

bool td_cgroup_up(td_cgroup *g)
{
  char *last = strrchr(g->folder, '/');
  if (strlen(g->folder) <= strlen(MOUNT))
    return false;
  *last = '\0';
  return true;
}

FILE *td_cgroup_open(const td_cgroup *g, const char *name)
{
  char path[PATH_MAX + 64];
  int n = snprintf(path, sizeof path, "%s/%s", g->folder, name);
  return n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
}
