/* main() of a replay: runs a target once over every given file, and over every file of a given folder. With
 * --random N SEED it runs over N inputs of random bytes, and prints the CPU time of the slowest. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "fuzz.h"

static char current[4096]; /* so that a debugger or a core dump shows the input */

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
  uint8_t *data = malloc(n ? n : 1); /* of exact size, so that a sanitizer detects reads beyond */
  FUZZ_CHECK(data && fread(data, 1, n, f) == n);
  fclose(f);
  snprintf(current, sizeof current, "%s", path);
  fprintf(stderr, "%s\n", path);
  LLVMFuzzerTestOneInput(data, n);
  free(data);
  return 1;
}

enum { RANDOM_BYTES = 96 };

static double now_s(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next_random(uint64_t *state) /* splitmix64 */
{
  uint64_t z = *state += 0x9E3779B97F4A7C15u;
  z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
  z = (z ^ z >> 27) * 0x94D049BB133111EBu;
  return z ^ z >> 31;
}

static int run_random(uint64_t n, uint64_t seed)
{
  double slowest = 0;
  uint64_t which = 0;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t state = seed * 0x100000001B3u + i;
    uint8_t data[RANDOM_BYTES];
    size_t size = next_random(&state) % RANDOM_BYTES;
    for (size_t k = 0; k < size; k++)
      data[k] = (uint8_t)(next_random(&state) >> 56);
    snprintf(current, sizeof current, "input %llu of seed %llu", (unsigned long long)i,
             (unsigned long long)seed);
    double from = now_s();
    LLVMFuzzerTestOneInput(data, size);
    double took = now_s() - from;
    which = took > slowest ? i : which;
    slowest = took > slowest ? took : slowest;
  }
  printf("%llu inputs of seed %llu; the slowest, %llu, took %.3f s of processor time\n",
         (unsigned long long)n, (unsigned long long)seed, (unsigned long long)which, slowest);
  return n > 0 ? 0 : 2;
}

int main(int argc, char **argv)
{
  if (argc == 4 && strcmp(argv[1], "--random") == 0)
    return run_random(strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
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
