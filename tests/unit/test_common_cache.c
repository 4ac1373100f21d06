/* Cache files: their paths, their allowed contents, and that a reader never sees a half-written one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cache.h"
#include "held_fixture.h"

static td_error err;

static void test_folder(void **state)
{
  char out[TD_CACHE_PATH_BYTES], base[] = "/tmp/td_cache_XXXXXX", want[64];
  assert_non_null(mkdtemp(base));
  assert_false(td_cache_folder("", out));
  setenv("HOME", base, 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("CACHE_DIRECTORY");
  assert_true(td_cache_folder("auto", out));
  snprintf(want, sizeof want, "%s/.cache/tandem", base);
  assert_string_equal(out, want);
  struct stat made; /* it was made, for its owner alone */
  assert_true(stat(want, &made) == 0 && (made.st_mode & 07777) == 0700);
  assert_int_equal(rmdir(want), 0);
  *strrchr(want, '/') = '\0';
  assert_true(stat(want, &made) == 0 && (made.st_mode & 07777) == 0700);
  assert_int_equal(rmdir(want), 0);
  setenv("XDG_CACHE_HOME", base, 1);
  assert_true(td_cache_folder("auto", out) && strncmp(out, base, strlen(base)) == 0 && rmdir(out) == 0);
  assert_int_equal(rmdir(base), 0);
  setenv("CACHE_DIRECTORY", "/var/cache/tandem-test:/other", 1);
  assert_true(td_cache_folder("auto", out));
  assert_string_equal(out, "/var/cache/tandem-test");
  rmdir(out); /* if the test may write there */
  unsetenv("HOME"), unsetenv("XDG_CACHE_HOME"), unsetenv("CACHE_DIRECTORY");
  assert_false(td_cache_folder("auto", out));
}

static void test_path(void **state)
{
  char out[TD_CACHE_PATH_BYTES], long_name[400];
  assert_true(td_cache_path("/a b", "steps", "Some GPU (80 GB)/../x\n", out));
  assert_string_equal(out, "/a b/steps-Some-GPU--80-GB--..-x-.txt");
  memset(long_name, 'x', sizeof long_name);
  long_name[sizeof long_name - 1] = 0;
  assert_false(td_cache_path("/", "steps", long_name, out));
}

static void test_read_and_write(void **state)
{
  char folder[] = "/tmp/td_cache_XXXXXX", path[TD_CACHE_PATH_BYTES];
  bool found = true;
  td_buf text;
  assert_non_null(mkdtemp(folder));
  assert_true(td_cache_path(folder, "k", "i", path));
  td_buf_init(&text, 8);
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_OK);
  assert_false(found);
  assert_int_equal(td_cache_write(path, "one", 3, &err), TD_OK);
  assert_int_equal(td_cache_write(path, "eight..8", 8, &err), TD_OK);
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_OK);
  assert_true(found && text.len_bytes == 8 && memcmp(text.data, "eight..8", 8) == 0);
  td_buf_clear(&text);
  assert_int_equal(td_cache_write(path, "nine...89", 9, &err), TD_OK);
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_ERR_CONFIG); /* over the cap */
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_ERR_CONFIG); /* and it does not hang */
  assert_int_equal(unlink(path), 0);
  assert_int_equal(td_cache_read(folder, &text, &found, &err), TD_ERR_CONFIG);
  assert_int_equal(rmdir(folder), 0); /* no temporary file remains */
  assert_int_equal(td_cache_write(path, "x", 1, &err), TD_ERR_IO);
  td_buf_deinit(&text);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_folder), cmocka_unit_test(test_path),
                                     cmocka_unit_test(test_read_and_write)};
  umask(0);
  int held = count_descriptors(), failed = cmocka_run_group_tests(tests, NULL, NULL);
  return failed + (count_descriptors() != held);
}
