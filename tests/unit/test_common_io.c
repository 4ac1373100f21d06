/* Files and the kernel's answers: interrupted calls are repeated, short reads are joined, errors are
 * reported. Also what a cgroup says about cores. */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cache.h"
#include "common/cores.h"
#include "common/hash.h"
#include "common/host_memory.h"
#include "common/io.h"
#include "common/status.h"

/* ---- faults: the next n calls fail in this way; parts have at most this many bytes ---- */

static int n_faults, fault_errno;
static bool fail_read, fail_write, fail_sync,
    fail_rename; /* if none is set: opening fails, and positioned reads fail */
static size_t piece = SIZE_MAX;
static int opened_with; /* flags */

static bool faulty(bool here)
{
  if (!here || n_faults == 0)
    return false;
  n_faults--;
  errno = fault_errno;
  return true;
}

static bool none_else(void) { return !fail_read && !fail_write && !fail_sync && !fail_rename; }

static size_t part_of(size_t n) { return n < piece ? n : piece; }

int __real_openat(int dir, const char *path, int flags, mode_t mode);
int __wrap_openat(int dir, const char *path, int flags, mode_t mode);
int __wrap_openat(int dir, const char *path, int flags, mode_t mode)
{
  opened_with = flags;
  return faulty(none_else()) ? -1 : __real_openat(dir, path, flags, mode);
}

ssize_t __real_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *p, size_t n, off_t at)
{
  return faulty(none_else()) ? -1 : __real_pread(fd, p, part_of(n), at);
}

ssize_t __real_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n);
ssize_t __wrap_read(int fd, void *p, size_t n)
{
  return faulty(fail_read) ? -1 : __real_read(fd, p, part_of(n));
}

ssize_t __real_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n);
ssize_t __wrap_write(int fd, const void *p, size_t n)
{
  return faulty(fail_write) ? -1 : __real_write(fd, p, part_of(n));
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) { return faulty(fail_sync) ? -1 : __real_fsync(fd); }

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
  return faulty(fail_rename) ? -1 : __real_rename(from, to);
}

/* ---- reading ---- */

