/* A temporary cache_dir, for tests of what is kept there. */
#ifndef TD_TESTS_CACHE_FOLDER_FIXTURE_H
#define TD_TESTS_CACHE_FOLDER_FIXTURE_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/td_cache_XXXXXX";
static char path[512]; /* of a file in it; "": none */

/* Finds the files in it. Returns their number; path is the last one's. */
static inline uint32_t find_files(void)
{
  uint32_t n = 0;
  DIR *dir = opendir(folder);
  *path = '\0';
  for (struct dirent *f; (f = readdir(dir));)
    if (f->d_name[0] != '.') {
      snprintf(path, sizeof path, "%s/%s", folder, f->d_name);
      n++;
    }
  closedir(dir);
  return n;
}

static inline void empty_folder(void)
{
  while (find_files() > 0)
    unlink(path);
}

/* For cmocka_run_group_tests. */
static inline int make_folder(void **state) { return mkdtemp(folder) ? 0 : -1; }

static inline int remove_folder(void **state)
{
  empty_folder();
  return rmdir(folder);
}

#endif
