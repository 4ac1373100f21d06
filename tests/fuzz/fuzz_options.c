/* The options file. Properties: an error names the file; accepted values are within their bounds. */
#include <string.h>

#include "config/options.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static td_options o;
  td_error err = {0};
  fuzz_write("options", data, size);
  const char *path = fuzz_path("options");
  td_options_init(&o);
  td_status st = td_options_read_file(&o, path, &err);
  FUZZ_CHECK(st == TD_OK || st == TD_ERR_CONFIG);
  if (st != TD_OK)
    FUZZ_CHECK(strncmp(err.message, path, strlen(path)) == 0 && err.message[strlen(path)] == ':');
  for (int i = 0; i < TD_LIMIT_COUNT; i++) {
    const td_limit *l = &td_limits[i];
    FUZZ_CHECK((o.limit[i] >= l->min && o.limit[i] <= l->max) || o.limit[i] == l->def);
  }
  FUZZ_CHECK(strlen(o.model) < sizeof o.model && strlen(o.listen) < sizeof o.listen);
  FUZZ_CHECK(strcmp(o.backend, "auto") == 0 || strcmp(o.backend, "cpu") == 0 ||
             strcmp(o.backend, "cuda") == 0);
  FUZZ_CHECK(strcmp(o.load_format, "auto") == 0 || strcmp(o.load_format, "dummy") == 0);
  FUZZ_CHECK(o.log_level >= TD_LOG_ERROR && o.log_level <= TD_LOG_DEBUG);
  return 0;
}