static void test_read_at(void **state)
{
  char name[] = "/tmp/td_io_XXXXXX", got[11];
  int made = mkstemp(name);
  assert_true(made >= 0 && __real_write(made, "0123456789", 10) == 10);
  close(made);
  n_faults = 3, fault_errno = EINTR;
  int fd = td_open_at(AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
  assert_true(fd >= 0 && n_faults == 0);
  n_faults = 1, fault_errno = EMFILE;
  assert_int_equal(td_open_at(AT_FDCWD, name, O_RDONLY, 0), -1);
  assert_true(errno == EMFILE && n_faults == 0);
  for (piece = 1; piece < 12; piece++) {
    memset(got, 'x', sizeof got);
    n_faults = 2, fault_errno = EINTR;
    assert_int_equal(td_read_at(fd, got, 10, 0), 10);
    assert_memory_equal(got, "0123456789x", 11);
    assert_int_equal(td_read_at(fd, got, 4, 3), 4);
    assert_memory_equal(got, "3456", 4);
    assert_int_equal(td_read_at(fd, got, 10, 7), 3); /* the file ends */
    assert_memory_equal(got, "789", 3);
    assert_int_equal(td_read_at(fd, got, 1, 10), 0);
  }
  piece = SIZE_MAX;
  n_faults = 1, fault_errno = EIO;
  assert_int_equal(td_read_at(fd, got, 10, 0), -1);
  assert_int_equal(errno, EIO);
  close(fd);
  assert_int_equal(unlink(name), 0);
}

/* A refusal does not wait: neither for a FIFO, which has no writer here, nor for a pipe of ours, whose writer
 * exists. */
static void test_files_of_options(void **state)
{
  char folder[] = "/tmp/td_io_XXXXXX", path[64], pipe_path[32], got[16];
  const char *why;
  int fds[2];
  FILE *f;
  assert_non_null(mkdtemp(folder));
  assert_null(td_file_open(folder, &why));
  assert_string_equal(why, strerror(EISDIR));
  snprintf(path, sizeof path, "%s/f", folder);
  assert_null(td_file_open(path, &why));
  assert_string_equal(why, strerror(ENOENT));
  assert_true(td_file_can_be_read_again(path));
  assert_int_equal(mkfifo(path, 0600), 0);
  assert_null(td_file_open(path, &why));
  assert_non_null(strstr(why, "FIFO"));
  assert_false(td_file_can_be_read_again(path));
  assert_int_equal(unlink(path), 0);
  int fd = open(path, O_CREAT | O_WRONLY, 0600);
  assert_true(fd >= 0 && __real_write(fd, "text", 4) == 4 && close(fd) == 0);
  for (int i = 0; i < 2; i++) {
    assert_true(td_file_can_be_read_again(path));
    assert_non_null(f = td_file_open(path, &why));
    assert_true(fread(got, 1, sizeof got, f) == 4 && memcmp(got, "text", 4) == 0 && feof(f));
    assert_int_equal(fclose(f), 0);
  }
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
  assert_null(td_file_open("/dev/zero", &why));
  assert_string_equal(why, "it is no regular file");
  assert_true(td_file_can_be_read_again("/dev/null"));
  assert_non_null(f = td_file_open("/dev/null", &why));
  assert_true(getc(f) == EOF && feof(f));
  assert_int_equal(fclose(f), 0);

  assert_int_equal(pipe(fds), 0);
  snprintf(pipe_path, sizeof pipe_path, "/dev/fd/%d", fds[0]);
  assert_false(td_file_can_be_read_again(pipe_path));
  assert_non_null(f = td_file_open(pipe_path, &why));
  pid_t child = fork();
  if (child == 0) { /* it writes before or after the read has begun; the reader waits */
    usleep(20000);
    _exit(__real_write(fds[1], "later", 5) != 5);
  }
  close(fds[1]);
  assert_true(fread(got, 1, sizeof got, f) == 5 && memcmp(got, "later", 5) == 0 && feof(f));
  assert_int_equal(fclose(f), 0);
  close(fds[0]);
  assert_int_equal(waitpid(child, NULL, 0), child);
}

/* ---- cache files ---- */

static void test_cache(void **state)
{
  char folder[] = "/tmp/td_io_XXXXXX", path[TD_CACHE_PATH_BYTES];
  td_buf text;
  bool found;
  td_error err;
  assert_non_null(mkdtemp(folder));
  assert_true(td_cache_path(folder, "k", "i", path));
  td_buf_init(&text, 0);
  piece = 3;
  fail_write = true;
  n_faults = 2, fault_errno = EINTR;
  assert_int_equal(td_cache_write(path, "0123456789", 10, &err), TD_OK);
  assert_int_equal(opened_with, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC);
  assert_int_equal(n_faults, 0);
  fail_write = false;
  fail_read = true;
  n_faults = 2;
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_OK);
  assert_true(n_faults == 0 && found && text.len_bytes == 10 && memcmp(text.data, "0123456789", 10) == 0);
  n_faults = 1, fault_errno = EIO;
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_ERR_IO);
  assert_string_equal(err.message, strerror(EIO));
  fail_read = false;
  n_faults = 1, fault_errno = EACCES; /* opening */
  assert_int_equal(td_cache_read(path, &text, &found, &err), TD_ERR_IO);
  assert_true(found);
  bool *const steps[] = {&fail_write, &fail_sync, &fail_rename};
  for (int i = 0; i < 3; i++) { /* the old file stays, and no other */
    *steps[i] = true;
    n_faults = 1, fault_errno = ENOSPC;
    assert_int_equal(td_cache_write(path, "new", 3, &err), TD_ERR_IO);
    *steps[i] = false;
    assert_int_equal(n_faults, 0);
    assert_non_null(strstr(err.message, strerror(ENOSPC)));
    assert_true(strncmp(err.message, path, strlen(path)) == 0);
    td_buf_clear(&text);
    assert_int_equal(td_cache_read(path, &text, &found, &err), TD_OK);
    assert_int_equal(text.len_bytes, 10);
  }
  piece = SIZE_MAX;
  struct stat st;
  assert_true(stat(path, &st) == 0 && (st.st_mode & 0777 & ~0644u) == 0);
  assert_int_equal(unlink(path), 0);
  assert_int_equal(rmdir(folder), 0);
  td_buf_deinit(&text);
}

/* Names of the very length that a path, and a file's name, may have. */
static void test_cache_path_lengths(void **state)
{
  static char folder[TD_CACHE_PATH_BYTES + 10], name[400];
  char out[TD_CACHE_PATH_BYTES];
  memset(name, 'n', sizeof name);
  name[255 - strlen("k-.txt")] = '\0';
  assert_true(td_cache_path("/f", "k", name, out));
  assert_int_equal(strlen(out), 3 + 255);
  strcat(name, "n");
  assert_false(td_cache_path("/f", "k", name, out));
  for (size_t n = TD_CACHE_PATH_BYTES - 12; n < TD_CACHE_PATH_BYTES + 4; n++) {
    memset(folder, 'f', sizeof folder);
    folder[n] = '\0';
    assert_int_equal(td_cache_path(folder, "k", "i", out), n + strlen("/k-i.txt") < TD_CACHE_PATH_BYTES);
    assert_int_equal(td_cache_folder(folder, out), n < TD_CACHE_PATH_BYTES);
  }
  assert_true(td_cache_path("", "aZ09.", "@[`{/:az", out));
  assert_string_equal(out, "/aZ09.-------az.txt");
}

