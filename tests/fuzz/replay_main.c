/* main() of a replay: runs a target once over every file given, and over every file of a folder given. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"

static char current[4096]; /* so that a debugger, or a core, tells the input */

static int replay_file(const char *path)
{
  struct stat st;
  FILE *f = fopen(path, "re");
  if (!f || fstat(fileno(f), &st) != 0) {
    fprintf(stderr, "%s: cannot be read\n", path);
    exit(2);
  }
  if (!S_ISREG(st.st_mode)) {
    fclose(f);
    return 0;
  }
  size_t n = (size_t)st.st_size;
  uint8_t *data = malloc(n ? n : 1); /* exact, so that a sanitizer sees reads beyond */
  FUZZ_CHECK(data && fread(data, 1, n, f) == n);
  fclose(f);
  snprintf(current, sizeof current, "%s", path);
  fprintf(stderr, "%s\n", path);
  LLVMFuzzerTestOneInput(data, n);
  free(data);
  return 1;
}

int main(int argc, char **argv)
{
  int n = 0;
  for (int i = 1; i < argc; i++) {
    DIR *d = opendir(argv[i]);
    struct dirent *e;
    char path[4096];
    if (!d) {
      n += replay_file(argv[i]);
      continue;
    }
    while ((e = readdir(d)))
      if (e->d_name[0] != '.') {
        snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
        n += replay_file(path);
      }
    closedir(d);
  }
  printf("%d inputs\n", n);
  return n > 0 ? 0 : 2; /* nothing replayed is not a test passed */
}
