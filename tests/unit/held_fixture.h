/* The resources that this process holds: descriptors, so that a test can check for leaks. */
#ifndef TD_TESTS_HELD_FIXTURE_H
#define TD_TESTS_HELD_FIXTURE_H

#include <dirent.h>
#include <stdlib.h>

static inline int count_descriptors(void)
{
  int n = 0;
  DIR *d = opendir("/proc/self/fd");
  for (const struct dirent *e; d && (e = readdir(d)) != NULL;)
    n += e->d_name[0] != '.' && atoi(e->d_name) != dirfd(d);
  if (d)
    closedir(d);
  return n;
}

#endif