/* ---- cores ---- */

static const char *cpu_max, *cfs_quota, *cfs_period; /* contents of the files; NULL: no such file */
static const char *const *files;                     /* other files: path, text, path, text, ..., NULL */

FILE *__real_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode);
FILE *__wrap_fopen(const char *path, const char *mode)
{
  const char *text = strcmp(path, "/sys/fs/cgroup/cpu.max") == 0                 ? cpu_max
                     : strcmp(path, "/sys/fs/cgroup/cpu/cpu.cfs_quota_us") == 0  ? cfs_quota
                     : strcmp(path, "/sys/fs/cgroup/cpu/cpu.cfs_period_us") == 0 ? cfs_period
                                                                                 : NULL;
  for (size_t i = 0; files && files[i]; i += 2)
    text = strcmp(path, files[i]) == 0 ? files[i + 1] : text;
  return text ? fmemopen((void *)(uintptr_t)text, strlen(text), mode) : NULL;
}

static void test_cores(void **state)
{
  static const struct {
    const char *max, *quota, *period;
    uint32_t cores; /* that the quota allows; 0: all */
  } cases[] = {{NULL, NULL, NULL, 0},
               {"max 100000\n", NULL, NULL, 0},
               {"100000 100000\n", NULL, NULL, 1},
               {"50000 100000\n", NULL, NULL, 1},
               {"100001 100000\n", NULL, NULL, 2},
               {"200000 100000\n", NULL, NULL, 2},
               {"200001 100000\n", NULL, NULL, 3},
               {"0 100000\n", NULL, NULL, 0},
               {"100000 0\n", NULL, NULL, 0},
               {"100000\n", NULL, NULL, 0},
               {NULL, "-1\n", "100000\n", 0},
               {NULL, "150000\n", "100000\n", 2},
               {NULL, "100000\n", "100000\n", 1},
               {NULL, "100000\n", NULL, 0},
               {NULL, NULL, "100000\n", 0},
               {NULL, "x\n", "100000\n", 0},
               {NULL, "100000\n", "x\n", 0},
               {"100000 100000\n", "300000\n", "100000\n", 1}}; /* the newer cgroup version has precedence */
  cpu_set_t all, one;
  assert_int_equal(sched_getaffinity(0, sizeof all, &all), 0);
  uint32_t n = (uint32_t)CPU_COUNT(&all);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    cpu_max = cases[i].max, cfs_quota = cases[i].quota, cfs_period = cases[i].period;
    assert_int_equal(td_usable_cores(), cases[i].cores > 0 && cases[i].cores < n ? cases[i].cores : n);
  }
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE; i++)
    if (CPU_ISSET(i, &all) && CPU_COUNT(&one) == 0)
      CPU_SET(i, &one);
  cpu_max = "max 100000", cfs_quota = cfs_period = NULL;
#define OWN "/proc/self/cgroup", "1:cpu:/x\n0::/system.slice/tandemd.service\n"
#define SLICE "/sys/fs/cgroup/system.slice"
  static const char *const own[] = {OWN, SLICE "/tandemd.service/cpu.max", "50000 100000\n", NULL};
  static const char *const above[] = {
      OWN, SLICE "/tandemd.service/cpu.max", "900000 100000\n", SLICE "/cpu.max", "100000 100000\n", NULL};
  static const char *const outside[] = {"/proc/self/cgroup", "0::/../x\n", "/sys/fs/cgroup/../x/cpu.max",
                                        "100000 100000\n", NULL};
  files = own;
  assert_int_equal(td_usable_cores(), 1);
  files = above;
  assert_int_equal(td_usable_cores(), 1);
  files = outside;
  assert_int_equal(td_usable_cores(), n);
  files = NULL;
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(td_usable_cores(), 1);
  assert_int_equal(sched_setaffinity(0, sizeof all, &all), 0);
}

/* ---- memory ---- */

static uint64_t available_with(const char *const *these)
{
  files = these;
  uint64_t bytes = td_host_available_bytes();
  files = NULL;
  return bytes;
}

