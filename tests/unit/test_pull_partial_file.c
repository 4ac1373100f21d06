/* An incomplete file: another process gives it its name between open and lock; and what is synced when it
 * gets its name. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "pull/model_folder.h"
#include "pull/partial_file.h"
#include "pull/sync.h"

static const char *from, *to; /* what the other process renames before this process has the lock */

int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
  if (from)
    assert_int_equal(rename(from, to), 0);
  from = NULL;
  return 0;
}

/* ---- what is synced ---- */

static char done[256];      /* each rename, and each file or folder that was synced, in order */
static const char *failing; /* syncing this path fails */
static int failure;

int __real_rename(const char *a, const char *b);
int __wrap_rename(const char *a, const char *b);
int __wrap_rename(const char *a, const char *b)
{
  strcat(done, "rename ");
  return __real_rename(a, b);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
  char link[64], path[128];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  assert_true(n > 0);
  path[n] = '\0';
  snprintf(done + strlen(done), sizeof done - strlen(done), "%s ", strrchr(path, '/') + 1);
  if (!failing || strcmp(path, failing) != 0)
    return __real_fsync(fd);
  errno = failure;
  return -1;
}

static td_status fetch(const char *path, td_error *err)
{
  td_partial_file p;
  assert_int_equal(td_partial_file_open(&p, path, "http://h/x", "", err), TD_OK);
  assert_int_equal(td_partial_file_append(&p, "whole", 5, err), TD_OK);
  done[0] = '\0';
  td_status st = td_partial_file_finish(&p, path, err);
  td_partial_file_close(&p, true);
  return st;
}

/* The file is synced before it has its name, and its folder afterwards. */
static void test_a_name_is_synced(void **state)
{
  char folder[] = "/tmp/td_part_XXXXXX", path[64], want[64];
  td_error err;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x", folder);
  snprintf(want, sizeof want, ".x.part rename %s ", folder + strlen("/tmp/"));

  assert_int_equal(fetch(path, &err), TD_OK);
  assert_string_equal(done, want);
  failing = folder, failure = EIO;
  assert_int_equal(fetch(path, &err), TD_ERR_IO);
  assert_memory_equal(err.message, folder, strlen(folder));
  assert_non_null(strstr(err.message, strerror(EIO)));
  failure = EINVAL; /* a file system that syncs no folders */
  assert_int_equal(fetch(path, &err), TD_OK);
  failing = NULL;

  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* A folder is renamed in the same way. A path without a slash is in the current folder. */
static void test_a_folder_is_synced(void **state)
{
  char folder[] = "/tmp/td_part_XXXXXX", here[128], want[64];
  td_error err;
  assert_non_null(mkdtemp(folder));
  assert_non_null(getcwd(here, sizeof here));
  snprintf(want, sizeof want, "rename %s ", folder + strlen("/tmp/"));
  assert_int_equal(chdir(folder), 0);

  assert_int_equal(mkdir(".m.part", 0755), 0);
  done[0] = '\0';
  assert_int_equal(td_sync_rename(".m.part", "m", &err), TD_OK);
  assert_string_equal(done, want);
  assert_int_equal(td_sync_rename(".m.part", "m", &err), TD_ERR_IO);
  assert_int_equal(memcmp(err.message, "m: ", 3), 0);

  assert_int_equal(rmdir("m"), 0);
  assert_int_equal(chdir(here), 0);
  assert_int_equal(rmdir(folder), 0);
}

/* Each new folder above a model is synced into the one that holds it. Those that are there already are not.
 */
static void test_new_folders_are_synced(void **state)
{
  char folder[] = "/tmp/td_part_XXXXXX", path[TD_PULLED_PATH_BYTES], owner[64], want[64];
  td_error err;
  assert_non_null(mkdtemp(folder));
  snprintf(owner, sizeof owner, "%s/owner", folder);
  snprintf(want, sizeof want, "%s ", folder + strlen("/tmp/"));

  failing = folder, failure = EIO;
  assert_int_equal(td_model_folder_make_path(folder, "owner/model", path, &err), TD_ERR_IO);
  assert_memory_equal(err.message, folder, strlen(folder));
  failing = NULL;
  assert_int_equal(rmdir(owner), 0);
  done[0] = '\0';
  assert_int_equal(td_model_folder_make_path(folder, "owner/model", path, &err), TD_OK);
  assert_string_equal(done, want);
  assert_int_equal(td_model_folder_make_path(folder, "owner/model", path, &err), TD_OK);
  assert_string_equal(done, want);

  assert_int_equal(rmdir(owner), 0);
  assert_int_equal(rmdir(folder), 0);
}

static void test_it_was_just_fetched(void **state)
{
  char folder[] = "/tmp/td_part_XXXXXX", path[64], begun[64];
  td_partial_file p;
  td_error err;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x", folder);
  snprintf(begun, sizeof begun, "%s/.x.part", folder);

  assert_int_equal(td_partial_file_open(&p, path, "http://h/x", "", &err), TD_OK);
  assert_int_equal(td_partial_file_append(&p, "whole", 5, &err), TD_OK);
  td_partial_file_close(&p, true);
  from = begun, to = path;
  assert_int_equal(td_partial_file_open(&p, path, "http://h/x", "", &err), TD_ERR_IO);
  assert_non_null(strstr(err.message, "has just fetched it"));
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  assert_int_equal(s.st_size, 5); /* not cut */
  assert_int_equal(access(begun, F_OK), -1);

  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_it_was_just_fetched), cmocka_unit_test(test_a_name_is_synced),
      cmocka_unit_test(test_a_folder_is_synced), cmocka_unit_test(test_new_folders_are_synced)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
