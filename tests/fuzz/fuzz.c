/* Files for targets that read files, and how a broken property ends the program: see fuzz.h. */
#include "fuzz.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char folder[64];
static char names[8][32];
static int n_names;

void fuzz_broken(const char *file, int line, const char *what)
{
  fprintf(stderr, "%s:%d: broken: %s\n", file, line, what);
  abort();
}

static void remove_folder(void)
{
  for (int i = 0; i < n_names; i++)
    unlink(fuzz_path(names[i]));
  rmdir(folder);
}

const char *fuzz_folder(void)
{
  if (!*folder) {
    /* in memory (/dev/shm) if possible: a target writes its file thousands of times a second */
    snprintf(folder, sizeof folder, "%s/tandem-fuzz.XXXXXX",
             access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
    if (!mkdtemp(folder))
      fuzz_broken(__FILE__, __LINE__, "no folder for files");
    atexit(remove_folder);
  }
  return folder;
}

const char *fuzz_path(const char *name)
{
  static char path[sizeof folder + 256];
  snprintf(path, sizeof path, "%s/%s", fuzz_folder(), name);
  return path;
}

static void remember(const char *name)
{
  for (int i = 0; i < n_names; i++)
    if (strcmp(names[i], name) == 0)
      return;
  FUZZ_CHECK(n_names < 8);
  snprintf(names[n_names++], sizeof names[0], "%s", name);
}

void fuzz_write(const char *name, const void *data, size_t size)
{
  int fd = open(fuzz_path(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  FUZZ_CHECK(fd >= 0);
  remember(name);
  for (size_t at = 0; at < size;) {
    ssize_t n = write(fd, (const char *)data + at, size - at);
    FUZZ_CHECK(n > 0);
    at += (size_t)n;
  }
  close(fd);
}

char *fuzz_read_source(const char *path, size_t *size)
{
  char full[512];
  struct stat st;
  snprintf(full, sizeof full, TD_SOURCE_DIR "/%s", path);
  int fd = open(full, O_RDONLY | O_CLOEXEC);
  if (fd < 0 || fstat(fd, &st) != 0)
    fuzz_broken(path, 0, "cannot be opened");
  char *data = malloc((size_t)st.st_size + 1);
  FUZZ_CHECK(data && read(fd, data, (size_t)st.st_size) == st.st_size);
  close(fd);
  data[st.st_size] = '\0';
  *size = (size_t)st.st_size;
  return data;
}