/* The minimum of the machine's cores and the limits of each group up to the root. */
static void test_available_memory(void **state)
{
#define MACHINE "/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    4000 kB\n"
  static const char *const none[] = {NULL}, *const machine[] = {MACHINE, NULL};
  static const char *const root[] = {
      MACHINE, "/sys/fs/cgroup/memory.max", "3000000\n", "/sys/fs/cgroup/memory.current", "1000000\n", NULL};
  static const char *const own[] = {MACHINE,
                                    OWN,
                                    SLICE "/tandemd.service/memory.max",
                                    "2000000\n",
                                    SLICE "/tandemd.service/memory.current",
                                    "1500000\n",
                                    SLICE "/tandemd.service/memory.stat",
                                    "anon 5\ninactive_file 200000\n",
                                    SLICE "/memory.max",
                                    "max\n",
                                    NULL};
  static const char *const above[] = {MACHINE,
                                      OWN,
                                      SLICE "/tandemd.service/memory.max",
                                      "2000000\n",
                                      SLICE "/memory.max",
                                      "1000000\n",
                                      SLICE "/memory.current",
                                      "1000001\n",
                                      NULL};
  assert_int_equal(available_with(none), 0);
  assert_int_equal(available_with(machine), 4000 * 1024);
  assert_int_equal(available_with(root), 2000000);
  assert_int_equal(available_with(own), 2000000 - (1500000 - 200000));
  assert_int_equal(available_with(above), 0);
}

/* ---- random numbers ---- */

static bool no_entropy;
static int n_asked;

ssize_t __real_getrandom(void *p, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *p, size_t n, unsigned flags);
ssize_t __wrap_getrandom(void *p, size_t n, unsigned flags)
{
  n_asked++;
  return no_entropy ? -1 : __real_getrandom(p, n, flags);
}

/* No number repeats, with or without the kernel's generator, and the kernel is not called for each. */
static void test_random(void **state)
{
  enum { N = 200 };
  static uint64_t v[2 * N];
  n_asked = 0;
  for (int i = 0; i < N; i++)
    v[i] = td_random_u64();
  assert_in_range(n_asked, 1, N / 8);
  no_entropy = true;
  for (int i = N; i < 2 * N; i++)
    v[i] = td_random_u64();
  no_entropy = false;
  for (int i = 0; i < 2 * N; i++)
    for (int k = 0; k < i; k++)
      assert_true(v[i] != v[k]);
}

/* The same seed and bytes give the same hash, and every byte counts, at all lengths. */
static void test_hash(void **state)
{
  unsigned char bytes[40] = {0};
  uint64_t seen[200];
  size_t n_seen = 0;
  for (size_t n = 0; n <= sizeof bytes; n++)
    seen[n_seen++] = td_hash_bytes(1, bytes, n);
  seen[n_seen++] = td_hash_bytes(2, bytes, 0);
  seen[n_seen++] = td_hash_bytes(2, bytes, 40);
  for (size_t i = 0; i < sizeof bytes; i++) {
    bytes[i] = 1;
    seen[n_seen++] = td_hash_bytes(1, bytes, sizeof bytes);
    if (i + 1 < sizeof bytes) /* the rest does not count */
      assert_true(td_hash_bytes(1, bytes, i) == seen[i]);
    bytes[i] = 0;
  }
  for (size_t i = 0; i < n_seen; i++)
    for (size_t k = 0; k < i; k++)
      assert_true(seen[i] != seen[k]);
}

/* ---- the end of the road ---- */

/* What td_bug writes to stderr, if that is a pipe that is full and not read, or empty. */
static void die_of_a_bug(bool full, char *text, size_t size)
{
  int fds[2], status;
  assert_int_equal(pipe(fds), 0);
  pid_t child = fork();
  if (child == 0) {
    char page[4096] = {0};
    assert_int_equal(fcntl(fds[1], F_SETFL, O_NONBLOCK), 0);
    while (full && __real_write(fds[1], page, sizeof page) > 0)
      ;
    assert_int_equal(fcntl(fds[1], F_SETFL, 0), 0);
    dup2(fds[1], STDERR_FILENO);
    signal(SIGABRT, SIG_DFL); /* not cmocka's */
    alarm(20);                /* ends the process if it hangs */
    td_bug("a.c", 7, "x > 0");
    _exit(0);
  }
  close(fds[1]);
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status));
  assert_int_equal(WTERMSIG(status), SIGABRT);
  ssize_t n = __real_read(fds[0], text, size - 1);
  assert_true(n > 0);
  text[n] = '\0';
  close(fds[0]);
}

static void test_bug(void **state)
{
  static const char line[] = " error bug: a.c:7: x > 0\n";
  char text[200];
  die_of_a_bug(false, text, sizeof text);
  assert_true(strlen(text) > strlen(line));
  assert_string_equal(text + strlen(text) - strlen(line), line);
  die_of_a_bug(true, text, sizeof text);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_read_at), cmocka_unit_test(test_files_of_options),
      cmocka_unit_test(test_cache),   cmocka_unit_test(test_cache_path_lengths),
      cmocka_unit_test(test_cores),   cmocka_unit_test(test_available_memory),
      cmocka_unit_test(test_random),  cmocka_unit_test(test_hash),
      cmocka_unit_test(test_bug),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
