/* A folder's safetensors file, beside a fixed config.json. Input: a flag byte. If it is odd, the file as it
 * is follows. Otherwise the JSON header follows, and the target puts the right length before it and flag *
 * 64 bytes of data after it, because a mutated header would almost never have the length that its first
 * bytes claim. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "models.h"

static const char config[] =
    "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":8,"
    "\"intermediate_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
    "\"num_key_value_heads\":1,\"vocab_size\":32,\"max_position_embeddings\":64,"
    "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":true,\"hidden_act\":\"silu\"}";

static void write_file(uint8_t flag, const uint8_t *data, size_t size)
{
  if (flag & 1) {
    fuzz_write("model.safetensors", data, size);
    return;
  }
  size_t tail = flag * 64u;
  unsigned char *file = calloc(1, 8 + size + tail);
  FUZZ_CHECK(file);
  for (int i = 0; i < 8; i++)
    file[i] = (unsigned char)((uint64_t)size >> 8 * i);
  if (size > 0)
    memcpy(file + 8, data, size);
  fuzz_write("model.safetensors", file, 8 + size + tail);
  free(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static bool ready;
  fuzz_input in = {data, size};
  if (!ready)
    fuzz_write("config.json", config, sizeof config - 1);
  ready = true;
  uint8_t flag = fuzz_take(&in);
  write_file(flag, in.data, in.size);
  td_model_files_close(fuzz_open_files(fuzz_folder()));
  return 0;
}
