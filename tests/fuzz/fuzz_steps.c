/* The text form of step times. Input: a byte for the mode, then the text. Even: the text as it is. Odd: the
 * text below the head, to which the right head and checksum are added, because mutation would never find
 * them; 3: the head of the previous version. Properties: a refused text does not change the model and gives
 * one printable line; an accepted one is valid, predicts a finite time, and reads the same when written
 * again. */
#include <math.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fuzz.h"
#include "scheduler/cost_text.h"

static void check_error(td_status st, const td_error *err)
{
  FUZZ_CHECK(st == TD_ERR_CONFIG && *err->message);
  for (const char *c = err->message; *c; c++)
    FUZZ_CHECK((unsigned char)*c >= 0x20 && *c != 0x7f);
}

static void check_model(const td_cost_model *m, const char *identity)
{
  char again_identity[TD_COST_IDENTITY_BYTES];
  td_cost_model again;
  td_error err;
  td_buf text;
  FUZZ_CHECK(td_cost_is_valid(m) && *identity);
  for (int kind = 0; kind < 2; kind++)
    FUZZ_CHECK(td_cost_learned(m, kind) >= 0.5 && td_cost_learned(m, kind) <= 2);
  for (uint32_t n = 1; n < 1u << 31; n *= 3) {
    double us = td_cost_step_us(
        m, &(td_step_work){
               .n_tokens = n, .n_rows = n, .n_logits = n, .n_decode_rows = n / 2, .prefill_pairs = n});
    FUZZ_CHECK(isfinite(us) && us > 0);
  }
  memset(&again, 0, sizeof again);
  td_buf_init(&text, TD_COST_TEXT_BYTES);
  td_cost_print(m, identity, &text);
  FUZZ_CHECK(!text.failed && td_cost_parse(text.data, text.len_bytes, &again, again_identity, &err) == TD_OK);
  FUZZ_CHECK(memcmp(&again, m, sizeof again) == 0 && strcmp(again_identity, identity) == 0);
  td_buf_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
  fuzz_input in = {data, size};
  uint8_t mode = fuzz_take(&in);
  bool body = mode & 1, before = mode & 2;
  char identity[TD_COST_IDENTITY_BYTES];
  td_cost_model m, untouched;
  td_error err = {0};
  td_buf b;
  memset(&m, 0x5a, sizeof m);
  untouched = m;
  td_buf_init(&b, 0);
  if (body)
    td_buf_printf(&b, "tandem-steps %d\nSome GPU (80 GB), 32 layers\n", before ? 2 : 4);
  td_buf_append(&b, (const char *)in.data, in.size);
  if (body)
    td_buf_printf(&b, "xxh3 %016llx\n", (unsigned long long)XXH3_64bits(b.data, b.len_bytes));
  FUZZ_CHECK(!b.failed);
  td_status st = td_cost_parse(b.data, b.len_bytes, &m, identity, &err);
  if (st == TD_OK) {
    FUZZ_CHECK(!body || !before || (m.learned[0] == 0 && m.learned[1] == 0));
    check_model(&m, identity);
  } else {
    check_error(st, &err);
    FUZZ_CHECK(memcmp(&m, &untouched, sizeof m) == 0);
  }
  td_buf_deinit(&b);
  return 0;
}
