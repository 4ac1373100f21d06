/* A tokenizer.json, and after a NUL a tokenizer_config.json: loaded, and used if it loads. */
#include <string.h>

#include "config/limits.h"
#include "fuzz.h"
#include "models.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  const td_json_limits limits = {64, 1u << 20, TD_ERR_MODEL};
  const uint8_t *nul = size ? memchr(data, '\0', size) : NULL;
  size_t n = nul ? (size_t)(nul - data) : size;
  cJSON *json, *config = NULL;
  td_error err = {0};
  if (td_json_parse((const char *)data, n, &limits, &json, &err) != TD_OK)
    return 0;
  if (nul && td_json_parse((const char *)nul + 1, size - n - 1, &limits, &config, &err) != TD_OK)
    config = NULL;
  td_tokenizer *t;
  td_status st = td_tokenizer_load_json(json, config, &t, &err);
  FUZZ_CHECK((st == TD_OK) == (t != NULL));
  FUZZ_CHECK(st == TD_OK || ((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED) && *err.message));
  cJSON_Delete(json); /* a tokenizer keeps nothing of its file */
  cJSON_Delete(config);
  if (st == TD_OK) {
    static const char text[] = "abc It's 12345 o'clock\n\n  caf\xC3\xA9 e\xCC\x81 <s><|im_end|>\xFF\xF0\x9F";
    fuzz_use_tokenizer(t, text, sizeof text - 1);
    td_tokenizer_destroy(t);
  }
  return 0;
}
