/* Names of pulled models stay below their folder, and resolve to the files there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/pulled.h"
#include "held_fixture.h"

static char root[] = "/tmp/td_pulled_XXXXXX";

static void make(const char *path, bool folder)
{
  char whole[512];
  snprintf(whole, sizeof whole, "%s/%s", root, path);
  if (folder) {
    assert_int_equal(mkdir(whole, 0700), 0);
    return;
  }
  FILE *f = fopen(whole, "w");
  assert_non_null(f);
  fclose(f);
}

static void is(const char *name, const char *want)
{
  char path[TD_PULLED_PATH_BYTES], whole[512];
  bool found = td_pulled_find(name, path);
  if (!want) {
    assert_false(found);
    return;
  }
  snprintf(whole, sizeof whole, "%s/%s", root, want);
  assert_true(found);
  assert_string_equal(path, whole);
}

static void test_names(void **state)
{
  static const char *const good[] = {"a", "a.gguf", "Org/Name-1.5B_x+y", "a/b/c/d/e/f/g/h", "a..b"},
                           *const bad[] = {"",     "/",   "/a",   "a/",       "a//b",
                                           ".",    "..",  "../a", "a/..",     "a/.b",
                                           ".a",   "-a",  "a/-b", "a b",      "a\\b",
                                           "a\nb", "~/a", "a:b",  "\xc3\xa4", "a/b/c/d/e/f/g/h/i"};
  char long_name[TD_PULLED_NAME_BYTES + 1];
  for (size_t i = 0; i < sizeof good / sizeof *good; i++)
    assert_true(td_pulled_is_name(good[i]));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    assert_false(td_pulled_is_name(bad[i]));
  memset(long_name, 'a', sizeof long_name);
  long_name[TD_PULLED_NAME_BYTES] = '\0';
  assert_false(td_pulled_is_name(long_name));
  long_name[TD_PULLED_NAME_BYTES - 1] = '\0';
  assert_true(td_pulled_is_name(long_name));
}

static void test_parts(void **state)
{
  static const struct {
    const char *file;
    unsigned part;
    size_t n_stem;
  } cases[] = {{"x-00001-of-00002.gguf", 1, 2},
               {"-00003-of-00002.gguf", 0, 0},
               {"00001-of-00002.gguf", 0, 0},
               {"x00001-of-00002.gguf", 0, 0},
               {"x-0000a-of-00002.gguf", 0, 0},
               {"x-0000/-of-00002.gguf", 0, 0},
               {"x-0000:-of-00002.gguf", 0, 0},
               {"x-00001-of-0000a.gguf", 0, 0},
               {"x-00001-to-00002.gguf", 0, 0},
               {"x-00001-of-00002.ggux", 0, 0},
               {"x-00000-of-00002.gguf", 0, 2},
               {"ab-99990-of-09999.gguf", 99990, 3},
               {"x.gguf", 0, 0},
               {"", 0, 0}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    size_t n_stem = 0;
    unsigned part = td_pulled_part(cases[i].file, &n_stem);
    if (part != cases[i].part || n_stem != cases[i].n_stem)
      fail_msg("'%s' is part %u behind %zu bytes", cases[i].file, part, n_stem);
  }
}

static void test_find(void **state)
{
  setenv("TANDEM_MODEL_DIR", root, 1);
  make("org", true), make("org/whole", true), make("org/whole/config.json", false);
  make("org/one", true), make("org/one/x.gguf", false), make("org/one/README.md", false);
  make("org/two", true), make("org/two/x.gguf", false), make("org/two/y.gguf", false);
  make("org/.part", true), make("org/.part/config.json", false);
  make("org/begun", true), make("org/begun/.x.gguf", false);
  make("file.gguf", false);
  make("org/cut", true), make("org/cut/x-00001-of-00002.gguf", false),
      make("org/cut/x-00002-of-00002.gguf", false);
  is("org/whole", "org/whole");
  is("org/one", "org/one/x.gguf");
  is("org/two", NULL); /* which one? */
  is("org/cut", "org/cut/x-00001-of-00002.gguf");
  is("org/two/y", "org/two/y.gguf");
  is("org/two/y.gguf", "org/two/y.gguf");
  is("org/.part", NULL);
  is("org/begun", NULL);
  is("file", "file.gguf");
  is("../tmp", NULL);
  is("org", NULL);
  is("nothing", NULL);
}

static void test_folders(void **state)
{
  char path[TD_PULLED_PATH_BYTES];
  unsetenv("TANDEM_MODEL_DIR");
  setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b", 1);
  setenv("XDG_CACHE_HOME", "/x", 1);
  assert_true(td_pulled_folder(0, path));
  assert_string_equal(path, "/var/lib/a/models");
  size_t n = 1;
  if (geteuid() != 0) {
    assert_true(td_pulled_folder(n++, path));
    assert_string_equal(path, "/x/tandem/models");
  }
  assert_true(td_pulled_folder(n++, path));
  assert_string_equal(path, "/var/lib/tandem/models");
  assert_false(td_pulled_folder(n, path));
  setenv("TANDEM_MODEL_DIR", "relative", 1);
  assert_true(td_pulled_folder(0, path));
  assert_string_equal(path, "relative");
  assert_false(td_pulled_folder(1, path));
}

static int make_root(void **state) { return mkdtemp(root) ? 0 : -1; }

static int remove_root(void **state)
{
  char command[64];
  snprintf(command, sizeof command, "rm -rf %s", root);
  return system(command);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_parts),
                                     cmocka_unit_test(test_find), cmocka_unit_test(test_folders)};
  int held = count_descriptors(), failed = cmocka_run_group_tests(tests, make_root, remove_root);
  return failed + (count_descriptors() != held);
}
