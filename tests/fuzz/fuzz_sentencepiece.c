/* A tokenizer.model (SentencePiece): loaded, and used if it loads. */
#include <string.h>

#include "fuzz.h"
#include "models.h"
#include "models/tokenizer/internal.h"

static td_ids encode(const td_tokenizer *t, const char *text, size_t n)
{
  td_ids ids = {0};
  td_error err = {0};
  FUZZ_CHECK(td_tokenizer_encode(t, text, n, NULL, 0, false, 0, &ids, &err) == TD_OK);
  return ids;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  static const char text[] = "abc ab  bc\n [U] caf\xC3\xA9 \xE4\xBD\xA0 \xE2\x96\x81 <s>\xFF\xF0\x9F";
  td_error err = {0};
  td_tokenizer *t = td_tokenizer_new(&err);
  FUZZ_CHECK(t);
  td_status st = td_tokenizer_load_spm(t, data, size, NULL, NULL, &err);
  FUZZ_CHECK(st == TD_OK || ((st == TD_ERR_MODEL || st == TD_ERR_UNSUPPORTED) && *err.message));
  if (st == TD_OK) {
    fuzz_use_tokenizer(t, text, sizeof text - 1);
    td_ids a = encode(t, text, sizeof text - 1), b = encode(t, text, sizeof text - 1);
    FUZZ_CHECK(a.n == b.n && memcmp(a.ids, b.ids, a.n * sizeof *a.ids) == 0);
    td_ids_deinit(&a);
    td_ids_deinit(&b);
  }
  td_tokenizer_destroy(t);
  return 0;
}
