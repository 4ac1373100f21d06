/* An incomplete file, with another process that gives it its name between open and lock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "pull/part.h"

static const char *from, *to; /* what the other process renames before this process has the lock */

int __wrap_flock(int fd, int how);
int __wrap_flock(int fd, int how)
{
  if (from)
    assert_int_equal(rename(from, to), 0);
  from = NULL;
  return 0;
}

static void test_it_was_just_fetched(void **state)
{
  char folder[] = "/tmp/td_part_XXXXXX", path[64], begun[64];
  td_part p;
  td_error err;
  assert_non_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/x", folder);
  snprintf(begun, sizeof begun, "%s/.x.part", folder);

  assert_int_equal(td_part_open(&p, path, "http://h/x", "", &err), TD_OK);
  assert_int_equal(td_part_add(&p, "whole", 5, &err), TD_OK);
  td_part_close(&p, true);
  from = begun, to = path;
  assert_int_equal(td_part_open(&p, path, "http://h/x", "", &err), TD_ERR_IO);
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
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_it_was_just_fetched)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
