/* GGUF files: opened, every byte of every tensor and array read, described, and the tokenizer loaded and
 * used. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "models.h"

/* Reads everything by which a hostile file might cause a hang or an overrun: arrays of strings, arrays of
 * numbers, plain values. */
static void walk_values(const td_model_files *files)
{
  static const char *const keys[] = {"tokenizer.ggml.tokens",
                                     "tokenizer.ggml.merges",
                                     "tokenizer.ggml.token_type",
                                     "tokenizer.chat_template",
                                     "general.architecture",
                                     "general.name",
                                     "k"};
  for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
    td_gguf_string_iter it;
    td_gguf_string s;
    uint64_t u, count;
    double d;
    bool b;
    if (td_gguf_string_array(files, keys[i], &it))
      while (td_gguf_string_next(&it, &s))
        fuzz_touch(s.data, s.n_bytes);
    if (td_gguf_get_string(files, keys[i], &s))
      fuzz_touch(s.data, s.n_bytes);
    (void)td_gguf_get_u64(files, keys[i], &u);
    (void)td_gguf_get_f64(files, keys[i], &d);
    (void)td_gguf_get_bool(files, keys[i], &b);
    if (td_gguf_get_array_count(files, keys[i], &count))
      for (uint64_t k = 0; k < 3; k++) {
        (void)td_gguf_get_array_f64(files, keys[i], k, &d);
        (void)td_gguf_get_array_f64(files, keys[i], count - k, &d);
      }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  td_error err = {0};
  fuzz_write("model.gguf", data, size);
  td_model_files *files = fuzz_open_files(fuzz_path("model.gguf"));
  if (!files)
    return 0;
  walk_values(files);
  td_tokenizer *t;
  if (td_tokenizer_load(files, &t, &err) == TD_OK) {
    fuzz_use_tokenizer(t, "It's 12 o'clock\n\n  caf\xC3\xA9 <|im_end|>\xFF", 34);
    td_tokenizer_destroy(t);
  }
  td_model_files_close(files);
  return 0;
}
