/* Shared by the fuzz targets.
 *
 * A target is one file with LLVMFuzzerTestOneInput. libFuzzer runs it over millions of inputs
 * (scripts/fuzz). As fuzz_<name>_replay it runs once over every file of seeds/<name>/, in any build, under
 * ctest. A broken property aborts, like a crash: both are findings. */
#ifndef TD_TESTS_FUZZ_H
#define TD_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__attribute__((noreturn)) void fuzz_broken(const char *file, int line, const char *what);
#define FUZZ_CHECK(cond)                                                                                     \
  do {                                                                                                       \
    if (!(cond))                                                                                             \
      fuzz_broken(__FILE__, __LINE__, #cond);                                                                \
  } while (0)

/* Path of a file of this name in a folder that exists as long as the process. */
const char *fuzz_path(const char *name);
/* The folder itself. */
const char *fuzz_folder(void);
/* Makes the file hold these bytes. */
void fuzz_write(const char *name, const void *data, size_t size);
/* The bytes of a file of the source tree; ends the process if it cannot be read. Caller frees. */
char *fuzz_read_source(const char *path, size_t *size);

/* Takes the next byte of the input; 0 when it is empty. */
typedef struct fuzz_input {
  const uint8_t *data;
  size_t size;
} fuzz_input;
static inline uint8_t fuzz_take(fuzz_input *in)
{
  if (in->size == 0)
    return 0;
  in->size--;
  return *in->data++;
}

#endif
