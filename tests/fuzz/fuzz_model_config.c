/* A folder's config.json, generation_config.json and shard index, beside one small safetensors file. Input:
 * the three texts, separated by NULs; a missing text means no file. */
#include <string.h>
#include <unistd.h>

#include "fuzz.h"
#include "models.h"

static const char tensors[] =
    "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[32,8],\"data_offsets\":[0,1024]}}";

static void make_weights(void)
{
  static unsigned char file[8 + sizeof tensors - 1 + 1024];
  file[0] = sizeof tensors - 1;
  memcpy(file + 8, tensors, sizeof tensors - 1);
  fuzz_write("model.safetensors", file, sizeof file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const char *const names[] = {"config.json", "generation_config.json",
                                      "model.safetensors.index.json"};
  static bool ready;
  if (!ready)
    make_weights();
  ready = true;
  for (size_t i = 0, at = 0; i < 3; i++) {
    const uint8_t *nul = at < size ? memchr(data + at, '\0', size - at) : NULL;
    size_t n = nul ? (size_t)(nul - data) - at : size - at;
    if (n > 0 || i == 0)
      fuzz_write(names[i], data + at, n);
    else
      unlink(fuzz_path(names[i]));
    at = nul ? at + n + 1 : size;
  }
  td_model_files_close(fuzz_open_files(fuzz_folder()));
  return 0;
}
